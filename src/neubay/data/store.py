"""Tapes too large for memory: a folder of .npy files, opened by memory map."""

import mmap

from neubay.tape import Tape


def release(tape: Tape) -> None:
    """Let go of the pages of a memory-mapped tape that were read so far.

    They stay in the system's file cache; only the process no longer counts them as its own.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for field in tape:
        base = getattr(field, "base", None)
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)
