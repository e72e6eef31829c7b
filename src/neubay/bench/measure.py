"""Timing against the machine: a stage's rate as a share of the matmul rate in the same run.

Times on shared machines are noisy, so a stage and a plain float32 matmul (2048 x 256 x 256) are
timed in turns, and the best of each is compared. Flops are those of the stage's matrix products,
counted from shapes; everything else it does costs time and counts nothing.
"""

import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

MATMUL = (2048, 256, 256)
_MATMULS_PER_TURN = 100


class Measurement(NamedTuple):
    """The best rates of a stage and of the matmul beside it."""

    gflops: float
    matmul_gflops: float
    compile_s: float
    seconds: float  # of one call

    @property
    def ratio(self) -> float:
        return self.gflops / self.matmul_gflops

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "gflops": self.gflops,
            "matmul_gflops": self.matmul_gflops,
            "ratio": self.ratio,
            "compile_s": self.compile_s,
            "call_s": self.seconds,
        }


def measure(call: Callable[[], Any], flops: float, *, turns: int = 7) -> Measurement:
    """Time `call`, which does `flops` of matrix products, in turns with the machine's matmul.

    The first call compiles; what it takes beyond a later one is the compile time.
    """
    rows, inner, columns = MATMUL
    left, right = jnp.ones((rows, inner)), jnp.ones((inner, columns))
    product = jax.jit(jnp.matmul)

    def matmuls() -> None:
        for _ in range(_MATMULS_PER_TURN):
            product(left, right).block_until_ready()

    first = _seconds(call)
    matmuls()
    times = [(_seconds(matmuls), _seconds(call)) for _ in range(turns)]
    matmul, stage = (min(column) for column in zip(*times, strict=True))
    return Measurement(
        gflops=flops / stage / 1e9,
        matmul_gflops=2 * rows * inner * columns * _MATMULS_PER_TURN / matmul / 1e9,
        compile_s=max(first - stage, 0.0),
        seconds=stage,
    )


def compile_seconds(call: Callable[[], Any]) -> float:
    """What the first call takes beyond the second."""
    first, second = (_seconds(call) for _ in range(2))
    return max(first - second, 0.0)


def processor_seconds(call: Callable[[], Any], turns: int = 3) -> float:
    """Processor time of a call, the least of several after one that compiles: what other work on
    the machine costs does not count into it, though it takes its share of the caches."""
    jax.block_until_ready(call())
    return min(_seconds(call, time.process_time) for _ in range(turns))


def _seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    begun = clock()
    jax.block_until_ready(call())
    return clock() - begun


def peak_mb() -> float:
    """The most memory this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
