"""What is judged: the policies that runs have kept, and those that a user brings."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from neubay.errors import NeubayError, RunError
from neubay.policy import Policy, load_policy
from neubay.runs import rundir
from neubay.runs.files import file_hash, read_json, read_note
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
    """Names that tell every candidate from the others: of several clones of a kind, each says of
    which run it is, and what is still called alike gets a number."""
    alike = Counter(each.name for each in candidates if each.name in _CLONES.values())
    candidates = [
        replace(each, name=f"{each.name} of {each.run}") if alike[each.name] > 1 else each
        for each in candidates
    ]
    names: dict[str, int] = {}
    apart = []
    for candidate in candidates:
        number = names[candidate.name] = names.get(candidate.name, 0) + 1
        name = candidate.name if number == 1 else f"{candidate.name} {number}"
        apart.append(replace(candidate, name=name))
    return apart


def brought(name: str, source: Any) -> Candidate:
    """A candidate of a user's own: a policy, the path of one's file, or something to call."""
    if not isinstance(name, str) or not name.strip():
        raise NeubayError(f"a candidate is named {name!r}: give it a name")
    if isinstance(source, str | Path):
        path = Path(source)
        path = path / rundir.POLICY_FILE if path.is_dir() else path
        with naming(name):
            load_policy(path)  # what is wrong with it is said before anything is judged
        return Candidate(name, path)
    if not (isinstance(source, Policy) or callable(source) or hasattr(source, "predict")):
        raise NeubayError(
            f"candidate '{name}': got {type(source).__name__}; expected a policy, the path of "
            "one's file, a function of observations, or an object with a method 'predict'"
        )
    return Candidate(name, source)


@contextlib.contextmanager
def naming(candidate: str) -> Iterator[None]:
    """What is wrong inside is said of a candidate."""
    try:
        yield
    except NeubayError as error:
        raise NeubayError(f"candidate '{candidate}': {error}") from error.__cause__


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
                    f"{known[1]}), not {ours} ({known[0]}){_differing(run, first)}; only policies "
                    "of the same data and task can be compared"
                )


def _differing(run: Run, other: Run) -> str:
    """What is known of a difference between the data of two runs: it may be the same file, read
    with another T or other bounds."""
    horizons = [_at(each.about, ("dataset", "facts", "horizon")) for each in (run, other)]
    actions = [_actions(each) for each in (run, other)]
    differing = ""
    if horizons[0] != horizons[1]:
        differing += "; its T is {} and not {}".format(*horizons)
    if None not in actions and actions[0] != actions[1]:
        differing += "; its actions are {} and not {}".format(*actions)
    return differing


def _actions(run: Run) -> str | None:
    """Bounds or number of the actions, as the run's policy has them."""
    policy = run.directory / rundir.POLICY_FILE
    if not policy.exists():
        return None
    found = read_note(policy).get("actions")
    if not isinstance(found, dict):
        return None
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _at(about: dict, path: tuple[str, ...]) -> object:
    value: object = about
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
