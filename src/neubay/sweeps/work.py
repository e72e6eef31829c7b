"""Doing a job: the only file here that trains. Whoever imports it has claimed its cores before."""

import contextlib
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from neubay import experiment, selection, world
from neubay.config import SelectionConfig, TrainConfig, WorldConfig, validated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, NeubayError, RunError, TrainingError, reason
from neubay.runs import rundir, tracking
from neubay.runs.cache import CACHE_VARIABLE
from neubay.runs.locks import locked
from neubay.runs.signals import Stopped, deferred_signals, stop_if_signalled
from neubay.sweeps.data import Arrays, Source, kept
from neubay.sweeps.jobs import Job, Outcome, policy_at, score_at, value_of, versions
from neubay.world.pool import Shard, train_shard

_datasets: dict[str, Dataset] = {}  # the last one, by what describes it
Rows = Callable[[], Arrays]


def do(job: Job, rows: Rows | None = None) -> Outcome:
    """Do a job, whatever was done of it before; nothing is raised.

    Args:
        rows: gives the rows of the dataset, where it cannot be read by its name.
    """
    begun = time.monotonic()
    return replace(_done(job, rows), seconds=time.monotonic() - begun)


def _done(job: Job, rows: Rows | None) -> Outcome:
    try:
        with deferred_signals():
            _check_versions(job)
            os.environ[CACHE_VARIABLE] = job.cache
            dataset = _dataset(job, rows)
            stop_if_signalled()
            return _WAYS[job.kind](job, dataset)
    except KeyboardInterrupt:
        return Outcome("stopped")
    except (TrainingError, ConfigError) as error:
        return Outcome("failed", problem=str(error))
    except NeubayError as error:
        return Outcome("refused", problem=f"{platform.node()}: {error}")
    except OSError as error:
        return refused(error)
    except Exception as error:  # these settings break something; others may not
        traceback.print_exc()
        return Outcome("failed", problem=f"{type(error).__name__}: {str(error)[:300]}")


def refused(error: OSError) -> Outcome:
    """What this machine cannot do, as with a full disk."""
    path = f"{error.filename}: " if error.filename else ""
    problem = f"{platform.node()}: {path}{reason(error)}; the same command resumes once mended"
    return Outcome("refused", problem=problem)


def _check_versions(job: Job) -> None:
    ours = versions()
    differing = [
        f"{name} {ours.get(name, 'none')} instead of {wanted}"
        for name, wanted in job.versions.items()
        if ours.get(name) != wanted
    ]
    if differing:
        raise RunError(
            f"other versions than where this was begun: {', '.join(differing)}. Install the same "
            "on every node; the same command then resumes"
        )


def _dataset(job: Job, rows: Rows | None) -> Dataset:
    source = Source(**job.data)
    if source.hash not in _datasets:
        if rows is None and source.spec is None:
            rows = lambda: kept(Path(job.home))  # noqa: E731
        dataset = source.load(rows)
        _datasets.clear()
        _datasets[source.hash] = dataset
    return _datasets[source.hash]


# --- The kinds of jobs ---------------------------------------------------------------------------


def _world(job: Job, dataset: Dataset) -> Outcome:
    config = validated(TrainConfig, job.config)
    world.fit(dataset, config.world, config.seed, directory=Path(job.directory), tell=_say)
    return Outcome("finished")


def _shard(job: Job, dataset: Dataset) -> Outcome:
    assert job.shard is not None and job.until is not None
    config = validated(TrainConfig, job.config)
    epochs = train_shard(
        dataset,
        config.world,
        config.seed,
        Shard(*job.shard),
        Path(job.directory),
        epochs=job.until,
        tell=_say,
    )
    return Outcome("finished", epochs=epochs)


def _judge(job: Job, dataset: Dataset) -> Outcome:
    assert job.select is not None and job.judge is not None
    settings = validated(SelectionConfig, job.select)
    config = validated(WorldConfig, job.judge)
    selection.fit_judge(dataset, config, seed=settings.judge_seed, tell=_say)
    return Outcome("finished")


def _run(job: Job, dataset: Dataset) -> Outcome:
    directory = Path(job.directory)
    with locked(directory, waiting=_say):  # a worker whose sweep was killed may still be saving
        pass
    if job.until is not None and _is_at(directory, job.until):
        return Outcome("paused", _value_on_the_way(job, dataset))
    trackers = tracking.beside(directory, job.config, boards=job.tensorboard, project=job.wandb)
    try:
        experiment.run(
            dataset,
            validated(TrainConfig, job.config),
            directory,
            fitted=None if job.world is None else world.load(Path(job.world), dataset),
            about=job.about,
            select=None if job.select is None else validated(SelectionConfig, job.select),
            judged_as=None if job.judge is None else validated(WorldConfig, job.judge),
            trackers=tuple(trackers),
            checkpoint_seconds=job.checkpoint_seconds,
            until=job.until,
            tell=_say,
        )
    except Stopped:
        if job.until is None or not _is_at(directory, job.until):
            raise
        return Outcome("paused", _value_on_the_way(job, dataset))
    return Outcome("finished", None if job.metric is None else value_of(directory, job.metric))


def _is_at(directory: Path, step: int) -> bool:
    """An unfinished run has come so far, and saved it."""
    return rundir.is_run(directory) and rundir.look(directory).step >= step


def _value_on_the_way(job: Job, dataset: Dataset) -> float | None:
    """The metric at the evaluation where the run paused."""
    directory, step = Path(job.directory), job.until or 0
    if job.metric == "score":
        return score_at(directory, step)
    assert job.select is not None
    policy = policy_at(directory, step)
    if policy is None:
        raise RunError(
            f"{directory}: has no policy of step {step} or later; remove it to begin anew"
        )
    config = validated(TrainConfig, job.config).world
    judged_as = config if job.judge is None else validated(WorldConfig, job.judge)
    settings = validated(SelectionConfig, job.select)
    judge = selection.fit_judge(dataset, judged_as, seed=settings.judge_seed, tell=_say)
    return selection.estimate(policy, judge, dataset, out=directory / rundir.SELECTION)


_WAYS: dict[str, Callable[[Job, Dataset], Outcome]] = {
    "world": _world,
    "judge": _judge,
    "shard": _shard,
    "run": _run,
}


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
