"""`neubay report` and `neubay watch`: see what was learned."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from neubay.commands.text import say
from neubay.errors import NeubayError
from neubay.runs import sweepdir

if TYPE_CHECKING:
    from neubay.report.parts.document import Picture
    from neubay.report.parts.tables import Grid
    from neubay.report.runs.page import Report
    from neubay.report.runs.records import RunRecord
    from neubay.report.runs.reel import Reel

# Imports of ours happen inside the commands: `--help` answers at once.

Runs = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN ...")]
Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]

MAZE_EPISODES = 20


def report(
    runs: Runs = (),
    /,
    *,
    paper: Annotated[str | None, tyro.conf.arg(metavar="TABLE", help_behavior_hint="")] = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    film: bool = True,
    task_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
) -> None:
    """One page that shows what was learned, with its figures and tables as files.

    Writes index.html, which needs no other file and no network; figures/ as PNG and PDF; tables/
    as Markdown, CSV and LaTeX. One run is shown in full, several are compared.

    Args:
        runs: Run directories, finished or not, folders of them, a sweep, or JSON files of `neubay
            analyze runs --out`; of several, those that are damaged are left out, with a warning.
        paper: Print the paper's own tables instead: locomotion, neorl, adroit, antmaze, ablations,
            costs or neorl2.
        out: Where to write; by default report for runs, and nowhere for the paper's tables.
        film: Play an evaluation episode of a single finished run, to show it.
        task_file: The task file of that run, where its environment is made by Python.
    """
    from neubay.report.parts import tables
    from neubay.report.runs import page

    if paper is not None:
        if runs:
            raise NeubayError("either runs or --paper TABLE, not both")
        shown = page.paper_tables(paper)
        if out is None:
            say("\n".join(map(tables.markdown, shown.grids)).rstrip("\n"))
            return
    elif len(runs) == 1 and sweepdir.is_sweep(runs[0]):
        shown = _sweep(runs[0])
    else:
        found, left_out = read_runs(runs)
        if len(found) == 1:
            reel, maze = _episode(found[0], task_file) if film else (None, None)
            shown = page.one_run(found[0], reel=reel, maze=maze, left_out=left_out)
        else:
            shown = page.many_runs(found, left_out=left_out)
    write(shown, out or Path("report"), shown.grids)


def write(shown: "Report", folder: Path, grids: "Sequence[Grid]") -> None:
    """Write a page with all that belongs to it, and print some of its tables."""
    from neubay.report.parts import tables

    paths = shown.save(folder)
    for grid in grids:
        say(tables.markdown(grid))
    say(f"{paths[0]} written, and {len(paths) - 1} files beside it", file=sys.stderr)


def _sweep(directory: Path) -> "Report":
    """The page of a sweep, with the runs that can be read."""
    from neubay.errors import damage_reported
    from neubay.report.runs import page

    record, found, left_out = sweepdir.read(directory), list["RunRecord"](), list[str]()
    if any((directory / name).is_dir() for trial in record.trials for name in trial.runs):
        try:
            found, left_out = read_runs([directory])
        except NeubayError as error:  # none can be read: the trials are shown all the same
            left_out = [str(error)]
    with damage_reported(directory / sweepdir.FILE):
        return page.sweep(record, found, left_out=left_out)


def read_runs(places: Sequence[Path]) -> tuple[list["RunRecord"], list[str]]:
    """The runs that can be read; what is wrong with the others is also printed."""
    from neubay.report.runs import records

    left_out: list[str] = []
    found = records.read_all(list(places), left_out, preset_of)
    for problem in left_out:
        say(f"warning: left out: {problem}", file=sys.stderr)
    return found, left_out


def preset_of(about: dict[str, Any]) -> dict[str, Any]:
    """The configuration that a run would have had if no setting had been named; its own where that
    is not known any more."""
    from neubay import config, tasks

    known = {task.name: task for task in tasks.list_tasks()}
    try:
        published = tasks.published_settings(
            known.get(about["task"]), about["dataset"].get("published")
        )
        preset, variant = about.get("preset", "cpu"), about.get("variant", "neubay")
        settings = config.resolve(published, preset, variant)
        if facts := about["dataset"].get("facts"):
            settings = config.settle(settings, config.validated(config.Facts, facts))
        return settings.model_dump()
    except (NeubayError, KeyError):
        own: dict[str, Any] = about["config"]
        return own


def watch(run: Run, /, *, port: int = 8765, host: str = "127.0.0.1", refresh: int = 5) -> None:
    """Serve the page of a run on this machine, drawn anew while the run is going. Ctrl-C ends it.

    Args:
        run: A run directory.
        port: To listen on; 0 for any that is free.
        host: To listen at. Anything but this machine lets others see the run.
        refresh: Seconds after which the page asks for itself again, while the run is going.
    """
    from neubay.report.runs import serve

    if refresh < 1:
        raise NeubayError(f"--refresh {refresh}: must be at least 1 second")
    with serve.server(run, host=host, port=port, refresh=refresh) as listening:
        say(f"{run} at {listening.address} (Ctrl-C ends it)")
        if not listening.local:
            say("anyone who reaches this machine can see it", file=sys.stderr)
        listening.serve_forever()


def _episode(
    run: "RunRecord", task_file: Path | None = None
) -> tuple["Reel | None", "Picture | None"]:
    """An episode of a finished run as a film, and for a maze where episodes went."""
    from neubay import film
    from neubay.report.parts.document import Picture
    from neubay.report.runs import figures, reel
    from neubay.runs.rundir import POLICY_FILE
    from neubay.tasks.files import read_task

    if run.summary is None or not run.directory.is_dir():  # a condensed run has no policy
        return None, None
    policy = run.directory / POLICY_FILE
    task = str(run.about["task"]) if task_file is None else read_task(task_file)
    try:
        walked = film.maze_paths(policy, task, MAZE_EPISODES, run.seed)
        if walked is not None:  # a maze says more from above than from behind its walls
            figure = figures.maze_figure(walked.maze, walked.cell, walked.paths, walked.goals)
            caption = f"{len(walked.paths)} episodes from above; {walked.reached} arrived."
            return None, Picture("maze", figure, caption)
        episode = film.record(policy, task, run.seed)
    except NeubayError as error:
        return reel.Reel(str(error)), None
    text = (
        f"Seed {run.seed} in {episode.environment}: {episode.steps:,} steps, "
        f"return {episode.total:,.1f}."
    )
    return reel.reel(episode.frames, text), None
