"""Text from files and names, made fit for a terminal."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import rich.console
from rich import markup
from rich.segment import Segment
from rich.table import Table

# Control characters but for line breaks and tabs, and what turns the direction of writing around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Control characters are shown, such as \\x1b, and not obeyed by the terminal."""
    return _CONTROL.sub(lambda found: ascii(found.group(0))[1:-1], text)


def escape(text: str) -> str:
    """The same inside of rich's markup."""
    return markup.escape(harmless(text))


class Console(rich.console.Console):
    """Obeys nothing that is in a text, whoever wrote it: only what rich adds reaches the terminal
    as commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))


def say(text: str, file: Any = None) -> None:
    """Print a line as it is, for other programs to read, but for control characters."""
    print(harmless(text), file=file or sys.stdout, flush=True)


def told(console: Console) -> Callable[[str], None]:
    """Prints a sentence that the user should know."""
    return lambda text: console.print(harmless(text), markup=False, soft_wrap=True)


def show_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Names in bold, and beside each its text."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for name, text in facts.items():
        table.add_row(name, escape(text))
    console.print(table)
