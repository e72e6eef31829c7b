"""Stopping safely: SIGINT and SIGTERM are answered where everything is whole."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

GRACE = 20.0
"""Seconds that SIGTERM leaves a training to reach a safe point: less than a supervisor waits before
it kills."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Stopped(Interrupted):
    """It was answered at a safe point: what was done is saved."""


_deferred: list[int] | None = None  # signals that arrived while they are deferred


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], int]]:
    """Defer SIGINT and SIGTERM; the yielded function gives the one that has arrived, or 0.

    The caller asks at points where its state is whole, saves, and raises `Stopped`; where nothing
    is left to save, `stop_if_signalled` does. A second signal stops at once, with what the last
    checkpoint has. Inside another such block this one shares its signals, also in another thread;
    outside the main thread alone, signals cannot be deferred, and none arrive.

    SIGTERM is answered within `GRACE` seconds also where no safe point comes, as in a device call
    over a very long episode, from which Python does not return: the process ends, and resumes
    from its last checkpoint.
    """
    global _deferred
    if _deferred is not None or threading.current_thread() is not threading.main_thread():
        shared = _deferred
        yield lambda: shared[0] if shared else 0
        return
    arrived: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        if arrived:
            raise Interrupted(signum)
        arrived.append(signum)

    _deferred = arrived
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _enforced():
            yield lambda: arrived[0] if arrived else 0
    finally:
        _deferred = None
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_if_signalled() -> None:
    """A safe point: raises `Stopped` if a signal has arrived."""
    if _deferred:
        raise Stopped(_deferred[0])


uncut = threading.Lock()
"""What is written under it is written whole, also when the time that SIGTERM leaves is up."""


@contextlib.contextmanager
def _enforced() -> Iterator[None]:
    """End the process `GRACE` seconds after SIGTERM, unless the block ends before."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    over = threading.Event()
    try:
        if before != -1:  # an event loop, such as a notebook's, has it: leave it alone
            signal.set_wakeup_fd(before)
            ours.close()
        else:
            threading.Thread(target=_end_late, args=(ours, over), daemon=True).start()
        yield
    finally:
        over.set()
        if before == -1:
            signal.set_wakeup_fd(-1)
        theirs.close()  # ends the thread


def _end_late(signals: socket.socket, over: threading.Event) -> None:
    with signals:  # open to the end: Python writes every further signal to it, and complains if not
        while signal.SIGTERM not in (arrived := signals.recv(16)):
            if not arrived:  # closed: the block is over
                return
        if over.wait(GRACE):
            return
        with uncut:
            if over.wait(1.0):
                return
            print(
                f"SIGTERM: in the middle of a computation of more than {GRACE:.0f} s; ended. What "
                "was saved before is untouched: the same command resumes from the last checkpoint",
                file=sys.stderr,
                flush=True,
            )
            os._exit(128 + signal.SIGTERM)
