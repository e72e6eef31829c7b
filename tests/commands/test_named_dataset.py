"""A dataset that a command names is located, checked, opened and hashed once, whatever it does."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from neubay import world
from neubay.cli import main
from neubay.data import dataset, download, sources, validation
from neubay.data.convert import write
from neubay.data.dataset import Dataset
from neubay.errors import WorldError

NAME = "hopper-medium-v2"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def downloaded(cache: Path) -> Path:
    """A small dataset where `neubay data download` would have put the real one."""
    path = download.storage_path(NAME)
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(1.2, 0.01, (60, 11)).astype(np.float32)
        file["actions"] = rng.uniform(-1, 1, (60, 3)).astype(np.float32)
        file["rewards"] = np.ones(60, np.float32)
        file["terminals"] = np.zeros(60, bool)
        file["timeouts"] = np.arange(60) % 20 == 19
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often what costs time was done; a world is never trained."""
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(module, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(module, name, counting)

    def no_world(*_: object, **__: object) -> None:
        raise WorldError("stopped here")

    for name in ("locate", "open_archive", "open_minari"):
        count(sources, name)
    count(validation, "locate")
    count(download, "file_hash")  # of the file
    count(dataset, "sha256")  # of the tape
    monkeypatch.setattr(world, "fit", no_world)
    return counted


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code in (0, 1, 2)


@pytest.mark.parametrize(
    ("command", "hashes_the_tape"),
    [
        (("train", NAME), 1),
        (("train", "--agent.kappa=0.7", NAME, "--preset=cpu"), 1),  # behind a flag
        (("world", NAME), 1),
        (("ablate", NAME, "--over", "zeta", "--dry-run"), 0),
        (("ablate", NAME, "--over", "zeta"), 1),
        (("data", "info", NAME), 1),
        (("data", "validate", NAME), 0),
    ],
    ids=str,
)
def test_a_downloaded_dataset(
    downloaded: Path, calls: Counter[str], command: tuple[str, ...], hashes_the_tape: int
) -> None:
    run(*command)
    expected = {"locate": 1, "file_hash": 1, "open_archive": 1}
    # With the dataset behind a flag, the built-in one is looked up first, which opens nothing.
    expected["locate"] += command[1].startswith("--")
    assert calls == Counter(expected, sha256=hashes_the_tape)


@pytest.mark.parametrize(
    "command", [("train",), ("world",), ("data", "info"), ("data", "validate")]
)
def test_a_minari_dataset(cache: Path, calls: Counter[str], command: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    written = Dataset.from_arrays(
        rng.normal(size=(40, 3)),
        rng.uniform(-1, 1, (40, 1)),
        np.ones(40),
        np.zeros(40, bool),
        np.arange(40) % 20 == 19,
    )
    write(written, "minari:walk/random-v0")
    calls.clear()
    run(*command, "minari:walk/random-v0")
    assert (calls["locate"], calls["open_minari"]) == (1, 1)
    assert calls["sha256"] <= 1


def test_a_download_that_is_there_is_hashed_once(downloaded: Path, calls: Counter[str]) -> None:
    digest = hashlib.sha256(downloaded.read_bytes()).hexdigest()
    run("data", "download", NAME, "--sha256", digest)
    assert calls["file_hash"] == 1


def test_help_and_wrong_flags_leave_no_file_open(downloaded: Path, calls: Counter[str]) -> None:
    for flag in ("--help", "--agent.kappa=2", "--no-such-flag"):
        run("train", NAME, flag)
        with h5py.File(downloaded, "r+"):  # refused while the file is open for reading
            pass
