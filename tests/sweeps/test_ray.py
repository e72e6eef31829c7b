"""The Ray engine: a cluster that loses workers, nodes and its sweep; nodes that share no files."""

import socket
from pathlib import Path
from typing import Any

import pytest

import cluster
from helpers.small_runs import outcome, swings, tiny
from helpers.sweep_driver import run_sweep
from neubay import experiment
from neubay.config import updated
from neubay.errors import ConfigError, SweepError
from neubay.sweeps import ray_engine
from neubay.sweeps.data import Source
from neubay.sweeps.jobs import Job, packed, unpack
from neubay.sweeps.plan import Plan
from neubay.sweeps.work import do
from neubay.tasks import get_task


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
    changes = {"agent": {"steps": 60}, "evaluation": {"evaluations": 2, "episodes": 1}}
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

    monkeypatch.setattr(ray_engine.importlib, "import_module", missing)
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
