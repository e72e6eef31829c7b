"""Ranking and verdict: deploy, copy or keep."""

import dataclasses

import numpy as np
import pytest

from helpers.judges import linear_policy, logged, quadratic, trial
from neubay.selection import Candidate, Judged, Rollouts, Sanity, Verdict, decide, ranked
from neubay.selection.candidates import CloneOf
from neubay.selection.protocol import Reproduced, Trial
from neubay.selection.verdict import Gains

BETTER, DATA_LIKE, WORSE = [0.3, 0.8], [0.0, 0.0], [-0.3, -0.5]


def judged(tried: Trial, name: str, gain: list[float], *, clone: bool = False) -> Judged:
    policy = linear_policy(gain)
    candidate = Candidate(name, policy, clone_of="data" if clone else None)
    return Judged(candidate, tried.roll(policy))


def verdict(tried: Trial, **gains: list[float]) -> Verdict:
    """Of some linear policies against a clone that does what the data does."""
    clone = judged(tried, "clone", DATA_LIKE, clone=True)
    others = [judged(tried, name, gain) for name, gain in gains.items()]
    sanity = Sanity.of(clone, tried.data_returns)
    return decide([clone, *others], tried.data_returns, sanity)


@pytest.fixture(scope="module")
def tried() -> Trial:
    return trial(quadratic(), logged(40 * [25]))


def test_what_is_better_than_data_and_clone_is_deployed(tried: Trial) -> None:
    found = verdict(tried, better=BETTER, worse=WORSE)
    assert (found.word, found.chosen) == ("deploy", "better")
    assert any("better than the data" in reason for reason in found.reasons)


def test_what_is_worse_is_not(tried: Trial) -> None:
    found = verdict(tried, worse=WORSE)
    assert (found.word, found.chosen) == ("copy", "clone")


def test_equal_candidates_give_no_preference(tried: Trial) -> None:
    one, other = (judged(tried, name, BETTER) for name in ("one", "other"))
    assert one.estimate == other.estimate and one.lower_gain(other.rollouts.estimate) == 0
    assert [each.name for each in ranked([other, one])] == ["other", "one"]
    assert verdict(tried, same=DATA_LIKE).word == "copy"  # what does as the clone is no gain


def test_no_gain_at_all_is_not_a_sure_one() -> None:
    clone, same = made("clone", 100.0, clone_of="data"), made("same", 100.0)
    found = Gains.of(same, DATA, clone, None)
    assert found == (0.0, 0.0) and not found.sure
    assert Gains(1.0, 1.0).sure
    assert not (Gains(0.0, 1.0).sure or Gains(1.0, 0.0).sure or Gains(1.0, None).sure)


def test_a_clone_that_is_worse_than_the_data_is_not_copied(tried: Trial) -> None:
    clone = judged(tried, "clone", WORSE, clone=True)
    likeness = judged(tried, "clone", DATA_LIKE)
    found = decide([clone], tried.data_returns, Sanity.of(likeness, tried.data_returns))
    assert found.word == "keep" and "worse than the data" in found.reasons[-1]


def test_a_judge_that_cannot_reproduce_the_data_has_no_vote() -> None:
    """One that was trained on other data: there, actions cost ten times as much."""
    other = trial(quadratic(cost=10.0), logged(40 * [25]))
    found = verdict(other, better=BETTER)
    assert found.word == "keep" and "has no vote" in found.reasons[0] and not found.vote
    generous = trial(quadratic(cost=0.1), logged(40 * [25]))
    assert verdict(generous, better=BETTER).word == "keep"


def test_a_judge_that_replays_the_log_keeps_its_vote_where_the_clone_is_a_poor_copy() -> None:
    """Asked about a copy that is much worse than the data, a judge that is right says so. What the
    log's own actions earned tells it from a judge that is wrong; one that flatters never votes."""
    data = logged(40 * [25])

    def decided(cost: float, imitation: list[float]) -> Verdict:
        tried = trial(quadratic(cost=cost, sigma=0.0), data)
        clone = judged(tried, "clone", imitation, clone=True)
        sanity = Sanity.of(clone, tried.data_returns, tried.reproduce())
        return decide([clone, judged(tried, "better", BETTER)], tried.data_returns, sanity)

    much_worse = [-0.9, -1.5]
    right = decided(1.0, much_worse)
    assert right.vote and (right.word, right.chosen) == ("deploy", "better")
    assert "it is the copy that falls short" in right.reasons[0]
    wrong = decided(3.0, much_worse)
    assert not wrong.vote and "excerpts of the log it gets" in wrong.reasons[0]
    assert not decided(0.1, DATA_LIKE).vote


def made(
    name: str,
    value: float,
    floor: float | None = None,
    *,
    clone_of: CloneOf = None,
) -> Judged:
    """A candidate that gets the same in both members from all three starts; where little is granted
    after a cut, from the first of them it is cut."""
    estimate, steps = np.full((2, 3), value), np.full((2, 3), 100)
    low = estimate if floor is None else np.full((2, 3), floor)
    cut = (low < estimate) & (np.arange(3) == 0)
    rollouts = Rollouts(estimate, low, steps, cut, steps)
    return Judged(Candidate(name, None, clone_of=clone_of), rollouts)


def replayed(recorded: list[float], judged: list[float]) -> Reproduced:
    """Excerpts of ten steps in a judge of one member, none of which ends."""
    goes_on = np.zeros(len(recorded), bool)
    return Reproduced(np.asarray(recorded), np.asarray([judged]), goes_on, goes_on[None], 10.0)


DATA = np.array([90.0, 100.0, 110.0])


def test_what_the_judge_is_off_on_the_log_is_taken_off_every_gain() -> None:
    """Off by 0.05 a step, it is off by 5 in a hundred: a gain of 4 is none, and one of 6 is 1."""
    off = replayed([0.0, 20.0, 10.0], [0.5, 20.5, 10.5])

    def decided(value: float) -> Verdict:
        clone = made("clone", 90.0, clone_of="data")
        sanity = Sanity.of(clone, DATA, off, clone=clone, steps=100.0)
        assert sanity.margin == pytest.approx(5.0) and sanity.record()["margin"] == sanity.margin
        return decide([clone, made("policy", value)], DATA, sanity)

    assert decided(104.0).word == "keep"
    why = decided(104.0).reasons[-2]
    assert "it may be up to 1.0 worse than the data, and is at least 9.0 better than cloning" in why
    assert "(5.0, the judge's own error on the data, is subtracted from both)" in why
    found = decided(106.0)
    assert (found.word, found.chosen) == ("deploy", "policy")
    assert "is at least 1.0 better than the data" in found.reasons[-1]


def test_a_judge_that_is_right_in_the_mean_alone_must_see_a_gain_above_its_errors() -> None:
    """Off by +10 and -10 in ten steps, it is right in the mean by chance: a gain in a hundred steps
    must be above 100. One that is off by +-1 has nothing taken off."""

    def decided(error: float, value: float) -> Verdict:
        clone = made("clone", 96.0, clone_of="data")
        off = replayed([0.0, 0.0, 20.0, 20.0], [-error, error, 20 - error, 20 + error])
        sanity = Sanity.of(clone, DATA, off, clone=clone, steps=100.0)
        assert sanity.drift == 0 and sanity.reproduced
        return decide([clone, made("policy", value)], DATA, sanity)

    assert decided(10.0, 150.0).word == "copy" and decided(10.0, 201.0).word == "deploy"
    assert decided(1.0, 101.0).word == "deploy"


def test_a_clone_is_not_copied_for_what_the_judge_promises_to_all() -> None:
    """Of behaviour that earned 100 the members make 60 and 200, and of the clone 110: less the 30
    that they promise in the mean, it is worse than the data."""

    def decided(*said: float) -> Verdict:
        clone, steps = made("clone", 110.0, clone_of="data"), np.full((2, 3), 100)
        samples = np.repeat(np.reshape(said, (2, 1)), 3, axis=1)
        likeness = Judged(
            Candidate("clone", None), Rollouts(samples, samples, steps, steps < 0, steps)
        )
        sanity = Sanity.of(likeness, DATA, clone=clone)
        assert sanity.reproduced
        return decide([clone], DATA, sanity)

    assert decided(60.0, 200.0).word == "keep"
    assert decided(60.0, 150.0).word == "copy"


def test_what_the_judge_loses_sight_of_more_often_than_not_is_neither_deployed_nor_copied() -> None:
    """After a cut the least that the data earned is granted, and where all of it is good that is
    nearly as good: a policy that leaves such data at once would live on that."""

    def decided(policy: Judged, *others: Judged) -> Verdict:
        clone = made("clone", 99.0, clone_of="data")
        sanity = Sanity.of(made("clone", 100.0), DATA, clone=clone)
        return decide([clone, policy, *others], DATA, sanity)

    def lost(judged: Judged, share: float) -> Judged:
        cut = np.arange(6).reshape(2, 3) < 6 * share
        return dataclasses.replace(judged, rollouts=judged.rollouts._replace(cut=cut))

    assert decided(lost(made("policy", 150.0), 0.5)).word == "deploy"
    found = decided(lost(made("policy", 150.0), 0.6), lost(made("another", 140.0), 1.0))
    assert (found.word, found.chosen) == ("copy", "clone")
    assert (
        "67% of its rollouts go where the judge is unsure, like those of 1 more"
        in found.reasons[-2]
    )
    worse = decided(lost(made("policy", 150.0), 0.6), made("known", 120.0))
    assert (worse.word, worse.chosen) == ("deploy", "known")
    best = lost(made("clone-of-best", 120.0, clone_of="best"), 1.0)
    assert decided(best).chosen == "clone"
    clone = lost(made("clone", 99.0, clone_of="data"), 1.0)
    alone = decide([clone], DATA, Sanity.of(made("clone", 100.0), DATA, clone=clone))
    assert alone.word == "keep" and "100% of its rollouts go" in alone.reasons[-1]


def test_a_judge_that_flatters_the_data_has_no_vote_however_far_its_returns_lie_apart() -> None:
    """By more than 5 % of what it earned, and than chance; that its episodes differ by much more is
    no excuse."""

    def decided(said: float, chance: float = 0.0) -> Verdict:
        sanity = Sanity.of(made("clone", said), DATA, clone=made("clone", 300.0))
        assert sanity.chance == pytest.approx(2 * DATA.std() / np.sqrt(3))
        wide = dataclasses.replace(sanity, tolerance=40.0, chance=chance)
        return decide([made("clone", 300.0, clone_of="data")], DATA, wide)

    assert decided(104.0).vote and decided(104.0).word == "copy"
    assert not decided(106.0).vote and decided(106.0).word == "keep"
    assert decided(106.0, 8.0).vote and not decided(109.0, 8.0).vote
    # Where rewards cancel, 5 % of the mean is nothing.
    around_zero = Sanity.of(made("clone", 3.0), DATA - 100)
    assert around_zero.data == 0 and not around_zero.flatters


def test_of_clones_that_may_be_copied_it_is_the_one_with_the_higher_lower_end() -> None:
    """One of the best episodes, beside that of the data; the latter is what others are compared
    with, whatever the former gets."""
    likeness = made("clone", 100.0)
    off = replayed([0.0, 20.0], [2.0, 22.0])  # by 20 in a hundred steps

    def decided(clone: float, best: float, policy: float = 0.0) -> tuple[str, str, str]:
        compared = made("clone", clone, clone_of="data")
        others = [made("clone-of-best", best, clone_of="best"), made("policy", policy)]
        sanity = Sanity.of(likeness, DATA, off, clone=compared, steps=100.0)
        found = decide([compared, *others], DATA, sanity)
        return found.word, found.chosen, found.reasons[-1]

    assert decided(116.0, 118.0)[:2] == ("copy", "clone-of-best")
    assert "Cloning the best of the data is estimated at 118.0" in decided(116.0, 118.0)[2]
    assert decided(118.0, 116.0)[:2] == ("copy", "clone")
    assert decided(40.0, 117.0)[:2] == ("copy", "clone-of-best")  # the clone is not good enough
    assert decided(40.0, 141.0)[:2] == ("deploy", "clone-of-best")
    assert decided(40.0, 117.0, 141.0)[:2] == ("deploy", "policy")
    word, _, why = decided(40.0, 110.0)
    assert word == "keep" and "at 110.0, but only 90.0 is certain; the data earned 100.0" in why


def test_what_the_judge_may_promise_to_the_datas_behaviour_is_taken_off_every_gain() -> None:
    """Two members that make 60 and 160 of behaviour that earned 100 do not know it well. They agree
    on 150 of a policy; but what one of them flatters, both may."""

    def decided(value: float) -> Verdict:
        clone, steps = made("clone", 90.0, clone_of="data"), np.full((2, 3), 100)
        samples = np.repeat([[60.0], [160.0]], 3, axis=1)
        likeness = Judged(
            Candidate("clone", None), Rollouts(samples, samples, steps, steps < 0, steps)
        )
        sanity = Sanity.of(likeness, DATA, clone=clone)
        assert sanity.reproduced and sanity.margin == pytest.approx(55.0)  # the 95 % quantile
        return decide([clone, made("policy", value)], DATA, sanity)

    assert decided(150.0).word == "keep"
    assert decided(160.0).word == "deploy"


@pytest.mark.parametrize("excerpts", [None, replayed([0.0, 20.0], [-20.0, 40.0])])
def test_a_controller_without_chance_is_reproduced_by_the_clone_without_spread(
    excerpts: Reproduced | None,
) -> None:
    """Noise around it costs 60 of 100, which the log never paid: samples are not its behaviour."""
    noisy, clone = made("clone", 40.0), made("clone", 99.0, clone_of="data")
    sanity = Sanity.of(noisy, DATA, excerpts, clone=clone)
    found = decide([clone], DATA, sanity)
    assert found.vote and found.word == "copy"
    assert "of the clone without its spread it says 99.0" in found.reasons[0]
    assert not Sanity.of(noisy, DATA, excerpts, clone=made("clone", 40.0)).reproduced
    flattered = Sanity.of(made("clone", 400.0), DATA, excerpts, clone=clone)
    assert not flattered.reproduced  # whatever it says of the clone


def test_of_those_that_pass_the_one_with_the_highest_estimate_is_chosen() -> None:
    """Not the one with the highest lower end, nor one that is promised more and does not pass."""
    clone = made("clone", 100.0, clone_of="data")
    sure, promising = made("sure", 120.0, 115.0), made("promising", 300.0, 105.0)
    candidates = [clone, sure, promising, made("unsure", 400.0, 95.0)]
    found = decide(candidates, DATA, Sanity.of(clone, DATA))
    assert (found.word, found.chosen) == ("deploy", "promising")
    assert [each.name for each in ranked(candidates)] == ["unsure", "promising", "sure", "clone"]


def test_a_clone_that_the_judge_loses_sight_of_is_not_copied() -> None:
    clone = made("clone", 300.0, 60.0, clone_of="data")
    found = decide([clone], DATA, Sanity.of(made("clone", 100.0), DATA))
    assert found.vote and found.word == "keep"
    assert "only 60.0 is certain" in found.reasons[-1]


def test_what_a_clone_is_promised_out_of_sight_does_not_stand_in_the_way() -> None:
    """What is surely better than the data is compared with the clone from floor to floor."""
    clone = made("clone", 300.0, 60.0, clone_of="data")
    sanity = Sanity.of(made("clone", 100.0), DATA)
    found = decide([clone, made("policy", 400.0, 150.0)], DATA, sanity)
    assert (found.word, found.chosen) == ("deploy", "policy")
    assert "at least 90.0 better than cloning" in found.reasons[-1]
    assert decide([clone, made("policy", 400.0, 90.0)], DATA, sanity).word == "keep"
    flattering = Sanity.of(made("clone", 1000.0, 50.0), DATA)
    assert not flattering.reproduced  # a cut is no excuse for what is promised


def test_without_a_clone_there_is_no_vote(tried: Trial) -> None:
    found = decide([judged(tried, "better", BETTER)], tried.data_returns, None)
    assert (found.word, found.chosen) == ("keep", "better")
    assert "no clone" in found.reasons[0]


@pytest.mark.parametrize("gain", [BETTER, WORSE])
def test_a_log_cut_at_half_its_episodes_changes_no_verdict(gain: list[float]) -> None:
    """On a task without terminals: half of the episodes are cut at half their length."""
    whole = verdict(trial(quadratic(), logged(40 * [24])), policy=gain)
    cut = verdict(trial(quadratic(), logged(20 * [24, 12])), policy=gain)
    assert (whole.word, whole.chosen) == (cut.word, cut.chosen)


def test_bounds_are_quantiles_over_members() -> None:
    estimate = np.array([[0.0, 2.0], [2.0, 4.0], [4.0, 6.0]])
    steps = np.full((3, 2), 5)
    rollouts = Rollouts(estimate, estimate - 1, steps, np.zeros((3, 2), bool), steps)
    found = Judged(Candidate("policy", None, "run", 7, {"score": 3.0}), rollouts).record()
    assert found == {
        "name": "policy",
        "run": "run",
        "step": 7,
        "estimate": 3.0,
        "lower": pytest.approx(np.quantile([0, 2, 4], 0.05)),
        "upper": pytest.approx(np.quantile([1, 3, 5], 0.95)),
        "cut_share": 0.0,
        "known": True,
        "length_mean": 5.0,
        "is_clone": False,
        "score": 3.0,
    }


def test_gains_are_paired_over_starts_members_and_keys(tried: Trial) -> None:
    """Whatever a start, a member or a key adds to both is no gain."""
    policy = judged(tried, "policy", BETTER)
    rng = np.random.default_rng(0)
    luck = 100 * rng.normal(size=policy.rollouts.estimate.shape)
    lucky = Judged(
        Candidate("lucky", None), policy.rollouts._replace(floor=policy.rollouts.floor + luck)
    )
    gain = lucky.lower_gain(policy.rollouts.estimate + luck)
    assert gain == pytest.approx(policy.lower_gain(policy.rollouts.estimate))
