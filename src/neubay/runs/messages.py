"""How the library tells its user something: one sentence at a time, through a function."""

import logging
from collections.abc import Callable

Tell = Callable[[str], None]
"""Is given a sentence that the user should know."""


def log(text: str) -> None:
    """The default: standard error, unless logging is set up otherwise."""
    logging.getLogger("neubay").warning(text)
