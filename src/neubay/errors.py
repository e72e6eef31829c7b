"""Errors that are part of the interface.

Every error a user can cause is a `NeubayError`: its message says what was wrong, where,
and what to do. The command line prints the message alone; the Python API raises it.
"""


class NeubayError(Exception):
    """Base of every error caused by input rather than by a bug."""


class DatasetError(NeubayError):
    """A dataset cannot be read, or what was read is not a valid dataset."""


class TaskError(NeubayError):
    """A task is unknown, wrongly registered, or cannot do what was asked of it."""


class ConfigError(NeubayError):
    """A configuration value, key or file is wrong."""


class WorldError(NeubayError):
    """A world cannot be trained, read, or does not fit the data it is used with."""


class RunError(NeubayError):
    """A run directory is unreadable, in use, or does not match what was asked."""


class TrainingError(NeubayError):
    """A training cannot go on, or would not fit into the machine."""
