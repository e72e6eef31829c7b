"""`neubay bench`: each stage against the machine's own matmul rate."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from neubay.commands.text import Console
from neubay.runs.files import atomic_write_json

Stage = Literal[
    "all",
    "world",
    "agent",
    "imagination",
    "replay",
    "policy",
    "pools",
    "rollouts",
    "parameters",
    "device",
    "estimate",
]


def bench(
    stage: tyro.conf.Positional[Stage] = "all",
    *,
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    write_docs: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Measure stages as shares of the machine's own matmul rate in the same run.

    pools, rollouts and parameters are the paper's tables of cost, measured here; device counts
    host transfers and memory of the published setting, and estimate what it takes on a GPU.

    Args:
        json: Write the figures to this file.
        write_docs: Put the tables into this Markdown file, such as docs/benchmarks.md.
    """
    # JAX is imported here, so that `neubay --help` answers at once.
    from neubay.bench import tables
    from neubay.bench.stages import MEASURES, results

    console = Console()
    stages: list[str] = list(MEASURES) if stage == "all" else [stage]
    with console.status("") as status:
        measured = results(stages, lambda name: status.update(name))
    if measured["matmul_gflops"] is not None:
        console.print(f"matmul {measured['matmul_gflops']:.0f} GFLOP/s")
    for name in stages:
        cases = {
            key: case for key, case in measured["cases"].items() if key.startswith(f"{name}, ")
        }
        heading, *rows = tables.table(cases)
        table = Table(*heading, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if json is not None:
        atomic_write_json(json, measured)
    if write_docs is not None:
        for name in stages:
            tables.write_markdown(write_docs, name, tables.markdown(measured, name))
