"""`neubay select`: which of the policies to deploy, if any, without a simulator."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from neubay.commands.display import show_decision, stage_bar, stopped, world_progress
from neubay.commands.options import NO_FLAGS, Belongs, TaskFlags, described, named_data
from neubay.commands.text import Console, told
from neubay.errors import ConfigError, NeubayError

# Other imports of ours happen inside the command: `--help` answers at once.


Runs = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN ...")]


def select(
    runs: Runs,
    /,
    *,
    out: Annotated[Path | None, described("DIR")] = None,
    data: Annotated[str | None, described("DATASET")] = None,
    belongs: Belongs = NO_FLAGS,
    judge_seed: int = 0,
    incumbent: Annotated[str | None, described("FIRST-LAST,...")] = None,
) -> None:
    """Judge every policy that runs of the same data have kept, under one protocol: the same starts,
    members and random keys for all. Say which is best, and whether it is better than the data and
    than a clone of it.

    Args:
        runs: Run directories of 'neubay train'.
        out: Where to write selection.json and the chosen policy.npz; by default nowhere.
        data: The dataset, needed where no run has kept what selection needs.
        judge_seed: Decides the episodes that the judge is fitted on, its starts and random keys.
        incumbent: The episodes of today's controller, where the log holds several: 0-99,150.
    """
    if not runs:
        raise NeubayError("name run directories of the same data")
    from neubay import selection
    from neubay.config import WorldConfig

    console = Console()
    with (
        stopped(console, shlex.join(["neubay", *sys.argv[1:]])),
        world_progress(console, WorldConfig()) as judge_progress,
        stage_bar(console) as progress,
    ):
        selected = selection.select(
            runs,
            data=None if data is None else named_data(data, belongs, told(console)),
            task=_task(belongs),
            judge_seed=judge_seed,
            incumbent=None if incumbent is None else episodes(incumbent),
            out=out,
            progress=lambda name, share: progress("selection", share),
            judge_progress=judge_progress,
            tell=told(console),
        )
    show_decision(console, selected.record, out)


def _task(belongs: TaskFlags) -> Any:
    from neubay.tasks import get_task

    chosen = belongs.chosen()
    return get_task(chosen) if isinstance(chosen, str) else chosen


def episodes(text: str) -> list[int]:
    """Numbers of episodes: 0-99,150."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            found += range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise ConfigError(
                f"--incumbent {text}: expected numbers of episodes such as 0-99,150"
            ) from None
    return found
