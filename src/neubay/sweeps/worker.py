"""A process that does one job after the other: `python -m neubay.sweeps.worker CORES`.

Jobs come as lines of JSON, outcomes go as lines of JSON. Where its input ends, the sweep is over or
was killed: the worker saves what it does, and ends.
"""

import contextlib
import os
import queue
import signal
import sys
import threading
from typing import IO

from neubay.runs.cache import keep_compiled_programs
from neubay.sweeps import cores


def main() -> None:
    cores.claim(int(sys.argv[1]))
    keep_compiled_programs()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever else is printed goes to the log
    from neubay.sweeps.jobs import Job
    from neubay.sweeps.work import do

    jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy, over = threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin, jobs, busy, over), daemon=True).start()
    while (line := jobs.get()) is not None:
        busy.set()
        if over.is_set():  # the sweep was killed while this process started
            return
        outcome = do(Job.read(line))
        busy.clear()
        with contextlib.suppress(BrokenPipeError):
            answers.write(outcome.text() + "\n")


def _listen(
    stream: IO[str],
    jobs: "queue.SimpleQueue[str | None]",
    busy: threading.Event,
    over: threading.Event,
) -> None:
    for line in stream:
        jobs.put(line)
    over.set()  # before looking, as the other side does it the other way round
    jobs.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
