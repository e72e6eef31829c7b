"""No name that comes from a file or a path is obeyed by the terminal."""

import io
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from helpers.data_checks import make_log
from neubay.cli import main
from neubay.commands import text
from neubay.commands.text import Console, escape, harmless, say

EVIL = "x\x1b]0;owned\x07\x1b[2J"


def test_control_characters_are_shown() -> None:
    assert harmless("a\x1b[31mb\x07\x9bc\u202ed") == "a\\x1b[31mb\\x07\\x9bc\\u202ed"
    assert harmless("two\nlines\tand ü") == "two\nlines\tand ü"
    assert escape("[bold]\x1b") == "\\[bold]\\x1b"


def evil_run(folder: Path) -> None:
    about = {"layout": 3, "dataset": {"name": EVIL}, "task": EVIL, "variant": EVIL, "config": {}}
    (folder / "runs" / "one").mkdir(parents=True)
    (folder / "runs" / "one" / "run.json").write_text(json.dumps(about))


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be")
def test_names_do_not_reach_the_terminal_as_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evil_run(tmp_path)
    np.savez("arrays.npz", **{EVIL: np.zeros(3)})
    np.savez(f"{EVIL}.npz", **make_log().d4rl())
    for words in (
        ["data", "info", "arrays.npz"],
        ["data", "validate", "arrays.npz"],
        ["data", "info", f"{EVIL}.npz"],
        ["data", "validate", f"{EVIL}.npz"],
        ["data", "convert", f"{EVIL}.npz", f"{EVIL}.hdf5"],
        ["data", "info", EVIL],
        ["runs", "list", "runs"],
        ["runs", "show", "runs/one"],
        ["report", "runs/one", "--out", "page"],
        ["world", "info", "runs/one"],
        ["world", "info", EVIL],
        ["analyze", "runs", "runs/one"],
        ["analyze", "uncertainty", "--world", EVIL],
        [EVIL],
    ):
        with pytest.raises(SystemExit):
            main(words)
        shown = "".join(capsys.readouterr())
        assert "\x1b" not in shown and "\x07" not in shown, words


def test_a_console_obeys_its_own_commands_only() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True)
    table = Table.grid()
    table.add_column(style="bold")
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL, markup=False, soft_wrap=True)
    console.print(f"[red]{escape(EVIL)}[/]")
    got = shown.getvalue()
    assert "\x1b[1m" in got and "\x1b[31m" in got, "colours are rich's own"
    assert "\x1b]" not in got and "\x1b[2J" not in got and "\x07" not in got
    assert got.count("x\\x1b]0;owne") == 3


def test_lines_for_programs_obey_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"| {EVIL} |")
    assert capsys.readouterr().out == "| x\\x1b]0;owned\\x07\\x1b[2J |\n"


def test_every_command_prints_through_these() -> None:
    for path in Path(text.__file__).parent.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        if path.name != "text.py":
            assert not re.search(r"(?<![\w.])print\(", code), f"{path.name}: use say"
            assert not re.search(r"rich\.console import .*Console", code), f"{path.name}: use ours"
