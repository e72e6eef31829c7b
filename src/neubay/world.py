"""The world: an ensemble of Gaussian members as a posterior over dynamics and rewards.

A member m_theta maps (s, a) to a Gaussian over (s', r). All of it happens in standardised units,
and the scaler that standardises is part of the ensemble:

    h_0 = standardised (s, a)
    h_l = leaky_relu(LayerNorm(W_l h_{l-1} + b_l))          (ablation: without LayerNorm)
    delta, r, log sigma = W h_L + b;    E[s'] = s + delta

The members of a pool are trained together, each on its own shuffle of the data, and the best N
on a validation split are kept. Their disagreement is the uncertainty

    U(s, a) = sqrt(mean_d var_n mu_{n,d}(s, a)).

A bandit's members (`Task.reward_only`) predict the reward alone and leave the state as it is.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from neubay import runs
from neubay.config import WorldConfig, validated
from neubay.data.dataset import Dataset
from neubay.errors import RunError, WorldError
from neubay.tape import Tape
from neubay.tasks import Task

LOG_SIGMA_MIN, LOG_SIGMA_MAX = -5.0, 0.25
Quantifier = Literal["disagreement", "aleatoric", "total"]


# --- Members -------------------------------------------------------------------------------------


class Linear(eqx.Module):
    """x W + b, initialised uniformly in +-1/sqrt(fan_in)."""

    weight: Float[Array, "fan_in fan_out"]
    bias: Float[Array, " fan_out"]

    def __init__(self, fan_in: int, fan_out: int, *, key: Key[Array, ""]):
        weight_key, bias_key = jax.random.split(key)
        bound = 1 / math.sqrt(max(fan_in, 1))
        self.weight = jax.random.uniform(weight_key, (fan_in, fan_out), minval=-bound, maxval=bound)
        self.bias = jax.random.uniform(bias_key, (fan_out,), minval=-bound, maxval=bound)

    def __call__(self, x: Float[Array, "b fan_in"]) -> Float[Array, "b fan_out"]:
        return x @ self.weight + self.bias


class LayerNorm(eqx.Module):
    """(x - mean) / std over the features, then an affine map."""

    scale: Float[Array, " width"]
    offset: Float[Array, " width"]

    def __init__(self, width: int):
        self.scale = jnp.ones(width)
        self.offset = jnp.zeros(width)

    def __call__(self, x: Float[Array, "b width"]) -> Float[Array, "b width"]:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.scale + self.offset


class Gaussian(NamedTuple):
    """Diagonal Gaussians in standardised units."""

    mean: Float[Array, "*batch d"]
    log_sigma: Float[Array, "*batch d"]


class Member(eqx.Module):
    """One m_theta in standardised units; its mean is (s' - s, r), or (r) for a bandit."""

    linears: list[Linear]
    norms: list[LayerNorm]  # as many as linears, or none of them
    head: Linear

    def __init__(self, inputs: int, outputs: int, config: WorldConfig, *, key: Key[Array, ""]):
        *keys, head_key = jax.random.split(key, config.depth + 1)
        widths = [inputs] + config.depth * [config.width]
        self.linears = [
            Linear(fan_in, fan_out, key=key)
            for fan_in, fan_out, key in zip(widths[:-1], widths[1:], keys, strict=True)
        ]
        self.norms = [LayerNorm(config.width) for _ in self.linears] if config.layer_norm else []
        self.head = Linear(config.width, 2 * outputs, key=head_key)

    def features(self, x: Float[Array, "b inputs"]) -> Float[Array, "b width"]:
        """The last hidden layer."""
        for layer, linear in enumerate(self.linears):
            x = linear(x)
            if self.norms:
                x = self.norms[layer](x)
            x = jax.nn.leaky_relu(x)
        return x

    def __call__(self, x: Float[Array, "b inputs"]) -> Gaussian:
        mean, log_sigma = jnp.split(self.head(self.features(x)), 2, axis=-1)
        return Gaussian(mean, soft_clamp(log_sigma))


def soft_clamp(log_sigma: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Clamp to [LOG_SIGMA_MIN, LOG_SIGMA_MAX] with a gradient everywhere, as in PETS.

    PETS takes x <- max - softplus(max - x), then x <- min + softplus(x - min). Together that is
    e^x <- e^min + e^max sigmoid(x - max): a fraction of the exponentials and logarithms.
    """
    low, high = math.exp(LOG_SIGMA_MIN), math.exp(LOG_SIGMA_MAX)
    return jnp.log(low + high * jax.nn.sigmoid(log_sigma - LOG_SIGMA_MAX))


# --- The world -----------------------------------------------------------------------------------


class Scaler(eqx.Module):
    """Standardisation of states (s and s' share it), actions and rewards."""

    state_mean: Float[Array, " s"]
    state_std: Float[Array, " s"]
    action_mean: Float[Array, " a"]
    action_std: Float[Array, " a"]
    reward_mean: Float[Array, ""]
    reward_std: Float[Array, ""]

    def inputs(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, "b inputs"]:
        """What a member sees: the standardised (s, a)."""
        return jnp.concatenate(
            [
                (state - self.state_mean) / self.state_std,
                (action - self.action_mean) / self.action_std,
            ],
            axis=-1,
        )


class WorldStep(NamedTuple):
    next_state: Float[Array, "k s"]
    reward: Float[Array, " k"]
    uncertainty: Float[Array, " k"]


class World(eqx.Module):
    """The posterior: N members, stacked on the leading axis of every leaf, and their scaler."""

    members: Member
    scaler: Scaler
    reward_only: bool = eqx.field(static=True)
    quantifier: Quantifier = eqx.field(static=True)

    @property
    def size(self) -> int:
        """N, the number of members."""
        return self.members.head.bias.shape[0]

    def predict(self, state: Float[Array, "b s"], action: Float[Array, "b a"]) -> Gaussian:
        """Every member's Gaussian over (s' - s, r), standardised: leaves (N, b, d)."""
        inputs = self.scaler.inputs(state, action)
        return jax.vmap(lambda member: member(inputs))(self.members)

    def uncertainty(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, " b"]:
        """U(s, a), by the world's quantifier."""
        return quantify(self.predict(state, action), self.quantifier)

    def step(
        self,
        state: Float[Array, "k s"],
        action: Float[Array, "k a"],
        member: Int[Array, " k"],
        keys: Key[Array, " k"],
    ) -> WorldStep:
        """(s', r) ~ m_theta(s, a) and U(s, a), each rollout in its own member and from its own key.

        The rollouts' own predictions are slices of the evaluation that U needs anyway.
        """
        scaler = self.scaler
        prediction = self.predict(state, action)
        own = Gaussian(*(leaf[member, jnp.arange(len(member))] for leaf in prediction))
        noise = jax.vmap(lambda key: jax.random.normal(key, own.mean.shape[1:]))(keys)
        sample = own.mean + jnp.exp(own.log_sigma) * noise
        return WorldStep(
            next_state=state if self.reward_only else state + sample[:, :-1] * scaler.state_std,
            reward=scaler.reward_mean + sample[:, -1] * scaler.reward_std,
            uncertainty=quantify(prediction, self.quantifier),
        )


def quantify(prediction: Gaussian, quantifier: Quantifier) -> Float[Array, " b"]:
    """U from the members' Gaussians, leaves (N, b, d), in standardised units.

    disagreement: sqrt(mean_d var_n mu), the paper's.  aleatoric: max_n ||sigma_n||_2, MOPO's.
    total: sqrt(mean_d (var_n mu + mean_n sigma^2)), by the law of total variance.
    """
    mean, log_sigma = prediction
    if quantifier == "aleatoric":
        return jnp.sqrt(jnp.exp(2 * log_sigma).sum(axis=-1)).max(axis=0)
    variance = mean.var(axis=0)
    if quantifier == "total":
        variance = variance + jnp.exp(2 * log_sigma).mean(axis=0)
    return jnp.sqrt(variance.mean(axis=-1))


# --- Shuffles ------------------------------------------------------------------------------------

_SHUFFLE_ROUNDS = 8  # fewer leave neighbours correlated; 8 pass the tests of randomness


def shuffle_keys(key: Key[Array, ""]) -> UInt32[Array, " rounds"]:
    """The round keys of one shuffle."""
    return jax.random.bits(key, (_SHUFFLE_ROUNDS,), jnp.uint32)


def shuffled(
    position: Int[Array, " b"], count: Int[Array, ""], keys: UInt32[Array, " rounds"]
) -> Int[Array, " b"]:
    """Where a keyed shuffle of 0 .. count - 1 sends `position`, without the shuffle as a table.

    A Feistel network on pairs (left, right) of the grid rows x columns, the smallest near-square
    that holds `count` positions: each round adds a keyed hash of one half to the other, modulo its
    side, and so is a bijection. The few cells beyond `count` are walked through: a position that
    lands there is sent on until it comes back, which keeps a bijection on what is left.
    """
    count = count.astype(jnp.uint32)
    columns = jnp.ceil(jnp.sqrt(count.astype(jnp.float32))).astype(jnp.uint32)
    rows = (count + columns - 1) // columns

    def send(cell: UInt32[Array, " b"]) -> UInt32[Array, " b"]:
        left, right = cell // columns, cell % columns
        for round_, key in enumerate(keys):
            if round_ % 2:
                left = _add_hash(left, right, key, rows)
            else:
                right = _add_hash(right, left, key, columns)
        return left * columns + right

    start = send(position.astype(jnp.uint32))
    cells = jax.lax.while_loop(
        lambda cells: jnp.any(cells >= count),
        lambda cells: jnp.where(cells >= count, send(cells), cells),
        start,
    )
    return cells.astype(jnp.int32)


def _add_hash(
    half: UInt32[Array, " b"], other: UInt32[Array, " b"], key: UInt32[Array, ""], side: Any
) -> UInt32[Array, " b"]:
    """half + hash(other, key) modulo side, for sides up to 2^16."""
    hashed = (other ^ key) * jnp.uint32(0x9E3779B1)  # an odd multiplier with well-spread bits
    hashed = (hashed ^ (hashed >> 15) ^ key) * jnp.uint32(0x85EBCA77)
    hashed = (hashed ^ (hashed >> 13)) * jnp.uint32(0xC2B2AE3D)
    moved = half + (((hashed >> 16) * side) >> 16)  # scaled into the side: no division
    return jnp.where(moved >= side, moved - side, moved)


# --- Data ----------------------------------------------------------------------------------------

# A tape beyond this size is streamed to the device in chunks instead of being held there whole.
RESIDENT_BYTES = 2 << 30
_CHUNK = 1 << 18  # transitions on the device at once when streaming
_BLOCK = 1 << 8  # consecutive transitions that stay together when an epoch is cut into chunks


class Transitions(NamedTuple):
    """Transitions (s, a, r, s') as an index of rows: s' is the state of the row after."""

    state: Float[Array, "rows s"]
    action: Float[Array, "rows a"]
    reward: Float[Array, " rows"]
    row: Int[Array, " n"]

    @staticmethod
    def view(tape: Tape, rows: Int[np.ndarray, " n"]) -> "Transitions":
        """The whole tape on the device, and an index."""
        fields = (tape.state, tape.action, tape.reward, rows.astype(np.int32))
        return Transitions(*map(jnp.asarray, fields))

    @staticmethod
    def copy(dataset: Dataset, rows: Int[np.ndarray, " n"]) -> "Transitions":
        """The wanted rows alone, each followed by its successor."""
        pairs = dataset.take(np.stack([rows, rows + 1], axis=1).ravel())
        return Transitions.view(pairs, np.arange(0, 2 * len(rows), 2))


class Batch(NamedTuple):
    """Standardised inputs (s, a) and targets (s' - s, r), and which rows count."""

    inputs: Float[Array, "b inputs"]
    targets: Float[Array, "b d"]
    counts: Bool[Array, " b"]


def gather(
    data: Transitions,
    index: Int[Array, " b"],
    counts: Bool[Array, " b"],
    scaler: Scaler,
    reward_only: bool,
) -> Batch:
    """The transitions at `index`, standardised."""
    row = data.row[index]
    state, action = data.state[row], data.action[row]
    targets = ((data.reward[row] - scaler.reward_mean) / scaler.reward_std)[:, None]
    if not reward_only:
        delta = (data.state[row + 1] - state) / scaler.state_std
        targets = jnp.concatenate([delta, targets], axis=-1)
    return Batch(scaler.inputs(state, action), targets, counts)


def fit_scaler(dataset: Dataset) -> Scaler:
    """Means and stds of the transitions' states (each once), actions and rewards."""
    rows = dataset.world_rows
    states = _moments(lambda piece: dataset.take(piece).state, np.union1d(rows, rows + 1))
    actions = _moments(lambda piece: dataset.take(piece).action, rows)
    rewards = _moments(lambda piece: dataset.take(piece).reward, rows)
    moments = (*states, *actions, *rewards)
    return Scaler(*(jnp.asarray(moment, jnp.float32) for moment in moments))


def _moments(
    take: Callable[[np.ndarray], Any], rows: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "*d"], Float[np.ndarray, "*d"]]:
    """Mean and std of `take(rows)` in float64, piece by piece; a std of about zero becomes one.

    Differences to the first row are summed, so that a constant has a std of exactly zero.
    """
    origin = take(rows[:1])[0].astype(np.float64)
    total, squares = np.zeros_like(origin), np.zeros_like(origin)
    for piece in np.array_split(rows, math.ceil(len(rows) / _CHUNK)):
        shifted = take(piece) - origin
        total += shifted.sum(axis=0)
        squares += (shifted**2).sum(axis=0)
    mean = total / len(rows)
    std = np.sqrt(np.maximum(squares / len(rows) - mean**2, 0.0))
    return np.asarray(origin + mean), np.where(std < 1e-12, 1.0, std)


def split_rows(
    rows: Int[np.ndarray, " n"], config: WorldConfig, seed: int
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " validation"]]:
    """Training and validation rows: a split fixed by the seed."""
    held_out = max(int(config.validation_fraction * len(rows)), 1)
    held_out = min(held_out, config.validation_max or held_out)
    chosen = np.zeros(len(rows), bool)
    chosen[np.random.default_rng(seed).choice(len(rows), held_out, replace=False)] = True
    return rows[~chosen], rows[chosen]


class Work(NamedTuple):
    """One call's share of an epoch: batches first .. last - 1 of a chunk of transitions."""

    data: Transitions
    transitions: int  # of the chunk
    chunk: int
    first: int
    last: int


class Epochs:
    """The training transitions, epoch by epoch, in shares that one call works off.

    A tape that fits lies on the device as one chunk. A larger one is cut anew for every epoch into
    chunks of random blocks, the same for all members, and each member shuffles within them.
    """

    def __init__(
        self,
        dataset: Dataset,
        rows: Int[np.ndarray, " n"],
        *,
        batch: int,
        batches_per_call: int,
        seed: int,
    ):
        self._dataset, self._rows, self._seed = dataset, rows, seed
        tape = dataset.tape
        size = tape.state.nbytes + tape.action.nbytes + tape.reward.nbytes
        self._resident = Transitions.view(tape, rows) if size <= RESIDENT_BYTES else None
        self._chunk = len(rows) if self._resident else min(_CHUNK, len(rows))

        self._plan = []  # (chunk, its transitions, first and last batch) of every share
        for chunk in range(math.ceil(len(rows) / self._chunk)):
            count = min(self._chunk, len(rows) - chunk * self._chunk)
            batches = math.ceil(count / batch)
            for first in range(0, batches, batches_per_call):
                self._plan.append((chunk, count, first, min(first + batches_per_call, batches)))

    def __len__(self) -> int:
        """Shares of an epoch."""
        return len(self._plan)

    def shares(self, epoch: int, done: int) -> Iterator[Work]:
        """The shares of an epoch in order, without the first `done` of them."""
        loaded, data = None, self._resident
        for chunk, count, first, last in self._plan[done:]:
            if data is None or (self._resident is None and loaded != chunk):
                loaded, data = chunk, self._load(epoch, chunk)
            yield Work(data, count, chunk, first, last)

    def _load(self, epoch: int, chunk: int) -> Transitions:
        """A chunk of random blocks of transitions, of the same size whatever the chunk."""
        blocks = math.ceil(len(self._rows) / _BLOCK)
        order = np.random.default_rng([self._seed, epoch]).permutation(blocks)
        position = (order[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        position = position[position < len(self._rows)]
        position = position[chunk * self._chunk : (chunk + 1) * self._chunk]
        # A short last chunk repeats a row up to the common size, beyond what is counted.
        position = np.pad(position, (0, self._chunk - len(position)), mode="edge")
        return Transitions.copy(self._dataset, self._rows[position])


# --- Training ------------------------------------------------------------------------------------


class Learner(eqx.Module):
    """Members in training; every leaf has the pool's axis in front."""

    members: Member
    optimiser: optax.OptState


class Validated(eqx.Module):
    """Each member's best snapshot and its validation score; the pool's axis is in front."""

    members: Member
    score: Float[Array, " pool"]


def training_flops(inputs: int, outputs: int, config: WorldConfig) -> int:
    """Matrix-multiplication flops of one gradient step of one member."""
    inner = (config.depth - 1) * config.width**2 + config.width * 2 * outputs
    outer = inputs * config.width  # no gradient is taken with respect to the inputs
    return 2 * config.batch * (3 * inner + 2 * outer)


def optimiser(config: WorldConfig) -> optax.GradientTransformation:
    return optax.adamw(config.learning_rate, weight_decay=config.weight_decay)


def _errors(member: Member, batch: Batch) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Squared error and negative log-likelihood of each row, means over dimensions."""
    mean, log_sigma = member(batch.inputs)
    error = batch.targets - mean
    likelihood = 0.5 * (error * jnp.exp(-log_sigma)) ** 2 + log_sigma + 0.5 * math.log(2 * math.pi)
    return (error**2).mean(axis=-1), likelihood.mean(axis=-1)


def loss(member: Member, batch: Batch) -> Float[Array, ""]:
    """Gaussian negative log-likelihood, mean over the rows that count and over dimensions."""
    _, likelihood = _errors(member, batch)
    return jnp.sum(jnp.where(batch.counts, likelihood, 0)) / jnp.sum(batch.counts)


def _members_at_once(pool: int) -> int:
    """How many members work side by side; the groups come one after the other.

    On CPUs a small group's parameters and activations stay in cache over many gradient steps.
    Accelerators want all the parallelism there is.
    """
    if jax.default_backend() != "cpu":
        return pool
    return max(group for group in range(1, min(4, pool) + 1) if pool % group == 0)


def _in_groups(function: Callable[..., Any], into: Any, *stacked: Any) -> Any:
    """Overwrite `into` group by group with function(group of into, group of stacked ...)."""
    pool = jax.tree.leaves(into)[0].shape[0]
    group = _members_at_once(pool)

    def visit(number: Int[Array, ""], into: Any) -> Any:
        parts = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, number * group, group), (into, *stacked)
        )
        return jax.tree.map(
            lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, number * group, 0),
            into,
            function(*parts),
        )

    return jax.lax.fori_loop(0, pool // group, visit, into)


def _over_devices(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Let every device of the mesh call `function(stacked, shared)` on its share of the pool."""
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=(PartitionSpec("pool"), PartitionSpec()),
        out_specs=PartitionSpec("pool"),
        check_vma=False,  # nothing passes between devices
    )


def pool_mesh(pool: int) -> Mesh:
    """As many devices as share the pool evenly."""
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if pool % n == 0)
    return Mesh(np.asarray(devices[:count]), ("pool",))


@functools.partial(
    jax.jit, static_argnames=("config", "reward_only", "mesh"), donate_argnames=("learner",)
)
def train(
    learner: Learner,
    shuffles: UInt32[Array, "pool rounds"],
    data: Transitions,
    count: Int[Array, ""],
    first: Int[Array, ""],
    last: Int[Array, ""],
    scaler: Scaler,
    *,
    config: WorldConfig,
    reward_only: bool,
    mesh: Mesh,
) -> Learner:
    """Gradient steps first .. last - 1 of every member's own epoch over `count` transitions."""

    def on_device(stacked: tuple[Learner, Any], shared: tuple[Any, ...]) -> Learner:
        data, count, first, last, scaler = shared

        def step(
            number: Int[Array, ""], learner: Learner, keys: UInt32[Array, " rounds"]
        ) -> Learner:
            position = number * config.batch + jnp.arange(config.batch)
            counts = position < count
            index = shuffled(jnp.where(counts, position, 0), count, keys)
            batch = gather(data, index, counts, scaler, reward_only)
            gradient = jax.grad(loss)(learner.members, batch)
            update, state = optimiser(config).update(gradient, learner.optimiser, learner.members)
            return Learner(optax.apply_updates(learner.members, update), state)

        def group(learner: Learner, keys: UInt32[Array, "group rounds"]) -> Learner:
            def steps(number: Int[Array, ""], learner: Learner) -> Learner:
                return jax.vmap(step, in_axes=(None, 0, 0))(number, learner, keys)

            return jax.lax.fori_loop(first, last, steps, learner)

        return _in_groups(group, *stacked)

    shared = (data, count, first, last, scaler)
    return _over_devices(on_device, mesh)((learner, shuffles), shared)


_VALIDATION_BLOCK = 1024


@functools.partial(jax.jit, static_argnames=("config", "reward_only", "mesh"))
def validate(
    members: Member,
    data: Transitions,
    scaler: Scaler,
    *,
    config: WorldConfig,
    reward_only: bool,
    mesh: Mesh,
) -> Float[Array, " pool"]:
    """Every member's validation score: MSE or negative log-likelihood, lower is better."""

    def on_device(members: Member, shared: tuple[Transitions, Scaler]) -> Float[Array, " members"]:
        data, scaler = shared
        count = data.row.shape[0]

        def score(member: Member) -> Float[Array, ""]:
            def block(number: Int[Array, ""], total: Float[Array, ""]) -> Float[Array, ""]:
                position = number * _VALIDATION_BLOCK + jnp.arange(_VALIDATION_BLOCK)
                counts = position < count
                batch = gather(data, jnp.where(counts, position, 0), counts, scaler, reward_only)
                squared, likelihood = _errors(member, batch)
                chosen = squared if config.selection == "mse" else likelihood
                return total + jnp.sum(jnp.where(counts, chosen, 0))

            blocks = math.ceil(count / _VALIDATION_BLOCK)
            return jax.lax.fori_loop(0, blocks, block, jnp.zeros(())) / count

        pool = members.head.bias.shape[0]
        return _in_groups(lambda _, part: jax.vmap(score)(part), jnp.zeros(pool), members)

    return _over_devices(on_device, mesh)(members, (data, scaler))


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("best",))
def keep_best(
    best: Validated, members: Member, score: Float[Array, " pool"], *, config: WorldConfig
) -> tuple[Validated, Bool[Array, " pool"]]:
    """Renew the snapshots of the members whose score improved by enough, and say which did."""
    scale = jnp.abs(best.score) if config.improvement_kind == "relative" else 1.0
    enough = best.score - score > config.improvement * scale
    improved = jnp.isfinite(score) & (jnp.isinf(best.score) | enough)

    def renew(old: Array, new: Array) -> Array:
        return jnp.where(improved.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(renew, best, Validated(members, score)), improved


def select(scores: Float[np.ndarray, " pool"], members: int) -> Int[np.ndarray, " members"]:
    """The members of the pool to keep, best first."""
    usable = int(np.isfinite(scores).sum())
    if usable < members:
        raise WorldError(
            f"only {usable} of {len(scores)} members have a finite validation score, and "
            f"{members} are to be kept: lower the learning rate, or check the data's range"
        )
    return np.argsort(scores, kind="stable")[:members]


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where the fit is, for a display."""

    stage: Literal["training", "uncertainty"]
    epoch: int  # epochs completed
    share: float  # of the running epoch, or of the data whose uncertainty is measured
    seconds: float  # of training, sessions before a resume included
    history: list["EpochRecord"]


class EpochRecord(NamedTuple):
    """Validation scores after one epoch, over the members where they are finite."""

    best: float | None
    median: float | None
    improved: int  # members whose snapshot was renewed

    @staticmethod
    def of(score: Float[np.ndarray, " pool"], improved: Bool[np.ndarray, " pool"]) -> "EpochRecord":
        finite = score[np.isfinite(score)]
        if not finite.size:
            return EpochRecord(None, None, 0)
        return EpochRecord(float(finite.min()), float(np.median(finite)), int(improved.sum()))


@dataclasses.dataclass(frozen=True)
class FittedWorld:
    """A trained world, and what is known of its training and of its data."""

    world: World
    scores: Float[np.ndarray, " pool"]
    """Best validation score of every member of the pool; infinite where it never was finite."""
    kept: Int[np.ndarray, " members"]
    """The members of the pool that became the world's, best first."""
    data_uncertainty: Float[np.ndarray, " transitions"]
    """U of every transition of the dataset, in the order of `Dataset.world_rows`."""
    history: list[EpochRecord]
    seconds: float
    config: WorldConfig
    seed: int
    dataset_name: str
    dataset_hash: str
    provenance: dict[str, str]

    def threshold(self, zeta: float) -> float:
        """The zeta-quantile of U over the data (linear interpolation); 1 is its maximum."""
        return float(np.quantile(self.data_uncertainty, zeta))

    @property
    def mean_uncertainty(self) -> float:
        """mean_D(U), the unit of the uncertainty penalty."""
        return float(self.data_uncertainty.mean(dtype=np.float64))


# Work of one call at most, so that progress shows and an interrupt is answered within seconds.
_FLOPS_PER_CALL = 1e12
_CHECKPOINT_SECONDS = 60.0


@dataclasses.dataclass
class Training:
    """All that an interrupted training needs to go on."""

    learner: Learner
    best: Validated
    history: list[EpochRecord] = dataclasses.field(default_factory=list)
    shares: int = 0  # of the running epoch, done
    waited: int = 0  # epochs since a member improved
    seconds: float = 0.0

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return len(self.history)

    def ended(self, config: WorldConfig) -> bool:
        """Early stopping, or the cap."""
        return self.waited >= config.patience or self.epoch == config.max_epochs

    def save(self, path: Path, identity: dict[str, Any]) -> None:
        about = {
            "identity": identity,
            "history": self.history,
            "shares": self.shares,
            "waited": self.waited,
            "seconds": self.seconds,
        }
        runs.save_arrays(path, (self.learner, self.best), about)

    @staticmethod
    def load(path: Path, like: "Training", identity: dict[str, Any]) -> "Training":
        """Read a checkpoint of the same fit; another one's is an error that says how it differs."""
        try:
            (learner, best), about = runs.load_arrays(path, (like.learner, like.best))
        except RunError as error:
            raise WorldError(f"{error}; remove it to train from the start") from None
        for name, ours in identity.items():
            theirs = about["identity"].get(name)
            if theirs != ours:
                raise WorldError(
                    f"{path}: an interrupted training of another {name} ({theirs}, here {ours}); "
                    "choose another directory, or remove it to train from the start"
                )
        history = [EpochRecord(*record) for record in about["history"]]
        return Training(learner, best, history, about["shares"], about["waited"], about["seconds"])


def fit(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    *,
    directory: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> FittedWorld:
    """Train a pool of members on a dataset and keep the best N.

    With a `directory` the fit goes on where an interrupted one left it there, is saved there, and
    is read from there once finished. `progress` may raise KeyboardInterrupt to stop.
    """
    if directory is not None and (directory / _WORLD_FILE).exists():
        return _finished(directory, dataset, config, seed)
    rows = dataset.world_rows
    if len(rows) < 2:
        raise WorldError(
            f"{dataset.name}: {len(rows)} transitions to learn from; "
            "a world needs one to train on and one to validate with, and deserves thousands"
        )
    scaler = fit_scaler(dataset)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(scaler)):
        raise WorldError(
            f"{dataset.name}: states, actions or rewards are not finite or overflow float32; "
            "'neubay data validate' names the rows"
        )
    report = progress or (lambda _: None)
    training = _train_pool(dataset, config, seed, scaler, directory, report)
    scores = np.asarray(training.best.score)
    kept = select(scores, config.members)
    world = World(
        jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[kept]), training.best.members),
        scaler,
        dataset.task.reward_only,
        config.quantifier,
    )

    def report_share(share: float) -> None:
        report(Progress("uncertainty", training.epoch, share, training.seconds, training.history))

    fitted = FittedWorld(
        world=world,
        scores=scores,
        kept=kept,
        data_uncertainty=uncertainty_over(world, dataset, report_share),
        history=training.history,
        seconds=training.seconds,
        config=config,
        seed=seed,
        dataset_name=dataset.name,
        dataset_hash=dataset.hash,
        provenance=runs.provenance(),
    )
    if directory is not None:
        save(fitted, directory)
        (directory / _CHECKPOINT_FILE).unlink(missing_ok=True)
    return fitted


def _train_pool(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    scaler: Scaler,
    directory: Path | None,
    report: Callable[[Progress], None],
) -> Training:
    """Epochs until no member has improved for `patience` of them, or the cap is reached."""
    inputs, outputs = member_sizes(dataset.task)
    training_rows, validation_rows = split_rows(dataset.world_rows, config, seed)
    step_flops = config.pool * training_flops(inputs, outputs, config)
    epochs = Epochs(
        dataset,
        training_rows,
        batch=config.batch,
        batches_per_call=max(int(_FLOPS_PER_CALL / step_flops), 1),
        seed=seed,
    )
    validation = Transitions.copy(dataset, validation_rows)
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(
        jnp.arange(config.pool)
    )
    mesh = pool_mesh(config.pool)
    static = {"config": config, "reward_only": dataset.task.reward_only, "mesh": mesh}

    training = Training(*initial_members(keys, inputs, outputs, config))
    checkpoint = None if directory is None else directory / _CHECKPOINT_FILE
    identity = _identity(dataset.hash, config, seed)
    if checkpoint is not None and checkpoint.exists():
        training = Training.load(checkpoint, training, identity)
    training.learner, training.best = jax.device_put(
        (training.learner, training.best), NamedSharding(mesh, PartitionSpec("pool"))
    )
    begun = saved = time.monotonic()
    before = training.seconds

    with runs.deferred_signals() as signalled:

        def pause() -> None:
            """A point where the state is whole: show it, save it when it is time, stop if asked."""
            nonlocal saved
            now = time.monotonic()
            training.seconds = before + now - begun
            stop = signalled()
            try:
                share = training.shares / len(epochs)
                report(
                    Progress("training", training.epoch, share, training.seconds, training.history)
                )
            except KeyboardInterrupt:
                stop = True
            if checkpoint is not None and (stop or now - saved > _CHECKPOINT_SECONDS):
                training.save(checkpoint, identity)
                saved = time.monotonic()
            if stop:
                raise KeyboardInterrupt

        while not training.ended(config):
            for work in epochs.shares(training.epoch, training.shares):
                # One call in flight: the next chunk was read while the last call ran.
                jax.block_until_ready(training.learner)
                shuffles = epoch_shuffles(keys, training.epoch, work.chunk)
                span = (work.transitions, work.first, work.last)
                training.learner = train(
                    training.learner, shuffles, work.data, *span, scaler, **static
                )
                training.shares += 1
                pause()
            score = validate(training.learner.members, validation, scaler, **static)
            training.best, improved = keep_best(
                training.best, training.learner.members, score, config=config
            )
            training.history.append(EpochRecord.of(np.asarray(score), np.asarray(improved)))
            training.shares = 0
            training.waited = 0 if improved.any() else training.waited + 1
            pause()
    return training


@functools.partial(jax.jit, static_argnames=("inputs", "outputs", "config"))
def initial_members(
    keys: Key[Array, " pool"], inputs: int, outputs: int, config: WorldConfig
) -> tuple[Learner, Validated]:
    """A fresh pool, every member from its own key."""
    members = jax.vmap(lambda key: Member(inputs, outputs, config, key=key))(keys)
    learner = Learner(members, jax.vmap(optimiser(config).init)(members))
    return learner, Validated(members, jnp.full(config.pool, jnp.inf))


@jax.jit
def epoch_shuffles(
    keys: Key[Array, " pool"], epoch: Int[Array, ""], chunk: Int[Array, ""]
) -> UInt32[Array, "pool rounds"]:
    """Every member's shuffle of a chunk in an epoch."""

    def member_shuffle(key: Key[Array, ""]) -> UInt32[Array, " rounds"]:
        return shuffle_keys(jax.random.fold_in(jax.random.fold_in(key, epoch), chunk))

    return jax.vmap(member_shuffle)(keys)


def member_sizes(task: Task) -> tuple[int, int]:
    """Inputs (s, a) and outputs (s', r), or (r) of a bandit."""
    return task.state_size + task.actions.size, 1 if task.reward_only else task.state_size + 1


_UNCERTAINTY_ROWS = 512  # evaluated by all members at once


def uncertainty_over(
    world: World, dataset: Dataset, report: Callable[[float], None] = lambda share: None
) -> Float[np.ndarray, " transitions"]:
    """U of every transition of the dataset."""
    rows = dataset.world_rows
    measure = eqx.filter_jit(World.uncertainty)
    values = np.empty(len(rows), np.float32)
    for begin in range(0, len(rows), _UNCERTAINTY_ROWS):
        piece = rows[begin : begin + _UNCERTAINTY_ROWS]
        # Padded to one shape, so that one compilation serves all pieces.
        tape = dataset.take(np.pad(piece, (0, _UNCERTAINTY_ROWS - len(piece)), mode="edge"))
        measured = measure(world, jnp.asarray(tape.state), jnp.asarray(tape.action))
        values[begin : begin + len(piece)] = measured[: len(piece)]
        report(min(begin + _UNCERTAINTY_ROWS, len(rows)) / len(rows))
    return values


# --- Files ---------------------------------------------------------------------------------------

_LAYOUT = 1
_WORLD_FILE = "world.json"  # written last: its presence says that the world is whole
_MEMBERS_FILE = "members.npz"
_UNCERTAINTY_FILE = "data_uncertainty.npy"
_CHECKPOINT_FILE = "training.npz"
_QUANTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)


def _identity(dataset_hash: str, config: WorldConfig, seed: int) -> dict[str, Any]:
    """What two fits must share to be the same fit."""
    return {
        "layout": _LAYOUT,
        "dataset hash": dataset_hash,
        "seed": seed,
        "config": config.model_dump(),
    }


def _finished(directory: Path, dataset: Dataset, config: WorldConfig, seed: int) -> FittedWorld:
    """The world that a directory already holds, if it is the one asked for."""
    fitted = load(directory, dataset)
    theirs = _identity(fitted.dataset_hash, fitted.config, fitted.seed)
    ours = _identity(dataset.hash, config, seed)
    for name in theirs:
        if theirs[name] != ours[name]:
            raise WorldError(
                f"{directory}: holds a world of another {name} ({theirs[name]}, "
                f"asked for {ours[name]}); choose another directory"
            )
    return fitted


def save(fitted: FittedWorld, directory: Path) -> None:
    """Write a world directory."""
    world = fitted.world
    runs.save_arrays(directory / _MEMBERS_FILE, world, {"layout": _LAYOUT})
    with runs.atomic_file(directory / _UNCERTAINTY_FILE) as file:
        np.save(file, fitted.data_uncertainty)
    about = {
        "layout": _LAYOUT,
        "dataset": {
            "name": fitted.dataset_name,
            "hash": fitted.dataset_hash,
            "transitions": len(fitted.data_uncertainty),
            "state_size": len(world.scaler.state_mean),
            "action_size": len(world.scaler.action_mean),
            "reward_only": world.reward_only,
        },
        "seed": fitted.seed,
        "config": fitted.config.model_dump(),
        "scores": [score if math.isfinite(score) else None for score in fitted.scores.tolist()],
        "kept": fitted.kept.tolist(),
        "uncertainty": {
            "mean": fitted.mean_uncertainty,
            "quantiles": {str(zeta): fitted.threshold(zeta) for zeta in _QUANTILES},
        },
        "history": [record._asdict() for record in fitted.history],
        "seconds": fitted.seconds,
        "files": {
            name: runs.file_hash(directory / name) for name in (_MEMBERS_FILE, _UNCERTAINTY_FILE)
        },
        "provenance": fitted.provenance,
    }
    runs.atomic_write_json(directory / _WORLD_FILE, about)


def load(directory: Path, dataset: Dataset | None = None) -> FittedWorld:
    """Read a world directory; with a dataset, check that the world was trained on it."""
    path = directory / _WORLD_FILE
    if not path.exists():
        unfinished = (directory / _CHECKPOINT_FILE).exists()
        hint = "its training was interrupted; run it again to finish" if unfinished else "no world"
        raise WorldError(f"{directory}: {hint} ('{_WORLD_FILE}' is missing)")
    try:
        about = runs.read_json(path)
        if about.get("layout") != _LAYOUT:
            raise WorldError(
                f"{path}: layout {about.get('layout')}, this version reads {_LAYOUT}; "
                "train the world again, or use the version that wrote it"
            )
        fitted = _restored(directory, about)
    except RunError as error:
        raise WorldError(str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise WorldError(f"{path}: damaged: {type(error).__name__} {error}") from None
    if dataset is not None and dataset.hash != fitted.dataset_hash:
        raise WorldError(
            f"{directory}: trained on {fitted.dataset_name} with hash {fitted.dataset_hash}, but "
            f"{dataset.name} has hash {dataset.hash}; use the same data, or train a world on this"
        )
    return fitted


def _restored(directory: Path, about: dict[str, Any]) -> FittedWorld:
    for name, recorded in about["files"].items():
        found = runs.file_hash(directory / name)
        if found != recorded:
            raise WorldError(
                f"{directory / name}: SHA-256 {found}, recorded {recorded}; "
                "the file is damaged or from another world"
            )
    config = validated(WorldConfig, about["config"], str(directory / _WORLD_FILE))
    data = about["dataset"]
    world, _ = runs.load_arrays(directory / _MEMBERS_FILE, _blank_world(data, config))
    uncertainty = np.load(directory / _UNCERTAINTY_FILE, allow_pickle=False)
    if uncertainty.shape != (data["transitions"],):
        raise WorldError(
            f"{directory / _UNCERTAINTY_FILE}: {uncertainty.shape} values, "
            f"expected one for each of {data['transitions']} transitions"
        )
    scores = [np.inf if score is None else score for score in about["scores"]]
    return FittedWorld(
        world=jax.tree.map(jnp.asarray, world),
        scores=np.asarray(scores, np.float32),
        kept=np.asarray(about["kept"]),
        data_uncertainty=uncertainty,
        history=[EpochRecord(**record) for record in about["history"]],
        seconds=about["seconds"],
        config=config,
        seed=about["seed"],
        dataset_name=data["name"],
        dataset_hash=data["hash"],
        provenance=about["provenance"],
    )


def _blank_world(data: dict[str, Any], config: WorldConfig) -> World:
    """The structure and the shapes of a world, without its numbers."""
    state_size, action_size = data["state_size"], data["action_size"]

    def build() -> World:
        s, a, scalar = jnp.zeros(state_size), jnp.zeros(action_size), jnp.zeros(())
        outputs = 1 if data["reward_only"] else state_size + 1
        members = jax.vmap(lambda key: Member(state_size + action_size, outputs, config, key=key))(
            jax.random.split(jax.random.key(0), config.members)
        )
        scaler = Scaler(s, s, a, a, scalar, scalar)
        return World(members, scaler, data["reward_only"], config.quantifier)

    return jax.eval_shape(build)
