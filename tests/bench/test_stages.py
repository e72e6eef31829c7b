"""The stages that are measured: honest flop counts, whole figures, cases that fail."""

import jax
import numpy as np
import pytest

from neubay import imagination
from neubay.bench import measure, stages
from neubay.config import AgentConfig, TrainConfig, WorldConfig
from neubay.errors import NeubayError
from neubay.tape import Prefix
from neubay.tasks import get_task


@pytest.fixture(autouse=True)
def few_matmuls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured beside a stage need not be precise here."""
    monkeypatch.setattr(measure, "_MATMULS_PER_TURN", 5)


@pytest.mark.slow
def test_a_small_world_has_all_its_figures() -> None:
    figures = stages.bench_world(pool=2, rows=600)
    assert {"gflops", "ratio", "compile_s", "peak_mb", "step_s"} <= figures.keys()
    assert all(value >= 0 for value in figures.values())


def test_synthetic_data_has_the_tasks_sizes_and_whole_episodes() -> None:
    task = get_task("d4rl/halfcheetah")
    dataset = stages.synthetic_dataset(task, 3003)
    assert dataset.episodes == 3
    assert dataset.tape.state.shape == (3003, 17) and dataset.tape.action.shape == (3003, 6)
    assert len(dataset.world_rows) == 3 * 999  # the transition at a timeout is left out


@pytest.mark.slow
def test_rollouts_of_the_bench_last_as_long_as_they_should() -> None:
    """And their flops are those of every member's matrices and the actor's."""
    task = get_task("pendulum")
    small = WorldConfig(width=8, depth=2, pool=3, members=3)
    config = TrainConfig(world=small, agent=AgentConfig(width=8, memory_size=4, memory_layers=1))
    world, policy = stages._untrained(task, config)
    assert stages._product_flops(world, 3) == 2 * 3 * (4 * 8 + 8 * 8 + 8 * 8)
    encoder = 5 * 8 + 4 * 8 * 4 + 8 * 16
    assert stages._product_flops(policy.actor, 2) == 2 * (encoder + 2 * 8 * 8 + 8 * 2)
    dataset = stages.synthetic_dataset(task, 201)
    branches = imagination.branch(dataset, Prefix(np.zeros(4, int), np.array([9, 5, 1, 0])))
    branches.inputs.state[:, 0] = [3, 20, 1, 7]
    rules = imagination.Rules(horizon=400, termination=stages._counted_down, threshold=1e9)
    rollouts = imagination.imagine(
        world, policy, branches, np.array([0, 1, 2, 0], np.int32), rules, jax.random.key(0)
    )
    np.testing.assert_array_equal(rollouts.length, [3, 20, 1, 7])


@pytest.mark.slow
def test_a_replay_has_all_its_figures() -> None:
    figures = stages.bench_replay("pendulum", "cpu")
    assert figures["bytes_per_row"] == 4 * (3 + 1 + 1) + 1
    assert figures["update_share"] > 0 and figures["tape_ms"] > 0


@pytest.mark.slow
def test_a_case_that_fails_says_which_and_why() -> None:
    with pytest.raises(NeubayError, match=r"'broken' failed:\n[^$]*negative"):
        stages.run_case(stages.Case("world", "broken", {"pool": 2, "rows": -600}))
