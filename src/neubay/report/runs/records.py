"""Run directories as a report sees them: what was asked, what came out, and the curves between.

A run that is still going on has no summary yet; it is shown as far as it has come.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from neubay.errors import NeubayError, RunError
from neubay.runs import rundir, tracking
from neubay.runs.files import read_json
from neubay.runs.values import flat

POINTS = 20_000
"""Rows of a metrics file that are read at most: a curve shows no more."""

UNCERTAINTY_FILE = "data_uncertainty.npy"
"""In the directory of a world: U of each transition of its data."""

Curves = Mapping[str, Float[np.ndarray, " _"]]
Settings = dict[str, Any]
Status = Literal["finished", "running", "starting", "fitting the world", "stopped"]


@dataclass(frozen=True)
class RunRecord:
    """One run directory."""

    directory: Path
    about: dict[str, Any]
    """run.json."""
    summary: dict[str, Any] | None
    """summary.json; none while the run is not finished."""
    at_work: bool
    """A process works in the directory."""
    train: Curves
    """Columns of the rows of kind "train", with "step" among them."""
    evaluations: Curves
    world: Path | None
    """The directory of the world, as the run names it; none before there is one."""
    uncertainty: Float[np.ndarray, " transitions"] | None
    """U of the world's own data, sorted; none where the world is not to be found."""

    @property
    def name(self) -> str:
        return self.directory.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.about["config"]
        return config

    @property
    def dataset(self) -> str:
        name: str = self.about["dataset"]["name"]
        return name

    @property
    def variant(self) -> str:
        return str(self.about.get("variant", "neubay"))

    @property
    def environment(self) -> str | None:
        """Where it was scored; none where there is no environment."""
        if self.summary is not None:
            return _text(self.summary["environment"])
        return _text(self.about["environment"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def steps(self) -> int:
        """How many gradient steps were asked for."""
        return int(self.config["agent"]["steps"])

    @property
    def step(self) -> int:
        """How many have been done."""
        if self.summary is not None:
            return self.steps
        steps = self.train["step"]
        return int(steps[-1]) if len(steps) else 0

    @property
    def status(self) -> Status:
        if self.summary is not None:
            return "finished"
        if not self.at_work:
            return "stopped"
        if self.step:
            return "running"
        fitted = (self.directory / rundir.WORLD_REFERENCE).is_file()
        return "starting" if fitted else "fitting the world"

    @property
    def scored(self) -> bool:
        """Whether results are normalised scores; raw returns otherwise."""
        return self.last("score") is not None

    @property
    def measure(self) -> Literal["score", "return_mean"]:
        return "score" if self.scored else "return_mean"

    @property
    def unit(self) -> str:
        return "normalised score" if self.scored else "return"

    @property
    def result(self) -> float | None:
        """The last evaluation's score, or its return where there is no score."""
        return self.last(self.measure)

    @property
    def result_std(self) -> float | None:
        """The deviation over the episodes of the last evaluation."""
        return self.last("score_std" if self.scored else "return_std")

    @property
    def data_result(self) -> float | None:
        """The same of the data itself."""
        facts = self.about["dataset"]
        if self.summary is not None:
            facts = {
                "score": self.summary["data_score"],
                "return_mean": self.summary["data_return_mean"],
            }
        return _number(facts.get(self.measure))

    @property
    def settings(self) -> Settings:
        """All settings but the seed, as 'agent.kappa': 0.5."""
        return {name: value for name, value in flat(self.config).items() if name != "seed"}

    def last(self, name: str) -> float | None:
        """The newest finite value of a column of the evaluations."""
        return newest(self.evaluations, name)


def newest(curves: Curves, name: str) -> float | None:
    """The newest finite value of a column; none where there is none."""
    values = curves.get(name, np.empty(0))
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None


def read(directory: Path) -> RunRecord:
    """Read the directory of a training run, finished or not."""
    if not rundir.is_run(directory):
        raise RunError(
            f"{directory}: not a run directory (there is no {rundir.RUN_FILE}); "
            "name one that 'neubay train' made"
        )
    seen = rundir.look(directory)
    if seen.state == "damaged":
        raise RunError(seen.problem)
    _check_kind(directory, seen.about)
    metrics = directory / rundir.METRICS_FILE
    try:
        world = _world(directory)
        record = RunRecord(
            directory,
            seen.about,
            seen.summary or None,
            seen.state == "running",
            _columns(metrics, "train", POINTS),
            _columns(metrics, "evaluation", None),
            world,
            None if world is None else _uncertainty(world),
        )
        _check(record)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RunError(
            f"{directory}: its files are damaged, or of another version "
            f"({type(error).__name__}: {error})"
        ) from None
    return record


def read_all(places: list[Path], left_out: list[str] | None = None) -> list[RunRecord]:
    """Read several run directories, and all in folders of them, each once, in the order given.

    Args:
        left_out: gets what is wrong with each run that cannot be read, so that one does not stop
            the others. Where it is not given, or none is left, that is an error.
    """
    if not places:
        raise NeubayError(
            "name run directories, such as runs/pendulum-neubay-seed0, or a table of the paper: "
            "--paper locomotion"
        )
    directories = [directory for place in places for directory in _training_runs(place)]
    once: dict[Path, Path] = {}
    for directory in directories:
        once.setdefault(directory.resolve(), directory)
    found = []
    for directory in once.values():
        try:
            found.append(read(directory))
        except RunError as error:
            if left_out is None or not rundir.is_run(directory):
                raise
            left_out.append(str(error))
    if not found:
        raise RunError("\n".join(["no run can be read:", *(left_out or [])]))
    return found


def _training_runs(place: Path) -> list[Path]:
    """A run directory itself, or the training runs of a folder; what is neither is left to be
    refused."""
    if rundir.is_run(place) or not place.is_dir():
        return [place]
    found = [run for run in rundir.find(place) if run.about.get("kind", "train") == "train"]
    return [run.directory for run in found] or [place]


def _check_kind(directory: Path, about: dict[str, Any]) -> None:
    """Refuse runs of other commands, and of versions to come."""
    layout, kind = about.get("layout"), about.get("kind", "train")
    if kind != "train":
        raise RunError(f"{directory}: a run of 'neubay {kind}'; 'neubay {kind} report' shows those")
    if isinstance(layout, int) and layout > rundir.LAYOUT:
        raise RunError(
            f"{directory}: a run of layout {layout}, this version of neubay reads up to "
            f"{rundir.LAYOUT}; use the version that wrote it"
        )


def _check(record: RunRecord) -> None:
    """Look at everything that a report needs, so that a gap is found here and not in a figure."""
    _ = (record.dataset, record.seed, record.steps, record.environment, record.data_result)
    _ = (record.settings, record.about["dataset"]["hash"], record.status)
    for stage in ("world", "rollout", "agent", "evaluation"):
        record.config[stage].keys()


def _columns(path: Path, kind: str, points: int | None) -> Curves:
    """Columns by rising step: what a resumed run did twice counts as it was done last."""
    if not path.is_file():
        return {"step": np.empty(0)}
    try:
        columns = tracking.read_metrics(path, kind, points)
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from None
    steps = columns["step"]
    if np.all(np.diff(steps) > 0):
        return columns
    _, from_the_end = np.unique(steps[::-1], return_index=True)
    rows = len(steps) - 1 - from_the_end
    return {name: values[rows] for name, values in columns.items()}


def _world(directory: Path) -> Path | None:
    reference = directory / rundir.WORLD_REFERENCE
    where = read_json(reference).get("directory") if reference.is_file() else None
    return None if where is None else Path(where)


def _uncertainty(world: Path) -> Float[np.ndarray, " transitions"] | None:
    """U over the data, if the world is still there."""
    try:
        values = np.load(world / UNCERTAINTY_FILE, allow_pickle=False)
    except (OSError, ValueError):
        return None
    values = np.sort(np.asarray(values, np.float64).ravel())
    return values if len(values) and math.isfinite(values[-1]) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
