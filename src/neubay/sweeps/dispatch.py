"""Jobs in front of an engine: a run is handed over when the worlds that it needs are there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neubay import world
from neubay.errors import SweepError
from neubay.runs import rundir
from neubay.sweeps.jobs import Engine, Job, Outcome

STOPS = 4
"""How often a run is begun again whose worker was asked to stop, as by a node that is shut down."""
Prepare = Callable[[], None]


@dataclass
class _Waiting:
    job: Job
    needs: list[Job]
    prepare: Prepare | None
    stops: int = 0


@dataclass
class Dispatch:
    """Worlds are trained once, whoever needs them, before the runs that do."""

    engine: Engine
    begun: list[Job] = field(default_factory=list)
    """Runs that were handed over since somebody looked."""
    worlds: int = 0
    """Worlds that were trained, judges among them."""

    def __post_init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._running: dict[int, Job | _Waiting] = {}
        self._in_training: set[str] = set()
        self._trained: set[str] = set()

    def add(self, job: Job, needs: Sequence[Job] = (), prepare: Prepare | None = None) -> None:
        """A run to do, after the worlds that it needs; `prepare` is called in between."""
        self._waiting.append(_Waiting(job, list(needs), prepare))

    def drop(self, directories: set[str]) -> None:
        """Forget runs that were not begun."""
        self._waiting = [each for each in self._waiting if each.job.directory not in directories]

    @property
    def hungry(self) -> bool:
        """There is room for more than what waits."""
        self._hand_over()
        return len(self._waiting) < self.engine.room

    @property
    def idle(self) -> bool:
        """Nothing waits, and nothing is being done."""
        return not self._waiting and not self._running

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """The runs that ended within so many seconds."""
        self._hand_over()
        ended: list[tuple[Job, Outcome]] = []
        for ticket, outcome in self.engine.wait(seconds):
            done = self._running.pop(ticket)
            if outcome.state == "refused":
                raise SweepError(outcome.problem)
            if isinstance(done, Job):
                ended += self._world_ended(done, outcome)
            elif outcome.state == "stopped" and done.stops < STOPS:
                done.stops += 1
                self._waiting.append(done)
            else:
                ended.append((done.job, outcome))
        self._hand_over()
        return ended

    def _world_ended(self, done: Job, outcome: Outcome) -> list[tuple[Job, Outcome]]:
        self._in_training.discard(done.directory)
        if outcome.state == "finished":
            if done.directory in self._trained:
                raise SweepError(
                    f"{done.directory}: a node has trained this world, and it is not seen here. "
                    "Set NEUBAY_CACHE to a folder that all nodes see, and give the same command"
                )
            self._trained.add(done.directory)
            self.worlds += 1
            return []
        if outcome.state == "stopped":  # it is begun again for whoever needs it
            return []
        lost = [
            each
            for each in self._waiting
            if any(need.directory == done.directory for need in each.needs)
        ]
        self._waiting = [each for each in self._waiting if each not in lost]
        return [(each.job, outcome) for each in lost]

    def _hand_over(self) -> None:
        for each in list(self._waiting):
            if self.engine.room <= 0:
                return
            missing = self._missing(each)
            for need in missing:
                if need.directory not in self._in_training and self.engine.room > 0:
                    self._in_training.add(need.directory)
                    self._running[self.engine.submit(need)] = need
            if missing or self.engine.room <= 0:
                continue
            if each.prepare is not None:
                each.prepare()
            self._waiting.remove(each)
            self._running[self.engine.submit(each.job)] = each
            self.begun.append(each.job)

    def _missing(self, waiting: _Waiting) -> list[Job]:
        if rundir.is_finished(Path(waiting.job.directory)):
            return []
        return [need for need in waiting.needs if not world.is_whole(Path(need.directory))]
