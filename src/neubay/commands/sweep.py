"""`neubay sweep`: settings searched over many runs, on this machine or on a Ray cluster."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from neubay.commands.options import Settings, TrainSettings, Unprefixed, parse, train_defaults
from neubay.commands.sweep_display import live_table, planned, show_best
from neubay.commands.text import Console, escape, told
from neubay.config import SelectionConfig, TrainConfig, validated
from neubay.errors import ConfigError

if TYPE_CHECKING:
    from neubay.data import Dataset
    from neubay.sweeps.plan import Plan
    from neubay.sweeps.sweep import Request

EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class SweepFlags:
    settings: Annotated[TrainSettings, Unprefixed]
    values: Annotated[TrainConfig, Unprefixed]
    out: Path | None = None
    """The sweep's directory; the same command resumes what was interrupted there."""
    search: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=RANGE ...")] = ()
    """Settings with a range or a list: agent.kappa=0.05:0.95, agent.encoder_lr=log:1e-6:1e-3,
    agent.gamma=[0.99,0.995]."""
    trials: int = 20
    """Points that are tried; more may be asked for when a sweep is resumed."""
    seeds: tuple[int, ...] = ()
    """A run each for every trial, whose value is their mean; by default the one of --seed."""
    engine: EngineName = "local"
    """Processes of this machine, or Ray."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto; without it Ray is started here."""
    jobs: int | None = None
    """Runs at once; by default one for every core."""
    metric: Literal["posterior", "score"] = "posterior"
    """What is maximised: the estimate of a judge, which needs no simulator, or the score in the
    environment, which is then no fair test any more."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """Who proposes: a model of what was good so far, chance, or every combination of lists."""
    prune: bool = False
    """End trials early that are worse than others at the same evaluation (successive halving)."""
    proposal_seed: int = 0
    """Of the proposals."""
    judge_seed: int = 0
    """Decides the episodes that the judge is fitted on, its starts and random keys."""
    checkpoint_seconds: float = 30.0
    """Time between two checkpoints of a run, at least."""
    dry_run: bool = False
    """Print how many runs, worlds and hours it would be, and do nothing."""


def sweep(arguments: list[str]) -> int:
    """Parse, check, search, show the best."""
    flags, named = parse(
        SweepFlags,
        TrainSettings,
        train_defaults,
        arguments,
        prog="neubay sweep",
        description="Search settings: many runs, on the cores of this machine or on a Ray cluster. "
        "Settings that are not searched are given as to 'neubay train'.",
    )
    if flags.out is None:
        raise ConfigError("--out: name the sweep's directory")
    from neubay.commands.display import stopped
    from neubay.sweeps import sweep as sweeps
    from neubay.sweeps.sweep import make_engine

    console = Console()
    dataset = named.load(told(console))
    request = _request(flags, flags.out, dataset)
    console.print(
        f"[bold]{escape(dataset.name)}[/]: {escape(', '.join(request.space))} searched by "
        f"{flags.sampler}, {planned(request)}"
    )
    if flags.dry_run:
        return 0
    plan = request.plan
    with stopped(console, shlex.join(["neubay", "sweep", *arguments])), live_table(console) as show:
        found = sweeps.run(
            request,
            lambda: make_engine(flags.engine, plan, jobs=flags.jobs, address=flags.address),
            show,
        )
    show_best(console, found)
    return 0 if found.best is not None else 1


def _request(flags: SweepFlags, out: Path, dataset: "Dataset") -> "Request":
    from neubay.sweeps.sweep import Request

    judging = {"judge_seed": flags.judge_seed, "baseline": False}
    plan = shared_plan(
        flags.settings,
        dataset,
        out,
        select=validated(SelectionConfig, judging, "selection")
        if flags.metric == "posterior"
        else None,
        judged_as=flags.values.world,
        metric=flags.metric,
        checkpoint_seconds=flags.checkpoint_seconds,
    )
    return Request.of(
        plan,
        flags.values,
        flags.search,
        seeds=flags.seeds or (flags.values.seed,),
        trials=flags.trials,
        sampler=flags.sampler,
        prune=flags.prune,
        proposal_seed=flags.proposal_seed,
    )


def shared_plan(settings: Settings, dataset: "Dataset", folder: Path, **options: object) -> "Plan":
    """What the runs of a command share."""
    from neubay.sweeps.data import Source
    from neubay.sweeps.plan import Plan

    source = Source.of(
        dataset,
        settings.dataset,
        wanted=settings.task,
        task_file=settings.task_file,
        bounds=settings.action_bounds,
    )
    return Plan(dataset, source, folder, settings.about(), **options)  # type: ignore[arg-type]
