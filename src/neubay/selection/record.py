"""What selection needs of the data, small enough to be kept in a run directory.

Start i is judged up to C_i: T if its episode ended in a terminal state or reached T, its own length
if the log was cut earlier. The data's return counts up to C_i too.
"""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from neubay.data.dataset import Dataset
from neubay.errors import NeubayError, RunError
from neubay.runs.files import read_arrays, read_note, save_arrays
from neubay.tape import has_successor

LAYOUT = 1
"""Version of the file."""
REWARD_LEVELS = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
"""Quantiles of the reward that are kept; the first and the last are its range."""
FLOOR_LEVEL = 0.05
"""The low quantile of the data's return over windows: what is granted after a cut."""
_WINDOW_LENGTHS = 24  # between which the floor is interpolated
_WINDOWS = 200_000  # of one length, at most
EXCERPTS, EXCERPT_STEPS = 100, 25
"""Parts of the log that a judge is asked to reproduce: how many, and how long. Long enough to show
the dynamics and ends of episodes, and short enough that nothing has to hold them on their path."""


@dataclass(frozen=True)
class DataRecord:
    """The data as selection sees it. Returns and rewards are raw: without the task's shift."""

    start: Float[np.ndarray, "episodes s"]
    """s_0 of every episode."""
    limit: Int[np.ndarray, " episodes"]
    """C_i."""
    length: Int[np.ndarray, " episodes"]
    """Its steps up to C_i."""
    returns: Float[np.ndarray, " episodes"]
    """Its return up to C_i."""
    reward_quantiles: Float[np.ndarray, " levels"]
    window_length: Int[np.ndarray, " lengths"]
    window_return: Float[np.ndarray, " lengths"]
    """The low quantile of the return over the data's windows of each length."""
    dataset: str
    dataset_hash: str
    task: str
    horizon: int
    """T."""
    reward_shift: float
    terminals: bool
    """The data has terminal states."""
    rule: bool
    """A termination rule is known."""
    terminal_reward: float | None
    """Paid on reaching a terminal state, where the world is not shown those steps."""
    excerpt_state: Float[np.ndarray, "excerpts s"] | None = None
    """Where each excerpt of the log begins; none in records of before there were some."""
    excerpt_action: Float[np.ndarray, "excerpts steps a"] | None = None
    excerpt_return: Float[np.ndarray, " excerpts"] | None = None
    excerpt_ended: Bool[np.ndarray, " excerpts"] | None = None
    """In a terminal state before its last step."""

    @classmethod
    def of(cls, dataset: Dataset) -> "DataRecord":
        """What is kept of a dataset."""
        task, terminal = dataset.task, np.flatnonzero(dataset.tape.terminated)
        reward = _raw_rewards(dataset)
        first, history = dataset.bounds[0], np.asarray(dataset.histories.length)
        ended = np.isin(first + dataset.lifetimes - 1, terminal)
        cumulative = np.append(0.0, np.cumsum(reward))
        window_length = np.unique(np.geomspace(1, task.horizon, _WINDOW_LENGTHS).astype(np.int64))
        hidden = task.world_skips_terminals and len(terminal)
        return cls(
            start=np.asarray(dataset.take(first).state),
            limit=np.where(ended, task.horizon, history),
            length=history,
            returns=cumulative[first + history] - cumulative[first],
            reward_quantiles=np.quantile(
                reward[has_successor(np.asarray(dataset.tape.start))], REWARD_LEVELS
            ),
            window_length=window_length,
            window_return=_window_returns(dataset, cumulative, ended, window_length),
            dataset=dataset.name,
            dataset_hash=dataset.hash,
            task=task.name,
            horizon=task.horizon,
            reward_shift=task.reward_shift,
            terminals=bool(len(terminal)),
            rule=task.termination is not None,
            terminal_reward=float(reward[terminal].mean()) if hidden else None,
            **_excerpts(dataset, cumulative, ended),
        )

    @property
    def can_terminate(self) -> bool:
        """A rule says so, or the data shows it."""
        return self.terminals or self.rule

    @property
    def reward_range(self) -> tuple[float, float]:
        """The lowest and the highest reward of the data."""
        return float(self.reward_quantiles[0]), float(self.reward_quantiles[-1])

    def floor(
        self, remaining: Int[np.ndarray, "*k"], *, ends: bool = False
    ) -> Float[np.ndarray, "*k"]:
        """What is granted for so many steps after a cut: the low quantile of the data's return over
        windows of that length, or 0 if that is lower and the task can terminate; `ends`: a rule
        that the data did not come with says that it can."""
        low = np.interp(remaining, self.window_length, self.window_return)
        low = np.where(remaining > 0, low, 0.0)
        return np.minimum(low, 0.0) if ends or self.can_terminate else low

    def only(self, episodes: Any) -> "DataRecord":
        """The same of some episodes alone, such as those of today's controller, by their numbers;
        each once."""
        count, chosen = len(self.limit), np.unique(_episode_numbers(episodes))
        wrong = chosen[~np.isin(chosen, np.arange(count))]
        if len(wrong) or not len(chosen):
            what = f"there is no episode {wrong[0]}" if len(wrong) else "it names no episode"
            raise NeubayError(f"incumbent: {what}; the data has the episodes 0 to {count - 1}")
        per_episode, kept = ("start", "limit", "length", "returns"), chosen.astype(np.int64)
        return replace(self, **{name: getattr(self, name)[kept] for name in per_episode})

    def save(self, path: Path) -> None:
        """Write it as one file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in values.items() if name not in arrays}
        save_arrays(path, arrays, {"layout": LAYOUT, **plain})


def load_record(path: Path) -> DataRecord:
    """Read what `DataRecord.save` wrote."""
    about: dict[str, Any] = read_note(path)
    if about.pop("layout", None) != LAYOUT:
        raise RunError(f"{path}: of another version of neubay; give the data again (--data)")
    stored = read_arrays(path)
    del stored["about"]
    arrays: dict[str, Any] = {
        name.removeprefix("tree['").removesuffix("']"): stored[name] for name in stored
    }
    try:
        return DataRecord(**arrays, **about)
    except TypeError as error:
        raise RunError(f"{path}: damaged: {error}; give the data again (--data)") from None


def _episode_numbers(given: Any) -> Shaped[np.ndarray, " chosen"]:
    """Numbers of episodes as an array. A mask is refused: its values would be the episodes 0 and
    1."""
    try:
        numbers = np.asarray(given)
    except ValueError:  # lists of several lengths
        numbers = np.empty((0, 0))
    if numbers.dtype == bool:
        raise NeubayError(
            "incumbent: got true and false: give the numbers of episodes, such as "
            "np.flatnonzero(mask)"
        )
    if numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise NeubayError(
            f"incumbent: got {str(given)[:80]}: give a list of numbers of episodes, such as "
            "[0, 1, 5]"
        )
    return numbers


def _raw_rewards(dataset: Dataset) -> Float[np.ndarray, " rows"]:
    """The reward of every row without the task's shift; 0 where a row has no step."""
    reward = np.concatenate([np.asarray(piece.reward, np.float64) for _, piece in dataset.pieces()])
    steps = has_successor(np.asarray(dataset.tape.start))
    return np.where(steps, reward - dataset.task.reward_shift, 0.0)


def _excerpts(
    dataset: Dataset, cumulative: Float[np.ndarray, " rows_and_one"], ended: np.ndarray
) -> dict[str, np.ndarray]:
    """Excerpts from time steps spread evenly over the data. One may reach beyond a terminal state,
    but not beyond a cut of the log."""
    (first, _), length = dataset.bounds, np.asarray(dataset.histories.length)
    steps = min(EXCERPT_STEPS, int(length.max()))
    fit = np.where(ended, length, np.maximum(length - steps + 1, 0))  # steps to begin at
    begins = np.append(0, np.cumsum(fit))
    chosen = np.unique(np.linspace(0, begins[-1], EXCERPTS, endpoint=False).astype(np.int64))
    episode = np.searchsorted(begins, chosen, side="right") - 1
    begin = first[episode] + chosen - begins[episode]
    end = (first + length)[episode]
    rows = np.minimum(begin[:, None] + np.arange(steps), end[:, None] - 1)
    action = np.asarray(dataset.take(rows.ravel()).action)
    return {
        "excerpt_state": np.asarray(dataset.take(begin).state),
        "excerpt_action": action.reshape(*rows.shape, -1),
        "excerpt_return": cumulative[np.minimum(begin + steps, end)] - cumulative[begin],
        "excerpt_ended": ended[episode] & (begin + steps > end),
    }


def _window_returns(
    dataset: Dataset,
    cumulative: Float[np.ndarray, " rows_and_one"],
    ended: np.ndarray,
    lengths: Int[np.ndarray, " lengths"],
) -> Float[np.ndarray, " lengths"]:
    """The low quantile of the return over windows of each length. A window may reach beyond the end
    of an episode that terminated, where nothing more is paid, but not beyond a cut of the log."""
    (first, _), length = dataset.bounds, dataset.histories.length
    stride = math.ceil(length.sum() / _WINDOWS)
    begin = np.concatenate([np.arange(f, f + n) for f, n in zip(first, length, strict=True)])
    episode = np.repeat(np.arange(len(first)), length)
    begin, episode = begin[::stride], episode[::stride]
    end, may_end = (first + length)[episode], ended[episode]
    found: list[float] = []
    for window in lengths:
        inside = may_end | (begin + window <= end)
        if not inside.any():  # longer than any episode: as the longest, drawn out
            found.append(found[-1] * float(window / lengths[len(found) - 1]))
            continue
        to = np.minimum(begin + window, end)[inside]
        found.append(float(np.quantile(cumulative[to] - cumulative[begin[inside]], FLOOR_LEVEL)))
    return np.asarray(found)
