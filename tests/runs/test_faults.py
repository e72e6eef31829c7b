"""What can go wrong with a run, made to go wrong: nothing saved is lost, and the message helps.

Every test that carries `faults(name)` is a row of the table in docs/reliability.md, which
`pytest -m faults --reliability docs/reliability.md` writes.
"""

import contextlib
import errno
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from helpers.fault_driver import CONFIG, PHASES
from helpers.small_runs import outcome, swings, tiny
from neubay import cli, experiment, preflight, world
from neubay.agents import redq
from neubay.config import TrainConfig, updated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, NeubayError, RunError, TrainingError, WorldError
from neubay.experience import Recorded
from neubay.runs import checkpoints, rundir
from neubay.runs.files import load_arrays, tree_hash
from neubay.runs.signals import Interrupted, Stopped, deferred_signals
from neubay.runs.tracking import Row, Tracker
from neubay.studies import bandit
from neubay.tasks import get_task
from neubay.world import fitting

TESTS = Path(__file__).parents[1]
Tally = Callable[[int, str], None]


# --- A run that was left halfway -----------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> Dataset:
    return swings(get_task("pendulum"))


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    return tiny(agent={"steps": 300})


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("NEUBAY_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def reference(data: Dataset, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the run is when nothing goes wrong."""
    directory = tmp_path_factory.mktemp("reference") / "run"
    train(data, config, directory)
    return outcome(directory)


@pytest.fixture(scope="module")
def halfway(data: Dataset, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped at step 200 of 300, with two moments and a best one."""
    directory = tmp_path_factory.mktemp("halfway") / "run"
    with pytest.raises(Stopped):
        train(data, config, directory, stop_at(200))
    assert len(rundir.moments(directory / "checkpoints")) == 2
    return directory


@pytest.fixture
def left(halfway: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(halfway, tmp_path / "run"))


def train(
    data: Dataset,
    config: TrainConfig,
    directory: Path,
    *trackers: Tracker,
    report: Callable[[str], None] = lambda text: None,
) -> experiment.Result:
    return experiment.run(
        data, config, directory, trackers=trackers, checkpoint_seconds=0.0, report=report
    )


def stop_at(step: int, signum: int = signal.SIGTERM) -> Tracker:
    """Ask the process to stop when a training has reached a step."""

    def track(row: Row) -> None:
        if row["kind"] == "train" and row["step"] == step:
            os.kill(os.getpid(), signum)

    return track


def saved(directory: Path) -> dict[str, bytes]:
    """Every file of a run but the lock."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_relative_directory_does_as_well(
    left: Path,
    data: Dataset,
    config: TrainConfig,
    reference: dict,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(left.parent)  # the default, runs/..., is relative
    train(data, config, Path(left.name))
    assert outcome(left) == reference


# --- The process ends ----------------------------------------------------------------------------


@pytest.mark.faults("kill -9 in every phase and at random moments")
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_ends_as_if_it_never_had_been(tmp_path: Path, tally: Tally) -> None:
    (tmp_path / "orders.json").write_text(json.dumps({"folder": str(tmp_path), "seed": 1}))
    finished = subprocess.run(
        [sys.executable, "-m", "helpers.fault_driver", str(tmp_path / "orders.json")],
        cwd=TESTS,
        env=os.environ | _compiled_once(tmp_path),
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    attempts = [json.loads(line) for line in finished.stdout.splitlines()]
    whole, *killed, last = attempts
    assert whole["code"] == last["code"] == 0, finished.stderr[-2000:]
    assert {attempt["code"] for attempt in killed} == {-signal.SIGKILL}, finished.stderr[-2000:]
    assert len(killed) >= 30 and {attempt["run"] for attempt in killed} == {"killed"}
    phases = {phase for attempt in killed for phase in attempt.get("phases", {})}
    assert phases == PHASES.keys()
    uninterrupted = outcome(tmp_path / "reference")
    rows = [json.loads(line) for line in uninterrupted["metrics"].splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == CONFIG.agent.steps
    assert outcome(tmp_path / "killed") == uninterrupted
    tally(
        len(killed),
        f"one run, killed in {len(phases)} phases (world, imagination, updates, evaluation, "
        "checkpointing, result) and at random moments: parameters, optimiser states, metrics file "
        "and result bit for bit those of the uninterrupted run",
    )


@pytest.mark.faults("Ctrl-C and SIGTERM")
def test_signals_are_answered_at_a_safe_point(
    data: Dataset, config: TrainConfig, reference: dict, tmp_path: Path, tally: Tally
) -> None:
    points = [(signum, step) for signum in (signal.SIGINT, signal.SIGTERM) for step in (50, 200)]
    for signum, step in points:
        directory = tmp_path / f"{signum}-{step}"
        with pytest.raises(Stopped) as stopped:
            train(data, config, directory, stop_at(step, signum))
        assert stopped.value.signum == signum
        assert rundir.look(directory).step == step
        told: list[str] = []
        train(data, config, directory, report=told.append)
        assert told == [f"going on from step {step} of 300"]
        assert outcome(directory) == reference
    tally(len(points), "current step finished, all saved, resumed bit for bit")


@pytest.mark.faults("signals outside of a training's steps")
def test_signals_outside_of_the_steps_are_answered_too(
    data: Dataset, config: TrainConfig, reference: dict, tmp_path: Path, tally: Tally
) -> None:
    def ask(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def ask_in_the_last_stage(progress: world.Progress) -> None:
        if progress.stage == "uncertainty":
            ask()

    place, seen, whole = tmp_path / "world", set(), world.fit(data, config.world, 0)
    with pytest.raises(Stopped):
        world.fit(data, config.world, 0, directory=place, progress=ask_in_the_last_stage)
    assert not world.is_whole(place)
    with _before(fitting, "save", ask), pytest.raises(Stopped):
        world.fit(data, config.world, 0, directory=place, progress=lambda p: seen.add(p.stage))
    assert seen == {"uncertainty"}  # the training itself was over
    again = world.load(place, data)
    assert tree_hash(again.world) == tree_hash(whole.world)
    assert again.data_uncertainty.tobytes() == whole.data_uncertainty.tobytes()
    with pytest.raises(Stopped):  # at the last step: only the result is missing
        train(data, config, tmp_path / "last", stop_at(300))
    assert not rundir.is_finished(tmp_path / "last")
    with _before(experiment, "posterior_estimate", ask), pytest.raises(Stopped):
        train(data, config, tmp_path / "last")
    assert outcome(tmp_path / "last") == reference
    tally(4, "the step finished, all saved; gone on with bit for bit, nothing trained twice")


@contextlib.contextmanager
def _before(home: object, name: str, act: Callable[[], None]) -> Iterator[None]:
    """Do something before each call of a function."""
    original = getattr(home, name)

    def call(*arguments: object, **named: object) -> object:
        act()
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, name, call)
        yield


@pytest.mark.faults("SIGTERM to a real command")
def test_a_command_that_is_terminated_says_how_to_go_on_and_does(
    tmp_path: Path, tally: Tally
) -> None:
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny(agent={"steps": 1000}).model_dump()))
    environment = os.environ | _compiled_once(tmp_path) | {"NEUBAY_CACHE": str(tmp_path / "cache")}

    def start(arguments: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from neubay.cli import main; main()", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    asked = ["train", "pendulum", "--config", str(tmp_path / "tiny.yaml")]
    asked += ["--out", str(tmp_path / "run")]
    metrics, patience = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 200
    with start(asked) as running:
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < patience:
            time.sleep(0.02)
        running.terminate()
        said, _ = running.communicate()
    assert running.returncode == 128 + signal.SIGTERM
    left = rundir.look(tmp_path / "run")
    assert left.state == "unfinished" and 0 < left.step < 1000
    advice = said.split("everything up to here is saved; to go on: neubay ")[1]
    assert shlex.split(advice) == asked
    with start(shlex.split(advice)) as running:
        said, _ = running.communicate()
    assert running.returncode == 0
    assert f"going on from step {left.step:,} of 1,000" in said
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == list(range(50, 1001, 50))
    tally(1, "saved, exit code 143; the command that it printed went on and finished")


def _compiled_once(folder: Path) -> dict[str, str]:
    """An environment in which a new process need not compile again what another did."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jit"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


@pytest.mark.faults("exit code and advice after a signal")
@pytest.mark.parametrize("command", ["train", "world", "bandit"])
def test_a_stopped_command_tells_how_to_go_on(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tally: Tally,
) -> None:
    def stopped(*_: object, **__: object) -> None:
        with deferred_signals() as signalled:
            os.kill(os.getpid(), sent[0])
            raise Stopped(signalled())

    sent: list[int] = []
    monkeypatch.setattr(experiment, "run", stopped)
    monkeypatch.setattr(world, "fit", stopped)
    monkeypatch.setattr(bandit, "run", stopped)
    for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        sent[:] = [signum]
        arguments = [command, *([] if command == "bandit" else ["pendulum"])]
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--seed", "3", "--out", str(tmp_path / "run")])
        assert ended.value.code == code
        printed = " ".join(capsys.readouterr().out.split())
        assert f"saved; to go on: neubay {command}" in printed
        assert "--seed" in printed and str(tmp_path / "run") in printed
    tally(2, "exit codes 130 and 143, and the exact command to go on")


def test_a_second_signal_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)  # shells start what runs in the background without it
    with pytest.raises(Interrupted), deferred_signals() as outer:  # noqa: SIM117
        with deferred_signals() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner() == outer() == signal.SIGTERM
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


# --- The disk ------------------------------------------------------------------------------------


@pytest.mark.faults("disk full: any write of a checkpoint fails")
def test_a_write_that_fails_loses_nothing(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally, monkeypatch
) -> None:
    tried, original = 0, os.fsync
    for failing in (1, 2, 3, 5, 8, 13, 21, 100):
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
        assert "same command to go on" in str(refused.value)
        kept = rundir.moments(spoilt / "checkpoints")
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
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        refusals = 0
        for kilobytes in (160, 320, 480):
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


# --- The checkpoint ------------------------------------------------------------------------------


@pytest.mark.faults("checkpoint truncated at every 4 KB")
def test_a_truncated_checkpoint_is_detected(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    newest, cuts = rundir.moments(left / "checkpoints")[-1], 0
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for length in range(0, len(content), 4096):
            path.write_bytes(content[:length])
            with pytest.raises(checkpoints.Damaged, match=path.name):
                checkpoints.unsealed(newest)
            cuts += 1
        path.write_bytes(content)
    checkpoints.unsealed(newest)
    _resumes_from_the_one_before(data, config, left, reference, lambda path: truncate(path, 4096))
    tally(cuts, "detected each time; resumed from the checkpoint before, bit for bit")


@pytest.mark.faults("bits flipped in a checkpoint")
def test_a_flipped_bit_is_detected(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    newest, flips, chance = rundir.moments(left / "checkpoints")[-1], 0, random.Random(0)
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for _ in range(40 if content else 0):
            path.write_bytes(flipped(content, chance.randrange(8 * len(content))))
            with pytest.raises(checkpoints.Damaged, match=path.name):
                checkpoints.unsealed(newest)
            flips += 1
        path.write_bytes(content)
    checkpoints.unsealed(newest)
    _resumes_from_the_one_before(data, config, left, reference, flip)
    tally(flips, "detected each time; resumed from the checkpoint before, bit for bit")


def _resumes_from_the_one_before(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, spoil: Callable[[Path], None]
) -> None:
    """Once the newest checkpoint is spoilt the run goes on from the other; of two, it refuses."""
    older, newest = rundir.moments(left / "checkpoints")
    spoil(max(newest.rglob("*"), key=lambda path: path.stat().st_size * path.is_file()))
    both = Path(shutil.copytree(left, left.parent / "both"))
    told: list[str] = []
    train(data, config, left, report=told.append)
    assert f"{newest}: damaged" in told[0] and "not used" in told[0]
    assert told[1] == f"going on from step {int(older.name[:9])} of 300"
    assert outcome(left) == reference
    (both / "checkpoints" / older.name / "checkpoint.json").unlink()
    before = saved(both)
    with pytest.raises(RunError, match="none of its 2 checkpoints is sound"):
        train(data, config, both)
    assert saved(both) == before


def truncate(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[: -min(by, path.stat().st_size)])


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(flipped(content, 4 * len(content)))


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.faults("checkpoint of a world truncated at every 4 KB, bits flipped")
def test_a_damaged_checkpoint_of_a_world(data: Dataset, tmp_path: Path, tally: Tally) -> None:
    config, place = tiny(world={"max_epochs": 6, "width": 32}).world, tmp_path / "world"
    whole = world.fit(data, config, 0)

    def stop(progress: world.Progress) -> None:
        if progress.epoch == 4 and progress.stage == "training":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)
        with pytest.raises(Stopped):
            world.fit(data, config, 0, directory=place, progress=stop)
    checkpoint, chance = place / "training.npz", random.Random(0)
    content, like = checkpoint.read_bytes(), _like(data, config)
    sound, _ = load_arrays(checkpoint, like)
    damages = [content[:length] for length in range(0, len(content), 4096)]
    damages += [flipped(content, chance.randrange(8 * len(content))) for _ in range(200)]
    harmless = 0
    for damaged in damages:
        checkpoint.write_bytes(damaged)
        try:
            read, _ = load_arrays(checkpoint, like)
        except RunError as error:
            assert "damaged" in str(error) or "expected" in str(error)
            continue
        harmless += 1  # a date or another unused field of the archive
        assert tree_hash(read) == tree_hash(sound)
    assert harmless < 20
    checkpoint.write_bytes(content[: len(content) // 2])
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:  # the sound one outlives a disk that is full then
        patch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(fitting, "save_arrays", _no_room)
        with pytest.raises(WorldError, match="No space left"):
            world.fit(data, config, 0, directory=place, report=told.append)
    again = world.fit(data, config, 0, directory=place)
    assert "training.npz" in told[0] and "not used" in told[0]
    assert tree_hash(again.world) == tree_hash(whole.world)
    tally(len(damages), "detected or without effect; trained on from the one before, bit for bit")


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def _like(data: Dataset, config: object) -> object:
    recipe = fitting.Recipe.of(data.task, config)
    return fitting.initialise(fitting.member_keys(config.pool, 0), recipe)


def test_a_large_replay_is_kept_in_slices(
    data: Dataset, config: TrainConfig, reference: dict, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SLICE", 4000)
        with pytest.raises(Stopped):
            train(data, config, tmp_path / "run", stop_at(200))
    newest = rundir.moments(tmp_path / "run" / "checkpoints")[-1]
    assert len(checkpoints.unsealed(newest)["slices"]) == len(list((newest / "replay").iterdir()))
    assert len(list((newest / "replay").iterdir())) > 3
    train(data, config, tmp_path / "run")
    assert outcome(tmp_path / "run") == reference


@pytest.mark.faults("metrics file shortened or lengthened by hand")
def test_the_metrics_file_fits_the_checkpoint(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    longer = Path(shutil.copytree(left, left.parent / "longer"))
    with (longer / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 250}\n{"kind": "tr')
    train(data, config, longer)
    assert outcome(longer) == reference
    truncate(left / "metrics.jsonl", 1)
    told: list[str] = []
    train(data, config, left, report=told.append)
    assert "metrics.jsonl had" in told[0]
    assert outcome(left) == reference
    tally(2, "cut back to the checkpoint, or an earlier checkpoint used; no hole, no doubled row")


# --- What the run depends on ---------------------------------------------------------------------


@pytest.mark.faults("dataset changed under a run")
def test_other_data_are_refused(config: TrainConfig, left: Path, tally: Tally) -> None:
    before = saved(left)
    with pytest.raises(RunError, match=r"its dataset\.hash is \w{32}, asked for is \w{32}\. The"):
        train(swings(get_task("pendulum"), episodes=5), config, left)
    assert saved(left) == before
    tally(1, "refused, both hashes named")


@pytest.mark.faults("settings changed under a run")
def test_other_settings_are_refused_by_name(
    data: Dataset, config: TrainConfig, left: Path, tally: Tally
) -> None:
    before = saved(left)
    changes = (
        {"agent": {"kappa": 0.75}},
        {"seed": 9},
        {"world": {"pool": 4}},
        {"rollout": {"zeta": None}},
    )
    for change in changes:
        ((section, values),) = change.items()
        name = section if section == "seed" else f"{section}.{next(iter(values))}"
        with pytest.raises(RunError, match=rf"its {name} is .*, asked for is .*choose another"):
            train(data, updated(config, change), left)
    assert saved(left) == before
    tally(len(changes), "refused, the setting and both values named")


@pytest.mark.faults("another world under a run")
def test_another_world_is_refused(
    data: Dataset, config: TrainConfig, left: Path, tally: Tally
) -> None:
    before = saved(left)
    other = world.fit(data, config.world, 5)
    with pytest.raises(RunError, match=r"begun in the world \w{32}, this one is \w{32}"):
        experiment.run(data, config, left, fitted=other)
    assert saved(left) == before
    tally(1, "refused, both hashes named")


def test_a_reference_to_no_world_is_named(data: Dataset, config: TrainConfig, left: Path) -> None:
    (left / "world.json").write_text("{}")
    with pytest.raises(RunError, match=r"world\.json: damaged: .* which world .* another --out"):
        train(data, config, left)


@pytest.mark.parametrize("seconds", [math.nan, -1.0])
def test_a_senseless_time_between_checkpoints_is_refused(
    seconds: float, data: Dataset, config: TrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"--checkpoint-seconds is .*: expected .* 0 or more"):
        experiment.run(data, config, tmp_path / "run", checkpoint_seconds=seconds)
    assert not (tmp_path / "run").exists()


def test_a_score_that_is_no_number_is_never_the_best(
    data: Dataset, config: TrainConfig, tmp_path: Path
) -> None:
    kept = checkpoints.Checkpoints(tmp_path, tmp_path / "metrics.jsonl", report=print)
    state, at, nothing = {"w": jnp.zeros(2)}, checkpoints.Position(), Recorded(data, config)
    found = []
    for step, mean in enumerate([math.nan, 1.0, math.nan, 0.5, 2.0], start=1):
        at.step, at.evaluation = step, {"step": step, "return_mean": mean}
        kept.pause(state, nothing, at, 10)
        found.append([path.name for path in (tmp_path / "checkpoints").glob("best-*")])
    assert found == [[], *[["best-000000002"]] * 3, ["best-000000005"]] and at.best == 2.0
    at.best = math.nan  # as versions before kept it
    kept.pause(state, nothing, at, 10)
    assert at.best == 2.0


@pytest.mark.faults("run of another layout")
def test_layouts(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    path = left / "run.json"
    about = json.loads(path.read_text())
    for layout, why in ((3, "reads 1 and 2; use the version that wrote it"), (1, "no checkpoints")):
        path.write_text(json.dumps(about | {"layout": layout}))
        with pytest.raises(RunError, match=why):
            train(data, config, left)
    path.write_text(json.dumps(about))
    for moment in rundir.moments(left / "checkpoints"):  # as older versions sealed them
        note = checkpoints.unsealed(moment)
        assert note["layout"] == 2 and note.pop("slices") == []
        (moment / "checkpoint.json").unlink()
        checkpoints.seal(moment, note | {"layout": 1})
    train(data, config, left)
    assert outcome(left) == reference
    path.write_text(json.dumps(about | {"layout": 1}))  # a finished run of the older layout
    assert train(data, config, left).summary["steps"] == 300
    tally(4, "newer and unfinished older ones refused with the reason; finished older ones opened")


@pytest.mark.faults("clock going back")
def test_a_clock_that_goes_back_changes_nothing(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally, monkeypatch
) -> None:
    now, asked = time.time(), 0

    def backwards() -> float:
        nonlocal asked
        asked += 1
        return now - 3600.0 * asked

    monkeypatch.setattr(time, "time", backwards)
    train(data, config, left)
    monkeypatch.undo()
    assert outcome(left) == reference
    assert all(value >= 0 for value in rundir.look(left).summary["seconds"].values())
    tally(1, "no decision and no row depends on the time of day")


@pytest.mark.faults("two processes on one directory")
def test_a_second_process_is_refused_and_told_of_the_first(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    before = saved(left)
    with _held(left) as holder:
        with pytest.raises(RunError, match=rf"in use by process {holder.pid} on "):
            train(data, config, left)
        assert rundir.look(left).holder.startswith(f"process {holder.pid}")
        with pytest.raises(RunError, match="in use"):
            rundir.remove(left)
        assert saved(left) == before
        holder.kill()
        holder.wait()
        train(data, config, left)
    assert outcome(left) == reference
    tally(2, "the second is refused and told who holds it; free again when the first was killed")


@pytest.mark.faults("two processes that train one world")
def test_a_world_in_training_is_waited_for(data: Dataset, tmp_path: Path, tally: Tally) -> None:
    told: list[str] = []
    with _held(tmp_path / "world") as holder:

        def waiting(text: str) -> None:
            told.append(text)
            holder.kill()

        world.fit(data, tiny().world, 0, directory=tmp_path / "world", report=waiting)
    assert len(told) == 1 and f"waiting for process {holder.pid}" in told[0]
    tally(1, "the second says whom it waits for, and then uses the world")


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[subprocess.Popen]:
    """Another process that works in a directory."""
    code = (
        "import sys, time; from pathlib import Path; from neubay.runs.locks import locked\n"
        "with locked(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            yield holder
        finally:
            holder.kill()


# --- The training itself -------------------------------------------------------------------------


@pytest.mark.faults("not enough memory")
def test_memory_is_estimated_before_training(
    data: Dataset, config: TrainConfig, tmp_path: Path, tally: Tally, monkeypatch
) -> None:
    sizes = {"buffer": 40_000_000, "steps": 2_000_000, "updates_per_row": 0.05}
    large = updated(config, {"agent": sizes})
    monkeypatch.setattr(preflight, "free_memory", lambda: 1_000_000_000)
    with pytest.raises(TrainingError, match=r"may need .* and 1\.00 GB are free") as refused:
        train(data, large, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    message = str(refused.value)
    parts = preflight.memory_estimate(data, large)
    assert f"{sum(parts.values()) / 1e9:.2f} GB" in message
    assert f"replay {parts['replay'] / 1e9:.2f}" in message
    advised = int(message.split("--agent.buffer ")[1])
    preflight.check_memory(data, updated(large, {"agent": {"buffer": advised}}))
    with pytest.raises(
        TrainingError, match=r"has more: .*, or begin another run .* --agent.buffer"
    ):
        preflight.check_memory(data, large, begun=True)  # its settings cannot change any more
    sizes = {"pool": 2000, "members": 20, "width": 400, "depth": 2}
    pools = config.world.model_copy(update=sizes)
    with pytest.raises(TrainingError, match=r"members \d.* To train: .*--pool (\d+)$") as refused:
        preflight.check_world_memory(data, pools)
    advised = int(str(refused.value).split("--pool ")[1])
    preflight.check_world_memory(data, pools.model_copy(update={"pool": advised}))
    monkeypatch.setattr(preflight, "free_memory", lambda: 1000)
    with pytest.raises(TrainingError, match=r"make memory free$"):
        preflight.check_memory(data, config)
    with pytest.raises(TrainingError, match=r"make memory free$"):
        preflight.check_world_memory(data, config.world)
    tally(5, "refused before training: the parts in GB, what is free, the flag and a value for it")


def test_files_that_the_system_remembers_take_no_memory(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc" / "self", tmp_path / "sys" / "fs" / "cgroup"
    proc.mkdir(parents=True)
    assert preflight.free_memory(tmp_path) is None
    (proc.parent / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   9000 kB\n")
    assert preflight.free_memory(tmp_path) == 9000 * 1024

    def group(place: Path, names: list[str], *content: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in zip([*names, "memory.stat"], content, strict=True):
            (place / name).write_text(text)

    (proc / "cgroup").write_text("0::/user/job\n")
    second = ["memory.max", "memory.current"]
    held = "anon 50000\nactive_file 20000\ninactive_file 10000\n"
    group(groups / "user", second, "100000\n", "80000\n", held)
    group(groups / "user" / "job", second, "max\n", "80000\n", held)
    assert preflight.free_memory(tmp_path) == 100_000 - 80_000 + 30_000
    (proc / "cgroup").write_text("4:cpu:/\n3:memory:/job\n0::/\n")
    first = ["memory.limit_in_bytes", "memory.usage_in_bytes"]
    held = "cache 9\ntotal_active_file 300\ntotal_inactive_file 40\n"
    group(groups / "memory" / "job", first, "5000", "4000", held)
    assert preflight.free_memory(tmp_path) == 5000 - 4000 + 340


def test_the_memory_estimate_is_a_bound(data: Dataset, config: TrainConfig) -> None:
    parts = preflight.memory_estimate(data, config)
    assert parts["data"] == sum(
        np.asarray(field).nbytes for field in data.tape if field is not None
    )
    assert preflight.replay_rows(data, config) == 300 / 0.2 + 4 * 201
    free = preflight.free_memory()
    assert free is None or free > 0


@pytest.mark.faults("loss that is not finite")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_divergence_stops_the_training(
    value: float, data: Dataset, config: TrainConfig, left: Path, tally: Tally, monkeypatch
) -> None:
    newest, original = rundir.moments(left / "checkpoints")[-1], redq.Agent.update
    before = saved(newest)

    def diverging(agent: redq.Agent, state: object, tapes: object) -> tuple:
        state, metrics = original(agent, state, tapes)
        return state, metrics | {"critic_loss": jnp.float32(value)}

    monkeypatch.setattr(redq.Agent, "update", diverging)
    with pytest.raises(TrainingError, match=r"diverged at step 250: .* critic_loss\.") as stopped:
        train(data, config, left)
    for advice in ("--agent.encoder-lr", "--agent.gamma", "eta_phi", "last checkpoint", "--out"):
        assert advice in str(stopped.value)
    assert saved(newest) == before
    assert rundir.look(left).step == 200
    tally(1, "stops at once, names the loss and the paper's advice; the last checkpoint is kept")


# --- The page ------------------------------------------------------------------------------------


def test_the_page_lists_these_faults() -> None:
    page = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
    table = page.split("<!-- faults -->")[1].split("<!-- end of faults -->")[0]
    listed = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    tried = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r'^@pytest\.mark\.faults\("(.*)"\)$', path.read_text(), re.M)
    }
    assert tried <= listed, f"missing: {tried - listed}; write the page as its head says"
    assert listed - tried == {"fault"}, f"no longer tried: {listed - tried}"


def test_every_phase_of_the_kills_exists() -> None:
    for home, name in PHASES.values():
        assert callable(getattr(home, name))


def test_errors_are_of_the_interface() -> None:
    assert all(issubclass(error, NeubayError) for error in (RunError, TrainingError, WorldError))
