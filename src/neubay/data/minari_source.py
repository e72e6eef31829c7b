"""Minari datasets, by id or by folder, read with the Minari library.

Episodes come with their final state: nothing has to be guessed.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Int

from neubay.data.archives import damage_reported, hdf5_column, recorded_names, refuse_link
from neubay.data.findings import error
from neubay.data.layout import Laid, meaning, outside_bounds, with_horizon, write_block
from neubay.data.rows import BLOCK_ROWS, Block, ColumnNames, Keys, cuts_of
from neubay.data.store import TapeWriter, build_tape
from neubay.errors import DatasetError
from neubay.tasks import ContinuousActions, DiscreteActions, Reference, Task

Cuts = Callable[[int], Int[np.ndarray, " cuts"]]
"""From the steps of an episode to the steps before each of its cuts."""
ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")


def is_minari_folder(path: Path) -> bool:
    """The folder holds a Minari dataset."""
    # Also of a name that is too long, or in a folder that may not be entered.
    return os.path.isfile(path / "data" / "metadata.json")


def list_minari() -> list[str]:
    """Ids of the datasets in Minari's folder."""
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        root = get_dataset_path()
        found = root.glob("**/data/metadata.json")
        return sorted(path.parent.parent.relative_to(root).as_posix() for path in found)
    except OSError as problem:
        raise DatasetError(
            f"Minari's folder of datasets cannot be read: {problem}. Set MINARI_DATASETS_PATH to "
            "one that can."
        ) from None


@dataclass(frozen=True, eq=False)
class MinariSource:
    """A Minari dataset, opened but not read."""

    folder: Path
    name: str
    """The id of the dataset."""
    task: Task
    """From Minari's metadata: sizes, bounds, environment and reference scores."""
    horizon_known: bool
    recorded_task: str | None
    """The name of the task that was recorded with the data, where one was."""
    column_names: ColumnNames | None
    """The names of its columns, likewise."""
    steps: int
    episodes: int
    first_action: int
    """The number of the first discrete action."""
    dataset: Any

    def tape(self, task: Task | None, memory_limit: int) -> Laid:
        """The episodes as a tape of the task; none for the task of Minari's metadata."""
        chosen = self.task if task is None else task
        known = task is not None or self.horizon_known
        cut: list[int] = []  # steps of the episodes that are read in pieces
        if self._other_sizes(chosen):
            raise DatasetError(
                f"{self.folder}: has {_describe(self.task)}, but task '{chosen.name}' has "
                f"{_describe(chosen)}. Name the right task."
            )
        file = self.folder / "data" / "main_data.hdf5"
        status = (file if file.exists() else self.folder).stat()
        tape = build_tape(
            lambda writer: self._write(chosen, writer, partial(_cuts, chosen, known, cut)),
            rows=self.steps + self.episodes,
            sizes=(chosen.state_size, chosen.actions.size),
            origin={
                "path": str(self.folder.resolve()),
                "size": status.st_size,
                "modified": status.st_mtime_ns,
                "meaning": meaning(chosen),
                "cuts": [known, chosen.cuts_long_logs],
            },
            memory_limit=memory_limit,
        )
        return with_horizon(tape, chosen, self.name, max(cut, default=0), known=known)

    def misfit(self, task: Task) -> str | None:
        """Why the data is not of a task: other sizes, or an action space beyond its bounds."""
        ours, theirs = self.task.actions, task.actions
        if self._other_sizes(task):
            return f"it has {_describe(self.task)}, the task {_describe(task)}"
        if isinstance(ours, ContinuousActions) and isinstance(theirs, ContinuousActions):
            outside = outside_bounds(np.stack([ours.low, ours.high]), theirs)
            if outside is not None:
                return f"its actions reach {outside.value:g}, outside {outside.bounds}"
        return None

    def _other_sizes(self, task: Task) -> bool:
        ours, theirs = self.task, task
        return (
            not isinstance(ours.actions, type(theirs.actions))
            or ours.state_size != theirs.state_size
            or ours.actions.size != theirs.actions.size
        )

    def _write(self, task: Task, writer: TapeWriter, cuts: Cuts) -> None:
        keys = Keys(str(self.folder), "observations", "actions", "rewards", "observations")
        for block in self._blocks(cuts):
            write_block(block, keys, task, writer)
        if not writer.rows:
            raise DatasetError(f"{self.folder}: has no steps. Record at least one episode.")

    def _blocks(self, cuts: Cuts) -> Iterator[Block]:
        """Whole episodes, joined to blocks of a good size; rows are numbered over all steps."""
        waiting: list[list[np.ndarray]] = []
        begin = rows = 0
        for episode in self._episodes():
            waiting.append(episode)
            rows += len(episode[2])
            if rows >= BLOCK_ROWS:
                yield _block(begin, waiting, cuts)
                waiting, begin, rows = [], begin + rows, 0
        if waiting:
            yield _block(begin, waiting, cuts)

    def _episodes(self) -> Iterator[list[np.ndarray]]:
        """Observations, actions, rewards and terminations of every episode that has a step."""
        episodes = iter(self.dataset.iterate_episodes())
        number = 0
        while True:
            with damage_reported(self.folder, f"episode_{number}"):
                episode = next(episodes, None)
                if episode is None:
                    return
                arrays = [np.asarray(getattr(episode, name)) for name in ARRAYS[:4]]
            self._check(number, arrays)
            if len(arrays[2]):
                if isinstance(self.task.actions, DiscreteActions):
                    arrays[1] = arrays[1].reshape(-1).astype(np.int64) - self.first_action
                yield arrays
            number += 1

    def _check(self, number: int, arrays: list[np.ndarray]) -> None:
        rewards = arrays[2]
        steps = len(rewards) if rewards.ndim else 0
        wanted = {
            "observations": (steps + 1, self.task.state_size),
            "actions": (steps, *self.task.actions.shape),
            "rewards": (steps,),
            "terminations": (steps,),
        }
        for name, array in zip(ARRAYS, arrays, strict=False):
            kinds = "b" if name == "terminations" else "fiub"
            if array.shape != wanted[name] or array.dtype.kind not in kinds:
                raise error(
                    str(self.folder),
                    f"episode_{number}/{name}",
                    None,
                    f"has shape {array.shape} and type {array.dtype}, where the metadata and the "
                    f"rewards ask for numbers of shape {wanted[name]}",
                    "Record the dataset again",
                ).as_error()


def open_minari(where: str) -> MinariSource:
    """Open a dataset by its id or its folder, and find out what it holds."""
    folder = _folder(where)
    metadata = _metadata(folder)
    with damage_reported(folder):
        from minari import MinariDataset

        if metadata.get("data_format") == "hdf5":
            _refuse_links(folder / "data" / "main_data.hdf5")
        dataset = MinariDataset(folder / "data")
        name, spec = str(dataset.spec.dataset_id), dataset.spec
        steps, episodes = int(dataset.total_steps), int(dataset.total_episodes)
        state_size = _state_size(folder, spec.observation_space)
        actions, first_action = _actions(folder, spec.action_space)
        horizon = spec.env_spec.max_episode_steps if spec.env_spec is not None else None
    about = metadata.get("neubay")
    about = about if isinstance(about, dict) else {}
    recorded = about.get("task")
    task = Task(
        name=name,
        state_size=state_size,
        actions=actions,
        horizon=horizon if isinstance(horizon, int) and horizon > 0 else max(steps, 1),
        env_id=_registered(spec.env_spec),
        reference=_reference(metadata),
    )
    return MinariSource(
        folder=folder,
        name=name,
        task=task,
        horizon_known=task.horizon == horizon,
        recorded_task=recorded if isinstance(recorded, str) else None,
        column_names=recorded_names(folder, about),
        steps=steps,
        episodes=episodes,
        first_action=first_action,
        dataset=dataset,
    )


def _folder(where: str) -> Path:
    """The folder of a dataset, given itself or as an id."""
    path = Path(where)
    for candidate in (path, path.parent):
        if is_minari_folder(candidate) and (candidate is path or path.name == "data"):
            return candidate
    if os.path.isdir(path):
        raise DatasetError(
            f"{path}: is not a Minari dataset: it has no data/metadata.json. Give the folder that "
            "has one."
        )
    with damage_reported(Path(where)):
        from minari.storage.datasets_root_dir import get_dataset_path

        stored = get_dataset_path(where)
        if is_minari_folder(stored):
            return stored
    raise DatasetError(
        f"'minari:{where}': no such folder, and no dataset of that id in {stored.parent}. Fetch "
        f"it: pip install 'minari[hf]' && minari download {where}; or set MINARI_DATASETS_PATH to "
        "where it is."
    )


def _metadata(folder: Path) -> dict[str, Any]:
    path = folder / "data" / "metadata.json"
    with damage_reported(path):
        metadata = json.loads(path.read_text(encoding="utf-8"))
    # Without them Minari would import and run the environment that the file names.
    if not isinstance(metadata, dict) or not all(
        isinstance(metadata.get(key), str) for key in ("observation_space", "action_space")
    ):
        raise DatasetError(
            f"{path}: does not hold the spaces of observations and actions. Record the dataset "
            "again with a newer version of Minari."
        )
    return metadata


def _refuse_links(path: Path) -> None:
    """Raise where an episode's arrays are not in the file itself."""
    with h5py.File(path, "r", locking="best-effort") as file:
        for episode in file:
            refuse_link(path, file, episode)
            group = file[episode]
            for name in ARRAYS:
                key = f"{episode}/{name}"
                refuse_link(path, group, name)
                if not isinstance(group[name], h5py.Group):  # nested spaces are refused later
                    hdf5_column(path, key, group[name])


def _state_size(folder: Path, space: Any) -> int:
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0:
        return int(space.shape[0])
    raise DatasetError(
        f"{folder}: observations are {_short(space)}; only vectors (a Box of one dimension) can be "
        "read. Record them flattened, for example with Gymnasium's FlattenObservation, or pass "
        "arrays to Dataset.from_arrays."
    )


def _actions(folder: Path, space: Any) -> tuple[ContinuousActions | DiscreteActions, int]:
    """The actions, and the number of the first one where they are discrete."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return DiscreteActions(n=int(space.n)), int(space.start)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0] > 0:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise DatasetError(
                f"{folder}: actions have no bounds ({_short(space)}). Record them with finite "
                "bounds, or pass arrays to Dataset.from_arrays with action_bounds."
            )
        return ContinuousActions(low=space.low, high=space.high), 0
    raise DatasetError(
        f"{folder}: actions are {_short(space)}; only vectors (a Box of one dimension) and "
        "Discrete can be read. Record the dataset with one of them."
    )


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _describe(task: Task) -> str:
    actions = task.actions
    return f"states of size {task.state_size} and {actions.size} {actions.kind} actions"


def _registered(spec: Any) -> str | None:
    """The id of the dataset's environment, if it is one that is registered here as it was there.

    The environment that a file describes is never made from that description: it may name any
    Python function.
    """
    if spec is None:
        return None
    import gymnasium

    known = gymnasium.registry.get(spec.id)
    same = (
        known is not None
        and known.entry_point == spec.entry_point
        and known.kwargs == spec.kwargs
        and not spec.additional_wrappers
    )
    return spec.id if same else None


def _reference(metadata: dict[str, Any]) -> Reference | None:
    low, high = metadata.get("ref_min_score"), metadata.get("ref_max_score")
    if isinstance(low, int | float) and isinstance(high, int | float) and low < high:
        return Reference(float(low), float(high), "the dataset's Minari metadata")
    return None


def _cuts(task: Task, known: bool, cut: list[int], steps: int) -> Int[np.ndarray, " cuts"]:
    """The steps before each cut of an episode; one that is cut is noted."""
    if known and not task.cuts_long_logs:
        return np.zeros(0, np.int64)
    cuts = cuts_of(steps, task.horizon if known else None)
    cut += [steps] * bool(len(cuts))
    return cuts


def _block(begin: int, episodes: list[list[np.ndarray]], cuts: Cuts) -> Block:
    """Episodes end to end, long ones in pieces."""
    lengths = np.concatenate(
        [
            np.diff(np.concatenate([[0], cuts(len(rewards)), [len(rewards)]]))
            for _, _, rewards, _ in episodes
        ]
    ).astype(np.int64)
    starts, ends = np.zeros(sum(lengths), dtype=bool), np.zeros(sum(lengths), dtype=bool)
    last = np.cumsum(lengths) - 1
    ends[last] = True
    starts[np.append(0, last[:-1] + 1)] = True
    states = np.concatenate([observations[:-1] for observations, _, _, _ in episodes])
    return Block(
        begin=begin,
        states=states,
        actions=np.concatenate([actions for _, actions, _, _ in episodes]),
        rewards=np.concatenate([rewards for _, _, rewards, _ in episodes]),
        next_states=np.concatenate([observations[1:] for observations, _, _, _ in episodes]),
        terminals=np.concatenate([terminations for _, _, _, terminations in episodes]),
        starts=starts,
        ends=ends,
        jumps=np.zeros(0, dtype=np.int64),
        cuts=np.zeros(0, dtype=np.int64),
        following=states[:0],
    )
