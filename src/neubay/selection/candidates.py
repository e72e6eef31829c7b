"""What is judged: the policies that runs have kept, and those that a user brings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from neubay.errors import RunError
from neubay.policy import Policy, load_policy
from neubay.runs import rundir
from neubay.runs.files import file_hash, read_json
from neubay.runs.rundir import Run
from neubay.runs.tracking import read_json_lines
from neubay.runs.values import is_number
from neubay.selection.protocol import Predict

CloneOf = Literal["data", "best"] | None
_CLONES: dict[CloneOf, str] = {"data": rundir.CLONE, "best": rundir.BEST_CLONE}
"""What clones are called, in the order in which they are judged."""


@dataclass(frozen=True)
class Candidate:
    """A policy that may be chosen."""

    name: str
    source: Path | Policy | Predict
    """A file, a policy, or a user's function."""
    run: str | None = None
    step: int | None = None
    told: dict[str, float] | None = None
    """What an environment told of it."""
    clone_of: CloneOf = None
    """What it imitates, if it may be copied: all of the data, or its best episodes."""

    @property
    def is_clone(self) -> bool:
        """It imitates the data: others are compared with it."""
        return self.clone_of == "data"

    @property
    def digest(self) -> str | None:
        """Which policy it is, where it is a file."""
        return file_hash(self.source) if isinstance(self.source, Path) else None

    def policy(self) -> Policy | Predict:
        return load_policy(self.source) if isinstance(self.source, Path) else self.source


def of_runs(runs: Sequence[Run]) -> list[Candidate]:
    """The candidates of some runs of the same data: clones first, each policy once."""
    found = [candidate for run in runs for candidate in _of_run(run)]
    seen: set[str | None] = set()
    once = []
    order = [*_CLONES, None]
    for candidate in sorted(found, key=lambda each: order.index(each.clone_of)):
        if candidate.digest not in seen:
            seen.add(candidate.digest)
            once.append(candidate)
    return _named_apart(once)


def _of_run(run: Run) -> Iterable[Candidate]:
    directory, name = run.directory, run.directory.resolve().name
    agent = run.about.get("config", {}).get("agent", {})
    clone_of: CloneOf = None
    if agent.get("algorithm") == "bc":
        clone_of = "data" if agent.get("best_share", 1) == 1 else "best"
    last = agent.get("steps")
    told = _told(directory / rundir.METRICS_FILE)
    folder = directory / rundir.POLICIES
    for kind, label in _CLONES.items():
        clone = folder / f"{label}.npz"
        if clone.exists():
            yield Candidate(label, clone, name, None, _told_of_clone(clone), kind)
    end, kept = directory / rundir.POLICY_FILE, sorted(folder.glob("[0-9]*.npz"))
    if clone_of and end.exists() and kept:  # stopped at its best, before the steps that it might do
        last = int(kept[-1].stem)
    for path in kept:
        step = int(path.stem)
        if step != last or not end.exists():
            yield Candidate(f"{name}@{step}", path, name, step, told.get(step))
    if end.exists():
        label = f"{name}@{last}" if clone_of is None else _CLONES[clone_of]
        yield Candidate(label, end, name, last, told.get(last), clone_of)


def _told_of_clone(path: Path) -> dict[str, float] | None:
    beside = path.with_suffix(".json")
    told = read_json(beside) if beside.exists() else {}
    names = ("score", "return_mean", "held_out_markov", "held_out_memory")
    return {name: told[name] for name in names if is_number(told.get(name))}


def _told(metrics: Path) -> dict[int | None, dict[str, float]]:
    """What the environment told of the policy at each evaluation point: score or return, and what
    the critic expected of the same episodes."""
    if not metrics.exists():
        return {}
    names = ("score", "return_mean", "q_start")
    return {
        row["step"]: {name: row[name] for name in names if is_number(row.get(name))}
        for row in read_json_lines(metrics)
        if row.get("kind") == "evaluation"
    }


def _named_apart(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Names that tell every candidate from the others."""
    names: dict[str, int] = {}
    apart = []
    for candidate in candidates:
        number = names[candidate.name] = names.get(candidate.name, 0) + 1
        name = candidate.name if number == 1 else f"{candidate.name} {number}"
        apart.append(replace(candidate, name=name))
    return apart


def check_same_data(runs: Sequence[Run]) -> None:
    """Refuse runs of different data or tasks by name."""
    first = runs[0]
    for run in runs:
        if run.state == "damaged":
            raise RunError(run.problem)
        for what, path in (("data", ("dataset", "hash")), ("task", ("task",))):
            ours, theirs = (_at(each.about, path) for each in (first, run))
            if ours != theirs:
                known = [_at(each.about, ("dataset", "name")) for each in (first, run)]
                raise RunError(
                    f"{run.directory}: of other {what} than {first.directory}: {theirs} ("
                    f"{known[1]}), not {ours} ({known[0]}); only policies of the same data and "
                    "task can be compared"
                )


def _at(about: dict, path: tuple[str, ...]) -> object:
    value: object = about
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
