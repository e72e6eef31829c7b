"""Learned ends beside known rules: what `neubay analyze termination` found, drawn and in tables."""

from collections.abc import Sequence

from matplotlib import style
from matplotlib.figure import Figure

from neubay.report.parts.figures import COLOURS, FAINT, STYLE, logarithmic, panel_grid
from neubay.report.parts.numbers import percent
from neubay.report.parts.tables import Columns, Record, columns_markdown, sections

BEGIN = "<!-- tables: neubay analyze termination -->"
LONG = 500
"""Steps of the rollouts whose share of false ends is told."""


@style.context(STYLE)
def survival_figure(results: Sequence[Record]) -> Figure:
    """Shares of imagined rollouts that still run, under both rules; a panel for each world."""
    figure, panels = panel_grid(len(results), 3, (3.6, 2.8), sharey=True)
    for axes, result in zip(panels, results, strict=True):
        curves = result["imagined"]
        steps = curves["survival_steps"]
        axes.plot(steps, curves["survival_rule"], color=FAINT, linewidth=5, label="known rule")
        axes.plot(steps, curves["survival_learned"], color=COLOURS["blue"], label="learned")
        logarithmic(axes, "x")
        axes.set(title=result["data"], xlabel="imagined steps", ylim=(0, 1.03))
    panels[0].set_ylabel("share still running")
    panels[0].legend(loc="lower left")
    return figure


def markdown(results: Sequence[Record]) -> str:
    """Held-out steps, and imagined rollouts."""
    recorded = [(result, way) for result in results for way in result["ways"]]
    return sections(
        {
            "Held-out steps": columns_markdown(_HELD_OUT, recorded),
            "Imagined rollouts": columns_markdown(_IMAGINED, results),
        }
    )


_HELD_OUT: Columns = {
    "data": lambda row: row[0]["data"],
    "ends / steps": lambda row: f"{row[0]['held_out_ends']:,} / {row[0]['held_out_steps']:,}",
    "decided by": lambda row: row[1]["decided"],
    "precision": lambda row: percent(row[1]["precision"], ".1f"),
    "recall": lambda row: percent(row[1]["recall"], ".1f"),
    "false alarms per 1,000": lambda row: _thousand(row[1]["false_alarms"]),
    "apart from ends (at most)": lambda row: (
        f"{_thousand(row[1]['false_alarms_apart'])} "
        f"({_thousand(row[1]['false_alarms_apart_at_most'])})"
    ),
    f"ends of {LONG} steps falsely": lambda row: percent(_falsely(row[1]), ".1f"),
    "ends per 1,000: data / heads / imagined": lambda row: " / ".join(
        _thousand(rate)
        for rate in (row[0]["rate"], row[1]["rate_recorded"], row[1]["rate_imagined"])
    ),
}
_IMAGINED: Columns = {
    "data": lambda row: row["data"],
    "rollouts": lambda row: str(row["imagined"]["rollouts"]),
    "steps": lambda row: f"{row['imagined']['steps']:,}",
    "both at one step": lambda row: str(row["imagined"]["both"]),
    "rule first": lambda row: str(row["imagined"]["rule_first"]),
    "learned first": lambda row: str(row["imagined"]["learned_first"]),
    "of these within ten": lambda row: str(row["imagined"]["within_ten"]),
    "neither": lambda row: str(row["imagined"]["neither"]),
    "ends per 1,000: rule / learned": lambda row: (
        f"{_thousand(row['imagined']['rate_rule'])} / {_thousand(row['imagined']['rate_learned'])}"
    ),
}


def _falsely(way: Record) -> float | None:
    alarms = way["false_alarms_apart"]
    return None if alarms is None else 1 - (1 - float(alarms)) ** LONG


def _thousand(share: float | None) -> str:
    return "-" if share is None else f"{1000 * share:.3g}"
