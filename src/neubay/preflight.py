"""Before a training begins: will it fit into memory, and can its policy be judged?"""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from neubay import agents
from neubay.config import TrainConfig, WorldConfig, known
from neubay.data.dataset import Dataset
from neubay.errors import TrainingError
from neubay.replay import Replay
from neubay.runs.checkpoints import SLICE
from neubay.world.termination import MOST_ROWS, ended_by
from neubay.world.training import Recipe, initialise, member_keys
from neubay.world.transitions import RESIDENT_BYTES

RUNTIME = 500_000_000
"""Bytes of Python, JAX and compiled programs."""
SLICES_HELD = 2
"""Slices of the replay in memory while a checkpoint is read: one that is copied, and the next."""
Parts = dict[str, int]
"""Bytes, by what holds them."""


def memory_estimate(dataset: Dataset, config: TrainConfig) -> Parts:
    """What a training will hold at most.

    The replay counts as if all its rows were imagined: real ones take no space, but how many there
    will be is not known before. On an accelerator the agent and the world are in its memory; they
    are small, and counted here all the same.
    """
    task = dataset.task
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
    parts = {
        "data": _data(dataset),
        "agent": 3 * _bytes(agent.init(jax.random.key(0))),  # with gradients and a copy
        "Python and JAX": RUNTIME,
    }
    if config.agent.algorithm != "bc":
        parts["world"] = _members(dataset, config.world)
        parts["replay"] = replay_rows(dataset, config) * _bytes_per_row(dataset, config)
        parts["checkpoint"] = SLICES_HELD * min(parts["replay"], SLICE)
    return parts


def world_estimate(dataset: Dataset, config: WorldConfig) -> Parts:
    """What the training of a world will hold at most."""
    tape = dataset.tape
    size = tape.state.nbytes + tape.action.nbytes + tape.reward.nbytes
    heads = 0
    if ended_by(dataset, config) == "learned":  # steps as heads see them, of three kinds
        inputs = 2 * dataset.task.state_size + dataset.task.actions.size
        heads = 4 * inputs * min(dataset.transitions, 3 * MOST_ROWS)
    return {
        "data": _data(dataset),
        "data for the members": min(size, RESIDENT_BYTES) + heads,
        "members": _members(dataset, config),
        "Python and JAX": RUNTIME,
    }


def _data(dataset: Dataset) -> int:
    """Bytes of a tape that is not mapped into memory from a file."""
    fields = (field for field in dataset.tape if field is not None)
    return sum(np.asarray(f).nbytes for f in fields if not isinstance(f, np.memmap))


def _members(dataset: Dataset, config: WorldConfig) -> int:
    """Bytes of a pool in training: members, optimiser, best snapshots; and as much for gradients,
    activations and the copy that a checkpoint is written from."""
    keys = jax.eval_shape(lambda: member_keys(config.pool, 0))
    recipe = Recipe.of(dataset.task, config)
    return 2 * _bytes(jax.eval_shape(lambda keys: initialise(keys, recipe), keys))


def replay_rows(dataset: Dataset, config: TrainConfig) -> int:
    """Rows that the replay will hold at most: what fits, or all that is ever gathered."""
    ever = math.ceil(known(config.agent.steps) / config.agent.updates_per_row)
    one_gathering = config.rollout.rollouts * (dataset.task.horizon + 1)
    return min(config.agent.buffer, ever + one_gathering)


def check_environment(dataset: Dataset) -> None:
    """Refuse a training whose environment cannot be made, or is another, before it has cost
    anything."""
    dataset.task.try_environment()


def check_memory(dataset: Dataset, config: TrainConfig, *, begun: bool = False) -> None:
    """Refuse a training that may need more memory than there is, and say what would help; one that
    was `begun` cannot have other settings any more."""
    parts, free = memory_estimate(dataset, config), free_memory()
    if free is None or sum(parts.values()) <= free:
        return
    remedies = ["make memory free"]
    if begun:
        remedies.append(
            "resume on a machine that has more: copy the run directory and its world (--world)"
        )
    left = free - sum(size for name, size in parts.items() if name != "replay")
    rows = int(left / _bytes_per_row(dataset, config)) if "replay" in parts else 0
    if rows > dataset.task.horizon:
        fewer = f"let the replay hold fewer rows: --agent.buffer {rows}"
        other = "begin another run (--out), as this one keeps its settings, and "
        remedies.append(other + fewer if begun else fewer)
    raise _too_large("this training", parts, free, remedies)


def check_world_memory(dataset: Dataset, config: WorldConfig) -> None:
    """Refuse the training of a world that may need more memory than there is."""
    parts, free = world_estimate(dataset, config), free_memory()
    if free is None or sum(parts.values()) <= free:
        return
    remedies = ["make memory free"]
    left = free - sum(size for name, size in parts.items() if name != "members")
    pool = config.pool * left // parts["members"]
    if pool >= config.members:
        remedies.append(f"train fewer members: --pool {pool}")
    raise _too_large("the training of this world", parts, free, remedies)


def _too_large(what: str, parts: Parts, free: int, remedies: list[str]) -> TrainingError:
    by_size = sorted(parts.items(), key=lambda part: part[1], reverse=True)
    listed = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in by_size)
    return TrainingError(
        f"{what} may need {sum(parts.values()) / 1e9:.2f} GB of memory, and {free / 1e9:.2f} GB "
        f"are free. In GB: {listed}. To train: {', or '.join(remedies)}"
    )


# --- What is free --------------------------------------------------------------------------------


def free_memory(system: Path = Path("/")) -> int | None:
    """Bytes that this process may still take, by the system and by its control groups; none where
    neither tells. What the system keeps of files, and gives up when asked, counts as free."""
    bounds = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (system / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
    for group in _control_groups(system):
        for limit, used, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
                left = int((group / limit).read_text()) - int((group / used).read_text())
                bounds.append(left + _cached(group / "memory.stat", prefix))
    return min(bounds, default=None)


def _cached(statistics: Path, prefix: str) -> int:
    """Bytes of files that count as used by a control group, and are given up when asked."""
    with contextlib.suppress(OSError, ValueError):
        lines = statistics.read_text().splitlines()
        held = dict(line.split(maxsplit=1) for line in lines)
        return sum(int(held.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return 0


def _control_groups(system: Path) -> Iterator[Path]:
    """The folders of this process's control groups that may limit memory: its own and all above;
    inside a container the uppermost is the container's."""
    with contextlib.suppress(OSError, ValueError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = system / "sys/fs/cgroup" / ("memory" if controllers else "")
            names = path.strip("/").split("/")
            yield from (top.joinpath(*names[:depth]) for depth in range(len(names) + 1))


def _bytes_per_row(dataset: Dataset, config: TrainConfig) -> int:
    penalised = config.rollout.penalty > 0 or config.rollout.halt_penalty is not None
    return Replay(dataset, config.agent.buffer, penalised).bytes_per_row


def _bytes(tree: PyTree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
