"""`neubay data ...`: list, look at, check, convert, collect and download datasets."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from neubay.commands.data_display import (
    counted,
    print_json,
    progress_bar,
    show_episodes,
    show_findings,
    show_list,
    show_summary,
    write_json,
)
from neubay.commands.options import NO_FLAGS, Belongs, File, Switch, described, named_data
from neubay.commands.text import Console, harmless, say, told
from neubay.errors import ConfigError

# Other imports of ours happen inside the commands: `--help` answers at once.


SourceArgument = Annotated[
    tyro.conf.Positional[str],
    described(
        "DATASET",
        "A file (.hdf5, .npz), a Minari folder, 'minari:ID', 'd4rl:NAME' or 'neorl:NAME' of a "
        "downloaded dataset, or 'pendulum', the built-in one.",
    ),
]
TargetArgument = Annotated[
    tyro.conf.Positional[str],
    described(
        "TARGET",
        "OUT.hdf5 for D4RL's layout; 'minari:ID' for Minari's own folder of datasets; any other "
        "path for a folder with a Minari dataset.",
    ),
]
TaskArgument = Annotated[
    tyro.conf.Positional[str],
    described("TASK", "A task such as 'pendulum' or 'd4rl/hopper', or a task file."),
]
NameArgument = Annotated[
    tyro.conf.Positional[str], described("NAME", "As in 'neubay data list': hopper-medium-v2.")
]
CountFlag = Annotated[int | None, described("N")]


def list_datasets(*, json: Switch = False) -> None:
    """The paper's 33 datasets, the built-in one, and those that Minari has on this machine.

    Args:
        json: Print JSON instead of tables.
    """
    from neubay.data import builtin, download
    from neubay.data.minari_source import list_minari

    paper, minari = download.paper_datasets(), list_minari()
    if json:
        print_json({"paper": paper, "builtin": list(builtin.NAMES), "minari": minari})
    else:
        show_list(paper, builtin.NAMES, minari)


def info(
    dataset: SourceArgument,
    *,
    belongs: Belongs = NO_FLAGS,
    png: File = None,
    json: Annotated[str | None, described("FILE")] = None,
    episodes: Switch = False,
) -> None:
    """Episodes, returns, lengths, coverage, hash, score and category of a dataset.

    Args:
        png: Draw returns, lengths, states and actions to this file (.png, .pdf or .svg).
        json: Write every figure to this file; '-' prints them instead of the text.
        episodes: Print a line for every episode instead: its number, as 'neubay select --incumbent'
            takes it, its first row, steps and return.
    """
    from neubay.data.summary import summarise

    if episodes and (png is not None or json is not None):
        raise ConfigError("--episodes: prints lines alone; leave --png and --json out")
    found = named_data(dataset, belongs, told(Console(stderr=episodes or json == "-")))
    if episodes:
        show_episodes(found)
        return
    summary = summarise(found)
    if json == "-":
        print_json(summary.record())
    else:
        show_summary(summary)
        if json is not None:
            write_json(Path(json), summary.record())
    if png is not None:
        from neubay.report.parts import figures
        from neubay.report.studies.data_figures import dataset_figure

        figures.save(dataset_figure(summary.record()), png)


def validate(
    dataset: SourceArgument,
    *,
    belongs: Belongs = NO_FLAGS,
    strict: Switch = False,
    json: Switch = False,
) -> int:
    """Check a dataset; every finding names file, key, row, and what to do about it.

    The exit code is 1 if there are errors, else 0.

    Args:
        strict: Warnings count as errors.
        json: Print the findings as JSON.
    """
    from dataclasses import asdict

    from neubay.data import validate as find

    findings = find(dataset, belongs.chosen(), action_bounds=belongs.action_bounds)
    failing = {"error", "warning"} if strict else {"error"}
    code = int(any(finding.severity in failing for finding in findings))
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        show_findings(dataset, findings)
    return code


def convert(
    source: SourceArgument,
    target: TargetArgument,
    *,
    belongs: Belongs = NO_FLAGS,
    force: Switch = False,
) -> None:
    """Write any dataset as Minari or D4RL HDF5, loss-free: the result is read back and compared.

    Args:
        force: Overwrite what is there.
    """
    from neubay.data.convert import parse_target, write
    from neubay.data.files import refuse_existing

    if not force:
        refuse_existing(parse_target(target).path)  # before the source is read
    data = named_data(source, belongs, told(Console()))
    place = write(data, target, force=force)
    transitions = counted(data.transitions, "transition")
    say(harmless(f"{place.path}") + f": {transitions}, hash {data.hash} as in the source")


def collect(
    task: TaskArgument,
    target: TargetArgument,
    *,
    behaviour: Literal["random", "sticky"] = "random",
    repeat: float = 0.8,
    episodes: CountFlag = None,
    steps: CountFlag = None,
    seed: int = 0,
    force: Switch = False,
) -> None:
    """Roll a behaviour in a task's environment into a dataset, with seeds and provenance.

    Args:
        behaviour: Uniformly random actions, or random ones that are held for a while.
        repeat: Sticky: probability that the last action is kept.
        episodes: How many episodes (100 if neither this nor --steps is given).
        steps: How many transitions instead; the last episode is cut there.
        seed: Equal seeds give equal data.
        force: Overwrite what is there.
    """
    from neubay.data import collect as collection
    from neubay.data.convert import parse_target, write
    from neubay.data.files import refuse_existing
    from neubay.tasks import get_task
    from neubay.tasks.files import is_task_file, read_task

    if not force:
        refuse_existing(parse_target(target).path)  # before hours of collecting
    chosen = read_task(Path(task)) if is_task_file(task) else get_task(task)
    if episodes is None and steps is None:
        episodes = 100
    actions = (
        collection.RandomActions(chosen)
        if behaviour == "random"
        else collection.StickyActions(chosen, repeat)
    )
    with progress_bar("collecting", "steps", steps) as advance:
        data = collection.collect(
            chosen,
            actions,
            episodes=episodes,
            steps=steps,
            seed=seed,
            name=f"{chosen.name}-{behaviour}",
            progress=lambda done: advance(done, None),
        )
    place = write(
        data,
        target,
        force=force,
        provenance=collection.provenance(chosen, actions.label, seed),
        seeds=[collection.reset_seed(seed, episode) for episode in range(data.episodes)],
    )
    say(
        f"{place.path}: {counted(data.episodes, 'episode')}, "
        f"{counted(data.transitions, 'transition')}, "
        f"mean return {data.returns.mean():.1f}, hash {data.hash}"
    )


def download(
    name: NameArgument,
    *,
    mirror: Annotated[str | None, described("URL")] = None,
    out: Annotated[Path | None, described("DIR")] = None,
    sha256: Annotated[str | None, described("HEX")] = None,
    timeout: float = 30.0,
    retries: int = 5,
    force: Switch = False,
) -> None:
    """Fetch one of the paper's 33 datasets; a broken download is resumed.

    What arrives is compared with the published checksum, where there is one (NeoRL), and later uses
    with what arrived.

    Args:
        mirror: Base address that stands in for the publisher's host, with the same paths below it.
        out: Folder for the file; the cache ($NEUBAY_CACHE or ~/.cache/neubay) if not given.
        sha256: Refuse a file with another SHA-256.
        timeout: Seconds without a byte after which a connection counts as lost.
        retries: Attempts in a row that may bring nothing new.
        force: Fetch again what is there.
    """
    from neubay.data import download as downloads
    from neubay.data.catalogue import published_file

    is_new = force or not downloads.storage_path(name, out).is_file()
    with progress_bar(name, "bytes") as advance:
        path = downloads.download(
            name,
            mirror=mirror,
            directory=out,
            expected_sha256=sha256,
            force=force,
            timeout=timeout,
            retries=retries,
            progress=advance,
        )
    say(str(path))
    if is_new:
        file = published_file(name)
        title = file.publisher.title
        checked = (
            f"{title} publishes no checksum to compare it with"
            if file.md5 is None
            else f"the MD5 is the one that {title} publishes"
        )
        say(
            f"{checked}; the SHA-256 of this file was recorded in {path.name}.sha256 beside it, "
            "and is compared from now on",
            file=sys.stderr,
        )
