"""The directory of a sweep: a run directory for every run of every trial, and sweep.json, which is
written whole after every change.

metric   what is maximised: posterior or score
best     the number of the best finished trial; none before there is one
trials   number, state, settings, value, runs (directories beside the file), and the problem
         of one that failed
asked    what the sweep is of: the same command resumes it, another one is refused
journal  bytes of Optuna's journal that belong to the trials above
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from neubay.errors import RunError, damage_reported, refusal_reported
from neubay.runs.files import atomic_write_json, read_json
from neubay.runs.values import finite, flat, is_number

FILE = "sweep.json"
LAYOUT = 1
TrialState = Literal["waiting", "running", "finished", "pruned", "failed"]
ENDED = ("finished", "pruned", "failed")
GROWS = ("trials",)
"""What may be another number when a sweep is resumed."""


@dataclass
class Trial:
    """One point of the search, with a run for every seed."""

    number: int
    settings: dict[str, Any]
    runs: list[str]
    state: TrialState = "waiting"
    value: float | None = None
    problem: str = ""
    """Why it failed."""
    seconds: float = 0.0
    """Of work, over all of its runs."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


@dataclass
class Record:
    """The file."""

    metric: str
    asked: dict[str, Any]
    trials: list[Trial] = field(default_factory=list)
    journal: int = 0
    problem: str = ""
    """Why the sweep stopped before its end, the last time."""

    @property
    def best(self) -> Trial | None:
        finished = [t for t in self.trials if t.state == "finished" and t.value is not None]
        return max(finished, key=lambda trial: trial.value, default=None)  # type: ignore[arg-type,return-value]

    def save(self, directory: Path) -> None:
        best = self.best
        content = {
            "layout": LAYOUT,
            "kind": "sweep",
            "metric": self.metric,
            "best": None if best is None else best.number,
            "trials": [asdict(trial) for trial in self.trials],
            "asked": self.asked,
            "journal": self.journal,
            "problem": self.problem,
        }
        with refusal_reported(
            RunError,
            f"{directory / FILE}: cannot be written",
            ". Runs are untouched; give the same command to resume once that is mended",
        ):
            atomic_write_json(directory / FILE, finite(content))


def is_sweep(directory: Path) -> bool:
    return (directory / FILE).is_file()


def read(directory: Path) -> Record:
    """A sweep's file, checked."""
    path = directory / FILE
    content = read_json(path)
    if content.get("layout") != LAYOUT:
        raise RunError(
            f"{path}: of layout {content.get('layout')}, this version of neubay reads {LAYOUT}; "
            "use the version that wrote it"
        )
    with damage_reported(path):
        asked, journal = dict(content["asked"]), content["journal"]
        if type(journal) is not int or journal < 0:
            raise ValueError(f"'journal' is {journal}, not a number of bytes")
        searched, seeds = set(asked["search"]), len(asked["seeds"])
        trials = [Trial(**each) for each in content["trials"]]
        for place, trial in enumerate(trials):
            if not _sound(trial, place, searched, seeds):
                raise ValueError(f"trial {place} is not what was written")
        metric, problem = str(content["metric"]), str(content.get("problem", ""))
        return Record(metric, asked, trials, journal, problem)


def _sound(trial: Trial, place: int, searched: set[str], seeds: int) -> bool:
    """A trial is of the kinds that those who resume or show it rely on: a value for every setting
    that is searched, a run for every seed."""
    if not isinstance(trial.settings, dict) or not isinstance(trial.runs, list):
        return False
    names = all(isinstance(run, str) and run == Path(run).name for run in trial.runs)
    return (
        type(trial.number) is int
        and trial.number == place
        and trial.state in get_args(TrialState)
        and set(trial.settings) == searched
        and names
        and len(trial.runs) == seeds
        and (trial.value is None or is_number(trial.value))
        and is_number(trial.seconds)
        and isinstance(trial.problem, str)
    )


def check_same(directory: Path, before: Record, asked: dict[str, Any]) -> None:
    """Refuse to resume another sweep, and say how it differs."""
    old, new = flat(before.asked), flat(asked)
    for name in dict.fromkeys([*old, *new]):
        if name in GROWS or old.get(name) == new.get(name):
            continue
        raise RunError(
            f"{directory}: of another sweep: its {name.removeprefix('config.')} is "
            f"{old.get(name, 'not set')}, asked for is {new.get(name, 'not set')}. Give the same "
            "to resume it, or choose another --out"
        )


def left_over(trials: Sequence[Trial]) -> list[Trial]:
    """Those that are not ended, in order."""
    return [trial for trial in trials if not trial.ended]
