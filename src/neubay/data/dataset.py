"""The dataset: a tape, the task it belongs to, and where it came from."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from neubay.tape import Prefix, Tape, episode_bounds
from neubay.tasks import Task


@dataclass(frozen=True)
class Dataset:
    """Logged experience. The tape is NumPy float32, memory-mapped when it is large."""

    tape: Tape
    task: Task
    name: str
    source: str
    published: str | None = None
    """The name of the paper's dataset this file *is*, such as 'hopper-medium-v2'."""

    @cached_property
    def bounds(self) -> tuple[Int[np.ndarray, " episodes"], Int[np.ndarray, " episodes"]]:
        """First row and length in steps of every episode."""
        return episode_bounds(self.tape.start)

    @cached_property
    def histories(self) -> Prefix:
        """Per episode, the part that may be an agent's history: at most T steps, and nothing
        beyond the first terminal. h_t exists for every t in 0 .. length."""
        raise NotImplementedError

    @cached_property
    def world_rows(self) -> Int[np.ndarray, " transitions"]:
        """Rows whose transition the world model trains on."""
        raise NotImplementedError

    @cached_property
    def returns(self) -> Float[np.ndarray, " episodes"]:
        """Raw (unshifted) return of every episode, in float64."""
        raise NotImplementedError

    @cached_property
    def hash(self) -> str:
        """Hash of the content: equal tapes have equal hashes, whatever file they came from."""
        raise NotImplementedError
