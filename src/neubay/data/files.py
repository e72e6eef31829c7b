"""Files of data: writing a file or a folder whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neubay.errors import DatasetError, reason
from neubay.runs.files import atomic


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
