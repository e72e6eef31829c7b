"""A policy as StableHLO: one step, compiled by whatever reads it, with JAX or without.

    exported = jax.export.deserialize(Path("policy.stablehlo").read_bytes())
    action, memory = exported.call(observation, reward, start, last_action, memory)

What reads it needs jax and flatbuffers, and not our package. A Markov policy has no memory: neither
as an argument nor in the result, which is the action alone.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from neubay.agents.memory import Complex, EncoderMemory
from neubay.agents.networks import RecurrentPolicy
from neubay.errors import NeubayError
from neubay.export.plain import PlainPolicy
from neubay.tape import AgentInput

PLATFORMS = ("cpu", "cuda", "tpu")


def write_stablehlo(mode: RecurrentPolicy, policy: PlainPolicy, path: Path) -> None:
    """Write one step of the policy for every platform; the batch has any size."""
    (batch,) = jax.export.symbolic_shape("batch")
    action = (
        jax.ShapeDtypeStruct((batch,), jnp.int32)
        if policy.discrete
        else jax.ShapeDtypeStruct((batch, policy.action_size), jnp.float32)
    )
    arguments = [
        jax.ShapeDtypeStruct((batch, policy.about["state_size"]), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.bool_),
        action,
    ]
    if policy.layers:
        shape = (batch, policy.layers, 2, policy.about["memory_size"])
        arguments.append(jax.ShapeDtypeStruct(shape, jnp.float32))
    exported = jax.export.export(jax.jit(_step_of(mode, policy)), platforms=PLATFORMS)(*arguments)
    try:
        path.write_bytes(exported.serialize())
    except ImportError:
        raise NeubayError(
            "StableHLO needs the package flatbuffers: pip install 'neubay[export]'"
        ) from None


def _step_of(mode: RecurrentPolicy, policy: PlainPolicy) -> Any:
    """One step of the policy as a function of arrays in the units of the plant."""
    half, middle = (0.0, 0.0) if policy.discrete else policy.scale

    def step(
        observation: Float[Array, "batch s"],
        reward: Float[Array, " batch"],
        start: Bool[Array, " batch"],
        last_action: Array,
        memory: Float[Array, "batch layers 2 units"] | None = None,
    ) -> Any:
        unit = (
            jax.nn.one_hot(last_action, policy.action_size)
            if policy.discrete
            else (last_action - middle) / half
        )
        inputs = AgentInput(
            state=observation,
            last_action=jnp.where(start[:, None], 0.0, unit),
            last_reward=jnp.where(start, 0.0, reward + np.float32(policy.about["reward_shift"])),
            start=start,
        )
        keys = jnp.broadcast_to(jax.random.key(0), start.shape)  # of which the mode draws nothing
        after, chosen = mode.act(_parted(memory), inputs, keys)
        action = chosen.argmax(axis=-1) if policy.discrete else middle + chosen * half
        return action if memory is None else (action, _joined(after))

    return step


def _parted(memory: Float[Array, "batch layers 2 units"] | None) -> EncoderMemory:
    if memory is None:
        return ()
    return tuple(Complex(memory[:, i, 0], memory[:, i, 1]) for i in range(memory.shape[1]))


def _joined(memory: EncoderMemory) -> Float[Array, "batch layers 2 units"]:
    return jnp.stack([jnp.stack(layer, axis=1) for layer in memory], axis=1)
