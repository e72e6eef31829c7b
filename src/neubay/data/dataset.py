"""The dataset: a tape, the task it belongs to, and where it came from."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.config import Facts
from neubay.data.layout import Bound, tape_of
from neubay.data.rows import Column, ColumnNames, Rows, spans
from neubay.data.store import FIELDS, fields, gather, release
from neubay.data.tables import GAP, frame_table, steps_of
from neubay.errors import DatasetError
from neubay.runs.messages import Tell, log
from neubay.tape import Prefix, Tape, episode_bounds, has_successor, slice_rows
from neubay.tasks import ContinuousActions, Task, get_task

PIECE_ROWS = 1 << 18
"""Rows looked at together when the whole tape is read; bounds memory where it is mapped."""

FORETOLD_ROWS = 50_000
"""Rows, at most, that tell whether actions follow from states."""

ArrayLike = np.ndarray | Sequence[Any]


class Ranges(NamedTuple):
    """The lowest and the highest values that data holds; actions are those of the tape."""

    observation_low: Float[np.ndarray, " s"]
    observation_high: Float[np.ndarray, " s"]
    action_low: Float[np.ndarray, " a"]
    action_high: Float[np.ndarray, " a"]


class FlatRows(NamedTuple):
    """A tape without its structure: a row per step, with successors; or, where the source did not
    store where terminal steps led, a row per state, without."""

    row: Int[np.ndarray, " n"]  # of the tape
    timeout: Bool[np.ndarray, " n"]  # ends an episode that is not terminal, or is ended by it only
    successors: bool


@dataclass(frozen=True, eq=False)
class Dataset:
    """Logged experience. The tape is NumPy float32, memory-mapped when it is large."""

    tape: Tape
    task: Task
    name: str
    source: str
    published: str | None = None
    """The name of the paper's dataset this file *is*, such as 'hopper-medium-v2'."""
    column_names: ColumnNames | None = None
    """What its states, actions and reward are called, where that is known."""
    horizon_said: str | None = None
    """What is worth saying about T: that the data does not show it, or that logs are longer."""

    def __post_init__(self) -> None:
        misfit = None if self.column_names is None else self.column_names.misfit(self.task)
        if misfit is not None:
            raise DatasetError(f"{self.source}: has {misfit}. Give one name for each column.")

    @classmethod
    def from_arrays(
        cls,
        states: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminals: ArrayLike,
        timeouts: ArrayLike | None = None,
        next_states: ArrayLike | None = None,
        *,
        task: Task | str | None = None,
        action_bounds: tuple[Bound, Bound] | None = None,
        horizon: int | None = None,
        column_names: ColumnNames | None = None,
        name: str = "arrays",
        tell: Tell = log,
    ) -> "Dataset":
        """Rows in the D4RL manner: row i holds s_i, a_i, r_{i+1} and the flags of that step.

        Args:
            states: s_i, (rows, s).
            actions: a_i as the environment takes them: (rows, a) within the task's bounds, or
                integers (rows,) for discrete actions.
            rewards: r_{i+1}, without the task's reward shift.
            terminals: the step ended in a terminal state.
            timeouts: the step was the last of its episode, for another reason. Without them, an
                episode ends at terminals, where `next_states` jumps, and at the task's horizon.
                An episode that is longer than T is read in pieces.
            next_states: s_{i+1}. With them, an episode keeps its last step; without, its last
                row has no successor: the step is kept if it is terminal, or else the row gives
                the final state only.
            task: the task or the name of one; none makes one with the data's sizes, without
                environment and termination rule.
            action_bounds: low and high of continuous actions where there is no task; [-1, 1]
                if not given.
            horizon: T, the steps of an episode at most, where there is no task. If not given, it
                is the longest episode, and logs of more than 2,000 steps are read in pieces.
            column_names: what states and actions are called on the plant, also in exports.
            tell: is given, in a sentence, which bounds and which T were assumed.
        """
        if task is not None and not (action_bounds is None and horizon is None):
            given = "horizon" if action_bounds is None else "action_bounds"
            raise DatasetError(f"{given}: the task has its own. Give one of the two.")
        arrays = {
            "states": states,
            "actions": actions,
            "rewards": rewards,
            "terminals": terminals,
            "timeouts": timeouts,
            "next_states": next_states,
        }
        columns: dict[str, Any] = {key: _column(key, values) for key, values in arrays.items()}
        rows = Rows(file=name, **columns)
        known = get_task(task) if isinstance(task, str) else task
        laid = tape_of(rows, known, name, action_bounds=action_bounds, horizon=horizon)
        dataset = cls(laid.tape, laid.task, name, name, None, column_names, laid.horizon_said)
        if known is None and action_bounds is None:
            dataset.tell_assumed_bounds(tell)
        if dataset.horizon_said is not None:
            tell(dataset.horizon_said)
        return dataset

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        states: Sequence[str] | None = None,
        actions: Sequence[str] | None = None,
        reward: str | None = None,
        episode: str | None = None,
        time: str | None = None,
        terminal: str | None = None,
        timeout: str | None = None,
        reward_at: Literal["same", "next"] = "same",
        gap: float | None = GAP,
        action_bounds: tuple[Bound, Bound] | None = None,
        name: str = "frame",
        tell: Tell = log,
    ) -> "Dataset":
        """A log as a pandas or polars data frame, or as an Arrow table.

        Args:
            states, actions: names of columns. What is not given is guessed from the names.
            reward: a column, or a formula of columns such as "-abs(temperature - 21)".
            episode: a column that tells episodes apart.
            time: a column of times: rows are sorted by it, and gaps end an episode.
            terminal, timeout: columns of flags in an episode's last row.
            reward_at: a row's reward is that of its own action, or of the row before ("next").
            gap: a time step longer than this many usual ones ends an episode; none: no such end.
            action_bounds: low and high, one value or one per action; if not given, the range that
                the data uses.
            tell: is given, in a sentence, what was guessed, dropped, sorted or split.
        """
        given = {
            "states": None if states is None else tuple(states),
            "actions": None if actions is None else tuple(actions),
            "reward": reward,
            "episode": episode,
            "time": time,
            "terminal": terminal,
            "timeout": timeout,
        }
        imported = steps_of(
            [frame_table(frame, name)],
            given,
            reward_at=reward_at,
            gap=gap,
            action_bounds=action_bounds,
        )
        for role, why in imported.guessed.items():
            tell(f"{name}: {role}: {getattr(imported.columns, role)} ({why})")
        for finding in imported.findings:
            tell(str(finding))
        return cls.from_arrays(
            **imported.arrays,
            action_bounds=imported.action_bounds,
            column_names=imported.columns.names,
            name=name,
            tell=tell,
        )

    @cached_property
    def bounds(self) -> tuple[Int[np.ndarray, " episodes"], Int[np.ndarray, " episodes"]]:
        """First row and length in steps of every episode."""
        return episode_bounds(np.asarray(self.tape.start))

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.bounds[0])

    @property
    def transitions(self) -> int:
        """Number of steps (s_t, a_t, r_{t+1}, s_{t+1})."""
        return len(self.tape.start) - self.episodes

    def __len__(self) -> int:
        return self.transitions

    def episode_of(self, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Which episode each row belongs to."""
        return np.searchsorted(self.bounds[0], rows, side="right") - 1

    @cached_property
    def lifetimes(self) -> Int[np.ndarray, " episodes"]:
        """Steps of every episode up to and including its first terminal one: the whole episode,
        but where the logged run went on after a terminal (AntMaze)."""
        first, length = self.bounds
        terminal = np.flatnonzero(self.tape.terminated)
        episode = self.episode_of(terminal)
        ended, earliest = np.unique(episode, return_index=True)
        lifetimes = length.copy()
        lifetimes[ended] = terminal[earliest] - first[ended] + 1
        return lifetimes

    @cached_property
    def histories(self) -> Prefix:
        """Per episode, the part that may be an agent's history: at most T steps, and nothing
        beyond the first terminal. h_t exists for every t in 0 .. length."""
        length = np.minimum(self.lifetimes, self.task.horizon)
        return Prefix(first=self.bounds[0], length=length)

    @cached_property
    def recorded_successor(self) -> Bool[np.ndarray, " rows"]:
        """Rows whose next row is data: all, but the terminal steps of which the source did not
        store where they led."""
        return np.append(np.asarray(self.tape.real)[1:], True)

    @cached_property
    def times_drawn(self) -> Int[np.ndarray, " episodes"]:
        """How often a world is shown each episode: once."""
        return np.ones(self.episodes, np.int64)

    @cached_property
    def world_rows(self) -> Int[np.ndarray, " transitions"]:
        """Rows whose transition the world model trains on."""
        used = has_successor(np.asarray(self.tape.start)) & self.recorded_successor
        terminated = np.asarray(self.tape.terminated)
        if self.task.world_skips_timeouts:
            first, length = self.bounds
            last = first + length - 1
            used[last[~terminated[last]]] = False
        if self.task.world_skips_terminals:
            used &= ~terminated
        return np.flatnonzero(used)

    @cached_property
    def flat(self) -> FlatRows:
        """The tape in the D4RL manner, as it can be read again."""
        first, length = self.bounds
        terminated, real = np.asarray(self.tape.terminated), np.asarray(self.tape.real)
        successors = bool(real.all())
        used = has_successor(np.asarray(self.tape.start)) if successors else real
        last = first + length - (True if successors else ~real[first + length])
        timeout = np.zeros(len(used), bool)
        timeout[last] = ~terminated[last] | self.task.split_by_timeouts_only
        rows = np.flatnonzero(used)
        return FlatRows(rows, timeout[rows], successors)

    @cached_property
    def returns(self) -> Float[np.ndarray, " episodes"]:
        """Raw (unshifted) return of every episode up to its first terminal, in float64."""
        first, _ = self.bounds
        beyond = first + self.lifetimes
        returns = np.zeros(len(first))
        for begin, piece in self.pieces():
            rows = np.arange(begin, begin + len(piece.reward))
            episode = self.episode_of(rows)
            raw = np.asarray(piece.reward, dtype=np.float64) - self.task.reward_shift
            raw[rows >= beyond[episode]] = 0
            returns[episode[0] : episode[-1] + 1] += np.bincount(episode - episode[0], raw)
        return returns

    @cached_property
    def ranges(self) -> Ranges:
        """What states and actions span."""
        acts = has_successor(np.asarray(self.tape.start))  # an episode's last row has no action
        lows, highs = [], []
        for begin, piece in self.pieces():
            state, action = np.asarray(piece.state), np.asarray(piece.action)
            done = action[acts[begin : begin + len(action)]]
            lows.append([state.min(axis=0), done.min(axis=0, initial=np.inf)])
            highs.append([state.max(axis=0), done.max(axis=0, initial=-np.inf)])
        low, high = (
            [extreme(each, axis=0) for each in zip(*found, strict=True)]
            for extreme, found in ((np.min, lows), (np.max, highs))
        )
        return Ranges(low[0], high[0], low[1], high[1])

    @cached_property
    def facts(self) -> Facts:
        """What settings may follow from."""
        squares, terminals = 0.0, False
        for _, piece in self.pieces():
            squares += float(np.square(np.asarray(piece.reward, np.float64)).sum())
            terminals |= bool(np.asarray(piece.terminated).any())
        return Facts(
            horizon=self.task.horizon,
            reward_rms=math.sqrt(squares / max(self.transitions, 1)),
            foretold=self.foretold(self.world_rows),
            terminals=terminals,
        )

    def foretold(self, rows: Int[np.ndarray, " rows"]) -> float:
        """Share of the actions' variance in these rows that a linear function of the states
        foretells: fitted to every second episode, and measured on the others; 0 where there are too
        few to tell."""
        rows = rows[:: max(math.ceil(len(rows) / FORETOLD_ROWS), 1)]
        some, fitted = self.take(rows), self.episode_of(rows) % 2 == 0
        states, actions = (np.asarray(leaf, np.float64) for leaf in (some.state, some.action))
        if min(fitted.sum(), (~fitted).sum()) < 2 * (states.shape[1] + 1):
            return 0.0
        spread = states.std(axis=0)
        states = (states - states.mean(axis=0)) / np.where(spread < 1e-12, 1.0, spread)
        inputs = np.column_stack([np.clip(states, -5, 5), np.ones(len(states))])
        weights = np.linalg.lstsq(inputs[fitted], actions[fitted], rcond=None)[0]
        total = actions[~fitted].var(axis=0).sum()
        left = (actions - inputs @ weights)[~fitted].var(axis=0).sum()
        return float(1 - left / total) if total > 0 else 0.0

    @cached_property
    def hash(self) -> str:
        """Hash of the content: equal tapes have equal hashes, whatever file they came from."""
        digest = sha256()
        for name, field in zip(FIELDS, fields(self.tape), strict=True):
            digest.update(f"{name} {field.dtype.str} {field.shape}\n".encode())
            for begin, end in spans(len(field), PIECE_ROWS):
                digest.update(np.ascontiguousarray(field[begin:end]).data)
                release(self.tape)
        return digest.hexdigest()[:32]

    @property
    def identity(self) -> dict[str, str]:
        """Its name and its hash: what is trained on it says so."""
        return {"name": self.name, "hash": self.hash}

    def tell_assumed_bounds(self, tell: Tell) -> None:
        """Say which bounds of continuous actions were assumed, and what the data uses of them."""
        if not isinstance(self.task.actions, ContinuousActions):
            return
        low, high = self.ranges.action_low.min(), self.ranges.action_high.max()
        beyond = [f"down to -1, the data stays above {low:.3g}"] if low > -0.9 else []
        beyond += [f"up to 1, the data stays below {high:.3g}"] if high < 0.9 else []
        tell(
            f"{self.name}: no bounds of its actions are given or recorded: [-1, 1] is assumed, the "
            f"data uses {low:.3g} to {high:.3g}. "
            + "".join(f"The policy may command {each}. " for each in beyond)
            + "Give the true ones with --action-low and --action-high (in Python: action_bounds)"
        )

    def take(self, rows: Int[np.ndarray, "*batch"]) -> Tape:
        """Any rows of the tape, copied. Unlike indexing the fields, drawing from a memory-mapped
        tape keeps no more of it in memory than what is drawn."""
        return Tape(*(gather(getattr(self.tape, name), rows) for name in FIELDS))

    def pieces(self) -> Iterator[tuple[int, Tape]]:
        """The tape in pieces, each with its first row, in bounded memory."""
        for begin, end in spans(len(self.tape.start), PIECE_ROWS):
            yield begin, slice_rows(self.tape, begin, end)
            release(self.tape)


def _column(key: str, values: ArrayLike | None) -> Column | None:
    if values is None:
        return None
    try:
        return Column(key, np.asarray(values))
    except ValueError as problem:  # a ragged list
        raise DatasetError(
            f"'{key}' is not an array: {problem}. Give rows of one length."
        ) from None
