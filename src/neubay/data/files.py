"""Files of data: where the cache is, and writing a file or a folder whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from neubay.errors import DatasetError, reason
from neubay.runs.files import atomic

CACHE_VARIABLE = "NEUBAY_CACHE"


def cache_directory() -> Path:
    """Where downloads, generated data and worlds are kept: `$NEUBAY_CACHE`; or `~/.cache/neubay`,
    where version 0.1 kept them; or the system's folder for such things, which on Linux is the same.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    try:
        former = Path.home() / ".cache" / "neubay"
    except RuntimeError:  # a process without a home, as in some containers
        return Path(tempfile.gettempdir()) / "neubay-cache"
    return former if former.is_dir() else user_cache_path("neubay", appauthor=False)


@contextmanager
def written_whole(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A path to write a file or a folder to, which becomes `target` if the block succeeds."""
    if not overwrite:
        refuse_existing(target)
    try:
        with atomic(target) as draft:
            yield draft
    except OSError as error:
        raise DatasetError(
            f"{target}: cannot be written: {reason(error)}. "
            "Choose a path in a folder you may write to."
        ) from error


def refuse_existing(target: Path) -> None:
    """Raise where `target` is in the way of something new."""
    if os.path.lexists(target):
        raise DatasetError(
            f"{target}: exists already. Choose another path, or overwrite it with --force."
        )
