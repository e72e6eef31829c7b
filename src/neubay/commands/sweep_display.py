"""How many runs look while they run: a table that is drawn anew, or a line for each that ended."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table

from neubay.commands.text import Console, escape
from neubay.runs.messages import duration

if TYPE_CHECKING:
    from neubay.runs.sweepdir import Record, Trial
    from neubay.sweeps.dispatch import Dispatch
    from neubay.sweeps.sweep import Request, Sweep

ROWS = 20
"""Trials that the table shows at most: those under way, then the best."""
_COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "pruned": "yellow"}


def _drawn_anew(console: Console) -> contextlib.AbstractContextManager[Live | None]:
    """What draws a table again and again, on a terminal; none elsewhere."""
    if console.is_terminal:
        return Live(console=console, refresh_per_second=2)
    return contextlib.nullcontext()


@contextlib.contextmanager
def live_table(console: Console) -> Iterator[Callable[["Record", "Dispatch"], None]]:
    """Shows a sweep as it goes."""
    begun, told = time.monotonic(), set[int]()
    with _drawn_anew(console) as live:

        def show(record: "Record", dispatch: "Dispatch") -> None:
            left = time_left(record, dispatch.engine.workers)
            if live is not None:
                live.update(_table(record, time.monotonic() - begun, left))
                return
            for trial in record.trials:
                if trial.ended and trial.number not in told:
                    told.add(trial.number)
                    console.print(f"{_line(trial)}{left}", markup=False, soft_wrap=True)

        yield show


def time_left(record: "Record", workers: int) -> str:
    """From the work of the trials that ended; nothing before there is one."""
    known = [trial.seconds for trial in record.trials if trial.ended and trial.seconds]
    missing = int(record.asked["trials"]) - sum(trial.ended for trial in record.trials)
    if not known or missing <= 0:
        return ""
    seconds = sum(known) / len(known) * missing / max(workers, 1)
    return f"; about {duration(seconds)} left"


def settings_text(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in settings.items()
    )


def _line(trial: "Trial") -> str:
    value = "" if trial.value is None else f" {trial.value:,.2f}"
    problem = f": {trial.problem}" if trial.problem else ""
    return f"trial {trial.number} ({settings_text(trial.settings)}) {trial.state}{value}{problem}"


def _table(record: "Record", elapsed: float, left: str) -> Table:
    ended = sum(trial.ended for trial in record.trials)
    title = f"{ended} of {record.asked['trials']} trials, {duration(elapsed)}{left}"
    table = Table("trial", "state", "settings", record.metric, "work", title=title, box=None)
    best = record.best
    under_way = [trial for trial in record.trials if not trial.ended]
    others = sorted(
        (trial for trial in record.trials if trial.ended),
        key=lambda trial: (trial.value is None, -(trial.value or 0.0)),
    )
    for trial in (under_way + others)[:ROWS]:
        colour = _COLOURS.get(trial.state, "white")
        table.add_row(
            str(trial.number) + (" *" if trial is best else ""),
            f"[{colour}]{trial.state}[/]",
            escape(settings_text(trial.settings)),
            "" if trial.value is None else f"{trial.value:,.2f}",
            duration(trial.seconds) if trial.seconds else "",
        )
    return table


def planned(request: "Request") -> str:
    """How much it is: runs, worlds, and hours where finished runs tell how long one takes."""
    from neubay.sweeps.estimate import expected

    found = expected(request)
    each = f"{found.trials} trials, {found.runs} runs ({found.finished} finished before)"
    worlds = f"{found.worlds} worlds to train" + (" or more" if found.searches_worlds else "")
    if found.hours is None:
        hours = "hours not known before a run is finished"
    else:
        hours = f"about {found.hours:.2g} hours of one core ({found.basis})"
    return f"{each}, {worlds}, {hours}"


def show_best(console: Console, found: "Sweep") -> None:
    """What a sweep found, and what to do with it."""
    best = found.best
    if best is None:
        console.print("no trial was finished: see the problems in sweep.json", markup=False)
        return
    console.print(f"best: {_line(best)}", markup=False, soft_wrap=True)
    if found.record.metric == "score":
        console.print(
            "tuned on the environment that scores it: its score is no fair estimate; "
            "test it on other seeds",
            markup=False,
        )
    for run in found.best_runs:
        console.print(f"  {run}", markup=False, soft_wrap=True)
    hint = f"to look at all of it: neubay report {shlex.quote(str(found.directory))}"
    console.print(hint, markup=False, soft_wrap=True)


@contextlib.contextmanager
def run_lines(console: Console, names: dict[str, str]) -> Iterator[Callable[[str, str], None]]:
    """Shows runs by directory and state; `names` says what to call them."""
    states = dict.fromkeys(names, "waiting")
    with _drawn_anew(console) as live:

        def show(directory: str, state: str) -> None:
            states[directory] = state
            if live is None:
                console.print(f"{names[directory]}: {state}", markup=False, soft_wrap=True)
                return
            table = Table("run", "state", box=None)
            for each, now in states.items():
                table.add_row(escape(names[each]), escape(now))
            live.update(table)

        yield show
