"""Runs as reports see them: what was asked, what came out, and the curves between.

A run is read from its directory, finished or not, or from a condensed file: few numbers of finished
runs, small enough to be kept beside a text.
"""

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from neubay.config import later_defaults
from neubay.errors import DAMAGE, NeubayError, RunError, refusal_reported
from neubay.report.parts.numbers import rounded
from neubay.report.runs.verdicts import Decision, decision_of, read_decision
from neubay.runs import rundir, tracking
from neubay.runs.files import read_json
from neubay.runs.values import finite, flat, is_number

POINTS = 20_000
"""Rows of a metrics file that are read at most: a curve shows no more."""

UNCERTAINTY_FILE = "data_uncertainty.npy"
"""In the directory of a world: U of each transition of its data."""

WORLD_FILE = "world.json"
"""In the same place: what is known of the world."""

LONGEST = 1e9
"""Steps of an episode: more are none."""

SURVIVAL = ("steps", "data", "recorded", "imagined")
"""Shares of episodes that still run after so many steps: in the data, as the world's heads say of
the data, and as they say of steps that their members imagine."""

Curves = Mapping[str, Float[np.ndarray, " _"]]
Settings = dict[str, Any]
Status = Literal["finished", "running", "starting", "fitting the world", "stopped"]


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    directory: Path
    """Where it is; for a condensed run, the file and its name in it."""
    about: dict[str, Any]
    """run.json."""
    summary: dict[str, Any] | None
    """summary.json; none while the run is not finished."""
    train: Curves
    """Columns of the rows of kind "train", with "step" among them."""
    evaluations: Curves
    at_work: bool = False
    """A process works in the directory."""
    world: Path | None = None
    """The directory of the world, as the run names it; none before there is one."""
    uncertainty: Float[np.ndarray, " transitions"] | None = None
    """U of the world's own data, sorted; none where the world is not found."""
    decision: Decision | None = None
    """What selection said of its policies; none where nothing was selected."""
    termination: dict[str, Any] | None = None
    """How well the world learned what ends an episode; none where it did not, or is not found."""
    changed: tuple[str, ...] = ()
    """The settings that differ from the run's preset, such as "agent.kappa 0.5", where known."""

    @property
    def name(self) -> str:
        return self.directory.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.about["config"]
        return config

    @property
    def dataset(self) -> str:
        return str(self.about["dataset"]["name"])

    @property
    def hash(self) -> str | None:
        """Of the data; not known of runs that version 0.1 condensed."""
        return _text(self.about["dataset"].get("hash"))

    @property
    def variant(self) -> str:
        return str(self.about.get("variant", "neubay"))

    @property
    def environment(self) -> str | None:
        """Where it was evaluated; none where there is no environment."""
        return _text((self.summary or self.about)["environment"])

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
        """The standard deviation over the episodes of the last evaluation."""
        return self.last("score_std" if self.scored else "return_std")

    @property
    def data_result(self) -> float | None:
        """The same of the data itself."""
        if self.summary is None:
            value = self.about["dataset"].get(self.measure)
        else:
            value = self.summary[f"data_{self.measure}"]
        return None if value is None else float(value)

    @property
    def clone_result(self) -> float | None:
        """The same of the clone that the run was compared with."""
        return self._measured(None if self.decision is None else self.decision.clone)

    @property
    def best_clone_result(self) -> float | None:
        """The same of the clone of the best episodes."""
        return self._measured(None if self.decision is None else self.decision.best_clone)

    @property
    def followed(self) -> float | None:
        """What one gets who does as the verdict says: the chosen policy's or clone's result, or the
        data's own where it is to be kept."""
        if self.decision is None:
            return None
        kept = self.decision.verdict == "keep"
        return self.data_result if kept else self._measured(self.decision.best)

    def _measured(self, candidate: Mapping[str, Any] | None) -> float | None:
        value = None if candidate is None else candidate.get(self.measure)
        return float(value) if is_number(value) and math.isfinite(value) else None

    @cached_property
    def settings(self) -> Settings:
        """All settings but the seed, as 'agent.kappa': 0.5; those that came later, too, unless its
        changes are all that is known."""
        written = {name: value for name, value in flat(self.config).items() if name != "seed"}
        return later_defaults() | written if "agent.gamma" in written else written

    def last(self, name: str) -> float | None:
        """The newest finite value of a column of the evaluations."""
        return newest(self.evaluations, name)


def newest(curves: Curves, name: str) -> float | None:
    """The newest finite value of a column; none where there is none."""
    values = finite_values(curves, name)
    return float(values[-1]) if len(values) else None


def finite_values(curves: Curves, name: str) -> Float[np.ndarray, " _"]:
    """The finite values of a column; none at all where there is no such column."""
    values = curves.get(name, np.empty(0))
    return values[np.isfinite(values)]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


# --- Run directories -----------------------------------------------------------------------------


def read(directory: Path) -> RunRecord:
    """Read the directory of a training run, finished or not."""
    seen = rundir.opened(directory)
    _check_kind(directory, seen.about)
    metrics = directory / rundir.METRICS_FILE
    try:
        world = _world(directory)
        record = RunRecord(
            directory,
            seen.about,
            seen.summary or None,
            _columns(metrics, "train", POINTS),
            _columns(metrics, "evaluation", None),
            seen.state == "running",
            world,
            None if world is None else _uncertainty(world),
            read_decision(directory / rundir.SELECTION),
            None if world is None else _termination(world),
        )
        _check(record)
    except DAMAGE as error:
        raise RunError(
            f"{directory}: its files are damaged, or of another version "
            f"({type(error).__name__}: {error})"
        ) from None
    return record


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


_NUMBERS = (
    *("seed", "steps", "return_mean", "return_std", "episodes", "score", "discounted_mean"),
    *("data_return_mean", "data_score", "q_data"),
)


def _check_kinds(about: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Words are words and numbers are numbers, where they are given."""
    facts, nested = about["dataset"], ("horizon", "posterior", "seconds")
    words = [{name: about.get(name) for name in ("task", "environment", "variant", "preset")}]
    words += [{name: facts.get(name) for name in ("name", "source", "hash", "published")}]
    numbers = [
        {name: result.get(name) for name in _NUMBERS},
        *(result.get(n) or {} for n in nested),
    ]
    counts = ("episodes", "transitions", "return_mean", "score")
    numbers += [{name: facts.get(name) for name in counts}]
    for name, value in (item for part in words for item in part.items()):
        if not isinstance(value, str if name == "name" else str | None):
            raise TypeError(f"'{name}' is {str(value)[:40]!r}, not a word")
    for name, value in (item for part in numbers for item in part.items()):
        if value is not None and not (is_number(value) and math.isfinite(value)):
            raise TypeError(f"'{name}' is {str(value)[:40]!r}, not a number")


def _check_result(result: Mapping[str, Any]) -> None:
    """All that a table needs of a finished run is there."""
    _ = [result[name] for name in ("score", "q_data", "discounted_mean", "data_return_mean")]
    needed = [result["seconds"]["total"], result["seconds"]["world"]]
    if result["return_mean"] is not None:
        needed.append(result["return_std"])
    if horizon := result["horizon"]:
        needed += [horizon["p50"], horizon["max"]]
    if (posterior := result["posterior"]) and result["environment"] is None:
        needed += [posterior["return_mean"], posterior["return_std"], result["data_return_mean"]]
    _ = [float(value) for value in needed]


def _check(record: RunRecord) -> None:
    """Look at everything that a report needs, so that a gap is found here and not in a figure."""
    _check_kinds(record.about, record.summary or {})
    _ = record.about["dataset"]["episodes"] + record.about["dataset"]["transitions"]
    if record.summary is not None:
        _check_result(record.summary)
    _ = (record.dataset, record.seed, record.steps, record.environment, record.data_result)
    _ = (record.settings, record.about["dataset"]["hash"], record.status)
    for stage in ("world", "rollout", "agent", "evaluation"):
        record.config[stage].keys()


def _columns(path: Path, kind: str, points: int | None) -> Curves:
    """Columns by rising step: what a resumed run did twice counts as it was done last."""
    if not path.is_file():
        return {"step": np.empty(0)}
    with refusal_reported(RunError, f"{path}: cannot be read"):
        columns = tracking.read_metrics(path, kind, points)
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


def _termination(world: Path) -> dict[str, Any] | None:
    """What the world says of how it learned ends; nothing where that is not as it should be."""
    try:
        about: dict[str, Any] = read_json(world / WORLD_FILE)["termination"]
        shares = [about[name] for name in ("false_alarms", "rate", "rate_imagined")]
        may_lack = [about[name] for name in ("precision", "recall", "false_alarms_apart")]
        shares += [share for share in may_lack if share is not None]
        steps, *curves = (about["survival"][name] for name in SURVIVAL)
        sound = all(map(is_number, chain([about["ends"]], steps, shares, *curves)))
        sound &= all(0 <= share <= 1 for share in chain(shares, *curves))
        sound &= len(steps) > 0 and {len(steps)} == {len(curve) for curve in curves}
        sound &= all(1 <= step <= LONGEST for step in steps)
    except (RunError, *DAMAGE):
        return None
    return about if sound else None


# --- Condensed files -----------------------------------------------------------------------------

_RESULT = (
    *("task", "environment", "seed", "steps", "return_mean", "return_std", "episodes", "score"),
    *("data_return_mean", "data_score", "discounted_mean", "q_data", "horizon", "posterior"),
    "seconds",
)
_VERDICT = ("verdict", "chosen", "estimate", "lower", "upper")  # none before version 0.3
_EVALUATION = (
    *("return_mean", "return_std", "score", "score_std", "discounted_mean", "episodes", "q_start"),
)
_TRAIN = (
    *("q_data", "q_imagined", "entropy", "ended_uncertain"),
    *("horizon_p25", "horizon_p50", "horizon_p75", "horizon_max"),
)


def condense(run: RunRecord) -> dict[str, Any]:
    """The result of a finished run, its settings, and its curves at the evaluations."""
    if run.summary is None:
        raise RunError(f"{run.directory}: not a finished run")
    facts = run.about["dataset"]
    return {
        "run": run.name,
        "variant": run.variant,
        "preset": run.about.get("preset"),
        "changed": list(run.changed),
        "zeta": run.settings.get("rollout.zeta"),
        "dataset": run.dataset,
        **{name: _rounded(run.summary.get(name)) for name in (*_RESULT, *_VERDICT)},
        "data": {
            "hash": facts.get("hash"),
            "source": _portable(facts.get("source")),
            "published": facts.get("published"),
        },
        "config": run.config,
        "curve": list(_curve(run)),
        **({} if run.decision is None else {"selection": _rounded(run.decision.condensed)}),
    }


def _portable(source: str | None) -> str | None:
    """A data's source without the folders of one machine."""
    if source is None or not Path(source).is_absolute():
        return source
    return Path(source).name


def _curve(run: RunRecord) -> Iterator[dict[str, Any]]:
    """A point per evaluation; what training reports is averaged since the one before."""
    ends = np.searchsorted(run.train["step"], run.evaluations["step"], side="right")
    for number, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        point = {"step": int(run.evaluations["step"][number])}
        for name in _EVALUATION:
            if name in run.evaluations:
                point[name] = _rounded(float(run.evaluations[name][number]))
        for name in _TRAIN:
            values = run.train.get(name, np.empty(0))[first:last]
            values = values[np.isfinite(values)]
            if len(values):
                point[name] = _rounded(float(values.mean()))
        yield point


def _rounded(value: Any) -> Any:
    """Four digits: more would say what is not known."""
    return finite(rounded(value, 4))


def read_condensed(path: Path) -> list[RunRecord]:
    """The runs of a file that 'neubay analyze runs --out' wrote, of version 0.1 too."""
    entries = read_json(path).get("runs")
    if not isinstance(entries, list) or not entries:
        raise RunError(f"{path}: holds no runs; name a file of 'neubay analyze runs --out'")
    try:
        return [_expanded(path, entry) for entry in entries]
    except DAMAGE as error:
        raise RunError(f"{path}: is damaged ({type(error).__name__}: {error})") from None


def _expanded(path: Path, entry: dict[str, Any]) -> RunRecord:
    points = [{"step": point["step"], **point} for point in entry["curve"]]

    def columns(names: tuple[str, ...]) -> Curves:
        known = [name for name in names if any(name in point for point in points)]
        return {
            name: np.array([point.get(name) for point in points], np.float64)
            for name in ("step", *known)
        }

    record = RunRecord(
        path / entry["run"],
        {
            "config": entry.get("config") or _config_of_changes(entry),
            "dataset": {"name": entry["dataset"], **entry.get("data", {})},
            **{name: entry[name] for name in ("task", "environment", "variant", "preset")},
        },
        {name: entry[name] for name in _RESULT} | {name: entry.get(name) for name in _VERDICT},
        columns(_TRAIN),
        columns(_EVALUATION),
        decision=decision_of(entry["selection"], path) if "selection" in entry else None,
        changed=tuple(entry["changed"]),
    )
    _ = (record.seed, record.steps, record.data_result, record.settings)
    _check_kinds(record.about, record.summary or {})
    _check_result(record.summary or {})
    return record


def _config_of_changes(entry: dict[str, Any]) -> dict[str, Any]:
    """What version 0.1 kept of the settings: those that differ from the preset, and a few more."""
    known = {name: entry[name] for name in ("seed", "variant")}
    config: dict[str, Any] = {**known, "agent": {}, "rollout": {}}
    for change in entry["changed"]:
        name, _, value = change.partition(" ")
        stage, _, name = name.partition(".")
        try:
            config.setdefault(stage, {})[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # a word
            config.setdefault(stage, {})[name] = value
    config["agent"]["steps"], config["rollout"]["zeta"] = entry["steps"], entry["zeta"]
    return config


# --- Many ----------------------------------------------------------------------------------------


def read_all(
    places: list[Path],
    left_out: list[str] | None = None,
    preset_of: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> list[RunRecord]:
    """Read run directories, folders of them and condensed files, in the order given. A directory
    that is named twice is read once.

    Args:
        left_out: gets what is wrong with each run that cannot be read, so that one does not stop
            the others. Where it is not given, or no run remains, that is an error.
        preset_of: gives the configuration of the preset of a run with this run.json.
    """
    if not places:
        raise NeubayError(
            "name run directories, such as runs/pendulum-neubay-seed0, or a table of the paper: "
            "--paper locomotion"
        )
    found: dict[Path | int, RunRecord] = {}
    for place in (each for given in places for each in _training_runs(given)):
        try:
            if place.is_file():
                found |= dict(enumerate(read_condensed(place), start=len(found)))
            elif (directory := place.resolve()) not in found:
                run = read(place)
                changed = changes(run.settings, preset_of(run.about)) if preset_of else ()
                found[directory] = replace(run, changed=changed)
        except RunError as error:
            if left_out is None or not (place.is_file() or rundir.is_run(place)):
                raise
            left_out.append(str(error))
    if not found:
        raise RunError("\n".join(["no run can be read:", *(left_out or [])]))
    return list(found.values()) if left_out is None else _each_once(found.values(), left_out)


def _each_once(runs: Iterable[RunRecord], left_out: list[str]) -> list[RunRecord]:
    """Of runs that are the same, such as a folder and its copy, the one that is furthest: a seed
    counts once."""
    same: dict[tuple[Any, ...], list[RunRecord]] = {}
    for run in runs:
        settings = tuple(sorted((name, repr(value)) for name, value in run.settings.items()))
        key = (run.dataset, run.hash, run.environment, run.variant, run.seed, settings)
        same.setdefault(key, []).append(run)
    chosen = []
    for copies in same.values():
        furthest = max(copies, key=lambda run: (run.summary is not None, run.step))
        chosen.append(furthest)
        left_out += [
            f"{run.directory}: the same dataset, settings and seed ({run.seed}) as "
            f"{furthest.directory}; a seed counts once"
            for run in copies
            if run is not furthest
        ]
    return chosen


def _training_runs(place: Path) -> list[Path]:
    """A run directory or file itself, or the training runs of a folder; what is none of these is
    left to be refused."""
    if rundir.is_run(place) or not place.is_dir():
        return [place]
    found = [run for run in rundir.find(place) if run.about.get("kind", "train") == "train"]
    return [run.directory for run in found] or [place]


def changes(settings: Settings, preset: dict[str, Any]) -> tuple[str, ...]:
    """The settings that differ from those of a preset, in words."""
    usual = flat(preset)
    return tuple(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
        if value != usual.get(name, value)
    )
