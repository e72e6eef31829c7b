"""Cloning: the data, or its best episodes, imitated with and without memory, the better one by
held-out likelihood.

held_out.py  what is cloned, and what of it a clone is not shown, but compared on
training.py  both candidates, each stopped at its best, and the choice
baseline.py  the clones that a run is compared with, kept where worlds are
"""

from neubay.cloning.baseline import (
    clone_config,
    clone_directory,
    clones_for,
    good_by_luck,
    train_clone,
)
from neubay.cloning.training import account, clone, in_words

__all__ = [
    "account",
    "clone",
    "clone_config",
    "clone_directory",
    "clones_for",
    "good_by_luck",
    "in_words",
    "train_clone",
]
