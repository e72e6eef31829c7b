"""Figures, in one style. A figure is drawn from plain records, as they stand in result files."""

import math
import warnings
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")  # files only: no window system is needed

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import Locator, LogLocator, NullLocator
from PIL import Image

from neubay.errors import NeubayError, refusal_reported

# Okabe and Ito's palette, told apart by every kind of colour vision; black is left to text.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "sky": "#56B4E9",
    "purple": "#CC79A7",
    "yellow": "#F0E442",
}
INK = "#222222"
MUTED = "#6B6B6B"
FAINT = "#D9D9D9"

STYLE: dict[str, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same everywhere
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "axes.prop_cycle": cycler(color=list(COLOURS.values())),
}


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, PDF or SVG, by the suffix of its name."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise NeubayError(f"{path}: a figure is a .png, .pdf or .svg file.")
    with refusal_reported(
        NeubayError,
        f"{path}: cannot be written",
        ". Choose a path in a folder you may write to.",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(figure, path)


def draw(figure: Figure, path: Path) -> None:
    """The same, into a folder that is there."""
    write(figure, path)
    if path.suffix.lower() == ".png":
        with Image.open(path) as image:  # 256 colours do, at a third of the size
            image.convert("RGB").quantize(256).save(path, optimize=True)


def write(
    figure: Figure, target: Path | StringIO, settings: dict[str, Any] | None = None, **options: Any
) -> None:
    """Draw a figure in its style, with more `settings` of Matplotlib, into a file."""
    with style.context({**STYLE, **(settings or {})}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is all.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(target, **options)


def logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with ticks at 1, 2, 5 where it is short, at few decades where it is
    long."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    short = high < 200 * low
    set_ticks(axis, LogLocator(subs=(1, 2, 5) if short else (1,), numticks=7), decade)


def set_ticks(axis: Axis, places: Locator, label: Callable[[float], str]) -> None:
    """Labelled ticks at these places, and none between them."""
    axis.set_major_locator(places)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: label(value))


def panel_grid(
    count: int, columns: int, size: tuple[float, float], **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, at most `columns` of them side by side, of that size in inches
    each. `shared` says which axes they share."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count].tolist()


def decade(value: float) -> str:
    """A tick of a logarithmic axis: in full, or as a power of ten where that is long."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:g}"
    sign = "-" if value < 0 else ""
    return f"${sign}10^{{{round(math.log10(abs(value)))}}}$"


def thousands(value: float) -> str:
    """A count on an axis: 500, 10k, 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def write_at(
    axes: Axes,
    text: str,
    at: tuple[Any, Any],
    offset: tuple[int, int] = (0, 0),
    coordinates: Any = "data",
    **how: Any,
) -> None:
    """Write beside a place, `offset` points away from it."""
    axes.annotate(text, at, xycoords=coordinates, xytext=offset, textcoords="offset points", **how)
