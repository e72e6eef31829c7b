"""`neubay data ...`: list, look at, check, convert, collect and download datasets."""

import contextlib
import json as json_format
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:
    from neubay.data.findings import Finding
    from neubay.data.summary import Spread, Summary

# Imports of ours happen inside the commands: `--help` answers at once.

Source = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(
        metavar="DATASET",
        help="A file (.hdf5, .npz), a Minari folder, 'minari:ID', 'd4rl:NAME' or 'neorl:NAME' of "
        "a downloaded dataset, or 'pendulum', the built-in one.",
        help_behavior_hint="",
    ),
]
TaskName = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="NAME",
        help="Task of the data, where its name does not tell.",
        help_behavior_hint="",
    ),
]
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]


def _optional(metavar: str) -> Any:
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def list_datasets(*, json: Switch = False) -> None:
    """The paper's 33 datasets, the built-in one, and those that Minari has on this machine.

    Args:
        json: Print JSON instead of tables.
    """
    from neubay import published
    from neubay.data import builtin
    from neubay.data.catalogue import address
    from neubay.data.download import storage_path
    from neubay.data.minari_source import list_minari
    from neubay.tasks import get_task

    paper: list[dict[str, Any]] = [
        {
            "name": known.name,
            "benchmark": published.benchmarks()[known.benchmark].title,
            "environment": get_task(known.task).env_name,
            "horizon": get_task(known.task).horizon,
            "category": known.category,
            "eta_phi": known.eta_phi,
            "kappa": known.kappa,
            "local": str(storage_path(known.name)) if storage_path(known.name).is_file() else None,
            "download": address(known.name),
        }
        for known in published.datasets().values()
    ]
    local = list_minari()
    if json:
        _print_json({"paper": paper, "builtin": list(builtin.NAMES), "minari": local})
        return
    console = Console(highlight=False)
    console.print(f"  {'datasets of the paper':<29}{'category':<18}{'eta_phi':>8}{'kappa':>7}")
    families: dict[str, list[dict[str, Any]]] = {}
    for row in paper:
        family = f"{row['benchmark']}: {row['environment']}, T = {row['horizon']:,}"
        families.setdefault(family, []).append(row)
    for family, rows in families.items():
        console.print(f"[bold]{escape(family)}[/]")
        for row in rows:
            eta_phi, kappa = (
                "-" if row[key] is None else f"{row[key]:g}" for key in ("eta_phi", "kappa")
            )
            here = "[green]here[/]" if row["local"] else ""
            console.print(f"  {row['name']:<29}{row['category']:<18}{eta_phi:>8}{kappa:>7}  {here}")
    console.print(
        "\neta_phi and kappa are the paper's best; '-' where all settings scored near zero.\n"
        "here: in the cache. The others come with 'neubay data download NAME'.\n"
    )
    console.print(f"Built in: {', '.join(builtin.NAMES)} (Pendulum-v1, sticky random actions)")
    console.print("Minari's on this machine: " + (", ".join(local) if local else "none"))


def info(
    dataset: Source,
    *,
    task: TaskName = None,
    png: Annotated[Path | None, _optional("FILE")] = None,
    json: Annotated[str | None, _optional("FILE")] = None,
) -> None:
    """Episodes, returns, lengths, coverage, hash, score and category of a dataset.

    Args:
        png: Draw returns, lengths, states and actions to this file (.png, .pdf or .svg).
        json: Write every figure to this file; '-' prints them instead of the text.
    """
    from neubay.data import load
    from neubay.data.summary import summarise

    summary = summarise(load(dataset, task))
    if json == "-":
        _print_json(summary.record())
    else:
        _show(summary)
        if json is not None:
            _write_json(Path(json), summary.record())
    if png is not None:
        from neubay.report.parts import figures

        figures.save(figures.dataset_figure(summary.record()), png)


def validate(
    dataset: Source, *, task: TaskName = None, strict: Switch = False, json: Switch = False
) -> int:
    """Check a dataset; every finding names file, key, row, and what to do about it.

    The exit code is 1 if there are errors, else 0.

    Args:
        strict: Warnings count as errors.
        json: Print the findings as JSON.
    """
    from dataclasses import asdict

    from neubay.data import validate as find

    findings = find(dataset, task)
    failing = {"error", "warning"} if strict else {"error"}
    code = int(any(finding.severity in failing for finding in findings))
    if json:
        _print_json([asdict(finding) for finding in findings])
    else:
        _show_findings(dataset, findings)
    return code


def convert(
    source: Source,
    target: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="TARGET",
            help="OUT.hdf5 for D4RL's layout; 'minari:ID' for Minari's own folder of datasets; "
            "any other path for a folder with a Minari dataset.",
            help_behavior_hint="",
        ),
    ],
    *,
    task: TaskName = None,
    force: Switch = False,
) -> None:
    """Write any dataset as Minari or D4RL HDF5, loss-free: the result is read back and compared.

    Args:
        force: Overwrite what is there.
    """
    from neubay.data import load
    from neubay.data.convert import parse_target, write
    from neubay.data.files import refuse_existing

    if not force:
        refuse_existing(parse_target(target).path)  # before the source is read
    data = load(source, task)
    place = write(data, target, force=force)
    print(
        f"{place.path}: {_count(data.transitions, 'transition')}, hash {data.hash} as in the source"
    )


def collect(
    task: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="TASK",
            help="A task such as 'pendulum' or 'd4rl/hopper'.",
            help_behavior_hint="",
        ),
    ],
    target: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="TARGET",
            help="A folder or 'minari:ID' for Minari, OUT.hdf5 for D4RL's layout.",
            help_behavior_hint="",
        ),
    ],
    *,
    behaviour: Literal["random", "sticky"] = "random",
    repeat: float = 0.8,
    episodes: Annotated[int | None, _optional("N")] = None,
    steps: Annotated[int | None, _optional("N")] = None,
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

    if not force:
        refuse_existing(parse_target(target).path)  # before hours of collecting
    chosen = get_task(task)
    if episodes is None and steps is None:
        episodes = 100
    actions: collection.Behaviour
    if behaviour == "random":
        actions, label = collection.RandomActions(chosen), "random"
    else:
        actions, label = (
            collection.StickyActions(chosen, repeat),
            f"sticky random, repeat {repeat:g}",
        )
    with _progress("collecting", "steps", steps) as advance:
        data = collection.collect(
            chosen,
            actions,
            episodes=episodes,
            steps=steps,
            seed=seed,
            name=f"{task}-{behaviour}",
            progress=lambda done: advance(done, None),
        )
    place = write(
        data,
        target,
        force=force,
        provenance=collection.provenance(chosen, label, seed),
        seeds=[collection.reset_seed(seed, episode) for episode in range(data.episodes)],
    )
    print(
        f"{place.path}: {_count(data.episodes, 'episode')}, "
        f"{_count(data.transitions, 'transition')}, "
        f"mean return {data.returns.mean():.1f}, hash {data.hash}"
    )


def download(
    name: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="NAME",
            help="As in 'neubay data list': hopper-medium-v2.",
            help_behavior_hint="",
        ),
    ],
    *,
    mirror: Annotated[str | None, _optional("URL")] = None,
    out: Annotated[Path | None, _optional("DIR")] = None,
    sha256: Annotated[str | None, _optional("HEX")] = None,
    timeout: float = 30.0,
    retries: int = 5,
    force: Switch = False,
) -> None:
    """Fetch one of the paper's 33 datasets; a broken download is resumed.

    What arrives is compared with the published checksum, where there is one (NeoRL), and later uses
    with what arrived.

    Args:
        mirror: Base address that stands in for the benchmark's host, with the same paths below it.
        out: Folder for the file; the cache ($NEUBAY_CACHE or ~/.cache/neubay) if not given.
        sha256: Refuse a file with another SHA-256.
        timeout: Seconds without a byte after which a connection counts as lost.
        retries: Attempts in a row that may bring nothing new.
        force: Fetch again what is there.
    """
    from neubay.data import download as downloads
    from neubay.data.catalogue import published_file

    is_new = force or not downloads.storage_path(name, out).is_file()
    with _progress(name, "bytes") as advance:
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
    print(path)
    if is_new:
        file = published_file(name)
        title = file.publisher.title
        checked = (
            f"{title} publishes no checksum to compare it with"
            if file.md5 is None
            else f"the MD5 is the one that {title} publishes"
        )
        print(
            f"{checked}; the SHA-256 of this file was recorded in {path.name}.sha256 beside it, "
            "and is compared from now on",
            file=sys.stderr,
        )


# --- printing ------------------------------------------------------------------------------


def _show(summary: "Summary") -> None:
    from neubay.data.summary import text_histogram

    console = Console(highlight=False)
    console.print(f"[bold]{escape(summary.name)}[/]  [dim]{escape(summary.source)}[/]")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _facts(summary):
        table.add_row(label, escape(text))
    console.print(table)
    whole = "cut episodes included" if summary.returns.only_cut else "complete episodes"
    console.print(f"\n[bold]Returns[/] of {whole}")
    for line in text_histogram(summary.returns.histogram):
        console.print("  " + line, no_wrap=True, crop=True)


def _facts(summary: "Summary") -> Iterator[tuple[str, str]]:
    """What is said of a dataset, line by line."""
    returns, endings, coverage = summary.returns, summary.endings, summary.coverage
    environment = f"environment {summary.environment}" if summary.environment else "no environment"
    yield "task", f"{summary.task}, {environment}, T = {summary.horizon:,}"
    yield (
        "sizes",
        f"{_count(summary.state_size, 'state dimension')}, "
        + _count(
            summary.action_size, "action" if summary.actions == "discrete" else "action dimension"
        ),
    )
    yield "hash", summary.hash
    episodes = _count(summary.episodes, "episode")
    yield "data", f"{_count(summary.transitions, 'transition')} in {episodes}"
    ways = [
        f"{count:,} {way}"
        for count, way in (
            (endings.terminal, "in a terminal state"),
            (endings.horizon, f"after T = {summary.horizon:,} steps or more"),
            (endings.cut, "cut before T without a terminal"),
        )
        if count
    ]
    yield "episode ends", ", ".join(ways)
    if summary.runs_past_terminal:
        yield "", f"{summary.runs_past_terminal:,} run on past a terminal; returns stop there"
    yield "length", _spread(summary.lengths)
    yield "return", _spread(returns.whole)
    if _mean(returns.with_cut) != _mean(returns.whole):
        yield "", f"{_mean(returns.with_cut)} with the cut episodes"
    if returns.evaluated != returns.whole:
        yield "", f"{_mean(returns.evaluated)} over the first T = {summary.horizon:,} steps"
    score = summary.score
    if score.mean is None:
        yield "score", f"raw returns: {score.reason}"
    else:
        cut_off = "" if returns.evaluated == returns.whole else " over the first T steps"
        yield "score", f"{score.mean:.1f}{cut_off} ({score.reference} returns as 0 and 100)"
    yield "category", f"{summary.category.name} ({summary.category.decided})"
    yield (
        "coverage",
        f"states: effective dimension {coverage.effective_dimension:.1f} of {summary.state_size}, "
        f"{coverage.occupied:.0%} of a Gaussian cloud's cells occupied",
    )
    if coverage.constant_states:
        yield "", f"constant state dimensions: {', '.join(map(str, coverage.constant_states))}"
    if coverage.action_freedom is None:
        shares = ", ".join(f"{share:.0%}" for share in coverage.action_mean)
        yield "", f"actions: taken {shares}"
    else:
        spans = [
            (high - low) / 2
            for low, high in zip(coverage.action_low, coverage.action_high, strict=True)
        ]
        yield (
            "",
            f"actions: {coverage.action_freedom:.0%} of the variance free of the state, "
            f"{_range(spans)} of the range used, "
            f"{coverage.saturated:.0%} at a bound",
        )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _range(shares: list[float]) -> str:
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return low if low == high else f"{low} to {high}"


def _spread(spread: "Spread") -> str:
    if spread.min == spread.max:
        return f"{_number(spread.mean)}, all the same"
    return (
        f"{_mean(spread)}, median {_number(spread.median)}, "
        f"from {_number(spread.min)} to {_number(spread.max)}"
    )


def _mean(spread: "Spread") -> str:
    return f"{_number(spread.mean)} ± {_number(spread.std)}"


def _number(value: float) -> str:
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.3g}"


def _show_findings(dataset: str, findings: "list[Finding]") -> None:
    console = Console(highlight=False)
    colours = {"error": "bold red", "warning": "yellow", "note": "cyan"}
    for finding in findings:
        place = finding.file
        if finding.key is not None:
            place += f" '{finding.key}'"
        if finding.row is not None:
            place += f" row {finding.row:,}"
        console.print(f"[{colours[finding.severity]}]{finding.severity}[/] {escape(place)}")
        text = f"{escape(finding.message)}. [dim]{escape(finding.remedy)}.[/]"
        console.print(Padding(text, (0, 0, 0, 2)))
    counts = [
        _count(count, severity)
        for severity in colours
        if (count := sum(finding.severity == severity for finding in findings))
    ]
    console.print(f"{escape(dataset)}: {', '.join(counts) if counts else 'nothing found wrong'}")


@contextlib.contextmanager
def _progress(
    label: str, unit: Literal["steps", "bytes"], total: int | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on the terminal's error stream; silent where that is not a terminal."""
    from rich import progress as bars

    amount: bars.ProgressColumn = (
        bars.DownloadColumn() if unit == "bytes" else bars.TextColumn("{task.completed:,} steps")
    )
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), amount)
    console = Console(stderr=True)
    with bars.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(label, total=total)

        def advance(done: int, in_all: int | None) -> None:
            progress.update(bar, completed=done, total=in_all if in_all is not None else total)

        yield advance


def _print_json(value: Any) -> None:
    sys.stdout.write(json_format.dumps(value, indent=1, allow_nan=False) + "\n")


def _write_json(path: Path, value: Any) -> None:
    from neubay.data.files import written_whole

    with written_whole(path, overwrite=True) as draft:
        text = json_format.dumps(value, indent=1, allow_nan=False) + "\n"
        draft.write_text(text, encoding="utf-8")
