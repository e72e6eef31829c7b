"""`neubay world` and `neubay world info`."""

import json
from pathlib import Path

import numpy as np
import pytest

from neubay import cli, world
from neubay.world import pool, termination

SMALL = ["--width", "8", "--depth", "1", "--pool", "4", "--members", "2", "--max-epochs", "2"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as finished:
        cli.main(list(arguments))
    code = finished.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "walk.npz"
    state = rng.normal(size=(600, 2)).astype(np.float32)
    np.savez(
        path,
        observations=state,
        next_observations=np.roll(state, -1, axis=0),
        actions=rng.uniform(-1, 1, (600, 1)).astype(np.float32),
        rewards=rng.normal(size=600).astype(np.float32),
        terminals=np.zeros(600, bool),
        timeouts=np.arange(1, 601) % 100 == 0,
    )
    return path


@pytest.mark.slow
def test_a_world_is_trained_shown_and_found_again(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "world"
    assert run("world", str(data), *SMALL, "--seed", "3", "--out", str(out)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    fitted = world.load(out)
    assert (fitted.seed, fitted.config.width, fitted.world.size) == (3, 8, 2)
    assert "the best 2 of 4, 1 x 8" in printed and f"{fitted.threshold(1.0):.4g} (1)" in printed
    assert run("world", "info", str(out)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert fitted.dataset_hash in shown and "2 epochs" in shown
    for name, reference in (("a", {"directory": str(out)}), ("b", {"directory": None})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        (tmp_path / name / "world.json").write_text(json.dumps(reference | {"hash": "1"}))
    assert run("world", "info", str(tmp_path / "a")) == 0
    assert " ".join(capsys.readouterr().out.split()) == shown, "a run stands for its world"
    assert f"world directory {out}" in shown
    assert run("world", "info", str(tmp_path / "b")) == 2
    assert "was handed to it" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "b" / "world.json").unlink()
    assert run("world", "info", str(tmp_path / "b")) == 2
    assert "a run without a world" in " ".join(capsys.readouterr().err.split())
    assert run("world", str(data), *SMALL, "--seed", "4", "--out", str(out)) == 2
    assert "its seed is 3, asked for is 4" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_an_interrupted_command_says_how_to_go_on(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "validate", interrupted)
    out = tmp_path / "world"
    assert run("world", str(data), *SMALL, "--out", str(out)) == 130
    printed = " ".join(capsys.readouterr().out.split())
    assert "to resume: neubay world" in printed and str(data.name) in printed


def test_wrong_settings_are_refused_with_a_reason(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("world", str(data), "--pool", "2", "--members", "3") == 2
    assert "exceeds pool" in "".join(capsys.readouterr())
    assert run("world", str(data), "--widht", "3") == 2
    assert "--width" in "".join(capsys.readouterr())
    assert run("world", "info", str(tmp_path)) == 2
    assert "not a world" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_learned_ends_are_said_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "STEPS", 500)
    rng = np.random.default_rng(0)
    state = rng.normal(size=(900, 2)).astype(np.float32)
    following = rng.normal(size=(900, 2)).astype(np.float32)
    ends = following[:, 0] > 1.3
    path = tmp_path / "trips.npz"
    np.savez(
        path,
        observations=state,
        next_observations=following,
        actions=rng.uniform(-1, 1, (900, 1)).astype(np.float32),
        rewards=rng.normal(size=900).astype(np.float32),
        terminals=ends,
        timeouts=~ends,
    )
    out = tmp_path / "world"
    assert run("world", str(path), *SMALL, "--out", str(out)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{ends.sum()} of 900 end in a terminal state: it is learned from them" in printed
    record = world.load(out).termination
    assert record is not None
    for words in (f"precision {record.precision:.0%}", f"recall {record.recall:.0%}"):
        assert words in printed
    assert run("world", "info", str(out)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"learned from {ends.sum()} ends of 900 episodes, by a threshold" in shown
    assert "precision" in shown and "recall" in shown and "false alarms" in shown
    assert "still running after data / heads / imagined: 1: " in shown
    words = ("world", str(path), *SMALL, "--termination", "rule", "--out", str(tmp_path / "other"))
    assert run(*words) == 2
    assert "'rule' is asked for" in " ".join(capsys.readouterr().err.split())


def test_flags_of_an_engine_belong_to_ray(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["world", str(data), *SMALL, "--out", str(tmp_path / "world")]
    for flags, says in (
        (["--jobs", "2"], "--jobs: belongs to --engine ray"),
        (["--address", "127.0.0.1:1"], "--address: belongs to --engine ray"),
        (["--engine", "ray", "--jobs", "0"], "--jobs 0: must be at least 1"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray answers there"),
    ):
        assert run(*asked, *flags) == 2
        assert says in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "world" / "shards" / "shards.json").exists()
