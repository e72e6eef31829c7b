"""Damaged files: checkpoints of a run and of a world, and the metrics file."""

import errno
import math
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
from neubay import algorithm, world
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import RunError, WorldError
from neubay.runs import checkpoints
from neubay.runs.files import tree_hash
from neubay.runs.signals import Stopped
from neubay.world import fitting


def truncations(checkpoint: Path) -> int:
    """Cut each file of a checkpoint at every 4 KB: each is detected. How many there were."""
    cuts = 0
    for path in sorted(checkpoint.iterdir()):
        content = path.read_bytes()
        for length in range(0, len(content), 4096):
            path.write_bytes(content[:length])
            with pytest.raises(checkpoints.Damaged, match=path.name):
                checkpoints.unsealed(checkpoint)
            cuts += 1
        path.write_bytes(content)
    checkpoints.unsealed(checkpoint)
    return cuts


def flips(checkpoint: Path, each: int) -> int:
    """Flip bits of each file of a checkpoint: each is detected. How many there were."""
    count, chance = 0, random.Random(0)
    for path in sorted(checkpoint.iterdir()):
        content = path.read_bytes()
        for _ in range(each):
            path.write_bytes(flipped(content, chance.randrange(8 * len(content))))
            with pytest.raises(checkpoints.Damaged, match=path.name):
                checkpoints.unsealed(checkpoint)
            count += 1
        path.write_bytes(content)
    checkpoints.unsealed(checkpoint)
    return count


def test_every_bit_of_a_seal_counts(tmp_path: Path) -> None:
    """Also those of a number's last digits, where another spelling reads as the same number."""
    checkpoints.seal(tmp_path, {"seconds": 94.22391128540039, "loss": 5e-324, "best": math.inf})
    sealed = tmp_path / "checkpoint.json"
    content = sealed.read_bytes()
    for bit in range(8 * len(content)):
        sealed.write_bytes(flipped(content, bit))
        with pytest.raises(checkpoints.Damaged, match=sealed.name):
            checkpoints.unsealed(tmp_path)
    sealed.write_bytes(content)
    assert checkpoints.unsealed(tmp_path)["note"]["seconds"] == 94.22391128540039


@pytest.mark.faults("checkpoint truncated at every 4 KB")
def test_a_truncated_checkpoint_is_detected(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    cuts = truncations(checkpoints.found(left / "checkpoints")[-1])
    _resumes_from_the_one_before(data, config, left, reference, lambda path: truncate(path, 4096))
    tally(cuts, "detected each time; resumed from the checkpoint before, bit for bit")


@pytest.mark.faults("bits flipped in a checkpoint")
def test_a_flipped_bit_is_detected(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    changed = flips(checkpoints.found(left / "checkpoints")[-1], 150)
    _resumes_from_the_one_before(data, config, left, reference, flip)
    tally(changed, "detected each time; resumed from the checkpoint before, bit for bit")


def _resumes_from_the_one_before(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, spoil: Callable[[Path], None]
) -> None:
    """Once the newest checkpoint is spoilt the run resumes from the other; of two, it refuses."""
    older, newest = checkpoints.found(left / "checkpoints")
    spoil(max(newest.rglob("*"), key=lambda path: path.stat().st_size * path.is_file()))
    both = Path(shutil.copytree(left, left.parent / "both"))
    told: list[str] = []
    train(data, config, left, tell=told.append)
    assert f"{newest}: damaged" in told[0] and "not used" in told[0]
    assert told[1] == f"resuming from step {int(older.name[:9])} of 300"
    assert outcome(left) == reference
    (both / "checkpoints" / older.name / "checkpoint.json").unlink()
    before = saved(both)
    with pytest.raises(RunError, match="none of its 2 checkpoints is sound"):
        train(data, config, both)
    assert saved(both) == before


@pytest.mark.slow
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
    _, newest = checkpoints.found(place / "checkpoints")
    tried = truncations(newest) + flips(newest, 70)
    largest = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:  # the sound one outlives a disk that is full then
        patch.setattr(fitting, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(checkpoints, "write_arrays", _no_room)
        with pytest.raises(WorldError, match="No space left"):
            world.fit(data, config, 0, directory=place, tell=told.append)
    again = world.fit(data, config, 0, directory=place)
    assert f"{newest}: damaged" in told[0] and "not used" in told[0]
    assert tree_hash(again.world) == tree_hash(whole.world)
    assert not (place / "checkpoints").exists()
    tally(tried, "detected each time; resumed from the checkpoint before, bit for bit")


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_large_replay_is_kept_in_slices(
    data: Dataset, config: TrainConfig, reference: dict, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithm, "SLICE", 4000)
        with pytest.raises(Stopped):
            train(data, config, tmp_path / "run", stop_at(200))
    newest = checkpoints.found(tmp_path / "run" / "checkpoints")[-1]
    files = sorted(path.name for path in newest.glob("*.npz"))
    assert sorted(checkpoints.unsealed(newest)["files"]) == files and len(files) > 4
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
    kept = (left / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    truncate(left / "metrics.jsonl", len(kept[-1]) + 10)  # into the last row but one
    told: list[str] = []
    train(data, config, left, tell=told.append)
    assert "curves will have a gap" in told[0] and told[1] == "resuming from step 200 of 300"
    shortened, rows = outcome(left), reference["metrics"].splitlines(keepends=True)
    assert shortened.pop("metrics") == b"".join(rows[: len(kept) - 2] + rows[len(kept) :])
    assert shortened == {name: part for name, part in reference.items() if name != "metrics"}
    tally(2, "cut back to the checkpoint, or rows missing in the curves and in nothing else")
