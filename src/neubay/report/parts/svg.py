"""Figures inside a page: SVG whose colours follow the page, light or dark."""

import io
import re
from html import escape

from matplotlib.figure import Figure

from neubay.report.parts.figures import COLOURS, FAINT, INK, MUTED, write

# A colour of the figures -> the variable of the page that stands for it.
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    FAINT: "faint",
    "#ffffff": "card",
    **{colour: name for name, colour in COLOURS.items()},
}

_COLOUR = re.compile("|".join(VARIABLES), flags=re.IGNORECASE)
_VARIABLES = {colour.lower(): f"var(--{name})" for colour, name in VARIABLES.items()}


def inline(figure: Figure, name: str, description: str) -> str:
    """A figure as an `svg` element that is read out as its description.

    Args:
        name: tells the figure's inner names apart from those of others on the page.
    """
    text = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": name}
    write(figure, text, settings, format="svg", metadata={"Date": None, "Creator": None})
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    # Its own style sheet would style the whole page.
    drawing = re.sub(r"<(metadata|style)\b.*?</\1>", "", drawing, flags=re.DOTALL)
    drawing = _COLOUR.sub(lambda found: _VARIABLES[found[0].lower()], drawing)
    drawing = drawing.replace("'DejaVu Sans'", "inherit")
    # Sizes in points would fix the picture's size: the view box alone lets it fill its place.
    opening, rest = drawing.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    label = escape(description, quote=True)
    unique = re.sub(r"[^a-z0-9]+", "-", name.lower())
    rest = _own_names(rest, unique)
    return f'{opening} role="img" aria-label="{label}">{rest}'


def _own_names(drawing: str, prefix: str) -> str:
    """Give every id, and what refers to it, a prefix: two figures share a page."""
    drawing = re.sub(r'\bid="', f'id="{prefix}-', drawing)
    drawing = re.sub(r'(xlink:href="|href=")#', rf"\1#{prefix}-", drawing)
    return drawing.replace("url(#", f"url(#{prefix}-")
