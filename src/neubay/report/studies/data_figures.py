"""A dataset at a glance, from the record that `neubay data info --json` writes."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from neubay.report.parts.figures import COLOURS, INK, MUTED, STYLE, write_at
from neubay.report.parts.numbers import number


@style.context(STYLE)
def dataset_figure(summary: Mapping[str, Any]) -> Figure:
    """Returns, episode lengths, visited states, spread of actions."""
    figure = Figure(figsize=(10, 6.4))
    # Names are shown as they are: a dollar sign in one is no formula.
    plain: dict[str, Any] = {"va": "center", "parse_math": False}
    figure.text(0.015, 0.965, summary["name"], fontsize=14, fontweight="bold", **plain)
    figure.text(0.015, 0.923, _subtitle(summary), color=MUTED, **plain)
    figure.set_layout_engine("constrained", rect=(0.01, 0.01, 0.98, 0.89), hspace=0.08)
    (returns, lengths), (states, actions) = figure.subplots(2, 2)
    _draw_returns(returns, summary)
    _draw_lengths(lengths, summary)
    _draw_states(states, summary)
    _draw_actions(actions, summary)
    return figure


def _subtitle(summary: Mapping[str, Any]) -> str:
    score = summary["score"]["mean"]
    parts = [
        summary["environment"] or summary["task"],
        f"{summary['transitions']:,} transitions",
        f"{summary['episodes']:,} episodes",
        "score unknown: no reference returns" if score is None else f"score {score:.1f}",
    ]
    return "  ·  ".join(parts)


def _draw_returns(axes: Axes, summary: Mapping[str, Any]) -> None:
    returns = summary["returns"]
    _bars(axes, returns["histogram"], COLOURS["blue"])
    mean = returns["whole"]["mean"]
    axes.axvline(mean, color=COLOURS["vermilion"], linewidth=1.6)
    text = f"mean {number(mean)} ± {number(returns['whole']['std'])}"
    _label_line(axes, mean, text, COLOURS["vermilion"])
    left_out = summary["endings"]["cut"]
    note = f", {left_out:,} cut ones left out" if left_out and not returns["only_cut"] else ""
    axes.set(title="Returns", xlabel=f"raw return of an episode{note}", ylabel="episodes")


def _draw_lengths(axes: Axes, summary: Mapping[str, Any]) -> None:
    _bars(axes, summary["length_histogram"], COLOURS["sky"])
    horizon = float(summary["horizon"])
    label = f"T = {summary['horizon']:,}"
    if horizon > 2 * summary["lengths"]["max"]:  # showing it would squeeze the bars to a line
        write_at(
            axes,
            f"{label}, further right",
            (0.99, 0.985),
            coordinates="axes fraction",
            ha="right",
            va="top",
            color=MUTED,
        )
    else:
        axes.axvline(horizon, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        _label_line(axes, horizon, label, MUTED)
    endings = summary["endings"]
    ways = [
        f"{count:,} {label}"
        for count, label in (
            (endings["terminal"], "terminal"),
            (endings["horizon"], "at T or later"),
            (endings["cut"], "cut before T"),
        )
        if count
    ]
    axes.set(title="Lengths", xlabel=f"steps of an episode\nends: {', '.join(ways)}")


def _draw_states(axes: Axes, summary: Mapping[str, Any]) -> None:
    coverage = summary["coverage"]
    counts = coverage["state_map"]
    seen = [[count if count else float("nan") for count in row] for row in counts]
    axes.imshow(
        seen,
        origin="lower",
        extent=(-3, 3, -3, 3),
        aspect="auto",
        cmap="viridis",
        norm=LogNorm(vmin=1, vmax=max(2, *(max(row) for row in counts))),
        interpolation="nearest",
    )
    axes.grid(False)
    shares = [f" ({share:.0%} of variance)" for share in coverage["explained"]] + ["", ""]
    axes.set(
        title=f"States: {coverage['occupied']:.0%} occupied",
        xlabel=f"first principal component{shares[0]}, std",
        ylabel=f"second{shares[1]}",
    )


def _draw_actions(axes: Axes, summary: Mapping[str, Any]) -> None:
    coverage = summary["coverage"]
    means, deviations = coverage["action_mean"], coverage["action_std"]
    dimensions = range(len(means))
    if summary["actions"] == "discrete":
        axes.bar(dimensions, means, width=0.7, color=COLOURS["green"])
        title = "Actions: how often each is taken"
        axes.set(title=title, xlabel="action", ylabel="share", ylim=(0, None))
    else:
        green = COLOURS["green"]
        thick = min(9.0, 150 / len(means))
        lows, highs = coverage["action_low"], coverage["action_high"]
        inner = [
            (max(mean - std, -1), min(mean + std, 1))
            for mean, std in zip(means, deviations, strict=True)
        ]
        axes.vlines(dimensions, lows, highs, color=green, linewidth=1.4, label="middle 98 %")
        axes.vlines(
            dimensions,
            *zip(*inner, strict=True),
            color=green,
            linewidth=thick,
            alpha=0.55,
            label="mean ± std",
        )
        axes.plot(dimensions, means, "o", color=INK, markersize=min(5.0, 90 / len(means)))
        axes.set(
            title=f"Actions: {coverage['action_freedom']:.0%} free of the state",
            xlabel="action dimension (thin: middle 98 %, thick: mean ± std)",
            ylabel="action, scaled to [-1, 1]",
            xlim=(-0.7, len(means) - 0.3),
            ylim=(-1.06, 1.06),
        )
    axes.set_xticks(range(0, len(means), -(-len(means) // 10)))


def _label_line(axes: Axes, x: float, text: str, colour: str) -> None:
    """Write beside the top of a vertical line, on the side with more room."""
    on_left = x > sum(axes.get_xlim()) / 2
    offset, side = ((-5, 0), "right") if on_left else ((5, 0), "left")
    place = ("data", "axes fraction")
    write_at(axes, text, (x, 0.985), offset, place, ha=side, va="top", color=colour)


def _bars(axes: Axes, histogram: Mapping[str, Any], colour: str) -> None:
    edges, counts = histogram["edges"], histogram["counts"]
    if len(counts) == 1:  # one value: a bar that looks like one, not a wall
        middle = (edges[0] + edges[1]) / 2
        margin = 0.02 * max(abs(middle), 1.0)
        edges = [middle - margin, middle + margin]
        axes.update_datalim([(middle - 20 * margin, 0), (middle + 20 * margin, 0)])
    widths = [high - low for low, high in pairwise(edges)]
    axes.bar(edges[:-1], counts, widths, align="edge", color=colour, edgecolor="white")
    axes.set_ylim(0, 1.16 * max(counts))  # room for a label above the bars
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.5g}")
