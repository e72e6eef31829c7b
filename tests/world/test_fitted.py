"""The directory of a world: saved, loaded, and refused where it is damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from helpers.linear_system import CONFIG, Linear, assert_same
from neubay import world as worlds
from neubay.data.dataset import Dataset
from neubay.errors import NeubayError, WorldError
from neubay.world import FittedWorld
from neubay.world.fitted import FORMER_CHECKPOINT


@pytest.mark.slow
def test_what_is_saved_is_what_is_loaded(
    fitted: FittedWorld, dataset: Dataset, tmp_path: Path
) -> None:
    worlds.save(fitted, tmp_path)
    loaded = worlds.load(tmp_path, dataset)
    assert_same(loaded, fitted)
    assert (loaded.config, loaded.seed, loaded.provenance) == (CONFIG, 0, fitted.provenance)
    assert loaded.threshold(0.9) == fitted.threshold(0.9)
    assert_same(worlds.fit(dataset, CONFIG, seed=0, directory=tmp_path), fitted)
    about = json.loads((tmp_path / "world.json").read_text())
    assert about["uncertainty"]["quantiles"]["1.0"] == fitted.threshold(1.0)
    assert about["provenance"]["jax"] == jax.__version__


def test_a_world_of_other_data_names_both_hashes(
    fitted: FittedWorld, dataset: Dataset, tmp_path: Path
) -> None:
    worlds.save(fitted, tmp_path)
    other = Linear().dataset(50, seed=5, name="other")
    with pytest.raises(WorldError, match=f"{dataset.hash}.*{other.hash}"):
        worlds.load(tmp_path, other)
    with pytest.raises(WorldError, match="another fit"):
        worlds.fit(other, CONFIG, seed=0, directory=tmp_path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        about = json.loads(path.read_text())
        change(about)
        path.write_text(json.dumps(about))

    return edit


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("members.npz", truncate, "damaged or of another world"),
        ("members.npz", flip, "damaged or of another world"),
        ("members.npz", Path.unlink, "cannot be read"),
        ("data_uncertainty.npy", flip, "damaged or of another world"),
        ("world.json", truncate, "not valid JSON"),
        ("world.json", Path.unlink, "not a world"),
        ("world.json", edited(lambda about: about.update(layout=99)), "layout 99"),
        ("world.json", edited(lambda about: about.pop("scores")), "damaged"),
        ("world.json", edited(lambda about: about["config"].update(widht=1)), "widht"),
        ("world.json", edited(lambda about: about["config"].update(width=64)), "expected float32"),
        ("world.json", edited(lambda about: about["dataset"].update(transitions=7)), "per trans"),
    ],
)
def test_a_damaged_directory_is_an_error_that_says_where(
    fitted: FittedWorld,
    tmp_path: Path,
    name: str,
    damage: Callable[[Path], None],
    message: str,
) -> None:
    worlds.save(fitted, tmp_path)
    damage(tmp_path / name)
    with pytest.raises(NeubayError, match=message) as caught:
        worlds.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_an_unfinished_world_is_not_a_world(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "0000001-0000000").mkdir(parents=True)
    with pytest.raises(WorldError, match="unfinished"):
        worlds.load(tmp_path)
    (tmp_path / FORMER_CHECKPOINT).touch()
    with pytest.raises(WorldError, match=r"unfinished world of neubay 0\.1"):
        worlds.load(tmp_path)
