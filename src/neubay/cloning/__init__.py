"""Cloning: the data imitated with and without memory, the better one by held-out likelihood.

held_out.py  what a clone is not shown, and is compared on
training.py  both candidates, each stopped at its best, and the choice
baseline.py  the clone that a run is compared with, kept where worlds are
"""

from neubay.cloning.baseline import clone_config, clone_directory, train_clone
from neubay.cloning.training import account, clone, in_words

__all__ = ["account", "clone", "clone_config", "clone_directory", "in_words", "train_clone"]
