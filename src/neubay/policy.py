"""A trained policy to act with: explicit state in, action and state out; saved as one file.

    policy = neubay.load_policy("runs/pendulum-neubay-seed0/policy.npz")
    action, state = policy.predict(observation)                    # the first step
    action, state = policy.predict(observation, state, reward=r)   # every later one

The reward is part of the history that a policy adapts to, so every later step needs it.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PyTree

from neubay import agents
from neubay.config import AgentConfig, validated
from neubay.errors import NeubayError, RunError
from neubay.runs.files import load_arrays, read_note, save_arrays
from neubay.runs.provenance import provenance
from neubay.runs.rundir import POLICY_FILE
from neubay.tape import AgentInput
from neubay.tasks import ContinuousActions, DiscreteActions, Task

LAYOUT = 1
"""Version of the file; raised when a reader of the old one could not read the new one."""


class PolicyState(NamedTuple):
    """What the policy carries between steps, for a batch of episodes."""

    memory: PyTree
    last_action: Float[np.ndarray, "batch a"]
    steps: int


class Policy:
    """Acts in the units of the environment, on one observation or on a batch of them."""

    def __init__(
        self, agent: agents.Agent, state: agents.AgentState, task: Task, config: AgentConfig
    ) -> None:
        self.task, self.config = task, config
        self.mode = agent.policy(state, deterministic=True)
        """The greedy policy, as imagination and evaluation take it."""
        self._sample = agent.policy(state, deterministic=False)

    def predict(
        self,
        observation: np.ndarray,
        state: PolicyState | None = None,
        episode_start: bool | Bool[np.ndarray, " batch"] | None = None,
        deterministic: bool = True,
        *,
        reward: float | Float[np.ndarray, " batch"] | None = None,
        seed: int = 0,
    ) -> tuple[np.ndarray | np.integer, PolicyState]:
        """The action at `observation`, and the state to pass in next time.

        Args:
            observation: (s,) or (batch, s).
            state: what the last call returned; none at the beginning.
            episode_start: where an episode starts; memory is cleared there. By default everywhere
                when there is no state, and nowhere otherwise.
            deterministic: the mode of the policy, or a sample of it.
            reward: the reward of the last action; needed where no episode starts.
            seed: decides, with the step, the samples of a stochastic policy.
        """
        states = np.atleast_2d(np.asarray(observation, np.float32))
        if states.shape[1:] != (self.task.state_size,):
            raise NeubayError(
                f"an observation of '{self.task.name}' has {self.task.state_size} values, "
                f"got shape {np.shape(observation)}"
            )
        _refuse_nonfinite("the observation", states)
        batch = len(states)
        if episode_start is None:
            episode_start = state is None
        start = np.asarray(_one_or_each("episode_start", episode_start, batch), bool)
        if state is None:
            nothing = np.zeros((batch, self.task.actions.size), np.float32)
            state, start = PolicyState(self.mode.initial(batch), nothing, 0), np.ones(batch, bool)
        if len(state.last_action) != batch:
            raise NeubayError(
                f"got {batch} observations with the state of {len(state.last_action)} episodes"
            )
        if reward is None and not start.all():
            raise NeubayError(
                "the reward of the last step is part of the history: "
                "pass reward=... wherever no episode starts"
            )
        paid = _one_or_each("reward", 0.0 if reward is None else reward, batch)
        _refuse_nonfinite("the reward", paid[~start])
        shifted = paid + self.task.reward_shift
        inputs = AgentInput(
            state=states,
            last_action=np.where(start[:, None], np.float32(0), state.last_action),
            last_reward=np.where(start, 0, shifted).astype(np.float32),
            start=start,
        )
        key = jax.random.fold_in(jax.random.key(seed), state.steps)
        policy = self.mode if deterministic else self._sample
        memory, action = _act(policy, state.memory, inputs, jax.random.split(key, batch))
        unit = np.asarray(action)
        commands = self.task.from_unit(unit)
        after = PolicyState(memory, unit, state.steps + 1)
        return (commands[0] if np.ndim(observation) == 1 else commands), after

    def save(self, path: str | Path) -> None:
        """Write weights, sizes and settings to one .npz file."""
        actions = self.task.actions
        bounds = (
            {"discrete": actions.n}
            if isinstance(actions, DiscreteActions)
            else {"low": actions.low.tolist(), "high": actions.high.tolist()}
        )
        about = {
            "layout": LAYOUT,
            "task": self.task.name,
            "environment": self.task.env_name,
            "state_size": self.task.state_size,
            "actions": bounds,
            "horizon": self.task.horizon,
            "reward_shift": self.task.reward_shift,
            "agent": self.config.model_dump(),
            "provenance": provenance(),
        }
        save_arrays(Path(path), eqx.filter(self.mode, eqx.is_array), about)


def _one_or_each(name: str, value: Any, batch: int) -> np.ndarray:
    """A value for every episode, from one for all of them or one each."""
    values = np.asarray(value)
    if values.shape not in ((), (batch,)):
        raise NeubayError(
            f"{name} has shape {values.shape}: expected one value, or one for each of the {batch} "
            "observations"
        )
    return np.broadcast_to(values, (batch,))


def _refuse_nonfinite(what: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise NeubayError(f"{what} has a value that is not finite; the memory would never lose it")


@eqx.filter_jit
def _act(policy: Any, memory: PyTree, inputs: AgentInput, keys: Any) -> Any:
    return policy.act(memory, inputs, keys)


def load_policy(path: str | Path) -> Policy:
    """Read what `Policy.save` wrote, or the policy of a run directory. The task need not be
    registered: the file knows its sizes."""
    path = Path(path)
    path = path / POLICY_FILE if path.is_dir() else path
    about = read_note(path)
    if about.get("layout") != LAYOUT:
        raise RunError(
            f"{path}: a policy of layout {about.get('layout')}, this version reads {LAYOUT}"
        )
    bounds = about["actions"]
    task = Task(
        name=about["task"],
        state_size=about["state_size"],
        actions=DiscreteActions(bounds["discrete"])
        if "discrete" in bounds
        else ContinuousActions(np.asarray(bounds["low"]), np.asarray(bounds["high"])),
        horizon=about["horizon"],
        env_name=about["environment"],
        reward_shift=about["reward_shift"],
    )
    config = validated(AgentConfig, about["agent"], where=str(path))
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config)
    state = agent.init(jax.random.key(0))
    policy = Policy(agent, state, task, config)
    arrays, static = eqx.partition(policy.mode, eqx.is_array)
    loaded, _ = load_arrays(path, arrays)
    policy.mode = eqx.combine(jax.tree.map(jnp.asarray, loaded), static)
    policy._sample = dataclasses.replace(policy.mode, deterministic=False)
    return policy
