"""The replay against a plain list of trajectories."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neubay.agents.memory import Encoder
from neubay.agents.networks import observe
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.imagination import Rollouts
from neubay.replay import BatchShape, Replay, _Queue, discounted_returns, sample_data
from neubay.tape import Prefix, Tape, agent_input, episodes, has_successor, slice_rows
from neubay.tasks import ContinuousActions, Task

HORIZON = 12
LENGTHS = (3, 12, 0, 7, 12)


def make_task(state_size: int = 2, action_size: int = 1, horizon: int = HORIZON) -> Task:
    actions = ContinuousActions(-np.ones(action_size), np.ones(action_size))
    return Task(name="toy", state_size=state_size, actions=actions, horizon=horizon)


def labelled(count: int, label: float) -> Tape:
    """Rows that can be told apart: the state is (label, 0), (label, 1), ..."""
    place = np.arange(count, dtype=np.float32)
    return Tape(
        state=np.stack([np.full(count, label, np.float32), place], axis=1),
        action=np.sin(place + label)[:, None].astype(np.float32),
        reward=np.cos(place + label).astype(np.float32),
        terminated=np.zeros(count, bool),
        start=place == 0,
        real=np.ones(count, bool),
    )


def make_dataset(lengths: tuple[int, ...] = LENGTHS, terminal: tuple[int, ...] = (0, 3)) -> Dataset:
    """Episodes of these lengths; those numbered in `terminal` end in a terminal state."""
    parts = []
    for number, length in enumerate(lengths):
        part = labelled(length + 1, -1.0 - number)
        part.action[-1], part.reward[-1] = 0, 0
        if number in terminal:
            part.terminated[length - 1] = True
        parts.append(part)
    tape = Tape(*(np.concatenate(leaves) for leaves in list(zip(*parts, strict=True))[:6]))
    return Dataset(tape, make_task(), "toy", "toy")


DATASET = make_dataset()


class ListReplay:
    """Whole trajectories in a list, nothing by reference."""

    def __init__(self, dataset: Dataset, capacity: int) -> None:
        self.dataset, self.capacity = dataset, capacity
        self.trajectories: list[Tape] = []

    def add(self, prefix: Prefix, rollouts: Rollouts) -> None:
        begin, rows = 0, rollouts.rows
        lists = (np.asarray(leaf).tolist() for leaf in (*prefix, rollouts.length))
        for first, t, steps in zip(*lists, strict=True):
            history = slice_rows(self.dataset.tape, first, first + t)
            penalty = None if rows.penalty is None else np.zeros(t, np.float32)
            imagined = slice_rows(rows, begin, begin + steps + 1)
            pairs = zip(history._replace(penalty=penalty), imagined, strict=True)
            self.trajectories.append(
                Tape(*(None if a is None else np.concatenate([a, b]) for a, b in pairs))
            )
            begin += steps + 1
        while sum(len(tape.reward) for tape in self.trajectories) > self.capacity:
            self.trajectories.pop(0)


def made_up(rows: Tape, length: np.ndarray) -> Rollouts:
    return Rollouts(rows, length, np.zeros(len(length), np.int8), np.zeros(len(length)))


class Imaginer:
    """Makes up rollouts whose rows can be told apart."""

    def __init__(self, dataset: Dataset, seed: int, penalised: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.dataset, self.penalised, self.label = dataset, penalised, 0

    def __call__(self, count: int) -> tuple[Prefix, Rollouts]:
        histories = self.dataset.histories
        episode = self.rng.integers(len(histories.first), size=count)
        t = self.rng.integers(histories.length[episode] + 1)
        length = np.minimum(self.rng.integers(0, 9, count), HORIZON - t)
        parts = []
        for steps, start in zip(length, t == 0, strict=True):
            self.label += 1
            part = labelled(steps + 1, float(self.label))
            part.action[-1], part.reward[-1] = 0, 0
            part.terminated[steps - 1 : steps] = self.rng.random() < 0.5
            part.start[0] = start
            part.real[:] = False
            if self.penalised:
                part = part._replace(penalty=part.state[:, 1] / 8)
            parts.append(part)
        leaves = list(zip(*parts, strict=True))
        rows = Tape(*(None if leaf[0] is None else np.concatenate(leaf) for leaf in leaves))
        return Prefix(histories.first[episode], t), made_up(rows, length)


def same(one: Tape, other: Tape) -> bool:
    return all(
        (a is None and b is None) or np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


def parts_of(tape: Tape) -> list[Tape]:
    """The trajectories laid into one tape, the last of them possibly cut."""
    assert tape.start[0]
    return list(episodes(tape))


@settings(max_examples=25, deadline=None)
@given(
    adds=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    capacity=st.integers(HORIZON + 1, 200),
    rows=st.integers(HORIZON + 2, 60),
    penalised=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_tapes_are_whole_trajectories_of_those_held(
    adds: list[int], capacity: int, rows: int, penalised: bool, seed: int
) -> None:
    replay = Replay(DATASET, capacity, penalised=penalised)
    reference = ListReplay(DATASET, capacity)
    imagined = Imaginer(DATASET, seed, penalised)
    rng = np.random.default_rng(seed)
    for count in adds:
        batch = imagined(count)
        replay.add(*batch)
        reference.add(*batch)
        assert len(replay) == len(reference.trajectories)
        assert replay.rows == sum(len(tape.reward) for tape in reference.trajectories) <= capacity

        tapes = replay.sample(rng, 2, rows)
        assert tapes.state.shape == (2, rows, 2) and tapes.real.shape == (2, rows)
        for batch in range(2):
            tape = Tape(*(None if leaf is None else leaf[batch] for leaf in tapes))
            *whole, cut = parts_of(tape)
            for part in whole:
                assert any(same(part, held) for held in reference.trajectories)
            end = len(cut.reward)
            assert any(same(cut, slice_rows(held, 0, end)) for held in reference.trajectories)
            # invariant 4: a row and its successor are neighbours in one episode or rollout, or
            # the last real row and the branching state
            follows = np.flatnonzero(has_successor(tape.start))
            label, place = tape.state[follows].T
            next_label, next_place = tape.state[follows + 1].T
            branching = tape.real[follows] & ~tape.real[follows + 1]
            assert ((next_label == label) & (next_place == place + 1))[~branching].all()
            assert (next_place[branching] == 0).all()


def test_every_trajectory_is_as_likely_as_any_other() -> None:
    replay = Replay(DATASET, 10_000)
    replay.add(*Imaginer(DATASET, 1)(20))
    tapes = replay.sample(np.random.default_rng(0), 400, 300)
    firsts = [parts_of(Tape(*(leaf[b] for leaf in tapes[:6])))[0] for b in range(400)]
    labels = [part.state[np.flatnonzero(~part.real)[0], 0] for part in firsts]
    counts = np.bincount(np.array(labels, int), minlength=21)[1:]
    assert counts.min() > 0 and ((counts - 20) ** 2 / 20).sum() < 45  # chi-square, 19 dof: p = 7e-4


def test_rows_are_evicted_oldest_first_through_many_turns_of_the_ring() -> None:
    replay, reference = Replay(DATASET, 90), ListReplay(DATASET, 90)
    imagined = Imaginer(DATASET, 5)
    allocated = set()
    for _ in range(300):
        batch = imagined(3)
        replay.add(*batch)
        reference.add(*batch)
        allocated.add(replay.nbytes)
    assert len(allocated) == 1  # it stopped growing
    slices = list(replay.slices(300))
    assert len(slices) > 4 and all(sum(a.nbytes for a in part.values()) <= 300 for part in slices)
    assert all(column.base is not None for part in slices for column in part.values())  # no copy
    stored = [part["imagined.state"] for part in slices if "imagined.state" in part]
    held = np.concatenate([tape.state[~tape.real] for tape in reference.trajectories])
    np.testing.assert_array_equal(np.concatenate(stored), held)


def test_more_than_fits_keeps_the_last() -> None:
    replay, reference = Replay(DATASET, 30), ListReplay(DATASET, 30)
    imagined = Imaginer(DATASET, 6)
    for count in (2, 25, 1):
        batch = imagined(count)
        replay.add(*batch)
        reference.add(*batch)
        assert replay.rows == sum(len(tape.reward) for tape in reference.trajectories)
    labels = {tape.state[-1, 0] for tape in reference.trajectories}
    tapes = replay.sample(np.random.default_rng(0), 50, 40)
    assert set(tapes.state[~tapes.real][:, 0]) <= labels


def test_a_whole_episode_without_imagined_step_is_kept() -> None:
    """Its terminal step is data: real, and it stops bootstrapping."""
    replay = Replay(DATASET, 100)
    first, length = DATASET.histories.first[0], DATASET.histories.length[0]
    last = labelled(1, 9.0)._replace(start=np.zeros(1, bool), real=np.zeros(1, bool))
    last.action[:], last.reward[:] = 0, 0
    replay.add(Prefix(np.array([first]), np.array([length])), made_up(last, np.array([0])))
    tape = replay.sample(np.random.default_rng(0), 1, int(length) + 1)
    np.testing.assert_array_equal(tape.real[0], [True, True, True, False])
    np.testing.assert_array_equal(tape.terminated[0], [False, False, True, False])


@pytest.mark.parametrize("size", [1, 500, 10**6])
def test_a_replay_taken_up_again_goes_on_as_if_nothing_had_happened(size: int) -> None:
    """Also after the ring has turned over, and bit for bit."""
    for penalised in (False, True):
        imagined = Imaginer(DATASET, 7, penalised)
        replay = Replay(DATASET, 120, penalised=penalised)
        for _ in range(40):
            replay.add(*imagined(4))
        again = Replay(DATASET, 120, penalised=penalised)
        again.load(copies(replay.slices(size)))
        one, other = np.random.default_rng(3), np.random.default_rng(3)
        for _ in range(20):
            assert same(replay.sample(one, 2, 50), again.sample(other, 2, 50))
            batch = imagined(5)
            replay.add(*batch)
            again.add(*batch)
            assert replay.rows == again.rows and len(replay) == len(again)


def copies(slices: Iterable[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    for part in slices:
        yield {name: column.copy() for name, column in part.items()}


def test_a_used_replay_takes_nothing_over() -> None:
    replay = Replay(DATASET, 100)
    replay.add(*Imaginer(DATASET, 0)(2))
    with pytest.raises(ValueError, match="into an empty replay only"):
        replay.load(replay.slices(1000))


def test_a_replay_takes_all_or_nothing_over() -> None:
    replay, again = Replay(DATASET, 100), Replay(DATASET, 100)
    replay.add(*Imaginer(DATASET, 0)(5))

    def broken() -> Iterator[dict[str, np.ndarray]]:
        yield next(replay.slices(100))
        raise OSError

    with pytest.raises(OSError):
        again.load(broken())
    again.load(replay.slices(100))
    rng, other = np.random.default_rng(0), np.random.default_rng(0)
    assert same(replay.sample(rng, 2, 50), again.sample(other, 2, 50))


def test_growing_takes_no_more_than_the_full_replay() -> None:
    queue, limit = _Queue(10_000, value=(np.float64,)), 10_000
    for _ in range(100):
        before = queue.allocated
        queue.append({"value": np.zeros(100)})
        if queue.allocated != before:  # what is held lies in the old and in the new columns then
            assert 2 * (len(queue) - 100) <= max(limit, 2 * 1024)
    assert queue.allocated == limit


def test_a_memory_mapped_dataset_serves_as_well(tmp_path: Path) -> None:
    leaves = []
    for name, leaf in zip(Tape._fields, DATASET.tape[:6], strict=False):
        np.save(tmp_path / f"{name}.npy", leaf)
        leaves.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r", allow_pickle=False))
    mapped = Dataset(Tape(*leaves), DATASET.task, "mapped", "mapped")
    batch = Imaginer(DATASET, 2)(10)
    tapes = []
    for dataset in (DATASET, mapped):
        replay = Replay(dataset, 1000)
        replay.add(*batch)
        tapes.append(replay.sample(np.random.default_rng(0), 4, 60))
        tapes.append(sample_data(dataset, np.random.default_rng(0), 4, BatchShape(60)))
    assert same(tapes[0], tapes[2]) and same(tapes[1], tapes[3])


def test_the_published_buffer_of_halfcheetah_fits_in_four_gigabytes() -> None:
    """Even if every one of its 40M rows were imagined; and a small run takes little."""
    data = Tape(
        state=np.zeros((1, 17), np.float32),
        action=np.zeros((1, 6), np.float32),
        reward=np.zeros(1, np.float32),
        terminated=np.zeros(1, bool),
        start=np.ones(1, bool),
        real=np.ones(1, bool),
    )
    dataset = Dataset(data, make_task(17, 6, horizon=1000), "x", "x")
    replay = Replay(dataset, 40_000_000)
    assert replay.bytes_per_row == 97
    assert replay.bytes_per_row * replay.capacity < 4e9
    assert replay.nbytes == 0
    rows = Tape(*(np.repeat(leaf, 100, axis=0) for leaf in data[:6]))
    replay.add(Prefix(np.array([0]), np.array([0])), made_up(rows, np.array([99])))
    assert replay.nbytes < 200_000


def test_a_replay_smaller_than_a_trajectory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.buffer is 12 rows.*can have 13"):
        Replay(DATASET, HORIZON)


def test_penalties_must_be_where_they_are_expected() -> None:
    with pytest.raises(ValueError, match="penalty"):
        Replay(DATASET, 100, penalised=True).add(*Imaginer(DATASET, 0)(2))
    with pytest.raises(ValueError, match="penalty"):
        Replay(DATASET, 100).add(*Imaginer(DATASET, 0, penalised=True)(2))


def test_an_empty_replay_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="empty"):
        Replay(DATASET, 100).sample(np.random.default_rng(0), 1, 20)


def test_data_alone_comes_as_whole_episodes_up_to_the_end_of_their_histories() -> None:
    """An episode that runs on after a terminal, or beyond T, is cut there."""
    data: Any = make_dataset((20, 5, 12), terminal=(1,))
    data.tape.terminated[21 + 2] = True  # the second episode's first terminal is its third step
    histories = data.histories
    np.testing.assert_array_equal(histories.length, [12, 3, 12])
    tapes = sample_data(data, np.random.default_rng(0), 30, BatchShape(40))
    seen = set()
    for batch in range(30):
        tape = Tape(*(leaf[batch] for leaf in tapes[:6]))
        *whole, _ = parts_of(tape)
        for part in whole:
            episode = int(-1 - part.state[0, 0])
            seen.add(episode)
            first, steps = int(histories.first[episode]), int(histories.length[episode])
            original = slice_rows(data.tape, first, first + steps + 1)
            np.testing.assert_array_equal(part.state, original.state)
            np.testing.assert_array_equal(part.action[:-1], original.action[:-1])
            np.testing.assert_array_equal(part.reward[:-1], original.reward[:-1])
            np.testing.assert_array_equal(part.terminated[:-1], original.terminated[:-1])
            assert not part.action[-1].any() and not part.reward[-1] and not part.terminated[-1]
            assert part.real.all()
    assert seen == {0, 1, 2}


# --- Windows -------------------------------------------------------------------------------------

WINDOW, BURN_IN = 4, 3
SHAPE = BatchShape(rows=BURN_IN + WINDOW + 1, slots=5, burn_in=BURN_IN)


def slots_of(tapes: Tape) -> Iterator[Tape]:
    """The windows of batches of them, one by one, without the rows above their first piece: where
    it has less of a past than the burn-in, its first row is repeated, as a start each time."""
    batches, _, slots = tapes.start.shape
    for batch in range(batches):
        for slot in range(slots):
            tape = Tape(*(None if leaf is None else leaf[batch, :, slot] for leaf in tapes))
            yield slice_rows(tape, int(np.argmin(tape.start)) - 1)


def learnt(tape: Tape) -> np.ndarray:
    """The rows of one window that carry a loss."""
    assert tape.burn_in is not None
    return np.flatnonzero(has_successor(tape.start) & ~tape.burn_in)


@settings(max_examples=25, deadline=None)
@given(
    window=st.integers(1, 9),
    burn_in=st.integers(0, 9),
    slots=st.integers(1, 6),
    penalised=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_windows_are_pieces_of_those_held(
    window: int, burn_in: int, slots: int, penalised: bool, seed: int
) -> None:
    """No row's successor is another episode's, and memory is brought up to date by the rows that
    were before, as many as there are."""
    replay, reference = Replay(DATASET, 500, penalised=penalised), ListReplay(DATASET, 500)
    batch = Imaginer(DATASET, seed, penalised)(12)
    replay.add(*batch)
    reference.add(*batch)
    episodes_of_data = [
        tape._replace(penalty=np.zeros(len(tape.start), np.float32) if penalised else None)
        for tape in episodes(DATASET.tape)
    ]
    shape = BatchShape(window + burn_in + 1, slots, burn_in)
    tapes = replay.sample_windows(np.random.default_rng(seed), 2, shape, 0.5)
    assert tapes.state.shape == (2, shape.rows, slots, 2)
    for tape in slots_of(tapes):
        assert tape.start[0] and tape.burn_in is not None
        for piece in episodes(tape):
            rows = len(piece.start)
            places = [
                (whole, begin)
                for whole in reference.trajectories + episodes_of_data
                for begin in range(len(whole.start) - rows + 1)
                if all(
                    np.array_equal(getattr(piece, name), getattr(whole, name)[begin : begin + rows])
                    for name in ("state", "action", "reward", "terminated", "real")
                    if name != "real" or not whole.real.all()
                )
            ]
            assert places, "a piece is so many rows of one trajectory or episode"
            with_loss = learnt(piece)
            if len(with_loss):
                np.testing.assert_array_equal(with_loss, np.arange(with_loss[0], rows - 1))
                before = with_loss[0]
                assert any(before == min(burn_in, begin + before) for _, begin in places)
            if not piece.real.all():  # what was imagined is shown, and its history is not
                assert not piece.real[with_loss].any()


def shown_first(tapes: Tape) -> np.ndarray:
    """The states (label, place) that the first piece of every window learns from. What is left of a
    window is filled with what there is room for."""
    assert tapes.burn_in is not None
    follows = np.concatenate([~tapes.start[:, 1:], np.zeros_like(tapes.start[:, :1])], axis=1)
    above = np.argmin(tapes.start, axis=1)[:, None]  # rows that repeat its first, and that one
    first = np.cumsum(tapes.start, axis=1) == above
    return tapes.state[follows & first & ~tapes.burn_in]


@pytest.mark.parametrize(("window", "burn_in"), [(WINDOW, BURN_IN), (1, 0), (2, 6)])
def test_every_transition_is_in_as_many_windows_as_any_other(window: int, burn_in: int) -> None:
    """Neither the first nor the last steps of episodes are seen less often."""
    shape = BatchShape(window + burn_in + 1, 40_000, burn_in)
    shown = shown_first(sample_data(DATASET, np.random.default_rng(0), 1, shape)).astype(int)
    row = DATASET.bounds[0][-1 - shown[:, 0]] + shown[:, 1]
    counts = np.bincount(row, minlength=len(DATASET.tape.start))
    transitions = has_successor(DATASET.tape.start)
    assert not counts[~transitions].any() and transitions[DATASET.tape.terminated].all()
    assert abs(counts[transitions] / counts[transitions].mean() - 1).max() < 0.1


def test_every_imagined_transition_is_in_as_many_windows_as_any_other() -> None:
    """Also those right behind the branching state, whatever history is before them."""
    replay = Replay(DATASET, 10_000)
    prefix, rollouts = Imaginer(DATASET, 3)(8)
    replay.add(prefix, rollouts)
    shape = SHAPE._replace(slots=30_000)
    shown = shown_first(replay.sample_windows(np.random.default_rng(0), 1, shape, 0.0))
    assert (shown[:, 0] > 0).all(), "labels of what was imagined"
    found, counts = np.unique(shown, axis=0, return_counts=True)
    assert len(found) == rollouts.length.sum() and (np.asarray(prefix.length) > BURN_IN).any()
    assert abs(counts / counts.mean() - 1).max() < 0.1


@pytest.mark.parametrize(
    ("kappa", "real"), [(0.0, 0), (0.01, 1), (0.2, 1), (0.5, 2), (0.99, 4), (1.0, 5)]
)
def test_a_share_kappa_of_the_windows_shows_the_data(kappa: float, real: int) -> None:
    """But one at least shows what was imagined unless kappa is 1, and one the data unless it is
    0: a kind that is not in a batch would not be in its loss."""
    replay = Replay(DATASET, 1000)
    replay.add(*Imaginer(DATASET, 1)(20))
    tapes = replay.sample_windows(np.random.default_rng(0), 20, SHAPE, kappa)
    assert (tapes.real.all(axis=1).sum(axis=1) == real).all()


def test_real_ends_are_in_the_windows_of_the_data() -> None:
    tapes = sample_data(DATASET, np.random.default_rng(0), 200, SHAPE)
    assert tapes.real.all()
    ended = {
        tuple(tape.state[row].tolist())
        for tape in slots_of(tapes)
        for row in learnt(tape)
        if tape.terminated[row]
    }
    terminal = np.asarray(DATASET.tape.terminated)
    assert ended == {tuple(state) for state in DATASET.tape.state[terminal].tolist()}


def test_rollouts_that_never_took_a_step_leave_the_data_alone() -> None:
    replay = Replay(DATASET, 100)
    last = labelled(1, 9.0)._replace(real=np.zeros(1, bool))
    replay.add(Prefix(np.array([0]), np.array([0])), made_up(last, np.array([0])))
    tapes = replay.sample_windows(np.random.default_rng(0), 3, SHAPE, 0.5)
    assert tapes.real.all() and tapes.real.shape == (3, SHAPE.rows, SHAPE.slots)


@pytest.mark.slow
def test_a_window_is_the_same_rows_of_its_trajectory_once_the_burn_in_covers_it() -> None:
    """With a burn-in as long as any history, memory is what it would be on the whole trajectory."""
    replay, reference = Replay(DATASET, 1000), ListReplay(DATASET, 1000)
    batch = Imaginer(DATASET, 4)(6)
    replay.add(*batch)
    reference.add(*batch)
    encoder = Encoder(2 + 1 + 1, 6, 3, 1, rng=np.random.default_rng(0))
    features: dict[tuple, np.ndarray] = {}
    read = jax.jit(lambda observed, start: encoder(observed, start))
    for whole in reference.trajectories:
        rows = HORIZON + 1 - len(whole.start)  # to one length, for one compilation
        padded = jax.tree.map(lambda leaf, rows=rows: np.pad(leaf, _padding(leaf, rows)), whole)
        inputs = agent_input(padded)
        seen = np.asarray(read(observe(inputs), inputs.start))
        imagined = np.flatnonzero(~whole.real)
        features |= {tuple(whole.state[row].tolist()): seen[row] for row in imagined}
    shape = BatchShape(HORIZON + 3, 30, burn_in=HORIZON)
    tapes = replay.sample_windows(np.random.default_rng(1), 1, shape, 0.0)
    inputs = agent_input(jax.tree.map(lambda leaf: leaf[0], tapes))
    found = np.asarray(read(observe(inputs), inputs.start))
    compared = 0
    for slot, tape in enumerate(slots_of(tapes)):
        above = shape.rows - len(tape.start)
        for row in learnt(tape):
            expected = features[tuple(tape.state[row].tolist())]
            np.testing.assert_allclose(found[above + row, slot], expected, atol=1e-5)
            compared += 1
    assert compared > 30


def _padding(leaf: np.ndarray, rows: int) -> list[tuple[int, int]]:
    return [(0, rows)] + [(0, 0)] * (leaf.ndim - 1)


@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_discounted_returns_go_on_at_the_mean_reward_where_an_episode_was_cut(gamma: float) -> None:
    returns = discounted_returns(DATASET, gamma)
    for first, length in zip(*DATASET.histories, strict=True):
        rows = np.arange(first, first + length)
        reward = np.asarray(DATASET.tape.reward[rows], np.float64)
        ended = length > 0 and DATASET.tape.terminated[rows[-1]]
        after = 0.0 if ended or not length else reward.mean() / (1 - gamma)
        for row in range(length - 1, -1, -1):
            after = reward[row] + gamma * after
            assert returns[first + row] == pytest.approx(after, rel=1e-5)


def test_the_first_row_to_learn_from_is_below_the_burn_in() -> None:
    shape = BatchShape(rows=8, slots=50, burn_in=4)
    tape = sample_data(DATASET, np.random.default_rng(0), 20, shape)
    assert tape.burn_in is not None
    assert tape.burn_in[:, : shape.burn_in].all()
    assert not tape.burn_in[:, shape.burn_in].any()
