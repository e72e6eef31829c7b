"""Pictures of training runs: scores, values, horizons, uncertainty, losses, and runs compared."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator

from neubay.report.parts.figures import (
    COLOURS,
    FAINT,
    INK,
    MUTED,
    STYLE,
    logarithmic,
    set_ticks,
    thousands,
    write_at,
)
from neubay.report.runs.groups import Group, representative
from neubay.report.runs.records import Curves, RunRecord, finite_values

PALETTE = [COLOURS[name] for name in ("blue", "orange", "green", "vermilion", "purple", "sky")]
MOST_GROUPS = len(PALETTE)
"""Groups that one figure compares at most."""
_DASHED = (0, (4, 2.5))
_LINES: tuple[Any, ...] = ("solid", (0, (7, 2)), (0, (7, 2, 1.5, 2)))  # when colours run out
_SIZE = (5.2, 3.3)
_WIDE = 10.5
_BUCKETS = 300  # of a drawn curve: about one for every two pixels


class Envelope(NamedTuple):
    """A curve thinned for drawing: mean, lowest and highest of each bucket of rows."""

    step: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, " n"]
    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]


def envelope(curves: Curves, name: str, buckets: int = _BUCKETS) -> Envelope:
    """The finite part of a column in at most `buckets` points that keep its extremes."""
    step, values = curves["step"], curves.get(name, np.empty(0))
    step = step[: len(values)]
    finite = np.isfinite(values)
    step, values = step[finite], values[finite]
    first = np.unique(np.linspace(0, len(values), min(buckets, len(values)) + 1).astype(int)[:-1])
    if not len(first):
        nothing = np.empty(0)
        return Envelope(nothing, nothing, nothing, nothing)
    sizes = np.diff([*first, len(values)])
    return Envelope(
        step[first + sizes - 1],
        np.add.reduceat(values, first) / sizes,
        np.minimum.reduceat(values, first),
        np.maximum.reduceat(values, first),
    )


# --- One run -------------------------------------------------------------------------------------


@style.context(STYLE)
def score_figure(run: RunRecord) -> Figure:
    """Score over time with its spread over episodes, and the data's own as a line."""
    figure, axes = _single("Score" if run.scored else "Return")
    steps, column = run.evaluations["step"], run.evaluations[run.measure]
    spread = run.evaluations.get("score_std" if run.scored else "return_std")
    band = None if spread is None else (column - spread, column + spread)
    _line(axes, steps, column, band, color=PALETTE[0], marker="o", markersize=4)
    _data_line(axes, run)
    write_at(
        axes,
        f"{column[-1]:,.1f}",
        (steps[-1], column[-1]),
        (0, 7),
        ha="right",
        fontweight="bold",
        color=PALETTE[0],
    )
    _finish(axes, run.steps, "mean" if spread is None else "mean ± std over episodes")
    return figure


@style.context(STYLE)
def value_figure(run: RunRecord) -> Figure:
    """Q on the data against the discounted return of evaluation episodes."""
    figure, axes = _single("Q and discounted return")
    value = envelope(run.train, "q_data")
    band = (value.low, value.high)
    _line(axes, value.step, value.mean, band, color=PALETTE[1], label="Q on the data")
    for name, label, look in (
        ("q_start", "Q at episode starts", {"color": PALETTE[1], "linestyle": _DASHED}),
        ("discounted_mean", "return", {"color": PALETTE[0], "marker": "o", "markersize": 4}),
    ):
        if name in run.evaluations:
            axes.plot(run.evaluations["step"], run.evaluations[name], label=label, **look)
    _shared_legend(figure, [axes])
    _finish(axes, run.steps, "value")
    return figure


@style.context(STYLE)
def horizon_figure(run: RunRecord) -> Figure:
    """How far imagination went: median, interquartile band and longest rollout."""
    figure, axes = _single("Rollout horizons")
    _seeds_horizons(axes, [run], "median and quartiles", {"color": PALETTE[0]})
    longest = envelope(run.train, "horizon_max")
    axes.plot(
        longest.step,
        longest.mean,
        color=MUTED,
        linewidth=1.2,
        linestyle=_DASHED,
        label="longest",
    )
    _shared_legend(figure, [axes])
    _log2(axes)
    _finish(axes, run.steps, "imagined steps")
    return figure


@style.context(STYLE)
def uncertainty_figure(run: RunRecord) -> Figure | None:
    """Distribution of the posterior's uncertainty over the data, and where rollouts are cut."""
    values, zeta = run.uncertainty, run.settings.get("rollout.zeta")
    if values is None or values[-1] <= 0:
        return None
    share = np.arange(1, len(values) + 1) / len(values)
    middle = np.linspace(0, len(values) - 1, _BUCKETS).astype(int)
    tail = len(values) - np.geomspace(1, len(values), _BUCKETS).astype(int)  # in full
    shown = np.unique([*middle, *tail])
    figure, axes = _single("Uncertainty over the data")
    axes.plot(values[shown], share[shown], color=PALETTE[0])
    logarithmic(axes, "x")
    if zeta is not None:
        cut = float(np.quantile(values, zeta))
        axes.axvline(cut, color=PALETTE[3], linewidth=1.4)
        write_at(
            axes,
            f"U(ζ = {zeta:g}) = {cut:.3g}",
            (cut, 0.06),
            (-6, 0),
            ("data", "axes fraction"),
            ha="right",
            color=PALETTE[3],
        )
    axes.set(
        xlabel="U(s, a), in standard deviations of the data",
        ylabel="share of the data below",
        ylim=(0, 1.02),
    )
    return figure


@style.context(STYLE)
def survival_figure(run: RunRecord) -> Figure | None:
    """Share of episodes that still run, as the data has it and as the world learned it."""
    if run.termination is None:
        return None
    curves = run.termination["survival"]
    looks: dict[str, LineStyle] = {
        "data": {"label": "the data", "color": FAINT, "linewidth": 5},
        "recorded": {"label": "learned, on the data", "color": PALETTE[0]},
        "imagined": {
            "label": "learned, on imagined steps",
            "color": PALETTE[3],
            "linestyle": _DASHED,
        },
    }
    figure, axes = _single("Episodes still running")
    for name, look in looks.items():
        axes.plot([0, *curves["steps"]], [1, *curves[name]], **look)
    axes.set(
        xlabel="steps", ylabel="share without a terminal state", xlim=(0, None), ylim=(0, 1.03)
    )
    axes.legend(loc="lower left")
    return figure


_LOSSES = {
    "critic_loss": "Critic loss",
    "squared_error": "Squared error of actions",
    "actor_loss": "Actor loss",
    "entropy": "Entropy of the policy",
    "epsilon": "Share of random actions",
}


def losses(run: RunRecord) -> list[str]:
    """What of the learner to show: its loss, and the entropy of its policy or how often it acts at
    random."""
    known = [name for name in _LOSSES if len(finite_values(run.train, name))]
    return known[:1] + [name for name in ("entropy", "epsilon") if name in known[1:]][:1]


@style.context(STYLE)
def loss_figure(run: RunRecord) -> Figure:
    """A panel for each of `losses`."""
    chosen = losses(run)
    figure = Figure(figsize=_SIZE)
    panels = figure.subplots(1, len(chosen), squeeze=False)[0]
    for axes, name in zip(panels, chosen, strict=True):
        curve = envelope(run.train, name)
        band = (curve.low, curve.high)
        _line(axes, curve.step, curve.mean, band, color=PALETTE[0], linewidth=1.3)
        if name in ("critic_loss", "squared_error") and np.all(curve.low > 0):
            logarithmic(axes, "y")
        axes.set_title(_LOSSES[name])
        _finish(axes, run.steps, "", ticks=3)
    return figure


# --- Many runs -----------------------------------------------------------------------------------


LineStyle = dict[str, Any]
"""Colour and line of a group, the same in every figure of a report."""

LINE_STYLES: tuple[LineStyle, ...] = tuple(
    {"color": colour, "linestyle": line} for line in _LINES for colour in PALETTE
)


def line_styles(labels: Sequence[str]) -> dict[str, LineStyle]:
    """A line style for each group, in order."""
    return {label: LINE_STYLES[number % len(LINE_STYLES)] for number, label in enumerate(labels)}


@style.context(STYLE)
def curves_figure(
    panels: Mapping[str, Mapping[str, Group]], styles: Mapping[str, LineStyle]
) -> Figure:
    """Learning curves: a panel per dataset, a line per group with its seeds' range. Groups are
    named by what they are compared by, such as the value of a setting."""
    across = min(len(panels), 3 if len(panels) < 7 else 5)
    down = -(-len(panels) // across)
    width = _SIZE[0] if across == 1 else _WIDE + 3 * (across > 3)
    figure = Figure(figsize=(width, (3.3 if across < 3 else 2.9) * down + 0.5))
    grid = figure.subplots(down, across, squeeze=False).ravel()
    of_values = _styles_of_values(panels, styles)
    for axes, (dataset, groups) in zip(grid, panels.items(), strict=False):
        runs = [run for group in groups.values() for run in group.runs]
        first = representative(runs)
        for label, group in groups.items():
            _seeds_line(axes, group.runs, first.measure, label, of_values[label])
        _data_line(axes, first)
        axes.set_title(dataset, parse_math=False, fontsize=11 if across < 4 else 9)
        axes.margins(y=0.1)  # room for the label of the data's line
        _finish(axes, max(run.steps for run in runs), first.unit, ticks=5 if across < 4 else 3)
    for axes in grid[len(panels) :]:
        axes.remove()
    _shared_legend(figure, list(grid[: len(panels)]))
    return figure


def _styles_of_values(
    panels: Mapping[str, Mapping[str, Group]], styles: Mapping[str, LineStyle]
) -> dict[str, LineStyle]:
    """Each value is drawn as its group is elsewhere; in another style where two would be the same,
    as where the main setting has another value on another dataset."""
    chosen: dict[str, LineStyle] = {}
    for groups in panels.values():
        for value, group in groups.items():
            wanted = [styles[group.label], *LINE_STYLES]
            free = (one for one in wanted if one not in chosen.values())
            chosen.setdefault(value, next(free, LINE_STYLES[0]))
    return chosen


@style.context(STYLE)
def overview_figure(groups: Sequence[Group], styles: Mapping[str, LineStyle]) -> Figure:
    """The paper's figure of what matters: score, Q on the data and horizons, a line per group, of
    the first groups if there are many."""
    groups = groups[:MOST_GROUPS]
    everyone = [run for group in groups for run in group.runs]
    first = representative(everyone)
    figure = Figure(figsize=(_WIDE, 3.5))
    score, value, horizon = figure.subplots(1, 3)
    for group in groups:
        label, look = group.label, styles[group.label]
        _seeds_line(score, group.runs, first.measure, label, look)
        _seeds_line(value, group.runs, "q_data", label, look)
        dotted = look | {"linestyle": (0, (1.5, 1.5))}
        _seeds_line(value, group.runs, "discounted_mean", "_", dotted)
        _seeds_horizons(horizon, group.runs, label, look)
    _data_line(score, first)
    steps = max(run.steps for run in everyone)
    for axes, title in (
        (score, "Score" if first.scored else "Return"),
        (value, "Q on the data (dotted: return)"),
        (horizon, "Horizon: median, quartiles"),
    ):
        axes.set_title(title)
        _finish(axes, steps, "", ticks=3)
    _log2(horizon)
    _shared_legend(figure, [score, value, horizon])
    return figure


@style.context(STYLE)
def interval_figure(
    groups: Mapping[str, tuple[float, float, float]], styles: Mapping[str, LineStyle], unit: str
) -> Figure:
    """Interquartile means with their intervals, one below the other."""
    figure, axes = _single("Interquartile mean, 95 % interval", (_WIDE, 0.9 + 0.3 * len(groups)))
    for place, (label, (middle, low, high)) in enumerate(groups.items()):
        colour = styles[label]["color"]
        axes.plot([low, high], [place, place], color=colour, linewidth=6, alpha=0.35)
        axes.plot(middle, place, "o", color=colour)
    axes.set_yticks(range(len(groups)), list(groups), parse_math=False)
    axes.invert_yaxis()
    axes.margins(y=0.3 / len(groups) + 0.1)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(unit)
    return figure


def shared_steps(
    runs: Sequence[RunRecord], name: str
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "seeds n"]]:
    """A column of several runs on common steps: those that every run has reached."""
    source = "evaluations" if any(name in run.evaluations for run in runs) else "train"
    columns = [envelope(getattr(run, source), name) for run in runs]
    columns = [curve for curve in columns if len(curve.step)]
    if not columns:
        return np.empty(0), np.empty((0, 0))
    longest = max(columns, key=lambda curve: len(curve.step)).step
    end, begin = min(c.step[-1] for c in columns), max(c.step[0] for c in columns)
    steps = longest[(longest >= begin) & (longest <= end)]
    return steps, np.stack([np.interp(steps, c.step, c.mean) for c in columns])


@style.context(STYLE)
def maze_figure(
    maze: Sequence[str],
    cell: float,
    paths: Sequence[Float[np.ndarray, "_ 2"]],
    goals: Float[np.ndarray, "episodes 2"],
) -> Figure:
    """Where evaluation episodes went, seen from above: walls, paths, their ends, the goals."""
    rows, columns = len(maze), len(maze[0])
    height = 0.8 + (_SIZE[0] - 0.2) * rows / columns
    figure, axes = _single("Where episodes went", (_SIZE[0], height))
    for row, line in enumerate(maze):
        for column, letter in enumerate(line):
            if letter == "#":  # the start cell (1, 1) is centred at the origin
                corner = (cell * (column - 1.5), cell * (row - 1.5))
                axes.add_patch(Rectangle(corner, cell, cell, facecolor=FAINT, edgecolor=FAINT))
    for path in paths:
        axes.plot(path[:, 0], path[:, 1], color=PALETTE[3], linewidth=1, alpha=0.45)
    ends = np.array([path[-1] for path in paths])
    axes.plot(ends[:, 0], ends[:, 1], "o", color=PALETTE[0], markersize=4, label="ends")
    axes.plot(goals[:, 0], goals[:, 1], "*", color=PALETTE[2], markersize=9, label="goals")
    axes.plot(0, 0, "s", color=INK, markersize=6, label="start")
    axes.set(
        aspect="equal",
        xlim=(-1.5 * cell, (columns - 1.5) * cell),
        ylim=((rows - 1.5) * cell, -1.5 * cell),  # rows run downwards, as in the maze's text
        xticks=[],
        yticks=[],
    )
    axes.spines[:].set_visible(False)
    _shared_legend(figure, [axes])
    return figure


# --- Parts ---------------------------------------------------------------------------------------


def _single(title: str, size: tuple[float, float] = _SIZE) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size)
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def _line(
    axes: Axes,
    steps: Float[np.ndarray, " n"],
    values: Float[np.ndarray, " n"],
    band: tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]] | None,
    **look: Any,
) -> None:
    """A line, with a band around it where one is given."""
    if band is not None:
        axes.fill_between(steps, *band, color=look["color"], alpha=0.17, linewidth=0)
    axes.plot(steps, values, **look)


def _seeds_line(
    axes: Axes, runs: Sequence[RunRecord], name: str, label: str, look: LineStyle
) -> None:
    """The mean over seeds, and their range."""
    steps, values = shared_steps(runs, name)
    if len(steps):
        band = (values.min(axis=0), values.max(axis=0)) if len(values) > 1 else None
        _line(axes, steps, values.mean(axis=0), band, label=label, **look)


def _seeds_horizons(axes: Axes, runs: Sequence[RunRecord], label: str, look: LineStyle) -> None:
    """The mean over seeds of median and quartiles; a rollout of no step counts as half of one."""
    steps, _ = shared_steps(runs, "horizon_p50")
    if len(steps):
        low, middle, high = (
            np.maximum(shared_steps(runs, f"horizon_p{percent}")[1].mean(axis=0), 0.5)
            for percent in (25, 50, 75)
        )
        _line(axes, steps, middle, (low, high), label=label, **look)


def _data_line(axes: Axes, run: RunRecord) -> None:
    level = run.data_result
    if level is not None:
        axes.axhline(level, color=INK, linewidth=1.1, linestyle=_DASHED)
        write_at(
            axes,
            f"the data: {level:,.1f}",
            (0.99, level),
            (0, 3),
            ("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8.5,
        )


def _finish(axes: Axes, steps: int, label: str, ticks: int = 5) -> None:
    axes.set(xlabel="gradient steps", ylabel=label, xlim=(0, max(steps, 1)))
    set_ticks(axes.xaxis, MaxNLocator(nbins=ticks, integer=True), thousands)


def _log2(axes: Axes) -> None:
    """Powers of two, as many as there is room for."""
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    powers = range(int(np.floor(np.log2(max(low, 0.5)))), int(np.ceil(np.log2(max(high, 2)))) + 1)
    every = -(-len(powers) // 8)
    set_ticks(axes.yaxis, FixedLocator([2.0**power for power in powers[::every]]), "{:g}".format)
    axes.set_ylim(low, high)


def _shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    shown: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    longest = max((len(label) for label in shown), default=1)
    room = 16 * figure.get_figwidth() / (longest + 6)  # in letters of an inch
    columns = max(1, min(len(shown), 5, int(room)))
    figure.legend(shown.values(), shown.keys(), loc="outside lower left", ncols=columns)
