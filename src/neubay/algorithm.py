"""Algorithm 1: from a dataset and a posterior over worlds to a policy.

train the ensemble on D until convergence
while gradient steps remain:
    for k = 1 .. K:  a member m_theta, a history h_t ~ D;  B <- B + Rollout(h_t, m_theta, pi)
    for g = 1 .. G:  one gradient step on a tape of trajectories from B
"""

import dataclasses
import math
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np

from neubay import agents
from neubay.agents import Agent, AgentState
from neubay.agents.divergence import refuse_divergence
from neubay.config import TrainConfig, known
from neubay.data.dataset import Dataset
from neubay.evaluation import Keep, score
from neubay.experience import Imagined, batch_shape, constants
from neubay.replay import Replay
from neubay.runs.checkpoints import SLICE, Checkpoint, Checkpoints, fill
from neubay.runs.files import arrays_of
from neubay.runs.tracking import Tracker, clock
from neubay.world import FittedWorld

UPDATES_PER_CALL, ROWS_PER_CALL = 50, 50 * 2048
"""Gradient steps, and rows, of one device call: enough to hide its overhead, few enough to stop."""
RENAMED = {"q_real": "q_data"}  # the paper's word for the critic's value on real rows


class Trained(NamedTuple):
    """What training leaves: the agent and its state, the last numbers, the time spent."""

    agent: Agent
    state: AgentState
    evaluation: dict[str, Any] | None
    metrics: dict[str, Any]
    seconds: dict[str, float]


def train_agent(
    dataset: Dataset,
    fitted: FittedWorld,
    config: TrainConfig,
    track: Tracker,
    checkpoints: Checkpoints,
    keep: Keep | None = None,
    update: agents.Update = agents.update,
) -> Trained:
    """The while-loop of Algorithm 1.
    A turn of the loop gathers experience, or makes some of the gradient steps that are due for it;
    between two turns the training can be stopped and resumed.
    """
    task, seed, steps = dataset.task, config.seed, known(config.agent.steps)
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
    experience = Imagined(dataset, fitted, config)
    shape, every = batch_shape(task, config), max(steps // config.evaluation.evaluations, 1)
    most = max(min(UPDATES_PER_CALL, ROWS_PER_CALL // shape.size), 1)
    begun = agent.init(jax.random.key(seed), constants(dataset, config.agent))
    state, at = resume(begun, experience.replay, steps, checkpoints)
    state = state if at.iteration else experience.warm_start(agent, state, shape)
    while at.step < steps:
        if at.due < 1:
            with clock(at.seconds, "imagination"):
                transitions, at.gathered = experience.gather(agent, state, at.iteration)
            at.iteration += 1
            at.due += math.ceil(transitions * config.agent.updates_per_row)
        else:
            iteration, count = at.iteration - 1, min(most, steps - at.step)
            rng = np.random.default_rng([seed, iteration, at.step])
            with clock(at.seconds, "sampling"):
                tapes = experience.sample(rng, count, shape)
            with clock(at.seconds, "updates"):
                state, losses = update(agent, state, tapes)
                numbers = {RENAMED.get(name, name): float(value) for name, value in losses.items()}
            before, at.step, at.due = at.step, at.step + count, at.due - count
            about = {"kind": "train", "step": at.step, "iteration": iteration}
            at.metrics = about | numbers | at.gathered
            track(at.metrics)
            refuse_divergence(numbers, at.step)
            if at.step // every > before // every or at.step == steps:
                with clock(at.seconds, "evaluation"):
                    at.evaluation = score(agent, state, task, config, at.step, keep)
                if at.evaluation is not None:
                    track(at.evaluation)
        pause(state, experience.replay, at, steps, checkpoints)
    return Trained(agent, state, at.evaluation, at.metrics, at.seconds)


@dataclasses.dataclass
class Position:
    """Where Algorithm 1 is between two turns, beside agent and replay.

    Random numbers need no place in it: they follow from seed, iteration and step, and the agent
    has a key of its own.
    """

    step: int = 0  # gradient steps done
    iteration: int = 0  # times that experience was gathered
    due: int = 0  # gradient steps still to make for the transitions gathered
    gathered: dict[str, Any] = dataclasses.field(default_factory=dict)  # what was last gathered
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)  # the last row of training
    evaluation: dict[str, Any] | None = None  # the last one
    best: float = -math.inf  # the highest mean return so far
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # wall time per stage


def resume(
    state: AgentState, replay: Replay | None, steps: int, checkpoints: Checkpoints
) -> tuple[AgentState, Position]:
    """State and position of the last checkpoint, its replay loaded; or else of the start."""

    def use(checkpoint: Checkpoint) -> tuple[AgentState, Position]:
        slices, at = checkpoint.slices(), Position(**checkpoint.note)
        resumed = fill(state, next(slices))
        if replay is not None and at.step < steps:
            replay.load(slices)
        return resumed, at

    resumed = checkpoints.resume(use)
    if resumed is None:
        return state, Position()
    checkpoints.tell(f"resuming from step {resumed[1].step:,} of {steps:,}")
    return resumed


def pause(
    state: AgentState, replay: Replay | None, at: Position, steps: int, checkpoints: Checkpoints
) -> None:
    """Keep the agent if it scored best, and a checkpoint if one is due; the last has no replay."""
    ended, scored = at.step >= steps, at.evaluation or {"step": None}
    with clock(at.seconds, "checkpoints"):
        if scored["step"] == at.step and scored["return_mean"] > at.best:
            at.best = scored["return_mean"]
            checkpoints.keep_best(f"{at.step:09d}", (dataclasses.asdict(at), [arrays_of(state)]))
        checkpoints.pause(
            f"{at.step:09d}-{at.iteration:07d}",
            lambda: (
                dataclasses.asdict(at),
                chain([arrays_of(state)], () if ended or replay is None else replay.slices(SLICE)),
            ),
            last=ended,
        )
