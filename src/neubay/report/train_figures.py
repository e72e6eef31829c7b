"""Learning curves of condensed runs: the paper's first figure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from neubay.errors import NeubayError
from neubay.report.figures import COLOURS, MUTED, STYLE, thousands

Run = Mapping[str, Any]

_ORDER = ("vermilion", "orange", "sky", "blue", "green", "purple")  # short horizons are warm


def horizon_figure(runs: Sequence[Run]) -> Figure:
    """Performance, Q on the data and rollout horizons, a line per threshold quantile zeta.

    Lines are means over seeds, bands their range; the horizons' band is the interquartile range.
    """
    zetas = sorted({_zeta(run) for run in runs})
    if not zetas or len({run["dataset"] for run in runs}) != 1:
        raise NeubayError("the figure compares runs of one dataset")
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
