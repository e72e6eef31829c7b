"""Tasks: everything that is known about an environment family before any data is seen."""

from neubay.tasks.catalogue import category as category
from neubay.tasks.catalogue import get_task as get_task
from neubay.tasks.catalogue import identify as identify
from neubay.tasks.catalogue import is_built_in as is_built_in
from neubay.tasks.catalogue import list_tasks as list_tasks
from neubay.tasks.catalogue import published_settings as published_settings
from neubay.tasks.catalogue import register_task as register_task
from neubay.tasks.catalogue import task_from_env as task_from_env
from neubay.tasks.rules import OfNextState as OfNextState
from neubay.tasks.rules import pen_drops as pen_drops
from neubay.tasks.rules import pole_falls as pole_falls
from neubay.tasks.task import ContinuousActions as ContinuousActions
from neubay.tasks.task import DiscreteActions as DiscreteActions
from neubay.tasks.task import Reference as Reference
from neubay.tasks.task import Task as Task
from neubay.tasks.task import Termination as Termination
