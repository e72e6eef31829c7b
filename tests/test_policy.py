"""Policy files of version 0.1 are read and act as they did then."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neubay.policy import load_policy

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
    """What is saved now has the names, shapes and types of version 0.1, for its readers."""
    old, new = tmp_path / "old.npz", tmp_path / "new.npz"
    write(old, kind)
    load_policy(old).save(new)
    with np.load(old, allow_pickle=False) as ours, np.load(new, allow_pickle=False) as theirs:
        assert ours.files == theirs.files
        for name in set(ours.files) - {"about"}:
            np.testing.assert_array_equal(ours[name], theirs[name])
            assert ours[name].dtype == theirs[name].dtype
        assert json.loads(theirs["about"].tobytes())["layout"] == 1
