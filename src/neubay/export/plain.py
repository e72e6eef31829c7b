"""A policy as plain arrays with plain names: what every format is made of.

Linear layers are as they were trained. Memory is ready to use: `decay` and `turn` are what the real
and the imaginary half of it are multiplied with, gamma is part of `b`, the sign of Im C of `c`.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from neubay.agents.memory import LRU
from neubay.agents.networks import RecurrentPolicy

Arrays = dict[str, np.ndarray]


class PlainPolicy(NamedTuple):
    """Named arrays, and a note that says what they are of."""

    arrays: Arrays
    about: dict[str, Any]

    @property
    def discrete(self) -> bool:
        return "discrete" in self.about["actions"]

    @property
    def action_size(self) -> int:
        actions = self.about["actions"]
        return int(actions["discrete"]) if self.discrete else len(actions["low"])

    @property
    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Half the width and the middle of the bounds of continuous actions, in float32."""
        low, high = (
            np.asarray(self.about["actions"][name], np.float64) for name in ("low", "high")
        )
        return ((high - low) / 2).astype(np.float32), ((high + low) / 2).astype(np.float32)

    @property
    def layers(self) -> int:
        """Layers of memory; none for a Markov policy."""
        return int(self.about["memory_layers"]) if self.about["memory"] != "none" else 0


def plain(mode: RecurrentPolicy, note: dict[str, Any]) -> PlainPolicy:
    """The policy whose greedy form is `mode`, and whose file has this note."""
    agent = note["agent"]
    head = (mode.actor if hasattr(mode, "actor") else mode.network).head  # type: ignore[attr-defined]
    arrays: dict[str, Any] = _encoder(mode.encoder)
    for i, (linear, norm) in enumerate(zip(head.layers, head.norms, strict=True)):
        arrays |= _layer(f"head{i}", linear, norm)
    arrays |= {"out_weight": head.out.weight, "out_bias": head.out.bias}
    if hasattr(mode, "epsilon"):
        arrays["epsilon"] = mode.epsilon
    discrete = {"dqn": "greedy", "bc": "categorical"}.get(agent["algorithm"], "")
    sizes = {name: agent[name] for name in ("memory", "memory_layers", "memory_size", "head_depth")}
    kind = discrete if "discrete" in note["actions"] else "tanh-gaussian"
    about = {**note, **sizes, "distribution": kind}
    return PlainPolicy({name: np.asarray(array) for name, array in arrays.items()}, about)


def _encoder(encoder: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    if encoder.standardise is not None:
        arrays |= {"input_mean": encoder.standardise.mean, "input_std": encoder.standardise.std}
    if not hasattr(encoder, "blocks"):
        return arrays  # a Markov policy's has nothing to train
    arrays |= _layer("project", encoder.project, encoder.norm)
    for i, block in enumerate(encoder.blocks):
        memory = {
            "scale": block.norm.scale,
            "shift": block.norm.shift,
            **_memory(block.lru),
            "gate_weight": block.gate.weight,
            "gate_bias": block.gate.bias,
        }
        arrays |= {f"block{i}_{name}": array for name, array in memory.items()}
    if encoder.gate is not None:
        arrays["gate"] = encoder.gate
    return arrays


def _layer(name: str, linear: Any, norm: Any) -> dict[str, Any]:
    arrays = {
        "weight": linear.weight,
        "bias": linear.bias,
        "scale": norm.scale,
        "shift": norm.shift,
    }
    return {f"{name}_{part}": array for part, array in arrays.items()}


def _memory(lru: LRU) -> dict[str, Any]:
    """Of one LRU layer; in JAX, so that the decay, whose powers count, is rounded as there."""
    decay, b, c = lru.constants()
    return {
        "decay": jnp.stack([decay.real, decay.real]),
        "turn": jnp.stack([-decay.imag, decay.imag]),
        "b": b,
        "c": c,
        "d": lru.d,
    }


def _units(names: Sequence[str] | None) -> list[str | None] | None:
    """The unit at the end of each name, as in 'temperature [degC]' or 'speed (m/s)'."""
    if names is None:
        return None
    found = [re.search(r"\s[\[(]([^\[\]()]+)[\])]$", name) for name in names]
    return [match and match[1] for match in found]


def metadata(policy: PlainPolicy) -> dict[str, Any]:
    """What a reader of a file without our package needs to know: names, units, bounds."""
    about, arrays = policy.about, policy.arrays
    dataset, ranges = about.get("dataset") or {}, about.get("ranges") or {}
    recurrent = policy.layers > 0
    action = "number of the action, int64" if policy.discrete else "units of the plant, float32"
    shape = f"(batch, {policy.layers}, 2, {about['memory_size']})"
    names = about.get("column_names") or {}
    return {
        "format": "a step of a policy: inputs -> outputs",
        "inputs": {
            "observation": f"(batch, {about['state_size']}), units of the plant, float32",
            "reward": "(batch,), of the last action, units of the plant, float32",
            "start": "(batch,), bool: an episode starts here; memory is cleared, reward ignored",
            "last_action": f"the last output `action`: {action}",
            **({"memory": f"{shape}, float32, zeros at first"} if recurrent else {}),
        },
        "outputs": {
            "action": f"{'(batch,)' if policy.discrete else f'(batch, {policy.action_size})'}, "
            f"{action}",
            **({"next_memory": f"{shape}, float32: the next `memory`"} if recurrent else {}),
        },
        "task": about["task"],
        "environment": about["environment"],
        "dataset": dataset.get("name"),
        "dataset_hash": dataset.get("hash"),
        "state_size": about["state_size"],
        "actions": about["actions"],
        "units": "those of the plant, as in the data; a name's own is in its brackets",
        "observation_names": names.get("states"),
        "observation_units": _units(names.get("states")),
        "action_names": names.get("actions"),
        "action_units": _units(names.get("actions")),
        "reward_name": names.get("reward"),
        "horizon": about["horizon"],
        "reward_shift": about["reward_shift"],
        "observation_low": ranges.get("observation_low"),
        "observation_high": ranges.get("observation_high"),
        "input_mean": arrays["input_mean"].tolist() if "input_mean" in arrays else None,
        "input_std": arrays["input_std"].tolist() if "input_std" in arrays else None,
        "algorithm": about["agent"]["algorithm"],
        "memory": about["memory"],
        "neubay": about["provenance"].get("neubay", "unknown"),
    }
