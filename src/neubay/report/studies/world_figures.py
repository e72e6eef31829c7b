"""Pictures of the world: spread of uncertainty, compounding errors, calibration.

Drawn from the records of `neubay.studies`, as they stand in the JSON files of `neubay analyze`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from neubay.report.parts.figures import (
    COLOURS,
    FAINT,
    INK,
    MUTED,
    STYLE,
    decade,
    logarithmic,
    set_ticks,
    write_at,
)
from neubay.report.parts.tables import Record

Labels = list[tuple[str, str]]
"""Name and colour of each world."""

_STYLE = {**STYLE, "axes.grid.axis": "both", "axes.titlelocation": "center"}
_PALETTE = list(COLOURS.values())
_LAYER_NORM = {True: COLOURS["blue"], False: COLOURS["vermilion"]}
_DASHED = (0, (4, 3))
_DECADES = 4  # by how much an exploding curve may widen an axis before it leaves it


# --- The spread of uncertainty -------------------------------------------------------------------


@style.context(_STYLE)
def uncertainty_figure(spreads: Sequence[Record]) -> Figure:
    """Empirical distribution functions of U / mean_D(U), on a logit axis that shows both tails.

    A world on its own data is a full line; on other data, a dashed one of the same colour.
    """
    worlds = list(dict.fromkeys(spread["world"] for spread in spreads))
    figure = Figure(figsize=(8, 4.8))
    axes = figure.subplots()
    axes.axvline(1, color=MUTED, linewidth=1, linestyle=":")
    for spread in spreads:
        others = [s["data"] for s in spreads if s["world"] == spread["world"] and not s["own"]]
        dash = 1.5 * (1 + others.index(spread["data"])) if not spread["own"] else 0
        axes.plot(
            spread["normalised"],
            spread["probability"],
            color=_PALETTE[worlds.index(spread["world"]) % len(_PALETTE)],
            linestyle=(0, (dash, 1.5)) if dash else "-",
            label=_spread_label(spread),
        )
    logarithmic(axes, "x")
    _probability_axis(axes, max(spread["transitions"] for spread in spreads))
    axes.set(
        xlabel="uncertainty U(s, a) in units of its mean over the world's own data",
        ylabel="share of transitions below",
    )
    axes.set_title("Spread of uncertainty", loc="left")
    figure.legend(loc="outside right upper")
    return figure


def _spread_label(spread: Record) -> str:
    if spread["own"]:
        return spread["world"]
    return f"  on {spread['data']}\n  ({_percent(spread['beyond'])} beyond ζ = 1)"


def _probability_axis(axes: Axes, count: int) -> None:
    """A logit axis with ticks at 0.01, 0.1, 0.5, 0.9, 0.99 ... as far as `count` values reach."""
    tails = [10.0**-power for power in range(1, max(2, int(math.log10(count)) + 1))]
    places = FixedLocator([*tails, 0.5, *(1 - tail for tail in tails)])
    axes.set(yscale="logit", ylim=(0.4 / count, 1 - 0.4 / count))
    set_ticks(axes.yaxis, places, "{:.7g}".format)


# --- Compounding errors --------------------------------------------------------------------------


@style.context(_STYLE)
def compounding_figure(results: Sequence[Record]) -> Figure:
    """One row per evaluation dataset: state error, state norm, reward bias, U against error.

    Lines are medians over rollouts, bands reach from the 5th to the 95th percentile.
    """
    worlds = results[0]["worlds"]
    labels = _world_labels(worlds)
    trained_on = " / ".join(dict.fromkeys(world["trained_on"] for world in worlds))
    title = f"{trained_on}: {results[0]['rollouts']} rollouts of recorded actions"
    figure, rows = _panels(len(results), 4, title)
    for panels, result in zip(rows, results, strict=True):
        _draw_errors(panels[0], result, labels)
        _draw_norms(panels[1], result, labels)
        _draw_bias(panels[2], result, labels)
        _draw_uncertainty_against_error(panels[3], result)
        _name_row(panels[0], result["data"], "RMSE(ŝ, s)")
    _name_columns(
        rows,
        ("state error", "state norm", "reward bias", "does U predict the error?"),
        (*3 * ("imagined steps",), "U(ŝ, a), lines at U(ζ)"),
    )
    handles, names = rows[0][1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", ncols=len(names), fontsize=11)
    return figure


def _world_labels(worlds: Sequence[Record]) -> Labels:
    """Name and colour of every world; LayerNorm alone tells them apart when that is enough."""
    kinds = [world["layer_norm"] for world in worlds]
    if len(set(kinds)) == len(kinds):
        names = {True: "with LayerNorm", False: "without LayerNorm"}
        return [(names[kind], _LAYER_NORM[kind]) for kind in kinds]
    return [
        (world["world"], _PALETTE[number % len(_PALETTE)]) for number, world in enumerate(worlds)
    ]


def _draw_bands(axes: Axes, result: Record, name: str, labels: Labels) -> list[Record]:
    """A band for every world, over imagined steps."""
    bands = [world[name] for world in result["worlds"]]
    for band, (label, colour) in zip(bands, labels, strict=True):
        _draw_band(axes, result["steps"], band, colour, label)
    axes.set_xlim(1, max(result["longest"], 2))
    logarithmic(axes, "x")
    return bands


def _draw_errors(axes: Axes, result: Record, labels: Labels) -> None:
    _fill_range(axes, _draw_bands(axes, result, "state_error", labels))
    for world, (_, colour) in zip(result["worlds"], labels, strict=True):
        if world["overflowed"]:
            text = f"{world['overflowed']} of {result['rollouts']} overflow"
            axes.text(0.04, 0.95, text, transform=axes.transAxes, va="top", color=colour)
    _spread_line(axes, result["spread"])
    write_at(
        axes,
        "two random states",
        (0.03, result["spread"]),
        (0, 2),
        ("axes fraction", "data"),
        color=MUTED,
        fontsize=8,
    )


def _draw_norms(axes: Axes, result: Record, labels: Labels) -> None:
    _draw_band(axes, result["steps"], result["data_norm"], MUTED, "recorded", alpha=0.35)
    bands = _draw_bands(axes, result, "state_norm", labels)
    _fill_range(axes, [*bands, result["data_norm"]])
    axes.set_ylabel("RMS(ŝ)")


def _draw_bias(axes: Axes, result: Record, labels: Labels) -> None:
    axes.axhline(0, color=MUTED, linewidth=1)
    bands = _draw_bands(axes, result, "reward_bias", labels)
    reach = [float(np.nanmax(np.abs(_edges(band)))) for band in bands]
    calm, wild = max(min(reach), 1e-6), max(reach)
    if wild > 10 * calm:  # linear where the calm world stays, logarithmic beyond
        axes.set_yscale("symlog", linthresh=calm, linscale=1.5)
        _two_sided_decades(axes, calm)
    limit = min(1.1 * wild, 10**_DECADES * calm)
    axes.set(ylabel="r̂ - r", ylim=(-limit, limit))


def _draw_uncertainty_against_error(axes: Axes, result: Record) -> None:
    """The paper's scatter plot, of the world with LayerNorm (or of the first one)."""
    worlds = result["worlds"]
    world = next((world for world in worlds if world["layer_norm"]), worlds[0])
    _scatter(axes, world, _LAYER_NORM[world["layer_norm"]])
    _spread_line(axes, result["spread"])
    _zeta_lines(axes, world["cuts"])
    _note(axes, "Spearman " + _decimals(world["spearman"]))
    axes.set_ylabel("next-state RMSE")


def _spread_line(axes: Axes, spread: float) -> None:
    """The distance of two random states, where an error has lost all information."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, 1.5 * spread))
    axes.axhline(spread, color=MUTED, linewidth=1, linestyle=_DASHED)


# --- Calibration ---------------------------------------------------------------------------------


@style.context(_STYLE)
def calibration_figure(result: Record) -> Figure:
    """One row per dataset: U against one-step error, ROC of danger, coverage of intervals."""
    assessments = result["assessments"]
    norm = "with" if result["layer_norm"] else "without"
    title = f"{result['trained_on']}: {result['members']} members {norm} LayerNorm, one step ahead"
    figure, rows = _panels(len(assessments), 3, title)
    for panels, assessed in zip(rows, assessments, strict=True):
        colour = _LAYER_NORM[result["layer_norm"]]
        _draw_danger(panels[0], assessed, result["danger_level"], colour)
        _draw_roc(panels[1], assessed, colour)
        _draw_coverage(panels[2], assessed["coverage"], colour)
        if assessed["own"]:
            _draw_held_out(panels[2], result["held_out"])
        _name_row(panels[0], assessed["data"], "error e, standardised")
    _name_columns(
        rows,
        ("error and uncertainty", "finding dangerous errors", "predictive intervals"),
        ("U(s, a), lines at U(ζ)", "harmless steps cut, dots at U(ζ)", "nominal probability"),
    )
    for axes in rows[:, 2]:
        axes.legend(loc="lower right")
    return figure


def _draw_danger(axes: Axes, assessed: Record, level: float, colour: str) -> None:
    _scatter(axes, assessed, colour)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, 3 * level))
    axes.axhspan(level, axes.get_ylim()[1], color=COLOURS["orange"], alpha=0.12, linewidth=0)
    axes.axhline(level, color=COLOURS["orange"], linewidth=1.4)
    _zeta_lines(axes, assessed["separations"])
    _note(axes, f"dangerous: {_percent(assessed['dangerous'])}")


def _draw_roc(axes: Axes, assessed: Record, colour: str) -> None:
    """On a logarithmic axis of false alarms, whose left edge stands for none."""
    edge = 10.0 ** -math.ceil(math.log10(assessed["transitions"]))
    chance = np.geomspace(edge, 1, 100)
    axes.plot(chance, chance, color=MUTED, linewidth=1, linestyle=_DASHED)
    false_alarm = np.maximum(np.asarray(assessed["roc_false_alarm"], float), edge)
    axes.plot(false_alarm, assessed["roc_caught"], color=colour)
    axes.set(ylabel="dangerous steps cut", xlim=(edge, 1), ylim=(-0.02, 1.04))
    logarithmic(axes, "x")
    _mark_thresholds(axes, assessed["separations"], edge)
    _note(axes, f"AUROC {_decimals(assessed['auroc'])}")


def _mark_thresholds(axes: Axes, separations: Sequence[Record], edge: float) -> None:
    """A dot for every zeta; dots that touch share one label."""
    labelled: list[tuple[float, float, str]] = []
    for separation in separations:
        if separation["false_safe"] is None or separation["false_alarm"] is None:
            continue
        x, y = max(separation["false_alarm"], edge), 1 - separation["false_safe"]
        axes.plot(x, y, "o", color=INK, markersize=5, clip_on=False, zorder=3)
        label = f"{separation['zeta']:g}"
        if labelled and labelled[-1][0] < 2 * x and abs(labelled[-1][1] - y) < 0.05:
            label = f"{labelled.pop()[2]}, {label}"
        labelled.append((x, y, label))
    for x, y, label in labelled:
        low, right = y < 0.1, x > 0.2  # keep clear of the axis below and of the edge
        sides = {"ha": "right" if right else "left", "va": "bottom" if low else "top"}
        offset = (-6 if right else 6, 5 if low else -4)
        write_at(axes, label, (x, y), offset, fontsize=8, **sides)


def _draw_coverage(axes: Axes, intervals: Sequence[Record], colour: str) -> None:
    nominal = [interval["nominal"] for interval in intervals]
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=_DASHED)
    for kind, label, shade, marker in (
        ("mixture", "all members together", colour, "o"),
        ("member", "each member alone", COLOURS["sky"], "s"),
    ):
        share = [interval[kind] for interval in intervals]
        axes.plot(nominal, share, marker=marker, markersize=5, color=shade, label=label)
    axes.set(ylabel="share inside", xlim=(0.45, 1.01), ylim=(0, 1.04))


def _draw_held_out(axes: Axes, intervals: Sequence[Record]) -> None:
    nominal, share = ([interval[key] for interval in intervals] for key in ("nominal", "mixture"))
    axes.plot(
        nominal,
        share,
        "D",
        label="together, held-out rows",
        markersize=8,
        markerfacecolor="none",
        markeredgecolor=INK,
    )


# --- Parts of panels -----------------------------------------------------------------------------


def _panels(rows: int, columns: int, title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(3.1 * columns + 0.4, 2.3 * rows + 0.8))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _name_row(axes: Axes, name: str, label: str) -> None:
    axes.set_ylabel(label)
    write_at(
        axes,
        _in_two_lines(name),
        (0, 0.5),
        (-8, 0),
        axes.yaxis.label,
        fontsize=11,
        fontweight="bold",
        rotation=90,
        rotation_mode="anchor",
        ha="center",
        va="bottom",
    )


def _in_two_lines(name: str) -> str:
    """A long name broken at the separator nearest to its middle."""
    breaks = [place for place, letter in enumerate(name) if letter in "_- "]
    if len(name) <= 16 or not breaks:
        return name
    middle = min(breaks, key=lambda place: abs(place - len(name) / 2))
    return f"{name[:middle]}\n{name[middle + 1 :]}"


def _name_columns(rows: Any, titles: Sequence[str], labels: Sequence[str]) -> None:
    for axes, title in zip(rows[0], titles, strict=True):
        axes.set_title(title)
    for axes, label in zip(rows[-1], labels, strict=True):
        axes.set_xlabel(label)


def _edges(band: Record) -> Float[np.ndarray, "2 n"]:
    """Lower and upper edge; what was not finite is NaN."""
    return np.asarray([band["low"], band["high"]], float)


def _draw_band(
    axes: Axes,
    steps: Sequence[int],
    band: Record,
    colour: str,
    label: str,
    alpha: float = 0.22,
) -> None:
    edges = _edges(band)
    axes.fill_between(steps, *edges, color=colour, alpha=alpha, linewidth=0)
    for edge in edges:
        axes.plot(steps, edge, color=colour, linewidth=0.7, alpha=0.7)
    axes.plot(steps, np.asarray(band["median"], float), color=colour, label=label)


def _fill_range(axes: Axes, bands: Sequence[Record]) -> None:
    """A logarithmic range that the calmest band fills; an exploding one leaves it."""
    edges = [_edges(band) for band in bands]
    low = min((float(edge[edge > 0].min()) for edge in edges if (edge > 0).any()), default=1e-3)
    calm, wild = (choose(float(np.nanmax(edge)) for edge in edges) for choose in (min, max))
    axes.set_ylim(low / 1.5, max(min(wild * 1.5, calm * 10**_DECADES), 3 * low))
    logarithmic(axes, "y")


def _scatter(axes: Axes, points: Record, colour: str) -> None:
    uncertainty = np.asarray(points["point_uncertainty"], float)
    error = np.asarray(points["point_error"], float)
    axes.scatter(uncertainty, error, s=6, color=colour, alpha=0.35, linewidths=0)
    if (uncertainty > 0).any():  # a single member is never uncertain
        logarithmic(axes, "x")
    if (error > 0).any():
        logarithmic(axes, "y")


def _zeta_lines(axes: Axes, thresholds: Sequence[Record]) -> None:
    """Vertical lines at U(zeta), darker towards zeta = 1, each named at its foot."""
    low, high = axes.get_xlim()
    values = [threshold["threshold"] for threshold in thresholds]
    axes.set_xlim(min(low, 0.8 * min(values)), max(high, 1.3 * max(values)))
    for number, threshold in enumerate(thresholds, start=1):
        shade = 0.25 + 0.6 * number / len(thresholds)
        axes.axvline(threshold["threshold"], color=INK, linewidth=1.2, alpha=shade)
        write_at(
            axes,
            f"{threshold['zeta']:g}",
            (threshold["threshold"], 0.02),
            (-1, 0),
            ("data", "axes fraction"),
            color=INK,
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=8,
        )


def _note(axes: Axes, text: str) -> None:
    box = {"facecolor": "white", "edgecolor": FAINT, "alpha": 0.85, "pad": 2.5}
    at = (0.03, 0.96)
    write_at(axes, text, at, (0, 0), "axes fraction", va="top", fontweight="bold", bbox=box)


def _two_sided_decades(axes: Axes, linear: float) -> None:
    """Ticks of an axis that is linear up to `linear` and logarithmic beyond: 0 and few decades."""
    powers = range(math.ceil(math.log10(linear)), 39)
    decades = [10.0**power for power in powers]
    set_ticks(
        axes.yaxis, FixedLocator([*(-each for each in reversed(decades)), 0, *decades]), decade
    )


def _decimals(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 or not percent else f"{percent:.2g} %"
