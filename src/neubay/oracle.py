"""Imagination in the simulator itself: what the agent would learn if its worlds were right.

Nothing of it is offline learning: it tells which of the two limits a score, the worlds or the
agent, by taking the worlds' errors away (`--variant oracle`).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from neubay.config import WorldConfig
from neubay.data.dataset import Dataset
from neubay.errors import TaskError
from neubay.runs.provenance import provenance
from neubay.tasks.simulator import Simulator
from neubay.world import FittedWorld, World, fit_scaler
from neubay.world.model import Member
from neubay.world.training import member_sizes

CHECKED = 200
"""Recorded steps that the simulator is asked to repeat before it is believed."""
FARTHEST = 0.1
"""By how much it may be off in the median, in units of what a step changes."""


class Simulated(World):
    """A simulator in the place of the posterior: every member is the same, and none is unsure. Its
    networks stand for their number, and are never asked."""

    simulator: Simulator = eqx.field(static=True, kw_only=True)

    def select(self, member: Int[Array, " k"]) -> "Simulated":
        return self

    def uncertainty(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, " b"]:
        return jnp.zeros(len(state))

    def sample(
        self, state: Float[Array, "k s"], action: Float[Array, "k a"], keys: Key[Array, " k"]
    ) -> tuple[Float[Array, "k s"], Float[Array, " k"]]:
        """(s', r) of each rollout, asked of the simulator on the host."""
        shapes = (state, jax.ShapeDtypeStruct(state.shape[:1], jnp.float32))
        found: tuple[Array, Array] = jax.pure_callback(self.simulator.step, shapes, state, action)
        return found


def check_simulator(dataset: Dataset) -> None:
    """Refuse data whose task has no simulator that repeats what was recorded."""
    task = dataset.task
    if task.termination is None and dataset.tape.terminated.any():
        raise TaskError(
            f"task '{task.name}': the data has terminal states and no rule is known that tells them"
        )
    off = _median_error(Simulator(task), dataset)
    if not off <= FARTHEST:
        raise TaskError(
            f"{dataset.name}: {task.env_name} does not repeat what was recorded: a step is off by "
            f"{off:.2g} of what steps change, in the median. It is not the simulator of this data"
        )


def simulated_world(dataset: Dataset, config: WorldConfig, seed: int) -> FittedWorld:
    """The simulator of a dataset's task as a world; `check_simulator` tells whether it is one."""
    task, scaler = dataset.task, fit_scaler(dataset, "change")
    blank = config.model_copy(update={"width": 1, "depth": 1})
    keys = jax.random.split(jax.random.key(0), config.members)
    members = jax.vmap(lambda key: Member(*member_sizes(task), blank, key=key))(keys)
    world = Simulated(
        members, scaler, task.reward_only, config.quantifier, simulator=Simulator(task)
    )
    nothing = np.zeros(1, np.float32)
    return FittedWorld(
        world, nothing, np.zeros(1, int), nothing, [], 0.0, config, seed,
        dataset.name, dataset.hash, provenance(),
    )  # fmt: skip


def _median_error(simulator: Simulator, dataset: Dataset) -> float:
    """How far the simulator is off in recorded steps, in units of what a step changes."""
    known, scaler = dataset.world_rows, fit_scaler(dataset, "change")
    rows = known[np.unique(np.linspace(0, len(known) - 1, CHECKED).astype(np.int64))]
    here, after = dataset.take(rows), np.asarray(dataset.take(rows + 1).state)
    state, reward = simulator.step(np.asarray(here.state), np.asarray(here.action))
    errors = np.concatenate(
        [
            (state - after) / np.asarray(scaler.change_unit),
            ((reward - np.asarray(here.reward)) / np.asarray(scaler.reward_std))[:, None],
        ],
        axis=1,
    )
    return float(np.median(np.sqrt((errors**2).mean(axis=1)))) if len(rows) else math.nan
