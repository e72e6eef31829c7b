"""The live display of a training run: a bar, and the few numbers that tell how it is going."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group
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

from neubay.commands.text import harmless
from neubay.config import WorldConfig
from neubay.runs.messages import Tell
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
        self.data = data_return
        self.train: Row = {}
        self.evaluation: Row = {}
        self.live: Live | None = None

    def __call__(self, row: Row) -> None:
        if row["kind"] == "train":
            self.train = row
            self.progress.update(self.bar, completed=row["step"])
        elif row["kind"] == "evaluation":
            self.evaluation = row
        if self.live is not None:
            self.live.update(self.render())

    def render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        evaluated = self.evaluation
        if evaluated:
            table.add_row(
                "return",
                f"[bold]{evaluated['return_mean']:.1f}[/] ± {evaluated['return_std']:.1f}"
                + _score(evaluated["score"])
                + f"   (step {evaluated['step']:,}; the data: {self.data})",
            )
        if "q_data" in self.train:
            realised = (
                f"   discounted return {evaluated['discounted_mean']:.1f}" if evaluated else ""
            )
            table.add_row("Q on data", f"{self.train['q_data']:.1f}{realised}")
        if "horizon_p50" in self.train:
            row = self.train
            table.add_row(
                "horizon",
                f"median {row['horizon_p50']:.0f}, quartiles {row['horizon_p25']:.0f} to "
                f"{row['horizon_p75']:.0f}, longest {row['horizon_max']:.0f}",
            )
        return Group(self.progress, table)


def told(console: Console) -> Tell:
    """Prints a sentence that the user should know."""
    return lambda text: console.print(harmless(text), markup=False, soft_wrap=True)


def _score(score: float | None) -> str:
    return "" if score is None else f" (score {score:.1f})"


@contextlib.contextmanager
def live_display(console: Console, display: Display) -> Iterator[Tracker]:
    """Run `display` live on a terminal; elsewhere print a line now and then."""
    if console.is_terminal:
        with Live(display.render(), console=console, refresh_per_second=4) as live:
            display.live = live
            yield display
            display.live = None
    else:
        yield _plain(console)


def _plain(console: Console) -> Tracker:
    last = time.monotonic()

    def track(row: Row) -> None:
        nonlocal last
        if row["kind"] == "evaluation":
            console.print(
                f"step {row['step']:,}: return {row['return_mean']:.1f} ± {row['return_std']:.1f}"
                + _score(row["score"])
            )
        elif row["kind"] == "train" and time.monotonic() - last > 30:
            last = time.monotonic()
            console.print(f"step {row['step']:,}: " + _headline(row))

    return track


def _headline(row: Row) -> str:
    names = {"q_data": "Q on data", "critic_loss": "critic loss", "horizon_p50": "median horizon"}
    return ", ".join(f"{name} {row[key]:.3g}" for key, name in names.items() if key in row)


@contextlib.contextmanager
def stopped(console: Console, command: str) -> Iterator[None]:
    """Say how to resume where the user or the system stops a training."""
    try:
        yield
    except KeyboardInterrupt as stop:
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
    printed = 0

    def show(progress: Any) -> None:
        nonlocal printed
        if progress.stage == "uncertainty":
            bar.update(task, description=f"uncertainty over the data {progress.share:.0%}")
            return
        text = f"epoch {progress.epoch + 1}"
        if progress.history:
            last = progress.history[-1]
            score = config.selection.upper()
            median = "not finite" if last.median is None else f"{last.median:.4g}"
            text += f", validation {score} {median} (median), {last.improved} members improved"
            if progress.epoch:
                pace = progress.seconds / (progress.epoch + progress.share)
                if progress.most_epochs is not None:
                    left = pace * (progress.most_epochs - progress.epoch - progress.share)
                    text += f", at most {left:.0f} s left"
        done = progress.epoch + progress.share
        bar.update(task, total=progress.most_epochs, completed=done, description=text)
        if not console.is_terminal and progress.epoch >= printed + 10:
            printed = progress.epoch
            console.print(f"world: {text}")

    with bar:
        yield show
