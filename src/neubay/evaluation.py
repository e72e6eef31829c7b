"""Scoring a policy in the real environment: exactly E full episodes, each counted once.

No environment is stepped after its episode has ended and none is reset twice, so short episodes
weigh as much as long ones, whatever the vectorisation.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from neubay.agents import Agent, AgentState
from neubay.config import TrainConfig, known
from neubay.data.collect import Episodes, roll
from neubay.errors import TaskError
from neubay.imagination import ActingPolicy
from neubay.tape import AgentInput, Tape
from neubay.tasks import Task

Keep = Callable[[Agent, AgentState, int], None]
"""Is given the agent, its state and the step wherever it is evaluated, to keep it."""


class Evaluation(NamedTuple):
    """E episodes: raw returns (the task's reward shift undone) and lengths."""

    returns: Float[np.ndarray, " episodes"]
    discounted: Float[np.ndarray, " episodes"]
    """Discounted return of the shifted rewards: what the critic's Q at s_0 estimates."""
    lengths: Int[np.ndarray, " episodes"]
    scores: Float[np.ndarray, " episodes"] | None
    """Normalised score of each episode; none where the task has no reference."""
    opening: Tape
    """The first row of each episode, leaves (episodes, 1, ...), for the critic to judge."""

    def record(self) -> dict[str, Any]:
        """As plain numbers, for a metrics file."""
        return {
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "discounted_mean": float(self.discounted.mean()),
            "episodes": len(self.returns),
            "length_mean": float(self.lengths.mean()),
            "score": None if self.scores is None else float(self.scores.mean()),
            "score_std": None if self.scores is None else float(self.scores.std()),
            "returns": [round(float(value), 4) for value in self.returns],
        }


@eqx.filter_jit
def act(policy: ActingPolicy, memory: Any, inputs: AgentInput, key: Any, step: Any) -> Any:
    """One step of E episodes side by side: their memory and actions."""
    keys = jax.random.split(jax.random.fold_in(key, step), inputs.state.shape[0])
    return policy.act(memory, inputs, keys)


def play(task: Task, policy: ActingPolicy, *, episodes: int, seed: int) -> Episodes:
    """Run `policy` for exactly `episodes` episodes of the task's environment, side by side."""
    if task.make_env is None:
        raise TaskError(
            f"task '{task.name}' has no environment, so no policy can be scored in it; "
            "register the task with an environment, or use the posterior's own estimate"
        )
    with contextlib.ExitStack() as stack:
        environments = [
            stack.enter_context(contextlib.closing(task.make_env())) for _ in range(episodes)
        ]
        states = [env.reset(seed=seed + i)[0] for i, env in enumerate(environments)]
        key = jax.random.key(seed)
        return roll(
            task,
            lambda memory, inputs, step: act(policy, memory, inputs, key, np.int32(step)),
            policy.initial(episodes),
            environments,
            states,
        )


def evaluate(
    task: Task, policy: ActingPolicy, *, episodes: int, seed: int, gamma: float = 0.99
) -> Evaluation:
    """What each of `episodes` episodes of the policy earned."""
    played = play(task, policy, episodes=episodes, seed=seed)
    shifted = np.where(played.live, played.reward + task.reward_shift, 0.0)
    discount = np.array([gamma**step for step in range(len(shifted))])
    returns = np.cumsum(played.reward, axis=0)[-1]  # one after the other, as they were paid
    one = np.ones((episodes, 1), bool)
    opening = Tape(
        state=played.state[0][:, None],
        action=played.action[0][:, None],
        reward=np.zeros(one.shape, np.float32),
        terminated=~one,
        start=one,
        real=one,
    )
    return Evaluation(
        returns,
        np.cumsum(discount[:, None] * shifted, axis=0)[-1],
        played.length,
        task.score(returns),
        opening,
    )


def score(
    agent: Agent,
    state: AgentState,
    task: Task,
    config: TrainConfig,
    step: int,
    keep: Keep | None = None,
) -> dict[str, Any] | None:
    """Keep the policy, and evaluate it, deterministic, in the task's environment, if it has one.

    `q_start` is what the critic expects of these very episodes, `q_gap` by how much that exceeds
    what they pay, both discounted; the critic's value includes the entropy bonus.
    """
    if keep is not None:
        keep(agent, state, step)
    if task.make_env is None:
        return None
    result = evaluate(
        task,
        agent.policy(state, deterministic=True),
        episodes=config.evaluation.episodes,
        seed=config.seed,
        gamma=known(config.agent.gamma),
    )
    record = result.record()
    expected = float(agent.values(state, result.opening).mean())
    gap = {"q_start": expected, "q_gap": expected - record["discounted_mean"]}
    return {"kind": "evaluation", "step": step, **record, **gap}
