"""The live display of a training run: a bar, and the few numbers that tell how it is going."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from neubay.commands.text import Console, escape, told
from neubay.config import WorldConfig
from neubay.errors import damage_reported
from neubay.runs.files import read_json
from neubay.runs.progress import (
    agent_lines,
    headline,
    reached,
    stage_lines,
    world_lines,
    world_text,
)
from neubay.runs.rundir import KEPT, SELECTION_FILE, VERDICTS
from neubay.runs.signals import Stopped
from neubay.runs.tracking import Row, Tracker


class Display:
    """Shows the newest rows; a tracker like any other, so that it cannot change a number."""

    def __init__(self, steps: int, data_return: str) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.bar = self.progress.add_task("agent", total=steps)
        self.steps, self.data = steps, data_return
        self.train: Row = {}
        self.evaluation: Row = {}

    def __call__(self, row: Row) -> None:
        if row["kind"] == "train":
            self.train = row
            self.progress.update(self.bar, completed=row["step"])
        elif row["kind"] == "evaluation":
            self.evaluation = row

    def render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        trained, evaluated = self.train, self.evaluation  # another thread draws them
        if evaluated:
            table.add_row(
                "return",
                f"{reached(evaluated).removeprefix('return ')}   "
                f"(step {evaluated['step']:,}; the data: {self.data})",
            )
        if "q_data" in trained:
            realised = (
                f"   discounted return {evaluated['discounted_mean']:.1f}" if evaluated else ""
            )
            table.add_row("Q on data", f"{trained['q_data']:.1f}{realised}")
        if "squared_error" in trained:
            table.add_row("cloning", headline(trained))
        if "horizon_p50" in trained:
            table.add_row(
                "horizon",
                f"median {trained['horizon_p50']:.0f}, quartiles {trained['horizon_p25']:.0f} to "
                f"{trained['horizon_p75']:.0f}, longest {trained['horizon_max']:.0f}",
            )
        return Group(self.progress, table)


def stages(console: Console, display: Display) -> Callable[[str, float], None]:
    """Shows how far a stage beside the training is: a bar of its own, elsewhere lines."""
    if not console.is_terminal:
        return stage_lines(told(console))
    bars: dict[str, Any] = {}

    def show(stage: str, share: float) -> None:
        if stage not in bars:
            bars[stage] = display.progress.add_task(stage, total=100)
        display.progress.update(bars[stage], completed=round(100 * share))

    return show


@contextlib.contextmanager
def stage_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    """The same for a command that is one stage."""
    display = Display(1, "")
    display.progress.remove_task(display.bar)
    with live_display(console, display):
        yield stages(console, display)


@contextlib.contextmanager
def live_display(console: Console, display: Display) -> Iterator[Tracker]:
    """Run `display` live on a terminal; elsewhere print a line now and then."""
    if console.is_terminal:
        with Live(get_renderable=display.render, console=console, refresh_per_second=4):
            yield display
    else:
        yield agent_lines(told(console), display.steps)


def show_decision(console: Console, written: dict[str, Any], folder: Path | None) -> None:
    """What a selection says: the candidates, the verdict and why."""
    table = Table("policy", "estimate", "5 % to 95 %", "cut", "measured", box=None)
    for each in written["candidates"]:
        measured = each.get("score", each.get("return_mean"))
        table.add_row(
            escape(each["name"]),
            f"{each['estimate']:,.1f}",
            f"{each['lower']:,.1f} to {each['upper']:,.1f}",
            f"{each['cut_share']:.0%}",
            "" if measured is None else f"{measured:,.1f}",
        )
    console.print(table)
    word = written["verdict"]
    colour = {"deploy": "green", "copy": "cyan"}.get(word, "yellow")
    who = (KEPT if word == "keep" else "({})").format(escape(written["chosen"]))
    console.print(f"[bold {colour}]{word}[/] {who}: {VERDICTS[word]}", soft_wrap=True)
    for reason in written["reasons"]:
        console.print(f"  {reason}", markup=False, soft_wrap=True)
    if folder is not None:
        console.print(f"  {folder}/: selection.json, policy.npz", markup=False, soft_wrap=True)


def show_selection(console: Console, folder: Path) -> None:
    """The same of a selection that was kept, where there is one."""
    path = folder / SELECTION_FILE
    if path.exists():
        with damage_reported(path):
            show_decision(console, read_json(path), folder)


@contextlib.contextmanager
def stopped(console: Console, command: str, *, keeps: bool = True) -> Iterator[None]:
    """Say how to resume where the user or the system stops a training, or how to begin again what
    keeps nothing."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if not keeps:
            text = f"stopped; nothing of it is saved without --out; to begin again: {command}"
            console.print(text, markup=False, soft_wrap=True)
            raise
        whole = isinstance(stop, Stopped)
        kept = "everything up to here is saved" if whole else "stopped after the last checkpoint"
        console.print(f"{kept}; to resume: {command}", markup=False, soft_wrap=True)
        raise


@contextlib.contextmanager
def world_progress(console: Console, config: WorldConfig) -> Iterator[Callable[[Any], None]]:
    """Show how the training of a world goes: epoch, validation score, members still improving."""
    bar = Progress(
        TextColumn("world"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("", total=None)
    line = world_lines(told(console), config.selection)

    def show(progress: Any) -> None:
        if not console.is_terminal:
            line(progress)
            return
        whole = progress.stage == "training"
        bar.update(
            task,
            total=progress.most_epochs if whole else 1,
            completed=progress.epoch + progress.share if whole else progress.share,
            description=world_text(progress, config.selection),
        )

    with bar:
        yield show
