"""Programs of the published size, lowered for machines that are not here; nothing is compiled."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neubay import agents
from neubay.bench import programs
from neubay.config import Facts, Published, TrainConfig, resolve, settle, updated
from neubay.devices import choices
from neubay.tasks import Task, get_task

ACCELERATORS = ("cuda", "tpu")
AGENTS = [("redq", "lru"), ("redq", "gated"), ("dqn", "lru"), ("dqn", "gated")]


def published(algorithm: str = "redq", memory: str = "lru") -> tuple[Task, TrainConfig]:
    """halfcheetah, or a task with discrete actions, at the published size."""
    task = get_task("d4rl/halfcheetah" if algorithm == "redq" else "cartpole")
    paper = resolve(Published(benchmark=task.benchmark, discrete=algorithm == "dqn"), "paper")
    config = updated(paper, {"agent": {"algorithm": algorithm, "memory": memory, "tape": 2048}})
    return task, settle(config, Facts(horizon=task.horizon, reward_rms=1.0))


def lowered(program: programs.Program) -> str:
    """The program as an accelerator's compiler would get it: lowered for all of them, traced with
    what is chosen for them."""
    with choices.assumed("cuda"):
        exported = jax.export.export(program.jitted(), platforms=ACCELERATORS)(*program.arguments)
    assert exported.platforms == ACCELERATORS
    return str(exported.mlir_module())


def assert_no_host(module: str) -> None:
    """No callback into Python, no library of the host, nothing fed in or out on the way."""
    for word in ("callback", "lapack", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv"):
        assert word not in module, word


@pytest.mark.slow
def test_the_world_lowers_for_accelerators() -> None:
    task, config = published()
    with choices.assumed("cuda"):
        found = programs.world_programs(task, config, 2_000_000)
    members = found["world: epoch"].arguments[0].members
    assert members.head.weight.shape == (128, 200, 36)  # all side by side
    for program in found.values():
        assert_no_host(lowered(program))


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "memory"), AGENTS)
def test_imagination_updates_and_policies_lower_for_accelerators(
    algorithm: str, memory: str
) -> None:
    task, config = published(algorithm, memory)
    with choices.assumed("cuda"):
        found = programs.agent_programs(task, config)
    assert {"imagination", "agent: update", "policy: step"} <= found.keys()
    if memory == "gated":  # as much tracing again, for nothing that the others do not have
        del found["agent: warm start"]
    for program in found.values():
        assert_no_host(lowered(program))
    tapes = found["agent: update"].arguments[1]
    assert tapes.state.shape == (50, 2048, task.state_size)


@pytest.mark.slow
def test_learned_ends_lower_for_accelerators() -> None:
    """The training, the calibration and the check of the heads, and rollouts that they end."""
    task, config = published()
    config = updated(config, {"world": {"termination": "learned"}})
    with choices.assumed("cuda"):
        found = programs.head_programs(task, config)
        found["imagination"] = programs.agent_programs(task, config)["imagination"]
    heads = found["imagination"].arguments[0].heads
    assert heads.threshold.shape == (config.world.members,)
    for program in found.values():
        assert_no_host(lowered(program))


def test_what_runs_on_a_cpu_only_is_found() -> None:
    """So that the tests above can fail: a library of the host, and a call into Python."""
    square = (jax.ShapeDtypeStruct((3, 3), jnp.float32),)
    for function in (
        lambda x: jnp.linalg.eig(x)[0],
        lambda x: jax.pure_callback(np.sin, x, x),
    ):
        with pytest.raises(NotImplementedError):
            lowered(programs.Program(function, square))


@pytest.mark.slow
def test_shapes_are_those_of_a_training() -> None:
    """A program's arguments are what a training hands to it."""
    task, config = published()
    agent = agents.make(task.state_size, task.actions.size, "continuous", config.agent)
    update = programs.agent_programs(task, config)["agent: update"]
    sent = programs.number_of_bytes(update.sent(*update.arguments))
    rows = 4 * (17 + 6 + 1) + 3  # state, action, reward; three flags
    assert sent == 50 * 2048 * rows and update.gradient_steps == 50
    state = agent.init(jax.random.key(0))
    held = programs.number_of_bytes(update.arguments[0])
    assert held == programs.number_of_bytes(state)
    assert held > 4 * 3 * math.prod((10, 256, 256))
