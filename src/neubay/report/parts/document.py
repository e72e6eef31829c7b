"""The skeleton of a page, and its parts. Everything that comes from a file is escaped here."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from matplotlib.figure import Figure

from neubay import __version__
from neubay.report.parts import svg, tables
from neubay.report.parts.tables import Grid

# A page that cannot ask for anything: no script, no font, no picture but those inside it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def _part(name: str) -> str:
    return resources.files("neubay.report").joinpath(name).read_text(encoding="utf-8")


_LIVE = _part("live.js")
_SEAL = base64.b64encode(hashlib.sha256(_LIVE.encode()).digest()).decode("ascii")

# A page that may run this one script, which asks for the page itself and nothing else.
LIVE_POLICY = f"{POLICY}; script-src 'sha256-{_SEAL}'; connect-src 'self'"


@dataclass(frozen=True)
class Picture:
    """A figure with its name (of the file, and within the page) and what it says."""

    name: str
    figure: Figure
    caption: str
    wide: bool = False


def document(title: str, lead: str, body: Sequence[str], *, refresh: int | None = None) -> str:
    """A whole page. With `refresh`, it draws itself anew every so many seconds: by a script that
    keeps what a reader has opened, or by being loaded again where scripts are switched off."""
    live, again = "", ""
    if refresh:
        live = f"<script>{_LIVE}</script>"
        again = f'<noscript><meta http-equiv="refresh" content="{refresh}"></noscript>'
    attribute = f' data-refresh="{refresh}"' if refresh else ""
    policy = LIVE_POLICY if refresh else POLICY
    parts = [
        "<!doctype html>",
        f'<html lang="en"{attribute}>',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        again,
        f"<title>{escape(title)}</title>",
        f"<style>{_part('page.css')}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#content">Skip to the results</a>',
        f'<header class="top">{lead}</header>',
        f'<main id="content">{"".join(body)}</main>',
        f"<footer>Made by neubay {escape(__version__)}. Nothing on this page is loaded from "
        "elsewhere.</footer>",
        live,
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def heading(level: int, text: str, name: str = "") -> str:
    """A heading of level 1 to 6, to link to by its name."""
    anchor = f' id="{escape(name, quote=True)}"' if name else ""
    return f"<h{level}{anchor}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def badge(text: str) -> str:
    return f'<span class="badge {escape(text.split()[0], quote=True)}">{escape(text)}</span>'


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """Numbers first: name, number and a remark each; the first is the largest."""
    cells = [
        f'<div class="tile{" first" if number == 0 else ""}"><dt>{escape(name)}</dt>'
        f"<dd>{escape(value)}{f'<small>{escape(remark)}</small>' if remark else ''}</dd></div>"
        for number, (name, value, remark) in enumerate(facts)
    ]
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def picture(one: Picture, prefix: str) -> str:
    """A figure drawn into the page; the caption is also what is read out."""
    drawing = svg.inline(one.figure, f"{prefix}-{one.name}", one.caption)
    kind = ' class="wide" tabindex="0"' if one.wide else ""  # to scroll it where it is narrow
    return f"<figure{kind}>{drawing}<figcaption>{escape(one.caption)}</figcaption></figure>"


def pictures(many: Sequence[Picture], prefix: str) -> str:
    shown = "".join(picture(one, prefix) for one in many)
    return f'<div class="figures">{shown}</div>' if shown else ""


def image(data: bytes, kind: str, description: str) -> str:
    """A picture inside the page."""
    code = base64.b64encode(data).decode("ascii")
    return f'<img alt="{escape(description, quote=True)}" src="data:image/{kind};base64,{code}">'


def table(grid: Grid) -> str:
    return tables.html(grid)


def folded(summary: str, remark: str, content: str, *, kind: str = "", name: str = "") -> str:
    """Content behind its headline: opened by a click or a key."""
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' id="{escape(name, quote=True)}"' if name else ""
    small = f" <small>{escape(remark)}</small>" if remark else ""
    return f"<details{attributes}><summary>{escape(summary)}{small}</summary>{content}</details>"


def pairs(values: Mapping[str, Any]) -> str:
    """Names and values, two columns where there is room."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in values.items()
    )
    return f'<dl class="pairs">{cells}</dl>'


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
