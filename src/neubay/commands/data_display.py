"""What the data commands print: the list of datasets, a summary, findings, progress."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.padding import Padding
from rich.table import Table

from neubay.commands.text import Console, escape, say
from neubay.report.parts.numbers import number

if TYPE_CHECKING:
    from neubay.data.dataset import Dataset
    from neubay.data.findings import Finding
    from neubay.data.summary import Coverage, Spread, Summary


def show_list(
    paper: Sequence[dict[str, Any]], builtin: Sequence[str], minari: Sequence[str]
) -> None:
    """The paper's datasets by task, then the built-in ones and Minari's."""
    console = Console()
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
    console.print(f"Built in: {', '.join(builtin)} (Pendulum-v1, sticky random actions)")
    console.print("Minari's on this machine: " + (escape(", ".join(minari)) if minari else "none"))


def show_summary(summary: "Summary") -> None:
    from neubay.data.summary import text_histogram

    console = Console()
    console.print(f"[bold]{escape(summary.name)}[/]  [dim]{escape(summary.source)}[/]")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _facts(summary):
        table.add_row(label, escape(text))
    console.print(table)
    cut = ", cut ones included" if summary.endings.cut else ""
    console.print(f"\n[bold]Returns[/] of all episodes{cut}")
    for line in text_histogram(summary.returns.histogram_with_cut):
        console.print("  " + line, no_wrap=True, crop=True)


def show_episodes(dataset: "Dataset") -> None:
    """A line for every episode, for people and for programs that read columns."""
    first = dataset.flat.row.searchsorted(dataset.bounds[0])  # of the rows that hold steps
    columns = (each.tolist() for each in (first, dataset.lifetimes, dataset.returns))
    say(f"{'episode':>8} {'first row':>10} {'steps':>8} {'return':>14}")
    for episode, (row, steps, earned) in enumerate(zip(*columns, strict=True)):
        say(f"{episode:>8} {row:>10} {steps:>8} {earned:>14.6g}")


def _facts(summary: "Summary") -> Iterator[tuple[str, str]]:
    """The lines of a summary: a label, and a text."""
    returns, endings, coverage = summary.returns, summary.endings, summary.coverage
    environment = f"environment {summary.environment}" if summary.environment else "no environment"
    yield "task", f"{summary.task}, {environment}, T = {summary.horizon:,}"
    yield (
        "sizes",
        f"{counted(summary.state_size, 'state dimension')}, "
        + counted(
            summary.action_size, "action" if summary.actions == "discrete" else "action dimension"
        ),
    )
    yield "hash", summary.hash
    episodes = counted(summary.episodes, "episode")
    yield "data", f"{counted(summary.transitions, 'transition')} in {episodes}"
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
    yield "return", _spread(returns.with_cut)
    if _mean(returns.with_cut) != _mean(returns.whole):
        complete = counted(summary.episodes - endings.cut, "episode")
        yield "", f"{_mean(returns.whole)} over the {complete} not cut before T"
    if returns.evaluated != returns.whole:
        yield "", f"{_mean(returns.evaluated)} over the first T = {summary.horizon:,} steps"
    score = summary.score
    if score.mean is None:
        yield "score", f"raw returns: {score.reason}"
    else:
        cut_off = "" if returns.evaluated == returns.whole else " over the first T steps"
        yield "score", f"{score.mean:.1f}{cut_off} ({score.reference} returns as 0 and 100)"
    yield "category", f"{summary.category.name} ({summary.category.decided})"
    yield from _coverage_facts(coverage, summary.state_size)


def _coverage_facts(coverage: "Coverage", state_size: int) -> Iterator[tuple[str, str]]:
    yield (
        "coverage",
        f"states: effective dimension {coverage.effective_dimension:.1f} of {state_size}, "
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


def counted(number: int, noun: str) -> str:
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
    return f"{value:,.0f}" if value == round(value) else number(value)


def show_findings(dataset: str, findings: "list[Finding]") -> None:
    console = Console()
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
        counted(count, severity)
        for severity in colours
        if (count := sum(finding.severity == severity for finding in findings))
    ]
    console.print(f"{escape(dataset)}: {', '.join(counts) if counts else 'nothing found wrong'}")


@contextlib.contextmanager
def progress_bar(
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


def print_json(value: Any) -> None:
    sys.stdout.write(_json(value))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    from neubay.data.files import written_whole

    with written_whole(path, overwrite=True) as draft:
        draft.write_text(_json(value), encoding="utf-8")
