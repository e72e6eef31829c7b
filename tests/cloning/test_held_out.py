"""What is held out of the data: about a tenth, never learnt from, and counted once."""

import dataclasses

import jax
import numpy as np
import pytest

from neubay import agents
from neubay.cloning import held_out as held
from neubay.config import AgentConfig
from neubay.data.dataset import Dataset
from neubay.tape import Prefix
from neubay.tasks import ContinuousActions, Task

CONFIG = AgentConfig(algorithm="bc", width=8, memory_size=4, memory_layers=1)


def data(*lengths: int) -> Dataset:
    """Episodes of so many steps; the state is the number of its row in the tape."""
    steps = sum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    number = (np.arange(steps) + episode).astype(np.float32)[:, None]
    ends = np.zeros(steps, bool)
    ends[np.cumsum(lengths) - 1] = True
    action = np.sin(number)
    return Dataset.from_arrays(
        number, action, number[:, 0], np.zeros(steps, bool), ends, number + 1, name="numbered"
    )


def rows(parts: Prefix, skipped: np.ndarray | int = 0) -> list[int]:
    """The rows of the tape whose steps are in these pieces, without the first few of each."""
    first, length = np.asarray(parts.first) + skipped, np.asarray(parts.length) - skipped
    return [f + i for f, n in zip(first, length, strict=True) for i in range(n)]


def counted(dataset: Dataset, seed: int) -> tuple[list[int], list[int]]:
    """Steps that are learnt from, and steps that are compared on."""
    parts = held.split(dataset, seed)
    return rows(parts.training), rows(parts.held_out, parts.read)


@pytest.mark.parametrize(
    ("lengths", "whole"),
    [((20,) * 30, True), ((100,) * 3, False), ((50,), False), ((500, *(3,) * 40), True)],
)
def test_a_tenth_is_held_out_and_the_rest_is_learnt_from(
    lengths: tuple[int, ...], whole: bool
) -> None:
    dataset = data(*lengths)
    training, unseen = counted(dataset, 0)
    assert sorted(training + unseen) == rows(dataset.histories)  # each once
    assert 0.08 <= len(unseen) / sum(lengths) <= 0.1
    assert (held.split(dataset, 0).read == 0).all() == whole
    assert counted(dataset, 0) == (training, unseen)
    assert (counted(dataset, 1)[1] != unseen) == whole  # other episodes, but the same ends


def test_at_least_a_step_is_held_out_unless_there_is_no_second() -> None:
    training, unseen = counted(data(2, 1), 0)
    assert (training, unseen) == ([0, 3], [1])
    training, unseen = counted(data(1, 1), 0)
    assert training == unseen == [0, 2]


def test_large_data_has_no_more_held_out_than_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MOST_STEPS", 30)
    assert len(counted(data(*[10] * 100), 0)[1]) == 30
    assert len(counted(data(900, 100), 0)[1]) == 30  # 27 and 3


def paid(*episodes: tuple[int, float, bool], horizon: int = 100) -> Dataset:
    """Episodes of so many steps that pay so much each, some of them ended by a terminal state."""
    lengths = [steps for steps, _, _ in episodes]
    last = np.cumsum(lengths) - 1
    reward = np.repeat([each for _, each, _ in episodes], lengths).astype(np.float32)
    ended = np.zeros(len(reward), bool)
    ended[last] = [ends for _, _, ends in episodes]
    timeout = np.zeros(len(reward), bool)
    timeout[last] = ~ended[last]
    state = np.arange(len(reward), dtype=np.float32)[:, None]
    task = Task("paid", 1, ContinuousActions.symmetric(1), horizon, termination=None)
    return Dataset.from_arrays(
        state, 0 * state, reward, ended, timeout, state + 1, task=task, name="paid"
    )


def best(share: float, *episodes: tuple[int, float, bool], horizon: int = 100) -> list[int]:
    """The numbers of the best of these episodes."""
    dataset = paid(*episodes, horizon=horizon)
    chosen = held.best_episodes(dataset, share)
    return np.searchsorted(dataset.histories.first, chosen.first).tolist()


def test_the_best_episodes_are_those_worth_most_until_they_are_a_share_of_the_steps() -> None:
    four = [(10, reward, False) for reward in (1.0, 3.0, 2.0, 0.0)]
    for share, chosen in ((0.1, [1]), (0.25, [1]), (0.26, [1, 2]), (0.75, [0, 1, 2])):
        assert best(share, *four) == chosen


def test_what_is_worth_as_little_as_the_worst_is_not_among_the_best() -> None:
    """Two of forty arrive: the others are no better for standing first in the log."""
    arrived = {7, 23}
    forty = [(10, float(number in arrived), False) for number in range(40)]
    assert best(0.25, *forty) == [7, 23]
    assert best(0.25, *[(10, 1.0, False)] * 8) == [*range(8)]  # none is better than another


def test_a_history_is_worth_what_it_earns_up_to_T_and_would_earn_if_it_was_cut() -> None:
    """The mean reward of all is 1 in the first two."""
    fell, stopped, whole = (50, 1.0, True), (50, 1.0, False), (100, 1.0, False)
    assert best(0.2, fell, stopped, (0 + 2, 1.0, True)) == [1]  # worth 50 and 100
    assert best(0.01, whole, (2, 1.4, False), (2, 0.6, False)) == [1]  # by 0.8 in a hundred
    # A few good steps weigh little against a whole episode that is good.
    assert best(0.1, (100, 2.0, False), (5, 4.0, False), (200, 0.0, False), horizon=200) == [0]
    # Where rewards are costs, stopping early is no merit.
    assert best(0.1, (10, -2.0, False), (100, -1.0, False)) == [1]


def test_what_comes_after_T_is_not_cloned_and_counts_for_nothing() -> None:
    """Logs of benchmarks go on after T: thirty steps of 1 are worth 10 to an agent, ten of 1.5 are
    worth 15."""
    logged = paid((30, 1.0, True), (10, 1.5, True))
    dataset = dataclasses.replace(logged, task=dataclasses.replace(logged.task, horizon=10))
    assert dataset.histories.length.tolist() == [10, 10]
    assert held.best_episodes(dataset, 0.5).first.tolist() == [31]


def test_of_chosen_episodes_a_tenth_is_held_out_and_the_others_are_not_touched() -> None:
    dataset = paid(*((10, float(number % 7), False) for number in range(100)))
    best = held.best_episodes(dataset, 0.25)
    parts = held.split(dataset, 0, best)
    assert sorted(rows(parts.training) + rows(parts.held_out)) == rows(best)
    assert len(rows(parts.held_out)) == 20


@pytest.mark.parametrize("lengths", [(20,) * 40, (300, 80), (7,)])
def test_every_held_out_step_counts_once_after_what_precedes_it(
    lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "COLUMNS", 3)
    monkeypatch.setattr(held, "CONTEXT", 25)
    monkeypatch.setattr(held, "BLOCK", 6)
    dataset = data(*lengths)
    parts = held.split(dataset, 0)
    found = held.held_out(dataset, parts)
    counts = found.block < len(found.steps)
    shown = np.asarray(found.tape.state)[counts][:, 0]
    assert sorted(shown) == sorted(rows(parts.held_out, parts.read))
    assert (found.tape.burn_in == ~counts).all()
    np.testing.assert_array_equal(np.bincount(found.block[counts]), found.steps)
    assert found.steps.max() <= 6
    # Above a step is the step before it, back to the episode's start or as far as is read.
    row, column = np.nonzero(counts & ~found.tape.start)
    state, above = (np.asarray(found.tape.state)[at, column, 0] for at in (row, row - 1))
    np.testing.assert_array_equal(state - above, np.ones(len(row)))
    if len(lengths) == 2:  # ends: 30 and 8 steps, after 25 that are only read
        assert sorted(parts.read.tolist()) == [25, 25] and counts.sum() == 38


@pytest.mark.slow
def test_columns_change_no_likelihood() -> None:
    """Pieces side by side and below one another are as likely as each alone."""
    dataset = data(*[12] * 40)
    parts = held.split(dataset, 0)
    agent = agents.make(1, 1, "continuous", CONFIG)
    actor = agent.init(jax.random.key(0)).actor
    each_of = jax.jit(agent.log_likelihood)

    def likelihoods(pieces: held.Split) -> float:
        found = held.held_out(dataset, pieces)
        each = np.asarray(each_of(actor, found.tape))
        return float(each[found.block < len(found.steps)].sum())

    alone = [
        likelihoods(held.Split(parts.training, Prefix(first[None], length[None]), np.zeros(1, int)))
        for first, length in zip(*parts.held_out, strict=True)
    ]
    assert len(alone) == 4
    np.testing.assert_allclose(likelihoods(parts), sum(alone), rtol=1e-5)
