"""Files on disk: where the cache is, and writing a file whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neubay.errors import DatasetError

CACHE_VARIABLE = "NEUBAY_CACHE"


def cache_directory() -> Path:
    """Where downloads and generated data are kept: `$NEUBAY_CACHE`, or `~/.cache/neubay`."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    try:
        return Path.home() / ".cache" / "neubay"
    except RuntimeError:  # a process without a home, as in some containers
        return Path(tempfile.gettempdir()) / "neubay-cache"


@contextmanager
def written_whole(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A path to write a file or a folder to, which becomes `target` if the block succeeds.

    Readers see the old target or the complete new one, never a part: the work is done under a
    temporary name beside the target and renamed at the end, or removed if the block fails.
    """
    if not overwrite:
        refuse_existing(target)
    workshop: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", dir=target.parent))
        draft = workshop / target.name
        yield draft
        _replace(draft, target, workshop / "old")
    except OSError as error:
        raise DatasetError(
            f"{target}: cannot be written: {error.strerror or error}. "
            "Choose a path in a folder you may write to."
        ) from error
    finally:
        if workshop is not None:
            shutil.rmtree(workshop, ignore_errors=True)


def refuse_existing(target: Path) -> None:
    """Raise where `target` is in the way of something new."""
    if os.path.lexists(target):
        raise DatasetError(
            f"{target}: exists already. Choose another path, or overwrite it with --force."
        )


def _replace(draft: Path, target: Path, old: Path) -> None:
    """Rename `draft` to `target`; a folder in the way is set aside to `old` first, because only
    files can be replaced in one step."""
    if target.is_dir() and not target.is_symlink():
        target.rename(old)
        try:
            draft.rename(target)
        except OSError:
            old.rename(target)
            raise
    else:
        draft.replace(target)
