"""Where the tapes of a gradient step come from: imagination by way of the replay, or the data."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from neubay import imagination
from neubay.agents import Agent, AgentState
from neubay.config import RolloutConfig, TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.imagination import Rules
from neubay.replay import Replay, sample_data
from neubay.tape import Tape, tape_length
from neubay.tasks import Task
from neubay.world import FittedWorld


def rollout_rules(config: RolloutConfig, task: Task, fitted: FittedWorld) -> Rules:
    """Algorithm 2's stopping criteria, with U(zeta) taken from the world's own data."""
    return Rules.of(
        config,
        task,
        threshold=math.inf if config.zeta is None else fitted.threshold(config.zeta),
        mean_uncertainty=fitted.mean_uncertainty,
    )


def tape_rows(task: Task, config: TrainConfig) -> int:
    """Rows of a training tape, which holds a whole trajectory, whatever its length."""
    if config.agent.tape is None:
        return tape_length(task.horizon)
    if config.agent.tape <= task.horizon:
        raise ConfigError(
            f"agent.tape is {config.agent.tape}, but an episode of '{task.name}' has up to "
            f"T = {task.horizon} steps, and a tape must hold it whole; set it above, or to None"
        )
    return config.agent.tape


class Imagined:
    """Experience as the paper has it: real histories, continued in imagination."""

    def __init__(self, dataset: Dataset, fitted: FittedWorld, config: TrainConfig) -> None:
        self.dataset, self.fitted, self.config = dataset, fitted, config
        self.rules = rollout_rules(config.rollout, dataset.task, fitted)
        self.replay = Replay(dataset, capacity=config.agent.buffer, penalised=self.rules.penalised)

    def gather(self, agent: Agent, state: AgentState, iteration: int) -> tuple[int, dict[str, Any]]:
        """Add K rollouts to the replay. Returns the rows added, and the rollouts' record."""
        rollout, seed = self.config.rollout, self.config.seed
        rng = np.random.default_rng([seed, iteration])
        prefix = imagination.draw_histories(
            rng, self.dataset.histories, rollout.rollouts, rollout.start
        )
        rollouts = imagination.imagine(
            self.fitted.world,
            agent.policy(state, deterministic=False),
            imagination.branch(self.dataset, prefix),
            imagination.draw_members(rng, rollout.rollouts, self.fitted.world.size),
            self.rules,
            jax.random.fold_in(jax.random.key(seed), iteration),
        )
        self.replay.add(prefix, rollouts)
        return int(np.sum(prefix.length)) + len(rollouts.rows.state), rollouts.record()

    def sample(self, rng: np.random.Generator, batches: int, rows: int) -> Tape:
        """Tapes of whole trajectories from the replay."""
        return self.replay.sample(rng, batches, rows)

    def slices(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """All that was gathered and is still held, in slices of about `size` bytes."""
        return self.replay.slices(size)

    def load(self, slices: Iterable[dict[str, np.ndarray]]) -> None:
        """Restore what `slices` returned."""
        self.replay.load(slices)


class Recorded:
    """Experience for behaviour cloning: the data as it is."""

    def __init__(self, dataset: Dataset, config: TrainConfig) -> None:
        self.dataset, self.config = dataset, config

    def gather(self, agent: Agent, state: AgentState, iteration: int) -> tuple[int, dict[str, Any]]:
        """Nothing to gather: all gradient steps are due at once."""
        return math.ceil(self.config.agent.steps / self.config.agent.updates_per_row) + 1, {}

    def sample(self, rng: np.random.Generator, batches: int, rows: int) -> Tape:
        """Tapes of whole episodes from the data."""
        return sample_data(self.dataset, rng, batches, rows)

    def slices(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Nothing: the data is not part of a checkpoint."""
        return iter(())

    def load(self, slices: Iterable[dict[str, np.ndarray]]) -> None:
        """Nothing to restore."""
