"""`neubay runs list | show | rm`, and the locks and files below them."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.report_runs import make_run
from neubay import cli
from neubay.errors import RunError
from neubay.report.runs import page, records
from neubay.runs import rundir
from neubay.runs.files import atomic_write_json, read_json
from neubay.runs.locks import LOCK_FILE, lock_holder, locked
from neubay.runs.provenance import _commit, provenance
from neubay.runs.signals import Stopped, deferred_signals

ABOUT = {
    "layout": rundir.LAYOUT,
    "command": "neubay train pendulum --seed 4",
    "variant": "neubay",
    "config": {"seed": 4, "agent": {"steps": 1000}},
    "dataset": {
        "name": "pendulum",
        "source": "builtin:pendulum",
        "hash": "0" * 32,
        "episodes": 2,
        "transitions": 400,
    },
    "task": "pendulum",
    "environment": "Pendulum-v1",
    "provenance": {"neubay": "0.1.0"},
}

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as finished:
            cli.main(["runs", *arguments])
        printed = capsys.readouterr()
        assert isinstance(finished.value.code, int)
        return finished.value.code, " ".join((printed.out + printed.err).split())

    return command


def make(directory: Path, *, summary: dict | None = None, step: int | None = None) -> Path:
    atomic_write_json(directory / "run.json", ABOUT)
    if summary is not None:
        atomic_write_json(directory / "summary.json", summary)
    if step is not None:
        (directory / "checkpoints" / f"{step:09d}-0000002").mkdir(parents=True)
    return directory


def test_the_list_tells_states_apart(tmp_path: Path, run: Run) -> None:
    make(tmp_path / "done", summary={"steps": 1000, "return_mean": -150.25, "score": 93.4})
    make(tmp_path / "left", step=450)
    (make(tmp_path / "broken") / "run.json").write_text("{")
    (tmp_path / "no-run").mkdir()
    with locked(make(tmp_path / "busy")):
        code, printed = run("list", str(tmp_path))
    assert code == 0
    assert "done finished pendulum neubay 4 1,000 -150.2 93.4" in printed
    assert "left unfinished pendulum neubay 4 450 of 1,000" in printed
    assert "busy running" in printed and "broken damaged" in printed
    assert "no-run" not in printed
    assert run("list", str(tmp_path / "no-run"))[1].endswith("no runs")
    assert run("list", str(tmp_path / "absent"))[0] == 2


@pytest.mark.parametrize(
    "odd",
    [
        {"config": 1},
        {"config": {"agent": 1}},
        {"config": {"agent": {"steps": "many"}}},
        {"dataset": "pendulum"},
        {"provenance": []},
    ],
    ids=str,
)
def test_an_odd_run_hides_no_other(tmp_path: Path, run: Run, odd: dict) -> None:
    atomic_write_json(tmp_path / "odd" / "run.json", ABOUT | odd)
    (make(tmp_path / "sound") / "checkpoints").write_text("a file")
    code, printed = run("list", str(tmp_path))
    assert code == 0 and "odd damaged" in printed and "sound unfinished" in printed
    assert run("show", str(tmp_path / "odd"))[0] in (0, 2)


def test_a_file_nested_without_end_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(RunError, match="damaged"):
        read_json(tmp_path / "deep.json")


def test_a_signal_ends_the_wait_for_a_lock(tmp_path: Path) -> None:
    def interrupt(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with (
        locked(tmp_path),
        deferred_signals(),
        pytest.raises(Stopped) as stopped,
        locked(tmp_path, waiting=interrupt),
    ):
        pass
    assert stopped.value.signum == signal.SIGTERM


@pytest.mark.slow
@pytest.mark.timing
def test_two_hundred_runs_are_listed_within_a_second_and_without_jax(
    tmp_path: Path, run: Run
) -> None:
    for number in range(200):
        finished = {"steps": 1000, "return_mean": -1.0} if number % 2 else None
        make(tmp_path / f"run-{number}", summary=finished, step=number)
    begun = time.process_time()
    code, printed = run("list", str(tmp_path))
    assert time.process_time() - begun < 1
    assert code == 0 and printed.count("run-") == 200
    code = (
        "import sys, neubay.commands.runs as runs; from pathlib import Path\n"
        "runs.list_runs(Path(sys.argv[1])); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.timing
def test_a_million_rows_are_plotted_within_ten_seconds(tmp_path: Path) -> None:
    """The whole page of a run, with all its figures, from a file of 600 MB."""
    directory = make_run(tmp_path / "run", rows=100)
    metrics = directory / rundir.METRICS_FILE
    lines = metrics.read_text().splitlines(keepends=True)
    ends = [line.split(", ", 2)[2] for line in lines if '"train"' in line]
    with metrics.open("w") as file:
        for begin in range(0, 1_000_000, len(ends)):
            file.writelines(
                f'{{"kind": "train", "step": {step}, {end}'
                for step, end in enumerate(ends, start=begin)
            )
        file.writelines(line for line in lines if '"evaluation"' in line)
    begun = time.process_time()
    paths = page.one_run(records.read(directory)).save(tmp_path / "report")
    assert time.process_time() - begun < 10
    assert any(path.suffix == ".png" for path in paths)


def test_a_run_is_shown(tmp_path: Path, run: Run) -> None:
    directory = make(tmp_path / "left", step=450)
    _, printed = run("show", str(directory))
    for part in ("unfinished", "hash 0000", "agent.steps 1000", "to resume", ABOUT["command"]):
        assert part in printed
    make(directory, summary={"steps": 1000, "return_mean": -150.25, "horizon": {"p50": 12.0}})
    _, printed = run("show", str(directory))
    assert "return_mean -150.2" in printed and "horizon.p50 12" in printed
    code, printed = run("show", str(tmp_path))
    assert code == 2 and "not a run directory" in printed


def test_removal_asks_and_removes_runs_only(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, gone = make(tmp_path / "keep"), make(tmp_path / "gone", step=3)
    for answer in ("n", ""):
        monkeypatch.setattr("builtins.input", lambda *_, answer=answer: answer)
        assert "kept" in run("rm", str(keep))[1]
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    assert "removed" in run("rm", str(gone))[1]
    assert keep.exists() and not gone.exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "link").symlink_to(keep)
    for other in ("thesis", "link", "absent"):
        code, printed = run("rm", str(keep), str(tmp_path / other), "--yes")
        assert code == 2 and "nothing was removed" in printed
    with locked(keep):
        assert "in use by process" in run("rm", str(keep), "--yes")[1]
    assert keep.exists()
    assert run("rm", str(keep), "--yes")[0] == 0 and not keep.exists()


def test_a_removal_that_is_cut_short_leaves_no_part_of_a_run(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, other = make(tmp_path / "gone", step=3), make(tmp_path / "other")

    def cut_short(path: Path, **_: object) -> None:
        if path.name == ".gone.removed":
            (path / "checkpoints" / "000000003-0000002").rmdir()
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", cut_short)
    code, printed = run("rm", str(directory), "--yes")
    assert code == 2 and ".gone.removed: cannot be removed: Input/output error" in printed
    monkeypatch.undo()
    assert not directory.exists() and [found.directory for found in rundir.find(tmp_path)] == [
        other
    ]
    make(directory)  # its name is free
    assert run("rm", str(other), str(directory), "--yes")[0] == 0
    assert not list(tmp_path.iterdir())


def test_a_lock_is_of_the_folder_that_has_the_name(tmp_path: Path) -> None:
    directory, first = tmp_path / "run", contextlib.ExitStack()
    first.enter_context(locked(directory))

    def remove(_: str) -> None:
        directory.rename(tmp_path / "removed")
        first.close()

    with locked(directory, waiting=remove):
        assert lock_holder(directory) is not None
        assert lock_holder(tmp_path / "removed") is None


def test_a_look_at_a_run_keeps_nobody_out(tmp_path: Path) -> None:
    with locked(tmp_path):
        pass
    with (tmp_path / LOCK_FILE).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        end = threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN))
        end.start()
        with locked(tmp_path):
            assert lock_holder(tmp_path) is not None
        end.join()


def test_a_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        holder = lock_holder(tmp_path)
        assert holder is not None and lock_holder(tmp_path) == holder
        with (
            pytest.raises(RunError, match=f"in use by process {os.getpid()}"),
            locked(tmp_path),
        ):
            pass
        raise ZeroDivisionError
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_only_the_package_makes_a_commit_dirty(tmp_path: Path) -> None:
    package = tmp_path / "src" / "neubay"
    package.mkdir(parents=True)
    for path in (package / "code.py", tmp_path / "README.md"):
        path.write_text("one\n")
    assert _commit(package) == {}  # no checkout
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = _commit(package)["commit"]
    (tmp_path / "README.md").write_text("two\n")
    assert _commit(package)["commit"] == clean and len(clean) == 40
    (package / "code.py").write_text("two\n")
    assert _commit(package)["commit"] == f"{clean}-dirty"


def test_provenance_names_versions_and_the_commit() -> None:
    found = provenance()
    assert {"neubay", "jax", "jaxlib", "mujoco", "numpy", "python"} <= found.keys()
    if (Path(__file__).parents[2] / ".git").exists():
        assert len(found["commit"].removesuffix("-dirty")) == 40
