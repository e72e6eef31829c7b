"""`neubay train`: world, agent and evaluation in one call."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from neubay.commands.many import Wanted, run_side_by_side
from neubay.commands.options import TrainSettings, Unprefixed, parse, train_defaults
from neubay.commands.sweep import shared_plan
from neubay.commands.text import Console, escape, told
from neubay.config import SelectionConfig, TrainConfig, known, settle, updated, validated
from neubay.errors import ConfigError

if TYPE_CHECKING:
    from neubay.data import Dataset
    from neubay.experiment import Result
    from neubay.runs.tracking import Tracker


@dataclass(frozen=True)
class TrainFlags:
    settings: Annotated[TrainSettings, Unprefixed]
    values: Annotated[TrainConfig, Unprefixed]
    out: Path | None = None
    """The run directory; by default runs/DATASET-VARIANT-seedS. With --seeds: the folder of the
    runs, by default runs."""
    seeds: tuple[int, ...] = ()
    """Several runs, one for each seed, side by side."""
    jobs: int | None = None
    """With --seeds, runs at once; by default one for every core."""
    together: bool = False
    """With --seeds, all runs in this process, their gradient steps as one program: for an
    accelerator that one run leaves partly idle."""
    world: Path | None = None
    """A world directory to use; by default a matching one is found, or trained and kept."""
    tensorboard: bool = False
    """Write TensorBoard files into the run directory."""
    wandb: str | None = None
    """Project of Weights & Biases to log to."""
    select: bool = True
    """Judge the run's policies at its end, and say which to deploy, if any."""
    baseline: bool = True
    """Train a clone of the data to compare with."""
    judge_seed: int = 0
    """Decides the episodes that the judge is fitted on, its starts and random keys."""
    checkpoint_seconds: float = 30.0
    """Time between two checkpoints, at least; slow ones are made so rarely that they take 2 % of
    the time."""

    @property
    def selection(self) -> SelectionConfig | None:
        if not self.select:
            return None
        judging = {"judge_seed": self.judge_seed, "baseline": self.baseline}
        return validated(SelectionConfig, judging, "selection")


def train(arguments: list[str]) -> int:
    """Parse, announce, run, summarise."""
    flags, named = parse(
        TrainFlags,
        TrainSettings,
        train_defaults,
        arguments,
        prog="neubay train",
        description="From a dataset to a scored policy: world, agent, evaluation. The same "
        "command resumes a run that was interrupted.",
    )
    from neubay import experiment, world
    from neubay.commands.display import show_selection, stopped
    from neubay.runs import rundir

    console = Console()
    settings, config = flags.settings, flags.values
    dataset = named.load(told(console))
    command = shlex.join(["neubay", "train", *arguments])
    if flags.seeds:
        with stopped(console, command):
            return _several(console, flags, dataset, command)
    if flags.jobs is not None:
        raise ConfigError("--jobs: runs at once, of those that --seeds names")
    if flags.together:
        raise ConfigError("--together: the runs that --seeds names, as one program")
    directory = flags.out or experiment.default_directory(dataset, settings.variant, config.seed)
    _announce(console, flags, dataset, directory)
    trackers = _trackers(flags, config, directory)
    fitted = None if flags.world is None else world.load(flags.world, dataset)
    finished = rundir.is_finished(directory)
    with stopped(console, command):
        result = run_shown(
            console,
            dataset,
            config,
            directory,
            fitted=fitted,
            about={"command": command, **settings.about()},
            select=flags.selection,
            trackers=trackers,
            checkpoint_seconds=flags.checkpoint_seconds,
        )
    if finished:
        console.print("[bold]finished before[/]: its agent is as it was, this is its result")
    _summary(console, result.summary, directory)
    show_selection(console, directory / rundir.SELECTION)
    return 0


def _announce(console: Console, flags: TrainFlags, dataset: "Dataset", directory: Path) -> None:
    settings, config = flags.settings, flags.values
    imitates = config.agent.algorithm == "bc"  # in no world, so that no posterior judges it
    unscored = "no environment" + ("" if imitates else ": the posterior estimates instead")
    console.print(
        f"[bold]{escape(dataset.name)}[/]: {describe_data(dataset)}\n"
        f"preset {settings.preset_name}, {settings.variant}, seed {config.seed}; "
        f"scored in {dataset.task.env_name or unscored}\n"
        f"run directory {escape(str(directory))}"
    )


def _several(console: Console, flags: TrainFlags, dataset: "Dataset", command: str) -> int:
    """A run for every seed, each in a process of its own or all together."""
    from neubay import experiment
    from neubay.runs import rundir
    from neubay.runs.files import read_json

    settings, folder = flags.settings, flags.out or Path("runs")
    seeds = tuple(dict.fromkeys(flags.seeds))
    if min(seeds) < 0:
        raise ConfigError(f"--seeds {min(seeds)}: must be at least 0")
    if flags.together and flags.jobs is not None:
        raise ConfigError("--jobs: of runs in processes of their own; --together has none")
    if flags.together and flags.wandb is not None:
        raise ConfigError("--wandb: follows one run of a process; leave --together out")
    console.print(
        f"[bold]{escape(dataset.name)}[/]: {describe_data(dataset)}\n"
        f"preset {settings.preset_name}, {settings.variant}, {len(seeds)} seeds in "
        f"{escape(str(folder))}"
    )
    plan = shared_plan(
        settings,
        dataset,
        folder,
        select=flags.selection,
        given_world=flags.world,
        tensorboard=flags.tensorboard,
        wandb=flags.wandb,
        checkpoint_seconds=flags.checkpoint_seconds,
    )
    wanted = []
    for seed in seeds:
        name = experiment.default_directory(dataset, settings.variant, seed).name
        config = updated(flags.values, {"seed": seed})
        wanted.append(Wanted(config, folder / name, {"command": command}))
    failed = 0
    if flags.together:
        _on_one_device(console, flags, dataset, wanted)
    else:
        failed = run_side_by_side(console, plan, wanted, "local", jobs=flags.jobs)
    for each in wanted:
        if rundir.is_finished(each.directory):
            console.print(f"[bold]seed {each.config.seed}[/]")
            _summary(console, read_json(each.directory / rundir.SUMMARY_FILE), each.directory)
    hint = f"to compare them: neubay report {shlex.quote(str(folder))}"
    console.print(hint, markup=False, soft_wrap=True)
    return 1 if failed else 0


def _on_one_device(
    console: Console, flags: TrainFlags, dataset: "Dataset", wanted: Sequence[Wanted]
) -> None:
    """All runs in this process, their gradient steps as one program; shown in lines."""
    from neubay import experiment, world

    runs = []
    fitted = None if flags.world is None else world.load(flags.world, dataset)
    for each in wanted:
        line = experiment.seed_lines(told(console), each.config.seed)
        shown = experiment.in_lines(dataset, each.config, line)
        options = {
            "fitted": fitted,
            "about": flags.settings.about() | each.about,
            "select": flags.selection,
            "checkpoint_seconds": flags.checkpoint_seconds,
            "tell": line,
        }
        trackers = (*shown["trackers"], *_trackers(flags, each.config, each.directory))
        runs.append((each.config, each.directory, shown | options | {"trackers": trackers}))
    experiment.run_all_together(dataset, runs)


def _trackers(flags: TrainFlags, config: TrainConfig, directory: Path) -> list["Tracker"]:
    """Where rows go beside the run directory."""
    from neubay.runs.tracking import beside

    settings = config.model_dump()
    return beside(directory, settings, boards=flags.tensorboard, project=flags.wandb)


def describe_data(dataset: "Dataset") -> str:
    """Size and mean return."""
    return (
        f"{len(dataset.returns):,} episodes, {len(dataset.world_rows):,} transitions; "
        f"mean return {_data_return(dataset)}"
    )


def _data_return(dataset: "Dataset") -> str:
    score = dataset.task.score(dataset.returns)
    return f"{dataset.returns.mean():.1f}" + (
        "" if score is None else f" (score {score.mean():.1f})"
    )


def run_shown(
    console: Console,
    dataset: "Dataset",
    config: TrainConfig,
    directory: Path,
    *,
    trackers: Sequence["Tracker"] = (),
    **options: Any,
) -> "Result":
    """`experiment.run` with its progress on the console."""
    from neubay import experiment
    from neubay.commands.display import Display, live_display, stages, world_progress

    config = settle(config, dataset.facts)
    display = Display(known(config.agent.steps), _data_return(dataset))
    with (
        live_display(console, display) as shown,
        world_progress(console, config.world) as progress,
    ):
        return experiment.run(
            dataset,
            config,
            directory,
            trackers=(*trackers, shown),
            world_progress=progress,
            stage_progress=stages(console, display),
            tell=told(console),
            **options,
        )


def _summary(console: Console, summary: dict[str, Any], directory: Path) -> None:
    table = Table.grid(padding=(0, 2))
    judged = "estimate" in summary  # of whole episodes, beside which the posterior's is no news
    posterior = None if judged else summary["posterior"]
    if summary["return_mean"] is not None:
        score = "" if summary["score"] is None else f"   score {summary['score']:.1f}"
        table.add_row(
            "return",
            f"[bold]{summary['return_mean']:.1f}[/] ± {summary['return_std']:.1f}{score}   "
            f"({summary['episodes']} episodes in {summary['environment']})",
        )
    data_score = "" if summary["data_score"] is None else f"   score {summary['data_score']:.1f}"
    table.add_row("the data's", f"{summary['data_return_mean']:.1f}{data_score}")
    if posterior is not None:
        table.add_row(
            "by the posterior",
            f"{posterior['return_mean']:.1f} ± {posterior['return_std']:.1f}, "
            f"{posterior['cut_share']:.0%} of rollouts cut by uncertainty",
        )
    if summary["q_data"] is not None:
        realised = summary["discounted_mean"]
        beside = "" if realised is None else f", discounted return {realised:.1f}"
        table.add_row("Q on data", f"{summary['q_data']:.1f}{beside}")
    if summary["horizon"]:
        horizon = summary["horizon"]
        table.add_row(
            "horizons",
            f"median {horizon['p50']:.0f}, quartiles {horizon['p25']:.0f} to "
            f"{horizon['p75']:.0f}, longest {horizon['max']:.0f}",
        )
    seconds = summary["seconds"]
    table.add_row("time", ", ".join(f"{stage} {value:.0f} s" for stage, value in seconds.items()))
    table.add_row("files", f"{directory}/: summary.json, metrics.jsonl, policy.npz, run.json")
    console.print(table)
