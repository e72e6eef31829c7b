"""What ends an episode, learned from the data's terminals: a head per member, calibrated.

A head is a small classifier of (s, a, s'). Few rows are terminal, and most that are not are far
from being so; each batch therefore holds terminal steps, steps shortly before one, and any others.
Few of the measurements decide: a penalty on the norm of each input's weights (group lasso) leaves
those, and the boundary becomes sharp (docs/results/termination.md has the measurements).

Whole episodes are dealt into three parts: heads learn from the first; thresholds come from the
second, where as many steps count as ends as there are; what is reported was measured on the third.
A timeout is no terminal: its step is one that did not end.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy  # it imports its parts where they are first used: half a second less at every start
from jaxtyping import Array, Bool, Float, Int, Key

from neubay.config import EndedBy, WorldConfig
from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.runs.messages import Tell
from neubay.world.fitted import FittedWorld, TerminationRecord
from neubay.world.model import Head, Member, Scaler, World

FEWEST_ENDS = 10
"""Terminal steps below which nothing can be learned and checked."""
MOST_ROWS = 1 << 18
"""Steps of one kind that heads learn from, or are checked on, at most: drawn at random."""
NEAR = 10
"""Steps before a terminal one that are the hardest to tell from it."""
STEPS, STEPS_PER_CALL = 4000, 500
BATCH = 256
LEARNING_RATE = 1e-2
SPARSITY = 3e-3
"""Of the norms of each input's weights; a tenth of it on every single weight."""
SHARES = (0.7, 0.15, 0.15)
"""Of the episodes: to learn from, to calibrate on, to measure on."""
TRUSTED = 0.5
"""Precision at the calibrated threshold below which ends are drawn instead: they do not follow from
(s, a, s'), and states that are always deadly would be made up."""
BLOCK = 4096  # steps that are judged at once
_SURVIVAL_POINTS = 60


# --- Whether to learn it -------------------------------------------------------------------------


def ended_by(dataset: Dataset, config: WorldConfig) -> EndedBy:
    """What tells terminal states in imagination; what cannot be is refused."""
    task, wanted = dataset.task, config.termination
    if wanted == "auto":
        if task.termination is not None:
            return "rule"
        if task.learns_termination:
            wanted = "learned"
        else:
            return "learned" if is_learnable(dataset) else "none"
    if wanted == "rule" and task.termination is None:
        raise WorldError(
            f"{dataset.name}: termination 'rule' is asked for, and task '{task.name}' has none; "
            "write one down (--task-file), or choose 'learned' or 'none' (--world.termination)"
        )
    if wanted == "learned":
        _refuse_few_ends(dataset)
    return wanted


def tell_choice(dataset: Dataset, config: WorldConfig, tell: Tell) -> None:
    """Say that ends are learned where the user did not ask for it."""
    chosen = config.termination == "auto" and not dataset.task.learns_termination
    if chosen and ended_by(dataset, config) == "learned":
        tell(
            f"{dataset.name}: no rule is known for what ends an episode, and "
            f"{count_ends(dataset):,} of {dataset.episodes:,} end in a terminal state: it is "
            "learned from them ('neubay world info' says how well; --world.termination none: "
            "imagined episodes run on)"
        )


def tell_quality(fitted: FittedWorld, tell: Tell) -> None:
    """Say how well a world learned what ends an episode, if it did."""
    record = fitted.termination
    if record is None:
        return
    precision, recall = (
        "unknown" if share is None else f"{share:.0%}"
        for share in (record.precision, record.recall)
    )
    tell(
        f"{fitted.dataset_name}: what ends an episode was learned by a world (seed {fitted.seed}); "
        f"on held-out episodes with {record.held_out_ends:,} ends: precision {precision}, recall "
        f"{recall}, {1000 * record.false_alarms:.2g} false alarms per 1,000 other steps"
    )


def count_ends(dataset: Dataset) -> int:
    """Episodes that came to a terminal state which was stored; one drawn twice is one."""
    return int(np.count_nonzero(_ended(dataset)))


def _ended(dataset: Dataset) -> Bool[np.ndarray, " episodes"]:
    """Where the last step is one to learn an end from. Where the state that it led to was not
    stored, the state before stands in for it: a head would learn that standing still ends."""
    first, length = dataset.bounds[0], dataset.lifetimes
    last = first + length - 1
    ended = np.asarray(dataset.tape.terminated)[last] & dataset.recorded_successor[last]
    return ended & (length > 0) & (dataset.times_drawn > 0)


def is_learnable(dataset: Dataset) -> bool:
    """There are ends enough to learn from and to check with."""
    return not dataset.task.reward_only and count_ends(dataset) >= FEWEST_ENDS


def _refuse_few_ends(dataset: Dataset) -> None:
    if dataset.task.reward_only:
        raise WorldError(f"{dataset.name}: a bandit has no states, and so no terminal ones")
    ends = count_ends(dataset)
    if ends >= FEWEST_ENDS:
        return
    found = f"{ends} of its {dataset.episodes:,} episodes end in a terminal state"
    hint = "choose 'none', or write the rule down (--task-file)"
    if ends == 0 and np.asarray(dataset.tape.terminated).any():
        found = "the states that its terminal steps led to were not stored (next_observations)"
    elif ends == 0:
        found = "none of its episodes ends in a terminal state (timeouts are not terminals)"
    raise WorldError(
        f"{dataset.name}: termination cannot be learned: {found}, and {FEWEST_ENDS} are needed to "
        f"learn from and to check with; {hint}"
    )


# --- Steps to learn from -------------------------------------------------------------------------


class Part(NamedTuple):
    """Steps of some of the episodes, by the rows where they begin."""

    row: Int[np.ndarray, " n"]
    age: Int[np.ndarray, " n"]  # t: steps of the episode before this one
    ends: Bool[np.ndarray, " n"]
    near: Bool[np.ndarray, " n"]  # a terminal step is one of the next `NEAR`


def split_episodes(dataset: Dataset, seed: int) -> list[Part]:
    """The data's steps up to the first terminal one, dealt by whole episodes into `SHARES`;
    episodes that end in a terminal state and others are dealt apart. One that was drawn twice is
    twice in one part."""
    rng = np.random.default_rng([seed, 16])
    first, length = dataset.bounds[0], dataset.lifetimes
    terminated = np.asarray(dataset.tape.terminated)
    ended, present = _ended(dataset), (length > 0) & (dataset.times_drawn > 0)
    episodes: list[list[np.ndarray]] = [[] for _ in SHARES]
    for kind in (np.flatnonzero(ended), np.flatnonzero(~ended & present)):
        cuts = np.rint(np.cumsum(SHARES)[:-1] * len(kind)).astype(int)
        for share, dealt in zip(episodes, np.split(rng.permutation(kind), cuts), strict=True):
            share.append(np.repeat(dealt, dataset.times_drawn[dealt]))
    parts = []
    for chosen in map(np.concatenate, episodes):
        steps = length[chosen]
        age = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
        row = np.repeat(first[chosen], steps) + age
        left = np.repeat(steps, steps) - 1 - age
        near = np.repeat(ended[chosen], steps) & (left > 0) & (left <= NEAR)
        stored = dataset.recorded_successor[row]
        part = Part(row, age, terminated[row], near)
        parts.append(Part(*(field[stored] for field in part)))
    return [parts[0], *(_at_most(part, rng) for part in parts[1:])]


def _at_most(part: Part, rng: np.random.Generator) -> Part:
    if len(part.row) <= MOST_ROWS:
        return part
    chosen = rng.choice(len(part.row), MOST_ROWS, replace=False)
    return Part(*(field[chosen] for field in part))


class Examples(NamedTuple):
    """What a head sees of steps that end, of those shortly before, and of others."""

    ends: Float[Array, "ends inputs"]
    near: Float[Array, "near inputs"]
    others: Float[Array, "others inputs"]


def _examples(dataset: Dataset, part: Part, scaler: Scaler, seed: int) -> Examples:
    rng = np.random.default_rng([seed, 17])
    kinds = list(map(np.flatnonzero, (part.ends, part.near, ~part.ends & ~part.near)))
    if not len(kinds[1]) and not len(kinds[2]):
        raise WorldError(
            f"{dataset.name}: termination cannot be learned: every step ends its episode"
        )
    kinds[1:] = [kind if len(kind) else max(kinds[1:], key=len) for kind in kinds[1:]]
    chosen = (k if len(k) <= MOST_ROWS else rng.choice(k, MOST_ROWS, replace=False) for k in kinds)
    return Examples(*(_seen(dataset, part.row[each], scaler) for each in chosen))


def _seen(dataset: Dataset, rows: Int[np.ndarray, " n"], scaler: Scaler) -> Float[Array, "n d"]:
    here, after = dataset.take(rows), dataset.take(rows + 1)
    return scaler.steps(*map(jnp.asarray, (here.state, here.action, after.state)))


# --- Learning ------------------------------------------------------------------------------------


def _loss(head: Head, x: Float[Array, "b d"], ends: Float[Array, " b"]) -> Float[Array, ""]:
    """Cross-entropy, with a penalty on inputs that are used and on every weight."""
    weights = [linear.weight for linear in head.linears]
    used = jnp.sqrt(jnp.square(weights[0]).sum(axis=1) + 1e-8).sum()
    size = sum(jnp.abs(weight).sum() for weight in weights)
    mistakes = optax.sigmoid_binary_cross_entropy(head.logit(x), ends).mean()
    return mistakes + SPARSITY * (used + 0.1 * size)


_OPTIMISER = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, STEPS))
_KINDS = (BATCH // 2, BATCH // 4, BATCH // 4)  # of a batch: ends, near ones, others


def fresh_heads(inputs: int, keys: Key[Array, " members"]) -> tuple[Head, optax.OptState]:
    """Heads that have learned nothing yet."""
    heads = jax.vmap(lambda key: Head(inputs, key=key))(keys)
    return heads, jax.vmap(_OPTIMISER.init)(heads)


@functools.partial(jax.jit, donate_argnums=0)
def learn(
    learners: tuple[Head, optax.OptState],
    keys: Key[Array, " members"],
    first: Int[Array, ""],
    examples: Examples,
) -> tuple[Head, optax.OptState]:
    """Some gradient steps of every head, each on batches of its own."""
    ends = jnp.repeat(jnp.array([1.0, 0.0, 0.0]), jnp.array(_KINDS), total_repeat_length=BATCH)

    def step(
        learner: tuple[Head, optax.OptState], key: Key[Array, ""]
    ) -> tuple[tuple[Head, optax.OptState], None]:
        head, state = learner
        draws = [
            steps[jax.random.randint(kind_key, (count,), 0, len(steps))]
            for steps, count, kind_key in zip(
                examples, _KINDS, jax.random.split(key, 3), strict=True
            )
        ]
        gradient = jax.grad(_loss)(head, jnp.concatenate(draws), ends)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts with floats
            update, state = _OPTIMISER.update(gradient, state)
        return (optax.apply_updates(head, update), state), None

    def steps(
        learner: tuple[Head, optax.OptState], key: Key[Array, ""]
    ) -> tuple[Head, optax.OptState]:
        number = first + jnp.arange(STEPS_PER_CALL)
        return jax.lax.scan(step, learner, jax.vmap(lambda n: jax.random.fold_in(key, n))(number))[
            0
        ]

    return jax.vmap(steps)(learners, keys)


def learn_termination(
    world: World, dataset: Dataset, seed: int, progress: Callable[[float], None]
) -> tuple[Head, TerminationRecord]:
    """A head for every member of the world, and how good they are on episodes not seen before.

    Nothing of it is kept between calls: what was interrupted begins again, and ends the same.
    """
    learning, calibration, held_out = split_episodes(dataset, seed)
    examples = _examples(dataset, learning, world.scaler, seed)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 16), world.size)
    learners = fresh_heads(examples.ends.shape[1], keys)
    for first in range(0, STEPS, STEPS_PER_CALL):
        learners = learn(learners, keys, jnp.int32(first), examples)
        jax.block_until_ready(learners)
        progress((first + STEPS_PER_CALL) / STEPS)
    heads = calibrated(learners[0], dataset, calibration, world.scaler)
    world = eqx.tree_at(lambda of: of.heads, world, heads, is_leaf=lambda leaf: leaf is None)
    return heads, assess(world, dataset, held_out, seed)


# --- Calibration ---------------------------------------------------------------------------------


@eqx.filter_jit
def logits_of(heads: Head, x: Float[Array, "b d"]) -> Float[Array, "members b"]:
    return jax.vmap(lambda head: head.logit(x))(heads)


def calibrated(
    heads: Head, dataset: Dataset, part: Part, scaler: Scaler, *, drawn: bool | None = None
) -> Head:
    """Heads that call as many steps of a part ends as are ends there: by a threshold; or, where
    most of what that calls an end is none, with the likeliest probability sigmoid(a z + b), whose
    sum over these steps is their number of ends. `drawn` asks for one of the two."""
    logits = np.concatenate(
        [
            np.asarray(logits_of(heads, _seen(dataset, rows, scaler)))[:, :count]
            for rows, count in _blocks(part.row)
        ],
        axis=1,
    ).astype(np.float64)
    ends = int(part.ends.sum())
    ordered = np.sort(logits, axis=1)[:, ::-1]
    threshold = (ordered[:, ends - 1] + ordered[:, min(ends, len(part.row) - 1)]) / 2
    temperature = np.zeros(len(logits))
    if drawn is None:
        called = logits > threshold[:, None]
        drawn = bool((called & part.ends).sum() < TRUSTED * called.sum())
    if drawn:
        scales = np.array([_likeliest(each, part.ends) for each in logits])
        threshold, temperature = -scales[:, 1] / scales[:, 0], 1 / scales[:, 0]
    return eqx.tree_at(
        lambda head: (head.threshold, head.temperature),
        heads,
        (jnp.asarray(threshold, jnp.float32), jnp.asarray(temperature, jnp.float32)),
    )


def _likeliest(
    logits: Float[np.ndarray, " n"], ends: Bool[np.ndarray, " n"]
) -> tuple[float, float]:
    """a > 0 and b that make sigmoid(a z + b) likeliest (Platt scaling)."""
    spread = logits.std() or 1.0

    def cost(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        a = np.exp(parameters[0])
        z = a * logits + parameters[1]
        error = scipy.special.expit(z) - ends
        likelihood = np.logaddexp(0, z) - ends * z
        return float(likelihood.mean()), np.array([(error * a * logits).mean(), error.mean()])

    rate = ends.mean()
    start = [np.log(0.1 / spread), np.log(rate / (1 - rate)) - 0.1 * logits.mean() / spread]
    bounds = [(np.log(1e-3 / spread), np.log(1e3 / spread)), (None, None)]
    found = scipy.optimize.minimize(cost, start, jac=True, bounds=bounds, method="L-BFGS-B")
    return float(np.exp(found.x[0])), float(found.x[1])


def _blocks(rows: Int[np.ndarray, " n"]) -> list[tuple[Int[np.ndarray, " block"], int]]:
    """Rows in blocks of one size, the last padded, with the number of those that count."""
    blocks = [rows[begin : begin + BLOCK] for begin in range(0, len(rows), BLOCK)]
    return [(np.pad(each, (0, BLOCK - len(each)), mode="edge"), len(each)) for each in blocks]


# --- How good it is ------------------------------------------------------------------------------


@eqx.filter_jit
def judged(
    world: World,
    state: Float[Array, "b s"],
    action: Float[Array, "b a"],
    next_state: Float[Array, "b s"],
    key: Key[Array, ""],
) -> tuple[Bool[Array, "members b"], Bool[Array, "members b"]]:
    """What every head says of recorded steps; and of steps from the same (s, a) as its own member
    imagines them."""
    scaler, inputs = world.scaler, world.scaler.inputs(state, action)

    def judge(
        own: tuple[Member, Head, Key[Array, ""]],
    ) -> tuple[Bool[Array, " b"], Bool[Array, " b"]]:
        member, head, key = own
        imagined, _ = world.sample_from(member(inputs), state, jax.random.split(key, len(state)))
        noise = jax.random.logistic(jax.random.fold_in(key, 1), (2, len(state)))
        return (
            head.ends(scaler.steps(state, action, next_state), noise[0]),
            head.ends(scaler.steps(state, action, imagined), noise[1]),
        )

    return jax.lax.map(judge, (world.members, world.heads, jax.random.split(key, world.size)))


def assess(world: World, dataset: Dataset, part: Part, seed: int) -> TerminationRecord:
    """What the heads say of steps whose ends are known, averaged over the heads."""
    found: list[list[np.ndarray]] = []  # of recorded steps, and of imagined ones
    key = jax.random.fold_in(jax.random.key(seed), 17)
    for number, (rows, count) in enumerate(_blocks(part.row)):
        here, after = dataset.take(rows), dataset.take(rows + 1)
        state, action, then = map(jnp.asarray, (here.state, here.action, after.state))
        said = judged(world, state, action, then, jax.random.fold_in(key, number))
        found.append([np.asarray(flags)[:, :count].mean(axis=0) for flags in said])
    called, foreseen = np.concatenate(found, axis=1)
    ends = part.ends
    apart = ~ends & ~part.near
    caught, alarms = called[ends].sum(), called[~ends].sum()
    # The upper end of a one-sided 95 % interval (Clopper and Pearson): without any alarm in n
    # steps, 3 / n.
    false, steps = float(called[apart].sum()), int(apart.sum())
    at_most = float(scipy.stats.beta.ppf(0.95, false + 1, steps - false)) if steps else 1.0
    assert world.heads is not None
    age = np.unique(np.geomspace(1, part.age.max() + 1, _SURVIVAL_POINTS).astype(int))
    return TerminationRecord(
        ends=count_ends(dataset),
        episodes=dataset.episodes,
        held_out_steps=len(ends),
        held_out_ends=int(ends.sum()),
        drawn=bool((world.heads.temperature > 0).any()),
        precision=float(caught / (caught + alarms)) if caught + alarms else None,
        recall=float(caught / ends.sum()) if ends.any() else None,
        false_alarms=float(alarms / max((~ends).sum(), 1)),
        false_alarms_apart=float(called[apart].mean()) if apart.any() else None,
        false_alarms_apart_at_most=at_most,
        rate=float(ends.mean()),
        rate_recorded=float(called.mean()),
        rate_imagined=float(foreseen.mean()),
        survival={
            "steps": age.tolist(),
            "data": survival(part.age, ends.astype(np.float64))[age - 1].tolist(),
            "recorded": survival(part.age, called)[age - 1].tolist(),
            "imagined": survival(part.age, foreseen)[age - 1].tolist(),
        },
    )


def survival(
    age: Int[np.ndarray, " n"], ends: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " steps"]:
    """Share of episodes that still run after 1, 2, ... steps, where these steps end at a share of
    times (Kaplan and Meier: what was cut by a timeout counts as long as it was seen)."""
    seen = np.bincount(age)
    return np.cumprod(1 - np.bincount(age, ends) / np.maximum(seen, 1))
