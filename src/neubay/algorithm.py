"""Algorithm 1: from a dataset and a posterior over worlds to a policy.

train the ensemble on D until convergence
while gradient steps remain:
    for k = 1 .. K:  a member m_theta, a history h_t ~ D;  B <- B + Rollout(h_t, m_theta, pi)
    for g = 1 .. G:  one gradient step on a tape of trajectories from B
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from neubay import agents
from neubay.agents import Agent, AgentState
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError, TrainingError
from neubay.evaluation import evaluate
from neubay.experience import Imagined, Recorded
from neubay.runs.checkpoints import Checkpoints
from neubay.runs.tracking import Tracker
from neubay.tape import tape_length
from neubay.tasks import Task
from neubay.world import FittedWorld

UPDATES_PER_CALL = 50
"""Gradient steps of one device call: enough to hide its overhead, few enough to show progress."""

RENAMED = {"q_real": "q_data"}
"""The paper's word for the critic's value on real rows: Q on the data."""


class Trained(NamedTuple):
    """What training leaves: the agent and its state, the last numbers, the time spent."""

    agent: Agent
    state: AgentState
    evaluation: dict[str, Any] | None
    metrics: dict[str, Any]
    seconds: dict[str, float]


def train_agent(
    dataset: Dataset,
    fitted: FittedWorld | None,
    config: TrainConfig,
    track: Tracker,
    checkpoints: Checkpoints,
) -> Trained:
    """The while-loop of Algorithm 1. Behaviour cloning needs no world and imagines nothing.

    A turn of the loop gathers experience, or makes some of the gradient steps that are due for it;
    between two turns the training can be left and gone on with.
    """
    task, seed, steps = dataset.task, config.seed, config.agent.steps
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
    experience = Imagined(dataset, fitted, config) if fitted else Recorded(dataset, config)
    rows_of_tape = tape_rows(task, config)
    every = max(steps // config.evaluation.evaluations, 1)
    state, at = checkpoints.resume(agent.init(jax.random.key(seed)), experience, steps)
    while at.step < steps:
        if at.due < 1:
            with at.clock("imagination"):
                rows, at.gathered = experience.gather(agent, state, at.iteration)
            at.iteration, at.due = at.iteration + 1, at.due + rows * config.agent.updates_per_row
        else:
            iteration, count = at.iteration - 1, min(UPDATES_PER_CALL, steps - at.step)
            rng = np.random.default_rng([seed, iteration, at.step])
            with at.clock("sampling"):
                tapes = experience.sample(rng, count, rows_of_tape)
            with at.clock("updates"):
                state, losses = agent.update(state, tapes)
                numbers = {RENAMED.get(name, name): float(value) for name, value in losses.items()}
            before, at.step, at.due = at.step, at.step + count, at.due - count
            about = {"kind": "train", "step": at.step, "iteration": iteration}
            at.metrics = about | numbers | at.gathered
            track(at.metrics)
            refuse_divergence(numbers, at.step)
            if at.step // every > before // every or at.step == steps:
                with at.clock("evaluation"):
                    at.evaluation = score(agent, state, dataset, config, at.step)
                if at.evaluation is not None:
                    track(at.evaluation)
        checkpoints.pause(state, experience, at, steps)
    return Trained(agent, state, at.evaluation, at.metrics, at.seconds)


def refuse_divergence(numbers: dict[str, float], step: int) -> None:
    """Stop where a loss is not finite: nothing good comes after it."""
    diverged = [
        name
        for name, value in numbers.items()
        if not math.isfinite(value) and not name.startswith("q_")  # those lack rows at times
    ]
    if diverged:
        raise TrainingError(
            f"diverged at step {step:,}: not finite is {', '.join(diverged)}. The last checkpoint "
            "is from before and is kept; going on from it would end here again. The paper advises "
            "a smaller learning rate of the recurrent encoder (eta_phi, which it sweeps from 3e-7 "
            "to 1e-4: --agent.encoder-lr) or a smaller discount (--agent.gamma), in another --out"
        )


def tape_rows(task: Task, config: TrainConfig) -> int:
    """Rows of a training batch: one that holds a whole trajectory, whatever its length."""
    if config.agent.tape is None:
        return tape_length(task.horizon)
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
