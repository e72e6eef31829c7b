"""`neubay runs`: the runs in a folder, one of them in full, and removing some."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from neubay.commands.text import Console, escape, show_facts
from neubay.errors import RunError
from neubay.report.parts.numbers import number
from neubay.runs import rundir
from neubay.runs.checkpoints import CHECKPOINTS, found
from neubay.runs.files import read_json
from neubay.runs.rundir import Run
from neubay.runs.values import flat, is_number

# Nothing here may import JAX: looking at hundreds of runs takes less time than that.

Directories = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN ...")]
_COLOURS = {"finished": "green", "running": "cyan", "unfinished": "yellow", "damaged": "red"}


def list_runs(folder: tyro.conf.Positional[Path] = Path("runs")) -> None:
    """List the runs in a folder: their state, how far they are, and what they reached.

    Args:
        folder: Where the runs are.
    """
    console, runs = Console(), rundir.find(folder)
    if not runs:
        console.print(f"{folder}: no runs", markup=False)
        return
    columns = ["run", "state", "data", "variant", "seed", "steps", "return", "score"]
    rows = [_row(run) for run in runs]
    verdicts = [escape(str(run.summary.get("verdict") or "")) for run in runs]
    if any(verdicts):  # runs of earlier versions have none
        columns.append("verdict")
        rows = [[*row, verdict] for row, verdict in zip(rows, verdicts, strict=True)]
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _row(run: Run) -> list[str]:
    config, summary = run.about.get("config", {}), run.summary
    agent = config.get("agent", {})
    steps = f"{run.step:,}" if "steps" not in agent else f"{run.step:,} of {agent['steps']:,}"
    if run.state == "finished":
        steps = _whole(summary.get("steps", run.step))
    return [
        escape(run.directory.name),
        f"[{_COLOURS[run.state]}]{run.state}[/]",
        escape(str(run.about.get("dataset", {}).get("name", run.about.get("kind", "")))),
        escape(str(run.about.get("variant", ""))),
        str(config.get("seed", "")),
        steps,
        _return(summary),
        number(score) if is_number(score := summary.get("score")) else "",
    ]


def _return(summary: dict[str, Any]) -> str:
    """As measured; where there is no environment, as the judge estimates it."""
    if is_number(measured := summary.get("return_mean")):
        return number(measured)
    estimate = summary.get("estimate")
    return f"≈{number(estimate)}" if is_number(estimate) else ""


def _whole(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def show(directory: tyro.conf.Positional[Path]) -> None:
    """Show what is known of a run: what was asked, of which data, how far it is, what it reached.

    Args:
        directory: The run directory.
    """
    if not rundir.is_run(directory):
        raise RunError(f"{directory}: not a run directory (there is no {rundir.RUN_FILE})")
    show_facts(Console(), _lines(rundir.look(directory)))


def _lines(run: Run) -> dict[str, str]:
    about, summary = run.about, run.summary
    data, directory = about.get("dataset", {}), run.directory
    lines = {
        "run": f"{directory} (layout {about.get('layout')}, {rundir.size(directory) / 1e6:.1f} MB)",
        "state": " ".join(
            filter(None, [run.state, run.problem, run.holder and f"by {run.holder}"])
        ),
        "command": about.get("command", ""),
    }
    if data:
        lines["data"] = (
            f"{data.get('name')}, {_whole(data.get('episodes'))} episodes, "
            f"{_whole(data.get('transitions'))} transitions, "
            f"hash {data.get('hash')}, from {data.get('source')}"
        )
        lines["task"] = f"{about.get('task')}, scored in {about.get('environment') or 'nothing'}"
    lines["settings"] = ", ".join(f"{k} {v}" for k, v in flat(about.get("config", {})).items())
    lines["versions"] = ", ".join(f"{k} {v}" for k, v in about.get("provenance", {}).items())
    world = directory / rundir.WORLD_REFERENCE
    if world.exists():
        reference = read_json(world)
        lines["world"] = (
            f"{reference.get('hash')}, in {reference.get('directory') or 'a folder of its own'}"
        )
    kept = [path.name for path in found(directory / CHECKPOINTS)]
    best = [path.name for path in (directory / CHECKPOINTS).glob("best-*")]
    if kept or best:
        lines["checkpoints"] = ", ".join(kept + best)
    plain = {k: v for k, v in flat(summary).items() if not isinstance(v, list)}
    if plain:
        lines["result"] = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in plain.items()
        )
    elif run.state == "unfinished":
        lines["to resume"] = about.get("command", "give the command that began it again")
    return {name: text for name, text in lines.items() if text}


def remove(directories: Directories, *, yes: tyro.conf.FlagCreatePairsOff[bool] = False) -> int:
    """Remove runs, after asking.

    Args:
        directories: The run directories.
        yes: Do not ask.
    """
    console = Console()
    if not directories:
        raise RunError("nothing to remove: name a run directory or more")
    for directory in directories:  # all of them are checked before the first is removed
        if directory.is_symlink() or not rundir.is_run(directory):
            raise RunError(f"{directory}: not a run directory; nothing was removed")
    for directory in directories:
        run = rundir.look(directory)
        what = f"{directory} ({run.state}, {rundir.size(directory) / 1e6:.1f} MB)"
        if not yes and not _agreed(console, what):
            console.print("kept", markup=False)
            continue
        rundir.remove(directory)
        console.print(f"removed {directory}", markup=False)
    return 0


def _agreed(console: Console, what: str) -> bool:
    """Ask; no answer is a no."""
    try:
        return console.input(f"remove {what}? [y/N] ", markup=False).strip().lower() in ("y", "yes")
    except EOFError:
        return False
