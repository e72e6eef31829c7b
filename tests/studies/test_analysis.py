"""The analyses of the world, on worlds whose errors can be worked out by hand."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from matplotlib.figure import Figure
from scipy import stats

from neubay import world
from neubay.cli import main
from neubay.config import WorldConfig
from neubay.data import Dataset, load
from neubay.errors import DatasetError, NeubayError, WorldError
from neubay.report.parts import figures
from neubay.report.parts.tables import END, into_text
from neubay.report.studies import world_figures, world_tables
from neubay.studies import analysis
from neubay.world.model import soft_clamp
from neubay.world.transitions import fit_scaler

SLOPE = 0.01  # of the leaky ReLU


def linear_world(
    matrices: Sequence[np.ndarray],
    offsets: Sequence[np.ndarray],
    sigma: float,
) -> world.World:
    """Members that are exactly linear: (s' - s, r) = M (s, a) + b + sigma noise, unstandardised.

    One hidden layer holds x and -x, and leaky_relu(x) - leaky_relu(-x) = (1 + slope) x.
    """
    outputs, inputs = matrices[0].shape
    config = WorldConfig(width=2 * inputs, depth=1, layer_norm=False, pool=1, members=1)
    keys = jax.random.split(jax.random.key(0), len(matrices))
    members = jax.vmap(lambda key: world.Member(inputs, outputs, config, key=key))(keys)
    count = len(matrices)
    hidden = np.concatenate([np.eye(inputs), -np.eye(inputs)], axis=1)
    halves = [np.concatenate([m.T, -m.T]) / (1 + SLOPE) for m in matrices]
    log_sigma = _before_soft_clamp(math.log(sigma))
    parts = (
        jnp.asarray(np.stack(count * [hidden]), jnp.float32),
        jnp.zeros((count, 2 * inputs)),
        jnp.asarray(
            np.stack([np.concatenate([half, 0 * half], axis=1) for half in halves]), jnp.float32
        ),
        jnp.asarray(
            np.stack([np.append(offset, outputs * [log_sigma]) for offset in offsets]), jnp.float32
        ),
    )
    members = eqx.tree_at(
        lambda m: (m.linears[0].weight, m.linears[0].bias, m.head.weight, m.head.bias),
        members,
        parts,
    )
    states, actions = outputs - 1, inputs - outputs + 1
    scaler = world.Scaler(
        jnp.zeros(states),
        jnp.ones(states),
        jnp.zeros(actions),
        jnp.ones(actions),
        jnp.zeros(()),
        jnp.ones(()),
    )
    return world.World(members, scaler, reward_only=False, quantifier="disagreement")


def _before_soft_clamp(log_sigma: float) -> float:
    candidates = jnp.linspace(-12, 8, 400_001)
    clamped = soft_clamp(candidates[:, None])[:, 0]
    return float(candidates[jnp.argmin(jnp.abs(clamped - log_sigma))])


def fitted(
    of: world.World, dataset: Dataset, *, layer_norm: bool = True, **sizes: int
) -> world.FittedWorld:
    return world.FittedWorld(
        world=of,
        scores=np.zeros(of.size, np.float32),
        kept=np.arange(of.size),
        data_uncertainty=world.uncertainty_over(of, dataset),
        history=[],
        seconds=1.0,
        config=WorldConfig(layer_norm=layer_norm, pool=of.size, members=of.size, **sizes),
        seed=0,
        dataset_name=dataset.name,
        dataset_hash=dataset.hash,
        provenance={},
    )


def untrained(dataset: Dataset, *, layer_norm: bool) -> world.FittedWorld:
    """Random members of the usual make."""
    config = WorldConfig(width=8, depth=2, pool=2, members=2, layer_norm=layer_norm)
    keys = jax.random.split(jax.random.key(0), 2)
    members = eqx.filter_jit(jax.vmap(lambda key: world.Member(4, 3, config, key=key)))(keys)
    of = world.World(members, fit_scaler(dataset), False, "disagreement")
    return fitted(of, dataset, layer_norm=layer_norm, width=8, depth=2)


def random_walk(
    lengths: Sequence[int],
    *,
    drift: float = 0.0,
    sigma: float = 1.0,
    seed: int = 0,
    name: str = "walk",
) -> Dataset:
    """s' = s + a + drift + sigma noise, r = noise: two states, two actions."""
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    actions = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    states, following = np.zeros((2, rows, 2), np.float32)
    ends = np.cumsum(lengths) - 1
    state = np.zeros(2)
    for row in range(rows):
        states[row] = state
        state = states[row] + actions[row] + drift + sigma * rng.standard_normal(2)
        following[row] = state
        if row in ends:
            state = rng.standard_normal(2)
    return Dataset.from_arrays(
        states,
        actions,
        (sigma * rng.standard_normal(rows)).astype(np.float32),
        np.zeros(rows, bool),
        np.isin(np.arange(rows), ends),
        following,
        name=name,
    )


TRUTH = np.concatenate([np.concatenate([np.zeros((2, 2)), np.eye(2)], axis=1), np.zeros((1, 4))])
ZERO = np.zeros(3)


def true_world(members: int = 2, sigma: float = 1.0) -> world.World:
    return linear_world(members * [TRUTH], members * [ZERO], sigma)


# --- Trajectories --------------------------------------------------------------------------------


def test_trajectories_are_whole_episodes_and_none_comes_thrice_before_all_came_twice() -> None:
    dataset = random_walk([4, 1, 6])
    drawn = analysis.draw_trajectories(dataset, 7, None, seed=1)
    assert sorted(np.bincount(drawn.episode)) == [2, 2, 3]
    first, length = dataset.bounds
    np.testing.assert_array_equal(drawn.length, length[drawn.episode])
    for k, episode in enumerate(drawn.episode):
        rows = slice(first[episode], first[episode] + length[episode])
        np.testing.assert_array_equal(drawn.action[: length[episode], k], dataset.tape.action[rows])
        np.testing.assert_array_equal(drawn.reward[: length[episode], k], dataset.tape.reward[rows])
        states = dataset.tape.state[first[episode] : first[episode] + length[episode] + 1]
        np.testing.assert_array_equal(drawn.state[: length[episode] + 1, k], states)


def test_trajectories_are_cut_to_the_steps_asked_for() -> None:
    drawn = analysis.draw_trajectories(random_walk([4, 1, 6]), 3, 2, seed=0)
    assert sorted(drawn.length) == [1, 2, 2]
    assert drawn.state.shape == (3, 3, 2)


def test_more_steps_than_any_episode_has_is_an_error_that_says_so() -> None:
    with pytest.raises(DatasetError, match="no episode has 7 steps to replay, the longest has 6"):
        analysis.draw_trajectories(random_walk([4, 1, 6]), 3, 7, seed=0)


# --- Replay --------------------------------------------------------------------------------------


def test_a_biased_world_drifts_away_by_its_bias_at_every_step() -> None:
    """With s' = s + a + bias and hardly any noise, RMSE is t * bias, and r̂ - r its own bias."""
    dataset = random_walk([30, 30, 10], sigma=0.0)
    bias = np.array([0.3, 0.3, -0.5])
    of = linear_world([TRUTH], [bias], sigma=math.exp(-4.9))
    recorded = analysis.draw_trajectories(dataset, 3, None, seed=0)
    played = analysis.replay(of, recorded, seed=0)
    steps = np.arange(1, 31)[:, None]
    np.testing.assert_array_equal(played.live, steps <= recorded.length)
    expected = np.broadcast_to(0.3 * steps, played.live.shape)
    np.testing.assert_allclose(
        played.state_error[played.live], expected[played.live], rtol=0.03, atol=0.05
    )
    np.testing.assert_allclose(played.reward_bias[played.live], -0.5, atol=0.05)
    assert not played.overflowed.any()


def test_replay_is_the_plain_loop_in_one_member_per_rollout() -> None:
    dataset = random_walk([5, 3])
    rng = np.random.default_rng(3)
    of = linear_world(
        [TRUTH + 0.1 * rng.standard_normal((3, 4)) for _ in range(3)], 3 * [ZERO], sigma=0.1
    )
    recorded = analysis.draw_trajectories(dataset, 4, None, seed=0)
    played = analysis.replay(of, recorded, seed=7)
    keys = jax.random.split(jax.random.key(7), 4)
    one_step = eqx.filter_jit(world.World.step)
    state, member = jnp.asarray(recorded.state[0]), jnp.asarray([0, 1, 2, 0])
    for t in range(5):
        now = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, t)
        step = one_step(of, state, jnp.asarray(recorded.action[t]), member, now)
        state = step.next_state
        error = np.sqrt(((np.asarray(state) - recorded.state[t + 1]) ** 2).mean(axis=1))
        norm = np.sqrt((np.asarray(state) ** 2).mean(axis=1))
        live = played.live[t]
        np.testing.assert_allclose(played.state_error[t, live], error[live], rtol=1e-4)
        np.testing.assert_allclose(played.state_norm[t, live], norm[live], rtol=1e-4)
        np.testing.assert_allclose(played.uncertainty[t], step.uncertainty, rtol=1e-4)


def test_overflow_ends_a_rollout_and_keeps_its_last_finite_error() -> None:
    growing = TRUTH.copy()
    growing[:2, :2] = 1e9 * np.eye(2)  # passes 3e38 at the fifth step
    dataset = random_walk(3 * [12])
    of = linear_world([TRUTH, growing, 2 * growing], 3 * [ZERO], sigma=0.1)
    recorded = analysis.draw_trajectories(dataset, 3, None, seed=0)
    played = analysis.replay(of, recorded, seed=0)
    assert played.overflowed.tolist() == [False, True, True]
    assert played.live[:, 0].all()
    assert 3 <= played.live[:, 1].sum() <= 5
    assert np.isfinite(played.state_error[played.live]).all()
    filled = analysis.forward_fill(played.state_error, played.live)
    assert np.isfinite(filled).all()
    assert filled[-1, 1] > 1e25
    # The members' spread overflows before the states do, and is then beyond every threshold.
    assert np.isposinf(played.uncertainty[played.live]).any()


@given(
    values=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=6), min_size=1, max_size=5),
    lengths=st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
def test_forward_fill_repeats_the_last_live_value(
    values: list[list[float]], lengths: list[int]
) -> None:
    table = np.array(values).T
    length = np.array(lengths[: table.shape[1]])
    live = np.arange(6)[:, None] < length
    expected = []
    for column, steps in zip(table.T, length, strict=True):
        filled, last = [], None
        for t, value in enumerate(column):
            last = value if t < steps else last
            filled.append(last)
        if last is not None:
            expected.append(filled)
    result = analysis.forward_fill(table, live)
    np.testing.assert_array_equal(result, np.array(expected).reshape(-1, 6).T)


# --- Ranks ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30).filter(
        lambda pairs: len({event for _, event in pairs}) == 2
    )
)
def test_auroc_is_the_share_of_pairs_in_order_and_the_area_under_roc(
    pairs: list[tuple[int, bool]],
) -> None:
    score = np.array([float(value) for value, _ in pairs])
    event = np.array([flag for _, flag in pairs])
    wins = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in score[event]
        for low in score[~event]
    ]
    assert analysis.auroc(score, event) == pytest.approx(np.mean(wins))
    false_alarm, caught = analysis.roc(score, event)
    assert (false_alarm[0], caught[0]) == (0, 0)
    assert (false_alarm[-1], caught[-1]) == (1, 1)
    assert np.trapezoid(caught, false_alarm) == pytest.approx(np.mean(wins))


def test_auroc_and_roc_need_events_and_others() -> None:
    score = np.arange(3.0)
    for event in (np.zeros(3, bool), np.ones(3, bool)):
        assert analysis.auroc(score, event) is None
        assert all(len(axis) == 0 for axis in analysis.roc(score, event))


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_spearman_is_scipys_and_survives_infinity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 9, (2, 40)).astype(float)
    ranks = stats.pearsonr(stats.rankdata(first), stats.rankdata(second)).statistic
    assert analysis.spearman(first, second) == pytest.approx(ranks)
    first[first == first.max()] = np.inf
    assert analysis.spearman(first, second) == pytest.approx(ranks)
    assert analysis.spearman(np.ones(5), np.arange(5.0)) is None


# --- Compounding ---------------------------------------------------------------------------------


def exploding_pair(dataset: Dataset) -> dict[str, world.FittedWorld]:
    """A calm world as if with LayerNorm, and one whose members double the state at each step."""
    doubling = TRUTH.copy()
    doubling[:2, :2] = np.eye(2)
    return {
        "calm": fitted(linear_world(2 * [TRUTH], [ZERO, ZERO + 0.1], 0.1), dataset),
        "wild": fitted(
            linear_world(2 * [doubling], [ZERO, ZERO + 0.1], 0.1), dataset, layer_norm=False
        ),
    }


def test_compounding_tells_the_step_at_which_errors_explode() -> None:
    dataset = random_walk(20 * [12], sigma=0.1)
    worlds = exploding_pair(dataset)
    result = analysis.compounding(worlds, dataset, rollouts=20)
    calm, wild = result.worlds
    recorded = analysis.draw_trajectories(dataset, 20, None, seed=0)
    high = [
        np.percentile(analysis.replay(each.world, recorded, 0).state_error, 95, axis=1)
        for each in worlds.values()
    ]
    ratio = high[1] / high[0]
    expected = next(t + 1 for t, value in enumerate(ratio) if value > 10)
    assert result.comparison is not None
    assert result.comparison.passes_at == expected
    assert result.comparison.explodes and result.comparison.median_explodes
    assert result.comparison.largest_ratio == pytest.approx(ratio.max())
    assert [calm.last_error_p95, wild.last_error_p95] == pytest.approx([h[-1] for h in high])
    assert calm.diverges_at is None
    assert wild.diverges_at is not None
    states = recorded.state.reshape(-1, 2)
    distances = (states[:, None] - states[None]) ** 2  # each with itself too, as in a variance
    assert result.spread == pytest.approx(math.sqrt(distances.mean()), rel=1e-4)


def test_cuts_do_what_a_loop_over_rollouts_does() -> None:
    dataset = random_walk(12 * [15], sigma=0.1)
    slopes = [TRUTH + np.pad(scale * np.eye(2), ((0, 1), (0, 2))) for scale in (0.05, 0.1, 0.2)]
    of = fitted(linear_world(slopes, 3 * [ZERO], 0.05), dataset)
    result = analysis.compounding({"w": of}, dataset, rollouts=12)
    recorded = analysis.draw_trajectories(dataset, 12, None, seed=0)
    played = analysis.replay(of.world, recorded, seed=0)
    assert result.comparison is None
    for cut in result.worlds[0].cuts:
        horizons, kept = [], []
        for k in range(12):
            for t in range(15):
                kept.append(played.state_error[t, k])
                if played.uncertainty[t, k] > of.threshold(cut.zeta) or t == 14:
                    horizons.append(t + 1)
                    break
        severe = played.state_error > result.spread
        beyond = played.uncertainty > cut.threshold
        assert cut.horizon_median == np.median(horizons)
        assert cut.kept_error_max == pytest.approx(max(kept))
        assert cut.kept_error_p95 == pytest.approx(np.percentile(kept, 95))
        assert cut.kept_severe == pytest.approx(np.mean(np.array(kept) > result.spread))
        assert cut.beyond == pytest.approx(beyond.mean())
        if severe.any():
            assert cut.false_safe == pytest.approx(np.mean(~beyond[severe]))


def test_data_of_another_size_is_refused() -> None:
    small = fitted(true_world(), random_walk([20]))
    other = Dataset.from_arrays(
        np.zeros((4, 3)), np.zeros((4, 1)), np.zeros(4), np.zeros(4, bool), name="other"
    )
    for analyse in (
        lambda: analysis.compounding({"w": small}, other),
        lambda: analysis.uncertainty_spread("w", small, other),
        lambda: analysis.calibration("w", small, [random_walk([20]), other]),
    ):
        with pytest.raises(WorldError, match="2 states and 2 actions, other has 3 and 1"):
            analyse()


# --- The spread of uncertainty -------------------------------------------------------------------


def test_the_spread_of_uncertainty_is_its_quantiles_in_units_of_the_mean() -> None:
    dataset = random_walk([1000])
    of = fitted(linear_world([TRUTH, 1.3 * TRUTH], 2 * [ZERO], 0.1), dataset)
    spread = analysis.uncertainty_spread("w", of)
    values = of.data_uncertainty / of.data_uncertainty.mean()
    assert spread.own and spread.data == "walk" and spread.beyond == 0
    assert spread.normalised[0] == pytest.approx(values.min())
    assert spread.normalised[-1] == pytest.approx(values.max())
    assert spread.quantile(0.5) == pytest.approx(np.median(values), rel=0.02)
    assert (np.diff(spread.normalised) >= 0).all()
    written = np.array(spread.record()["probability"])  # still apart from 1, for the logit axis
    np.testing.assert_allclose(np.log(written / (1 - written)), np.linspace(-7.6, 7.6, 200), 1e-3)
    far = random_walk([100], drift=5.0, seed=1, name="far")
    elsewhere = analysis.uncertainty_spread("w", of, far)
    assert not elsewhere.own
    assert elsewhere.unit == spread.unit


# --- Calibration ---------------------------------------------------------------------------------


def shares(intervals: Sequence[analysis.Interval], kind: str) -> Float[np.ndarray, " levels"]:
    return np.array([getattr(interval, kind) for interval in intervals])


def test_the_true_world_has_honest_intervals_and_a_timid_one_has_too_narrow_ones() -> None:
    dataset = random_walk([4000], sigma=0.5)
    nominal = np.array(analysis.NOMINAL)
    honest = analysis.calibration("w", fitted(true_world(sigma=0.5), dataset), [dataset])
    for kind in ("member", "mixture"):  # equal members are their own mixture
        np.testing.assert_allclose(
            shares(honest.assessments[0].coverage, kind), nominal, atol=0.015
        )
    timid = analysis.calibration("w", fitted(true_world(sigma=0.25), dataset), [dataset])
    half = 2 * stats.norm.cdf(stats.norm.ppf(0.5 + nominal / 2) / 2) - 1
    np.testing.assert_allclose(shares(timid.assessments[0].coverage, "member"), half, atol=0.015)
    np.testing.assert_allclose(shares(timid.held_out, "member"), half, atol=0.04)


def test_the_mixture_is_wider_than_its_members_by_their_disagreement() -> None:
    dataset = random_walk([4000], sigma=0.5)
    apart = linear_world(2 * [TRUTH], [ZERO - 0.5, ZERO + 0.5], 0.5)
    result = analysis.calibration("w", fitted(apart, dataset), [dataset])
    inside = shares(result.assessments[0].coverage, "mixture")
    # y ~ N(0, 1/2); the mixture's distribution function is the mean of the two members'.
    y = 0.5 * np.random.default_rng(0).standard_normal(200_000)
    below = (stats.norm.cdf(y, -0.5, 0.5) + stats.norm.cdf(y, 0.5, 0.5)) / 2
    expected = [(np.abs(2 * below - 1) <= level).mean() for level in analysis.NOMINAL]
    np.testing.assert_allclose(inside, expected, atol=0.015)


def test_uncertainty_that_knows_the_error_has_auroc_one_and_no_false_safe() -> None:
    """Members that disagree by what they err: both grow with |s| alone."""
    dataset = random_walk([500], sigma=0.0)
    slopes = [TRUTH + np.pad(scale * np.eye(2), ((0, 1), (0, 2))) for scale in (0.1, 0.2)]
    of = fitted(linear_world(slopes, 2 * [ZERO], 0.1), dataset)
    far = random_walk([500], drift=1.0, sigma=0.0, seed=1, name="far")
    result = analysis.calibration("w", of, [far, dataset])
    away, own = result.assessments
    assert own.own and not away.own
    assert own.dangerous == pytest.approx(1 / 500)
    # The drift itself is an error of 1 that U does not see: where all is dangerous there is no
    # AUROC; on the world's own data error and U are in one order.
    assert own.auroc == 1.0
    assert own.spearman == pytest.approx(1.0, abs=1e-3)
    assert own.separations[-1].false_safe == 1.0  # nothing of its own lies beyond zeta = 1
    assert own.separations[0].false_safe == 0.0


def test_one_step_errors_are_those_of_the_mean_of_members() -> None:
    dataset = random_walk([300], sigma=0.3)
    of = linear_world([TRUTH, TRUTH], [ZERO + 0.2, ZERO + 0.4], 0.3)
    rows = dataset.world_rows
    step = analysis.one_step(of, dataset, rows)
    tape = dataset.tape
    delta = tape.state[rows + 1] - tape.state[rows]
    target = np.concatenate([delta, tape.reward[rows][:, None]], axis=1)
    mean = np.concatenate([tape.action[rows], np.zeros((len(rows), 1))], axis=1) + 0.3
    np.testing.assert_allclose(
        step.error, np.sqrt(((mean - target) ** 2).mean(axis=1)), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_allclose(step.uncertainty, 0.1, rtol=1e-3)


def test_calibration_needs_the_worlds_own_data_and_says_which_it_is() -> None:
    dataset = random_walk([50])
    of = fitted(true_world(), dataset)
    with pytest.raises(WorldError, match=f"walk .hash {dataset.hash}., and none of other is it"):
        analysis.calibration("w", of, [random_walk([50], seed=1, name="other")])


# --- Figures, tables, commands -------------------------------------------------------------------


def texts(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


def test_figures_draw_what_overflowed_and_what_is_undefined(tmp_path: Path) -> None:
    dataset = random_walk(5 * [12], sigma=0.1)
    growing = TRUTH.copy()
    growing[:2, :2] = 1e12 * np.eye(2)
    worlds = {
        "calm": fitted(true_world(), dataset),
        "wild": fitted(linear_world(2 * [growing], 2 * [ZERO], 0.1), dataset, layer_norm=False),
    }
    record = analysis.compounding(worlds, dataset, rollouts=5).record()
    json.dumps(record, allow_nan=False)
    figure = world_figures.compounding_figure([record])
    assert "5 of 5 overflow" in texts(figure)
    assert "Spearman undefined" in texts(figure)  # equal members: U is zero everywhere
    figures.save(figure, tmp_path / "figure.png")


@pytest.fixture(scope="module")
def two_worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of two tiny worlds, with and without LayerNorm, and two datasets."""
    folder = tmp_path_factory.mktemp("worlds")
    for name, seed in (("here", 0), ("there", 1)):
        dataset = random_walk([40, 40, 20], sigma=0.1, seed=seed, name=name)
        tape, rows = dataset.tape, dataset.world_rows
        np.savez(
            folder / f"{name}.npz",
            observations=tape.state[rows],
            actions=tape.action[rows],
            rewards=tape.reward[rows],
            terminals=tape.terminated[rows],
            timeouts=np.isin(np.arange(100), [39, 79, 99]),
            next_observations=tape.state[rows + 1],
        )
    own = load(str(folder / "here.npz"))
    for layer_norm in (True, False):
        name = "normed" if layer_norm else "plain"
        world.save(untrained(own, layer_norm=layer_norm), folder / name)
    return folder


def run(*words: Any) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    return exit_.value.code or 0


def test_the_commands_write_pictures_and_numbers(
    two_worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    normed, plain = two_worlds / "normed", two_worlds / "plain"
    here, there = two_worlds / "here.npz", two_worlds / "there.npz"
    out = ("--out", tmp_path)
    assert run("analyze", "uncertainty", "--world", normed, plain, "--data", there, *out) == 0
    assert run(
        "analyze", "compounding", "--world", normed, "--world", plain, "--data", here, there,
        "--rollouts", 6, "--steps", 20, *out,
    ) == 0  # fmt: skip
    assert run("analyze", "calibration", "--world", normed, "--data", here, there, *out) == 0
    assert "there in normed: error after 20 steps" in capsys.readouterr().out
    documents = {}
    for name in ("uncertainty", "compounding", "calibration"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        documents[name] = json.loads((tmp_path / f"{name}.json").read_text())
        assert documents[name]["worlds"][0]["width"] == 8
    assert len(documents["uncertainty"]["uncertainty"]) == 4
    assert [r["data"] for r in documents["compounding"]["compounding"]] == ["here", "there"]

    text = tmp_path / "text.md"
    text.write_text(f"before\n{world_tables.BEGIN}\nold\n{END}\nafter\n")
    small = tmp_path / "small.json"
    sources = (tmp_path / "compounding.json", tmp_path / "calibration.json")
    assert run("analyze", "table", *sources, "--out", small, "--text", text) == 0
    tables = world_tables.markdown(json.loads(small.read_text()))
    assert text.read_text() == (f"before\n{world_tables.BEGIN}\n\n{tables}\n\n{END}\nafter\n")
    assert small.stat().st_size < sources[0].stat().st_size / 3
    assert "of 2 setups" in tables
    assert len(json.loads(small.read_text())["worlds"]) == 2
    capsys.readouterr()
    assert run("analyze", "table", small) == 0
    assert capsys.readouterr().out.strip() == tables


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a world"),
        (["--world", "nowhere"], "no world"),
        (["--world", "{folder}/normed"], "name the datasets"),
        (
            ["--world", "{folder}/normed", "--data", "{folder}/here.npz", "--steps", "41"],
            "41 steps",
        ),
        (["--world", "{folder}/normed", "--data", "{folder}/here.npz", "--rollouts", "0"], "least"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], message: str, two_worlds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("analyze", "compounding", *(w.format(folder=two_worlds) for w in words)) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_tables_refuse_other_documents_and_texts_without_markers() -> None:
    with pytest.raises(NeubayError, match="one of these has worlds, uncertainty"):
        world_tables.condense([{"worlds": [], "uncertainty": []}])
    with pytest.raises(NeubayError, match="needs one line"):
        into_text("no markers", "tables", world_tables.BEGIN)
