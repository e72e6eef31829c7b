"""Damaged files: checkpoints of a run and of a world, and the metrics file."""

import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.faults import (
    Tally,
    flip,
    flipped,
    saved,
    stop_at,
    train,
    truncate,
)
from helpers.small_runs import outcome, tiny
from neubay import world
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import RunError, WorldError
from neubay.runs import checkpoints, rundir
from neubay.runs.files import load_arrays, tree_hash
from neubay.runs.signals import Stopped
from neubay.world import fitting


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
