"""One large posterior: the pool of a world in shards, each trained by a worker, with a barrier
after every epoch. Members are independent but for the common stop, which is decided here.

A task is "train this shard up to the end of this epoch", from wherever its checkpoint is. Members
depend, in their last bits, on how many of them take a step side by side and on the threads of a
program: both are those of one process that would train the whole pool here, and are written down
when the training begins, so that it can be resumed anywhere and with any number of workers.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from neubay.config import TrainConfig, WorldConfig, updated
from neubay.errors import RunError, WorldError, damage_reported
from neubay.runs.files import atomic_write_json, read_json
from neubay.runs.signals import stop_if_signalled
from neubay.sweeps import cores
from neubay.sweeps.dispatch import Dispatch
from neubay.sweeps.jobs import Engine
from neubay.sweeps.loop import POLL
from neubay.sweeps.plan import Plan
from neubay.world.fitting import SHARDS_FILE, Elsewhere
from neubay.world.pool import (
    Course,
    MemberScores,
    Shard,
    Show,
    State,
    best_of_shard,
    most_epochs,
    training_epochs,
)
from neubay.world.training import best_layout, joined

MakeEngine = Callable[[Plan], Engine]


@dataclass
class _Record:
    """The file: how the pool was split, which stays, and the time spent."""

    bounds: list[int]
    """Where shards begin, and the end of the last."""
    group: int
    threads: int
    seconds: float = 0.0

    @property
    def shards(self) -> list[Shard]:
        pairs = zip(self.bounds[:-1], self.bounds[1:], strict=True)
        return [Shard(first, last, self.group) for first, last in pairs]


def in_shards(plan: Callable[[Path], Plan], config: TrainConfig, engine: MakeEngine) -> Elsewhere:
    """Trains a pool with an engine, for `world.fit`. `plan` is given the folder of the shards."""

    def train(settings: WorldConfig, folder: Path, show: Show) -> State:
        settled = updated(config, {"world": settings.model_dump()})
        return _Barrier(plan(folder), settled, show).run(engine)

    return train


def split(pool: int, group: int, shards: int) -> list[int]:
    """Where shards of whole groups begin that are as equal as can be, and the end of the last."""
    groups = pool // group
    shards = min(shards, groups)
    return [number * groups // shards * group for number in range(shards + 1)]


class _Barrier:
    """Has all shards trained epoch by epoch, until the pool as a whole is to stop."""

    def __init__(self, plan: Plan, config: TrainConfig, show: Show) -> None:
        self._config, self._show = config, show
        self._record = _read(plan.directory / SHARDS_FILE, config.world)
        mine = int(os.environ.get("NPROC") or len(cores.available()))
        threads = mine if self._record is None else self._record.threads
        self._plan = replace(plan, threads=threads)
        world, seed = config.world, config.seed
        steps = training_epochs(plan.dataset, world, seed, world.pool).steps
        self._course = Course(most_epochs=most_epochs(world, steps))
        self._known: dict[Shard, list[MemberScores]] = {}

    def run(self, engine: MakeEngine) -> State:
        """The state at the end of the training."""
        self._plan.begin()
        dispatch, course, world = Dispatch(engine(self._plan)), self._course, self._config.world
        try:
            record = self._begun(dispatch.engine.workers)
            self._known = {shard: [] for shard in record.shards}
            while True:
                self._take_epochs()
                if course.ended(world):
                    break
                self._advance(dispatch, record, course.epoch + 1)
        finally:
            dispatch.engine.stop()
        about = self._plan.dataset, world, self._config.seed
        parts = [best_of_shard(*about, each, self._at(each), course.epoch) for each in self._known]
        return State(lanes=[], best=joined(parts), **vars(course))

    def _begun(self, workers: int) -> _Record:
        if self._record is None:
            pool, threads = self._config.world.pool, self._plan.threads
            group = best_layout(pool).group
            assert threads is not None
            self._record = _Record(split(pool, group, workers), group, threads)
            self._save(self._record)
        self._course.seconds = self._record.seconds
        return self._record

    def _take_epochs(self) -> None:
        """Count the epochs that all shards have done, in order, up to the common stop."""
        course = self._course
        while not course.ended(self._config.world):
            done = [epochs[course.epoch : course.epoch + 1] for epochs in self._known.values()]
            if not all(done):
                return
            scores = [score for (epoch,) in done for score in epoch.score]
            improved = [each for (epoch,) in done for each in epoch.improved]
            course.end_epoch(np.asarray(scores, np.float32), np.asarray(improved, bool))

    def _advance(self, dispatch: Dispatch, record: _Record, epoch: int) -> None:
        """Have every shard trained up to the end of an epoch."""
        course, behind = self._course, {}
        for shard, epochs in self._known.items():
            if len(epochs) < epoch:
                job = self._plan.shard(self._config, shard, self._at(shard), epoch)
                behind[job.directory] = shard
                dispatch.add(job)
        wanted, last = len(behind), time.monotonic()
        while behind:
            for job, outcome in dispatch.wait(POLL):
                if outcome.state != "finished" or outcome.epochs is None:
                    raise WorldError(outcome.problem or f"{job.name}: {outcome.state}")
                known = [MemberScores(*epoch) for epoch in outcome.epochs]
                self._known[behind.pop(job.directory)] = known
            now = time.monotonic()
            course.seconds, last = course.seconds + now - last, now
            self._show(course.progress("training", 1 - len(behind) / wanted))
            stop_if_signalled()
        record.seconds = course.seconds
        self._save(record)

    def _at(self, shard: Shard) -> Path:
        return self._plan.directory / shard.name

    def _save(self, record: _Record) -> None:
        atomic_write_json(self._plan.directory / SHARDS_FILE, asdict(record))


def _read(path: Path, config: WorldConfig) -> _Record | None:
    """How a pool was split before; none where it was not."""
    if not path.exists():
        return None
    try:
        with damage_reported(path):
            record = _Record(**read_json(path))
            whole = [record.group, record.threads, *record.bounds]
            sound = all(type(each) is int for each in whole) and min(whole[:2]) > 0
            sound = sound and float(record.seconds) >= 0 and len(record.bounds) > 1
            sound = sound and record.bounds == sorted(set(record.bounds))
            sound = sound and (record.bounds[0], record.bounds[-1]) == (0, config.pool)
            if not sound or any(bound % record.group for bound in record.bounds):
                raise ValueError("not how a pool is split")
    except RunError as error:
        raise WorldError(
            f"{error}; remove {path.parent} to train from the start, nothing else is lost"
        ) from None
    return record
