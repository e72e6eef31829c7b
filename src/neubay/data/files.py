"""Files of data: writing a file or a folder whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neubay.errors import DatasetError, refusal_reported
from neubay.runs.files import atomic


@contextmanager
def written_whole(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A path to write a file or a folder to, which becomes `target` if the block succeeds."""
    if not overwrite:
        refuse_existing(target)
    with (
        refusal_reported(
            DatasetError,
            f"{target}: cannot be written",
            ". Choose a path in a folder you may write to.",
        ),
        atomic(target) as draft,
    ):
        yield draft


def refuse_existing(target: Path) -> None:
    """Raise where `target` is in the way of something new."""
    if os.path.lexists(target):
        raise DatasetError(
            f"{target}: exists already. Choose another path, or overwrite it with --force."
        )
