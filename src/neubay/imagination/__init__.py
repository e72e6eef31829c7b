"""Imagination: rollouts of a policy in the worlds of the posterior (Algorithm 2, `rollout.py`).

branches.py   where rollouts begin: histories of the data, and the policy's memory of them
rollout.py    Algorithm 2
rules.py      what ends a rollout, and what its rewards cost
batch.py      many rollouts side by side: their draws, buffers and batch widths
layout.py     the steps of a batch -> rows of a tape
"""

from neubay.imagination.batch import shrinking_widths
from neubay.imagination.branches import Branches, branch, draw_histories, draw_members
from neubay.imagination.layout import Rollouts
from neubay.imagination.protocols import ActingPolicy, Dynamics, HistoryPolicy, Posterior
from neubay.imagination.rollout import imagine, steps_of_rollouts
from neubay.imagination.rules import Ending, Rules

__all__ = [
    "ActingPolicy",
    "Branches",
    "Dynamics",
    "Ending",
    "HistoryPolicy",
    "Posterior",
    "Rollouts",
    "Rules",
    "branch",
    "draw_histories",
    "draw_members",
    "imagine",
    "shrinking_widths",
    "steps_of_rollouts",
]
