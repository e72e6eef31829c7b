"""What `neubay analyze guard` found: alarms before falls, and what a fall-back changes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neubay.errors import NeubayError
from neubay.report.parts.figures import COLOURS, STYLE, logarithmic
from neubay.report.parts.numbers import rounded, shown
from neubay.report.parts.tables import Columns, Record, columns_markdown, sections

BEGIN = "<!-- tables: neubay analyze guard -->"
LEAST = 0.1
"""False alarms per 1,000 steps below which the figure does not tell."""


def condense(documents: Sequence[Record]) -> dict[str, Any]:
    """What studies found, or files of it, as one file of few digits."""
    found: list[Any] = []
    for document in documents:
        found += document["guards"] if isinstance(document.get("guards"), list) else [document]
    try:
        markdown(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise NeubayError(
            f"not a file of 'neubay analyze guard': {type(error).__name__} {error}"
        ) from None
    return {"guards": rounded(found, 5)}


def markdown(results: Sequence[Record]) -> str:
    """Alarms of the policies alone, then what the clone as fall-back changes."""
    rows = [(run, name, guard) for run in results for name, guard in run["guards"].items()]
    backed = [row for row in rows if row[2].get("fallback")]
    return sections(
        {
            "Alarms, the policy acting alone": columns_markdown(_ALARMS, rows),
            "With the clone as the fall-back": columns_markdown(_FALLBACK, backed)
            if backed
            else "",
        }
    )


# Of a run, the name of a guard, and what it found.
_ALARMS: Columns = {
    "dataset": lambda row: row[0]["dataset"],
    "run": lambda row: row[0]["run"],
    "a fall is": lambda row: row[0]["falls_are"],
    "episodes": lambda row: str(row[0]["episodes"]),
    "guard": lambda row: row[1],
    "alarms per episode": lambda row: f"{row[2]['per_episode']:.1f}",
    "falls": lambda row: str(row[2]["falls"]),
    "announced": lambda row: _percent(_share(row[2])),
    "by chance": lambda row: _percent(row[2]["by_chance"]),
    "steps ahead (median)": lambda row: shown(row[2]["ahead"], ",.0f"),
    "false alarms per 1,000 steps": lambda row: shown(row[2]["false_per_thousand"], ",.1f"),
}
_FALLBACK: Columns = {
    "dataset": lambda row: row[0]["dataset"],
    "run": lambda row: row[0]["run"],
    "guard": lambda row: row[1],
    "steps by the clone": lambda row: _percent(row[2]["fallback"]["fell_back"]),
    "policy alone": lambda row: _worth(row[0]["alone"]),
    "with the fall-back": lambda row: _worth(row[2]["fallback"]),
    "clone alone": lambda row: _worth(row[0]["clone"] or {}),
    "falls alone": lambda row: str(row[0]["alone"]["falls"]),
    "falls with it": lambda row: str(row[2]["fallback"]["falls"]),
    "steps per episode, alone": lambda row: f"{row[0]['alone']['length_mean']:.0f}",
    "with it": lambda row: f"{row[2]['fallback']['length_mean']:.0f}",
}


@style.context(STYLE)
def guard_figure(results: Sequence[Record]) -> Figure:
    """Falls announced, and how many steps ahead, over false alarms; a column for each run that has
    falls. A line is the posterior alone over its limits, a mark a guard."""
    results = [run for run in results if run["alone"]["falls"]] or results[:1]
    figure = Figure(figsize=(3.4 * max(len(results), 2), 4.8), layout="constrained")
    panels = figure.subplots(2, len(results), squeeze=False, sharex=True, sharey="row")
    for (upper, lower), run in zip(panels.T, results, strict=True):
        _draw(upper, run, _share)
        _draw(lower, run, lambda found: found["ahead"])
        upper.set(title=f"{run['dataset']}\n{run['run']}", ylim=(-0.03, 1.03))
        lower.set(xlabel="false alarms per 1,000 steps", ylim=(0, None))
    panels[0, 0].set_ylabel("share of falls announced")
    panels[1, 0].set_ylabel("steps ahead (median)")
    panels[0, 0].legend(loc="lower right")
    return figure


def _draw(axes: Axes, run: Record, value: Callable[[Record], float | None]) -> None:
    def points(found: Sequence[Record]) -> tuple[list[float], list[float]]:
        false = [max(each["false_per_thousand"] or 0.0, LEAST) for each in found]
        return false, [math.nan if (at := value(each)) is None else at for each in found]

    blue, *others = COLOURS.values()
    axes.plot(*points(run["posterior"]), color=blue, label="posterior, over its limit")
    for (name, guard), mark, colour in zip(run["guards"].items(), "osD", others, strict=False):
        axes.plot(*points([guard]), mark, color=colour, label=name, markersize=7)
    logarithmic(axes, "x")


def _share(found: Record) -> float | None:
    return found["announced"] / found["falls"] if found["falls"] else None


def _worth(earned: Record) -> str:
    """Its score, or its return where the task has no reference."""
    if earned.get("score") is not None:
        return f"{earned['score']:.1f}"
    return shown(earned.get("return_mean"), ",.0f")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}" if value >= 0.1 else f"{value:.1%}"
