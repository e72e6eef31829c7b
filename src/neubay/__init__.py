"""neubay: offline reinforcement learning without explicit conservatism.

    import neubay

    result = neubay.train("pendulum")
    action, state = result.policy.predict(observation)

The names below are loaded when they are first used, so that `import neubay` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from neubay.data import load
    from neubay.data.dataset import Dataset
    from neubay.data.rows import ColumnNames
    from neubay.experiment import train, train_together
    from neubay.guard import Guard
    from neubay.policy import Policy, load_policy
    from neubay.selection import select
    from neubay.sweeps.sweep import sweep
    from neubay.tasks import Task, register_task
    from neubay.world import load_world

_HOMES = {
    "ColumnNames": "neubay.data.rows",
    "Dataset": "neubay.data.dataset",
    "Guard": "neubay.guard",
    "Policy": "neubay.policy",
    "Task": "neubay.tasks",
    "load": "neubay.data",
    "load_policy": "neubay.policy",
    "load_world": "neubay.world",
    "register_task": "neubay.tasks",
    "select": "neubay.selection",
    "sweep": "neubay.sweeps.sweep",
    "train": "neubay.experiment",
    "train_together": "neubay.experiment",
}

__all__ = [
    "ColumnNames",
    "Dataset",
    "Guard",
    "Policy",
    "Task",
    "load",
    "load_policy",
    "load_world",
    "register_task",
    "select",
    "sweep",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'neubay' has no attribute '{name}'")
