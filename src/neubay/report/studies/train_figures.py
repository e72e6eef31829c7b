"""Learning curves of condensed runs: the paper's first figure, and datasets side by side."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from neubay.errors import NeubayError
from neubay.report.parts.figures import COLOURS, MUTED, STYLE, thousands
from neubay.report.studies import train_tables

Run = Mapping[str, Any]

_MAIN = "neubay"
_ORDER = ("vermilion", "orange", "sky", "blue", "green", "purple")  # short horizons are warm


def curves_figure(runs: Sequence[Run]) -> Figure:
    """Runs of one dataset over zeta, or several datasets side by side."""
    if not runs:
        raise NeubayError("there is no run to draw")
    one = len({run["dataset"] for run in runs}) == 1
    return horizon_figure(runs) if one else datasets_figure(runs)


def horizon_figure(runs: Sequence[Run]) -> Figure:
    """Performance, Q on the data and rollout horizons, a line per threshold quantile zeta.

    Lines are means over seeds, bands their range; the horizons' band is the interquartile range.
    """
    zetas = sorted({_zeta(run) for run in runs})
    scored = all(run["score"] is not None for run in runs)
    with style.context(STYLE):
        figure = Figure(figsize=(10.5, 3.4))
        performance, value, horizon = figure.subplots(1, 3)
        for zeta, name in zip(zetas, _ORDER, strict=False):
            group = [run for run in runs if _zeta(run) == zeta]
            label = "no cut" if math.isinf(zeta) else f"ζ = {zeta:g}"
            colour = COLOURS[name]
            _line(performance, group, "score" if scored else "return_mean", colour, label)
            _line(value, group, "q_data", colour, label)
            _line(value, group, "discounted_mean", colour, None, linestyle=(0, (2, 2)))
            _line(horizon, group, "horizon_p50", colour, label)
            low, high = (_curves(group, f"horizon_{q}")[1].mean(axis=0) for q in ("p25", "p75"))
            horizon.fill_between(
                _curves(group, "horizon_p50")[0], low, high, color=colour, alpha=0.18, linewidth=0
            )
        data = runs[0]["data_score"] if scored else runs[0]["data_return_mean"]
        performance.axhline(data, color=MUTED, linewidth=1, linestyle=":")
        performance.annotate("the data", (1, data), xycoords=("axes fraction", "data"), ha="right",
                             va="bottom", color=MUTED, fontsize=8)  # fmt: skip
        performance.set_title("Normalised score" if scored else "Return")
        value.set_title("Q on the data (dashed: paid)")
        horizon.set_title("Horizon: median, quartiles")
        horizon.set_yscale("log", base=2)
        horizon.yaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
        for axes in (performance, value, horizon):
            axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: thousands(step)))
        figure.supxlabel("gradient steps", fontsize=10)
        figure.legend(*performance.get_legend_handles_labels(), loc="outside upper left", ncols=6)
    return figure


def datasets_figure(runs: Sequence[Run]) -> Figure:
    """A panel per dataset: the curve of every seed, with the data's own score and, where they were
    run, the last score of cloning it.

    Of each seed the run nearest to the preset is drawn.
    """
    datasets = train_tables.grouped(runs, "dataset")
    columns = min(5, len(datasets))
    rows = math.ceil(len(datasets) / columns)
    with style.context(STYLE):
        figure = Figure(figsize=(2.3 * columns + 0.6, 2.2 * rows + 0.7))
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, (dataset, members) in zip(panels, datasets.items(), strict=False):
            variants = train_tables.grouped(members, "variant")
            key, data = train_tables.yardstick(members[0])
            axes.axhline(data, color=MUTED, linestyle=":", label="the data")
            clones = train_tables.closest_to_the_preset(variants.get("bc", []))
            if clones:
                mean = fmean(run[key] for run in clones)
                axes.axhline(mean, color=COLOURS["orange"], linestyle="--", label="copied (bc)")
            for run in train_tables.closest_to_the_preset(variants.get(_MAIN, [])):
                steps, values = _curves([run], key)
                axes.plot(steps, values[0], color=COLOURS["blue"], label=_MAIN, alpha=0.85)
            axes.set_title(dataset.removesuffix("_train").replace("_", " "), fontsize=9)
            axes.margins(y=0.1)
            axes.xaxis.set_major_locator(MaxNLocator(2))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: thousands(step)))
        for axes in panels[len(datasets) :]:
            axes.set_visible(False)
        handles = {
            label: handle
            for axes in panels
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=3)
        figure.supxlabel("gradient steps", fontsize=10)
        scored = all(run["score"] is not None for run in runs)
        figure.supylabel("score" if scored else "score or return", fontsize=10)
    return figure


def _zeta(run: Run) -> float:
    return math.inf if run["zeta"] is None else run["zeta"]


def _curves(group: Sequence[Run], name: str) -> tuple[list[int], Float[np.ndarray, "seeds points"]]:
    """The points that all runs of a group share."""
    shared = min(len(run["curve"]) for run in group)
    steps = [point["step"] for point in group[0]["curve"][:shared]]
    values = [[point.get(name, math.nan) for point in run["curve"][:shared]] for run in group]
    return steps, np.asarray(values, np.float64)


def _line(
    axes: Axes, group: Sequence[Run], name: str, colour: str, label: str | None, **how: Any
) -> None:
    steps, values = _curves(group, name)
    axes.plot(steps, values.mean(axis=0), color=colour, label=label, **how)
    if len(values) > 1 and label is not None and name != "horizon_p50":
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
