"""`neubay ablate`: the paper's ablations as runs, and as tables of its form."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from neubay.commands.many import Wanted, run_side_by_side
from neubay.commands.options import (
    Settings,
    Unprefixed,
    as_flags,
    parse,
    train_defaults,
)
from neubay.commands.report import preset_of, write
from neubay.commands.sweep import shared_plan
from neubay.commands.text import Console, escape, say, told
from neubay.commands.train import describe_data, run_shown
from neubay.config import TrainConfig
from neubay.errors import TrainingError
from neubay.published import Over
from neubay.runs.signals import deferred_signals, stop_if_signalled

if TYPE_CHECKING:
    from neubay.data import Dataset
    from neubay.studies.ablations import Planned


@dataclass(frozen=True)
class AblateFlags:
    settings: Annotated[Settings, Unprefixed]
    values: Annotated[TrainConfig, Unprefixed]
    over: Over = tyro.MISSING
    """What is varied: the truncation threshold zeta, the posterior's size N, a penalty lambda,
    fixed horizons, the agent's memory, its critic, the world's LayerNorm, or one of the two
    settings that the paper chose per dataset: kappa, or the encoder's learning rate eta_phi."""
    seeds: tuple[int, ...] = ()
    """Seeds of every arm; by default the one of --seed."""
    engine: Literal["local", "ray"] | None = None
    """Run side by side, in processes of this machine or on Ray; by default one after the other."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto; without it Ray is started here."""
    jobs: int | None = None
    """Runs at once; by default one for every core."""
    out: Path | None = None
    """Folder of the runs, which other ablations of the data may share; by default
    ablations/DATASET."""
    dry_run: bool = False
    """Print the command of each run, and do nothing."""


def ablate(arguments: list[str]) -> int:
    """Parse, plan, run what is not finished, report."""
    flags, named = parse(
        AblateFlags,
        Settings,
        train_defaults,
        arguments,
        prog="neubay ablate",
        description="The paper's ablations on a dataset: a run per value and seed, one after the "
        "other, and a table in the paper's form. The same command resumes what was "
        "interrupted; what is finished is not run again.",
    )
    from neubay.commands.display import stopped
    from neubay.studies import ablations

    settings = flags.settings
    errors = Console(stderr=True)  # --dry-run prints commands alone
    dataset = named.load(told(errors if flags.dry_run else Console()))
    folder = flags.out or Path("ablations") / dataset.name
    seeds = flags.seeds or (flags.values.seed,)
    of = dataset.task, seeds, folder, dataset.facts
    planned = ablations.plan(flags.over, flags.values, *of)
    defaults = train_defaults(settings, named.published)
    commands = [_command(settings, defaults, run) for run in planned]
    if flags.dry_run:
        say("\n".join(commands))
        return 0
    console = Console()
    console.print(
        f"[bold]{escape(dataset.name)}[/]: {describe_data(dataset)}\n"
        f"preset {settings.preset_name}, over {flags.over}: "
        f"{len(planned)} runs in {folder}"
    )
    with stopped(console, shlex.join(["neubay", "ablate", *arguments])):
        about = settings.about()
        if flags.engine is None and flags.jobs is None and flags.address is None:
            failed = _train(console, dataset, about, planned, commands)
        else:
            failed = _side_by_side(console, flags, dataset, folder, planned, commands)
        _report(flags.over, folder, planned)
    return 1 if failed else 0


def _command(settings: Settings, defaults: TrainConfig, run: "Planned") -> str:
    """The `neubay train` that is this run."""
    words = ["neubay", "train", settings.dataset, "--preset", settings.preset_name]
    words += settings.words()
    if settings.config is not None:
        words += ["--config", str(settings.config)]
    words += as_flags(run.config, defaults)
    return shlex.join([*words, "--out", str(run.directory)])


def _train(
    console: Console,
    dataset: "Dataset",
    about: dict[str, str],
    planned: "Sequence[Planned]",
    commands: Sequence[str],
) -> int:
    """Run what is not finished; how many runs diverged."""
    from neubay.runs import rundir
    from neubay.studies import ablations

    failed = 0
    main = {run.seed: run.config for run in planned if run.arm.name == ablations.MAIN}
    with deferred_signals():
        for number, (run, command) in enumerate(zip(planned, commands, strict=True), start=1):
            finished = rundir.is_finished(run.directory)
            console.print(
                f"[bold]{number} of {len(planned)}: {run.arm.name}[/], seed {run.seed}"
                + (", finished before" if finished else "")
            )
            if not finished:
                ablations.share_pool(dataset, main[run.seed], run.config)
            asked = {"command": command, **about}
            try:
                run_shown(console, dataset, run.config, run.directory, about=asked)
            except TrainingError as error:
                failed += 1
                console.print(f"{run.directory}: {error}", markup=False, soft_wrap=True)
            stop_if_signalled()
    return failed


def _side_by_side(
    console: Console,
    flags: AblateFlags,
    dataset: "Dataset",
    folder: Path,
    planned: "Sequence[Planned]",
    commands: Sequence[str],
) -> int:
    """The same by an engine. A smaller posterior is made of the main run's pool, which comes
    first."""
    from neubay.studies import ablations

    plan = shared_plan(flags.settings, dataset, folder)
    main = {run.seed: run.config for run in planned if run.arm.name == ablations.MAIN}
    wanted = []
    for run, command in zip(planned, commands, strict=True):
        before, prepare = None, None
        if ablations.shares_pool(main[run.seed], run.config):
            before = main[run.seed]
            prepare = partial(ablations.share_pool, dataset, before, run.config)
        wanted.append(Wanted(run.config, run.directory, {"command": command}, before, prepare))
    engine = flags.engine or "local"
    return run_side_by_side(console, plan, wanted, engine, jobs=flags.jobs, address=flags.address)


def _report(over: Over, folder: Path, planned: "Sequence[Planned]") -> None:
    from neubay.report.runs import page, records

    runs = records.read_all([run.directory for run in planned], preset_of=preset_of)
    shown = page.many_runs(runs)
    wanted = [grid for grid in shown.grids if grid.name.startswith("sensitivity_")]
    write(shown, folder / "report" / over, wanted or shown.grids[:1])
