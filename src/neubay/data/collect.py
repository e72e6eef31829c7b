"""Collection: roll a behaviour in a task's environment, deterministically for a seed.

Episodes run in waves of `_WAVE`, in step with each other, so that a behaviour acts for all of
them at once. An environment is not stepped after its episode has ended, and every episode of a
wave is run to its end: short ones are not over-represented.
"""

import contextlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.data.dataset import Dataset
from neubay.errors import DatasetError, TaskError
from neubay.tape import AgentInput
from neubay.tasks import DiscreteActions, Task

# (memory, what the agent sees, generator) -> (memory, actions as on a tape: [-1, 1] or one-hot).
# Memory is none at first; a behaviour that needs none hands it through.
Behaviour = Callable[[Any, AgentInput, np.random.Generator], tuple[Any, np.ndarray]]

_WAVE = 16


@dataclass(frozen=True)
class RandomActions:
    """Every action is drawn uniformly and independently."""

    task: Task
    label = "random"

    def __call__(
        self, memory: Any, inputs: AgentInput, rng: np.random.Generator
    ) -> tuple[Any, Float[np.ndarray, "episodes a"]]:
        return memory, _uniform_actions(self.task, len(inputs.state), rng)


@dataclass(frozen=True)
class StickyActions:
    """The last action is repeated with probability `repeat`, else a new one is drawn uniformly.

    Held actions push a system further than white noise, which mostly cancels out: the data
    stays poor but covers more.
    """

    task: Task
    repeat: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.repeat < 1:
            raise DatasetError(
                f"repeat {self.repeat}: expected a probability of at least 0, below 1."
            )

    @property
    def label(self) -> str:
        return f"sticky random, repeat {self.repeat:g}"

    def __call__(
        self, memory: Any, inputs: AgentInput, rng: np.random.Generator
    ) -> tuple[Any, Float[np.ndarray, "episodes a"]]:
        fresh = _uniform_actions(self.task, len(inputs.state), rng)
        keep = (rng.random(len(fresh)) < self.repeat) & ~np.asarray(inputs.start)
        return memory, np.where(keep[:, None], np.asarray(inputs.last_action), fresh)


def _uniform_actions(
    task: Task, count: int, rng: np.random.Generator
) -> Float[np.ndarray, "episodes a"]:
    if isinstance(task.actions, DiscreteActions):
        return np.eye(task.actions.n, dtype=np.float32)[rng.integers(task.actions.n, size=count)]
    return rng.uniform(-1, 1, (count, task.actions.size)).astype(np.float32)


class Episode(NamedTuple):
    """One episode of L steps as the environment gave it."""

    states: Float[np.ndarray, "L+1 s"]
    actions: np.ndarray
    """As executed, in the environment's units: (L, a), or (L,) action numbers."""
    rewards: Float[np.ndarray, " L"]
    terminals: Bool[np.ndarray, " L"]

    def head(self, steps: int) -> "Episode":
        return Episode(self.states[: steps + 1], *(column[:steps] for column in self[1:]))


def collect(
    task: Task,
    behaviour: Behaviour,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Dataset:
    """Roll `behaviour` for that many episodes, or for exactly that many steps, the last episode
    being cut there. Equal seeds give equal data.

    `progress` is called with the steps so far.
    """
    if (episodes is None) == (steps is None):
        raise DatasetError("collect: give either a number of episodes or a number of steps.")
    if (episodes or steps or 0) < 1:
        raise DatasetError(
            f"collect: {episodes if steps is None else steps} is not a positive number."
        )
    if seed < 0:
        raise DatasetError(f"collect: seed {seed} is negative.")
    rolled: list[Episode] = []
    total = 0
    for episode in _roll(task, behaviour, episodes, seed):
        if steps is not None and total + len(episode.rewards) > steps:
            episode = episode.head(steps - total)
        rolled.append(episode)
        total += len(episode.rewards)
        if progress is not None:
            progress(total)
        if total == steps:
            break
    return _dataset(task, rolled, name or f"{task.name}-collected")


def reset_seed(seed: int, episode: int) -> int:
    """The seed that an episode's environment is reset with."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0])


def provenance(task: Task, behaviour: str, seed: int) -> dict[str, Any]:
    """What made the data: kept with it, so that it can be made again."""
    packages = ("neubay", "numpy", "gymnasium", "mujoco")
    return {
        "task": task.name,
        "environment": task.env_name,
        "behaviour": behaviour,
        "seed": seed,
        "versions": {
            **{package: importlib.metadata.version(package) for package in packages},
            "python": platform.python_version(),
        },
    }


def _roll(task: Task, behaviour: Behaviour, episodes: int | None, seed: int) -> Iterator[Episode]:
    """Episodes in the order in which they were started, without end if `episodes` is none."""
    if task.make_env is None:
        raise TaskError(
            f"task '{task.name}' has no environment, so nothing can be collected in it; "
            "choose a task that has one, or name it in the task file"
        )
    task.try_environment()
    rng = np.random.default_rng(seed)
    started = 0
    with contextlib.ExitStack() as stack:
        size = _WAVE if episodes is None else min(_WAVE, episodes)
        environments = [
            stack.enter_context(contextlib.closing(task.make_env())) for _ in range(size)
        ]
        while episodes is None or started < episodes:
            wave = environments if episodes is None else environments[: episodes - started]
            states = [
                env.reset(seed=reset_seed(seed, started + i))[0] for i, env in enumerate(wave)
            ]
            played = roll(
                task, lambda memory, inputs, _: behaviour(memory, inputs, rng), None, wave, states
            )
            yield from _parted(task, played)
            started += len(wave)


class Episodes(NamedTuple):
    """E episodes as they were played, side by side; a shorter one repeats its last state."""

    state: Float[np.ndarray, "rows episodes s"]  # s_0 .. s_L of the longest
    action: Float[np.ndarray, "steps episodes a"]  # in [-1, 1] or one-hot, as policies act
    reward: Float[np.ndarray, "steps episodes"]  # raw, in float64; zero beyond an episode's end
    length: Int[np.ndarray, " episodes"]
    terminal: Bool[np.ndarray, " episodes"]  # it ended in a terminal state

    @property
    def live(self) -> Bool[np.ndarray, "steps episodes"]:
        """Which steps happened."""
        return np.arange(len(self.reward))[:, None] < self.length


def roll(
    task: Task,
    act: Callable[[Any, AgentInput, int], tuple[Any, Any]],
    memory: Any,
    environments: list[Any],
    observations: list[Any],
) -> Episodes:
    """One episode in each environment, from the given first observations to its end; `act` is
    given the memory, what the agent sees, and the number of the step."""
    count = len(environments)
    state = np.stack([_flat(observation) for observation in observations])
    last_action = np.zeros((count, task.actions.size), np.float32)
    last_reward = np.zeros(count, np.float32)
    states, actions, rewards = [state], [], []
    lengths, terminal = np.zeros(count, np.int64), np.zeros(count, bool)
    live = np.ones(count, bool)
    for step in range(task.horizon):
        inputs = AgentInput(state, last_action, last_reward, np.full(count, step == 0))
        memory, chosen = act(memory, inputs, step)
        last_action, paid = np.array(chosen, np.float32), np.zeros(count)
        commands = task.from_unit(last_action)
        state, last_reward = state.copy(), last_reward.copy()
        for i in np.flatnonzero(live).tolist():
            observation, reward, terminal[i], truncated, _ = environments[i].step(commands[i])
            state[i], paid[i] = _flat(observation), float(reward)
            last_reward[i] = paid[i] + task.reward_shift
            lengths[i] = step + 1
            live[i] = not (terminal[i] or truncated)
        states.append(state)
        actions.append(last_action)
        rewards.append(paid)
        if not live.any():
            break
    return Episodes(np.stack(states), np.stack(actions), np.stack(rewards), lengths, terminal)


def _flat(observation: Any) -> Float[np.ndarray, " s"]:
    return np.asarray(observation, np.float32).reshape(-1)


def _parted(task: Task, played: Episodes) -> Iterator[Episode]:
    """Episodes that were played side by side, one by one."""
    commands = task.from_unit(played.action)
    for i, steps in enumerate(played.length.tolist()):
        terminals = np.zeros(steps, bool)
        terminals[-1] = played.terminal[i]
        rewards = played.reward[:steps, i].astype(np.float32)
        yield Episode(played.state[: steps + 1, i], commands[:steps, i], rewards, terminals)


def _dataset(task: Task, rolled: list[Episode], name: str) -> Dataset:
    ends = np.cumsum([len(episode.rewards) for episode in rolled]) - 1
    terminals = np.concatenate([episode.terminals for episode in rolled])
    timeouts = np.zeros_like(terminals)
    # Where only timeouts end an episode, a terminal at its end needs one as well.
    timeouts[ends] = ~terminals[ends] | task.split_by_timeouts_only
    return Dataset.from_arrays(
        states=np.concatenate([episode.states[:-1] for episode in rolled]),
        actions=np.concatenate([episode.actions for episode in rolled]),
        rewards=np.concatenate([episode.rewards for episode in rolled]),
        terminals=terminals,
        timeouts=timeouts,
        next_states=np.concatenate([episode.states[1:] for episode in rolled]),
        task=task,
        name=name,
    )
