"""`neubay data import`: a plant's log as a dataset."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from neubay.commands.options import Switch, action_bounds, described, numbers
from neubay.commands.text import Console, escape, harmless
from neubay.errors import ConfigError

# Imports of ours happen inside the command: `--help` answers at once.

Paths = Annotated[
    tyro.conf.Positional[tuple[str, ...]],
    described(
        "LOG... OUT",
        "Tables (.csv, .csv.gz, .parquet) of the same columns, and where to write: OUT.hdf5, "
        "'minari:ID', or a folder for a Minari dataset.",
    ),
]
Names = Annotated[str | None, described("NAME,NAME,...")]
Name = Annotated[str | None, described("NAME")]
Formula = Annotated[str | None, described("NAME|FORMULA")]
Numbers = Annotated[str | None, described("X|X,X,...")]


def import_log(
    paths: Paths,
    *,
    states: Names = None,
    actions: Names = None,
    reward: Formula = None,
    episode: Name = None,
    time: Name = None,
    terminal: Name = None,
    timeout: Name = None,
    action_low: Numbers = None,
    action_high: Numbers = None,
    reward_at: Literal["same", "next"] = "same",
    gap: Annotated[str, tyro.conf.arg(metavar="FACTOR|none")] = "5",
    dry_run: Switch = False,
    force: Switch = False,
) -> None:
    """Make a dataset of logged tables. Columns that are not named are guessed from their names.

    Args:
        states: Columns of what is measured.
        actions: Columns of what is commanded.
        reward: A column, or a formula of columns: "-abs(temperature - 21) - 0.01 * pump1".
        episode: A column that tells episodes apart.
        time: A column of times; rows are sorted by it, and gaps end an episode.
        terminal: A column of flags: the state in this row is terminal, and the last of its episode.
        timeout: A column of flags: the log of the episode ends with this row.
        action_low: The lowest value of the actions, one for all or one each.
        action_high: The highest.
        reward_at: A row's reward is that of its own action, or of the action before (next).
        gap: A time step longer than so many usual ones ends an episode.
        dry_run: Show what would be read and how, and write nothing.
        force: Overwrite what is there.
    """
    from neubay.data.convert import parse_target
    from neubay.data.files import refuse_existing
    from neubay.data.tables import open_table, steps_of

    *logs, target = paths or ("",)
    if not logs:
        raise ConfigError("name one or more tables, and where to write: data import LOG.csv OUT")
    place = parse_target(target)  # before anything is read
    if not (dry_run or force):
        refuse_existing(place.path)
    imported = steps_of(
        [open_table(Path(log)) for log in logs],
        {
            "states": _names(states),
            "actions": _names(actions),
            "reward": reward,
            "episode": episode,
            "time": time,
            "terminal": terminal,
            "timeout": timeout,
        },
        reward_at=reward_at,
        gap=None if gap.lower() == "none" else numbers("--gap", gap)[0],
        action_bounds=action_bounds(action_low, action_high),
    )
    _write(imported, Path(logs[0]).stem, target, dry_run=dry_run, force=force)


def _write(imported: Any, name: str, target: str, *, dry_run: bool, force: bool) -> None:
    """Show what was read, and write it as a dataset unless this is a dry run."""
    from neubay.data.convert import write
    from neubay.data.dataset import Dataset

    dataset = Dataset.from_arrays(
        **imported.arrays,
        action_bounds=imported.action_bounds,
        horizon=len(imported.arrays["rewards"]),  # whole: T is decided by who reads it
        column_names=imported.columns.names,
        name=name,
    )
    console = Console()
    _show(console, imported, dataset)
    if dry_run:
        console.print("Nothing is written (--dry-run).")
        return
    place = write(dataset, target, force=force)
    console.print(
        harmless(f"{place.path}: written; hash {dataset.hash}"), markup=False, soft_wrap=True
    )


def _show(console: Console, imported: Any, dataset: Any) -> None:
    """Which column is what, what was noticed, and what the dataset holds."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for role, value in vars(imported.columns).items():
        shown = ", ".join(value) if isinstance(value, tuple) else value or "-"
        why = imported.guessed.get(role, "as given" if value else "")
        table.add_row(role, escape(shown), f"[dim]{escape(why)}[/]")
    console.print(table)
    for finding in imported.findings:
        console.print(f"[yellow]warning:[/] {escape(str(finding))}", soft_wrap=True)
    console.print(escape(_rows_read(imported, dataset.transitions)), soft_wrap=True)
    lengths = dataset.bounds[1]
    console.print(
        f"{dataset.episodes:,} episodes of {lengths.min():,} to {lengths.max():,} steps, "
        f"{dataset.transitions:,} in all, {int(dataset.tape.terminated.sum()):,} terminal; "
        f"mean return {dataset.returns.mean():.4g}"
    )


def _rows_read(imported: Any, steps: int) -> str:
    """What became of the rows: every one is a step, a last row, or left out."""
    rows = sum(imported.rows.values())
    files = ""
    if len(imported.rows) > 1:
        each = ", ".join(f"{name} {count:,}" for name, count in imported.rows.items())
        files = f" of {len(imported.rows)} files ({each})"
    left_out = rows - steps - imported.last_rows
    return (
        f"{rows:,} rows{files}: {steps:,} steps; {imported.last_rows:,} last rows, used only as "
        f"the state that the step before led to; {left_out:,} left out"
    )


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())
