"""What ends an episode, learned: a probe whose rule is known, ends that nothing foretells, and what
cannot be learned."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.known_worlds import fitted as fitted_world
from helpers.known_worlds import linear_world
from helpers.small_runs import tiny
from helpers.walks import LIMIT, LONGEST, walks
from neubay import imagination
from neubay import world as worlds
from neubay.config import WorldConfig, settle, updated
from neubay.data.dataset import Dataset
from neubay.errors import WorldError
from neubay.experience import rollout_rules
from neubay.preflight import world_estimate
from neubay.runs.signals import Stopped
from neubay.tasks import ContinuousActions, Task, get_task
from neubay.world import FittedWorld, World, termination

TRUTH = np.concatenate(
    [np.concatenate([np.zeros((3, 3)), np.eye(3) / 2], axis=1), np.zeros((1, 6))]
)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return walks()


@pytest.fixture(scope="module")
def fitted(data: Dataset) -> FittedWorld:
    """Two members that know the truth, and have learned what ends an episode."""
    of = linear_world(2 * [TRUTH], 2 * [np.zeros(4)], sigma=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(termination, "STEPS", 2000)
        return worlds.with_termination(fitted_world(of, data), data)


def judged(world: World, dataset: Dataset) -> np.ndarray:
    """What the two heads say of every step of some data."""
    rows = dataset.world_rows
    x = termination._seen(dataset, rows, world.scaler)
    noise = jax.random.logistic(jax.random.key(0), (len(rows),))
    assert world.heads is not None
    return np.asarray(jax.vmap(lambda head: head.ends(x, noise))(world.heads))


@pytest.mark.slow
def test_a_known_rule_is_found(fitted: FittedWorld) -> None:
    record = fitted.termination
    assert record is not None and not record.drawn
    assert record.precision is not None and record.precision > 0.95
    assert record.recall is not None and record.recall > 0.95
    assert record.false_alarms_apart is not None and record.false_alarms_apart < 1e-3
    assert record.false_alarms_apart <= record.false_alarms_apart_at_most
    # Data that no head has seen.
    fresh = walks(100, seed=1)
    said, truth = judged(fitted.world, fresh), np.asarray(fresh.tape.terminated)[fresh.world_rows]
    assert (said & truth).sum() > 0.95 * 2 * truth.sum() and (said & truth).sum() > 0.9 * said.sum()


@pytest.mark.slow
def test_ends_come_at_the_rate_of_the_data(fitted: FittedWorld, data: Dataset) -> None:
    assert fitted.termination is not None and fitted.world.heads is not None
    record = fitted.termination
    assert record.rate_recorded == pytest.approx(record.rate, rel=0.1)
    assert record.rate_imagined == pytest.approx(record.rate, rel=0.1)
    for name in ("recorded", "imagined"):
        curve, truth = (np.asarray(record.survival[key]) for key in (name, "data"))
        assert np.abs(curve - truth).max() < 0.05 and (np.diff(curve) <= 0).all()
    # Where thresholds were chosen, every head calls exactly as many steps ends as there are.
    _, part, _ = worlds.split_episodes(data, fitted.seed)
    logits = termination.logits_of(
        fitted.world.heads, termination._seen(data, part.row, fitted.world.scaler)
    )
    called = (logits > fitted.world.heads.threshold[:, None]).sum(axis=1)
    assert called.tolist() == 2 * [part.ends.sum()]


@pytest.mark.slow
def test_ends_by_chance_are_drawn_at_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "STEPS", 500)
    data = walks(300, by_chance=0.05)
    of = linear_world(2 * [TRUTH], 2 * [np.zeros(4)], sigma=0.01)
    fitted = worlds.with_termination(fitted_world(of, data), data)
    record = fitted.termination
    assert record is not None and record.drawn
    assert record.rate_recorded == pytest.approx(record.rate, rel=0.3)
    # No state is deadly: far and near ones end about equally often.
    said = judged(fitted.world, data).mean(axis=0)
    far = np.abs(np.asarray(data.tape.state)[data.world_rows, 0]) > 1.5
    assert said[far].mean() < 3 * said[~far].mean() < 9 * said[far].mean()


def test_episodes_are_dealt_whole_and_timeouts_are_no_ends(data: Dataset) -> None:
    parts = worlds.split_episodes(data, 3)
    first, length = data.bounds
    episodes = [np.unique(np.searchsorted(first, part.row, side="right") - 1) for part in parts]
    assert sorted(np.concatenate(episodes)) == list(range(data.episodes))
    assert sum(len(part.row) for part in parts) == data.transitions
    timeouts = (first + length - 1)[length == LONGEST]
    timeouts = timeouts[~np.asarray(data.tape.terminated)[timeouts]]
    assert len(timeouts) > 10
    for part in parts:
        assert part.ends.sum() > 10 and not part.ends[np.isin(part.row, timeouts)].any()
        assert not (part.near & part.ends).any()
        following = dict(zip(part.row, part.ends, strict=True))
        for row in part.row[part.near][:50]:
            assert any(following.get(row + ahead, False) for ahead in range(1, 11))
    assert worlds.count_ends(data) == sum(part.ends.sum() for part in parts)


def test_ends_that_led_to_a_state_nobody_stored_teach_nothing() -> None:
    """Regression: the state before stood in for it, and heads learned that standing still ends."""
    blind = walks(60, stored=False)
    assert np.asarray(blind.tape.terminated).sum() > 20 and worlds.count_ends(blind) == 0
    assert worlds.ended_by(blind, WorldConfig()) == "none"
    with pytest.raises(WorldError, match=r"terminal steps led to were not stored"):
        worlds.ended_by(blind, WorldConfig(termination="learned"))
    for part in worlds.split_episodes(blind, 0):
        assert len(part.row) and not part.ends.any()


def test_survival_is_kaplan_and_meiers() -> None:
    # Episodes: ends at step 2; ends at step 3; cut after 2 steps.
    age = np.array([0, 1, 0, 1, 2, 0, 1])
    ends = np.array([0, 1, 0, 0, 1, 0, 0], float)
    np.testing.assert_allclose(worlds.survival(age, ends), [1, 2 / 3, 0])


def test_what_cannot_be_learned_is_refused() -> None:
    never = walks(30, by_chance=1e-12)
    asked = WorldConfig(termination="learned")
    with pytest.raises(WorldError, match=r"none of its episodes ends .*timeouts are not terminals"):
        worlds.ended_by(never, asked)
    with pytest.raises(WorldError, match="cannot be learned"):
        worlds.fit(never, asked, 0)
    with pytest.raises(WorldError, match="cannot be learned"):
        worlds.world_directory(never, asked, 0)
    few = walks(6)
    with pytest.raises(WorldError, match=r"of its 6 episodes end .* 10 are needed"):
        worlds.ended_by(few, asked)
    with pytest.raises(WorldError, match="'rule' is asked for, and task 'walks' has none"):
        worlds.ended_by(few, WorldConfig(termination="rule"))


def test_auto_takes_the_rule_then_what_is_learned_then_nothing(data: Dataset) -> None:
    auto = WorldConfig()
    assert worlds.ended_by(data, auto) == "learned"
    assert worlds.ended_by(data, WorldConfig(termination="none")) == "none"
    assert worlds.ended_by(walks(30, by_chance=1e-12), auto) == "none"
    known = dataclasses.replace(data.task, termination=lambda s, a, n: jnp.abs(n[..., 0]) > LIMIT)
    assert worlds.ended_by(dataclasses.replace(data, task=known), auto) == "rule"
    told: list[str] = []
    worlds.tell_choice(data, auto, told.append)
    assert "it is learned from them" in told[0]
    wanting = Task("wanting", 3, ContinuousActions.symmetric(3), 60, learns_termination=True)
    with pytest.raises(WorldError, match="cannot be learned"):
        worlds.ended_by(walks(30, by_chance=1e-12, task=wanting), auto)


def test_only_what_is_learned_makes_another_world(data: Dataset) -> None:
    places = {
        name: worlds.world_directory(data, WorldConfig(termination=name), 0)
        for name in ("auto", "learned", "none")
    }
    assert places["auto"] == places["learned"] != places["none"]
    swing = Dataset.from_arrays(
        np.zeros((4, 3)),
        np.zeros((4, 1)),
        np.zeros(4),
        np.zeros(4, bool),
        task=get_task("pendulum"),
    )
    before = worlds.world_directory(swing, WorldConfig(), 0)
    assert before == worlds.world_directory(swing, WorldConfig(termination="none"), 0)
    assert "termination" not in WorldConfig().record()
    assert tiny().record()["world"] == tiny().world.record()
    heads = world_estimate(data, WorldConfig())["data for the members"]
    assert heads > world_estimate(data, WorldConfig(termination="none"))["data for the members"]


@pytest.mark.slow
def test_a_learned_end_ends_a_rollout_and_does_not_bootstrap(
    fitted: FittedWorld, data: Dataset
) -> None:
    config = settle(updated(tiny(), {"rollout": {"zeta": None, "rollouts": 24}}), data.facts)
    rules = rollout_rules(config, data, fitted)
    assert rules.learned and rules.termination is None
    rng = np.random.default_rng(0)
    prefix = imagination.draw_histories(rng, data.histories, 24, 1.0)
    made = imagination.imagine(
        fitted.world,
        _Outwards(),
        imagination.branch(data, prefix),
        imagination.draw_members(rng, 24, 2),
        rules,
        jax.random.key(0),
    )
    # One unit a step of 0.5 from within [-1, 1]: beyond LIMIT after 3 to 6 steps.
    assert (made.ending == imagination.Ending.TERMINAL).all() and made.length.max() <= 7
    last = np.cumsum(made.length + 1) - 2  # the row of each rollout's last step
    assert np.asarray(made.rows.terminated)[last].all()
    assert np.asarray(made.rows.terminated).sum() == 24
    position = np.asarray(made.rows.state)[:, 0]
    assert (np.abs(position[last + 1]) > LIMIT - 0.15).all()
    assert (np.abs(position[last]) < LIMIT + 0.15).all()

    plain = dataclasses.replace(fitted, world=dataclasses.replace(fitted.world, heads=None))
    with pytest.raises(WorldError, match="did not learn it"):
        rollout_rules(config, data, plain)
    none = updated(config, {"world": {"termination": "none"}})
    assert not rollout_rules(none, data, plain).learned


class _Outwards:
    """Always pushes the first state up."""

    def initial(self, batch: int) -> jax.Array:
        return jnp.zeros(batch)

    def recall(self, history: object, length: jax.Array) -> jax.Array:
        return jnp.zeros(len(length))

    def act(self, memory: jax.Array, inputs: object, keys: jax.Array) -> tuple:
        return memory, jnp.tile(jnp.array([1.0, 0.0, 0.0]), (len(memory), 1))


SMALL = WorldConfig(width=8, depth=1, pool=2, members=2, max_epochs=1, batch=64)


@pytest.mark.slow
def test_a_fit_with_heads_is_saved_resumed_and_built_on_one_without(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path))
    monkeypatch.setattr(termination, "STEPS", 1000)

    def stop(progress: worlds.Progress) -> None:
        if progress.stage == "termination" and progress.share < 1:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        worlds.fit(data, SMALL, 0, directory=tmp_path / "one", progress=stop)
    resumed = worlds.fit(data, SMALL, 0, directory=tmp_path / "one")
    loaded = worlds.load(tmp_path / "one", data)
    assert resumed.termination == loaded.termination and resumed.termination is not None
    assert loaded.config.termination == "learned"

    # The dynamics that a world without heads has are not trained again, and are the same.
    without = updated(SMALL, {"termination": "none"})
    plain = worlds.fit(data, without, 0, directory=worlds.world_directory(data, without, 0))
    assert plain.termination is None and plain.world.heads is None
    monkeypatch.setattr("neubay.world.fitting.train_pool", None)
    built = worlds.fit(data, SMALL, 0, directory=worlds.world_directory(data, SMALL, 0))
    for one, *others in zip(
        *(jax.tree.leaves(each.world) for each in (resumed, loaded, built)), strict=True
    ):
        for other in others:
            np.testing.assert_array_equal(one, other)
    smaller = worlds.best_of(built, data, 1)
    assert smaller.world.heads is not None and smaller.world.heads.threshold.shape == (1,)
