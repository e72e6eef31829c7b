"""Where the tapes of a gradient step come from: imagination by way of the replay."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neubay import imagination
from neubay.agents import Agent, AgentState, Standardiser
from neubay.config import AgentConfig, RolloutConfig, TrainConfig, known
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, WorldError
from neubay.imagination import Rules
from neubay.replay import BatchShape, Replay, discounted_returns, sample_data
from neubay.runs.signals import stop_if_signalled
from neubay.tape import Tape, tape_length
from neubay.tasks import Task
from neubay.world import FittedWorld, ended_by, fit_scaler

WARM = 1 << 40
"""In place of an iteration in the seeds of a warm start, which no training reaches."""
WARM_CALL = 50
"""Gradient steps of one device call of a warm start."""


def rollout_rules(config: TrainConfig, dataset: Dataset, fitted: FittedWorld) -> Rules:
    """Algorithm 2's stopping criteria, with U(zeta) taken from the world's own data."""
    zeta, termination = config.rollout.cut, ended_by(dataset, config.world)
    if termination == "learned" and fitted.world.heads is None:
        raise WorldError(
            f"{dataset.name}: what ends an episode is to be learned, and this world did not learn "
            "it; train one with 'neubay world --termination learned', or let imagined episodes "
            "run on: --world.termination none"
        )
    return Rules.of(
        config.rollout,
        dataset.task,
        threshold=math.inf if zeta is None else fitted.threshold(zeta),
        mean_uncertainty=fitted.mean_uncertainty,
        termination=termination,
    )


def batch_shape(task: Task, config: TrainConfig) -> BatchShape:
    """The rows of a training batch: windows of many trajectories, or whole trajectories end to end
    on a tape that holds any of them, whatever its length."""
    window = config.agent.window
    if window is not None:
        tape = config.agent.tape or tape_length(task.horizon)
        rows = config.agent.burn_in + window + 1  # the last one is a successor only
        return BatchShape(rows, max(tape // window, 1), config.agent.burn_in)
    rows = config.agent.tape or tape_length(task.horizon)
    if rows <= task.horizon:
        raise ConfigError(
            f"agent.tape is {rows}, but an episode of '{task.name}' has up to "
            f"T = {task.horizon} steps, and a tape must hold it whole; set it above, or to None"
        )
    return BatchShape(rows)


def constants(dataset: Dataset, config: AgentConfig) -> Standardiser | None:
    """What the agent's inputs are standardised by, if they are: states and rewards by the data's
    mean and std; actions are in [-1, 1] already."""
    if not config.standardise:
        return None
    scaler = fit_scaler(dataset)
    nothing, one = jnp.zeros_like(scaler.action_mean), jnp.ones_like(scaler.action_std)
    return Standardiser(
        mean=jnp.concatenate([scaler.state_mean, nothing, scaler.reward_mean[None]]),
        std=jnp.concatenate([scaler.state_std, one, scaler.reward_std[None]]),
    )


def initial_share(config: RolloutConfig) -> float:
    """The share of rollouts from s_0."""
    return 1.0 if config.start == "initial" else config.initial_share


class Imagined:
    """Experience as the paper has it: real histories, continued in imagination."""

    def __init__(self, dataset: Dataset, fitted: FittedWorld, config: TrainConfig) -> None:
        self.dataset, self.fitted, self.config = dataset, fitted, config
        self.rules = rollout_rules(config, dataset, fitted)
        self.replay = Replay(dataset, capacity=config.agent.buffer, penalised=self.rules.penalised)

    def gather(self, agent: Agent, state: AgentState, iteration: int) -> tuple[int, dict[str, Any]]:
        """Add K rollouts to the replay. Returns the transitions added, real and imagined, and the
        rollouts' record."""
        rollout, seed = self.config.rollout, self.config.seed
        rng = np.random.default_rng([seed, iteration])
        prefix = imagination.draw_histories(
            rng, self.dataset.histories, rollout.rollouts, initial_share(rollout)
        )
        rollouts = imagination.imagine(
            self.fitted.world,
            agent.behaviour(state),
            imagination.branch(self.dataset, prefix),
            imagination.draw_members(rng, rollout.rollouts, self.fitted.world.size),
            self.rules,
            jax.random.fold_in(jax.random.key(seed), iteration),
        )
        self.replay.add(prefix, rollouts)
        return int(np.sum(prefix.length) + np.sum(rollouts.length)), rollouts.record()

    def sample(self, rng: np.random.Generator, batches: int, shape: BatchShape) -> Tape:
        """Batches of trajectories from the replay, or of windows from replay and data."""
        if shape.slots is None:
            return self.replay.sample(rng, batches, shape.rows)
        return self.replay.sample_windows(rng, batches, shape, known(self.config.agent.kappa))

    def warm_start(self, agent: Agent, state: AgentState, shape: BatchShape) -> AgentState:
        """Begin from the data: the actor as its clone, the critic with its discounted returns.

        It is short and not resumed: a training that is interrupted here begins it anew.
        """
        config = self.config
        if not config.agent.warm_start:
            return state
        returns = discounted_returns(self.dataset, known(config.agent.gamma))
        state = agent.warm(state)
        for step in range(0, config.agent.warm_start, WARM_CALL):
            rng = np.random.default_rng([config.seed, WARM, step])
            count = min(WARM_CALL, config.agent.warm_start - step)
            tapes = sample_data(self.dataset, rng, count, shape, returns)
            state, _ = agent.warm_update(state, tapes)
            stop_if_signalled()
        return agent.warmed(state)
