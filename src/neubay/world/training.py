"""Training a pool of members together: one call for many gradient steps of all of them.

Members never meet: each has its own parameters, its own optimiser, its own shuffle of the data
and its own best snapshot. How they are laid out over devices and time is decided in `Layout`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from neubay.config import WorldConfig, known
from neubay.devices import choices
from neubay.errors import WorldError
from neubay.tasks import Task
from neubay.world.model import Member, Scaler
from neubay.world.prior import SHARE, Prior, pseudo_observations
from neubay.world.shuffle import shuffle_keys, shuffled, times_drawn
from neubay.world.transitions import Batch, Share, Transitions, gather


class Learner(eqx.Module):
    """Members in training; the leading axis of every leaf is the pool's."""

    members: Member
    optimiser: optax.OptState
    average: Member | None = None
    """The running mean of their weights, where there is one."""
    bootstrap: UInt32[Array, "*pool"] | None = None
    """The key of each one's bootstrap of the episodes, where it has one."""
    prior: Prior | None = None
    """What each believes where the data says nothing, where it is shown that."""

    @property
    def result(self) -> Member:
        """What the training has come to."""
        return self.members if self.average is None else self.average


_BOOTSTRAP = (1 << 31) - 1  # in the place of an epoch, in keys: one that no training reaches
Stacked = TypeVar("Stacked")  # the leading axis of every leaf is the pool's


class Snapshots(eqx.Module):
    """Each member at its best so far, and its validation score then."""

    members: Member
    score: Float[Array, " pool"]


def member_sizes(task: Task) -> tuple[int, int]:
    """Inputs (s, a) and outputs (s', r), or (r) of a bandit."""
    return task.state_size + task.actions.size, 1 if task.reward_only else task.state_size + 1


def training_flops(inputs: int, outputs: int, config: WorldConfig) -> int:
    """Flops of the matrix products in one gradient step of one member."""
    first = inputs * config.width  # the gradient of the inputs is not computed
    others = (config.depth - 1) * config.width**2 + config.width * 2 * outputs
    rows = config.batch + (config.batch // SHARE if config.prior else 0)
    return 2 * rows * (2 * first + 3 * others)


# --- Layout --------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Where the members of a pool are trained: in parallel on devices or in lanes, and there in
    groups one after the other."""

    mesh: Mesh
    lanes: int  # equal parts of the pool, each trained by a thread of its own
    group: int  # members that take a step side by side
    compiler_options: tuple[tuple[str, str], ...]

    @property
    def sharding(self) -> NamedSharding:
        """Of arrays whose leading axis is the pool's."""
        return NamedSharding(self.mesh, PartitionSpec("pool"))


def best_layout(pool: int, group: int | None = None) -> Layout:
    """All devices that can share the pool evenly, and what suits the backend. With a `group`,
    members are trained in groups of that size, as they are where the rest of the pool is."""
    devices = jax.devices()
    used = choices.largest_divisor(pool // (group or 1), len(devices))
    mesh = Mesh(np.asarray(devices[:used]), ("pool",))
    return Layout(mesh, *choices.pool_layout(pool // used, used, group))


def _on_devices(function: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """`function(members, shared)` on every device's share of the pool."""
    return jax.shard_map(
        function,
        mesh=layout.mesh,
        in_specs=(PartitionSpec("pool"), PartitionSpec()),
        out_specs=PartitionSpec("pool"),
        check_vma=False,  # nothing passes between devices
    )


def _in_groups(group: int, function: Callable[..., Any], into: Any, *stacked: Any) -> Any:
    """Overwrite `into` with function(into, *stacked), group by group of the leading axis."""

    def visit(number: Int[Array, ""], into: Any) -> Any:
        def part(leaf: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(leaf, number * group, group)

        def put(leaf: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(leaf, new, number * group, axis=0)

        return jax.tree.map(put, into, function(*jax.tree.map(part, (into, *stacked))))

    return jax.lax.fori_loop(0, jax.tree.leaves(into)[0].shape[0] // group, visit, into)


# --- Steps ---------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """All that the compiled steps depend on."""

    config: WorldConfig
    inputs: int
    outputs: int
    reward_only: bool
    discrete: bool
    layout: Layout
    decay_steps: int | None
    """Gradient steps over which the learning rate falls to zero, if it does."""

    @staticmethod
    def of(
        task: Task,
        config: WorldConfig,
        most_steps: int | None = None,
        members: int | None = None,
        group: int | None = None,
    ) -> "Recipe":
        """Of a pool, or of some `members` of it in groups of a given size. `most_steps`: gradient
        steps that the caps allow, where there is a cap."""
        # Fits that differ only in when they stop or what they keep share their compiled steps.
        free = {"max_epochs": None, "max_steps": None, "members": 1, "decay": False}
        return Recipe(
            config.model_copy(update=free),
            *member_sizes(task),
            task.reward_only,
            task.actions.kind == "discrete",
            best_layout(members or config.pool, group),
            most_steps if config.decay else None,
        )


def _optimiser(recipe: Recipe) -> optax.GradientTransformation:
    rate, decay = recipe.config.learning_rate, recipe.decay_steps
    schedule = rate if decay is None else optax.cosine_decay_schedule(rate, decay)
    return optax.adamw(schedule, weight_decay=recipe.config.weight_decay)


def member_keys(pool: int, seed: int) -> Key[Array, " pool"]:
    """A key for each member, which depends on its place in the pool but not on the pool."""
    root = jax.random.key(seed)
    return jax.vmap(lambda place: jax.random.fold_in(root, place))(jnp.arange(pool))


@functools.partial(jax.jit, static_argnames=("recipe",))
def initialise(keys: Key[Array, " pool"], recipe: Recipe) -> tuple[Learner, Snapshots]:
    """A fresh pool."""

    def member(key: Key[Array, ""]) -> Member:
        return Member(recipe.inputs, recipe.outputs, recipe.config, key=key)

    members = jax.vmap(member)(keys)
    average = jax.tree.map(jnp.copy, members) if recipe.config.average else None
    bootstrap = jax.vmap(_bootstrap_key)(keys) if recipe.config.resample else None
    prior = None
    if recipe.config.prior:
        prior = jax.vmap(lambda key: Prior(recipe.inputs, recipe.outputs, key=key))(keys)
    optimiser = jax.vmap(_optimiser(recipe).init)(members)
    learner = Learner(members, optimiser, average, bootstrap, prior)
    return learner, Snapshots(members, jnp.full(len(keys), jnp.inf))


def _bootstrap_key(key: Key[Array, ""]) -> UInt32[Array, ""]:
    return jax.random.bits(jax.random.fold_in(key, _BOOTSTRAP), (), jnp.uint32)


@jax.jit
def epoch_shuffles(
    keys: Key[Array, " pool"], epoch: Int[Array, ""], chunk: Int[Array, ""]
) -> UInt32[Array, "pool rounds"]:
    """Every member's shuffle of a chunk in an epoch."""

    def shuffle(key: Key[Array, ""]) -> UInt32[Array, " rounds"]:
        return shuffle_keys(jax.random.fold_in(jax.random.fold_in(key, epoch), chunk))

    return jax.vmap(shuffle)(keys)


class Errors(NamedTuple):
    """Of each row and dimension."""

    squared: Float[Array, "b d"]
    likelihood: Float[Array, "b d"]  # its negative logarithm
    log_sigma: Float[Array, "b d"]


def errors(member: Member, batch: Batch) -> Errors:
    mean, log_sigma = member(batch.inputs)
    error = batch.targets - mean
    likelihood = 0.5 * (error * jnp.exp(-log_sigma)) ** 2 + log_sigma + 0.5 * math.log(2 * math.pi)
    return Errors(error**2, likelihood, log_sigma)


def loss(member: Member, batch: Batch, beta: float = 0.0) -> Float[Array, ""]:
    """Gaussian negative log-likelihood, mean over dimensions, each weighed by sigma^(2 beta), which
    is not differentiated, and over the rows that count, each as often as it was drawn."""
    _, likelihood, log_sigma = errors(member, batch)
    if beta:
        likelihood = likelihood * jnp.exp(2 * beta * jax.lax.stop_gradient(log_sigma))
    rows, count = likelihood.mean(axis=-1), jnp.sum(batch.counts).astype(jnp.float32)
    if batch.times is not None:
        rows = rows * batch.times
    return jnp.sum(jnp.where(batch.counts, rows, 0)) / count


def spread(learner: Learner, layout: Layout) -> list[Learner]:
    """A pool cut into lanes, on their devices."""
    learner = jax.device_put(learner, layout.sharding)
    if layout.lanes == 1:
        return [learner]
    leaves, structure = jax.tree.flatten(learner)
    parts = zip(*(jnp.split(leaf, layout.lanes) for leaf in leaves), strict=True)
    return [jax.tree.unflatten(structure, part) for part in parts]


def joined(lanes: list[Stacked]) -> Stacked:
    """The pool, or a part of it such as its members, that was cut into lanes or shards."""
    if len(lanes) == 1:
        return lanes[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *lanes)


def train(
    lanes: list[Learner],
    shuffles: UInt32[Array, "pool rounds"],
    share: Share,
    scaler: Scaler,
    recipe: Recipe,
) -> list[Learner]:
    """Each member's gradient steps on its own shuffle of a share; uses up the lanes given."""
    data, _, *span = share
    steps = trainer(recipe)

    def advance(lane: Learner, shuffles: UInt32[Array, "lane rounds"]) -> Learner:
        return steps(lane, shuffles, (data, *span, scaler))

    if len(lanes) == 1:
        return [advance(lanes[0], shuffles)]
    # A device runs calls from one thread in order, and calls from several threads in parallel.
    with ThreadPoolExecutor(len(lanes)) as threads:
        parts = jnp.split(shuffles, len(lanes))
        return list(threads.map(lambda *lane: jax.block_until_ready(advance(*lane)), lanes, parts))


@functools.cache
def trainer(recipe: Recipe) -> Callable[..., Learner]:
    """The compiled function behind `train`."""
    config, layout = recipe.config, recipe.layout
    optimiser = _optimiser(recipe)

    def steps(
        learner: Learner, shuffles: UInt32[Array, "pool rounds"], shared: tuple[Any, ...]
    ) -> Learner:
        data, count, first, last, scaler = shared

        def step(
            learner: Learner, keys: UInt32[Array, " rounds"], number: Int[Array, ""]
        ) -> Learner:
            position = number * config.batch + jnp.arange(config.batch)
            counts = position < count
            index = shuffled(jnp.where(counts, position, 0), count, keys)
            batch = gather(data, index, counts, scaler, recipe.reward_only)
            if learner.bootstrap is not None:
                assert data.episode is not None
                times = times_drawn(data.episode[index], learner.bootstrap)
                batch = batch._replace(times=times)

            def objective(member: Member) -> Float[Array, ""]:
                if learner.prior is None:
                    return loss(member, batch, config.beta)
                pseudo = pseudo_observations(
                    learner.prior, batch, scaler, keys, number, discrete=recipe.discrete
                )
                belief = loss(member, pseudo, config.beta)
                return loss(member, batch, config.beta) + known(config.prior) * belief

            gradient = jax.grad(objective)(learner.members)
            with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats
                update, state = optimiser.update(gradient, learner.optimiser, learner.members)
            members, average = optax.apply_updates(learner.members, update), learner.average
            if average is not None:
                average = jax.tree.map(
                    lambda old, new: new + config.average * (old - new), average, members
                )
            return dataclasses.replace(learner, members=members, optimiser=state, average=average)

        def group_steps(learner: Learner, keys: UInt32[Array, "group rounds"]) -> Learner:
            side_by_side = jax.vmap(step, in_axes=(0, 0, None))
            return jax.lax.fori_loop(
                first, last, lambda number, learner: side_by_side(learner, keys, number), learner
            )

        return _in_groups(layout.group, group_steps, learner, shuffles)

    def on_device(members: tuple[Learner, Any], shared: tuple[Any, ...]) -> Learner:
        return steps(*members, shared)

    def everywhere(
        learner: Learner, shuffles: UInt32[Array, "pool rounds"], shared: tuple[Any, ...]
    ) -> Learner:
        return _on_devices(on_device, layout)((learner, shuffles), shared)

    options = dict(layout.compiler_options)
    return jax.jit(everywhere, donate_argnums=0, compiler_options=options)


_VALIDATION_BLOCK = 1024  # transitions that a member predicts at once


@functools.partial(jax.jit, static_argnames=("recipe",))
def validate(
    members: Member, data: Transitions, scaler: Scaler, recipe: Recipe
) -> Float[Array, " pool"]:
    """Every member's validation score: MSE or negative log-likelihood, lower is better."""
    count = data.row.shape[0]

    def on_device(members: Member, shared: tuple[Transitions, Scaler]) -> Float[Array, " members"]:
        data, scaler = shared

        def score(member: Member) -> Float[Array, ""]:
            def block(number: Int[Array, ""], total: Float[Array, ""]) -> Float[Array, ""]:
                position = number * _VALIDATION_BLOCK + jnp.arange(_VALIDATION_BLOCK)
                counts = position < count
                index = jnp.where(counts, position, 0)
                batch = gather(data, index, counts, scaler, recipe.reward_only)
                of = errors(member, batch)
                chosen = of.squared if recipe.config.selection == "mse" else of.likelihood
                return total + jnp.sum(jnp.where(counts, chosen.mean(axis=-1), 0))

            blocks = math.ceil(count / _VALIDATION_BLOCK)
            return jax.lax.fori_loop(0, blocks, block, jnp.zeros(())) / count

        scores = jnp.zeros(members.head.bias.shape[0])
        return _in_groups(
            recipe.layout.group, lambda _, group: jax.vmap(score)(group), scores, members
        )

    return _on_devices(on_device, recipe.layout)(members, (data, scaler))


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("best",))
def keep_best(
    best: Snapshots, members: Member, score: Float[Array, " pool"], config: WorldConfig
) -> tuple[Snapshots, Bool[Array, " pool"]]:
    """Renew the snapshots of the members that improved by enough, and say which did."""
    unit = jnp.abs(best.score) if config.improvement_kind == "relative" else 1.0
    enough = best.score - score > config.improvement * unit
    improved = jnp.isfinite(score) & (jnp.isinf(best.score) | enough)

    def renew(old: Array, new: Array) -> Array:
        return jnp.where(improved.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(renew, best, Snapshots(members, score)), improved


def select(scores: Float[np.ndarray, " pool"], members: int) -> Int[np.ndarray, " members"]:
    """The members of the pool to keep, best first."""
    usable = int(np.isfinite(scores).sum())
    if usable < members:
        raise WorldError(
            f"only {usable} of {len(scores)} members have a finite validation score, and "
            f"{members} are to be kept: lower the learning rate, or check the data's range"
        )
    return np.argsort(scores, kind="stable")[:members]
