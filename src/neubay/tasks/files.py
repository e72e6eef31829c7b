"""Tasks that a user writes down in a file: YAML, or Python that is run on purpose.

    name: boiler
    state_size: 3
    actions: {low: [0, 0], high: [100, 100]}     # or a number of discrete actions
    horizon: 288
    environment: null                            # a Gymnasium id, if there is one
    termination: next_state[0] > 95 or next_state[2] < 0.1     # or: learned, from the data

A `.py` file defines `task`, or registers exactly one.
"""

import math
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from pydantic import Field, field_validator, model_validator

from neubay.config import Section, read_yaml, validated
from neubay.errors import ConfigError, NeubayError, TaskError, refusal_reported
from neubay.tasks.catalogue import list_tasks, registering
from neubay.tasks.expressions import Expression, parse
from neubay.tasks.task import (
    AnyArray,
    ContinuousActions,
    DiscreteActions,
    Reference,
    Task,
    action_space,
)

LEARNED = "learned"
"""In the place of a formula: no rule is known, and the data's terminals must tell."""
NAMES = ("state", "action", "next_state")
"""What a formula of termination may look at, with an index: state[0]."""


class ActionSettings(Section):
    """Discrete actions by their number, or continuous ones by their bounds."""

    count: int | None = Field(None, ge=1)
    low: list[float] | None = None
    high: list[float] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "ActionSettings":
        bounds = (self.low, self.high)
        if (self.count is None) == (bounds == (None, None)) or bounds.count(None) == 1:
            raise ValueError("give the number of discrete actions, or the lists low and high")
        return self


class ReferenceSettings(Section):
    """Returns that count as scores of 0 and 100."""

    random: float
    expert: float
    source: str = "the task file"


class TaskSettings(Section):
    """The keys of a YAML task file."""

    name: str = Field(min_length=1, max_length=200)
    state_size: int = Field(ge=1)
    actions: ActionSettings
    horizon: int = Field(ge=1)
    """T, the maximum episode length in steps."""
    environment: str | None = None
    """Gymnasium id of the environment that matches the data."""
    termination: str | None = None
    """A formula of state, action and next_state, true where next_state is terminal; or `learned`,
    where the data's terminals must tell."""
    reference: ReferenceSettings | None = None

    @field_validator("environment")
    @classmethod
    def _registered(cls, value: str | None) -> str | None:
        """Gymnasium imports what stands before a colon: YAML runs nothing."""
        if value is not None and ":" in value:
            raise ValueError("an id that imports a module needs a .py task file")
        return value

    @field_validator("actions", mode="before")
    @classmethod
    def _count(cls, value: Any) -> Any:
        """`actions: 4` is a number of discrete actions."""
        return {"count": value} if isinstance(value, int) else value


@dataclass(frozen=True, eq=False)
class Formula:
    """f_term(s, a, s') of a formula, which sees actions in the units of the environment."""

    expression: Expression
    actions: ContinuousActions | DiscreteActions

    def __call__(
        self,
        state: Float[AnyArray, "*batch s"],
        action: Float[AnyArray, "*batch a"],
        next_state: Float[AnyArray, "*batch s"],
    ) -> Bool[Array, "*batch"]:
        values = {
            "state": jnp.asarray(state),
            "action": self._commanded(jnp.asarray(action)),
            "next_state": jnp.asarray(next_state),
        }
        ends = self.expression(values, jnp)
        return jnp.broadcast_to(ends if ends.dtype == bool else ends != 0, state.shape[:-1])

    def _commanded(self, unit: Float[Array, "*batch a"]) -> Float[Array, "*batch b"]:
        """Bounded actions as they were logged; of discrete ones the number, as a vector of one."""
        if isinstance(self.actions, DiscreteActions):
            return jnp.argmax(unit, axis=-1, keepdims=True).astype(jnp.float32)
        low, high = jnp.asarray(self.actions.low), jnp.asarray(self.actions.high)
        return low + (unit + 1) * (high - low) / 2


def is_task_file(name: str) -> bool:
    """Whether a name is that of a task file, and not of a task."""
    return Path(name).suffix.lower() in (".py", *_YAML)


_YAML = (".yaml", ".yml")


def read_task(path: Path) -> Task:
    """The task of a file, tried out: what is wrong with it is said here, not in a training."""
    if path.suffix.lower() == ".py":
        task = _run(path)
    elif path.suffix.lower() in _YAML:
        task = _from_settings(path, validated(TaskSettings, read_yaml(path), str(path)))
    else:
        raise TaskError(f"{path}: a task file is .yaml or .py")
    if any(task.name == known.name for known in list_tasks()):
        raise TaskError(
            f"{path}: the name '{task.name}' is taken; give the task of the file another one, or "
            f"use --task {task.name}"
        )
    with _problems_of(path):
        _try_termination(task)
    return task


def fingerprint(path: Path) -> str:
    """What a run remembers of its task file."""
    with refusal_reported(TaskError, f"{path}: cannot be read"):
        return f"{path.name} (SHA-256 {sha256(path.read_bytes()).hexdigest()[:16]})"


def _from_settings(path: Path, settings: TaskSettings) -> Task:
    try:
        given = settings.actions
        actions = action_space(given.count, given.low, given.high)
        text = settings.termination
        rule = None if text is None or text == LEARNED else parse(text)
        if rule is not None:
            _check_places(rule, settings.state_size, actions)
    except TaskError as problem:
        raise TaskError(f"{path}: {problem}") from None
    reference = settings.reference
    return Task(
        name=settings.name,
        state_size=settings.state_size,
        actions=actions,
        horizon=settings.horizon,
        env_id=settings.environment,
        termination=None if rule is None else Formula(rule, actions),
        learns_termination=text == LEARNED,
        reference=None if reference is None else Reference(**reference.model_dump()),
    )


def _check_places(
    rule: Expression, state_size: int, actions: ContinuousActions | DiscreteActions
) -> None:
    """Every name has an index that exists."""
    width = math.prod(actions.shape)
    sizes = {"state": state_size, "action": width, "next_state": state_size}
    for name, index in rule.places:
        if name not in sizes:
            raise TaskError(f"'{rule.text}': '{name}' is not one of {', '.join(NAMES)}")
        if index is None:
            raise TaskError(f"'{rule.text}': '{name}' has {sizes[name]} values; write {name}[0]")
        if not -sizes[name] <= index < sizes[name]:
            raise TaskError(
                f"'{rule.text}': there is no {name}[{index}]; it has {sizes[name]} values"
            )


# ------------------------------------------------------------------------------- Python files


def _run(path: Path) -> Task:
    """Run a user's file, and take the task that it defines or registers."""
    namespace: dict[str, Any] = {}
    folder = str(path.resolve().parent)
    with registering() as registered, _problems_of(path):
        sys.path.insert(0, folder)  # for what lies beside it, as Python itself does
        try:
            namespace = runpy.run_path(str(path), run_name="neubay_task_file")
        finally:
            sys.path.remove(folder)
    found = [namespace["task"]] if "task" in namespace else registered
    if len(found) != 1 or not isinstance(found[0], Task):
        what = f"registers {len(found)} tasks" if "task" not in namespace else "its is none"
        raise TaskError(
            f"{path}: a task file defines 'task', a neubay.tasks.Task, or registers exactly one; "
            f"{what}"
        )
    return found[0]


@contextmanager
def _problems_of(path: Path) -> Iterator[None]:
    """What goes wrong in a user's file, as one message with its line."""
    try:
        yield
    except (Exception, SystemExit) as problem:
        trace = traceback.extract_tb(problem.__traceback__)
        lines = [frame.lineno for frame in trace if frame.filename == str(path)]
        if isinstance(problem, SyntaxError) and problem.filename == str(path):
            lines.append(problem.lineno)
        text = problem.msg if isinstance(problem, SyntaxError) else " ".join(str(problem).split())
        kind = "" if isinstance(problem, NeubayError) else f"{type(problem).__name__}: "
        where = f"{path}, line {lines[-1]}" if lines and lines[-1] else f"{path}"
        raise TaskError(f"{where}: {kind}{text[:500]}") from None


def _try_termination(task: Task) -> None:
    """Call the rule once, on two states of zeros."""
    if task.termination is None:
        return
    state = np.zeros((2, task.state_size), np.float32)
    action = np.zeros((2, task.actions.size), np.float32)
    ends = jnp.asarray(task.termination(state, action, state))
    if ends.shape != (2,) or ends.dtype != bool:
        raise ConfigError(
            f"the termination rule of '{task.name}' gives {ends.dtype} of shape {ends.shape} for "
            "two states; it must give one bool for each"
        )
