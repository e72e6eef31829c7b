"""How the library tells its user something: one sentence at a time, through a function."""

import logging
from collections.abc import Callable

Report = Callable[[str], None]
"""Is told in a sentence what a user should know."""


def log(text: str) -> None:
    """The report of who names no other: standard error, unless logging is set up otherwise."""
    logging.getLogger("neubay").warning(text)
