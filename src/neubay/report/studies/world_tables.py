"""Tables of what `neubay analyze` found about worlds, as Markdown.

A condensed document holds the figures of many analyses without their curves and points, small
enough to be kept beside a text; the tables are made from it, never typed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neubay.errors import NeubayError
from neubay.report.parts.numbers import number, percent, shown
from neubay.report.parts.tables import (
    Columns,
    Record,
    columns_markdown,
    sections,
    text_markdown,
)

BEGIN = "<!-- tables: neubay analyze table -->"

_CURVES = {
    *("steps", "data_norm", "state_error", "state_norm", "reward_bias"),
    *("point_uncertainty", "point_error", "roc_false_alarm", "roc_caught"),
}


def condense(documents: Sequence[Record]) -> dict[str, Any]:
    """Join the documents of several analyses, or condensed ones, and leave out what is drawn."""
    condensed: dict[str, Any] = {"worlds": [], "compounding": [], "calibration": []}
    for document in documents:
        known = [section for section in condensed if section in document]
        if "worlds" not in known or len(known) < 2:
            raise NeubayError(
                "a table is made of the JSON files that 'neubay analyze compounding' and "
                f"'neubay analyze calibration' write; one of these has {', '.join(document)}"
            )
        for section in known:
            fresh = [_without_curves(entry) for entry in document[section]]
            condensed[section] += [entry for entry in fresh if entry not in condensed[section]]
    return condensed


def _without_curves(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_curves(item) for key, item in value.items() if key not in _CURVES}
    return [_without_curves(item) for item in value] if isinstance(value, list) else value


def markdown(condensed: Record) -> str:
    """Every table for which there are figures, each under its heading."""
    compounded, calibrated = condensed["compounding"], condensed["calibration"]
    return sections(
        {
            "Worlds": columns_markdown(_WORLDS, condensed["worlds"]),
            "Compounding errors": _explosions(compounded) if compounded else "",
            "What truncation at U(ζ) would do": _safeguards(compounded) if compounded else "",
            "One step ahead": _calibrations(calibrated) if calibrated else "",
        }
    )


_WORLDS: Columns = {
    "world": lambda world: world["world"],
    "trained on": lambda world: world["trained_on"],
    "LayerNorm": lambda world: _yes(world["layer_norm"]),
    "members x layers x units": lambda world: (
        f"{world['members']} of {world['pool']} x {world['depth']} x {world['width']}"
    ),
    "epochs": lambda world: str(world["epochs"]),
    "validation": lambda world: number(world["validation_score"]),
    "seconds": lambda world: f"{world['seconds']:.0f}",
}


def _explosions(results: Sequence[Record]) -> str:
    """The paper's claim: errors explode without LayerNorm, and not with it."""
    compared = [(result, result["comparison"]) for result in results if result["comparison"]]
    rows = [(result, comparison, *_pair(result)) for result, comparison in compared]
    columns: Columns = {
        "trained on": lambda row: row[2]["trained_on"],
        "evaluated on": lambda row: row[0]["data"],
        "longest rollout": lambda row: str(row[0]["longest"]),
        "p95 without > 10 x with at step": lambda row: _step(row[1]["passes_at"]),
        "median without > 10 x with at step": lambda row: _step(row[1]["median_passes_at"]),
        "explodes without": lambda row: _yes(row[1]["explodes"]),
        "median explodes without": lambda row: _yes(row[1]["median_explodes"]),
        "last p95 in spreads, with / without": lambda row: " / ".join(
            _spreads(world, row[0]) for world in row[2:]
        ),
        "p95 > 10 spreads at step, with / without": lambda row: " / ".join(
            _step(world["diverges_at"]) for world in row[2:]
        ),
        "overflowed, with / without": lambda row: " / ".join(
            str(world["overflowed"]) for world in row[2:]
        ),
    }
    lines = [
        f"Without LayerNorm {what} explodes in {_of(each[key] for _, each in compared)} setups."
        for what, key in (("the 95th percentile", "explodes"), ("the median", "median_explodes"))
    ]
    for name, place in (("With", 2), ("Without", 3)):
        diverged = _of(row[place]["diverges_at"] is not None for row in rows)
        overflowed = _of(row[place]["overflowed"] > 0 for row in rows)
        lines.append(
            f"{name} LayerNorm it passes 10 spreads of the data in {diverged} setups, "
            f"and rollouts overflow in {overflowed}."
        )
    return f"{columns_markdown(columns, rows)}\n\n" + "\n".join(lines)


def _safeguards(results: Sequence[Record]) -> str:
    rows = [(result, world, world["cuts"][-1]) for result in results for world in result["worlds"]]
    columns: Columns = {
        "trained on": lambda row: row[1]["trained_on"],
        "evaluated on": lambda row: row[0]["data"],
        "LayerNorm": lambda row: _yes(row[1]["layer_norm"]),
        "Spearman": lambda row: shown(row[1]["spearman"], ".2f"),
        "severe steps": lambda row: percent(row[1]["severe"]),
        "AUROC severe": lambda row: shown(row[1]["auroc"], ".2f"),
        f"beyond ζ = {rows[0][2]['zeta']:g}": lambda row: percent(row[2]["beyond"]),
        "false safe": lambda row: percent(row[2]["false_safe"]),
        "horizon, median / q75": lambda row: (
            f"{row[2]['horizon_median']:.0f} / {row[2]['horizon_q75']:.0f}"
        ),
        "severe of those kept": lambda row: percent(row[2]["kept_severe"]),
        "p95 error kept / spread": lambda row: (
            f"{number(row[2]['kept_error_p95'])} / {number(row[0]['spread'])}"
        ),
    }
    return columns_markdown(columns, rows)


def _calibrations(results: Sequence[Record]) -> str:
    rows = [(result, assessed) for result in results for assessed in result["assessments"]]
    zetas = [each["zeta"] for each in rows[0][1]["separations"]]
    later = range(1, len(zetas))
    headings = (
        *("trained on", "evaluated on", "LayerNorm", "dangerous", "AUROC dangerous", "Spearman"),
        *(f"false safe, ζ = {zetas[place]:g}" for place in later),
        f"false alarms, ζ = {zetas[-1]:g}",
        "coverage of 90 %, member / mixture",
    )
    lines = (
        [
            result["trained_on"],
            assessed["data"],
            _yes(result["layer_norm"]),
            percent(assessed["dangerous"]),
            shown(assessed["auroc"], ".2f"),
            shown(assessed["spearman"], ".2f"),
            *(percent(assessed["separations"][place]["false_safe"]) for place in later),
            percent(assessed["separations"][-1]["false_alarm"]),
            _coverage(assessed["coverage"]),
        ]
        for result, assessed in rows
    )
    return text_markdown(headings, lines)


def _coverage(intervals: Sequence[Record]) -> str:
    middle = next(interval for interval in intervals if interval["nominal"] == 0.9)
    return f"{percent(middle['member'])} / {percent(middle['mixture'])}"


def _pair(result: Record) -> tuple[Record, Record]:
    """The world with and the one without LayerNorm."""
    with_norm = next(world for world in result["worlds"] if world["layer_norm"])
    return with_norm, next(world for world in result["worlds"] if not world["layer_norm"])


def _of(flags: Iterable[Any]) -> str:
    found = list(map(bool, flags))
    return f"{sum(found)} of {len(found)}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)


def _spreads(world: Record, result: Record) -> str:
    """The 95th percentile of the last error in units of the data's spread."""
    spreads = world["last_error_p95"] / result["spread"]
    return f"{spreads:.1f}" if spreads < 1000 else f"{spreads:.0e}"
