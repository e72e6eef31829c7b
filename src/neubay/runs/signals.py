"""Stopping safely: SIGINT and SIGTERM are answered where everything is whole."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


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
    checkpoint has. Inside another such block this one shares its signals. Outside the main thread
    signals cannot be deferred, and none arrive.
    """
    global _deferred
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    outermost = _deferred is None
    arrived: list[int] = [] if _deferred is None else _deferred

    def note(signum: int, frame: FrameType | None) -> None:
        if arrived:
            raise Interrupted(signum)
        arrived.append(signum)

    if not outermost:
        yield lambda: arrived[0] if arrived else 0
        return
    _deferred = arrived
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: arrived[0] if arrived else 0
    finally:
        _deferred = None
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_if_signalled() -> None:
    """A safe point: raises `Stopped` if a signal has arrived."""
    if _deferred:
        raise Stopped(_deferred[0])
