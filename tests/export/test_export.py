"""What an export holds, what it needs to be read, and what is refused."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import neubay
from helpers.policies import some_policy
from neubay import cli
from neubay.errors import NeubayError, RunError
from neubay.export import standalone
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

    assert arguments(standalone.Policy.predict) == arguments(Policy.predict)
    assert standalone.PolicyState._fields == neubay.policy.PolicyState._fields


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


def test_the_light_guard_travels_along(tmp_path: Path) -> None:
    policy = some_policy("Markov")  # whose data is within -1 and 2
    policy.export("numpy", tmp_path)
    policy.export("onnx", tmp_path)
    policy.export("stablehlo", tmp_path)
    light = standalone.load(tmp_path)
    seen = np.asarray([[0, 0, 0], [0, 2.2, 0], [1e9, 0, 0], [0, np.nan, 0]])
    assert light.outside(seen).tolist() == [False, True, True, True]
    assert light.outside(seen, margin=0.1).tolist() == [False, False, True, True]
    notes = {p.key: p.value for p in onnx.load(tmp_path / "policy.onnx").metadata_props}
    for found in (
        json.loads(notes["observation_high"]),
        json.loads((tmp_path / "policy.json").read_text())["observation_high"],
    ):
        assert found == [2.0, 2.0, 2.0]


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


def test_nothing_but_an_earlier_export_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = some_policy("Markov")
    policy.save(tmp_path / "policy.npz")
    before = (tmp_path / "policy.npz").read_bytes()
    assert run("export", tmp_path, "--to", "numpy", "--out", tmp_path) == 2
    assert "which is no export; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "policy.npz").read_bytes() == before
    for _ in range(2):  # the second replaces the first
        policy.export("numpy", tmp_path / "out")
    with pytest.raises(RunError, match="is a file"):
        policy.export("numpy", tmp_path / "policy.npz")
    assert run("export", tmp_path / "out" / "none", "--out", tmp_path / "other") == 2
    assert "neither a run, nor a selection, nor a policy file" in capsys.readouterr().err


def test_an_export_is_not_taken_for_a_policy_file(tmp_path: Path) -> None:
    some_policy("Markov").export("numpy", tmp_path)
    with pytest.raises(RunError, match=r"'head.layers\[0\].weight' is missing"):
        load_policy(tmp_path / "policy.npz")
