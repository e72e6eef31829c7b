"""Timing in turns with the machine's matmul."""

import time

import jax

from neubay.bench.measure import measure


def test_turns_compare_the_best_of_both() -> None:
    def call() -> jax.Array:
        time.sleep(0.01)
        return jax.numpy.zeros(())

    measured = measure(call, flops=1e9, turns=3)
    assert 50 < measured.gflops < 100.1  # 1e9 flops in a little more than 10 ms
    assert measured.ratio == measured.gflops / measured.matmul_gflops
    assert measured.compile_s >= 0
