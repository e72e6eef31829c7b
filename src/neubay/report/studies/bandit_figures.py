"""Pictures of the bandit of Section 3, from the records that `neubay bandit` writes.

Every figure takes several summaries, which differ in their seeds: lines are means over them, bands
go from the lowest to the highest, or thin lines are the seeds themselves.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neubay.report.parts.figures import COLOURS, INK, MUTED, STYLE

Summary = dict[str, Any]

# From the worst arm to the best: two that are worse than arm 0, one barely and two much better.
_BANDIT_COLOURS = ("#9E2A2B", "#E07A5F", "#8C8C8C", "#4FA3D1", "#0B4F8A")
_AGENT_COLOURS = (COLOURS["blue"], COLOURS["green"], COLOURS["orange"], COLOURS["vermilion"])
_DASHED = (0, (4, 2.5))


@style.context(STYLE)
def ensemble_figure(summaries: Sequence[Summary]) -> Figure:
    """Histogram of the members' mean rewards per arm: sharp where there is data, wide where not."""
    figure = Figure(figsize=(6.4, 0.6 + 2.2 * len(summaries)))
    panels = figure.subplots(len(summaries), 1, squeeze=False, sharex=True)[:, 0]
    for axes, summary in zip(panels, summaries, strict=True):
        means = np.asarray(summary["ensemble_means"])
        bins = np.linspace(min(0.0, means.min()), max(1.0, means.max()), 41)
        for arm, colour in ((1, COLOURS["orange"]), (0, COLOURS["blue"])):
            axes.hist(
                means[:, arm],
                bins=bins,
                color=colour,
                alpha=0.85,
                label=f"arm {arm}: U = {summary['uncertainty'][str(arm)]:.3f}",
            )
        axes.axvline(0.5, color=MUTED, linewidth=1, linestyle=_DASHED)
        axes.legend(loc="upper right", reverse=True)
        ratio = f"U(1) is {summary['uncertainty_ratio']:.0f} times U(0)"
        axes.set(title=f"seed {summary['seed']}: {ratio}", ylabel="members")
    panels[-1].set_xlabel("estimated mean reward (dashed: the true mean of arm 0)")
    return figure


@style.context(STYLE)
def returns_figure(summaries: Sequence[Summary]) -> Figure:
    """Return per pull against gradient steps, a panel per test bandit and a line per lambda."""
    first = summaries[0]
    figure = Figure(figsize=(12, 3.4))
    panels = figure.subplots(1, len(first["test_p1"]))
    for axes, p1 in zip(panels, first["test_p1"], strict=True):
        _draw_returns(axes, summaries, f"{p1:g}")
    panels[0].set_ylabel("return per pull")
    figure.supxlabel("gradient steps", fontsize=10)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


def _draw_returns(axes: Axes, summaries: Sequence[Summary], p1: str) -> None:
    for number, name in enumerate(summaries[0]["agents"]):
        curves = [summary["agents"][name]["curve"] for summary in summaries]
        steps = [point["step"] for point in curves[0]]
        returns = np.array([[point["mean_return"][p1] for point in curve] for curve in curves])
        colour = _AGENT_COLOURS[number % len(_AGENT_COLOURS)]
        axes.plot(steps, returns.mean(axis=0), color=colour, label=_agent(name))
        if len(returns) > 1:
            ends = (returns.min(axis=0), returns.max(axis=0))
            axes.fill_between(steps, *ends, color=colour, alpha=0.18, linewidth=0)
    agent = next(iter(summaries[0]["agents"]))
    best = [summary["agents"][agent]["bandits"][p1]["optimal_return"] for summary in summaries]
    axes.axhline(
        float(np.mean(best)),
        color=INK,
        linewidth=1.2,
        linestyle=_DASHED,
        label="exact optimum for λ = 0",
    )
    axes.axhline(0.5, color=MUTED, linewidth=0.9, linestyle=":")
    axes.set(title=f"p₁ = {p1}", xlim=(0, None), ylim=(min(0.3, axes.get_ylim()[0]), None))
    axes.locator_params(axis="x", nbins=3)


@style.context(STYLE)
def adaptation_figure(summaries: Sequence[Summary]) -> Figure:
    """Share of pulls of arm 1 over an episode's steps, a panel per lambda, a line per bandit."""
    first = summaries[0]
    names = list(first["agents"])
    figure = Figure(figsize=(3.1 * len(names) + 0.6, 3.4))
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        for p1, colour in zip(first["test_p1"], _BANDIT_COLOURS, strict=True):
            bandits = [summary["agents"][name]["bandits"][f"{p1:g}"] for summary in summaries]
            shares = np.array([bandit["arm_one"] for bandit in bandits])
            steps = list(range(shares.shape[1]))
            axes.plot(steps, shares.mean(axis=0), color=colour, label=f"p₁ = {p1:g}")
            # Bands of agents of which some explore and some do not would cover everything.
            axes.plot(steps, shares.T, color=colour, linewidth=0.7, alpha=0.4)
            optimum = np.mean([bandit["optimal_arm_one"] for bandit in bandits], axis=0)
            axes.plot(steps, optimum, color=colour, linewidth=1, linestyle=_DASHED)
        axes.set(title=_agent(name), ylim=(-0.02, 1.03))
    panels[0].set_ylabel("share of pulls of arm 1")
    figure.supxlabel(
        "step of the episode (thin: each seed; dashed: exact optimum of that λ)", fontsize=10
    )
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=5)
    return figure


def _agent(name: str) -> str:
    return "λ = 0 (Bayesian)" if float(name) == 0 else f"λ = {name}"
