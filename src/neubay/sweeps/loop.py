"""The loop of a sweep: ask, run, tell."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from neubay.config import TrainConfig, updated
from neubay.errors import ConfigError, RunError, SweepError
from neubay.runs.signals import deferred_signals, stop_if_signalled
from neubay.runs.sweepdir import Record, Trial, left_over
from neubay.sweeps.dispatch import Dispatch
from neubay.sweeps.jobs import Job, Outcome, rungs
from neubay.sweeps.plan import Plan
from neubay.sweeps.proposals import REDUCTION, Proposals
from neubay.sweeps.space import nested

POLL = 0.5
"""Seconds between two looks at the engine."""
FIRST_FAILURES = 3
"""A sweep stops whose first so many trials all fail: what is wrong is wrong with all of them."""
Show = Callable[[Record, Dispatch], None]


@dataclass
class _Active:
    """A trial whose runs are under way."""

    trial: Trial
    jobs: dict[str, Job] = field(default_factory=dict)
    """By directory; of the rung that is being climbed."""
    values: dict[str, float] = field(default_factory=dict)
    rung: int = 0


class Loop:
    """Runs the trials of a sweep until so many have ended.

    Args:
        config: the settings that the search varies.
        trials: how many are wanted.
        climbs: evaluations after which a trial may be pruned; none without pruning.
    """

    def __init__(
        self,
        plan: Plan,
        config: TrainConfig,
        seeds: tuple[int, ...],
        record: Record,
        proposals: Proposals,
        dispatch: Dispatch,
        *,
        trials: int,
        climbs: tuple[int, ...] = (),
        show: Show = lambda record, dispatch: None,
    ) -> None:
        self.plan, self.config, self.seeds, self.record = plan, config, seeds, record
        self.proposals, self.dispatch, self.show = proposals, dispatch, show
        self.trials, self.climbs = trials, climbs
        self._active: dict[int, _Active] = {}
        self._twins: list[Trial] = []

    def run(self) -> None:
        """Until the end; after a signal everything is saved and `Stopped` is raised."""
        self.record.problem = ""
        with deferred_signals():
            try:
                for trial in left_over(self.record.trials):
                    trial.state = "waiting"
                    self._begin(trial)
                while self._active or len(self.record.trials) < self.trials:
                    self._advance()
                    self.show(self.record, self.dispatch)
                    stop_if_signalled()
            except SweepError as error:
                self.record.problem = str(error)
                raise
            finally:
                self.dispatch.engine.stop()
                with contextlib.suppress(RunError):  # a full disk, of which more is known above
                    self._interrupted()

    def _advance(self) -> None:
        """Propose what there is room for, and one look at the engine."""
        while len(self.record.trials) < self.trials and self.dispatch.hungry:
            self._propose()
        for job, outcome in self.dispatch.wait(POLL):
            self._take(job, outcome)
        if self.dispatch.begun:
            begun = {job.directory for job in self.dispatch.begun}
            self.dispatch.begun.clear()
            for active in self._active.values():
                if active.trial.state == "waiting" and begun & active.jobs.keys():
                    active.trial.state = "running"
            self._save()

    def _propose(self) -> None:
        number, settings = self.proposals.ask()
        runs = [f"{number:04d}-seed{seed}" for seed in self.seeds]
        trial = Trial(number, settings, runs)
        self.record.trials.append(trial)
        self._begin(trial)
        self._save()

    def _begin(self, trial: Trial) -> None:
        """Hand over the runs of a trial, unless another one has the very same."""
        for other in self.record.trials[: trial.number]:
            if other.settings == trial.settings:
                trial.runs = list(other.runs)
                if other.ended:
                    self._end(trial, other.state, other.value, other.problem)
                else:
                    self._twins.append(trial)
                return
        active = self._active[trial.number] = _Active(trial)
        self._climb(active)

    def _climb(self, active: _Active) -> None:
        """Hand over the runs of a trial, up to its next rung or to the end."""
        trial = active.trial
        try:
            config = updated(self.config, nested(trial.settings), f"trial {trial.number}")
        except ConfigError as error:  # each value is sound, and together they are not
            self._end(trial, "failed", None, str(error))
            return
        until = None
        if active.rung < len(self.climbs):
            facts = self.plan.dataset.facts
            until = rungs(config, facts, [self.climbs[active.rung]])[0]
        active.values.clear()
        active.jobs.clear()
        for seed, name in zip(self.seeds, trial.runs, strict=True):
            own = updated(config, {"seed": seed})
            job = self.plan.job(own, self.plan.directory / name, until=until)
            active.jobs[job.directory] = job
            self.dispatch.add(job, self.plan.needs(own))

    def _take(self, job: Job, outcome: Outcome) -> None:
        """A run of a trial has ended."""
        active = next((a for a in self._active.values() if job.directory in a.jobs), None)
        if active is None:  # its trial has failed by another seed
            return
        trial = active.trial
        trial.seconds += outcome.seconds
        if outcome.state not in ("finished", "paused"):
            self._end(trial, "failed", None, outcome.problem or f"{job.name}: {outcome.state}")
        elif outcome.value is None or not math.isfinite(outcome.value):
            self._end(trial, "failed", None, f"{job.name}: has no {self.record.metric} to compare")
        else:
            active.values[job.directory] = outcome.value
            if len(active.values) == len(active.jobs):
                self._compare(active, paused=outcome.state == "paused")
        self._save()

    def _compare(self, active: _Active, paused: bool) -> None:
        """All seeds have come to the rung, or to the end."""
        trial = active.trial
        values = [active.values[directory] for directory in active.jobs]  # in the order of seeds
        value = math.fsum(values) / len(values)
        if not paused:
            self._end(trial, "finished", value)
        elif self.proposals.report(trial.number, self.climbs[active.rung], value):
            self._end(trial, "pruned", value)
        else:
            active.rung += 1
            self._climb(active)

    def _end(self, trial: Trial, state: str, value: float | None, problem: str = "") -> None:
        trial.state, trial.value, trial.problem = state, value, problem  # type: ignore[assignment]
        active = self._active.pop(trial.number, None)
        if active is not None:
            self.dispatch.drop(set(active.jobs))
        self.proposals.tell(trial.number, value, state)
        twins = [twin for twin in self._twins if twin.settings == trial.settings]
        self._twins = [twin for twin in self._twins if twin not in twins]
        for twin in twins:
            self._end(twin, state, value, problem)
        ended = [each for each in self.record.trials if each.ended]
        if len(ended) >= FIRST_FAILURES and all(each.state == "failed" for each in ended):
            raise SweepError(
                f"the first {len(ended)} trials all failed, so that more would too. The last one: "
                f"{problem}"
            )

    def _save(self) -> None:
        self.record.journal = self.proposals.size
        self.record.save(self.plan.directory)

    def _interrupted(self) -> None:
        """What is not ended waits to be resumed."""
        for trial in left_over(self.record.trials):
            trial.state = "waiting"
        self._save()


def climbs(config: TrainConfig) -> tuple[int, ...]:
    """The evaluations at which a trial may be pruned, by successive halving: the first sixteenth of
    them, and every fourfold."""
    most = config.evaluation.evaluations
    if most < 2:
        raise ConfigError(
            "--prune: a run is judged on its way at evaluations, and here it has one only; give "
            "--evaluation.evaluations 2 or more"
        )
    found = [max(most // REDUCTION**2, 1)]
    while found[-1] * REDUCTION < most:
        found.append(found[-1] * REDUCTION)
    return tuple(found)


def run_all(
    dispatch: Dispatch, done: Callable[[Job, Outcome], None], look: Callable[[], None]
) -> None:
    """Do all that is waiting; `done` is given each run that ended, `look` is called in between."""
    with deferred_signals():
        try:
            while not dispatch.idle:
                for job, outcome in dispatch.wait(POLL):
                    done(job, outcome)
                look()
                stop_if_signalled()
        finally:
            dispatch.engine.stop()
