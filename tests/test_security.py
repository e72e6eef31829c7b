"""Files are data: nothing in them is run, and none leads out of its folder."""

import contextlib
import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from helpers.small_runs import swings, tiny
from neubay import data, experiment, world
from neubay.commands.bandit import report as bandit_report
from neubay.config import read_yaml
from neubay.data import builtin, download, store
from neubay.data.store import FIELDS
from neubay.errors import NeubayError
from neubay.policy import load_policy
from neubay.report.runs import records
from neubay.runs import checkpoints, rundir, tracking
from neubay.runs.files import file_hash, read_arrays, read_json
from neubay.tasks import get_task

Tally = Callable[[int, str], None]


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "exploded"


def disguises(mark: Path) -> dict[str, bytes]:
    """A pickle as it is, as an array of objects, and as a member of an archive of arrays."""
    objects = np.array([Bomb(mark)], dtype=object)
    array, archive = io.BytesIO(), io.BytesIO()
    np.save(array, objects, allow_pickle=True)
    np.savez(archive, about=objects, observations=objects)
    return {
        "pickle": pickle.dumps(Bomb(mark)),
        "npy": array.getvalue(),
        "npz": archive.getvalue(),
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run, its world beside it."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUBAY_CACHE", str(folder / "cache"))
        experiment.run(swings(get_task("pendulum")), tiny(), folder / "run")
        (made,) = (folder / "cache" / "worlds").iterdir()
        shutil.copytree(made, folder / "world")
        yield folder


def test_the_bomb_works(mark: Path) -> None:
    pickle.loads(disguises(mark)["pickle"])  # noqa: S301 - the one place where it may
    assert mark.exists()


READERS: dict[str, Callable[[Path], Any]] = {
    "run/policy.npz": lambda path: load_policy(path),
    "run/run.json": lambda path: read_json(path),
    "run/summary.json": lambda path: read_json(path),
    "run/world.json": lambda path: read_json(path),
    "run/metrics.jsonl": lambda path: list(tracking.read_json_lines(path)),
    "world/world.json": lambda path: world.load(path.parent),
    "world/members.npz": lambda path: world.load(path.parent),
    "world/data_uncertainty.npy": lambda path: world.load(path.parent),
    "world/checkpoints/0-0/0000.npz": lambda path: read_arrays(path),
    "settings.yaml": lambda path: read_yaml(path),
    "data.npz": lambda path: data.load(str(path)),
    "data.hdf5": lambda path: data.load(str(path)),
    "data.pkl": lambda path: data.load(str(path)),
    "minari/data/main_data.hdf5": lambda path: data.load(f"minari:{path.parents[1]}"),
    "minari/data/metadata.json": lambda path: data.load(f"minari:{path.parents[1]}"),
    "bandit/summary.json": lambda path: bandit_report((path,), out=path.parent / "report"),
    **{
        f"run/{name} in a report": lambda path: records.read(path.parent)
        for name in ("run.json", "summary.json", "world.json")
    },
}


@pytest.mark.faults("malicious pickle in a file that is read")
@pytest.mark.parametrize("place", READERS)
def test_a_pickle_is_never_run(
    place: str, finished: Path, tmp_path: Path, mark: Path, tally: Tally
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "copy"))
    path = folder / place.split(" ")[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    for content in disguises(mark).values():
        path.write_bytes(content)
        with pytest.raises((NeubayError, ValueError)):
            READERS[place](path)
        assert not mark.exists()
    tally(3, "refused, nothing run: data, policy, world, run, report and settings files")


@pytest.mark.faults("malicious pickle in a world whose hashes were made to match")
@pytest.mark.parametrize("name", ["members.npz", "data_uncertainty.npy"])
def test_a_forged_world(
    name: str, finished: Path, tmp_path: Path, mark: Path, tally: Tally
) -> None:
    folder = Path(shutil.copytree(finished / "world", tmp_path / "world"))
    for content in disguises(mark).values():
        (folder / name).write_bytes(content)
        about = json.loads((folder / "world.json").read_text())
        about["files"][name] = file_hash(folder / name)
        (folder / "world.json").write_text(json.dumps(about))
        with pytest.raises(NeubayError):
            world.load(folder)
        assert not mark.exists()
    tally(3, "refused, nothing run")


@pytest.mark.faults("malicious pickle in a checkpoint whose seal was made to match")
def test_a_forged_checkpoint(finished: Path, tmp_path: Path, mark: Path, tally: Tally) -> None:
    (checkpoint,) = checkpoints.found(finished / "run" / "checkpoints")
    tried = 0
    for name in [path.name for path in checkpoint.iterdir()]:
        for kind, content in disguises(mark).items():
            forged = Path(shutil.copytree(checkpoint, tmp_path / f"{tried}-{kind}"))
            note = checkpoints.unsealed(forged)["note"]
            (forged / name).write_bytes(content)
            if name != "checkpoint.json":
                checkpoints.seal(forged, note)
            with pytest.raises((checkpoints.Damaged, NeubayError)):
                for file in checkpoints.unsealed(forged)["files"]:
                    read_arrays(forged / file)
            assert not mark.exists()
            tried += 1
    tally(tried, "refused, nothing run")


@pytest.mark.faults("code in a settings file")
@pytest.mark.parametrize("tag", ["object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir"])
def test_yaml_is_data(tag: str, tmp_path: Path, mark: Path, tally: Tally) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"agent: !!python/{tag} ['{mark}']\n")
    with pytest.raises(NeubayError, match="not valid YAML"):
        read_yaml(path)
    assert not mark.exists()
    tally(1, "refused, nothing run")


@pytest.mark.faults("malicious pickle in a file that can be done without")
def test_a_cache_is_never_unpickled(
    finished: Path, tmp_path: Path, mark: Path, tally: Tally
) -> None:
    run, cached = Path(shutil.copytree(finished / "run", tmp_path / "run")), tmp_path / "cached.npz"
    note, part = tmp_path / "d.hdf5.part.json", tmp_path / "d.hdf5.part"
    part.touch()
    for content in disguises(mark).values():
        for name in FIELDS:
            (tmp_path / f"{name}.npy").write_bytes(content)
        assert store._open(tmp_path, (3, 1)) is None
        cached.write_bytes(content)
        assert builtin._read(cached) is None
        note.write_bytes(content)
        assert download._read_note(part) is None
        (run / rundir.METRICS_FILE).write_bytes(content)
        assert not len(records.read(run).train["step"])  # it has no rows
        (tmp_path / records.UNCERTAINTY_FILE).write_bytes(content)
        with contextlib.suppress(TypeError, ValueError):  # an archive is no array
            assert records._uncertainty(tmp_path) is None
        assert not mark.exists()
    tally(
        15,
        "left out, nothing run: caches of tapes, the built-in data, a broken download, the rows "
        "and uncertainties behind a report",
    )


@pytest.mark.faults("anything unpickled in a whole run that is read")
def test_a_run_is_opened_and_resumed_without_unpickling(
    finished: Path, tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself reports every class that an unpickler looks up."""
    monkeypatch.setenv("NEUBAY_CACHE", str(finished / "cache"))
    seen: list[tuple] = []
    watching = True

    def hook(event: str, arguments: tuple) -> None:
        if watching and event == "pickle.find_class":
            seen.append(arguments)

    sys.addaudithook(hook)  # for good: it cannot be taken back
    folder = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    experiment.run(swings(get_task("pendulum")), tiny(), folder)
    (folder / "summary.json").unlink()
    experiment.run(swings(get_task("pendulum")), tiny(), folder, tell=lambda text: None)
    assert not seen
    pickle.loads(pickle.dumps(Bomb(tmp_path / "mark")))  # noqa: S301
    assert seen  # the watch is awake
    watching = False
    tally(2, "opening and resuming a run looks up no class")


@pytest.mark.faults("archive members and links that lead out of their folder")
def test_nothing_leads_out_of_its_folder(tmp_path: Path, tally: Tally) -> None:
    (tmp_path / "inside").mkdir()
    rows = np.zeros((4, 2), np.float32)
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["observations"] = rows
    names = {"actions": rows[:, :1], "rewards": rows[:, 0], "terminals": rows[:, 0] > 0}
    links = [h5py.ExternalLink("../secret.hdf5", "/observations"), h5py.SoftLink("/actions")]
    for number, link in enumerate(links):
        path = tmp_path / "inside" / f"{number}.hdf5"
        with h5py.File(path, "w") as file:
            for name, values in names.items():
                file[name] = values
            file["observations"] = link
        with pytest.raises(NeubayError, match="is a link to another place"):
            data.load(str(path))
    archive = tmp_path / "inside" / "escape.npz"
    outside = ("../evil.npy", "/tmp/neubay-evil.npy", "a/../../evil.npy")
    with zipfile.ZipFile(archive, "w") as file:
        for name in outside:
            file.writestr(name, b"\x93NUMPY")
    with pytest.raises(NeubayError):
        data.load(str(archive))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "secret.hdf5"]
    assert not Path("/tmp/neubay-evil.npy").exists()
    tally(len(links) + len(outside), "links are never followed, members never written to the disk")
