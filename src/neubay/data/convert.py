"""Conversion: any dataset to D4RL HDF5 or to Minari, loss-free.

Files hold the environment's units: actions in its bounds, rewards without the task's shift. The
tape's float32 values are the image of such values; where rounding would make the way back end one
digit beside them, the neighbouring value that leads back exactly is written. Every file is read
again before it gets its name, and is only kept if the tape that it gives is the same, bit by bit.
"""

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Float

from neubay import __version__
from neubay.data.archives import (
    ACTION_COUNT,
    ACTION_HIGH,
    ACTION_LOW,
    ACTION_NAMES,
    REWARD_NAME,
    STATE_NAMES,
)
from neubay.data.dataset import Dataset
from neubay.data.files import refuse_existing, written_whole
from neubay.data.sources import load
from neubay.errors import DatasetError
from neubay.tape import Tape, episodes
from neubay.tasks import DiscreteActions, Task

_BLOCK_ROWS = 1 << 17
_HDF5_SUFFIXES = (".hdf5", ".h5")
_OTHER_SUFFIXES = (
    *(".npz", ".npy", ".mat", ".pkl", ".json", ".jsonl", ".txt", ".csv", ".tsv", ".xlsx"),
    *(".parquet", ".feather", ".arrow", ".gz", ".zip"),
)
"""Of files that nobody means a folder by."""


@dataclass(frozen=True)
class Target:
    """Where and how a dataset is to be written."""

    layout: str
    """'d4rl' or 'minari'."""
    path: Path
    """The HDF5 file, or the folder of the Minari dataset."""
    minari_id: str | None = None


def parse_target(text: str) -> Target:
    """`OUT.hdf5` is D4RL's layout; `minari:ID` goes to Minari's own folder of datasets, any other
    path is a folder with a Minari dataset."""
    prefix, colon, rest = text.partition(":")
    layout = prefix if colon and prefix in ("d4rl", "minari") else None
    if layout is not None and not rest:
        raise DatasetError(f"target '{text}': a path or a Minari id is missing after the colon.")
    place = text if layout is None else rest
    suffix = Path(place).suffix.lower()
    if layout == "d4rl" or (layout is None and suffix in _HDF5_SUFFIXES):
        return Target("d4rl", Path(place))
    if suffix in _OTHER_SUFFIXES:
        raise DatasetError(
            f"target '{text}': {suffix} is not written; choose OUT.hdf5, minari:ID or a folder."
        )
    if layout == "minari" and not place.startswith((os.sep, ".", "~")):
        return Target("minari", _minari_folder(place), place)
    return Target("minari", Path(place).expanduser())


def write(
    dataset: Dataset,
    target: str,
    *,
    force: bool = False,
    provenance: dict[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
) -> Target:
    """Write a dataset to `target`, check that it reads back the same, and return where it is.

    `provenance` is kept with the data, and so are the episodes' `seeds` where the layout has a
    place for them (Minari). Nothing is overwritten unless `force` is given.
    """
    place = parse_target(target)
    if place.layout == "minari" and not dataset.flat.successors:
        raise DatasetError(
            f"target '{target}': Minari stores the state that an episode ended in, and "
            f"'{dataset.name}' does not have that of its terminal ones; choose OUT.hdf5."
        )
    if not force:
        refuse_existing(place.path)
    about = _about(dataset, provenance)
    with written_whole(place.path, overwrite=force) as draft:
        if place.layout == "d4rl":
            _write_d4rl(dataset, draft, about)
        else:
            _write_minari(dataset, draft, place.minari_id or _id_from(place.path), about, seeds)
        _check_same(dataset, f"{place.layout}:{draft}", place.path)
    return place


def _about(dataset: Dataset, provenance: dict[str, Any] | None) -> dict[str, Any]:
    names, keys = dataset.column_names, (STATE_NAMES, ACTION_NAMES, REWARD_NAME)
    return {
        "name": dataset.name,
        "task": dataset.task.name,
        "environment": dataset.task.env_name,
        "source": dataset.source,
        "hash": dataset.hash,
        "neubay_version": __version__,
        **({"provenance": provenance} if provenance else {}),
        **({} if names is None else dict(zip(keys, names, strict=True))),
    }


def _check_same(dataset: Dataset, spec: str, path: Path) -> None:
    again = load(spec, task=dataset.task, tell=lambda _: None)
    if again.hash != dataset.hash:
        raise DatasetError(
            f"{path}: not written: what was read back has hash {again.hash}, the dataset has "
            f"{dataset.hash}. {_difference(dataset.tape, again.tape)}"
        )


def _difference(before: Tape, after: Tape) -> str:
    """Where two tapes first differ, in words."""
    for name in Tape._fields:
        old, new = getattr(before, name), getattr(after, name)
        if old is None or new is None:
            continue
        if old.shape != new.shape:
            return f"The field '{name}' has shape {new.shape} instead of {old.shape}."
        differs = np.asarray(old != new).reshape(len(old), -1).any(axis=1)
        if differs.any():
            return f"The field '{name}' differs first in row {int(np.argmax(differs))} of the tape."
    return "The tapes are equal but their hashes are not."


# --- the environment's units ---------------------------------------------------------------


def environment_actions(task: Task, actions: Float[np.ndarray, "n a"]) -> np.ndarray:
    """Actions of the tape in the environment's units, such that `to_unit` gives them back."""
    if isinstance(task.actions, DiscreteActions):
        return task.from_unit(actions)
    exact = task.from_unit(actions.astype(np.float64))
    guess = np.clip(exact, task.actions.low, task.actions.high)
    return _preimage(lambda values: np.clip(task.to_unit(values), -1, 1), guess, actions)


def raw_rewards(task: Task, rewards: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Rewards of the tape without the task's shift, such that adding it gives them back."""
    shift = np.float32(task.reward_shift)
    return _preimage(lambda values: values + shift, rewards - shift, rewards)


def _preimage(
    function: Callable[[np.ndarray], np.ndarray], guess: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Values within two float32 steps of `guess` that `function` maps to `wanted` exactly.

    Where there are none the guess stays, and reading the file back shows the difference.
    """
    found = guess.astype(np.float32)
    for direction in (-np.inf, np.inf):
        candidate = guess.astype(np.float32)
        for _ in range(2):
            wrong = function(found) != wanted
            if not wrong.any():
                return found
            candidate = np.nextafter(candidate, np.float32(direction))
            found = np.where(wrong & (function(candidate) == wanted), candidate, found)
    return found


# --- D4RL ----------------------------------------------------------------------------------


def _write_d4rl(dataset: Dataset, path: Path, about: dict[str, Any]) -> None:
    """D4RL's locomotion layout: one row per transition, with `next_observations`. Where the source
    did not store where terminal steps led, Adroit's: one row per state."""
    task, flat = dataset.task, dataset.flat
    columns = {
        "observations": ((task.state_size,), np.float32),
        "next_observations": ((task.state_size,), np.float32),
        "actions": (task.actions.shape, np.float32 if task.actions.shape else np.int64),
        "rewards": ((), np.float32),
        "terminals": ((), np.bool_),
        "timeouts": ((), np.bool_),
    }
    if not flat.successors:
        del columns["next_observations"]
    with h5py.File(path, "w") as file:
        for key, (shape, dtype) in columns.items():
            file.create_dataset(key, (len(flat.row), *shape), dtype)
        for begin in range(0, len(flat.row), _BLOCK_ROWS):
            rows = flat.row[begin : begin + _BLOCK_ROWS]
            steps, end = dataset.take(rows), begin + len(rows)
            file["observations"][begin:end] = steps.state
            if flat.successors:
                file["next_observations"][begin:end] = dataset.take(rows + 1).state
            file["actions"][begin:end] = environment_actions(task, np.asarray(steps.action))
            file["rewards"][begin:end] = raw_rewards(task, np.asarray(steps.reward))
            file["terminals"][begin:end] = steps.terminated
        file["timeouts"][:] = flat.timeout
        for key, value in about.items():
            if value is not None:
                file.attrs[key] = value if isinstance(value, str) else json.dumps(value)
        if isinstance(task.actions, DiscreteActions):
            file.attrs[ACTION_COUNT] = task.actions.n
        else:
            file.attrs[ACTION_LOW], file.attrs[ACTION_HIGH] = task.actions.low, task.actions.high


# --- Minari --------------------------------------------------------------------------------


_MINARI_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+", re.ASCII)


def _minari_folder(dataset_id: str) -> Path:
    from minari.storage.datasets_root_dir import get_dataset_path

    if not _MINARI_ID.fullmatch(dataset_id):
        raise DatasetError(
            f"target 'minari:{dataset_id}': not a Minari id; ids are letters, digits, '-', '_' and "
            "'/', and end in a version: minari:hopper/mixed-v0. A folder is given as a plain path."
        )
    try:
        return get_dataset_path(dataset_id)
    except OSError as error:
        raise DatasetError(
            f"Minari's folder of datasets cannot be used: {error}. Set MINARI_DATASETS_PATH to one "
            "that can, or give a folder as the target."
        ) from None


def _id_from(folder: Path) -> str:
    """An id that Minari accepts for a dataset that lies outside its own folder."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-") or "dataset"
    return name if _MINARI_ID.fullmatch(name) else f"{name}-v0"


def _write_minari(
    dataset: Dataset,
    folder: Path,
    dataset_id: str,
    about: dict[str, Any],
    seeds: Sequence[int] | None,
) -> None:
    import gymnasium
    import minari
    from gymnasium import spaces
    from minari.dataset.minari_storage import MinariStorage

    task = dataset.task
    folder.mkdir()
    actions: spaces.Space[Any]
    if isinstance(task.actions, DiscreteActions):
        actions = spaces.Discrete(task.actions.n)
    else:
        actions = spaces.Box(task.actions.low, task.actions.high, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that an environment of ours cannot be serialised
        storage = MinariStorage.new(
            folder.resolve() / "data",  # Minari loses its way with a relative path
            # Minari keeps the dtype of what it is given; the space must agree with it.
            observation_space=spaces.Box(-np.inf, np.inf, (task.state_size,), np.float32),
            action_space=actions,
            # What Minari recovers the environment from, where Gymnasium knows it by its id.
            env_spec=None if task.env_id is None else gymnasium.registry.get(task.env_id),
            data_format="hdf5",
        )
    behaviour = about.get("provenance", {}).get("behaviour", "")
    storage.update_metadata(
        {
            "dataset_id": dataset_id,
            "minari_version": minari.__version__,
            "algorithm_name": str(behaviour),
            "neubay": about,
        }
    )
    storage.update_episodes(_episode_buffers(dataset, seeds))


def _episode_buffers(dataset: Dataset, seeds: Sequence[int] | None) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    task = dataset.task
    for number, episode in enumerate(episodes(dataset.tape)):
        terminated = np.asarray(episode.terminated[:-1])
        truncated = np.zeros_like(terminated)
        truncated[-1] = not terminated[-1]
        yield EpisodeBuffer(
            id=number,
            seed=None if seeds is None else seeds[number],
            observations=np.asarray(episode.state),
            actions=environment_actions(task, np.asarray(episode.action[:-1])),
            rewards=raw_rewards(task, np.asarray(episode.reward[:-1])),
            terminations=terminated,
            truncations=truncated,
        )
