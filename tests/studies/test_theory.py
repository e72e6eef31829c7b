"""Exact answers, held against plainer ones: expectimax over whole histories, value iteration,
simulation, and the inequalities that the paper proves."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neubay.errors import ConfigError
from neubay.studies import theory
from neubay.studies.theory import Belief, Mismatch, TwoWorlds, bayes_optimal, robust_optimal

probabilities = st.floats(0.02, 0.98)


@st.composite
def beliefs(draw: st.DrawFn) -> Belief:
    p1 = np.array(draw(st.lists(probabilities, min_size=1, max_size=4)))
    weights = np.array([draw(st.floats(0.1, 1.0)) for _ in p1])
    return Belief(draw(probabilities), p1, weights / weights.sum())


def expectimax(belief: Belief, horizon: int, surcharge: float) -> float:
    """The greatest expected return by looking at every history, arm 0's rewards included."""

    @cache
    def value(history: tuple[tuple[int, int], ...]) -> float:
        if len(history) == horizon:
            return 0.0
        likelihood = belief.weights.copy()
        for arm, reward in history:
            p = belief.p1 if arm else np.full_like(belief.p1, belief.p0)
            likelihood = likelihood * (p if reward else 1 - p)
        posterior = likelihood / likelihood.sum()

        def pull(arm: int) -> float:
            p = float(posterior @ belief.p1) if arm else belief.p0
            after = [value((*history, (arm, reward))) for reward in (0, 1)]
            return p * (1 + after[1]) + (1 - p) * after[0] - arm * surcharge

        return max(pull(0), pull(1))

    return value(())


@settings(max_examples=25, deadline=None)
@given(belief=beliefs(), horizon=st.integers(1, 4), surcharge=st.sampled_from([0.0, 0.1]))
def test_backward_induction_over_counts_equals_a_search_over_histories(
    belief: Belief, horizon: int, surcharge: float
) -> None:
    plan, value = bayes_optimal(belief, horizon, surcharge=surcharge)
    assert value == pytest.approx(expectimax(belief, horizon, surcharge), abs=1e-12)
    outcomes = [plan.in_bandit(belief.p0, p1) for p1 in belief.p1]
    earned = [o.expected_return - surcharge * o.arm_one.sum() for o in outcomes]
    assert belief.weights @ earned == pytest.approx(value, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(p0=probabilities, p1=probabilities, threshold=st.integers(-2, 2))
def test_a_plan_earns_what_its_histories_earn(p0: float, p1: float, threshold: int) -> None:
    horizon = 5
    pulls, successes = np.ogrid[:horizon, :horizon]
    plan = theory.Plan(np.stack([(2 * successes - pulls >= threshold)] * horizon))
    expected, share = 0.0, np.zeros(horizon)
    for rewards in itertools.product((0, 1), repeat=horizon):
        probability, n, k, arms = 1.0, 0, 0, []
        for t, reward in enumerate(rewards):
            arms.append(bool(plan.pulls_one[t, n, k]))
            p = p1 if arms[-1] else p0
            probability *= p if reward else 1 - p
            n, k = n + arms[-1], k + (arms[-1] and reward)
        expected += probability * sum(rewards)
        share += probability * np.array(arms)
    outcome = plan.in_bandit(p0, p1)
    assert outcome.expected_return == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(outcome.arm_one, share, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(belief=beliefs(), horizon=st.integers(1, 12))
def test_robust_and_bayes_optimal_policies_keep_their_order(belief: Belief, horizon: int) -> None:
    """In the worst world the robust policy is the better one, on average the Bayesian one."""

    def returns(plan: theory.Plan) -> np.ndarray:
        return np.array([plan.in_bandit(belief.p0, p1).expected_return for p1 in belief.p1])

    robust, worst_case = robust_optimal(belief, horizon)
    bayes, average = bayes_optimal(belief, horizon)
    assert returns(robust).min() == pytest.approx(worst_case)
    assert returns(bayes).min() <= worst_case + 1e-9
    assert belief.weights @ returns(robust) <= average + 1e-9


def test_robust_value_is_the_best_worst_case_of_all_plans() -> None:
    """Every deterministic plan over two pulls, mixed or not, is tried against two worlds."""
    belief = Belief(0.5, np.array([0.2, 0.9]), np.array([0.5, 0.5]))
    outcomes = []
    for bits in itertools.product((False, True), repeat=4):  # t = 0; t = 1 after nothing, 0 or 1
        pulls_one = np.zeros((2, 2, 2), bool)
        pulls_one[0, 0, 0], pulls_one[1, 0, 0], pulls_one[1, 1, 0], pulls_one[1, 1, 1] = bits
        plan = theory.Plan(pulls_one)
        outcomes.append([plan.in_bandit(0.5, p1).expected_return for p1 in belief.p1])
    mixed = [
        (share * np.array(a) + (1 - share) * np.array(b)).min()
        for a, b in itertools.product(outcomes, repeat=2)
        for share in (0.0, 0.25, 0.5, 0.75)
    ]
    _, worst_case = robust_optimal(belief, 2)
    assert max(mixed) == pytest.approx(worst_case)


def test_an_ensemble_is_read_as_equally_likely_bandits_within_bounds() -> None:
    belief = Belief.of_ensemble(np.array([[0.4, -0.3], [0.6, 0.7], [0.5, 1.2]]))
    assert belief.p0 == pytest.approx(0.5)
    np.testing.assert_allclose(belief.p1, [0.001, 0.7, 0.999])
    np.testing.assert_allclose(belief.weights, 1 / 3)
    assert np.isfinite(belief.success_rates(100)).all()


def test_a_uniform_belief_gives_laplace_rule() -> None:
    p1 = (np.arange(4000) + 0.5) / 4000
    rates = Belief(0.5, p1, np.full(4000, 1 / 4000)).success_rates(10)
    assert rates[10, 7] == pytest.approx(8 / 12, abs=1e-4)


# --- Two worlds ----------------------------------------------------------------------------------

worlds = st.builds(
    TwoWorlds,
    epsilon=st.floats(0.02, 0.45),
    beta=st.floats(0.01, 0.9),
    data_size=st.integers(1, 200),
    gamma=st.floats(0.55, 0.97),
)


@settings(max_examples=15, deadline=None)
@given(case=worlds)
def test_the_threshold_policy_is_what_value_iteration_finds(case: TwoWorlds) -> None:
    reach = 120  # leads beyond are worth what their neighbours are, near enough
    lead = np.arange(-reach, reach + 1)
    p = 0.5 + case.epsilon * (2 * case.posterior(lead)[:, 1] - 1)
    known = 0.5 / (1 - case.gamma)
    value = np.full(len(lead), known)
    for _ in range(math.ceil(math.log(1e-10) / math.log(case.gamma))):
        up, down = np.append(value[1:], value[-1]), np.append(value[0], value[:-1])
        value = np.maximum(known, p * (1 + case.gamma * up) + (1 - p) * case.gamma * down)
    near = np.abs(lead) <= 15
    pulls = value > known + 1e-7
    sure = np.abs(lead - case.threshold) > 0  # at the threshold the advantage may be tiny
    np.testing.assert_array_equal(pulls[near & sure], (lead >= case.threshold)[near & sure])
    share = np.stack([case.occupancy(lead, -1), case.occupancy(lead, 1)], axis=1)
    gained = case.epsilon / (1 - case.gamma) * (case.posterior(lead) * share) @ [-1, 1]
    np.testing.assert_allclose(value[near], (known + gained)[near], atol=1e-6)


def test_descent_is_the_discounted_time_to_fall_by_one() -> None:
    case = TwoWorlds(epsilon=0.2, beta=0.5, data_size=10, gamma=0.9)
    for world in (-1, 1):
        p, expected, heights = 0.5 + world * 0.2, 0.0, {0: 1.0}
        for t in range(1, 400):
            after: dict[int, float] = {}
            for height, probability in heights.items():
                after[height + 1] = after.get(height + 1, 0.0) + p * probability
                after[height - 1] = after.get(height - 1, 0.0) + (1 - p) * probability
            expected += 0.9**t * after.pop(-1, 0.0)
            heights = after
        assert case.descent(world) == pytest.approx(expected, abs=1e-9)


def test_the_lead_of_the_data_has_its_exact_distribution() -> None:
    case = TwoWorlds(epsilon=0.1, beta=0.3, data_size=6)
    expected: dict[int, float] = {}
    steps = {1: 0.3 * 0.6, -1: 0.3 * 0.4, 0: 0.7}
    for walk in itertools.product(steps, repeat=6):
        expected[sum(walk)] = expected.get(sum(walk), 0.0) + math.prod(steps[s] for s in walk)
    lead, probability = case.leads()
    assert dict(zip(lead.tolist(), probability, strict=True)) == pytest.approx(expected, abs=1e-14)


def test_the_lead_has_its_moments_where_there_are_too_many_data_to_enumerate() -> None:
    case = TwoWorlds(epsilon=0.1, beta=1e-6, data_size=10**12)
    lead, probability = case.leads()
    mean = float(probability @ lead)
    assert mean == pytest.approx(10**6 * 0.2, rel=1e-9)
    variance = float(probability @ (lead - mean) ** 2)
    assert variance == pytest.approx(10**6 * (1 - 1e-6 * 0.04), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(case=worlds)
def test_the_theorem_holds_and_its_bound_is_never_positive(case: TwoWorlds) -> None:
    """In this construction the ratio of the ideal policy, 1 / beta, is the largest there is."""
    record = case.theorem()
    assert record["lower_bound_holds"] == pytest.approx(1.0)
    assert record["lower_bound_holds"] >= theory.CONFIDENCE
    assert record["bayes_gap_bound_holds"] == pytest.approx(1.0)
    assert record["robust_coverage"] == 0.0
    assert record["ideal_coverage"] == pytest.approx(1 / case.beta)
    assert record["lower_bound_is_positive"] == 0.0
    assert record["lower_bound_as_assumed_is_positive"] == 0.0
    assert 0 <= record["advantage"] <= record["robust_gap"] + 1e-12


def test_the_advantage_is_what_play_shows() -> None:
    case = TwoWorlds(epsilon=0.15, beta=0.2, data_size=20, gamma=0.9)
    rng = np.random.default_rng(0)
    games = 20_000
    pulls = rng.binomial(20, 0.2, games)
    lead = 2 * rng.binomial(pulls, 0.65) - pulls
    earned = np.zeros(games)
    for t in range(120):
        pull = lead >= case.threshold
        reward = rng.random(games) < np.where(pull, 0.65, 0.5)
        lead = lead + np.where(pull, 2 * reward - 1, 0)
        earned += 0.9**t * (reward - 0.5)
    spread = earned.std() / math.sqrt(games)
    assert case.theorem()["advantage"] == pytest.approx(earned.mean(), abs=4 * spread)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_bayesian_coverage_is_at_most_robust_coverage(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    unit = st.floats(0, 1)

    def array(*shape: int) -> np.ndarray:
        numbers = data.draw(st.lists(unit, min_size=math.prod(shape), max_size=math.prod(shape)))
        return np.array(numbers).reshape(shape)

    occupancy, weights = array(count, 2) + 1e-3, array(count) + 1e-3
    mismatch = Mismatch.of_bandits(
        array(count, 2), array(2), occupancy / occupancy.sum(1, keepdims=True), np.array([0.9, 0.1])
    )
    bayesian = theory.bayesian_coverage(mismatch, weights / weights.sum())
    assert bayesian <= theory.robust_coverage(mismatch) * (1 + 1e-9)


def test_robust_coverage_is_infinite_where_the_bayesian_one_is_not() -> None:
    """The paper's example: one world errs a little everywhere, one only where there is no data."""
    means = np.array([[0.52, 0.52], [0.5, 0.9]])
    mismatch = Mismatch.of_bandits(
        means, np.array([0.5, 0.5]), np.full((2, 2), 0.5), np.array([1.0, 0.0])
    )
    assert theory.robust_coverage(mismatch) == math.inf
    assert theory.bayesian_coverage(mismatch, np.array([0.7, 0.3])) < 1e3


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.5}, {"beta": 0.0}, {"data_size": 0}, {"gamma": 0.5}]
)
def test_what_the_construction_does_not_allow_is_said(wrong: dict) -> None:
    name = next(iter(wrong))
    with pytest.raises(ConfigError, match=f"{name} is {wrong[name]}: it must be"):
        TwoWorlds(**{"epsilon": 0.1, "beta": 0.1, "data_size": 10, **wrong})
