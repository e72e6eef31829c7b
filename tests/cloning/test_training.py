"""Cloning where the answer is known: memory where it is needed and none where it is not, stopped at
its best, and the same after an interruption."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neubay import agents
from neubay.algorithm import Trained
from neubay.cloning import account, clone, in_words, training
from neubay.config import AgentConfig, TrainConfig, resolve, settle
from neubay.data.dataset import Dataset
from neubay.runs.checkpoints import Checkpoints
from neubay.runs.signals import Stopped
from neubay.tape import AgentInput
from neubay.tasks import ContinuousActions, DiscreteActions, Task

EPISODES, STEPS = 300, 6
NOISE = 0.3
KEY = jax.random.key(0)
NAMES = "held_out", "best_step"
SMALL = {"width": 16, "memory_size": 8, "tape": 128, "window": 6, "burn_in": 6, "steps": 600}


def data(follows: str, discrete: bool = False, episodes: int = EPISODES) -> Dataset:
    """Actions that follow a cue, with noise: the cue is in every state, or in the first one only.
    `nothing`: they follow no cue."""
    rng = np.random.default_rng(0)
    cue = rng.choice([-1.0, 1.0], (episodes, STEPS))
    if follows == "past":
        cue[:] = cue[:, :1]
    seen = cue.copy()
    if follows == "past":
        seen[:, 1:] = 0.0
    wanted = 0.0 if follows == "nothing" else cue
    if discrete:  # one of three: the first or the last, mostly
        other = rng.random(cue.shape) < NOISE
        action = np.where(other, 1, np.where(wanted > 0, 2, 0)).ravel()
        actions: Any = DiscreteActions(3)
    else:
        action = np.tanh(0.5 * wanted + NOISE * rng.normal(size=cue.shape)).reshape(-1, 1)
        actions = ContinuousActions.symmetric(1)
    states = np.stack([seen, rng.normal(size=cue.shape)], axis=-1)
    after = np.roll(states, -1, axis=1).reshape(-1, 2)
    ends = np.tile(np.arange(STEPS) == STEPS - 1, episodes)
    task = Task("cued", state_size=2, actions=actions, horizon=STEPS, termination=None)
    return Dataset.from_arrays(
        states.reshape(-1, 2).astype(np.float32),
        action if discrete else action.astype(np.float32),
        np.zeros(len(after), np.float32),
        np.zeros(len(after), bool),
        ends,
        after.astype(np.float32),
        task=task,
        name=follows,
    )


def settings(dataset: Dataset, **agent: Any) -> TrainConfig:
    return settle(resolve(None, "cpu", "bc", {"agent": SMALL | agent}), dataset.facts)


def cloned(
    dataset: Dataset, folder: Path, rows: list | None = None, until: int | None = None, **agent: Any
) -> Trained:
    told = [] if rows is None else rows
    reached = lambda: bool(until and told and told[-1]["step"] >= until)  # noqa: E731
    kept = Checkpoints(folder, every=1e9, signalled=lambda: 2 * reached(), tell=lambda text: None)
    return clone(dataset, settings(dataset, **agent), told.append, kept)


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return cloned(data("past"), tmp_path_factory.mktemp("past"))


@pytest.mark.slow
def test_what_follows_from_the_past_is_cloned_with_memory(remembering: Trained) -> None:
    """The likelihood of both is known: memory knows the cue from the second step on; without it
    actions are either of two, as likely as not."""
    found, rng = account(remembering), np.random.default_rng(1)
    assert found["memory"] == remembering.agent.config.memory == "gated"
    noise = NOISE * rng.normal(size=100_000)

    def density(u: np.ndarray) -> np.ndarray:
        return np.exp(-((u / NOISE) ** 2) / 2) / NOISE / np.sqrt(2 * np.pi)

    u = 0.5 + noise
    slope = np.log(1 - np.tanh(u) ** 2)
    best = float((np.log(density(noise)) - slope).mean())
    assert found["held_out_memory"] == pytest.approx(best, abs=0.15)
    spread = np.sqrt(0.25 + NOISE**2)  # a Gaussian over both
    blind = float((-0.5 * (u / spread) ** 2 - np.log(spread * np.sqrt(2 * np.pi)) - slope).mean())
    assert found["held_out_markov"] == pytest.approx(best / STEPS + blind * 5 / 6, abs=0.15)
    assert "the one with memory" in in_words(found)


@pytest.mark.slow
def test_the_last_action_is_not_seen(remembering: Trained) -> None:
    policy, keys = remembering.agent.policy(remembering.state, True), jax.random.split(KEY, 2)

    def acts(state: float, last: float, reward: float) -> np.ndarray:
        memory = policy.initial(2)
        for start in (True, False):
            inputs = AgentInput(
                np.full((2, 2), state, np.float32),
                np.array([[0.0], [last]], np.float32),
                np.array([0.0, reward], np.float32),
                np.full(2, start),
            )
            memory, action = policy.act(memory, inputs, keys)
        return np.asarray(action)[:, 0]

    same, other = acts(0.5, 1.0, 0.0)
    assert same == other
    assert len(set(acts(0.5, 0.0, 1.0).tolist())) == 2  # but the reward is


@pytest.mark.slow
def test_the_best_episodes_alone_are_cloned(tmp_path: Path) -> None:
    """Half of the episodes go up and are paid for it, the others go down: all of them cloned are
    neither, the best quarter goes up."""
    rng = np.random.default_rng(0)
    up = np.repeat(rng.permutation([0.5, -0.5] * (EPISODES // 2)), STEPS)
    action = np.tanh(up + 0.1 * rng.normal(size=len(up))).astype(np.float32)[:, None]
    state = rng.normal(size=(len(up), 1)).astype(np.float32)
    ends = np.tile(np.arange(STEPS) == STEPS - 1, EPISODES)
    task = Task("paid", 1, ContinuousActions.symmetric(1), horizon=STEPS, termination=None)
    dataset = Dataset.from_arrays(
        state, action, np.sign(up), np.zeros(len(up), bool), ends, state, task=task, name="paid"
    )
    for share, expected in ((1.0, 0.0), (0.25, np.tanh(0.5))):
        config = {"memory": "none", "window": 1, "burn_in": 0, "best_share": share}
        made = cloned(dataset, tmp_path / str(share), **config)
        policy = made.agent.policy(made.state, True)
        inputs = AgentInput(state[:8], action[:8] * 0, np.zeros(8), np.ones(8, bool))
        _, chosen = policy.act(policy.initial(8), inputs, jax.random.split(KEY, 8))
        np.testing.assert_allclose(np.asarray(chosen), expected, atol=0.1)
        words = in_words(account(made))
        assert ("the best 25% of the data" in words) == (share == 0.25)


@pytest.mark.slow
def test_what_follows_from_the_state_is_cloned_without_memory(tmp_path: Path) -> None:
    found = account(cloned(data("state"), tmp_path))
    assert found["memory"] == "none" and "the one without memory" in in_words(found)
    assert "memory has no clear advantage, so the simpler one is taken" in in_words(found)
    assert found["held_out_memory"] == pytest.approx(found["held_out_markov"], abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("follows", "memory"), [("past", "gated"), ("state", "none")])
def test_discrete_actions_too(follows: str, memory: str, tmp_path: Path) -> None:
    found = account(cloned(data(follows, discrete=True), tmp_path))
    entropy = -(NOISE * np.log(NOISE) + (1 - NOISE) * np.log(1 - NOISE))
    blind = -(NOISE * np.log(NOISE) + (1 - NOISE) * np.log((1 - NOISE) / 2))
    assert found["memory"] == memory
    assert found["held_out_memory"] == pytest.approx(-entropy, abs=0.15)
    expected = entropy if follows == "state" else entropy / STEPS + blind * 5 / 6
    assert found["held_out_markov"] == pytest.approx(-expected, abs=0.15)


@pytest.mark.slow
def test_cloning_stops_and_keeps_the_weights_that_were_best(tmp_path: Path) -> None:
    """From a few episodes without a pattern there is only noise to learn, by heart."""
    dataset, rows = data("nothing", episodes=12), []
    config = settings(dataset, steps=2000, memory="none")
    cloning = training.Cloning(dataset, config)
    kept = Checkpoints(tmp_path, every=1e9, tell=lambda text: None)
    at = cloning.train(rows.append, kept)
    (only,) = cloning.candidates
    reached, when = (only.record(cloning.unseen)[f"{name}_markov"] for name in NAMES)
    assert when + 400 <= at.step < when + 450 and at.step < 2000  # a fifth of 2000, in calls of 50
    assert reached == max(row["held_out_markov"] for row in rows)

    def likelihood(actor: Any) -> float:
        plain = only.agent.log_likelihood(actor, cloning.unseen.tape)
        each = np.asarray(training.granted(only.agent, plain))
        return float(each[cloning.unseen.block < len(cloning.unseen.steps)].mean())

    assert likelihood(only.at_best.actor) == pytest.approx(reached, rel=1e-4)
    assert likelihood(only.progress.state.actor) < reached - 0.01
    assert cloning.better() is only


@pytest.mark.slow
def test_an_interrupted_clone_ends_as_if_it_had_not_been(
    remembering: Trained, tmp_path: Path
) -> None:
    dataset, rows = data("past"), []
    with pytest.raises(Stopped):
        cloned(dataset, tmp_path, rows, until=200)
    resumed = cloned(dataset, tmp_path, rows)
    again = cloned(dataset, tmp_path)  # nothing is left to do
    assert account(resumed) == account(again) == account(remembering)
    for trained in (resumed, again):
        weights = zip(
            *(jax.tree.leaves(t.state.actor) for t in (trained, remembering)), strict=True
        )
        for ours, theirs in weights:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_no_step_outweighs_all_others(kind: Any) -> None:
    agent: Any = agents.make(2, 3, kind, AgentConfig(algorithm="bc"))
    usual, strange = np.asarray(training.granted(agent, jnp.array([-0.5, -500.0])))
    assert usual == pytest.approx(-0.5, abs=0.02)
    anything = np.log(1 / 8) if kind == "continuous" else np.log(1 / 3)
    assert strange == pytest.approx(np.log(0.01) + anything, rel=1e-4)


def test_memory_must_be_clearly_better() -> None:
    """A gain in one block of many is none; nor is one as large as its noise."""
    steps = np.full(20, 50)
    one, noise = 20.0 * (np.arange(20) == 3), np.tile([4.0, -3.0], 10)
    assert not training.clearly_above_zero(one, steps)
    assert not training.clearly_above_zero(noise, steps)
    assert training.clearly_above_zero(2 + noise, steps)
    assert not training.clearly_above_zero(np.zeros(20), steps)
    uneven = np.array([50, 10])  # the same per step in both
    assert training.clearly_above_zero(0.1 * uneven, uneven)
