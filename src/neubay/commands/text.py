"""Text from files and names, made fit for a terminal."""

import re

from rich import markup

# Control characters but for line breaks and tabs, and what turns the direction of writing around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Control characters are shown, such as \\x1b, and not obeyed by the terminal."""
    return _CONTROL.sub(lambda found: ascii(found.group(0))[1:-1], text)


def escape(text: str) -> str:
    """The same inside of rich's markup."""
    return markup.escape(harmless(text))
