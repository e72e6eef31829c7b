"""What the README shows is run."""

import re
import shlex
from pathlib import Path

import pytest

from neubay.cli import COMMANDS

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", [b for b in BLOCKS if "neubay.train" not in b])
def test_python_blocks_run(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def test_every_command_is_in_the_table_and_exists() -> None:
    shown = set()
    for cell in re.findall(r"^\| (`neubay .*?`) \|", README, flags=re.MULTILINE):
        for command in re.findall(r"`neubay ([^`]+)`", cell):
            words = [word for word in shlex.split(command) if re.fullmatch(r"[a-z]+", word)]
            shown.add(" ".join(words[:2]))
    assert shown == set(COMMANDS), f"missing {set(COMMANDS) - shown}, stray {shown - set(COMMANDS)}"
