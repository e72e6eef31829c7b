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


Runs = Annotated[tyro.conf.Positional[tuple[Path, ...]], described("RUN ...")]
MOST_EPISODES = 10_000_000
"""Numbers in --incumbent at most."""


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
        out: Folder for selection.json and the chosen policy.npz; without it nothing is written.
        data: The dataset, needed where no run has kept what selection needs.
        judge_seed: Decides the episodes that the judge is fitted on, its starts and random keys.
        incumbent: Episodes of today's controller as 'data info --episodes' numbers them: 0-99,150.
    """
    if not runs:
        raise NeubayError("name run directories of the same data")
    from neubay import selection
    from neubay.config import WorldConfig

    console, task = Console(), _task(belongs, data)
    compared = None if incumbent is None else episodes(incumbent)
    with (
        stopped(console, shlex.join(["neubay", *sys.argv[1:]]), keeps=out is not None),
        world_progress(console, WorldConfig()) as judge_progress,
        stage_bar(console) as progress,
    ):
        selected = selection.select(
            runs,
            data=None if data is None else named_data(data, belongs, told(console)),
            task=task,
            judge_seed=judge_seed,
            incumbent=compared,
            out=out,
            progress=lambda name, share: progress("selection", share),
            judge_progress=judge_progress,
            tell=told(console),
        )
    show_decision(console, selected.record, out)


def _task(belongs: TaskFlags, data: str | None) -> Any:
    """The task whose rule ends episodes; none: the data's own. Flags that say how data is read are
    refused where none is."""
    from neubay.data.sources import NO_TASK
    from neubay.tasks import get_task

    chosen = belongs.chosen()
    if data is None and (chosen == NO_TASK or belongs.action_bounds is not None):
        flags = "--task none" if chosen == NO_TASK else "--action-low, --action-high"
        raise ConfigError(
            f"{flags}: how data is read, and none is: name it too (--data), or leave them out, as "
            "runs know what theirs was"
        )
    if chosen == NO_TASK:
        return None
    return get_task(chosen) if isinstance(chosen, str) else chosen


def episodes(text: str) -> list[int]:
    """Numbers of episodes, such as 0-99,150, each once and in order."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            raise ConfigError(
                f"--incumbent {text}: expected numbers of episodes such as 0-99,150"
            ) from None
        if end < begin:
            raise ConfigError(f"--incumbent {text}: {first}-{last} ends before it begins")
        if end - begin >= MOST_EPISODES:
            raise ConfigError(f"--incumbent {text}: {first}-{last} is more episodes than logs have")
        found.update(range(begin, end + 1))
    return sorted(found)
