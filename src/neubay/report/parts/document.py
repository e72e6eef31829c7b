"""Pages, made from templates. Everything that comes from a file is escaped by Jinja."""

import base64
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from neubay import __version__
from neubay.report.parts import svg
from neubay.report.parts.tables import Cell, Grid

# A page that cannot ask for anything: no script, no font, no picture but those inside it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def _part(name: str) -> str:
    return resources.files("neubay.report").joinpath("templates", name).read_text(encoding="utf-8")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_SCRIPT = _part("live.js")
_SEAL = _base64(hashlib.sha256(_SCRIPT.encode()).digest())

# A page that may run this one script, which asks for the page itself and nothing else.
LIVE_POLICY = f"{POLICY}; script-src 'sha256-{_SEAL}'; connect-src 'self'"


@dataclass(frozen=True)
class Picture:
    """A figure with its name (of the file, and within the page) and what it says."""

    name: str
    figure: Figure
    caption: str
    wide: bool = False

    def drawing(self, prefix: str) -> Markup:
        """As an `svg` element, which is read out as the caption."""
        return Markup(svg.inline(self.figure, f"{prefix}-{self.name}", self.caption))


def _classes(cell: Cell) -> str:
    """How a cell of a table looks, as class names."""
    shade = f"{'worse' if cell.shade < 0 else 'better'}{abs(cell.shade)}"
    words = cell.mean is None and cell.text != "-"
    chosen = {"words": words, "marked": cell.marked, shade: cell.shade}
    return " ".join(name for name, holds in chosen.items() if holds)


def _spoken(cell: Cell) -> str:
    """What its colours mean, in words."""
    change = {1: "3 to 10", 2: "10 to 30", 3: "more than 30"}.get(abs(cell.shade))
    way = "lower" if cell.shade < 0 else "higher"
    said = {"among the best": cell.marked, f"{change} {way}": cell.shade}
    return ", ".join(words for words, holds in said.items() if holds)


_TEMPLATES = Environment(
    loader=PackageLoader("neubay.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"base64": _base64, "classes": _classes, "spoken": _spoken}
_TEMPLATES.globals |= {
    "version": __version__,
    "style": Markup(_part("page.css")),
    "script": Markup(_SCRIPT),
}


def render(template: str, title: str, *, refresh: int | None = None, **values: Any) -> str:
    """A whole page. With `refresh`, it draws itself anew every so many seconds: by a script that
    keeps what a reader has opened, or by being loaded again where scripts are switched off."""
    policy = LIVE_POLICY if refresh else POLICY
    page = _TEMPLATES.get_template(template)
    return page.render(title=title, refresh=refresh, policy=policy, **values)


def table(grid: Grid) -> str:
    """A `table` that scrolls sideways on its own where the page is narrow."""
    return str(_TEMPLATES.get_template("parts.html").module.table(grid))  # type: ignore[attr-defined]
