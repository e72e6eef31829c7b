"""What is chosen by backend: all of it, with the reasons. No other file asks what it runs on.

The kinds of backend are two: a CPU, whose cores have caches and run one large product at a time,
and an accelerator, which wants as much side by side as there is and short chains of kernels.
What was chosen for a CPU was measured (docs/benchmarks.md). What is chosen for accelerators follows
from how they work and gives the same numbers, to rounding; its speed there was not measured.
"""

import functools
import os
from typing import Literal, NamedTuple, TypeVar

import jax

Scan = Literal["sequential", "associative"]
Values = TypeVar("Values")

assumed = jax.make_user_context(None)
"""`with assumed("cuda"):` what is traced inside is as it would be there: for programs that are
lowered for an accelerator where there is none. The value is part of the key of every jitted
function."""


def on_cpu() -> bool:
    """Whether programs are made for a CPU."""
    return (assumed.value or jax.default_backend()) == "cpu"


def sizes() -> Literal["cpu", "paper"]:
    """The preset where none is named: the published size takes days on two cores."""
    return "cpu" if on_cpu() else "paper"


def recurrence() -> Scan:
    """How the memory runs over the rows of a batch. On a CPU the plain loop: it does the least
    work and compiles to one kernel. On an accelerator the associative scan: 11 rounds over 2048
    rows instead of 2048 small kernels one after the other."""
    return "sequential" if on_cpu() else "associative"


def heads_side_by_side() -> bool:
    """Whether the critic's heads run as one batched product. On a CPU one after the other, each
    differentiated before the next: its activations stay in cache. An accelerator has room for all,
    and a tenth of the kernels to start."""
    return not on_cpu()


def barrier(values: Values) -> Values:
    """On a CPU `values` are computed and laid out before what uses them. Left alone, its compiler
    computes a normalisation anew inside every reduction that uses it, and reads transposed rows
    against their layout. The compilers of accelerators choose better without being told."""
    return jax.lax.optimization_barrier(values) if on_cpu() else values


def uncertainty_rows(members: int) -> int:
    """Rows of one computation of U in imagination. On a CPU, members times rows of about 10,000:
    enough to use each weight often, few enough to stay in cache."""
    return min(max(10_000 // members, 64), 512) if on_cpu() else 512


def data_rows() -> int:
    """Rows of one computation of U over the data. On a CPU few, to stay in cache."""
    return 128 if on_cpu() else 1024


class Pool(NamedTuple):
    """How a device trains its share of a pool of members."""

    lanes: int  # equal parts, each trained by a thread of its own
    group: int  # members that take a step side by side, the groups one after the other
    compiler_options: tuple[tuple[str, str], ...]


def pool_layout(members: int, devices: int, group: int | None = None) -> Pool:
    """How `members` on each of `devices` devices are trained.

    On a CPU the members of a small group stay in cache over many gradient steps, and a lane for
    each core keeps all of them busy: of a single program, only matrix products use more than one.
    On an accelerator all members take a step side by side, which makes every product a batched one.
    The size of a group shows in the last bits: a shard of a pool is given that of the whole pool.
    """
    if not on_cpu():
        return Pool(lanes=1, group=members, compiler_options=())
    lanes = largest_divisor(members // (group or 1), _cores()) if devices == 1 else 1
    return Pool(lanes, group or largest_divisor(members // lanes, 2), _cpu_options())


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit."""
    return max(n for n in range(1, limit + 1) if number % n == 0)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _cpu_options() -> tuple[tuple[str, str], ...]:
    """Leave matrix products to Eigen, which shares one among the cores; the newer kernels do not.

    The option is experimental: where the compiler does not know it, the default is used.
    """
    options = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return ()
    return tuple(options.items())
