"""What an export holds, what it needs to be read, and what is refused."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest

import neubay
from helpers.policies import some_policy
from neubay import cli
from neubay.errors import NeubayError, RunError
from neubay.export import Format, standalone
from neubay.guard import Guard
from neubay.policy import Policy, load_policy

ALONE = """
import sys, time, tracemalloc
from policy import load
import numpy as np

policy = load(sys.argv[1])
given, state, actions = np.load(sys.argv[2]), None, []
for observation in given:
    reward = None if state is None else 0.5
    action, state = policy.predict(observation, state, reward=reward)
    actions.append(action)
np.save(sys.argv[3], np.stack(actions))

def steps(count):
    global state
    begun = time.process_time()
    for _ in range(count):
        _, state = policy.predict(given[0], state, reward=0.5)
    return (time.process_time() - begun) / count

fastest = min(steps(100) for _ in range(30))
tracemalloc.start()
steps(50)
before = tracemalloc.get_traced_memory()[0]
steps(1000)
grown = tracemalloc.get_traced_memory()[0] - before
foreign = ("jax", "neubay", "scipy", "onnx", "equinox")
others = [name for name in sys.modules if name.split(".")[0] in foreign]
print(fastest, grown, others)
"""


@pytest.fixture(scope="module")
def small() -> Policy:
    """The sizes of the preset for CPUs, on a hopper."""
    return some_policy("recurrent", 11, 3, width=64, memory_size=32, head_depth=2)


def beside_numpy_alone(folder: Path) -> Path:
    """A folder to import from in which there is NumPy and nothing else."""
    packages = Path(np.__file__).parents[1]
    folder.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            (folder / name).symlink_to(packages / name)
    return folder


@pytest.mark.timing
@pytest.mark.slow
def test_the_numpy_policy_needs_numpy_alone_and_is_fast(small: Policy, tmp_path: Path) -> None:
    out = tmp_path / "copied anywhere"
    assert [path.name for path in small.export("numpy", out)] == [
        "policy.npz",
        "policy.py",
        "card.md",
    ]
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(20, 11)).astype(np.float32)
    np.save(tmp_path / "given.npy", observations)
    site = beside_numpy_alone(tmp_path / "site")
    script = f"import sys; sys.path += [{str(site)!r}, {str(out)!r}]\n{ALONE}"
    # -I and -S: neither the environment's packages nor the user's.
    files = [out, tmp_path / "given.npy", tmp_path / "actions.npy"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    seconds, grown, others = done.stdout.split(maxsplit=2)
    assert others.strip() == "[]"
    assert float(seconds) < 0.3e-3
    assert int(grown) < 10_000  # bytes, after a thousand steps
    state, ours = None, []
    for observation in observations:
        reward = None if state is None else 0.5
        action, state = small.predict(observation, state, reward=reward)
        ours.append(action)
    np.testing.assert_allclose(np.load(tmp_path / "actions.npy"), ours, rtol=0, atol=1e-5)


def test_the_numpy_policy_has_the_signature_of_ours() -> None:
    def arguments(function: object) -> list[tuple[str, object, object]]:
        found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
        return [(each.name, each.kind, each.default) for each in found]

    for name in ("predict", "acted"):
        assert arguments(getattr(standalone.Policy, name)) == arguments(getattr(Policy, name))
    assert standalone.PolicyState._fields == neubay.policy.PolicyState._fields


@pytest.mark.parametrize("kind", ["gated", "gated DQN"])
def test_both_are_told_what_was_done_in_the_same_words(kind: str, tmp_path: Path) -> None:
    policy = some_policy(kind, 3, 2)
    policy.export("numpy", tmp_path)
    light = standalone.load(tmp_path)
    _, ours = policy.predict(np.zeros((2, 3)))
    _, theirs = light.predict(np.zeros((2, 3)))
    discrete, size = kind == "gated DQN", policy.task.actions.size
    for done in (np.array([1, 0]), 1) if discrete else (np.full((2, size), 0.3), -0.2, 1e9):
        told = policy.acted(ours, done), light.acted(theirs, done)
        np.testing.assert_allclose(told[0].last_action, told[1].last_action, rtol=0, atol=1e-6)
        after, _ = policy.predict(np.ones((2, 3)), told[0], reward=0.5)
        np.testing.assert_allclose(
            after, light.predict(np.ones((2, 3)), told[1], reward=0.5)[0], rtol=0, atol=1e-5
        )
    for wrong in (9, 0.5) if discrete else (np.zeros(5), np.nan):
        with pytest.raises(NeubayError):
            policy.acted(ours, wrong)
        with pytest.raises(ValueError, match="action"):
            light.acted(theirs, wrong)


@pytest.mark.parametrize("kind", ["recurrent", "Markov", "DQN"])
def test_the_numpy_policy_refuses_what_ours_refuses(kind: str, tmp_path: Path) -> None:
    policy = some_policy(kind)
    policy.export("numpy", tmp_path)
    for each in (policy, standalone.load(tmp_path)):
        _, state = each.predict(np.zeros(3))
        wrong = {
            "has 3 values": {"observation": np.zeros(4)},
            "the observation has a value": {"observation": np.full(3, np.nan)},
            "pass reward=": {"observation": np.zeros(3), "state": state},
            "the reward has a value": {
                "observation": np.zeros(3),
                "state": state,
                "reward": np.inf,
            },
            "2 observations": {"observation": np.zeros((2, 3)), "state": state, "reward": 0.0},
            "reward has shape": {"observation": np.zeros(3), "state": state, "reward": np.ones(2)},
        }
        for words, arguments in wrong.items():
            with pytest.raises((NeubayError, ValueError), match=words):
                each.predict(**arguments)


def test_a_damaged_export_is_refused_by_name(tmp_path: Path) -> None:
    some_policy("gated").export("numpy", tmp_path)
    with np.load(tmp_path / "policy.npz", allow_pickle=False) as file:
        whole = {name: file[name] for name in file.files}
    about = json.loads(whole["about"].tobytes())

    def note(**changes: object) -> np.ndarray:
        changed = {key: value for key, value in {**about, **changes}.items() if value is not None}
        return np.frombuffer(json.dumps(changed).encode(), np.uint8)

    damage: dict[str, dict[str, np.ndarray | None]] = {
        "has no 'block0_c'": {"block0_c": None},
        "has no 'about'": {"about": None},
        "has no 'memory_size'": {"about": note(memory_size=None)},
        r"'head0_weight' has the shape \(5, 8\), not \(11, 8\)": {"head0_weight": np.ones((5, 8))},
        r"'input_mean' has the shape \(6,\), not \(50000003,\)": {
            "about": note(state_size=5 * 10**7)
        },
        "'out_bias' has a value that is not finite": {"out_bias": np.full(4, np.nan)},
    }
    for words, changes in damage.items():
        arrays = {name: array for name, array in {**whole, **changes}.items() if array is not None}
        np.savez(tmp_path / "policy.npz", allow_pickle=False, **arrays)
        with pytest.raises(ValueError, match=words):
            standalone.load(tmp_path)


@pytest.mark.parametrize("kind", ["recurrent", "gated", "Markov", "cloned", "DQN", "Markov DQN"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # that something overflows
def test_the_numpy_policy_returns_no_nan_in_silence(kind: str, tmp_path: Path) -> None:
    """Weights that are finite one by one and overflow together."""
    some_policy(kind).export("numpy", tmp_path)
    policy = standalone.load(tmp_path)
    policy.arrays["head0_weight"] = np.full_like(policy.arrays["head0_weight"], 3e38)
    with pytest.raises(ValueError, match="the action has a value that is not finite"):
        policy.predict(np.ones(3))


@pytest.mark.slow
def test_samples_of_the_numpy_policy_spread_as_ours_do(tmp_path: Path) -> None:
    policy = some_policy("recurrent", actions=2)
    policy.export("numpy", tmp_path)
    same = np.zeros((4000, 3), np.float32)
    ours, _ = policy.predict(same, deterministic=False)
    theirs, _ = standalone.load(tmp_path).predict(same, deterministic=False)
    for moment in (np.mean, np.std):
        np.testing.assert_allclose(moment(theirs, 0), moment(ours, 0), atol=0.15)
    q = some_policy("DQN", actions=3)
    q.export("numpy", tmp_path)
    greedy, _ = q.predict(same[0])
    chosen, _ = standalone.load(tmp_path).predict(same, deterministic=False)
    explored = float(np.asarray(q.mode.epsilon)) * 2 / 3
    assert abs(float((chosen != greedy).mean()) - np.clip(explored, 0, 1)) < 0.05


def test_the_light_guard_works_in_every_format(tmp_path: Path) -> None:
    policy = some_policy("Markov")  # whose data is within -1 and 2
    for form in get_args(Format):
        policy.export(form, tmp_path)
    light = standalone.load(tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    graph = session.get_modelmeta().custom_metadata_map
    beside = json.loads((tmp_path / "policy.json").read_text())
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1.5, 2.5, (200, 3)).astype(np.float32)
    for margin in (0.0, 0.1):
        _, _, ours = Guard(policy, margin=margin).predict(seen)
        assert 20 < np.sum(ours.outside) < 180
        np.testing.assert_array_equal(light.outside(seen, margin), ours.outside)
        for found in ({key: json.loads(graph[f"observation_{key}"]) for key in ("low", "high")},
                      {key: beside[f"observation_{key}"] for key in ("low", "high")}):  # fmt: skip
            low, high = (np.asarray(found[key], np.float32) for key in ("low", "high"))
            beyond = margin * (high - low)
            outside = ((seen < low - beyond) | (seen > high + beyond)).any(axis=1)
            np.testing.assert_array_equal(outside, ours.outside)
    broken = np.asarray([[0, 0, 0], [0, np.nan, 0], [np.inf, 0, 0]])
    assert light.outside(broken).tolist() == [False, True, True]
    with pytest.raises(ValueError, match=r"has 3 values, got shape \(2,\)"):
        light.outside(np.zeros(2))


@pytest.mark.parametrize("kind", ["gated", "Markov", "DQN"])
def test_the_onnx_file_says_what_it_is(kind: str, tmp_path: Path) -> None:
    policy = some_policy(kind)
    policy.export("onnx", tmp_path)
    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    memory, after = ([], []) if kind == "Markov" else (["memory"], ["next_memory"])
    given = ["observation", "reward", "start", "last_action", *memory]
    assert [each.name for each in model.graph.input] == given
    assert [each.name for each in model.graph.output] == ["action", *after]
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    notes = {each.key: each.value for each in model.metadata_props}
    assert notes["dataset_hash"] == "0" * 32
    assert notes["task"] == "toy"
    assert notes["neubay"] == neubay.__version__
    assert json.loads(notes["actions"]) == policy.note["actions"]
    assert json.loads(notes["input_mean"]) == policy.mode.encoder.standardise.mean.tolist()
    assert json.loads(notes["input_std"]) == policy.mode.encoder.standardise.std.tolist()
    assert list(json.loads(notes["inputs"])) == given
    assert json.loads(notes["observation_names"])[2] == "sensor 2 [bar]"
    assert json.loads(notes["observation_units"]) == ["bar"] * 3
    commands = ["valve"] if kind == "DQN" else ["pump 0 (l/min)", "pump 1 (l/min)"]
    assert json.loads(notes["action_names"]) == commands
    assert json.loads(notes["action_units"]) == ([None] if kind == "DQN" else ["l/min"] * 2)
    assert notes["reward_name"] == "-abs(`sensor 0 [bar]`)"
    assert "as in the data" in notes["units"]


def test_names_travel_through_the_policy_file(tmp_path: Path) -> None:
    policy = some_policy("Markov")
    policy.save(tmp_path / "policy.npz")
    again = load_policy(tmp_path / "policy.npz")
    assert again.column_names == policy.column_names
    again.export("numpy", tmp_path / "out")
    assert standalone.load(tmp_path / "out").about["column_names"]["actions"][1] == "pump 1 (l/min)"
    policy.column_names = None  # as in data that knows no names, and in earlier files
    policy.save(tmp_path / "policy.npz")
    again = load_policy(tmp_path / "policy.npz")
    assert again.column_names is None
    again.export("onnx", tmp_path / "out")
    props = onnx.load(tmp_path / "out" / "policy.onnx").metadata_props
    assert not {"observation_names", "action_units"} & {each.key for each in props}


@pytest.mark.slow
def test_the_stablehlo_file_needs_jax_alone(tmp_path: Path) -> None:
    policy = some_policy("recurrent")
    policy.export("stablehlo", tmp_path)
    script = """
import sys
for name in ("neubay", "equinox", "optax", "jaxtyping", "onnx"):
    sys.modules[name] = None  # importing it is an error
from pathlib import Path
import jax, numpy as np
from jax import export
step = export.deserialize(Path(sys.argv[1]).read_bytes())
print(*step.platforms)
zeros = np.zeros((1, 1, 2, 4), np.float32)
one, two = np.zeros(1, np.float32), np.zeros((1, 2), np.float32)
print(*np.asarray(step.call(np.ones((1, 3), np.float32), one, np.ones(1, bool), two, zeros)[0])[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "policy.stablehlo")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    platforms, action = done.stdout.splitlines()
    assert platforms == "cpu cuda tpu"
    ours, _ = policy.predict(np.ones(3))
    np.testing.assert_allclose([float(word) for word in action.split()], ours, atol=1e-5)


# --- The commands --------------------------------------------------------------------------------


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_a_policy_file_is_exported_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_policy("gated").save(tmp_path / "mine.npz")
    assert run("export", tmp_path / "mine.npz", "--to", "onnx", "--out", tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["card.md", "policy.onnx"]
    assert "policy.onnx" in capsys.readouterr().out
    assert run("card", tmp_path / "mine.npz") == 0
    assert capsys.readouterr().out == (tmp_path / "out" / "card.md").read_text()


def test_an_export_of_what_is_not_to_be_deployed_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_policy("gated").save(tmp_path / "policy.npz")
    for verdict in ("keep", "copy"):
        about = {"candidates": [], "chosen": "x", "verdict": verdict, "reasons": []}
        (tmp_path / "selection.json").write_text(json.dumps(about))
        assert run("export", tmp_path, "--to", "numpy", "--out", tmp_path / "out") == 0
        said = " ".join(capsys.readouterr().err.split())
        assert ("the verdict is keep" in said and "do not deploy this" in said) == (
            verdict == "keep"
        )


def test_nothing_but_an_earlier_export_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = some_policy("Markov")
    policy.save(tmp_path / "policy.npz")
    before = (tmp_path / "policy.npz").read_bytes()
    assert run("export", tmp_path, "--to", "numpy", "--out", tmp_path) == 2
    assert "no export; choose another --out" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "policy.npz").read_bytes() == before
    for _ in range(2):  # the second replaces the first
        policy.export("numpy", tmp_path / "out")
    with pytest.raises(RunError, match="is a file"):
        policy.export("numpy", tmp_path / "policy.npz")


@pytest.mark.parametrize("name", ["card.md", "policy.py", "policy.onnx"])
def test_a_file_of_somebody_else_stays(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    form = "onnx" if name == "policy.onnx" else "numpy"
    with pytest.raises(RunError, match=f"holds {name}, which is no export; choose another --out"):
        some_policy("Markov").export(form, tmp_path)  # type: ignore[arg-type]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_what_is_no_policy_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "arrays.npz", x=np.ones(3))
    empty = np.frombuffer(b"{}", np.uint8)
    np.savez(tmp_path / "empty.npz", allow_pickle=False, about=empty)
    wrong = {
        "absent": "no such run, selection or policy file; check the path",
        "foreign": "neither a run, nor a selection, nor a policy file",
        "text.npz": "it is no npz archive",
        "arrays.npz": "has no note: neubay did not write it",
        "empty.npz": "not a policy file",
    }
    for name, words in wrong.items():
        for command in (("export", "--out", tmp_path / "out"), ("card",)):
            assert run(command[0], tmp_path / name, *command[1:]) == 2
            said = " ".join(capsys.readouterr().err.split())
            assert words in said, f"{command[0]} {name}: {said}"
            assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_the_card_takes_the_place_of_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_policy("Markov").save(tmp_path / "mine.npz")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept.txt").write_text("kept")
    assert run("card", tmp_path / "mine.npz", "--out", tmp_path / "folder") == 2
    assert "is a folder" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "folder" / "kept.txt").read_text() == "kept"


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some_policy("Markov").save(tmp_path / "mine.npz")
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert run("export", tmp_path / "mine.npz", "--to", "onnx", "--out", tmp_path / "out") == 2
    assert "pip install 'neubay[export]'" in " ".join(capsys.readouterr().err.split())


def test_an_export_is_not_taken_for_a_policy_file(tmp_path: Path) -> None:
    some_policy("Markov").export("numpy", tmp_path)
    with pytest.raises(RunError, match=r"is an export, which its policy\.py loads"):
        load_policy(tmp_path / "policy.npz")
