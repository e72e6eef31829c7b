"""The scripts that complete commands know all commands and their flags."""

import shutil
import subprocess
from pathlib import Path

import pytest

from neubay.cli import COMMANDS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["completion", shell])
    assert not stop.value.code
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_there(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = script(shell, capsys)
    for name in COMMANDS:
        assert all(word in text for word in name.split())
    for flag in ("agent.kappa", "task-file", "dry-run", "strict", "rollouts"):
        assert flag in text
    if found := shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(text)
        subprocess.run([found, "-n", path], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("neubay da", {"data"}),
        ("neubay data con", {"convert"}),
        ("neubay data validate x.npz --str", {"--strict"}),
        ("neubay world in", {"info"}),
        ("neubay train x.npz --task-f", {"--task-file"}),
        ("neubay data info --task-f", {"--task-file"}),
    ],
)
def test_bash_completes(
    typed: str, offered: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "script"
    path.write_text(script("bash", capsys))
    words = " ".join(typed.split())
    last = len(typed.split()) - 1
    program = (
        f"source {path}; COMP_WORDS=({words}); COMP_CWORD={last}; _neubay; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    shown = subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True)
    assert set(shown.stdout.split()) == offered
