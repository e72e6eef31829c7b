"""The run directory: what it holds, which run it is of, and which process works in it.

    run.json        what was asked: settings as resolved, data, task, versions, command
    lock            held by the process that works in it
    world.json      the world that was used: where it is, and the hash of its weights
    metrics.jsonl   one row per device call of updates, one per evaluation
    checkpoints/    the last checkpoints of the training, and the best agent (`checkpoints.py`)
    policies/       the policy at every evaluation point, and the clones of the data
    policy.npz      the trained policy, of the last step or the mean of the last steps
    selection/      which policy to deploy, if any: selection.json, the chosen policy.npz, what is
                    kept of the data (data.npz), the judge (judge.json), its answers (judged/)
    summary.json    the result; written last: where it is, the run is finished

A run of `neubay bandit` has run.json, lock and summary.json likewise, its world in `world/` and a
run directory per agent. No JAX here: looking at runs is instant.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from neubay.config import later_defaults
from neubay.errors import RunError, reason, refusal_reported
from neubay.runs.checkpoints import CHECKPOINTS, found
from neubay.runs.files import PARTIAL, atomic_write_json, read_json
from neubay.runs.locks import LOCK_FILE, lock_holder, locked
from neubay.runs.values import flat

LAYOUT = 4
"""Version of the run directory. 1 had no checkpoints, 2 had checkpoints of another kind (both are
of neubay 0.1), 3 had agents of another structure (neubay 0.2); their finished runs are read all the
same."""
RUN_FILE = "run.json"
SUMMARY_FILE = "summary.json"
METRICS_FILE = "metrics.jsonl"
POLICY_FILE = "policy.npz"
WORLD_REFERENCE = "world.json"
POLICIES = "policies"
CLONE, BEST_CLONE = "clone", "clone-of-best"
"""The names of the policies that imitate the data, and its best episodes."""
SELECTION = "selection"
SELECTION_FILE = "selection.json"
DATA_FILE = "data.npz"
JUDGE_REFERENCE = "judge.json"
VERDICTS = {
    "deploy": "better than the data and than a clone of it, as far as the judge can tell",
    "copy": "nothing is surely better; a clone of the data is not worse than the data",
    "keep": "nothing is surely better than what acted in the data",
}
"""What the words of a selection mean."""
KEPT = "your controller (judged best: {})"
"""What is kept where the word is keep: of the policies that were judged, none is meant."""
_UNFINISHED: dict[Any, str] = {
    1: "an unfinished run of layout 1, which kept no checkpoints: there is nothing to resume; "
    "choose another --out, or remove it",
    2: "an unfinished run of neubay 0.1 (layout 2), whose checkpoints this version does not read; "
    "finish it with neubay 0.1, or choose another --out",
    3: "an unfinished run of neubay 0.2 (layout 3), whose agent was built otherwise; finish it "
    "with neubay 0.2, or choose another --out",
}
"""Why a run of an earlier layout is not resumed."""
_IDENTITY = ("kind", "task", "dataset.hash", "variant", "config")


@contextlib.contextmanager
def claimed(directory: Path, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Hold a run directory while the block works in it.

    A new one gets `asked` as its run.json; one of the same run is resumed; anything else is refused
    untouched. A finished one may be on a disk that cannot be written. Gives what is in run.json.
    """
    asked = {"layout": LAYOUT} | asked
    _refuse_foreign(directory)
    with (
        contextlib.nullcontext() if is_shown_only(directory) else locked(directory),
        refusal_reported(
            RunError,
            f"{directory}: cannot be written",
            ". What was saved before is untouched; give the same command to resume once that is "
            "mended",
        ),
    ):
        begun = begun_before(directory, asked)
        if begun is None:
            atomic_write_json(directory / RUN_FILE, asked)
            begun = asked
        yield begun


def begun_before(directory: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The run.json of a directory, if it has one; anything but the same run is refused."""
    _refuse_foreign(directory)
    if not is_run(directory):
        return None
    begun = read_json(directory / RUN_FILE)
    _check_layout(directory, begun)
    _check_identity(directory, begun, {"layout": LAYOUT} | asked)
    return begun


def _refuse_foreign(directory: Path) -> None:
    """Refuse a folder with something in it that is not a run."""
    if not os.path.lexists(directory) or is_run(directory):
        return
    with refusal_reported(RunError, f"{directory}: cannot be read"):
        names = [path.name for path in directory.iterdir()]
    # What a kill at the very beginning leaves is not in the way.
    if any(name != LOCK_FILE and not name.endswith(PARTIAL) for name in names):
        raise RunError(
            f"{directory} exists, is not empty and is not a run: nothing in it is overwritten; "
            "choose another --out, or remove it"
        )


def _check_layout(directory: Path, begun: dict[str, Any]) -> None:
    layout = begun.get("layout")
    earlier = isinstance(layout, int) and layout in _UNFINISHED
    if layout == LAYOUT or (earlier and is_finished(directory)):
        return
    unknown = (
        f"a run of layout {layout}, this version of neubay reads 1 to {LAYOUT}; use the version "
        "that wrote it, or choose another --out"
    )
    raise RunError(f"{directory}: {_UNFINISHED[layout] if earlier else unknown}")


def _check_identity(directory: Path, begun: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse to resume another run, and say how it differs. Settings that the version which wrote
    it did not have are not compared."""
    usual = {f"config.{name}": value for name, value in later_defaults().items()}
    written = flat(begun)
    old, new = ({"kind": "train"} | usual | each for each in (written, flat(asked)))
    names = sorted(old.keys() | new.keys(), key=lambda name: (name != "dataset.hash", name))
    for name in names:  # settings may follow from the data
        if not name.startswith(_IDENTITY) or old.get(name) == new.get(name):
            continue
        if begun.get("layout") != LAYOUT and name.startswith("config.") and name not in written:
            continue
        if name == "variant" and not (name in old and name in new):  # a call that did not say
            continue
        what = {
            "dataset.hash": "The data changed under the run, or it is other data: use the same, ",
        }.get(name, "Give the same settings to resume it, ")
        raise RunError(
            f"{directory}: of another run: its {name.removeprefix('config.')} is "
            f"{old.get(name, 'not set')}, asked for is {new.get(name, 'not set')}. "
            f"{what}or choose another --out"
        )


def is_finished(directory: Path) -> bool:
    """The run has its result."""
    return os.path.isfile(directory / SUMMARY_FILE)


def is_shown_only(directory: Path) -> bool:
    """The run is finished where nothing can be written: it needs no lock and no tidying."""
    effective = os.access in os.supports_effective_ids
    writable = os.access(directory, os.W_OK, effective_ids=effective)
    return is_finished(directory) and not writable


# --- Looking at runs -----------------------------------------------------------------------------

State = Literal["finished", "running", "unfinished", "damaged"]


@dataclass(frozen=True)
class Run:
    """A run directory as far as its small files tell."""

    directory: Path
    state: State
    about: dict[str, Any]
    """run.json."""
    summary: dict[str, Any]
    """summary.json, empty while the run is not finished."""
    step: int
    """Gradient steps of the last checkpoint."""
    problem: str = ""
    """What is damaged."""
    holder: str | None = None
    """The process that works in it."""


def look(directory: Path) -> Run:
    """A run directory; what is damaged in it is said and raises nothing."""
    about, summary = dict[str, Any](), dict[str, Any]()
    kept = found(directory / CHECKPOINTS)
    step = int(kept[-1].name.split("-")[0]) if kept else 0
    try:
        about = _sound(directory / RUN_FILE)
        if is_finished(directory):
            summary = read_json(directory / SUMMARY_FILE)
    except RunError as error:
        return Run(directory, "damaged", about, summary, step, str(error))
    if summary:
        return Run(directory, "finished", about, summary, step)
    holder = lock_holder(directory)
    return Run(directory, "running" if holder else "unfinished", about, {}, step, holder=holder)


def opened(directory: Path) -> Run:
    """The run in a directory; an error where there is none, or it is damaged."""
    if not is_run(directory):
        raise RunError(
            f"{directory}: not a run directory (there is no {RUN_FILE}); "
            "name one that 'neubay train' made"
        )
    run = look(directory)
    if run.state == "damaged":
        raise RunError(run.problem)
    return run


def _sound(path: Path) -> dict[str, Any]:
    """A run.json whose parts are of the kinds that those who look at runs rely on."""
    about = read_json(path)
    config = about.get("config", {})
    parts = {"config": config, "dataset": about.get("dataset", {})}
    parts["provenance"] = about.get("provenance", {})
    parts["config.agent"] = config.get("agent", {}) if isinstance(config, dict) else {}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise RunError(f"{path}: '{name}' is no object; the file is damaged")
    if not isinstance(parts["config.agent"].get("steps", 0), int):
        raise RunError(f"{path}: 'config.agent.steps' is no whole number; the file is damaged")
    return about


def find(folder: Path) -> list[Run]:
    """The runs in a folder, or the one that it is; those inside of runs are theirs."""
    if is_run(folder):
        return [look(folder)]
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; runs are in 'runs' unless --out said otherwise")
    return [
        look(Path(entry.path))
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
        if not fnmatch(entry.name, _REMOVED.format("*"))
        and entry.is_dir(follow_symlinks=False)
        and is_run(Path(entry.path))
    ]


def is_run(directory: Path) -> bool:
    """There is a run.json."""
    return os.path.isfile(directory / RUN_FILE)


_REMOVED = ".{}.removed"


def remove(directory: Path) -> None:
    """Delete a run directory that nobody works in: whole, or not at all for those who look at runs.

    What an interrupted removal in the same folder left goes too.
    """
    if directory.is_symlink() or not is_run(directory):
        raise RunError(f"{directory}: not a run directory (there is no {RUN_FILE}); not removed")
    directory = directory.resolve()
    for leftover in directory.parent.glob(_REMOVED.format("*")):
        shutil.rmtree(leftover, ignore_errors=True)
    hidden = directory.with_name(_REMOVED.format(directory.name))
    with locked(directory):
        try:
            directory.rename(hidden)
            shutil.rmtree(hidden)
        except OSError as error:
            where = hidden if hidden.exists() else directory
            raise RunError(f"{where}: cannot be removed: {reason(error)}") from None


def size(directory: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())
