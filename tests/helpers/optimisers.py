"""Copies of an agent's state, and reading and setting the counters inside an optimiser's."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from neubay.agents.learning import copied
from neubay.runs.files import arrays_of, filled


def copy_of(state: Any) -> Any:
    """An agent's state once more, its key too, as an update gives up what it is given. Without
    a program for every shape, as `jnp.copy` needs."""
    return filled(state, arrays_of(state))


def steps_made(optimiser: optax.OptState) -> int:
    """Steps that Adam has counted, of every part alike."""
    counts = optax.tree.get_all_with_path(optimiser, "count", filtering=_of("ScaleByAdamState"))
    (steps,) = {int(count) for _, count in counts}
    return steps


def first_moments(optimiser: optax.OptState) -> Any:
    """Adam's first moments, those of the parts put together in the network's structure."""

    def masked(leaf: Any) -> bool:
        return isinstance(leaf, optax.MaskedNode)

    moments = [moment for _, moment in optax.tree.get_all_with_path(optimiser, "mu")]
    whole = moments[0]
    for other in moments[1:]:
        whole = jax.tree.map(lambda a, b: b if masked(a) else a, whole, other, is_leaf=masked)
    return whole


def with_rates_at(optimiser: optax.OptState, step: int) -> optax.OptState:
    """The learning rates as they are at `step`; Adam is left as it was."""
    rates = optax.tree.get_all_with_path(optimiser, "count", filtering=_of("ScaleByScheduleState"))
    if not rates:
        return optimiser
    moved = optax.tree.set(optimiser, _of("ScaleByScheduleState"), count=jnp.int32(step))
    return copied(moved)  # an update gives up every array, so none may be shared


def _of(state: str) -> Any:
    return lambda path, value: getattr(path[-1], "tuple_name", None) == state
