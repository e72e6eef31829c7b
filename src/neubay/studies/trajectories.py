"""Recorded trajectories, and what a world says of them: one step from every recorded state, and
all of their actions replayed in every member.

The one-step error is that of the members' mean, in units of what a step changes:

    e_t = sqrt(mean_d ((mean_n s'_{n,d}(s_t, a_t) - s_{t+1,d}) / std_D(s'_d - s_d))^2)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from neubay.data.dataset import Dataset
from neubay.errors import DatasetError
from neubay.evaluation import Episodes
from neubay.studies.records import in_blocks
from neubay.world import Gaussian, World

_ROWS = 200_000  # of the data that are looked at, at most


class Trajectories(NamedTuple):
    """Recorded trajectories side by side; a shorter one repeats its last row."""

    state: Float[np.ndarray, "rows k s"]  # s_0 .. s_T
    action: Float[np.ndarray, "steps k a"]  # a_0 .. a_{T-1}
    reward: Float[np.ndarray, "steps k"]  # r_1 .. r_T
    length: Int[np.ndarray, " k"]
    episode: Int[np.ndarray, " k"]


def draw_trajectories(dataset: Dataset, count: int, steps: int | None, seed: int) -> Trajectories:
    """`count` whole episodes, or the first `steps` steps of each.

    Drawn without replacement; if there are too few, all are drawn again.
    """
    first, length = dataset.bounds
    length = length - ~np.asarray(dataset.tape.real)[first + length]  # steps that lead to data
    usable = np.flatnonzero(length > 0)
    longest = int(length.max(initial=0))
    if not usable.size or (steps is not None and steps > longest):
        raise DatasetError(
            f"{dataset.name}: no episode has {steps or 1} steps to replay, the longest has "
            f"{longest}; ask for fewer steps, or evaluate on other data"
        )
    rng = np.random.default_rng(seed)
    rounds = math.ceil(count / len(usable))
    episode = np.concatenate([rng.permutation(usable) for _ in range(rounds)])[:count]
    length = np.minimum(length[episode], steps or longest)
    row = np.minimum(np.arange(length.max() + 1)[:, None], length)
    tape = dataset.take(first[episode] + row)
    state, action, reward = map(np.asarray, (tape.state, tape.action, tape.reward))
    return Trajectories(state, action[:-1], reward[:-1], length, episode)


def as_trajectories(played: Episodes) -> Trajectories:
    """Episodes of the environment beside those of data."""
    reward = played.reward.astype(np.float32)
    number = np.arange(len(played.length))
    return Trajectories(played.state, played.action, reward, played.length, number)


def padded(recorded: Trajectories, steps: int) -> Trajectories:
    """Trajectories of exactly so many steps, so that one program serves all: a shorter one repeats
    its last state, a longer one is left there."""
    short = max(steps - len(recorded.action), 0)

    def of_length(leaf: np.ndarray, rows: int) -> np.ndarray:
        return np.pad(leaf[:rows], [(0, short), *[(0, 0)] * (leaf.ndim - 1)], mode="edge")

    return Trajectories(
        of_length(recorded.state, steps + 1),
        of_length(recorded.action, steps),
        of_length(recorded.reward, steps),
        np.minimum(recorded.length, steps),
        recorded.episode,
    )


# --- One step from recorded states ---------------------------------------------------------------


class Steps(NamedTuple):
    """What a world says of each step of recorded trajectories."""

    uncertainty: Float[np.ndarray, "steps k"]  # U(s_t, a_t)
    error: Float[np.ndarray, "steps k"]  # e_t, of the members' mean
    member_error: Float[np.ndarray, "steps k"]  # the same of single members, in the mean square
    live: Bool[np.ndarray, "steps k"]

    def first_cut(self, threshold: float) -> Float[np.ndarray, " k"]:
        """The step at which U first crosses a threshold; infinity where it never does."""
        return first_step(self.live & (self.uncertainty > threshold))


@eqx.filter_jit
def _judged(
    of: World,
    unit: Float[Array, " s"],
    state: Float[Array, "b s"],
    action: Float[Array, "b a"],
    next_state: Float[Array, "b s"],
) -> tuple[Float[Array, " b"], Float[Array, " b"], Float[Array, " b"]]:
    """U, e of the mean, and e of the members."""
    keys = jax.random.split(jax.random.key(0), len(state))  # nothing is drawn from them

    def expected(mean: Float[Array, "b d"]) -> Float[Array, "b s"]:
        certain = Gaussian(mean, jnp.full_like(mean, -jnp.inf))
        return of.sample_from(certain, state, keys)[0]

    each = jax.vmap(expected)(of.predict(state, action).mean)
    apart = (each - next_state) / unit
    return (
        of.uncertainty(state, action),
        jnp.sqrt((apart.mean(axis=0) ** 2).mean(axis=-1)),
        jnp.sqrt((apart**2).mean(axis=(0, -1))),
    )


def judge_rows(
    of: World,
    unit: Float[np.ndarray, " s"],
    state: Float[np.ndarray, "n s"],
    action: Float[np.ndarray, "n a"],
    next_state: Float[np.ndarray, "n s"],
) -> Float[np.ndarray, "3 n"]:
    """U, e of the mean and e of the members at each transition. What overflows is infinite."""

    def judged(rows: Int[np.ndarray, " b"]) -> Sequence[Float[Array, " b"]]:
        parts = (jnp.asarray(leaf[rows]) for leaf in (state, action, next_state))
        return _judged(of, jnp.asarray(unit, jnp.float32), *parts)

    found = np.stack(in_blocks(judged, np.arange(len(state))))
    return np.where(np.isfinite(found), found, np.inf)


def judge_steps(of: World, unit: Float[np.ndarray, " s"], recorded: Trajectories) -> Steps:
    """Judge every step of recorded trajectories."""
    live = np.arange(len(recorded.action))[:, None] < recorded.length
    found = np.zeros((3, *live.shape))
    found[:, live] = judge_rows(
        of, unit, recorded.state[:-1][live], recorded.action[live], recorded.state[1:][live]
    )
    return Steps(found[0], found[1], found[2], live)


def first_step(happens: Bool[np.ndarray, "steps k"]) -> Float[np.ndarray, " k"]:
    """Number of the first step at which it happens, from 0; infinity where it never does."""
    return np.where(happens.any(axis=0), np.argmax(happens, axis=0), np.inf)


def horizons(steps: Steps, threshold: float) -> Float[np.ndarray, " k"]:
    """Steps until U crosses the threshold. As in imagination, the one that crosses is kept."""
    return np.minimum(steps.first_cut(threshold) + 1, steps.live.sum(axis=0))


def median_kept(steps: Steps, threshold: float) -> float:
    """The median share of an episode that is kept."""
    return float(np.median(horizons(steps, threshold) / steps.live.sum(axis=0)))


def some_rows(dataset: Dataset) -> Int[np.ndarray, " n"]:
    """The rows that a world learns from, or of very many some, spread evenly over them."""
    rows = dataset.world_rows
    return rows[:: math.ceil(len(rows) / _ROWS)]


def what_a_step_changes(dataset: Dataset) -> Float[np.ndarray, " s"]:
    """std_D(s' - s) of each dimension; one where nothing changes."""
    rows = some_rows(dataset)
    before, after = (np.asarray(dataset.take(row).state, np.float64) for row in (rows, rows + 1))
    std = (after - before).std(axis=0)
    return np.where(std < 1e-12, 1.0, std)


def row_errors(
    of: World, unit: Float[np.ndarray, " s"], dataset: Dataset, rows: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """e at rows of a dataset."""
    here, after = dataset.take(rows), dataset.take(rows + 1)
    parts = (np.asarray(leaf) for leaf in (here.state, here.action, after.state))
    return judge_rows(of, unit, *parts)[1]


def largest_by_episode(
    of: World, unit: Float[np.ndarray, " s"], dataset: Dataset
) -> Float[np.ndarray, " episodes"]:
    """The largest e within each episode of a dataset, of those with rows that are looked at."""
    rows = some_rows(dataset)
    first = np.flatnonzero(np.diff(dataset.episode_of(rows), prepend=-1))
    return np.maximum.reduceat(row_errors(of, unit, dataset, rows), first)


# --- All actions in every member ------------------------------------------------------------------


@eqx.filter_jit
def _replay(
    of: World,
    start: Float[Array, "k s"],
    actions: Float[Array, "steps k a"],
    key: Key[Array, ""],
) -> tuple[Float[Array, "steps members k s"], Float[Array, "steps members k"]]:
    """States and rewards of the same actions from the same starts, in every member."""
    alone = jax.vmap(lambda number: of.select(number[None]))(jnp.arange(of.size))

    def in_member(
        lone: World, state: Float[Array, "k s"], action: Float[Array, "k a"], key: Key[Array, ""]
    ) -> tuple[Float[Array, "k s"], Float[Array, " k"]]:
        mean, log_sigma = lone.predict(state, action)
        keys = jax.random.split(key, len(state))
        return lone.sample_from(Gaussian(mean[0], log_sigma[0]), state, keys)

    def step(
        state: Float[Array, "members k s"],
        at: tuple[Int[Array, ""], Float[Array, "k a"]],
    ) -> tuple[Float[Array, "members k s"], tuple]:
        number, action = at
        keys = jax.random.split(jax.random.fold_in(key, number), of.size)
        state, reward = jax.vmap(in_member, (0, 0, None, 0))(alone, state, action, keys)
        return state, (state, reward)

    begun = jnp.broadcast_to(start, (of.size, *start.shape))
    return jax.lax.scan(step, begun, (jnp.arange(len(actions)), actions))[1]


class Replays(NamedTuple):
    """The actions of recorded trajectories in every member, past every threshold and end."""

    state: Float[np.ndarray, "steps members k s"]  # after each step
    reward: Float[np.ndarray, "steps members k"]


def replay(of: World, recorded: Trajectories, seed: int) -> Replays:
    """Replay recorded actions in every member, from the recorded starts."""
    start, actions = jnp.asarray(recorded.state[0]), jnp.asarray(recorded.action)
    return Replays(*map(np.asarray, _replay(of, start, actions, jax.random.key(seed))))


def path_errors(
    replayed: Replays, recorded: Trajectories, unit: Float[np.ndarray, " s"]
) -> Float[np.ndarray, "steps members k"]:
    """Root mean square over dimensions of (imagined - true) / unit; infinite from where it
    overflows on, not a number beyond the recording's end."""
    steps, members, count, _ = replayed.state.shape
    error = np.empty((steps, members, count))
    for member in range(members):  # one after the other: all at once take much memory
        with np.errstate(all="ignore"):
            apart = (replayed.state[:, member].astype(np.float64) - recorded.state[1:]) / unit
            error[:, member] = np.sqrt(np.mean(apart**2, axis=-1))
    finite = np.logical_and.accumulate(np.isfinite(error), axis=0)
    live = np.arange(steps)[:, None, None] < recorded.length
    return np.where(live, np.where(finite, error, np.inf), np.nan)


def in_one_member(replayed: Replays, recorded: Trajectories) -> Trajectories:
    """The replayed paths as trajectories, each episode in one member, spread evenly over them."""
    episode = np.arange(len(recorded.length))
    path = replayed.state[:, episode % replayed.state.shape[1], episode]
    return recorded._replace(state=np.concatenate([recorded.state[:1], path]))
