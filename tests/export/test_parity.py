"""An exported policy acts as the original does, in every format, over 1,000 steps with resets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.policies import DISCRETE, KINDS, some_policy
from neubay import agents
from neubay.export import standalone
from neubay.policy import Policy

STEPS = 1000
FORMATS = ("numpy", "onnx", "stablehlo")
AVAILABLE = [
    kind
    for kind in KINDS
    if (KINDS[kind]["algorithm"], "discrete" if kind in DISCRETE else "continuous")
    in agents.ALGORITHMS
]
Steps = dict[str, np.ndarray]


def history(policy: Policy, batch: int, seed: int) -> Steps:
    """Observations, rewards and starts of episodes side by side; some observations are far out."""
    rng = np.random.default_rng(seed)
    size = policy.task.state_size
    start = rng.random((STEPS, batch)) < 0.02
    start[0] = True
    spread = np.where(rng.random((STEPS, batch, 1)) < 0.1, 30, 1)
    return {
        "observation": (spread * rng.normal(size=(STEPS, batch, size))).astype(np.float32),
        "reward": rng.normal(size=(STEPS, batch)).astype(np.float32),
        "start": start,
    }


def predicted(policy: Any, steps: Steps) -> np.ndarray:
    """Actions of our own policy, or of the one that needs NumPy alone: they have one signature."""
    state, chosen = None, []
    for observation, reward, start in zip(*steps.values(), strict=True):
        action, state = policy.predict(observation, state, start, reward=reward)
        chosen.append(action)
    return np.stack(chosen)


def fed(step: Callable[..., Any], policy: Policy, steps: Steps) -> np.ndarray:
    """Actions of a graph whose last action and memory are carried by hand."""
    batch, config = steps["start"].shape[1], policy.config
    discrete = policy.task.actions.kind == "discrete"
    shape = (batch,) if discrete else (batch, policy.task.actions.size)
    last = np.zeros(shape, np.int64 if discrete else np.float32)
    recurrent = config.memory != "none"
    memory = np.zeros((batch, config.memory_layers, 2, config.memory_size), np.float32)
    chosen = []
    for row in zip(*steps.values(), strict=True):
        given = dict(zip(steps, row, strict=True)) | {"last_action": last}
        if recurrent:
            last, memory = map(np.asarray, step(**given, memory=memory))
        else:
            last = np.asarray(step(**given))
        chosen.append(last)
    return np.stack(chosen)


def in_onnxruntime(path: Path) -> Callable[..., Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def step(**given: np.ndarray) -> Any:
        found = session.run(None, given)
        return found if len(found) > 1 else found[0]

    return step


def in_jax(path: Path) -> Callable[..., Any]:
    call = jax.jit(jax.export.deserialize(path.read_bytes()).call)

    def step(**given: np.ndarray) -> Any:
        last = given["last_action"]
        whole = last.astype(np.int32) if last.dtype == np.int64 else last
        return call(*({**given, "last_action": whole}.values()))

    return step


def assert_equal(policy: Policy, ours: np.ndarray, theirs: np.ndarray) -> None:
    actions = policy.task.actions
    assert theirs.shape == ours.shape
    if actions.kind == "continuous":  # 1e-5 of what an action can be
        span = np.maximum(np.abs(actions.low), np.abs(actions.high))
        np.testing.assert_allclose(theirs / span, ours / span, rtol=0, atol=1e-5)
        assert len(np.unique(ours)) > STEPS // 2  # it does something
    else:
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.slow
@pytest.mark.parametrize("kind", AVAILABLE)
@settings(max_examples=2)
@given(
    states=st.integers(1, 6),
    actions=st.integers(2, 4),
    sizes=st.fixed_dictionaries(
        {
            "width": st.integers(8, 64),  # with fewer, LayerNorm leaves little to act on
            "memory_size": st.integers(1, 32),
            "memory_layers": st.integers(1, 3),
            "head_depth": st.integers(1, 3),
        }
    ),
    batch=st.integers(1, 4),
    seed=st.integers(0, 100),
)
def test_every_format_acts_as_the_original(
    kind: str,
    states: int,
    actions: int,
    sizes: dict[str, int],
    batch: int,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    policy = some_policy(kind, states, actions, seed, **sizes)
    steps = history(policy, batch, seed)
    ours = predicted(policy, steps)
    assume(len(np.unique(ours)) > 1)  # some random weights choose one action for ever
    out = tmp_path_factory.mktemp("export")
    for form in FORMATS:
        policy.export(form, out)  # type: ignore[arg-type]
    answers = {
        "numpy": predicted(standalone.load(out), steps),
        "onnx": fed(in_onnxruntime(out / "policy.onnx"), policy, steps),
        "stablehlo": fed(in_jax(out / "policy.stablehlo"), policy, steps),
    }
    for theirs in answers.values():
        assert_equal(policy, ours, theirs)
