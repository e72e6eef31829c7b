"""One call from a search space to the best settings."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neubay import data as sources
from neubay.config import Preset, SelectionConfig, TrainConfig, default_preset, resolve
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, RunError
from neubay.runs import rundir
from neubay.runs.locks import LOCK_FILE, locked
from neubay.runs.sweepdir import Record, Trial, check_same, is_sweep, read
from neubay.sweeps.data import FOLDER, Source
from neubay.sweeps.dispatch import Dispatch
from neubay.sweeps.jobs import Engine, Metric
from neubay.sweeps.local import Local
from neubay.sweeps.loop import Loop, Show, climbs
from neubay.sweeps.node import TOKEN
from neubay.sweeps.plan import Plan
from neubay.sweeps.proposals import Proposals, Sampler, needed
from neubay.sweeps.space import Space, parse, points
from neubay.tasks import published_settings
from neubay.tasks.files import read_task

EngineName = Literal["local", "ray"]
LOG = "workers.log"
"""In a sweep's directory: what workers had to say."""


@dataclass(frozen=True)
class Sweep:
    """A finished sweep."""

    directory: Path
    record: Record

    @property
    def trials(self) -> list[Trial]:
        return self.record.trials

    @property
    def best(self) -> Trial | None:
        """The finished trial with the highest value."""
        return self.record.best

    @property
    def best_runs(self) -> list[Path]:
        """Its run directories, one a seed."""
        return [] if self.best is None else [self.directory / name for name in self.best.runs]


@dataclass(frozen=True)
class Request:
    """What is asked of a sweep."""

    plan: Plan
    config: TrainConfig
    space: Space
    seeds: tuple[int, ...]
    trials: int
    sampler: Sampler
    prune: bool
    proposal_seed: int = 0

    @staticmethod
    def of(
        plan: Plan,
        config: TrainConfig,
        search: Sequence[str] | Mapping[str, Any],
        *,
        seeds: Sequence[int] = (0,),
        trials: int = 20,
        sampler: Sampler = "tpe",
        prune: bool = False,
        proposal_seed: int = 0,
    ) -> "Request":
        """Checked: what cannot work is refused here."""
        needed()
        space = parse(search, config)
        if trials < 1:
            raise ConfigError(f"--trials {trials}: must be at least 1")
        if sampler == "grid":
            trials = min(trials, len(points(space)))
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ConfigError(f"--seeds {' '.join(map(str, seeds))}: one or more, each once")
        if prune:
            climbs(config)
        if plan.metric == "score" and plan.dataset.task.make_env is None:
            raise ConfigError(
                f"--metric score: '{plan.dataset.task.name}' has no environment to score in; leave "
                "it out, and the judge's estimate is compared (--metric posterior)"
            )
        return Request(plan, config, space, tuple(seeds), trials, sampler, prune, proposal_seed)

    def asked(self) -> dict[str, Any]:
        """What makes it this sweep."""
        settings = self.config.record()
        del settings["seed"]
        return {
            "search": {key: str(dimension) for key, dimension in self.space.items()},
            "seeds": list(self.seeds),
            "trials": self.trials,
            "metric": self.plan.metric,
            "sampler": self.sampler,
            "prune": self.prune,
            "proposal_seed": self.proposal_seed,
            "dataset": {"hash": self.plan.dataset.hash, "name": self.plan.dataset.name},
            "judge_seed": None if self.plan.select is None else self.plan.select.judge_seed,
            **{
                key: self.plan.about[key] for key in ("preset", "variant") if key in self.plan.about
            },
            "config": settings,
        }


def sweep(
    dataset: Dataset | str | Path = "pendulum",
    *,
    search: Sequence[str] | Mapping[str, Any],
    out: Path | str,
    trials: int = 20,
    seeds: Sequence[int] = (0,),
    engine: EngineName = "local",
    address: str | None = None,
    jobs: int | None = None,
    metric: Metric = "posterior",
    sampler: Sampler = "tpe",
    prune: bool = False,
    preset: Preset | None = None,
    variant: str = "neubay",
    changes: Mapping[str, Any] | None = None,
    proposal_seed: int = 0,
    task_file: Path | str | None = None,
) -> Sweep:
    """Search settings as `neubay sweep` does; the same call resumes one that was interrupted.

    Args:
        search: settings with a range or a list, such as ["agent.kappa=0.05:0.95"] or
            {"agent.gamma": [0.99, 0.995]}.
        out: the sweep's directory.
        trials: points that are tried; a grid has no more than it has.
        seeds: a run each for every trial, whose value is their mean.
        engine: processes of this machine, or Ray.
        address: of a Ray cluster; without one, Ray is started here.
        jobs: runs at once; by default one for every core.
        metric: what is maximised: the judge's estimate, or the score in the environment.
        prune: end trials early by successive halving.
        changes: nested settings over the preset, such as {"agent": {"steps": 600}}.
        proposal_seed: of the proposals.
        task_file: of a task of your own.
    """
    preset = preset or default_preset()
    file = None if task_file is None else Path(task_file)
    plan, config = _planned(dataset, Path(out), file, preset, variant, changes or {}, metric)
    request = Request.of(
        plan,
        config,
        search,
        seeds=seeds,
        trials=trials,
        sampler=sampler,
        prune=prune,
        proposal_seed=proposal_seed,
    )
    return run(request, lambda: make_engine(engine, plan, jobs=jobs, address=address))


def _planned(
    dataset: Dataset | str | Path,
    out: Path,
    task_file: Path | None,
    preset: Preset,
    variant: str,
    changes: Mapping[str, Any],
    metric: Metric,
) -> tuple[Plan, TrainConfig]:
    """The data, read, with what all runs share; and the settings that the search varies."""
    spec = str(dataset) if isinstance(dataset, str | Path) else None
    if not isinstance(dataset, Dataset):
        dataset = sources.load(dataset, None if task_file is None else read_task(task_file))
    published = published_settings(dataset.task, dataset.published)
    config = resolve(published, preset, variant, changes)
    about = {"preset": preset, "variant": variant}
    plan = Plan(
        dataset,
        Source.of(dataset, spec, task_file=task_file),
        out,
        about,
        select=SelectionConfig(baseline=False) if metric == "posterior" else None,
        judged_as=config.world,
        metric=metric,
    )
    return plan, config


def run(
    request: Request,
    engine: Callable[[], Engine],
    show: Show = lambda record, dispatch: None,
) -> Sweep:
    """Begin a sweep, or resume it; `engine` makes the engine, once all is checked."""
    directory = request.plan.directory
    with claimed(request) as record:
        request.plan.begin()
        proposals = Proposals(
            directory,
            request.space,
            request.sampler,
            known=record.journal,
            seed=request.proposal_seed,
            first_rung=climbs(request.config)[0] if request.prune else 1,
        )
        trials = max(request.trials, len(record.trials))
        if len(record.trials) == trials and all(trial.ended for trial in record.trials):
            return Sweep(directory, record)
        loop = Loop(
            request.plan,
            request.config,
            request.seeds,
            record,
            proposals,
            Dispatch(engine()),
            trials=trials,
            climbs=climbs(request.config) if request.prune else (),
            show=show,
        )
        loop.run()
        return Sweep(directory, record)


@contextlib.contextmanager
def claimed(request: Request) -> Iterator[Record]:
    """Hold a sweep's directory, new or of the same sweep; anything else is refused untouched."""
    directory, asked = request.plan.directory, request.asked()
    if not is_sweep(directory):
        _refuse_foreign(directory)
    with locked(directory):
        if is_sweep(directory):
            record = read(directory)
            check_same(directory, record, asked)
            record.asked = asked
        else:
            record = Record(str(request.plan.metric), asked)
        yield record


def _refuse_foreign(directory: Path) -> None:
    ours = {LOCK_FILE, LOG, FOLDER, TOKEN, "optuna.log", "optuna.log.lock"}
    if directory.exists() and not directory.is_dir():
        raise RunError(f"{directory}: is not a folder; choose another --out")
    if rundir.is_run(directory) or (
        directory.is_dir()
        and any(p.name not in ours and not p.name.endswith(".partial") for p in directory.iterdir())
    ):
        raise RunError(
            f"{directory} exists, is not empty and is not a sweep: nothing in it is overwritten; "
            "choose another --out, or remove it"
        )


def make_engine(
    name: EngineName, plan: Plan, *, jobs: int | None = None, address: str | None = None
) -> Engine:
    """The engine of that name."""
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be at least 1")
    if name == "local":
        if address is not None:
            raise ConfigError("--address: belongs to --engine ray")
        return Local(jobs, plan.directory / LOG, threads=plan.threads)
    from neubay.sweeps.ray_engine import Ray

    return Ray(plan, jobs=jobs, address=address)
