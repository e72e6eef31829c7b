"""What is chosen by backend is chosen in one file, and changes no number beyond rounding."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import neubay
from helpers.linear_system import CONFIG, Linear
from neubay import agents, imagination, world
from neubay.config import AgentConfig, default_preset
from neubay.data.dataset import Dataset
from neubay.devices import choices
from neubay.replay import BatchShape, sample_data
from neubay.tape import Prefix, Tape

PACKAGE = Path(neubay.__file__).parent
SIZES = {"width": 8, "memory_size": 4, "memory_layers": 1, "heads": 3, "head_lr": 1e-2}


def test_no_other_file_asks_what_it_runs_on() -> None:
    asks = re.compile(r"default_backend|optimization_barrier|sched_getaffinity|platform_dependent")
    asking = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if asks.search(path.read_text(encoding="utf-8"))
    }
    elsewhere = {
        "runs/provenance.py",  # only records it
        "sweeps/cores.py",  # gives a process its cores before JAX, and so any backend, is there
    }
    assert asking == {"devices/choices.py"} | elsewhere


def test_each_backend_gets_its_own() -> None:
    assert choices.on_cpu() and default_preset() == "cpu"
    assert choices.pool_layout(128, 4).lanes == 1  # a device each, and no threads
    for backend in ("cuda", "tpu"):
        with choices.assumed(backend):
            assert default_preset() == "paper"
            assert choices.recurrence() == "associative" and choices.heads_side_by_side()
            assert choices.pool_layout(128, 1) == (1, 128, ())
            assert choices.uncertainty_rows(100) == 512 and choices.data_rows() == 1024
    assert choices.recurrence() == "sequential" and choices.uncertainty_rows(100) == 100


def tapes(dataset: Dataset) -> Tape:
    """Two batches, half of whose rows pass for imagined."""
    rng = np.random.default_rng(0)
    drawn = sample_data(dataset, rng, 2, BatchShape(24))
    return drawn._replace(real=rng.random(drawn.start.shape) < 0.5)


def made_up() -> Dataset:
    """Six episodes of nine steps."""
    rng = np.random.default_rng(1)
    states = rng.normal(size=(55, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (54, 2)).astype(np.float32)
    rewards, ends = rng.normal(size=54).astype(np.float32), np.arange(54) % 9 == 8
    nothing = np.zeros(54, bool)
    return Dataset.from_arrays(states[:-1], action, rewards, nothing, ends, states[1:])


@pytest.mark.slow
def test_gradient_steps_are_the_same_on_both() -> None:
    """The associative scan, heads side by side, no barriers."""
    agent = agents.make(3, 2, "continuous", AgentConfig(**SIZES))
    batches = tapes(made_up())
    here, losses = agent.update(agent.init(jax.random.key(0)), batches)
    with choices.assumed("cuda"):
        there, other = agent.update(agent.init(jax.random.key(0)), batches)
    for name in losses:
        np.testing.assert_allclose(losses[name], other[name], rtol=1e-5, atol=1e-6)
    for one, two in zip(jax.tree.leaves(here.critic), jax.tree.leaves(there.critic), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_worlds_and_rollouts_are_the_same_on_both() -> None:
    dataset = Linear().dataset(700)
    config = CONFIG.model_copy(update={"max_epochs": 2})
    here = world.fit(dataset, config, seed=0)
    agent = agents.make(3, 1, "continuous", AgentConfig(**SIZES))
    policy = agent.policy(agent.init(jax.random.key(0)), deterministic=False)
    prefix = Prefix(np.array([0, 2, 4, 6]), np.array([1, 1, 0, 0]))
    branches = imagination.branch(dataset, prefix)
    rules = imagination.Rules(horizon=30, threshold=here.threshold(0.9))

    def rollouts() -> imagination.Rollouts:
        members = np.array([0, 1, 2, 0], np.int32)
        return imagination.imagine(here.world, policy, branches, members, rules, jax.random.key(1))

    ours = rollouts()
    with choices.assumed("cuda"):
        there, theirs = world.fit(dataset, config, seed=0), rollouts()
    np.testing.assert_allclose(here.scores, there.scores, atol=1e-5)
    np.testing.assert_allclose(here.data_uncertainty, there.data_uncertainty, atol=1e-5)
    np.testing.assert_array_equal(ours.length, theirs.length)
    assert ours.length.sum() > 4  # some were imagined
    np.testing.assert_allclose(ours.rows.state, theirs.rows.state, rtol=1e-4, atol=1e-5)
