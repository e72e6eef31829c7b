"""Learned ends beside the known rule: on held-out steps of the data, and on imagined ones.

Rollouts begin at s_0 of an episode and take its recorded actions, then actions of random rows. They
run past every end, until U crosses U(1) or T is reached, so that both rules judge the same steps.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from neubay import imagination
from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.studies.records import Record, in_blocks
from neubay.tape import AgentInput
from neubay.world import (
    FittedWorld,
    Head,
    World,
    assess,
    calibrated,
    split_episodes,
    survival,
    with_termination,
)

_BLOCK = 4096  # steps that are judged at once
_POINTS = 60


@dataclasses.dataclass(frozen=True)
class HeldOut(Record):
    """One way to decide, on held-out steps of the data."""

    decided: str
    precision: float | None
    recall: float | None
    false_alarms: float
    """Per step that is no end; `apart`: where no end follows within ten steps."""
    false_alarms_apart: float | None
    false_alarms_apart_at_most: float
    rate_recorded: float
    rate_imagined: float


@dataclasses.dataclass(frozen=True)
class Imagined(Record):
    """Imagined rollouts, judged by both rules up to the first end by either."""

    rollouts: int
    steps: int
    both: int
    """Rollouts that end by both rules at one step ..."""
    rule_first: int
    """... by the known rule before the learned one ..."""
    learned_first: int
    """... by the learned one before the known one ..."""
    neither: int
    """... by none before they are cut or time is over."""
    within_ten: int
    """Of those where one came first, how many had the other within ten steps."""
    rate_rule: float
    """Ends per step, each rule up to its own first end."""
    rate_learned: float
    survival_steps: Int[np.ndarray, " points"]
    survival_rule: Float[np.ndarray, " points"]
    """Share of rollouts that still run, by the known rule ..."""
    survival_learned: Float[np.ndarray, " points"]
    """... and by the learned one."""


@dataclasses.dataclass(frozen=True)
class Termination(Record):
    """What a world learned of ends, beside the rule that its task has."""

    world: str
    data: str
    task: str
    members: int
    ends: int
    episodes: int
    held_out_steps: int
    held_out_ends: int
    rate: float
    """Ends per step in the held-out data."""
    drawn: bool
    ways: list[HeldOut]
    """A threshold, and drawing by the calibrated probability."""
    imagined: Imagined


def termination(
    name: str, fitted: FittedWorld, dataset: Dataset, *, rollouts: int, seed: int
) -> Termination:
    """Compare what `fitted` learned (or now learns) of ends with the rule of the data's task."""
    rule = dataset.task.termination
    if dataset.hash != fitted.dataset_hash:
        raise WorldError(
            f"{name}: trained on {fitted.dataset_name} (hash {fitted.dataset_hash}), not on "
            f"{dataset.name} (hash {dataset.hash})"
        )
    if rule is None:
        raise WorldError(
            f"{dataset.name}: task '{dataset.task.name}' has no rule to compare with; "
            "'neubay world info' says how well ends were learned"
        )
    fitted = fitted if fitted.termination is not None else with_termination(fitted, dataset)
    known, heads = fitted.termination, fitted.world.heads
    assert known is not None and heads is not None
    _, calibration, held_out = split_episodes(dataset, fitted.seed)
    ways, names = [], [field.name for field in dataclasses.fields(HeldOut)][1:]
    for drawn in (False, True):
        tried = calibrated(heads, dataset, calibration, fitted.world.scaler, drawn=drawn)
        record = assess(
            dataclasses.replace(fitted.world, heads=tried), dataset, held_out, fitted.seed
        )
        numbers = {name: getattr(record, name) for name in names}
        ways.append(HeldOut("drawn" if drawn else "threshold", **numbers))
    return Termination(
        world=name,
        data=dataset.name,
        task=dataset.task.name,
        members=fitted.world.size,
        ends=known.ends,
        episodes=known.episodes,
        held_out_steps=known.held_out_steps,
        held_out_ends=known.held_out_ends,
        rate=known.rate,
        drawn=known.drawn,
        ways=ways,
        imagined=_imagined(fitted, dataset, rollouts, seed),
    )


class Replayed(eqx.Module):
    """Takes the actions of recorded episodes, and those of random rows once they are over."""

    actions: Float[Array, "rows a"]  # of all steps
    first: Int[Array, " k"]  # a step for each rollout, the first of its episode ...
    beyond: Int[Array, " k"]  # ... and the one after its last

    def initial(self, batch: int) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
        return self.first, self.beyond

    def recall(
        self, history: AgentInput, length: Int[Array, " k"]
    ) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
        return self.first, self.beyond

    def act(
        self,
        memory: tuple[Int[Array, " k"], Int[Array, " k"]],
        inputs: AgentInput,
        keys: Key[Array, " k"],
    ) -> tuple[tuple[Int[Array, " k"], Int[Array, " k"]], Float[Array, "k a"]]:
        step, beyond = memory
        other = jax.vmap(lambda key: jax.random.randint(key, (), 0, len(self.actions)))(keys)
        return (step + 1, beyond), self.actions[jnp.where(step < beyond, step, other)]


def _imagined(fitted: FittedWorld, dataset: Dataset, rollouts: int, seed: int) -> Imagined:
    rng = np.random.default_rng(seed)
    starts = dataset.histories
    prefix = imagination.draw_histories(rng, starts, rollouts, 1.0)
    member = imagination.draw_members(rng, rollouts, fitted.world.size)
    episode = np.searchsorted(starts.first, prefix.first)
    begins = np.cumsum(starts.length) - starts.length
    rows = np.repeat(starts.first - begins, starts.length) + np.arange(int(np.sum(starts.length)))
    policy = Replayed(
        jnp.asarray(dataset.take(rows).action),
        jnp.asarray(begins[episode]),
        jnp.asarray((begins + starts.length)[episode]),
    )
    rules = imagination.Rules(horizon=dataset.task.horizon, threshold=fitted.threshold(1.0))
    made = imagination.imagine(
        fitted.world,
        policy,
        imagination.branch(dataset, prefix),
        member,
        rules,
        jax.random.key(seed),
    )
    return compare(fitted.world, dataset, made, member, seed)


def compare(
    world: World,
    dataset: Dataset,
    made: imagination.Rollouts,
    member: Int[np.ndarray, " k"],
    seed: int,
) -> Imagined:
    """Where each rule ends the same rollouts."""
    length = made.length
    rollout = np.repeat(np.arange(len(length)), length)
    age = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    row = age + np.repeat(np.cumsum(length + 1) - length - 1, length)
    state, action = np.asarray(made.rows.state), np.asarray(made.rows.action)
    assert dataset.task.termination is not None and world.heads is not None
    known = np.asarray(dataset.task.termination(state[row], action[row], state[row + 1]))
    seen = np.asarray(
        world.scaler.steps(*map(jnp.asarray, (state[row], action[row], state[row + 1])))
    )
    learned = _by_own_head(world.heads, seen, member[rollout], seed)
    ended, curves = [], []
    for said in (known, learned):
        first = length.copy()  # none: censored where the rollout was cut
        np.minimum.at(first, rollout[said], age[said])
        ended.append(first)
        at_risk = age <= first[rollout]
        curves.append(survival(age[at_risk], said[at_risk].astype(np.float64)))
    by_rule, by_head = ended
    apart = np.abs(by_rule - by_head)
    points = np.unique(np.geomspace(1, max(length.max(), 1), _POINTS).astype(int))
    return Imagined(
        rollouts=len(length),
        steps=int((age <= np.minimum(by_rule, by_head)[rollout]).sum()),
        both=int(((by_rule == by_head) & (by_rule < length)).sum()),
        rule_first=int((by_rule < by_head).sum()),
        learned_first=int((by_head < by_rule).sum()),
        neither=int(((by_rule == length) & (by_head == length)).sum()),
        within_ten=int(
            ((apart > 0) & (apart <= 10) & (np.maximum(by_rule, by_head) < length)).sum()
        ),
        rate_rule=float((by_rule < length).sum() / np.minimum(by_rule + 1, length).sum()),
        rate_learned=float((by_head < length).sum() / np.minimum(by_head + 1, length).sum()),
        survival_steps=points,
        survival_rule=curves[0][np.minimum(points, len(curves[0])) - 1],
        survival_learned=curves[1][np.minimum(points, len(curves[1])) - 1],
    )


@eqx.filter_jit
def _own_ends(
    heads: Head, x: Float[Array, "b d"], member: Int[Array, " b"], key: Key[Array, ""]
) -> Bool[Array, " b"]:
    own = jax.tree.map(lambda leaf: leaf[member], heads)
    noise = jax.random.logistic(key, (len(x), 1))
    return jax.vmap(Head.ends)(own, x[:, None], noise)[:, 0]


def _by_own_head(
    heads: Head, x: Float[np.ndarray, "n d"], member: Int[np.ndarray, " n"], seed: int
) -> Bool[np.ndarray, " n"]:
    def said(rows: Int[np.ndarray, " b"]) -> tuple[Bool[Array, " b"]]:
        key = jax.random.fold_in(jax.random.key(seed), rows[0] // _BLOCK)
        return (_own_ends(heads, jnp.asarray(x[rows]), jnp.asarray(member[rows]), key),)

    (ends,) = in_blocks(said, np.arange(len(x)), _BLOCK)
    return ends.astype(bool)
