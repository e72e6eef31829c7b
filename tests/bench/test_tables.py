"""Tables of a bench leave the rest of a file alone."""

from pathlib import Path

from neubay.bench import tables


def test_tables_show_the_figures_that_cases_have() -> None:
    cases = {"one": {"gflops": 12.3, "step_s": 1.0}, "other": {"tape_ms": 0.25}}
    assert tables.table(cases) == [
        ["case", "GFLOP/s", "ms per tape"],
        ["one", "12", ""],
        ["other", "", "0.250"],
    ]


def test_a_table_is_put_between_its_markers(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "benchmarks.md"
    tables.write_markdown(path, "world", "first")
    text = path.read_text() + "\nwritten by hand\n"
    path.write_text(text)
    tables.write_markdown(path, "agent", "other")
    tables.write_markdown(path, "world", "second")
    written = path.read_text()
    assert "first" not in written and written.count("written by hand") == 1
    assert "<!-- bench:world -->\nsecond\n<!-- /bench:world -->" in written
    assert "<!-- bench:agent -->\nother\n<!-- /bench:agent -->" in written
