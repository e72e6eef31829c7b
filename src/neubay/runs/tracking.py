"""Where the numbers of a run go: a JSON-lines file always, TensorBoard and W&B when asked for.

A tracker is a function of one row: a flat or nested dictionary of plain numbers with `step` and
`kind` ("world", "train" or "evaluation"). Training calls it and knows nothing else.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from neubay.errors import ConfigError, RunError, imported
from neubay.runs.values import finite, flat, is_number

Row = dict[str, Any]
Tracker = Callable[[Row], None]


def json_lines(path: Path) -> Tracker:
    """Append rows to `path`, one JSON object a line; a value that is not finite becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def track(row: Row) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(row), allow_nan=False) + "\n")

    return track


def read_json_lines(path: Path) -> Iterator[Row]:
    """The rows of a metrics file; an unfinished last line, from a kill mid-write, is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def read_metrics(
    path: Path, kind: str = "train", points: int | None = None
) -> dict[str, Float[np.ndarray, " rows"]]:
    """The numbers of a metrics file's rows of one kind, as columns; nested names are joined by '/'.

    A number that a row lacks is NaN. With `points`, about so many rows spread evenly over the file
    are read, its first and last among them: a curve of a million rows needs no more, and a second
    is enough for it.
    """
    marker = f'"kind": "{kind}"'.encode()
    wanted: set[int] | None = None
    if points is not None:
        last = sum(1 for _ in _lines(path, marker)) - 1
        wanted = {round(i * last / max(points - 1, 1)) for i in range(points)}
    columns: dict[str, list[float]] = {"step": []}
    for row_number, (line_number, line) in enumerate(_lines(path, marker)):
        if wanted is not None and row_number not in wanted:
            continue
        try:
            row = json.loads(line)
            step = float(row["step"])
            if not math.isfinite(step):
                raise ValueError("its step is not finite")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            # JSON's own message counts the lines of what it was given, which is a single one.
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise RunError(
                f"{path}, line {line_number}: not a row of numbers with its step ({reason}); the "
                "file is damaged"
            ) from None
        before = len(columns["step"])
        columns["step"].append(step)
        for name, value in scalars(row).items():
            column = columns.setdefault(name, [])
            column.extend([math.nan] * (before - len(column)))
            column.append(value)
    count = len(columns["step"])
    return {
        name: np.asarray(values + [math.nan] * (count - len(values)))
        for name, values in columns.items()
    }


def _lines(path: Path, marker: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a file that begin with a marker, as far as a line's first words go, each
    with its number in the file."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if marker in line[:100] and line.endswith(b"\n"):
                yield number, line


def tensorboard(directory: Path) -> Tracker:
    """Scalars for TensorBoard, through tensorboardX; the files begin with the first row."""
    package = _needs("tensorboardX", "TensorBoard")
    writer = cache(lambda: package.SummaryWriter(str(directory)))

    def track(row: Row) -> None:
        for name, value in scalars(row).items():
            writer().add_scalar(f"{row['kind']}/{name}", value, row["step"])
        writer().flush()

    return track


def wandb(project: str, name: str, config: dict[str, Any], directory: Path) -> Tracker:
    """Scalars for Weights & Biases; `WANDB_MODE=offline` keeps them local."""
    package = _needs("wandb", "Weights & Biases")
    run = cache(lambda: package.init(project=project, name=name, config=config, dir=str(directory)))

    def track(row: Row) -> None:
        values = {f"{row['kind']}/{name}": value for name, value in scalars(row).items()}
        run().log(values | {"step": row["step"]})

    return track


def beside(
    directory: Path, config: dict[str, Any], *, boards: bool, project: str | None
) -> list[Tracker]:
    """What was asked for beside the file of a run: TensorBoard's, and a project of W&B's."""
    trackers = [tensorboard(directory / "tensorboard")] if boards else []
    return trackers + ([wandb(project, directory.name, config, directory)] if project else [])


@contextmanager
def clock(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the wall time of a block to that of a stage."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - begun


def together(trackers: list[Tracker]) -> Tracker:
    """One tracker that hands each row to all."""

    def track(row: Row) -> None:
        for tracker in trackers:
            tracker(row)

    return track


def scalars(row: Row) -> dict[str, float]:
    """The finite numbers of a nested row under names such as 'horizon/median'."""
    return {
        name: float(value)
        for name, value in flat(row, "/").items()
        if name != "step" and is_number(value) and math.isfinite(value)
    }


def _needs(module: str, what: str) -> Any:
    missing = f"{what} needs the package {module}: pip install 'neubay[track]', or leave it out"
    return imported(module, ConfigError(missing))
