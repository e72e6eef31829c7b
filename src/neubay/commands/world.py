"""`neubay world`: train a world, or show one."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro

from neubay import published
from neubay.commands.options import Settings, Unprefixed, parse, world_defaults
from neubay.commands.sweep import shared_plan
from neubay.commands.text import Console, escape, harmless, show_facts, told
from neubay.config import WorldConfig, preset, updated
from neubay.errors import ConfigError
from neubay.report.parts.numbers import shown

if TYPE_CHECKING:
    from neubay.data import Dataset
    from neubay.world import FittedWorld, TerminationRecord
    from neubay.world.fitting import Elsewhere

AGES = (1, 10, 100, 500)
"""Steps of an episode after which the share that still runs is shown."""


@dataclass(frozen=True)
class WorldFlags:
    settings: Annotated[Settings, Unprefixed]
    values: Annotated[WorldConfig, Unprefixed]
    seed: int = 0
    """Of the members, their shuffles and the validation split."""
    out: Path | None = None
    """The world directory; by default where 'neubay train' looks for a world of these settings."""
    engine: Literal["local", "ray"] = "local"
    """This process, or the members of the pool in shards, each a task of Ray."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto; without it Ray is started here."""
    jobs: int | None = None
    """With --engine ray, shards at once; by default one for every core."""


def train(arguments: list[str]) -> int:
    """Parse, announce, train, show."""
    flags, named = parse(
        WorldFlags,
        Settings,
        world_defaults,
        arguments,
        prog="neubay world",
        description="Train a posterior over worlds on a dataset. The same command resumes an "
        "interrupted training.",
    )
    from neubay import preflight, world
    from neubay.commands.display import stopped, world_progress

    console = Console()
    settings, config = flags.settings, flags.values
    dataset = named.load(told(console))
    directory = flags.out or world.world_directory(dataset, config, flags.seed)
    console.print(
        f"[bold]{escape(dataset.name)}[/]: {len(dataset.world_rows):,} transitions; preset "
        f"{settings.preset_name}: {config.pool} members of {config.depth} x "
        f"{config.width}, the best {config.members} kept\nworld directory {escape(str(directory))}"
    )
    world.tell_choice(dataset, config, told(console))
    elsewhere = _elsewhere(flags, dataset)
    if not world.is_whole(directory) and elsewhere is None:
        preflight.check_world_memory(dataset, config)
    command = shlex.join(["neubay", "world", *arguments])
    with stopped(console, command), world_progress(console, config) as progress:
        fitted = world.fit(
            dataset,
            config,
            flags.seed,
            directory=directory,
            progress=progress,
            tell=told(console),
            elsewhere=elsewhere,
        )
    show(console, fitted)
    return 0


def _elsewhere(flags: WorldFlags, dataset: "Dataset") -> "Elsewhere | None":
    """What trains the pool, where that is not this process."""
    if flags.engine == "local":
        for name, value in (("--address", flags.address), ("--jobs", flags.jobs)):
            if value is not None:
                raise ConfigError(f"{name}: belongs to --engine ray")
        return None
    from neubay.sweeps.shards import in_shards
    from neubay.sweeps.sweep import make_engine

    settings, jobs, address = flags.settings, flags.jobs, flags.address
    return in_shards(
        lambda folder: shared_plan(settings, dataset, folder),
        updated(preset("cpu"), {"seed": flags.seed}),
        lambda plan: make_engine("ray", plan, jobs=jobs, address=address),
    )


def info(directory: tyro.conf.Positional[Path]) -> None:
    """Show what a world directory holds, or the world of a run.

    Args:
        directory: what `neubay world` wrote, or a run directory.
    """
    from neubay import world

    place, console = world.world_of(directory), Console()
    show(console, world.load(place))
    console.print(harmless(f"world directory {place.absolute()}"), markup=False, soft_wrap=True)


def show(console: Console, fitted: "FittedWorld") -> None:
    """A world in a few lines."""
    config, scaler, history = fitted.config, fitted.world.scaler, fitted.history
    scores = fitted.scores[np.isfinite(fitted.scores)]
    kept = fitted.scores[fitted.kept]
    norm = "LayerNorm" if config.layer_norm else "no LayerNorm"
    outputs = "the reward" if fitted.world.reward_only else "next state and reward"
    thresholds = [f"{fitted.threshold(zeta):.4g} ({zeta:g})" for zeta in (0.5, *published.ZETAS)]
    facts = {
        "data": f"{fitted.dataset_name}, {len(fitted.data_uncertainty):,} transitions, "
        f"hash {fitted.dataset_hash}",
        "members": f"the best {config.members} of {config.pool}, {config.depth} x {config.width}, "
        f"{norm}; from {len(scaler.state_mean)} states and {len(scaler.action_mean)} actions to "
        f"{outputs}",
        f"validation {config.selection.upper()}": f"kept {kept.min():.4g} to {kept.max():.4g}; "
        f"pool median {np.median(scores):.4g}, worst {scores.max():.4g}",
        "training": f"{len(history)} epochs in {fitted.seconds:.0f} s, seed {fitted.seed}, "
        f"learning rate {config.learning_rate:g}, batch {config.batch}",
        "uncertainty": f"{config.quantifier}, mean {fitted.mean_uncertainty:.4g}",
        "thresholds (zeta)": ", ".join(thresholds),
        **({} if fitted.termination is None else _termination(fitted.termination)),
        "versions": ", ".join(f"{name} {value}" for name, value in fitted.provenance.items()),
    }
    show_facts(console, facts)


def _termination(record: "TerminationRecord") -> dict[str, str]:
    """What ends an episode, as far as it was learned."""
    steps = record.survival["steps"]
    places = [steps.index(max(s for s in steps if s <= age)) for age in AGES if age <= steps[-1]]
    alive = [
        f"{steps[place]:.0f}: {record.survival['data'][place]:.0%} / "
        f"{record.survival['recorded'][place]:.0%} / {record.survival['imagined'][place]:.0%}"
        for place in dict.fromkeys((*places, len(steps) - 1))
    ]
    apart = record.false_alarms_apart
    by = "drawn by probability" if record.drawn else "by a threshold"
    return {
        "termination": f"learned from {record.ends:,} ends of {record.episodes:,} episodes, {by}",
        "  held out": f"{record.held_out_ends:,} ends in {record.held_out_steps:,} steps: "
        f"precision {shown(record.precision, '.1%')}, recall {shown(record.recall, '.1%')}",
        "  false alarms": f"{1000 * record.false_alarms:.3g} per 1,000 steps; "
        + ("" if apart is None else f"{1000 * apart:.3g} where no end follows within ten steps ")
        + f"(95 %: at most {1000 * record.false_alarms_apart_at_most:.3g})",
        "  ends per 1,000": f"data {1000 * record.rate:.3g}, "
        f"heads {1000 * record.rate_recorded:.3g}, "
        f"heads on imagined steps {1000 * record.rate_imagined:.3g}",
        "  still running after": "data / heads / imagined: " + ", ".join(alive),
    }
