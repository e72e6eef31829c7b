"""Tasks: everything that is known about an environment family before any data is seen."""

from neubay.tasks.catalogue import (
    category,
    get_task,
    identify,
    is_built_in,
    list_tasks,
    published_settings,
    register_task,
    task_from_env,
)
from neubay.tasks.rules import OfNextState, pen_drops, pole_falls
from neubay.tasks.task import (
    ContinuousActions,
    DiscreteActions,
    Reference,
    Task,
    Termination,
    action_space,
)

__all__ = [
    "ContinuousActions",
    "DiscreteActions",
    "OfNextState",
    "Reference",
    "Task",
    "Termination",
    "action_space",
    "category",
    "get_task",
    "identify",
    "is_built_in",
    "list_tasks",
    "pen_drops",
    "pole_falls",
    "published_settings",
    "register_task",
    "task_from_env",
]
