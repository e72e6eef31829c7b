"""Before a training begins: will it fit into memory?"""

import contextlib
import math
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from neubay import agents
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import TrainingError
from neubay.replay import Replay
from neubay.world.training import Recipe, initialise, member_keys

RUNTIME = 500_000_000
"""Bytes of Python, JAX and compiled programs."""
CHECKPOINT_COPIES = 3
"""Replays more while one is written or read: the ring laid straight, and two inside of orbax."""


def memory_estimate(dataset: Dataset, config: TrainConfig) -> dict[str, int]:
    """Bytes that a training will hold at most, by what holds them.

    The replay counts as if all its rows were imagined: real ones take no space, but how many there
    will be is not known before. On an accelerator the agent and the world are in its memory; they
    are small, and counted here all the same.
    """
    task = dataset.task
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
    parts = {
        "data": sum(
            np.asarray(field).nbytes
            for field in dataset.tape
            if field is not None and not isinstance(field, np.memmap)
        ),
        "agent": 3 * _bytes(agent.init(jax.random.key(0))),  # with gradients and a copy
        "Python and JAX": RUNTIME,
    }
    if config.agent.algorithm != "bc":
        keys = jax.eval_shape(lambda: member_keys(config.world.pool, 0))
        recipe = Recipe.of(task, config.world)
        pool = jax.eval_shape(lambda keys: initialise(keys, recipe), keys)
        parts["world"] = 2 * _bytes(pool)  # with gradients and activations
        parts["replay"] = replay_rows(dataset, config) * _bytes_per_row(dataset, config)
        parts["replay in a checkpoint"] = CHECKPOINT_COPIES * parts["replay"]
    return parts


def replay_rows(dataset: Dataset, config: TrainConfig) -> int:
    """Rows that the replay will hold at most: what fits, or all that is ever gathered."""
    ever = math.ceil(config.agent.steps / config.agent.updates_per_row)
    one_gathering = config.rollout.rollouts * (dataset.task.horizon + 1)
    return min(config.agent.buffer, ever + one_gathering)


def check_memory(dataset: Dataset, config: TrainConfig) -> None:
    """Refuse a training that may need more memory than there is, and say what would help."""
    parts, free = memory_estimate(dataset, config), free_memory()
    needed = sum(parts.values())
    if free is None or needed <= free:
        return
    by_size = sorted(parts.items(), key=lambda part: part[1], reverse=True)
    listed = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in by_size)
    remedy = "make memory free"
    replay = parts.get("replay", 0) + parts.get("replay in a checkpoint", 0)
    left = free - (needed - replay)
    if replay and left > 0:
        rows = int(left / (1 + CHECKPOINT_COPIES) / _bytes_per_row(dataset, config))
        if rows > dataset.task.horizon:
            remedy += f", or let the replay hold fewer rows: --agent.buffer {rows}"
    raise TrainingError(
        f"this training may need {needed / 1e9:.2f} GB of memory, and {free / 1e9:.2f} GB are "
        f"free. In GB: {listed}. To train: {remedy}"
    )


def free_memory() -> int | None:
    """Bytes that this process may still take, by the system and by its control group; none where
    neither tells."""
    bounds = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            bounds.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
    return min(bounds, default=None)


def _bytes_per_row(dataset: Dataset, config: TrainConfig) -> int:
    penalised = config.rollout.penalty > 0 or config.rollout.halt_penalty is not None
    return Replay(dataset, config.agent.buffer, penalised).bytes_per_row


def _bytes(tree: PyTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
