"""Tasks: everything that is known about an environment family before any data is seen."""

from neubay.tasks.catalogue import (
    ContinuousActions,
    DiscreteActions,
    Reference,
    Task,
    Termination,
    category,
    get_task,
    identify,
    list_tasks,
    pen_drops,
    pole_falls,
    published_settings,
    register_task,
    task_from_env,
)

__all__ = [
    "ContinuousActions",
    "DiscreteActions",
    "Reference",
    "Task",
    "Termination",
    "category",
    "get_task",
    "identify",
    "list_tasks",
    "pen_drops",
    "pole_falls",
    "published_settings",
    "register_task",
    "task_from_env",
]
