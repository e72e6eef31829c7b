"""A full disk, and a directory that cannot be written."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.faults import (
    Tally,
    saved,
    stop_at,
    train,
)
from helpers.report_runs import make_run
from helpers.small_runs import outcome
from neubay import world
from neubay.cli import main
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import RunError
from neubay.runs import checkpoints, rundir
from neubay.runs.signals import Stopped


@pytest.mark.faults("disk full: any write of a checkpoint fails")
def test_a_write_that_fails_loses_nothing(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally, monkeypatch
) -> None:
    tried, original = 0, os.fsync
    for failing in (1, 2, 3, 4, 5, 6, 8, 100):
        calls = 0

        def full(descriptor: int, failing: int = failing) -> None:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            original(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        spoilt = Path(shutil.copytree(left, left.parent / f"full-{failing}"))
        with pytest.raises((RunError, Stopped)) as refused:
            train(data, config, spoilt, stop_at(250))
        monkeypatch.setattr(os, "fsync", original)
        if isinstance(refused.value, Stopped):
            break  # more writes than there are
        tried += 1
        assert "No space left on device" in str(refused.value)
        assert "same command to resume" in str(refused.value)
        kept = checkpoints.found(spoilt / "checkpoints")
        assert len(kept) >= 2 and rundir.look(spoilt).step >= 200
        assert all(checkpoints.unsealed(path) for path in kept)
        assert not any(".partial" in name for name in saved(spoilt))
        train(data, config, spoilt)
        assert outcome(spoilt) == reference
    assert tried >= 5
    tally(tried, "stops with the reason; the checkpoints before it untouched; resumed bit for bit")


@pytest.mark.faults("disk full: a small tmpfs")
def test_a_small_disk(
    data: Dataset, config: TrainConfig, reference: dict, tmp_path: Path, tally: Tally
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        refusals = 0
        for kilobytes in (48, 96, 160):
            grow = ["mount", "-o", f"remount,size={kilobytes}k", str(disk)]
            subprocess.run(grow, check=True)
            with contextlib.suppress(RunError):
                train(data, config, disk / "run")
                break
            refusals += 1
            assert rundir.is_run(disk / "run")
        assert refusals
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        train(data, config, disk / "run")
        assert outcome(disk / "run") == reference
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    tally(refusals, "stops each time; resumed bit for bit once there was room")


@pytest.mark.faults("unwritable directory")
def test_an_unwritable_directory_is_refused_before_any_work(
    data: Dataset, config: TrainConfig, tmp_path: Path, tally: Tally
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        train(data, config, tmp_path / "file" / "run")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    with _without_privileges():
        if os.access(locked, os.W_OK, effective_ids=True):
            pytest.skip("this user may write anywhere")
        with pytest.raises(RunError, match="cannot be written: Permission denied"):
            train(data, config, locked / "run")
        with pytest.raises(RunError, match="cannot be written: Permission denied"):
            world.fit(data, config.world, 7, directory=locked / "world")
    assert not list(locked.iterdir())
    tally(3, "refused before any work, with the system's reason")


# Nor may that user read the session's compiled programs: JAX says so, and compiles.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*persistent compilation cache:UserWarning")
@pytest.mark.faults("a finished run on a disk that cannot be written")
def test_a_finished_run_is_shown_where_nothing_can_be_written(
    data: Dataset, config: TrainConfig, tmp_path: Path, tally: Tally
) -> None:
    result = train(data, config, tmp_path / "run")
    before = saved(tmp_path / "run")
    for path in (tmp_path / "run", *(tmp_path / "run").rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with _open_to_others(tmp_path), _without_privileges():
        if os.access(tmp_path / "run", os.W_OK, effective_ids=True):
            pytest.skip("this user may write anywhere")
        assert train(data, config, tmp_path / "run").summary == result.summary
        with pytest.raises(RunError, match="of another run"):
            train(data, config.model_copy(update={"seed": 7}), tmp_path / "run")
    assert saved(tmp_path / "run") == before
    tally(1, "its result is given back, nothing is touched")


@contextlib.contextmanager
def _open_to_others(folder: Path) -> Iterator[None]:
    """Folders of tests are closed to other users."""
    modes = {place: place.stat().st_mode for place in (folder, *folder.parents)}
    modes = {place: mode for place, mode in modes.items() if not mode & 0o001}
    for place in modes:
        place.chmod(0o755)
    yield
    for place, mode in modes.items():
        place.chmod(mode)


@pytest.mark.slow
def test_a_full_disk_is_one_message_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", rows=10)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.json")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "runs", str(run), "--out", str(tmp_path / "out.json")])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: out.json: No space left on device\n"


@contextlib.contextmanager
def _without_privileges() -> Iterator[None]:
    """As a user who may not write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
