"""The engine of this machine: processes, each on cores of its own, each doing one job at a time."""

import contextlib
import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from neubay.runs.signals import GRACE
from neubay.sweeps import cores
from neubay.sweeps.jobs import Job, Outcome

TRIES = 4
"""How often a job is begun whose worker dies."""


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    ticket: int | None = None


class Local:
    """Does jobs in processes of this machine. A worker that dies is replaced, and its job resumed.

    Args:
        jobs: workers; by default one for every core.
        log: where workers write what they have to say.
        threads: of a worker's programs; by default as many as it has cores.
    """

    def __init__(
        self, jobs: int | None = None, log: Path | None = None, *, threads: int | None = None
    ) -> None:
        available = len(cores.available())
        self.workers = jobs or available
        self._cores = max(available // self.workers, 1)
        self._log, self._environment = log, os.environ | cores.threads(threads)
        self._pool: list[_Worker] = []
        self._jobs: dict[int, Job] = {}
        self._tries: dict[int, int] = {}
        self._waiting: list[int] = []
        self._selector = selectors.DefaultSelector()

    @property
    def room(self) -> int:
        return self.workers - len(self._jobs)

    @property
    def processes(self) -> list[int]:
        """The numbers of the workers."""
        return [worker.process.pid for worker in self._pool]

    def submit(self, job: Job) -> int:
        ticket = len(self._tries)
        self._jobs[ticket], self._tries[ticket] = job, 0
        self._waiting.append(ticket)
        self._hand_out()
        return ticket

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        ended: list[tuple[int, Outcome]] = []
        for key, _ in self._selector.select(seconds):
            worker: _Worker = key.data
            line = worker.process.stdout.readline()  # type: ignore[union-attr]
            if not line.endswith("\n"):
                ended += self._bury(worker)
                continue
            assert worker.ticket is not None
            ended.append((worker.ticket, Outcome.read(line)))
            del self._jobs[worker.ticket]
            worker.ticket = None
        self._hand_out()
        return ended

    def stop(self) -> None:
        """Ends the input of all workers, which makes them save and end."""
        for worker in self._pool:
            with contextlib.suppress(OSError):
                worker.process.stdin.close()  # type: ignore[union-attr]
        deadline = time.monotonic() + 2 * GRACE
        for worker in self._pool:
            try:
                worker.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.process.stdout.close()  # type: ignore[union-attr]
        self._pool.clear()
        self._jobs.clear()
        self._waiting.clear()
        self._selector.close()

    def _hand_out(self) -> None:
        while self._waiting:
            idle = next((worker for worker in self._pool if worker.ticket is None), None)
            if idle is None:
                if len(self._pool) == self.workers:
                    return
                idle = self._start()
            ticket = self._waiting[0]
            idle.ticket = ticket
            self._tries[ticket] += 1
            self._waiting.pop(0)
            with contextlib.suppress(BrokenPipeError):  # it has died: `wait` will see it
                idle.process.stdin.write(self._jobs[ticket].text() + "\n")  # type: ignore[union-attr]
                idle.process.stdin.flush()  # type: ignore[union-attr]

    def _start(self) -> _Worker:
        command = [sys.executable, "-m", "neubay.sweeps.worker", str(self._cores)]
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log or os.devnull, "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the sweep, which then stops its workers
            )
        worker = _Worker(process)
        self._pool.append(worker)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
        return worker

    def _bury(self, worker: _Worker) -> list[tuple[int, Outcome]]:
        """Its job is resumed by another worker, unless it has cost several."""
        self._selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        for stream in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        code = worker.process.wait()
        self._pool.remove(worker)
        if (ticket := worker.ticket) is None:
            return []
        if self._tries[ticket] < TRIES:
            self._waiting.append(ticket)
            return []
        name, log = self._jobs.pop(ticket).name, f"; see {self._log}" if self._log else ""
        problem = f"{name}: its worker died {TRIES} times, the last time with code {code}{log}"
        return [(ticket, Outcome("lost", problem=problem))]
