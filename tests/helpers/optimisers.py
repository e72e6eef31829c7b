"""Reading and setting the counters inside an optimiser's state."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def steps_made(optimiser: optax.OptState) -> int:
    """Steps that Adam has counted."""
    return int(optax.tree.get(optimiser, "count", filtering=_of("ScaleByAdamState")))


def with_rates_at(optimiser: optax.OptState, step: int) -> optax.OptState:
    """The learning rates as they are at `step`; Adam is left as it was."""
    rates = optax.tree.get_all_with_path(optimiser, "count", filtering=_of("ScaleByScheduleState"))
    if not rates:
        return optimiser
    moved = optax.tree.set(optimiser, _of("ScaleByScheduleState"), count=jnp.int32(step))
    return jax.tree.map(jnp.copy, moved)  # an update gives up every array, so none may be shared


def _of(state: str) -> Any:
    return lambda path, value: getattr(path[-1], "tuple_name", None) == state
