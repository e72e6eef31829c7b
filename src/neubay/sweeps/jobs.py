"""What an engine is given: a world to train, or a run directory to run; and what comes back.

A job is plain values, so that it can go through a pipe or to another machine. Doing one twice does
no harm: a finished world or run is found, an interrupted one is resumed.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from neubay.config import Facts, TrainConfig, known, settle
from neubay.errors import RunError
from neubay.runs import rundir
from neubay.runs.checkpoints import CHECKPOINTS, found
from neubay.runs.files import atomic, read_json
from neubay.runs.locks import LOCK_FILE
from neubay.runs.provenance import provenance
from neubay.runs.tracking import read_json_lines
from neubay.runs.values import is_number

Metric = Literal["posterior", "score"]
Kind = Literal["run", "world", "judge", "shard"]
State = Literal["finished", "paused", "failed", "refused", "stopped", "lost"]
"""How a job ended: done; done up to where it was to pause; cannot be done with these settings;
cannot be done here and now (a full disk, other versions); stopped by a signal; its worker died as
often as it is tried."""


@dataclass(frozen=True)
class Job:
    """One thing to do, in plain values."""

    kind: Kind
    directory: str
    """The run directory, or the directory of the world or of the shard."""
    cache: str
    """Where worlds are kept and found."""
    data: dict[str, Any]
    """The dataset (`data.Source`)."""
    config: dict[str, Any]
    """All settings of a run; of a world those of its runs, seed included."""
    home: str = ""
    """The directory of the sweep."""
    about: dict[str, Any] = field(default_factory=dict)
    """For run.json."""
    select: dict[str, Any] | None = None
    """How policies are judged at the end; none: they are not."""
    judge: dict[str, Any] | None = None
    """The settings of the world whose judge judges; none: the run's own."""
    metric: Metric | None = None
    until: int | None = None
    """Pause at the first evaluation at this gradient step or later; of a shard: the epoch."""
    shard: tuple[int, int, int] | None = None
    """Which members of the pool, and how many of them take a step side by side."""
    worlds: tuple[str, ...] = ()
    """Directories of the worlds that a run needs."""
    world: str | None = None
    """A world directory that the user gave."""
    tensorboard: bool = False
    wandb: str | None = None
    checkpoint_seconds: float = 30.0
    versions: dict[str, str] = field(default_factory=dict)
    """Of what decides the numbers, where the sweep was begun."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> "Job":
        values = json.loads(text)
        shard = values["shard"] and tuple(values["shard"])
        return Job(**values | {"worlds": tuple(values["worlds"]), "shard": shard})

    @property
    def name(self) -> str:
        return Path(self.directory).name

    def at(self, directory: Path, cache: Path) -> "Job":
        """The same job in another place."""
        there = [str(cache / "worlds" / Path(each).name) for each in self.worlds]
        return replace(self, directory=str(directory), cache=str(cache), worlds=tuple(there))


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    state: State
    value: float | None = None
    """The metric, where it was asked for."""
    problem: str = ""
    """What went wrong, for the user."""
    seconds: float = 0.0
    epochs: list[Any] | None = None
    """Of a shard: scores and improvements of its members, epoch by epoch."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> "Outcome":
        return Outcome(**json.loads(text))


VERSIONS = ("neubay", "jax", "jaxlib", "equinox", "optax", "numpy", "mujoco", "python")
"""What must be the same wherever the runs of a sweep are, or they could not be compared."""


def versions() -> dict[str, str]:
    """Of what decides the numbers, here."""
    return {name: version for name, version in provenance().items() if name in VERSIONS}


@runtime_checkable
class Engine(Protocol):
    """Does jobs on some workers. It takes jobs as long as it has room, and decides no order."""

    @property
    def room(self) -> int:
        """How many more jobs can be begun now."""
        ...

    @property
    def workers(self) -> int:
        """How many jobs are done at once."""
        ...

    def submit(self, job: Job) -> int:
        """Begin a job; its number."""
        ...

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        """The jobs that ended, within so many seconds."""
        ...

    def stop(self) -> None:
        """Let all workers save what they do, and end them."""
        ...


# --- The value of a run --------------------------------------------------------------------------


def value_of(directory: Path, metric: Metric) -> float | None:
    """What a finished run is worth: its score (its return where no score is known), or the judge's
    estimate of the best policy of its own training: the clone that it is compared with is left out,
    and has no step."""
    if metric == "score":
        summary = read_json(directory / rundir.SUMMARY_FILE)
        return _number(summary.get("score"), summary.get("return_mean"))
    selected = read_json(directory / rundir.SELECTION / rundir.SELECTION_FILE)
    candidates = selected.get("candidates")
    if not isinstance(candidates, list) or not all(isinstance(each, dict) for each in candidates):
        raise RunError(f"{directory}: its selection is damaged")
    own = [each for each in candidates if each.get("step") is not None] or candidates
    estimates = (_number(each.get("estimate")) for each in own)
    return max((value for value in estimates if value is not None), default=None)


def score_at(directory: Path, step: int) -> float | None:
    """The score, or the return, of the first evaluation at a step or later."""
    for row in read_json_lines(directory / rundir.METRICS_FILE):
        if row.get("kind") == "evaluation" and row["step"] >= step:
            return _number(row.get("score"), row.get("return_mean"))
    return None


def policy_at(directory: Path, step: int) -> Path | None:
    """The policy that was kept at that evaluation."""
    kept = sorted((directory / rundir.POLICIES).glob("[0-9]*.npz"))
    return next((path for path in kept if int(path.stem) >= step), None)


def rungs(config: TrainConfig, facts: Facts, evaluations: Iterable[int]) -> list[int]:
    """Gradient steps of evaluations by their number, 1 for the first."""
    steps = known(settle(config, facts).agent.steps)
    every = max(steps // config.evaluation.evaluations, 1)
    return [number * every for number in evaluations]


def _number(*values: Any) -> float | None:
    for value in values:
        if is_number(value) and math.isfinite(value):
            return float(value)
    return None


# --- Files that travel ---------------------------------------------------------------------------


def position(kind: Kind, directory: Path) -> int:
    """How far a run or a shard has come that is resumed there; -1 where there is none."""
    if kind == "run" and rundir.is_run(directory):
        return rundir.look(directory).step
    if kind == "shard" and (saved := found(directory / CHECKPOINTS)):
        return int(saved[-1].name.replace("-", ""))
    return -1


def brought_home(files: Mapping[str, np.ndarray], worlds: Iterable[str]) -> dict[str, np.ndarray]:
    """The files of a run that was on a node, naming its worlds where they are here."""
    here, brought = {Path(where).name: where for where in worlds}, dict(files)
    for name in (rundir.WORLD_REFERENCE, f"{rundir.SELECTION}/{rundir.JUDGE_REFERENCE}"):
        if name in brought:
            reference = json.loads(brought[name].tobytes())
            there = Path(str(reference.get("directory"))).name
            reference["directory"] = here.get(there, reference.get("directory"))
            brought[name] = np.frombuffer(json.dumps(reference, indent=2).encode(), np.uint8)
    return brought


def packed(directory: Path) -> dict[str, np.ndarray]:
    """Every file below a directory but its lock, as arrays of bytes."""
    files = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not hidden and name.name != LOCK_FILE:
            files[name.as_posix()] = np.frombuffer(path.read_bytes(), np.uint8)
    return files


def unpack(files: Mapping[str, np.ndarray], directory: Path) -> None:
    """Make a directory of what `packed` gave, in the place of what is there."""
    with atomic(directory) as draft:
        draft.mkdir()
        for name, content in files.items():
            path = draft / name
            if not path.resolve().is_relative_to(draft.resolve()):
                raise RunError(f"{name}: not the name of a file in {directory}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.tobytes())
