"""Algorithm 1: from a dataset and a posterior over worlds to a policy.

train the ensemble on D until convergence
while gradient steps remain:
    for k = 1 .. K:  a member m_theta, a history h_t ~ D;  B <- B + Rollout(h_t, m_theta, pi)
    for g = 1 .. G:  one gradient step on a tape of trajectories from B
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from neubay import agents
from neubay.agents import Agent, AgentState
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.evaluation import evaluate
from neubay.experience import Imagined, Recorded
from neubay.tasks import Task
from neubay.tracking import Tracker
from neubay.world import FittedWorld

UPDATES_PER_CALL = 50
"""Gradient steps of one device call: enough to hide its overhead, few enough to show progress."""

RENAMED = {"q_real": "q_data"}
"""The paper's word for the critic's value on real rows: Q on the data."""


@dataclass
class Clock:
    """Wall seconds per stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begun
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


class Trained(NamedTuple):
    """What training leaves: the agent and its state, the last numbers, the time spent."""

    agent: Agent
    state: AgentState
    evaluation: dict[str, Any] | None
    metrics: dict[str, Any]
    seconds: dict[str, float]


def train_agent(
    dataset: Dataset, fitted: FittedWorld | None, config: TrainConfig, track: Tracker
) -> Trained:
    """The while-loop of Algorithm 1. Behaviour cloning needs no world and imagines nothing."""
    task, seed, steps = dataset.task, config.seed, config.agent.steps
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
    state = agent.init(jax.random.key(seed))
    experience = Imagined(dataset, fitted, config) if fitted else Recorded(dataset, config)
    rows_of_tape = tape_rows(task, config)
    every = max(steps // config.evaluation.evaluations, 1)
    clock, step, iteration, due = Clock(), 0, 0, 0.0
    evaluation: dict[str, Any] | None = None
    metrics: dict[str, Any] = {}
    while step < steps:
        with clock("imagination"):
            rows, record = experience.gather(agent, state, iteration)
        due += rows * config.agent.updates_per_row
        while due >= 1 and step < steps:
            count = min(UPDATES_PER_CALL, steps - step)
            with clock("sampling"):
                tapes = experience.sample(
                    np.random.default_rng([seed, iteration, step]), count, rows_of_tape
                )
            with clock("updates"):
                state, losses = agent.update(state, tapes)
                numbers = {RENAMED.get(name, name): float(value) for name, value in losses.items()}
            before, step, due = step, step + count, due - count
            metrics = {"kind": "train", "step": step, "iteration": iteration} | numbers | record
            track(metrics)
            if step // every > before // every or step == steps:
                with clock("evaluation"):
                    evaluation = score(agent, state, dataset, config, step)
                if evaluation is not None:
                    track(evaluation)
        iteration += 1
    return Trained(agent, state, evaluation, metrics, clock.seconds)


def tape_rows(task: Task, config: TrainConfig) -> int:
    """Rows of a training batch: one that holds a whole trajectory, whatever its length."""
    if config.agent.tape is None:
        return 512 * math.ceil((task.horizon + 1) / 512)
    if config.agent.tape <= task.horizon:
        raise ConfigError(
            f"agent.tape is {config.agent.tape}, but an episode of '{task.name}' has up to "
            f"T = {task.horizon} steps, and a tape must hold it whole; set it above, or to None"
        )
    return config.agent.tape


def score(
    agent: Agent, state: AgentState, dataset: Dataset, config: TrainConfig, step: int
) -> dict[str, Any] | None:
    """Evaluate the deterministic policy in the task's environment, if it has one.

    `q_start` is what the critic expects of these very episodes, `q_gap` by how much that exceeds
    what they pay, both discounted; the critic's value includes the entropy bonus.
    """
    if dataset.task.make_env is None:
        return None
    result = evaluate(
        dataset.task,
        agent.policy(state, deterministic=True),
        episodes=config.evaluation.episodes,
        seed=config.seed,
        gamma=config.agent.gamma,
    )
    record = result.record()
    expected = float(agent.values(state, result.opening).mean())
    gap = {"q_start": expected, "q_gap": expected - record["discounted_mean"]}
    return {"kind": "evaluation", "step": step, **record, **gap}
