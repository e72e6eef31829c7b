"""How the library tells its user something: one sentence at a time, through a function."""

import logging
from collections.abc import Callable

Tell = Callable[[str], None]
"""Is given a sentence that the user should know."""


def log(text: str) -> None:
    """The default: standard error, unless logging is set up otherwise."""
    logging.getLogger("neubay").warning(text)


def duration(seconds: float) -> str:
    """A time in the unit that fits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
