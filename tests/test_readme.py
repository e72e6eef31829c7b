"""What the README and the guide show is run, or is at least there to be run."""

import re
import shlex
from pathlib import Path

import pytest

from neubay.cli import COMMANDS, main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
GUIDE = (Path(__file__).parent.parent / "docs" / "guide.md").read_text(encoding="utf-8")
LINES = re.findall(r"^neubay .*", README + GUIDE, flags=re.MULTILINE)
BLOCKS = re.findall(r"```python\n(.*?)```", README + GUIDE, flags=re.DOTALL)


@pytest.mark.parametrize("block", [b for b in BLOCKS if "neubay.train" not in b])
def test_python_blocks_run(block: str) -> None:
    exec(compile(block, "block", "exec"), {})


def test_every_command_is_in_the_table_and_exists() -> None:
    shown = set()
    for cell in re.findall(r"^\| (`neubay .*?`) \|", README, flags=re.MULTILINE):
        for command in re.findall(r"`neubay ([^`]+)`", cell):
            words = [word for word in shlex.split(command) if re.fullmatch(r"[a-z]+", word)]
            shown.add(" ".join(words[:2]))
    assert shown == set(COMMANDS), f"missing {set(COMMANDS) - shown}, stray {shown - set(COMMANDS)}"


@pytest.mark.parametrize("line", LINES)
def test_commands_that_are_shown_have_the_flags_they_are_shown_with(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)[1:]
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS)
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    known = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    flags = {word for word in words if word.startswith("--")}
    assert flags <= known, f"neubay {name} has no {sorted(flags - known)}"
