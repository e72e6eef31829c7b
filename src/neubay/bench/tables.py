"""The figures of a bench as tables: text for the terminal, Markdown for a document."""

from pathlib import Path
from typing import Any

from neubay.runs.files import atomic, write_between

COLUMNS = {
    "gflops": ("GFLOP/s", ".0f"),
    "ratio": ("share of the matmul rate", ".2f"),
    "compile_s": ("compile s", ".1f"),
    "peak_mb": ("peak MB", ".0f"),
    "rows_per_s": ("imagined rows/s", ".0f"),
    "tape_ms": ("ms per tape", ".3f"),
    "update_share": ("share of an update at the matmul rate", ".4f"),
    "bytes_per_row": ("bytes per imagined row", ".0f"),
    "step_us": ("µs a step", ".0f"),
    "files_kb": ("kB of files", ".0f"),
    "full_gb": ("GB if all rows were imagined", ".2f"),
    "step_cpu_ms": ("ms of processor time a gradient step", ".0f"),
    "call_cpu_s": ("s of processor time a call", ".2f"),
    "paper_s": ("the paper's s a call, on its GPU", ".1f"),
    "parameters": ("parameters", ",d"),
    "paper_below": ("the paper: fewer than", ",d"),
    "transfers_inside": ("host transfers inside a call", "d"),
    "gradient_steps": ("gradient steps a call", "d"),
    "arrays_sent": ("arrays sent", "d"),
    "kb_sent": ("kB sent", ".1f"),
    "arrays_read": ("arrays read", "d"),
    "kb_read": ("kB read", ".2f"),
    "device_mb": ("MB on the device", ".0f"),
    "pflop": ("PFLOP", ".1f"),
    "hours_10%": ("h at 10 % of the peak", ".2f"),
    "hours_30%": ("h at 30 %", ".2f"),
    "paper_h": ("the paper's h", ".1f"),
    "gb": ("GB", ".2f"),
    "paper_gb": ("the paper's GB", ".1f"),
}
"""Heading and format of every figure that a table shows."""


def table(cases: dict[str, Any]) -> list[list[str]]:
    """Heading and rows of text: the figures that any of the cases has."""
    keys = [key for key in COLUMNS if any(key in case for case in cases.values())]
    return [
        ["case", *(COLUMNS[key][0] for key in keys)],
        *(
            [name, *(_shown(case.get(key), COLUMNS[key][1]) for key in keys)]
            for name, case in cases.items()
        ),
    ]


def _shown(figure: float | None, form: str) -> str:
    return "" if figure is None else f"{figure:{form}}"


def markdown(measured: dict[str, Any], stage: str) -> str:
    """The cases of a stage as a table."""
    heading, *rows = table(
        {
            name.removeprefix(f"{stage}, "): case
            for name, case in measured["cases"].items()
            if name.startswith(f"{stage}, ")
        }
    )
    rule = ["---", *("---:" for _ in heading[1:])]
    rate = measured["matmul_gflops"]
    beside = (
        [] if rate is None else [f"Matmul rate of the machine in the same run: {rate:.0f} GFLOP/s."]
    )
    return "\n".join(
        [
            *beside,
            "",
            *(f"| {' | '.join(row)} |" for row in (heading, rule, *rows)),
        ]
    )


def write_markdown(path: Path, section: str, text: str) -> None:
    """Put `text` between the markers of a section, and leave the rest of the file alone."""
    begin, end = f"<!-- bench:{section} -->", f"<!-- /bench:{section} -->"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    if begin not in old:
        with atomic(path) as draft:
            section_text = f"{old.rstrip()}\n\n## {section}\n\n{begin}\n{end}\n"
            draft.write_text(section_text, encoding="utf-8")
    write_between(path, begin, end, text)
