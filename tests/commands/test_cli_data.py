"""The data commands as a user meets them: what they print, what they return, and that no input
whatever shows a traceback."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest

from neubay.cli import main
from neubay.data import load

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call a command; gives exit code, output and errors, with line breaks taken out."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(stop.value.code or 0), " ".join(out.split()), " ".join(err.split())

    return call


def hopper(path: Path, *, rows: int = 60, **changes: np.ndarray | None) -> Path:
    """A small file in D4RL's layout: three episodes of twenty upright steps, each cut."""
    rng = np.random.default_rng(0)
    states = rng.normal(0, 0.05, (rows, 11)).astype(np.float32)
    states[:, 0] = 1.2
    after = np.roll(states, -1, axis=0)
    after[19::20] += 0.01
    columns: dict[str, np.ndarray | None] = {
        "observations": states,
        "actions": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "rewards": np.ones(rows, np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % 20 == 19,
        "next_observations": after,
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, values in columns.items():
            if values is not None:
                file[key] = values
    return path


# --- list ----------------------------------------------------------------------------------


def test_list_shows_the_papers_datasets_and_what_is_here(run: Run, tmp_path: Path) -> None:
    run("data", "collect", "cartpole", "minari:cartpole/random-v0", "--episodes", "2")
    hopper(tmp_path / "cache" / "d4rl" / "hopper-medium-v2.hdf5")
    code, out, _ = run("data", "list", "--json")
    listed = json.loads(out)
    assert code == 0 and len(listed["paper"]) == 33
    here = {row["name"] for row in listed["paper"] if row["local"]}
    assert here == {"hopper-medium-v2"}
    assert all(row["download"].startswith("http://") for row in listed["paper"])
    assert listed["builtin"] == ["pendulum"] and listed["minari"] == ["cartpole/random-v0"]
    code, out, _ = run("data", "list")
    assert code == 0
    for word in ("hopper-medium-v2", "HalfCheetah-v3-Low", "low-quality", "cartpole/random-v0"):
        assert word in out


def test_odd_things_in_minaris_folder_do_not_stop_the_list(run: Run, tmp_path: Path) -> None:
    (tmp_path / "minari" / "odd-v0" / "data").mkdir(parents=True)
    (tmp_path / "minari" / "odd-v0" / "data" / "metadata.json").write_text("not JSON")
    (tmp_path / "minari" / "no version" / "data").mkdir(parents=True)
    code, out, _ = run("data", "list", "--json")
    assert code == 0 and json.loads(out)["minari"] == ["odd-v0"]


# --- info ----------------------------------------------------------------------------------


def test_info_numbers_the_episodes(run: Run, tmp_path: Path) -> None:
    """As `neubay select --incumbent` takes them; where states jump, another one begins."""
    ends = np.isin(np.arange(60), (19, 29, 59))
    path = hopper(tmp_path / "few.hdf5", rewards=np.arange(60, dtype=np.float32), timeouts=ends)
    code, out, _ = run("data", "info", path, "--task", "d4rl/hopper", "--episodes")
    assert code == 0
    lines = ["episode first row steps return", "0 0 20 190", "1 20 10 245", "2 30 10 345"]
    assert out == " ".join([*lines, "3 40 20 990"])
    code, _, err = run("data", "info", path, "--episodes", "--json", "-")
    assert code == 2 and "leave --png and --json out" in err


def test_info_says_what_is_in_a_dataset(run: Run, tmp_path: Path) -> None:
    path = hopper(tmp_path / "hopper_small.hdf5")
    code, out, err = run(
        "data", "info", path, "--task", "d4rl/hopper", "--png", "x/a.png", "--json", "x/a.json"
    )
    assert (code, err) == (0, "")
    assert "60 transitions in 3 episodes" in out
    assert "3 cut before T without a terminal" in out
    assert "return 20, all the same" in out
    assert "D4RL v2" in out and load(str(path), "d4rl/hopper").hash in out
    assert Path("x/a.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads(Path("x/a.json").read_text())
    assert record["returns"]["only_cut"] and record["endings"]["cut"] == 3
    code, out, _ = run("data", "info", path, "--task", "d4rl/hopper", "--json", "-")
    assert json.loads(out) == record


def test_info_of_data_without_a_task_gives_raw_returns(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("data", "info", hopper(tmp_path / "mine.hdf5"))
    assert code == 0 and "raw returns: no reference returns are known" in out
    assert "no environment" in out


def test_info_leads_with_all_episodes(run: Run, tmp_path: Path) -> None:
    ends = np.zeros(60, bool)
    ends[[9, 19, 59]] = True  # of 10, 10 and 40 steps; a reward of 1 each
    data = hopper(tmp_path / "plant.hdf5", timeouts=ends, next_observations=None)
    code, out, _ = run("data", "info", data)
    assert code == 0
    assert "return 19 ± 14.1, median 9" in out
    assert "39 ± 0 over the 1 episode not cut before T" in out
    assert "Returns of all episodes, cut ones included" in out


@pytest.mark.slow
def test_info_of_the_builtin_dataset(run: Run) -> None:
    code, out, _ = run("data", "info", "pendulum")
    assert code == 0 and "20,000 transitions in 100 episodes" in out


@pytest.mark.slow
def test_every_real_file_is_described_and_valid(
    run: Run, shared_data: Path, tmp_path: Path
) -> None:
    for path in sorted([*shared_data.glob("*.hdf5"), *shared_data.glob("*.npz")]):
        code, out, err = run("data", "info", path)
        assert (code, err) == (0, ""), path
        assert "score" in out and "coverage" in out
        code, out, _ = run("data", "validate", path)
        assert code == 0, out


# --- validate ------------------------------------------------------------------------------


def test_validate_returns_what_it_finds(run: Run, tmp_path: Path) -> None:
    good = hopper(tmp_path / "hopper_good.hdf5")
    code, out, _ = run("data", "validate", good, "--json", "--task", "d4rl/hopper")
    assert code == 0
    assert not [each for each in json.loads(out) if each["severity"] == "error"]
    rewards = np.ones(60, np.float32)
    rewards[17] = np.nan
    bad = hopper(tmp_path / "hopper_bad.hdf5", rewards=rewards)
    code, out, _ = run("data", "validate", bad, "--task", "d4rl/hopper")
    assert code == 1
    assert "error" in out and "'rewards' row 17" in out and "hopper_bad.hdf5" in out
    code, out, _ = run("data", "validate", bad, "--task", "d4rl/hopper", "--json")
    (finding,) = [each for each in json.loads(out) if each["severity"] == "error"]
    assert finding["row"] == 17 and finding["key"] == "rewards" and finding["remedy"]


def test_warnings_fail_only_when_strict(run: Run, tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(0, 0.05, (60, 11)).astype(np.float32)
    states[:, 0] = 1.2  # constant
    odd = hopper(tmp_path / "odd.hdf5", observations=states, next_observations=None)
    assert run("data", "validate", odd)[0] == 0
    assert run("data", "validate", odd, "--strict")[0] == 1


# --- convert and collect -------------------------------------------------------------------


def test_convert_keeps_the_hash_and_refuses_to_overwrite(run: Run, tmp_path: Path) -> None:
    source = hopper(tmp_path / "hopper_small.hdf5")
    wanted = load(str(source), "d4rl/hopper").hash
    code, out, _ = run("data", "convert", source, "minari:hopper/small-v0", "--task", "d4rl/hopper")
    assert code == 0 and wanted in out
    code, out, _ = run("data", "convert", "minari:hopper/small-v0", "back.hdf5")
    assert code == 0 and wanted in out
    code, _, err = run("data", "convert", source, "back.hdf5")
    assert code == 2 and "exists already" in err and "--force" in err
    assert run("data", "convert", "minari:hopper/small-v0", "back.hdf5", "--force")[0] == 0
    assert load("back.hdf5").hash == wanted


def test_collect_is_deterministic_and_keeps_its_provenance(run: Run) -> None:
    for target in ("a", "b.hdf5"):
        code, out, _ = run(
            "data", "collect", "pendulum", target, "--behaviour", "sticky", "--steps", "450",
            "--seed", "7",
        )  # fmt: skip
        assert code == 0 and "450 transitions" in out
    assert load("a").hash == load("b.hdf5").hash
    assert load("a").task.name == load("b.hdf5").task.name == "pendulum"
    metadata = json.loads(Path("a/data/metadata.json").read_text())
    provenance = metadata["neubay"]["provenance"]
    assert provenance["behaviour"] == "sticky random, repeat 0.8" and provenance["seed"] == 7
    assert provenance["environment"] == "Pendulum-v1" and provenance["versions"]["gymnasium"]
    with h5py.File("b.hdf5") as file:
        assert json.loads(file.attrs["provenance"]) == provenance


def test_collect_in_the_environment_of_a_task_file(run: Run) -> None:
    text = "{name: rig, state_size: 3, actions: {low: [-2], high: [2]}, horizon: 40%s}"
    Path("rig.yaml").write_text(text % ", environment: Pendulum-v1")
    code, out, _ = run("data", "collect", "rig.yaml", "rig.hdf5", "--episodes", "3")
    assert code == 0 and "3 episodes, 120 transitions" in out
    assert run("data", "validate", "rig.hdf5", "--task-file", "rig.yaml")[0] == 0
    Path("plant.yaml").write_text(text % "")
    code, _, err = run("data", "collect", "plant.yaml", "plant.hdf5")
    assert code == 2 and "has no environment" in err
    Path("other.yaml").write_text(text % ", environment: CartPole-v1")
    code, _, err = run("data", "collect", "other.yaml", "other.hdf5")
    assert code == 2 and "4 numbers in an observation and discrete actions, 2 of them" in err
    assert run("train", "rig.hdf5", "--task-file", "other.yaml", "--out", "run")[0] == 2
    assert not Path("run").exists()


# --- download ------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    body = hopper(tmp_path / "served.hdf5").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if "hopper" in self.path else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_download_can_be_used_by_its_name(run: Run, mirror: str, tmp_path: Path) -> None:
    code, _, err = run("data", "info", "d4rl:hopper-medium-v2")
    assert code == 2 and "neubay data download hopper-medium-v2" in err
    code, out, err = run("data", "download", "hopper-medium-v2", "--mirror", mirror)
    assert "D4RL publishes no checksum" in err and "recorded in hopper-medium-v2.hdf5.sha256" in err
    assert code == 0 and out == str(tmp_path / "cache" / "d4rl" / "hopper-medium-v2.hdf5")
    code, out, _ = run("data", "info", "d4rl:hopper-medium-v2")
    assert code == 0 and "narrow coverage (the paper's grouping of hopper-medium-v2)" in out
    assert run("data", "download", "hopper-medium-v2", "--mirror", mirror)[2] == "", "said once"
    Path(tmp_path / "cache" / "d4rl" / "hopper-medium-v2.hdf5").write_bytes(b"changed")
    code, _, err = run("data", "info", "d4rl:hopper-medium-v2")
    assert code == 2 and "changed since it was downloaded" in err


def test_download_failures_are_messages(run: Run, mirror: str) -> None:
    for arguments, message in (
        (("door-human-v1", "--mirror", mirror), "404"),
        (("hopper-medium-v2", "--mirror", mirror, "--sha256", "0" * 64), "expected 000"),
        (("hopper-medium-v2", "--mirror", "ftp://x/"), "not an http://"),
        (("hopper-medum-v2",), "Did you mean 'hopper-medium-v2'?"),
        (("Hopper-v3-Low", "--mirror", mirror + "hopper"), "NeoRL publishes 95a0c17014"),
    ):
        code, _, err = run("data", "download", *arguments)
        assert code == 2 and message in err, arguments


# --- bad input -----------------------------------------------------------------------------


@pytest.fixture
def bad_files(tmp_path: Path) -> dict[str, Path]:
    whole = hopper(tmp_path / "whole.hdf5").read_bytes()
    contents = {
        "empty.hdf5": b"",
        "text.hdf5": b"observations, actions\n1, 2\n",
        "truncated.hdf5": whole[: len(whole) // 2],
        "pickle.npz": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n.",
        "nulls.npz": b"\0" * 100,
        "ünïcode 数据.hdf5": b"\x89HDF\r\n\x1a\n" + b"\xff" * 50,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with h5py.File(tmp_path / "keys.hdf5", "w") as file:
        file["images"] = np.zeros(3)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    names = [*contents, "keys.hdf5", "folder", "loop", "missing.hdf5", "whole.hdf5/inside"]
    return {name: tmp_path / name for name in names}


@pytest.mark.parametrize("command", ["info", "validate", "convert"])
def test_bad_files_give_a_message_that_names_them(
    run: Run, bad_files: dict[str, Path], command: str
) -> None:
    target = ("out.hdf5",) if command == "convert" else ()
    for name, path in bad_files.items():
        for spec in (str(path), f"d4rl:{path}", f"minari:{path}", f"neorl:{path}"):
            code, out, err = run("data", command, spec, *target)
            assert code in (1, 2), spec
            # Where the path was broken over lines its words are still there.
            assert Path(name).name.split()[0] in (out + err).replace(" ", ""), (spec, out, err)
    assert not Path("out.hdf5").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "info", "pendulum", "--task", "penduluum"), "did you mean 'pendulum'"),
        (("data", "info", "pendulm"), "pendulum"),
        (("data", "collect", "d4rl/hoper", "x"), "did you mean 'd4rl/hopper'"),
        (("data", "collect", "pendulum", "x.npz"), ".npz is not written"),
        (("data", "collect", "pendulum", "minari:a b"), "not a Minari id"),
        (("data", "collect", "pendulum", "x", "--steps", "0"), "not a positive number"),
        (("data", "collect", "pendulum", "x", "--seed", "-3"), "negative"),
        (("data", "collect", "pendulum", "x", "--behaviour", "stiky"), "sticky"),
        (
            ("data", "collect", "pendulum", "x", "--behaviour", "sticky", "--repeat", "2"),
            "expected a probability",
        ),
        (("data", "info", "pendulum", "--pgn", "x.png"), "--png"),
        (("data", "info"), "DATASET"),
        (("data", "inf"), "data info"),
        (("dta", "info"), "data info"),
        (("data", "info", ""), "no dataset given"),
    ],
)
def test_mistakes_get_a_suggestion(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2 and message in err


@pytest.mark.slow
def test_places_that_cannot_be_written_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for arguments in (
        ("info", "pendulum", "--png", "file/x.png"),
        ("info", "pendulum", "--json", "file/x.json"),
        ("convert", "pendulum", "file/x.hdf5"),
        ("convert", "pendulum", "file/x"),
        ("collect", "pendulum", "file/x", "--steps", "5"),
    ):
        code, _, err = run("data", *arguments)
        assert code == 2 and "file/x" in err, arguments
        assert "cannot be written" in err, arguments


def test_a_minari_root_that_cannot_be_used_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file"))
    for arguments in (
        ("convert", "pendulum", "minari:x-v0"),
        ("info", "minari:x-v0"),
        ("list",),
    ):
        code, _, err = run("data", *arguments)
        assert code == 2 and "file" in err, arguments


# --- help ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "info", "validate", "convert", "collect", "download"])
def test_every_command_explains_itself(run: Run, command: str) -> None:
    code, out, _ = run("data", command, "--help")
    assert code == 0 and f"usage: neubay data {command}" in out
    assert "None" not in out


def test_help_is_instant_because_nothing_heavy_is_imported() -> None:
    script = """
import sys
from neubay.cli import main
for arguments in (["--help"], ["data", "--help"], ["data", "info", "--help"]):
    try:
        main(arguments)
    except SystemExit as stop:
        assert not stop.code, stop.code
heavy = {"jax", "h5py", "matplotlib", "gymnasium", "minari", "equinox"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "neubay data info" in done.stdout


@pytest.mark.slow
def test_the_installed_command_has_no_traceback_either(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from neubay.cli import main; main()"]
    done = subprocess.run(
        [*command, "data", "info", "missing.hdf5"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "missing.hdf5" in done.stderr and "Traceback" not in done.stderr


def test_the_recorded_checksum_can_be_checked_with_usual_tools(
    run: Run, mirror: str, tmp_path: Path
) -> None:
    run("data", "download", "hopper-random-v2", "--mirror", mirror, "--out", "here")
    digest, name = Path("here/hopper-random-v2.hdf5.sha256").read_text().split()
    assert digest == hashlib.sha256((tmp_path / "here" / name).read_bytes()).hexdigest()
