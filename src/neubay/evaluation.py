"""Scoring a policy in the real environment: exactly E full episodes, each counted once.

No environment is stepped after its episode has ended and none is reset twice, so short episodes
weigh as much as long ones, whatever the vectorisation.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.agents import Agent, AgentState
from neubay.config import TrainConfig, known
from neubay.errors import TaskError
from neubay.tape import AgentInput, Tape
from neubay.tasks import Task

Keep = Callable[[Agent, AgentState, int], None]
"""Is given the agent, its state and the step wherever it is evaluated, to keep it."""


@runtime_checkable
class ActingPolicy(Protocol):
    """A policy as a function of explicit memory; every leaf of it has leading axis E."""

    def initial(self, batch: int) -> Any: ...

    def act(self, memory: Any, inputs: AgentInput, keys: Any) -> tuple[Any, Any]: ...


class Evaluation(NamedTuple):
    """E episodes: raw returns (the task's reward shift undone) and lengths."""

    returns: Float[np.ndarray, " episodes"]
    discounted: Float[np.ndarray, " episodes"]
    """Discounted return of the shifted rewards: what the critic's Q at s_0 estimates."""
    lengths: Int[np.ndarray, " episodes"]
    scores: Float[np.ndarray, " episodes"] | None
    """Normalised score of each episode; none where the task has no reference."""
    opening: Tape
    """The first row of each episode, leaves (episodes, 1, ...)."""

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


class Episodes(NamedTuple):
    """E episodes as they were played, side by side; a shorter one repeats its last state."""

    state: Float[np.ndarray, "rows episodes s"]  # s_0 .. s_L of the longest
    action: Float[np.ndarray, "steps episodes a"]  # in [-1, 1] or one-hot, as policies act
    reward: Float[np.ndarray, "steps episodes"]  # raw, in float64; zero beyond an episode's end
    length: Int[np.ndarray, " episodes"]

    @property
    def live(self) -> Bool[np.ndarray, "steps episodes"]:
        """Which steps happened."""
        return np.arange(len(self.reward))[:, None] < self.length


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
        return _roll(task, policy, environments, states, seed)


def evaluate(
    task: Task, policy: ActingPolicy, *, episodes: int, seed: int, gamma: float = 0.99
) -> Evaluation:
    """What each of `episodes` episodes of the policy earned."""
    played = play(task, policy, episodes=episodes, seed=seed)
    shifted = np.where(played.live, played.reward + task.reward_shift, 0.0)
    discount = np.array([gamma**step for step in range(len(shifted))])
    returns = np.cumsum(played.reward, axis=0)[-1]  # one after the other, as they were paid
    return Evaluation(
        returns,
        np.cumsum(discount[:, None] * shifted, axis=0)[-1],
        played.length,
        task.score(returns),
        _opening(played.state[0], played.action[0]),
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


def _roll(
    task: Task, policy: ActingPolicy, environments: list, states: list, seed: int
) -> Episodes:
    count = len(environments)
    key = jax.random.key(seed)
    memory = policy.initial(count)
    state = np.stack(states).astype(np.float32).reshape(count, -1)
    last_action = np.zeros((count, task.actions.size), np.float32)
    last_reward = np.zeros(count, np.float32)
    visited, actions, rewards = [state.copy()], [], []
    lengths = np.zeros(count, np.int64)
    live = np.ones(count, bool)
    for step in range(task.horizon):
        start = np.full(count, step == 0)
        inputs = AgentInput(state, last_action, last_reward, start)
        memory, action = act(policy, memory, inputs, key, np.int32(step))
        last_action, paid = np.array(action), np.zeros(count)
        commands = task.from_unit(last_action)
        for i in np.flatnonzero(live):
            observation, reward, terminated, truncated, _ = environments[i].step(commands[i])
            paid[i] = float(reward)
            state[i] = np.asarray(observation, np.float32).reshape(-1)
            last_reward[i] = paid[i] + task.reward_shift
            lengths[i] = step + 1
            live[i] = not (terminated or truncated)
        visited.append(state.copy())
        actions.append(last_action)
        rewards.append(paid)
        if not live.any():
            break
    return Episodes(np.stack(visited), np.stack(actions), np.stack(rewards), lengths)


def _opening(
    state: Float[np.ndarray, "episodes s"], action: Float[np.ndarray, "episodes a"]
) -> Tape:
    """(s_0, a_0) of every episode, as tapes of one row for the critic to judge."""
    one = np.ones((len(state), 1), bool)
    return Tape(
        state=state[:, None],
        action=action[:, None],
        reward=np.zeros(one.shape, np.float32),
        terminated=~one,
        start=one,
        real=one,
    )
