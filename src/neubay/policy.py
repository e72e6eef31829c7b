"""A trained policy to act with: explicit state in, action and state out; saved as one file.

    policy = neubay.load_policy("runs/pendulum-neubay-seed0/policy.npz")
    action, state = policy.predict(observation)                    # the first step
    action, state = policy.predict(observation, state, reward=r)   # every later one

The reward is part of the history that a policy adapts to, so every later step needs it.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree
from pydantic import ConfigDict, Field

from neubay import agents, export
from neubay.config import AgentConfig, Section, updated, validated
from neubay.data.dataset import Dataset, Ranges
from neubay.data.rows import ColumnNames
from neubay.errors import NeubayError, RunError, TaskError
from neubay.export.card import Origin, origin_of
from neubay.runs.files import array_shapes, arrays_of, load_arrays, read_note, save_arrays
from neubay.runs.provenance import provenance
from neubay.runs.rundir import POLICY_FILE
from neubay.tape import AgentInput
from neubay.tasks import Task, action_space

LAYOUT = 2
"""Version of the file; raised when a reader of the old one could not read the new one. Layout 1 is
read too: its LayerNorms had no trained scale and shift."""


class PolicyState(NamedTuple):
    """What the policy carries between steps, for a batch of episodes."""

    memory: PyTree
    last_action: Float[np.ndarray, "batch a"]
    steps: int


class Policy:
    """Acts in the units of the environment, on one observation or on a batch of them."""

    def __init__(
        self,
        agent: agents.Agent,
        state: agents.AgentState,
        task: Task,
        config: AgentConfig,
        ranges: Ranges | None = None,
        dataset: dict[str, str] | None = None,
        column_names: ColumnNames | None = None,
    ) -> None:
        self.task, self.config = task, config
        self.ranges = ranges
        """What its data spans; none in files of earlier versions."""
        self.dataset = dataset
        """Name and hash of its data; none in files of earlier versions."""
        self.column_names = column_names
        """What its observations, actions and reward are called, where the data says it."""
        self.provenance = provenance()
        """Versions that it was trained with."""
        self.path: Path | None = None
        """Where it was saved or read last."""
        self.mode = agent.policy(state, deterministic=True)
        """The greedy policy, as imagination and evaluation take it."""
        self._sample = agent.policy(state, deterministic=False)

    @classmethod
    def trained_on(
        cls, dataset: Dataset, agent: agents.Agent, state: agents.AgentState
    ) -> "Policy":
        """The policy of an agent, which says what data it is of."""
        return cls(
            agent,
            state,
            dataset.task,
            agent.config,
            dataset.ranges,
            dataset.identity,
            dataset.column_names,
        )

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
        states = observations_of(self.task, observation)
        _refuse_nonfinite("the observation", states)
        batch = len(states)
        if episode_start is None:
            episode_start = state is None
        start = np.asarray(one_or_each("episode_start", episode_start, batch), bool)
        if state is None:
            nothing = np.zeros((batch, self.task.actions.size), np.float32)
            state, start = PolicyState(self.mode.initial(batch), nothing, 0), np.ones(batch, bool)
        if len(state.last_action) != batch:
            raise NeubayError(
                f"got {batch} observations with the state of {len(state.last_action)} episodes"
            )
        inputs = AgentInput(
            state=states,
            last_action=np.where(start[:, None], np.float32(0), state.last_action),
            last_reward=self._last_reward(reward, start),
            start=start,
        )
        policy = self.mode if deterministic else self._sample
        keys = _no_keys(batch) if deterministic else _keys(seed, state.steps, batch)
        memory, action = _act(policy, state.memory, inputs, keys)
        unit = np.asarray(action)
        _refuse_nonfinite("the action", unit)
        commands = self.task.from_unit(unit)
        after = PolicyState(memory, unit, state.steps + 1)
        return (commands[0] if np.ndim(observation) == 1 else commands), after

    def acted(
        self, state: PolicyState, action: np.ndarray | np.integer | float | int
    ) -> PolicyState:
        """The state after what was really done, in the units of the environment, where that was
        not what `predict` returned: a fall-back or an operator acted, or the action was late."""
        batch, shape = len(state.last_action), self.task.actions.shape
        try:
            done = np.broadcast_to(np.asarray(action), (batch, *shape))
        except ValueError:
            raise NeubayError(
                f"an action of '{self.task.name}' has shape {shape}, or {(batch, *shape)} for each "
                f"of the {batch} episodes; got {np.shape(action)}"
            ) from None
        unit = np.clip(self.task.to_unit(done), -1, 1)  # beyond the bounds counts as the bound
        _refuse_nonfinite("the action", unit)
        return state._replace(last_action=unit)

    def _last_reward(
        self, reward: float | np.ndarray | None, start: Bool[np.ndarray, " batch"]
    ) -> Float[np.ndarray, " batch"]:
        """The reward of the last action as the agent reads it; none where an episode starts."""
        if reward is None and not start.all():
            raise NeubayError(
                "the reward of the last step is part of the history: "
                "pass reward=... wherever no episode starts"
            )
        paid = one_or_each("reward", 0.0 if reward is None else reward, len(start))
        _refuse_nonfinite("the reward", paid[~start])
        return np.where(start, 0, paid + self.task.reward_shift).astype(np.float32)

    @property
    def note(self) -> dict[str, Any]:
        """Sizes, settings and data, as the policy's file has them beside its weights."""
        return {
            "layout": LAYOUT,
            "task": self.task.name,
            "environment": self.task.env_name,
            "state_size": self.task.state_size,
            "actions": self.task.actions.record(),
            "horizon": self.task.horizon,
            "reward_shift": self.task.reward_shift,
            "agent": self.config.model_dump(),
            "ranges": None
            if self.ranges is None
            else {name: bound.tolist() for name, bound in self.ranges._asdict().items()},
            "dataset": self.dataset,
            "column_names": None if self.column_names is None else self.column_names._asdict(),
            "provenance": self.provenance,
        }

    def save(self, path: str | Path) -> None:
        """Write weights, sizes and settings to one .npz file."""
        save_arrays(Path(path), eqx.filter(self.mode, eqx.is_array), self.note)
        self.path = Path(path)

    def export(self, to: export.Format, out: str | Path) -> list[Path]:
        """Write the policy for use without this package: `numpy` (policy.py and policy.npz),
        `onnx` or `stablehlo`, and its card, into the folder `out`; returns the files."""
        known = self.path is not None and self.path.exists()
        origin = origin_of(self.path) if known else Origin()  # type: ignore[arg-type]
        return export.write(self.mode, self.note, to, Path(out), origin)


def observations_of(task: Task, observation: np.ndarray) -> Float[np.ndarray, "batch s"]:
    """One observation or a batch of them as a batch, of the size that the task has."""
    states = np.atleast_2d(np.asarray(observation, np.float32))
    if states.shape[1:] != (task.state_size,):
        raise NeubayError(
            f"an observation of '{task.name}' has {task.state_size} values, got shape "
            f"{np.shape(observation)}"
        )
    return states


def one_or_each(name: str, value: Any, batch: int) -> np.ndarray:
    """A value for every episode, from one for all of them or one each."""
    try:
        values = np.asarray(value)
        if values.dtype.kind not in "biuf":  # such as None among numbers, which is missing
            values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise NeubayError(
            f"{name} is {str(value)[:80]!r}: expected one number, or one for each of the {batch} "
            "observations"
        ) from None
    if values.shape not in ((), (batch,)):
        raise NeubayError(
            f"{name} has shape {values.shape}: expected one value, or one for each of the {batch} "
            "observations"
        )
    return np.broadcast_to(values, (batch,))


def _refuse_nonfinite(what: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise NeubayError(f"{what} has a value that is not finite; the memory would never lose it")


def _keys(seed: int, steps: int, batch: int) -> Key[Array, " batch"]:
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), steps), batch)


@functools.lru_cache(maxsize=8)
def _no_keys(batch: int) -> Key[Array, " batch"]:
    """What stands for keys where nothing is drawn: making fresh ones would take most of a step."""
    return _keys(0, 0, batch)


@eqx.filter_jit
def _act(policy: Any, memory: PyTree, inputs: AgentInput, keys: Any) -> Any:
    return policy.act(memory, inputs, keys)


def _is_affine(name: str) -> bool:
    """Whether an array is the scale or shift of a LayerNorm."""
    return ".norm" in name and name.endswith((".scale", ".shift"))


class _Actions(Section):
    discrete: int | None = Field(None, ge=1)
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class _Names(Section):
    states: tuple[str, ...]
    actions: tuple[str, ...]
    reward: str | None = None


class _Note(Section):
    """The note of a policy file, as far as it is read."""

    model_config = ConfigDict(extra="ignore")

    task: str
    environment: str | None
    state_size: int = Field(ge=1)
    actions: _Actions
    horizon: int = Field(ge=1)
    reward_shift: float
    agent: AgentConfig
    ranges: dict[str, list[float]] | None = None
    dataset: dict[str, str] | None = None
    column_names: _Names | None = None
    provenance: dict[str, str] = Field(default_factory=dict)


def load_policy(path: str | Path) -> Policy:
    """Read what `Policy.save` wrote, or the policy of a run directory. The task need not be
    registered: the file knows its sizes, and they are checked before anything is made of them."""
    path = Path(path)
    path = path / POLICY_FILE if path.is_dir() else path
    about = read_note(path)
    if "distribution" in about:
        raise RunError(
            f"{path}: is an export, which its policy.py loads; here give the run, or its policy.npz"
        )
    if "layout" not in about:
        raise RunError(f"{path}: not a policy file, or a damaged one: its note has no 'layout'")
    if about["layout"] not in (1, LAYOUT):
        raise RunError(
            f"{path}: a policy of layout {about['layout']}, this version reads 1 to {LAYOUT}"
        )
    needed = [name for name, field in _Note.model_fields.items() if field.is_required()]
    if missing := [name for name in needed if name not in about]:
        raise RunError(f"{path}: its note has no '{missing[0]}'; the file is damaged")
    note = validated(_Note, about, where=str(path))
    _check_sizes(path, note)
    try:
        task, ranges = _task_of(note), _ranges_of(note)
        names = _names_of(note, task)
    except (TaskError, ValueError) as error:
        raise RunError(f"{path}: {error}") from None
    # Critics are no part of a policy, however many the note says there were, nor is what it was
    # averaged from.
    config = updated(note.agent, {"heads": 1, "target_heads": 1, "average_share": 0})
    begun = _begun(task.state_size, task.actions.size, task.actions.kind, config)
    policy = Policy(*begun, task, note.agent, ranges, note.dataset, names)
    arrays, static = eqx.partition(policy.mode, eqx.is_array)
    absent = _is_affine if about["layout"] == 1 else None
    loaded, _ = load_arrays(path, arrays, absent)
    for name, array in arrays_of(loaded).items():
        if not np.isfinite(array).all():
            raise RunError(f"{path}: '{name}' has a value that is not finite; the file is damaged")
    policy.mode = eqx.combine(jax.tree.map(jnp.asarray, loaded), static)
    policy._sample = dataclasses.replace(policy.mode, deterministic=False)
    policy.path, policy.provenance = path, note.provenance
    return policy


@functools.lru_cache(maxsize=2)
def _begun(
    state_size: int, action_size: int, kind: Literal["continuous", "discrete"], config: AgentConfig
) -> tuple[agents.Agent, agents.AgentState]:
    """An agent whose weights a file then replaces; made once for files of the same sizes, such as
    those of a run and of its clones."""
    agent = agents.make(state_size, action_size, kind, config)
    return agent, agent.init(jax.random.key(0))


def _task_of(note: _Note) -> Task:
    return Task(
        name=note.task,
        state_size=note.state_size,
        actions=action_space(**note.actions.model_dump()),
        horizon=note.horizon,
        env_name=note.environment,
        reward_shift=note.reward_shift,
    )


def _ranges_of(note: _Note) -> Ranges | None:
    if note.ranges is None:
        return None
    found = {name: np.asarray(note.ranges.get(name, []), np.float32) for name in Ranges._fields}
    for name in ("observation_low", "observation_high"):
        if len(found[name]) != note.state_size:
            raise ValueError(f"ranges.{name} has {len(found[name])} values, not {note.state_size}")
    return Ranges(**found)


def _names_of(note: _Note, task: Task) -> ColumnNames | None:
    if note.column_names is None:
        return None
    names = ColumnNames(**note.column_names.model_dump())
    if misfit := names.misfit(task):
        raise ValueError(f"its note has {misfit}; the file is damaged")
    return names


def _check_sizes(path: Path, note: _Note) -> None:
    """Refuse a note that promises other sizes than the arrays have: a network of those sizes would
    be made before it is found not to fit."""
    shapes = {
        name.split(".", 2)[-1]: shape
        for name, shape in array_shapes(path).items()
        if name.startswith("tree.")
    }

    def size(name: str, axis: int) -> int:
        shape = shapes.get(name, ())
        if not shape:
            raise RunError(f"{path}: '{name}' is missing in the file, or has no size")
        return shape[axis]

    def count(prefix: str, suffix: str) -> int:
        return sum(name.startswith(prefix) and name.endswith(suffix) for name in shapes)

    agent, actions = note.agent, note.actions.discrete or len(note.actions.low)
    pairs = {
        "agent.width": (agent.width, size("head.layers[0].weight", 1)),
        "agent.head_depth": (agent.head_depth, count("head.layers[", ".weight")),
    }
    if agent.memory == "none":
        pairs["state_size"] = (note.state_size, size("head.layers[0].weight", 0))
    else:
        inputs = size("encoder.project.weight", 0)
        pairs |= {
            "state_size": (note.state_size, inputs - actions - 1),
            "agent.memory_layers": (agent.memory_layers, count("encoder.blocks[", ".nu_log")),
            "agent.memory_size": (agent.memory_size, size("encoder.blocks[0].lru.nu_log", 0)),
        }
    for name, (promised, there) in pairs.items():
        if promised != there:
            raise RunError(
                f"{path}: {name} is {promised:,} in its note, and {there:,} by the shapes of its "
                "arrays; the file is damaged"
            )
