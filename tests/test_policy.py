"""Policy files of version 0.1 are read and act as they did then."""

import io
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.policies import some_policy
from neubay.errors import NeubayError, RunError
from neubay.policy import load_policy
from neubay.tasks import ContinuousActions

ENCODER = {
    "encoder.project.weight": (-1, 8),  # as many rows as the agent has inputs
    "encoder.project.bias": (8,),
    "encoder.blocks[0].lru.nu_log": (4,),
    "encoder.blocks[0].lru.theta_log": (4,),
    "encoder.blocks[0].lru.gamma_log": (4,),
    "encoder.blocks[0].lru.b.real": (8, 4),
    "encoder.blocks[0].lru.b.imag": (8, 4),
    "encoder.blocks[0].lru.c.real": (4, 8),
    "encoder.blocks[0].lru.c.imag": (4, 8),
    "encoder.blocks[0].lru.d": (8,),
    "encoder.blocks[0].gate.weight": (8, 16),
    "encoder.blocks[0].gate.bias": (16,),
}


def head(into: int, out: int) -> dict[str, tuple[int, ...]]:
    return {
        "head.layers[0].weight": (into, 8),
        "head.layers[0].bias": (8,),
        "head.out.weight": (8, out),
        "head.out.bias": (out,),
    }


CONTINUOUS = {"low": [-2.0, -1.0], "high": [2.0, 3.0]}
KINDS: dict[str, tuple[dict, str, dict, dict, list]] = {
    # settings, the network's name, its arrays, the actions, what version 0.1 did
    "redq": (
        {"algorithm": "redq"},
        "actor",
        ENCODER | head(8, 4),
        CONTINUOUS,
        [[1.358754, 0.591019], [1.896012, 2.741359], [1.904372, 2.695218], [1.994737, 2.774634]],
    ),
    "markov": (
        {"algorithm": "redq", "memory": "none"},
        "actor",
        head(3, 4),
        CONTINUOUS,
        [[1.674673, 0.511527], [1.443374, 0.606888], [1.582643, 0.462102], [1.930853, 1.675837]],
    ),
    "bc": (
        {"algorithm": "bc"},
        "actor",
        ENCODER | head(8, 4),
        CONTINUOUS,
        [[1.358754, 0.591019], [1.896012, 2.741359], [1.904372, 2.695218], [1.994737, 2.774634]],
    ),
    "dqn": ({"algorithm": "dqn"}, "network", ENCODER | head(8, 4), {"discrete": 3}, [0, 0, 2, 0]),
}


def write(path: Path, kind: str) -> None:
    """A file of version 0.1, weights and all; its note has the settings that matter here."""
    settings, network, shapes, actions, _ = KINDS[kind]
    inputs = 3 + (3 if "discrete" in actions else 2) + 1
    rng = np.random.default_rng(1)
    arrays = {
        f"tree.{network}.{name}": np.float32(
            rng.normal(0, 0.5, [inputs if size == -1 else size for size in shape])
        )
        for name, shape in shapes.items()
    }
    if kind == "dqn":
        arrays["tree.epsilon"] = np.float32(0.5)
    sizes = {"width": 8, "memory_size": 4, "memory_layers": 1, "head_depth": 1}
    note: dict[str, Any] = {
        "layout": 1,
        "task": "toy",
        "environment": None,
        "state_size": 3,
        "actions": actions,
        "horizon": 10,
        "reward_shift": -1.0,
        "agent": settings | sizes,
        "provenance": {"neubay": "0.1.0"},
    }
    about = np.frombuffer(json.dumps(note).encode(), np.uint8)
    np.savez(path, allow_pickle=False, about=about, **arrays)


def actions_of(path: Path) -> list:
    """What the policy does in three steps, and then in a sample."""
    policy, rng = load_policy(path), np.random.default_rng(1)
    state, chosen = None, []
    for step in range(4):
        reward = float(step) if step else None
        observation = rng.normal(size=3)
        action, state = policy.predict(observation, state, deterministic=step < 3, reward=reward)
        chosen.append(action.tolist())
    return chosen


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_of_version_0_1_acts_as_it_did(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "policy.npz", kind)
    np.testing.assert_allclose(actions_of(tmp_path / "policy.npz"), KINDS[kind][-1], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_keeps_its_layout(kind: str, tmp_path: Path) -> None:
    """What is saved now has the names, shapes and types of version 0.1, and beside them scale and
    shift of each LayerNorm, which were 1 and 0 then."""
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    write(old, kind)
    load_policy(old).save(new)
    with np.load(old, allow_pickle=False) as ours, np.load(new, allow_pickle=False) as theirs:
        for name in set(ours.files) - {"about"}:
            np.testing.assert_array_equal(ours[name], theirs[name])
            assert ours[name].dtype == theirs[name].dtype
        added = set(theirs.files) - set(ours.files)
        linear = [name for name in ours.files if "layers[" in name or "project" in name]
        blocks = [name for name in ours.files if name.endswith("lru.d")]
        assert len(added) == len(linear) + 2 * len(blocks)  # weight and bias, scale and shift
        for name in added:
            assert name.endswith((".scale", ".shift"))
            np.testing.assert_array_equal(theirs[name], float(name.endswith(".scale")))
        assert json.loads(theirs["about"].tobytes())["layout"] == 2
    assert actions_of(new) == actions_of(old)


def test_a_file_of_layout_2_must_be_whole(tmp_path: Path) -> None:
    """Scale and shift may be absent in layout 1 alone."""
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    write(old, "bc")
    load_policy(old).save(new)
    with np.load(new, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if not name.endswith("norm.scale")}
    np.savez(new, allow_pickle=False, **arrays)
    with pytest.raises(RunError, match=r"norm\.scale"):
        load_policy(new)
    note = json.loads(arrays["about"].tobytes()) | {"layout": 3}
    arrays["about"] = np.frombuffer(json.dumps(note).encode(), np.uint8)
    np.savez(new, allow_pickle=False, **arrays)
    with pytest.raises(RunError, match="layout 3, this version reads 1 to 2"):
        load_policy(new)


# --- Files that are damaged, or made to do harm ---------------------------------------------------


def rewritten(
    path: Path, note: dict[str, Any], arrays: dict[str, np.ndarray] | None = None
) -> Path:
    """A policy file with changes in its note, agent's settings among them, and in its arrays."""
    with np.load(path, allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    about = json.loads(stored.pop("about").tobytes())
    agent = about["agent"] | note.pop("agent", {})
    about = {key: value for key, value in (about | note).items() if value != "absent"}
    about["agent"] = agent
    changed = path.with_name("changed.npz")
    raw = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(changed, allow_pickle=False, about=raw, **{**stored, **(arrays or {})})
    return changed


HUGE: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"agent": {"width": 6000}}, "agent.width is 6,000 in its note, and 8 by"),
    "state_size": ({"state_size": 50_000_000}, "state_size is 50,000,000 in its note, and 3 by"),
    "memory_size": ({"agent": {"memory_size": 10**9}}, "agent.memory_size is 1,000,000,000"),
    "memory_layers": ({"agent": {"memory_layers": 10**7}}, "agent.memory_layers is 10,000,000"),
    "head_depth": ({"agent": {"head_depth": 10**7}}, "agent.head_depth is 10,000,000"),
    "action bounds": ({"actions": {"low": [-1.0] * 9, "high": [1.0] * 9}}, "state_size is 3"),
    "no task": ({"task": "absent"}, "its note has no 'task'"),
    "no sizes": ({"state_size": "absent"}, "its note has no 'state_size'"),
    "size in words": ({"state_size": "three"}, "state_size three: must be a whole number"),
    "bounds": ({"actions": {"low": [3.0, 3.0], "high": [2.0, 2.0]}}, "low < high"),
    "no bounds": ({"actions": {}}, "state_size is 3"),
    "ranges": ({"ranges": {"observation_low": [0.0]}}, "ranges.observation_low has 1 values"),
    "layout": ({"layout": 99}, "a policy of layout 99"),
    "names": (
        {"column_names": {"states": ["a"], "actions": ["b", "c"]}},
        "1 names of states for 3 of them",
    ),
    "names in numbers": ({"column_names": {"states": 3, "actions": []}}, "column_names.states"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_note_that_does_not_fit_is_refused_before_anything_is_made(
    kind: str, tmp_path: Path
) -> None:
    write(tmp_path / "policy.npz", "redq")
    changes, words = HUGE[kind]
    path = rewritten(tmp_path / "policy.npz", json.loads(json.dumps(changes)))
    tracemalloc.start()
    try:
        with pytest.raises(NeubayError) as refused:
            load_policy(path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_critics_that_a_note_promises_are_not_made(tmp_path: Path) -> None:
    write(tmp_path / "policy.npz", "redq")
    path = rewritten(tmp_path / "policy.npz", {"agent": {"heads": 10**9, "buffer": 10**12}})
    assert load_policy(path).config.heads == 10**9


def test_an_array_that_promises_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    """A header of a few bytes asks NumPy for terabytes; so does a compressed row of zeros."""
    write(tmp_path / "policy.npz", "markov")
    with np.load(tmp_path / "policy.npz", allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    zeros = np.zeros((3000, 300), np.float32)
    np.savez_compressed(tmp_path / "packed.npz", allow_pickle=False, **stored, zeros=zeros)
    huge = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
    np.lib.format.write_array_header_1_0(huge, shape)
    (tmp_path / "header.npz").write_bytes((tmp_path / "policy.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "header.npz", "a") as archive:
        archive.writestr("tree.huge.npy", huge.getvalue())
    for name in ("packed.npz", "header.npz"):
        with pytest.raises(RunError, match=r"headers promise [0-9,]* bytes of arrays, it has"):
            load_policy(tmp_path / name)


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    write(tmp_path / "policy.npz", "redq")
    name = "tree.actor.head.out.bias"
    path = rewritten(tmp_path / "policy.npz", {}, {name: np.full(4, np.nan, np.float32)})
    with pytest.raises(RunError, match=r"'.actor.head.out.bias' has a value that is not finite"):
        load_policy(path)


@pytest.mark.parametrize("kind", KINDS)
def test_predict_returns_no_nan_in_silence(kind: str, tmp_path: Path) -> None:
    """Weights that are finite one by one and overflow together."""
    write(tmp_path / "policy.npz", kind)
    name = f"tree.{KINDS[kind][1]}.head.layers[0].weight"
    shape = KINDS[kind][2]["head.layers[0].weight"]
    path = rewritten(tmp_path / "policy.npz", {}, {name: np.full(shape, 3e38, np.float32)})
    with pytest.raises(NeubayError, match="the action has a value that is not finite"):
        load_policy(path).predict(np.ones(3))


def test_what_was_really_done_is_told_in_the_units_of_the_plant() -> None:
    policy = some_policy("gated", 3, 2)
    assert isinstance(policy.task.actions, ContinuousActions)
    low, high = policy.task.actions.low, policy.task.actions.high
    _, state = policy.predict(np.zeros((2, 3)))
    done = np.stack([(low + high) / 2, high])
    told = policy.acted(state, done)
    np.testing.assert_allclose(told.last_action, [[0, 0], [1, 1]], atol=1e-6)
    np.testing.assert_allclose(policy.acted(state, low).last_action, -1)
    np.testing.assert_array_equal(policy.acted(state, high + 9).last_action, 1)  # no more than that
    assert told.memory is state.memory and told.steps == state.steps
    with pytest.raises(NeubayError, match=r"has shape \(2,\), or \(2, 2\) for each of the 2"):
        policy.acted(state, np.zeros(3))
    discrete = some_policy("DQN", 3, 4)
    _, state = discrete.predict(np.zeros(3))
    np.testing.assert_array_equal(discrete.acted(state, 2).last_action, [[0, 0, 1, 0]])
