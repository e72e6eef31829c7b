"""The Ray engine: a cluster that loses workers, nodes and its sweep; nodes that share no files."""

import dataclasses
import errno
import importlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cluster
from helpers.small_runs import outcome, swings, tiny
from helpers.sweep_driver import run_sweep
from neubay import experiment
from neubay.config import updated
from neubay.data import convert
from neubay.data.rows import ColumnNames
from neubay.errors import ConfigError, SweepError
from neubay.sweeps import node, ray_engine
from neubay.sweeps.data import Source, rows_of
from neubay.sweeps.dispatch import Dispatch
from neubay.sweeps.jobs import Job, Outcome, brought_home, packed, unpack
from neubay.sweeps.plan import Plan
from neubay.sweeps.work import do
from neubay.tasks import ContinuousActions, Task, get_task, register_task
from neubay.tasks.catalogue import registering


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.faults("kill -9 of a Ray worker, of the sweep, and of a whole node")
def test_a_cluster_that_loses_a_worker_a_node_and_its_sweep(tmp_path: Path, tally: Any) -> None:
    told = cluster.faults(tmp_path, trials=2)
    tally(3, "Ray runs the tasks again, the same command resumes the sweep")
    assert told.startswith("2 runs equal")


@pytest.mark.slow
def test_nodes_that_share_no_files_get_and_give_all_through_the_store(tmp_path: Path) -> None:
    """World, rows and run travel: the node is not allowed to look at our folder."""
    changes = {"agent": {"memory": "none", "steps": 60}}  # what travels does not depend on it
    changes["evaluation"] = {"evaluations": 2, "episodes": 1}
    found = run_sweep(
        tmp_path / "sweep",
        "ray",
        1,
        trials=1,
        sampler="grid",
        search="agent.head_lr=[0.001]",
        changes=changes,
        shared=False,
    )
    assert [trial.state for trial in found.trials] == ["finished"]
    config = updated(tiny(**changes), {"agent": {"head_lr": 0.001}})
    data = swings(get_task("pendulum"))
    experiment.run(data, config, tmp_path / "alone", checkpoint_seconds=0.0)
    assert outcome(tmp_path / "alone") == outcome(found.best_runs[0])
    where = Path(json.loads((found.best_runs[0] / "world.json").read_text())["directory"])
    assert where.parent == tmp_path / "cache" / "worlds" and where.is_dir(), "not on the node"


def test_runs_that_come_back_name_their_worlds_where_they_are_here() -> None:
    def file(**content: Any) -> np.ndarray:
        return np.frombuffer(json.dumps(content).encode(), np.uint8)

    there = "/tmp/neubay-sweep-1/cache/worlds"
    files = {
        "world.json": file(directory=f"{there}/swings-1", hash="a"),
        "selection/judge.json": file(directory=f"{there}/swings-2", seed=0),
        "policy.npz": file(),
    }
    brought = brought_home(files, ["/home/worlds/swings-1", "/home/worlds/swings-2"])
    told = {name: json.loads(brought[name].tobytes()) for name in files}
    assert told["world.json"] == {"directory": "/home/worlds/swings-1", "hash": "a"}
    assert told["selection/judge.json"] == {"directory": "/home/worlds/swings-2", "seed": 0}
    assert brought["policy.npz"] is files["policy.npz"]
    handed = {"world.json": file(directory=None, hash="a")}
    assert json.loads(brought_home(handed, [])["world.json"].tobytes())["directory"] is None


def test_what_a_node_keeps_is_named_by_the_sweep(tmp_path: Path) -> None:
    """The same when it is resumed, another one where a sweep is begun anew in the same place."""
    folder = tmp_path / "sweep"
    first, name = ray_engine._signed(folder)
    second, resumed = ray_engine._signed(folder)
    assert first != second and name == resumed
    assert node._sees(folder, second) and not node._sees(folder, first)
    assert not node._sees(folder, "") and not node._sees(tmp_path, second)
    (folder / node.TOKEN).unlink()
    assert ray_engine._signed(folder)[1] != name
    assert ray_engine._signed(tmp_path / "other")[1] != name


def test_a_task_is_imported_without_jax(tmp_path: Path) -> None:
    """Cores are claimed before: JAX makes as many threads as it then has."""
    code = "import sys, neubay.sweeps.node; print({'jax', 'numpy'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


@pytest.fixture
def registry() -> Iterator[None]:
    with registering():
        yield


def test_a_task_that_only_this_process_knows_is_refused(registry: None) -> None:
    task = register_task(Task("mine", 3, ContinuousActions.symmetric(1, bound=2.0), horizon=200))
    with pytest.raises(ConfigError, match=r"task 'mine': made in Python.*--task-file"):
        Source.of(swings(task))


def test_paths_mean_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = swings(get_task("pendulum"))
    convert.write(dataset, "log.hdf5")
    Path("pendulum").mkdir()  # the name of the built-in dataset
    for given, kept in (
        ("log.hdf5", f"{tmp_path}/log.hdf5"),
        ("d4rl:log.hdf5", f"d4rl:{tmp_path}/log.hdf5"),
        ("pendulum", "pendulum"),
        ("builtin:pendulum", "builtin:pendulum"),
    ):
        assert Source.of(dataset, given).spec == kept
    elsewhere = Source.of(dataset, "d4rl:log.hdf5", wanted="pendulum")
    monkeypatch.chdir("pendulum")
    assert elsewhere.load(None).hash == dataset.hash


def test_an_address_where_nobody_answers_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address, says in (
        (f"127.0.0.1:{port}", "no Ray answers there"),
        ("ray://127.0.0.1:10001", "write HOST:PORT"),
        ("somewhere", "write HOST:PORT"),
    ):
        with pytest.raises(SweepError, match=says) as refused:
            run_sweep(tmp_path / "sweep", "ray", 1, address=address)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "sweep" / "sweep.json").exists()
    with pytest.raises(ConfigError, match="belongs to --engine ray"):
        run_sweep(tmp_path / "sweep", "local", 1, address="127.0.0.1:1")


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r'pip install "neubay\[sweep\]"'):
        ray_engine.needed()


def a_job(folder: Path, **options: Any) -> Job:
    dataset = swings(get_task("pendulum"))
    plan = Plan(dataset, Source.of(dataset), folder, **options)
    plan.begin()
    return plan.job(tiny(agent={"algorithm": "bc"}), folder / "run")


def test_other_versions_on_a_node_are_refused_by_name(tmp_path: Path) -> None:
    result = do(a_job(tmp_path, versions={"jax": "0.0.1", "neubay": "9"}))
    assert result.state == "refused"
    assert "instead of 0.0.1" in result.problem and "instead of 9" in result.problem
    assert "Install the same on every node" in result.problem
    assert not (tmp_path / "run").exists()


def test_a_disk_that_cannot_be_written_is_refused_and_settings_fail(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    job = a_job(tmp_path)
    result = do(job.at(blocked / "run", tmp_path / "cache"))
    assert result.state == "refused" and str(blocked) in result.problem
    broken = Job(**{**job.__dict__, "config": {"agent": {"kappa": 3}}})
    result = do(broken)
    assert result.state == "failed" and "must be at most 1" in result.problem


def test_a_disk_that_is_full_before_a_job_begins_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the node fetches what the job needs."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/scratch/world")

    monkeypatch.setattr(node, "_pinned", [0])
    monkeypatch.setattr(node, "_apart", full)
    text, files = node.task(a_job(tmp_path).text(), {"token": "", "rows": None})
    result = Outcome.read(text)
    assert result.state == "refused" and files is None
    assert "/scratch/world: No space left on device; the same command resumes" in result.problem


def test_a_folder_that_another_worker_has_fetched_meanwhile_will_do(tmp_path: Path) -> None:
    target = tmp_path / "world"

    def also_by_another(reference: Any) -> dict:
        target.mkdir()
        (target / "theirs").touch()
        return packed(target)

    node.fetch(target, also_by_another, None)
    assert [path.name for path in target.iterdir()] == ["theirs"]
    node.fetch(target, pytest.fail, None)  # there already: nothing is asked for


def test_a_world_that_is_trained_and_not_seen_ends_the_sweep_with_a_reason(tmp_path: Path) -> None:
    need = a_job(tmp_path).at(tmp_path / "world", tmp_path / "cache")

    class Elsewhere:
        """Says that all is done, on a disk of its own."""

        room, asked = 1, 0

        def submit(self, job: Job) -> int:
            self.asked += 1
            return self.asked

        def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
            return [(self.asked, Outcome("finished"))]

        def stop(self) -> None: ...

        workers = 1

    dispatch = Dispatch(Elsewhere())
    dispatch.add(a_job(tmp_path / "other"), [need])
    with pytest.raises(SweepError, match="NEUBAY_CACHE to a folder that all nodes see"):
        for _ in range(5):
            dispatch.wait(0.0)


def test_names_of_columns_travel_with_the_rows() -> None:
    dataset = swings(get_task("pendulum"))
    names = ColumnNames(("cos", "sin", "speed [rad/s]"), ("torque [Nm]",))
    dataset = dataclasses.replace(dataset, column_names=names)
    record = json.loads(json.dumps(dataclasses.asdict(Source.of(dataset))))
    assert Source(**record).load(lambda: rows_of(dataset)).column_names == names


def test_files_travel_whole_and_nowhere_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    (source / "a" / "b.txt").write_bytes(b"b\0b")
    (source / "empty").touch()
    (source / "lock").touch()
    files = packed(source)
    assert sorted(files) == ["a/b.txt", "empty"]
    unpack(files, tmp_path / "target")
    assert packed(tmp_path / "target").keys() == files.keys()
    assert (tmp_path / "target" / "a" / "b.txt").read_bytes() == b"b\0b"
    with pytest.raises(Exception, match="not the name of a file"):
        unpack({"../escaped": files["a/b.txt"]}, tmp_path / "target")
    assert not (tmp_path / "escaped").exists()
