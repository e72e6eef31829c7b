"""A trained world with what is known of its training, and the directory that keeps it."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from neubay.config import WorldConfig, validated
from neubay.data.dataset import Dataset
from neubay.errors import RunError, WorldError, renamed
from neubay.runs.checkpoints import CHECKPOINTS, found
from neubay.runs.files import (
    atomic,
    atomic_write_json,
    file_hash,
    load_arrays,
    read_array,
    read_json,
    save_arrays,
)
from neubay.runs.rundir import WORLD_REFERENCE, is_run
from neubay.runs.values import finite
from neubay.world.model import Head, Member, Scaler, World

LAYOUT = 1
"""Version of the files in a world directory."""
WORLD_FILE = "world.json"  # written last: where it is, the world is whole
MEMBERS_FILE = "members.npz"
UNCERTAINTY_FILE = "data_uncertainty.npy"
FORMER_CHECKPOINT = "training.npz"  # of a training that neubay 0.1 did not finish
OWN_WORLD = "world"  # in a run directory
_QUANTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)


class EpochRecord(NamedTuple):
    """Validation scores after one epoch, over the members where they are finite."""

    best: float | None
    median: float | None
    improved: int  # members whose snapshot was renewed


class TerminationRecord(NamedTuple):
    """How well the heads tell ends, on episodes that they neither learned from nor were calibrated
    on; averaged over the heads."""

    ends: int  # episodes of the data that end in a terminal state
    episodes: int
    held_out_steps: int
    held_out_ends: int
    drawn: bool  # ends are drawn by their probability; else a threshold decides
    precision: float | None  # share of ends among what is called an end
    recall: float | None  # share of the ends that are called so
    false_alarms: float  # share of the other steps that are called ends
    false_alarms_apart: float | None  # the same of steps that no end follows within ten
    false_alarms_apart_at_most: float  # upper end of its 95 % interval
    rate: float  # ends per step, in the data
    rate_recorded: float  # as the heads say of the same steps
    rate_imagined: float  # as they say of steps that their members imagine from the same (s, a)
    survival: dict[str, list[float]]  # shares still running after `steps`: data, recorded, imagined


@dataclasses.dataclass(frozen=True)
class FittedWorld:
    """A trained world, and what is known of its training and of its data."""

    world: World
    scores: Float[np.ndarray, " pool"]
    """Best validation score of every member of the pool; infinite where it never was finite."""
    kept: Int[np.ndarray, " members"]
    """The members of the pool that became the world's, best first."""
    data_uncertainty: Float[np.ndarray, " transitions"]
    """U of every transition of the dataset, in the order of `Dataset.world_rows`."""
    history: list[EpochRecord]
    seconds: float
    """Time spent training."""
    config: WorldConfig
    seed: int
    dataset_name: str
    dataset_hash: str
    provenance: dict[str, str]
    termination: TerminationRecord | None = None
    """How well ends were learned, where they were."""

    def threshold(self, zeta: float) -> float:
        """The zeta-quantile of U over the data (linear interpolation); 1 is its maximum."""
        return float(np.quantile(self.data_uncertainty, zeta))

    @property
    def mean_uncertainty(self) -> float:
        """mean_D(U), the unit of the uncertainty penalty."""
        return float(self.data_uncertainty.mean(dtype=np.float64))

    @property
    def identity(self) -> dict[str, Any]:
        return identity(self.dataset_hash, self.config, self.seed)


def identity(dataset_hash: str, config: WorldConfig, seed: int) -> dict[str, Any]:
    """What two fits must share to be the same fit."""
    return {
        "layout": LAYOUT,
        "dataset hash": dataset_hash,
        "seed": seed,
        "config": config.record(),
    }


def check_identity(where: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse what another fit left at `where`, and say how it differs."""
    for name, ours in wanted.items():
        theirs = found.get(name)
        if theirs == ours:
            continue
        if name == "config" and isinstance(theirs, dict):
            names = ours | theirs
            name = next(key for key in names if theirs.get(key) != ours.get(key))
            theirs, ours = theirs.get(name, "not set"), ours.get(name, "not set")
        raise WorldError(
            f"{where}: of another fit: its {name} is {theirs}, asked for is {ours}; "
            "choose another directory, or remove this one"
        )


def save(fitted: FittedWorld, directory: Path) -> None:
    """Write a world directory."""
    world = fitted.world
    save_arrays(directory / MEMBERS_FILE, world, {"layout": LAYOUT})
    with atomic(directory / UNCERTAINTY_FILE) as draft:
        np.save(draft, fitted.data_uncertainty, allow_pickle=False)
    about = {
        "layout": LAYOUT,
        "dataset": {
            "name": fitted.dataset_name,
            "hash": fitted.dataset_hash,
            "transitions": len(fitted.data_uncertainty),
            "state_size": len(world.scaler.state_mean),
            "action_size": len(world.scaler.action_mean),
            "reward_only": world.reward_only,
        },
        "seed": fitted.seed,
        "config": fitted.config.record(),
        "scores": finite(fitted.scores.tolist()),
        "kept": fitted.kept.tolist(),
        "uncertainty": {
            "mean": fitted.mean_uncertainty,
            "quantiles": {str(zeta): fitted.threshold(zeta) for zeta in _QUANTILES},
        },
        "history": [record._asdict() for record in fitted.history],
        "seconds": fitted.seconds,
        "termination": None if fitted.termination is None else fitted.termination._asdict(),
        "files": {name: file_hash(directory / name) for name in (MEMBERS_FILE, UNCERTAINTY_FILE)},
        "provenance": fitted.provenance,
    }
    atomic_write_json(directory / WORLD_FILE, about)


def is_whole(directory: Path) -> bool:
    """A finished world is there."""
    return os.path.isfile(directory / WORLD_FILE)  # also of a name that cannot be one


def refuse_former(directory: Path) -> None:
    """Refuse a training that neubay 0.1 began in a directory and did not finish."""
    if (path := directory / FORMER_CHECKPOINT).exists():
        raise WorldError(
            f"{path}: of an unfinished world of neubay 0.1, whose training this version cannot "
            "resume; finish it with neubay 0.1, remove that file to train from the start, or "
            "choose another --out"
        )


def load_world(path: str | Path, dataset: Dataset | None = None) -> FittedWorld:
    """Read a world directory, or the world of a run directory; with a dataset, check that the world
    was trained on it."""
    directory = world_of(Path(path))
    path = directory / WORLD_FILE
    if not path.exists():
        refuse_former(directory)
        unfinished = found(directory / CHECKPOINTS)
        state = "an unfinished world: run its training again" if unfinished else "not a world"
        raise WorldError(f"{directory}: {state} (there is no {WORLD_FILE})")
    try:
        fitted = _read(directory, read_json(path))
    except RunError as error:
        raise WorldError(str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise WorldError(f"{path}: damaged: {type(error).__name__} {error}") from None
    if dataset is not None and dataset.hash != fitted.dataset_hash:
        raise WorldError(
            f"{directory}: trained on {fitted.dataset_name} with hash {fitted.dataset_hash}, but "
            f"{dataset.name} has hash {dataset.hash}; use the same data, or train a world on this"
        )
    return fitted


def world_of(path: Path) -> Path:
    """A world directory, or that of the world that a run was trained in. A copy in RUN/world comes
    first: it goes with the run to where the cache of the training is not."""
    if not is_run(path):
        return path
    run, reference, own = path, path / WORLD_REFERENCE, path / OWN_WORLD
    if is_whole(own):  # also a run of `neubay bandit`
        return own
    if not reference.is_file():
        raise WorldError(
            f"{run}: a run without a world: it clones the data, or its world is not trained yet"
        )
    with renamed(RunError, WorldError):
        where = read_json(reference).get("directory")
    if not isinstance(where, str):
        raise WorldError(
            f"{run}: a run in a world that was handed to it and is kept elsewhere; name the "
            "directory of that world"
        )
    if not is_whole(Path(where)):
        raise WorldError(
            f"{run}: its world was in {where}, which is not there any more; if the run was "
            f"trained elsewhere, copy that directory from there to {own}, else train it again: "
            f"'neubay world' with the run's data, settings and seed, and --out {own}"
        )
    return Path(where)


def _read(directory: Path, about: dict[str, Any]) -> FittedWorld:
    if about["layout"] != LAYOUT:
        raise WorldError(
            f"{directory}: layout {about['layout']}, this version reads {LAYOUT}; "
            "train the world again, or use the version that wrote it"
        )
    for name in (MEMBERS_FILE, UNCERTAINTY_FILE):
        found, recorded = file_hash(directory / name), about["files"][name]
        if found != recorded:
            raise WorldError(
                f"{directory / name}: SHA-256 {found}, recorded {recorded}; "
                "the file is damaged or of another world"
            )
    config = validated(WorldConfig, about["config"], str(directory / WORLD_FILE))
    data = about["dataset"]
    sizes = (data["state_size"], data["action_size"])
    blank = jax.eval_shape(lambda: _blank_world(*sizes, data["reward_only"], config))
    world, _ = load_arrays(directory / MEMBERS_FILE, blank)
    uncertainty = read_array(directory / UNCERTAINTY_FILE)
    if uncertainty.shape != (data["transitions"],) or uncertainty.dtype != np.float32:
        raise WorldError(
            f"{directory / UNCERTAINTY_FILE}: {uncertainty.dtype}{list(uncertainty.shape)}, "
            f"expected float32[{data['transitions']}], one value per transition"
        )
    termination = about.get("termination")  # version 0.1 learned none
    scores = [math.inf if score is None else score for score in about["scores"]]
    return FittedWorld(
        world=world,
        scores=np.asarray(scores, np.float32),
        kept=np.asarray(about["kept"]),
        data_uncertainty=uncertainty,
        history=[EpochRecord(**record) for record in about["history"]],
        seconds=about["seconds"],
        config=config,
        seed=about["seed"],
        dataset_name=data["name"],
        dataset_hash=data["hash"],
        provenance=about["provenance"],
        termination=None if termination is None else TerminationRecord(**termination),
    )


def _blank_world(
    state_size: int, action_size: int, reward_only: bool, config: WorldConfig
) -> World:
    """A world of the right shapes."""
    outputs = 1 if reward_only else state_size + 1
    keys = jax.random.split(jax.random.key(0), config.members)
    members = jax.vmap(lambda key: Member(state_size + action_size, outputs, config, key=key))(keys)
    s, a, scalar = jnp.zeros(state_size), jnp.zeros(action_size), jnp.zeros(())
    scaler = Scaler(s, s, a, a, scalar, scalar, s if config.unit == "change" else None)
    heads = None
    if config.termination == "learned":
        heads = jax.vmap(lambda key: Head(2 * state_size + action_size, key=key))(keys)
    return World(members, scaler, reward_only, config.quantifier, heads)
