"""`neubay bench`: what was measured is printed and written."""

import json
from pathlib import Path

import pytest

from neubay import cli
from neubay.bench import stages


def test_the_command_prints_and_writes_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"gflops": 90.0, "ratio": 0.5, "compile_s": 3.0, "peak_mb": 300.0}
    case = stages.Case("world", "pool 8", {"pool": 8, "rows": 10})
    monkeypatch.setattr(stages, "CASES", [case])
    monkeypatch.setattr(stages, "run_case", lambda case: {**figures, "matmul_gflops": 180.0})
    report, docs = tmp_path / "bench.json", tmp_path / "benchmarks.md"
    with pytest.raises(SystemExit) as finished:
        cli.main(["bench", "world", "--json", str(report), "--write-docs", str(docs)])
    assert finished.value.code == 0
    assert "0.50" in capsys.readouterr().out
    written = json.loads(report.read_text())
    assert written["matmul_gflops"] == 180.0
    assert written["cases"] == {"world, pool 8": figures}
    assert "| pool 8 | 90 | 0.50 | 3.0 | 300 |" in docs.read_text()
