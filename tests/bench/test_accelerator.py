"""What is counted of programs, against programs and sizes whose answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neubay.bench import accelerator, stages
from neubay.bench.programs import Program, shape
from neubay.tasks import get_task

TASK = get_task("d4rl/halfcheetah")


def test_transfers_and_memory_of_a_program_are_counted() -> None:
    program = Program(
        lambda state, batch: (state + batch.sum(), batch.max()),
        (shape(1000), shape(50)),
        sent=lambda state, batch: batch,
        read=lambda result: result[1],
        donated=(0,),
        gradient_steps=5,
    )
    found = accelerator.count(program)
    assert found["transfers_inside"] == 0 and found["gradient_steps"] == 5
    assert (found["arrays_sent"], found["kb_sent"]) == (1, 0.2)
    assert (found["arrays_read"], found["kb_read"]) == (1, 0.004)
    arguments = 4 * 1050 / 1e6
    assert arguments <= found["device_mb"] < arguments + 4 * 1000 / 1e6  # no second state


def test_a_call_into_python_is_counted() -> None:
    program = Program(lambda x: jax.pure_callback(np.sin, x, x), (shape(3),))
    assert accelerator.count(program)["transfers_inside"] == 1


@pytest.mark.slow
def test_parameters_are_those_of_the_published_networks() -> None:
    found = accelerator.parameters(*stages.setting())
    hidden = (23 + 1) * 200 + 3 * (200 + 1) * 200 + 4 * 2 * 200  # with LayerNorm's scale and shift
    assert found["world, N = 100"] == 100 * (hidden + (200 + 1) * 36)
    assert found["actor head"] == 2 * (256 + 1) * 256 + 2 * 2 * 256 + (256 + 1) * 12
    first = (256 + 6 + 1) * 256
    assert found["critic heads"] == 10 * (first + (256 + 1) * 256 + 2 * 2 * 256 + 256 + 1)
    assert all(count < accelerator.PAPER_BOUNDS[part] for part, count in found.items())


def test_estimates_are_flops_at_a_share_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "count", lambda program: {"device_mb": 500.0})
    _, settings = stages.setting()
    small, large = (accelerator.expected_world(TASK, settings, pool) for pool in (8, 128))
    step = 2 * 256 * (2 * 23 * 200 + 3 * (3 * 200 * 200 + 200 * 36))
    assert large["pflop"] == pytest.approx(600 * 7809 * 128 * step / 1e15)
    assert large["pflop"] == pytest.approx(16 * small["pflop"])
    assert large["hours_10%"] == pytest.approx(large["pflop"] * 1e15 / 9.16e12 / 3600)
    assert large["hours_10%"] == pytest.approx(3 * large["hours_30%"])
    snapshots = 128 * 4 * (134_236 + 1) / 1e9
    assert large["gb"] == pytest.approx(0.5 + snapshots)


@pytest.mark.slow
def test_the_costs_of_the_paper_have_counterparts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case of its tables is there, with the paper's number beside it."""
    cases = [case for case in stages.CASES if case.stage in ("pools", "rollouts")]
    assert len(cases) == 3 + 6
    monkeypatch.setattr(stages, "processor_seconds", lambda call: 0.8)
    found = stages.bench_world_cost(pool=8)
    assert found == {"step_cpu_ms": pytest.approx(100.0), "paper_h": 1.2}
    found = stages.bench_rollout_cost(members=5, rollouts=20)
    assert (found["call_cpu_s"], found["paper_s"]) == (0.8, 3.0)


def test_processor_time_is_the_least_of_several() -> None:
    product = jax.jit(lambda x: x @ x)
    assert 0 < stages.processor_seconds(lambda: product(jnp.ones((200, 200)))) < 1
