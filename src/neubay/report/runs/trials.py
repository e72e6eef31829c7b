"""A sweep as its page shows it: what each setting did to the value, and the trials, best first."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from neubay.report.parts.figures import COLOURS, MUTED, STYLE, logarithmic, panel_grid
from neubay.report.parts.numbers import duration
from neubay.report.parts.tables import Cell, Grid, Heading, Row
from neubay.report.runs.findings import Notice
from neubay.report.runs.groups import SYMBOLS, show
from neubay.runs.sweepdir import Record, Trial
from neubay.runs.values import is_number

MOST_COLUMNS = 3
_MARKS = {"finished": ("o", COLOURS["blue"]), "pruned": ("x", COLOURS["orange"])}


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Finished ones by their value, then those that were pruned, failed, or are under way."""
    order = ("finished", "pruned", "running", "waiting", "failed")
    return sorted(
        trials,
        key=lambda trial: (
            order.index(trial.state),
            math.inf if trial.value is None else -trial.value,
            trial.number,
        ),
    )


def trial_grid(record: Record) -> Grid:
    """A row per trial, best first, with what it cost."""
    keys = _keys(record)
    names = [record.metric, *map(_symbol, keys), "seeds", "state", "work", "problem"]
    best = record.best
    rows = []
    for trial in best_first(record.trials):
        value = Cell()
        if trial.value is not None:
            value = Cell(f"{trial.value:,.2f}", trial.value, None, 1, trial is best, decimals=2)
        settings = [Cell(show(trial.settings.get(key))) for key in keys]
        work = Cell(duration(trial.seconds)) if trial.seconds else Cell()
        others = [Cell(str(len(trial.runs))), Cell(trial.state), work, Cell(trial.problem or "-")]
        rows.append(Row(f"trial {trial.number}", (value, *settings, *others)))
    total = math.fsum(trial.seconds for trial in record.trials)
    note = (
        f"Best first. The value is the mean over seeds of {_METRICS.get(record.metric, 'a metric')}"
        f". Work is the time of the workers, {duration(total)} in all; a trial of the same "
        "settings as an earlier one costs nothing and has its value."
    )
    headings = tuple(map(Heading, names))
    return Grid("trials", "Trials", note, "trial", headings, tuple(rows)).without_empty()


_METRICS = {
    "posterior": "what a judge, which trained no policy, estimates of the best policy of a run",
    "score": "the last score in the environment (the return where no score is known)",
}


def notices(record: Record) -> list[Notice]:
    """What a reader should know before any number."""
    found = []
    if record.metric == "score":
        found.append(
            Notice(
                "warning",
                "Tuned on the test environment",
                "The settings were chosen by their scores in the environment that scores them: the "
                "best score here is too good, by the luck of being chosen. Run the best settings "
                "with other seeds before comparing them with anything.",
            )
        )
    failed = [trial for trial in record.trials if trial.state == "failed"]
    if failed:
        text = f"{failed[0].problem}" + (" (the first of them)" if len(failed) > 1 else "")
        found.append(Notice("warning", f"{len(failed)} of the trials failed", text))
    if record.problem:
        found.append(Notice("warning", "The sweep stopped before its end", record.problem))
    return found


@style.context(STYLE)
def value_figure(record: Record) -> Figure | None:
    """The value over each setting, a panel each; none before there is a value."""
    shown = [t for t in record.trials if t.value is not None and t.state in _MARKS]
    keys = _keys(record)
    if not shown or not keys:
        return None
    # As wide as other figures of a page, which all fill it: text is then of one size.
    size = (7.0 if len(keys) == 1 else 3.5, 3.0)
    figure, panels = panel_grid(len(keys), MOST_COLUMNS, size, sharey=True)
    for axes, key in zip(panels, keys, strict=True):
        _panel(axes, key, str(record.asked.get("search", {}).get(key, "")), shown)
    for axes in panels[::MOST_COLUMNS]:
        axes.set_ylabel(record.metric)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def _panel(axes: Axes, key: str, search: str, trials: Sequence[Trial]) -> None:
    values = [trial.settings.get(key) for trial in trials]
    numeric = all(map(is_number, values))
    named = list(dict.fromkeys(map(show, values)))
    for state, (marker, colour) in _MARKS.items():
        own = [trial for trial in trials if trial.state == state]
        if not own:
            continue
        places: list[Any] = [
            trial.settings[key] if numeric else named.index(show(trial.settings.get(key)))
            for trial in own
        ]
        heights = [trial.value or 0.0 for trial in own]
        axes.scatter(places, heights, s=22, marker=marker, color=colour, alpha=0.8, label=state)
    axes.set_xlabel(_symbol(key))
    if not numeric:
        axes.set_xticks(range(len(named)), named)
    elif search.startswith("log:") and min(v for v in values if v is not None) > 0:
        logarithmic(axes, "x")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.axhline(max(t.value for t in trials if t.value is not None), color=MUTED, linewidth=0.8)


def _keys(record: Record) -> list[str]:
    return list(dict.fromkeys(key for trial in record.trials for key in trial.settings))


def _symbol(key: str) -> str:
    return SYMBOLS.get(key, key)
