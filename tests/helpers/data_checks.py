"""What must hold for every dataset, and small data to try it on."""

from dataclasses import dataclass

import numpy as np

from neubay.data import Dataset
from neubay.tasks import ContinuousActions, DiscreteActions, Task


def check_invariants(dataset: Dataset) -> None:
    """The tape's layout, and everything derived from it."""
    tape, task = dataset.tape, dataset.task
    state, action = np.asarray(tape.state), np.asarray(tape.action)
    rows = len(tape.start)
    assert rows > 0
    assert state.shape == (rows, task.state_size)
    assert state.dtype == np.float32
    assert action.shape == (rows, task.actions.size)
    assert action.dtype == np.float32
    for values in (state, action, tape.reward):
        assert np.isfinite(values).all()
    assert tape.start[0]
    assert tape.penalty is None

    first, length = dataset.bounds
    assert (length >= 1).all(), "an episode without a step"
    assert dataset.transitions == length.sum() == len(dataset) == rows - dataset.episodes
    final = first + length
    assert not action[final].any()
    assert not tape.reward[final].any()
    assert not tape.terminated[final].any()

    unknown = np.flatnonzero(~np.asarray(tape.real))  # where terminal steps led, if not stored
    assert np.isin(unknown, final).all() and np.asarray(tape.terminated)[unknown - 1].all()
    np.testing.assert_array_equal(state[unknown], state[unknown - 1])
    assert not np.isin(unknown - 1, dataset.world_rows).any()

    steps = np.setdiff1d(np.arange(rows), final)
    if isinstance(task.actions, DiscreteActions):
        assert set(np.unique(action)) <= {0, 1}
        assert (action[steps].sum(axis=1) == 1).all()
    else:
        assert (np.abs(action) <= 1).all()

    histories = dataset.histories
    assert (histories.length >= 1).all()
    assert (histories.length <= np.minimum(length, task.horizon)).all()
    for begin, steps_used in zip(histories.first, histories.length, strict=True):
        assert not tape.terminated[begin : begin + steps_used - 1].any()
    assert np.isin(dataset.world_rows, steps).all(), "a successor across episodes"
    assert dataset.returns.shape == (dataset.episodes,)
    assert dataset.returns.dtype == np.float64
    assert np.isfinite(dataset.returns).all()
    assert len(dataset.hash) == 32


@dataclass
class Log:
    """Flat rows as a logger writes them: episodes of given lengths, each ended by a flag."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    next_states: np.ndarray

    def arrays(self, *, successors: bool = True, timeouts: bool = True) -> dict[str, np.ndarray]:
        """The arguments of `Dataset.from_arrays`."""
        arrays = {
            "states": self.states,
            "actions": self.actions,
            "rewards": self.rewards,
            "terminals": self.terminals,
        }
        if timeouts:
            arrays["timeouts"] = self.timeouts
        if successors:
            arrays["next_states"] = self.next_states
        return arrays

    def d4rl(self, *, successors: bool = True, timeouts: bool = True) -> dict[str, np.ndarray]:
        """The arrays of a D4RL file."""
        names = {"states": "observations", "next_states": "next_observations"}
        arrays = self.arrays(successors=successors, timeouts=timeouts)
        return {names.get(key, key): values for key, values in arrays.items()}


def make_log(
    lengths: list[int] | None = None, *, state_size: int = 3, action_size: int = 2, seed: int = 0
) -> Log:
    """Random walks; every other episode is terminated, the others run out of time."""
    lengths = [5, 3, 8, 4] if lengths is None else lengths
    rng = np.random.default_rng(seed)
    walks = [
        np.cumsum(rng.normal(size=(length + 1, state_size)), axis=0, dtype=np.float32)
        for length in lengths
    ]
    rows = sum(lengths)
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    terminals[last[::2]] = True
    timeouts[last[1::2]] = True
    return Log(
        states=np.concatenate([walk[:-1] for walk in walks]),
        actions=rng.uniform(-1, 1, (rows, action_size)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        terminals=terminals,
        timeouts=timeouts,
        next_states=np.concatenate([walk[1:] for walk in walks]),
    )


def small_task(log: Log | None = None, **changes: object) -> Task:
    """A task of the size of `make_log`'s data, with the given fields."""
    settings: dict[str, object] = {
        "name": "small",
        "state_size": 3 if log is None else log.states.shape[1],
        "actions": ContinuousActions.symmetric(2 if log is None else log.actions.shape[1]),
        "horizon": 1000,
    }
    return Task(**{**settings, **changes})
