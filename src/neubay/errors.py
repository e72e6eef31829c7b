"""Errors that are part of the interface.

Every error a user can cause is a `NeubayError`: its message says what was wrong, where,
and what to do. The command line prints the message alone; the Python API raises it.
"""

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any


class NeubayError(Exception):
    """Base of every error caused by input rather than by a bug."""


class DatasetError(NeubayError):
    """A dataset cannot be read, or what was read is not a valid dataset."""


class TaskError(NeubayError):
    """A task is unknown, wrongly registered, or cannot do what was asked of it."""


class ConfigError(NeubayError):
    """A configuration value, key or file is wrong."""


class WorldError(NeubayError):
    """A world cannot be trained, read, or does not fit the data it is used with."""


class RunError(NeubayError):
    """A run directory is unreadable, in use, or does not match what was asked."""


class TrainingError(NeubayError):
    """A training cannot go on, or would not fit into the machine."""


class SweepError(NeubayError):
    """A sweep cannot go on here and now: an engine, a node or its disk is in the way."""


def reason(error: Exception) -> str:
    """Why the system refused, in its own words: HDF5 hides them in a paragraph, and NumPy has
    none."""
    text = " ".join(str(error).split())
    if inside := re.search(r"error message = '([^']+)'", text):
        return inside.group(1)
    if short := re.fullmatch(r"(\d+) requested and (\d+) written", text):
        return f"only {short[2]} of {short[1]} values were taken, as by a full disk"
    return getattr(error, "strerror", None) or text or type(error).__name__


def imported(module: str, otherwise: NeubayError) -> Any:
    """A module of a package that may be missing, which is then said by the error."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise otherwise from None


@contextlib.contextmanager
def renamed(found: type[Exception], to: type[Exception]) -> Iterator[None]:
    """An error of one kind inside as one of another kind, with its message."""
    try:
        yield
    except found as error:
        raise to(str(error)) from None


@contextlib.contextmanager
def refusal_reported(kind: type[NeubayError], what: str, remedy: str = "") -> Iterator[None]:
    """Inside, the system may refuse something: then it is said what could not be done, why, and
    what to do."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {reason(error)}{remedy}") from error


DAMAGE = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError),
    *(RecursionError, ZeroDivisionError),
)
"""What arises where a result file holds other things than were written."""


@contextlib.contextmanager
def damage_reported(file: object) -> Iterator[None]:
    """Inside, a result file is read or shown: where it holds other things than were written, that
    is said of the file."""
    try:
        yield
    except DAMAGE as error:
        raise RunError(
            f"{file}: damaged, or of another version ({type(error).__name__}: {str(error)[:200]})"
        ) from None
