"""`neubay select`: what its flags mean, and what is refused before anything is judged."""

from pathlib import Path

import pytest

from neubay.commands.display import show_selection, stopped
from neubay.commands.options import TaskFlags
from neubay.commands.select import _task, episodes
from neubay.commands.text import Console
from neubay.errors import ConfigError, RunError
from neubay.runs.signals import Stopped
from neubay.tasks import get_task


def test_numbers_of_episodes_count_once_and_in_order() -> None:
    assert episodes("7, 2-4,3") == [2, 3, 4, 7]
    for text, why in (
        ("5-3", "5-3 ends before it begins"),
        ("0-999999999", "more episodes than logs have"),
        ("a", "expected numbers of episodes such as 0-99,150"),
        ("", "expected numbers"),
    ):
        with pytest.raises(ConfigError, match=why):
            episodes(text)


def test_flags_of_how_data_is_read_need_data() -> None:
    with pytest.raises(ConfigError, match=r"--task none: .*\(--data\)"):
        _task(TaskFlags(task="none"), None)
    with pytest.raises(ConfigError, match=r"--action-low, --action-high: .*\(--data\)"):
        _task(TaskFlags(action_low="-1", action_high="1"), None)
    assert _task(TaskFlags(task="none"), "log.hdf5") is None
    assert _task(TaskFlags(task="pendulum"), None) is get_task("pendulum")


@pytest.mark.parametrize("keeps", [True, False])
def test_an_interruption_says_what_is_saved(
    keeps: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped), stopped(Console(), "neubay select x", keeps=keeps):
        raise Stopped(2)
    said = capsys.readouterr().out
    assert ("everything up to here is saved" in said) == keeps
    assert ("nothing of it is saved without --out; to begin again: neubay" in said) != keeps


def test_a_damaged_selection_is_said_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "selection.json").write_text("{}")
    with pytest.raises(RunError, match=r"selection.json: damaged"):
        show_selection(Console(), tmp_path)
