"""Memory: the linear recurrent unit (LRU) over a tape, with resets inside it.

A layer carries a complex memory h of `memory_size` units through time:

    h_t = lambda * h_{t-1} + gamma * (B x_t)        (h_{t-1} = 0 where row t starts an episode)
    y_t = Re(C h_t) + D * x_t

lambda, with |lambda| < 1, is a vector, so that the recurrence is elementwise and everything else is
a matmul over all rows at once. Complex numbers are kept as two real arrays (`Complex`): B and C are
then plain real matmuls, which are fast everywhere, and memory can be exported.

Arrays are time-major: (rows, *batch, features). A training tape has no batch axis; histories that
are replayed side by side have one.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from neubay.agents.layers import LayerNorm, Linear, Standardiser, float32, matmul
from neubay.devices import choices
from neubay.tape import AnyArray

_RECALL_ROWS = 64
"""Rows of each history that `Encoder.recall` reads at a time."""


class Complex(NamedTuple):
    """Complex numbers as two real arrays of one shape."""

    real: Float[Array, "*shape"]
    imag: Float[Array, "*shape"]


EncoderMemory = tuple[Complex, ...]  # one h of shape (*batch, hidden) per layer


def _times(a: Complex, b: Complex) -> Complex:
    return Complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def _conjugate(a: Complex) -> Complex:
    return Complex(a.real, -a.imag)


def _zero_where(start: Bool[Array, "*batch"], a: Complex) -> Complex:
    """Reset by choice and not by product, so that not even an infinity crosses it."""
    return Complex(*(jnp.where(start[..., None], 0.0, part) for part in a))


def advance(
    decay: Complex, memory: Complex, drive: Complex, start: Bool[Array, "*batch"]
) -> Complex:
    """One step: drive + decay * memory, or the drive alone where an episode starts."""
    return jax.tree.map(jnp.add, drive, _zero_where(start, _times(decay, memory)))


def _recur(
    decay: Complex,
    drive: Complex,
    start: Bool[Array, "rows *batch"],
    initial: Complex,
    scan: choices.Scan,
    reverse: bool = False,
) -> Complex:
    """The memory at every row, in time order or against it."""
    if scan == "sequential":

        def body(memory: Complex, row: tuple[Complex, Array]) -> tuple[Complex, Complex]:
            memory = advance(decay, memory, *row)
            return memory, memory

        return lax.scan(body, initial, (drive, start), reverse=reverse)[1]

    def combine(early: tuple, late: tuple) -> tuple:
        early_start, early_decay, early_memory = early
        late_start, late_decay, late_memory = late
        memory = advance(late_decay, early_memory, late_memory, late_start)
        return early_start | late_start, _times(early_decay, late_decay), memory

    row = -1 if reverse else 0  # which comes first and takes in the initial memory
    first = advance(decay, initial, Complex(*(part[row] for part in drive)), start[row])
    drive = Complex(*(part.at[row].set(value) for part, value in zip(drive, first, strict=True)))
    decays = Complex(*(jnp.broadcast_to(part, drive.real.shape) for part in decay))
    return lax.associative_scan(combine, (start, decays, drive), reverse=reverse)[2]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def linear_recurrence(
    decay: Complex,
    drive: Complex,
    start: Bool[Array, "rows *batch"],
    initial: Complex,
    scan: choices.Scan,
) -> Complex:
    """h_t = drive_t + decay * h_{t-1} for every row, with h_{-1} = initial, reset at starts.

    Its gradient is written by hand because it is the same recurrence run backwards with the
    conjugate decay: one more scan, and nothing saved but h itself.
    """
    return _recur(decay, drive, start, initial, scan)


def _forward(
    decay: Complex, drive: Complex, start: Array, initial: Complex, scan: choices.Scan
) -> tuple[Complex, tuple]:
    memory = _recur(decay, drive, start, initial, scan)
    return memory, (decay, start, initial, memory)


def _backward(scan: choices.Scan, saved: tuple, cotangent: Complex) -> tuple:
    decay, start, initial, memory = saved
    # What a row's memory did to the rows after it comes back until the next start.
    next_starts = jnp.concatenate([start[1:], jnp.ones_like(start[:1])])
    nothing = Complex(*(jnp.zeros_like(part[0]) for part in memory))
    d_drive = _recur(_conjugate(decay), cotangent, next_starts, nothing, scan, reverse=True)
    previous = Complex(
        *(
            jnp.concatenate([first[None], part[:-1]])
            for first, part in zip(initial, memory, strict=True)
        )
    )
    d_decay = _zero_where(start, _times(d_drive, _conjugate(previous)))
    rows = tuple(range(start.ndim))
    d_first = Complex(*(part[0] for part in d_drive))
    d_initial = _zero_where(start[0], _times(_conjugate(decay), d_first))
    return Complex(*(part.sum(axis=rows) for part in d_decay)), d_drive, None, d_initial


linear_recurrence.defvjp(_forward, _backward)


def _pad_rows(array: AnyArray, rows: int) -> Array:
    return jnp.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1))


class LRU(eqx.Module):
    """The linear recurrent unit of the module's docstring.

    At initialisation |lambda| is uniform in area on the disc of radius 0.9 and its phase uniform
    to 2 pi; both are trained through logs. gamma = sqrt(1 - |lambda|^2) at first, and trained.
    """

    nu_log: Float[Array, " hidden"]  # |lambda| = exp(-exp(nu_log))
    theta_log: Float[Array, " hidden"]  # phase = exp(theta_log)
    gamma_log: Float[Array, " hidden"]
    b: Complex  # (features, hidden)
    c: Complex  # (hidden, features)
    d: Float[Array, " features"]

    def __init__(
        self, features: int, hidden: int, *, max_radius: float = 0.9, rng: np.random.Generator
    ):
        area = max_radius**2 * (1 - rng.random(hidden))  # |lambda|^2, above zero for its log
        phase = 2 * math.pi * (1 - rng.random(hidden))
        self.nu_log = float32(np.log(-0.5 * np.log(area)))
        self.theta_log = float32(np.log(phase))
        self.gamma_log = float32(0.5 * np.log(1 - area))
        b = rng.normal(size=(2, features, hidden)) / math.sqrt(2 * features)
        c = rng.normal(size=(2, hidden, features)) / math.sqrt(hidden)
        self.b = Complex(*map(float32, b))
        self.c = Complex(*map(float32, c))
        self.d = float32(rng.normal(size=features))

    def __call__(
        self, x: Float[Array, "*batch features"], recur: Callable[[Complex, Complex], Complex]
    ) -> tuple[Complex, Float[Array, "*batch features"]]:
        """Memory and output; `recur` turns (decay, drive) into memory, for a tape or for a step."""
        decay, b, c = self.constants()
        memory = recur(decay, Complex(*jnp.split(matmul(x, b), 2, axis=-1)))
        return memory, matmul(jnp.concatenate(memory, axis=-1), c) + self.d * x

    def constants(
        self,
    ) -> tuple[Complex, Float[Array, "features halves"], Float[Array, "halves features"]]:
        """lambda; gamma B, and C with its sign, each with both halves side by side, so that one
        product serves both: at small sizes two take longer."""
        radius = jnp.exp(-jnp.exp(self.nu_log))
        phase, gamma = jnp.exp(self.theta_log), jnp.exp(self.gamma_log)
        decay = Complex(radius * jnp.cos(phase), radius * jnp.sin(phase))
        b = jnp.concatenate([self.b.real * gamma, self.b.imag * gamma], axis=-1)
        return decay, b, jnp.concatenate([self.c.real, -self.c.imag], axis=0)


class ResidualBlock(eqx.Module):
    """x + GLU(GELU(LRU(LayerNorm(x))))."""

    norm: LayerNorm
    lru: LRU
    gate: Linear

    def __init__(self, width: int, hidden: int, *, rng: np.random.Generator):
        self.norm = LayerNorm(width)
        self.lru = LRU(width, hidden, rng=rng)
        self.gate = Linear(width, 2 * width, rng=rng)

    def __call__(
        self, x: Float[Array, "*batch width"], recur: Callable[[Complex, Complex], Complex]
    ) -> tuple[Complex, Float[Array, "*batch width"]]:
        memory, y = self.lru(self.norm(x), recur)
        value, gate = jnp.split(self.gate(jax.nn.gelu(y)), 2, axis=-1)
        return memory, x + value * jax.nn.sigmoid(gate)


class Encoder(eqx.Module):
    """Histories -> features: Linear -> LayerNorm -> leaky ReLU, then residual LRU blocks.

    With a `gate`, the features are the current state and, beside it, what memory adds, through a
    gate that starts at zero: the agent begins as the Markov one, and memory enters where it helps.
    """

    standardise: Standardiser | None
    project: Linear
    norm: LayerNorm
    blocks: tuple[ResidualBlock, ...]
    gate: Float[Array, " width"] | None
    states: int = eqx.field(static=True)  # how many of the inputs are the state

    def __init__(
        self,
        into: int,
        width: int,
        hidden: int,
        layers: int,
        *,
        rng: np.random.Generator,
        standardise: Standardiser | None = None,
        gated_states: int = 0,
    ):
        """`gated_states`: the state's size, if memory is to enter beside it; else 0."""
        self.standardise = standardise
        self.project = Linear(into, width, rng=rng)
        self.norm = LayerNorm(width)
        self.blocks = tuple(ResidualBlock(width, hidden, rng=rng) for _ in range(layers))
        self.gate = float32(np.zeros(width)) if gated_states else None
        self.states = gated_states

    @property
    def width(self) -> int:
        """Features that the encoder gives per row."""
        return self.project.bias.shape[-1] + self.states

    def initial(self, *batch: int) -> EncoderMemory:
        """The memory of an agent that has seen nothing."""
        shapes = [(*batch, len(block.lru.nu_log)) for block in self.blocks]
        return tuple(Complex(jnp.zeros(shape), jnp.zeros(shape)) for shape in shapes)

    def __call__(
        self,
        inputs: Float[Array, "rows *batch into"],
        start: Bool[AnyArray, "rows *batch"],
        scan: choices.Scan | None = None,
    ) -> Float[Array, "rows *batch width"]:
        """Features of every row of a tape."""
        return self.unroll(self.initial(*start.shape[1:]), inputs, start, scan)[1]

    def unroll(
        self,
        memory: EncoderMemory,
        inputs: Float[Array, "rows *batch into"],
        start: Bool[AnyArray, "rows *batch"],
        scan: choices.Scan | None = None,
    ) -> tuple[EncoderMemory, Float[Array, "rows *batch width"]]:
        """Continue from `memory` over many rows: the memory after each row, and its features."""
        start, scan = jnp.asarray(start), scan or choices.recurrence()

        def recur(layer: int, decay: Complex, drive: Complex) -> Complex:
            return linear_recurrence(decay, drive, start, memory[layer], scan)

        return self._apply(inputs, start, recur)

    def step(
        self,
        memory: EncoderMemory,
        inputs: Float[Array, "*batch into"],
        start: Bool[AnyArray, "*batch"],
    ) -> tuple[EncoderMemory, Float[Array, "*batch width"]]:
        """One row: the memory after it, and its features."""
        start = jnp.asarray(start)

        def recur(layer: int, decay: Complex, drive: Complex) -> Complex:
            return advance(decay, memory[layer], drive, start)

        return self._apply(inputs, start, recur)

    def recall(
        self,
        inputs: Float[Array, "rows batch into"],
        start: Bool[AnyArray, "rows batch"],
        length: Int[Array, " batch"],
    ) -> EncoderMemory:
        """The memory after the first `length` rows of each history.

        Histories are read in blocks of rows, and only as far as the longest goes: time and space
        follow the histories rather than the padding.
        """
        block = min(_RECALL_ROWS, len(inputs))
        inputs, start = (_pad_rows(array, -len(array) % block) for array in (inputs, start))

        def read(i: Int[Array, ""], memory: EncoderMemory) -> EncoderMemory:
            block_inputs, block_start = (
                lax.dynamic_slice_in_dim(array, i * block, block) for array in (inputs, start)
            )
            after, _ = self.unroll(memory, block_inputs, block_start)
            count = jnp.clip(length - i * block, 0, block)  # rows of this block that are history

            def at_last_row(before: Array, after: Array) -> Array:
                last = jnp.take_along_axis(after, (count - 1)[None, :, None], axis=0)[0]
                return jnp.where(count[:, None] > 0, last, before)

            return jax.tree.map(at_last_row, memory, after)

        return lax.fori_loop(0, -(-length.max() // block), read, self.initial(len(length)))

    def _apply(
        self,
        inputs: Float[Array, "*rows into"],
        start: Bool[Array, "*rows"],
        recur: Callable[[int, Complex, Complex], Complex],
    ) -> tuple[EncoderMemory, Float[Array, "*rows width"]]:
        inputs = inputs if self.standardise is None else self.standardise(inputs, start)
        x = self.norm.activate(self.project.centred()(inputs))
        memory = []
        for layer, block in enumerate(self.blocks):
            layer_memory, x = block(x, partial(recur, layer))
            memory.append(layer_memory)
        if self.gate is not None:
            x = jnp.concatenate([inputs[..., : self.states], self.gate * x], axis=-1)
        return tuple(memory), x


class NoMemory(eqx.Module):
    """The Markov agent's encoder: the first `width` inputs, the current state, as they are.

    It has nothing to train and nothing to remember.
    """

    width: int = eqx.field(static=True)
    standardise: Standardiser | None = None

    def initial(self, *batch: int) -> EncoderMemory:
        return ()

    def __call__(
        self, inputs: Float[Array, "*rows into"], start: Bool[AnyArray, "*rows"]
    ) -> Float[Array, "*rows width"]:
        inputs = inputs if self.standardise is None else self.standardise(inputs, start)
        return inputs[..., : self.width]

    def step(
        self,
        memory: EncoderMemory,
        inputs: Float[Array, "*batch into"],
        start: Bool[AnyArray, "*batch"],
    ) -> tuple[EncoderMemory, Float[Array, "*batch width"]]:
        return memory, self(inputs, start)

    def recall(
        self,
        inputs: Float[Array, "rows batch into"],
        start: Bool[AnyArray, "rows batch"],
        length: Int[Array, " batch"],
    ) -> EncoderMemory:
        return ()
