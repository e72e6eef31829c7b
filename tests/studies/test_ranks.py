"""Rank statistics against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from neubay.studies.ranks import auroc, roc, spearman


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
    assert auroc(score, event) == pytest.approx(np.mean(wins))
    false_alarm, caught = roc(score, event)
    assert (false_alarm[0], caught[0]) == (0, 0)
    assert (false_alarm[-1], caught[-1]) == (1, 1)
    assert np.trapezoid(caught, false_alarm) == pytest.approx(np.mean(wins))


def test_auroc_and_roc_need_events_and_others() -> None:
    score = np.arange(3.0)
    for event in (np.zeros(3, bool), np.ones(3, bool)):
        assert auroc(score, event) is None
        assert all(len(axis) == 0 for axis in roc(score, event))


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_spearman_is_scipys_and_survives_infinity(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 9, (2, 40)).astype(float)
    ranks = stats.pearsonr(stats.rankdata(first), stats.rankdata(second)).statistic
    assert spearman(first, second) == pytest.approx(ranks)
    first[first == first.max()] = np.inf
    assert spearman(first, second) == pytest.approx(ranks)
    assert spearman(np.ones(5), np.arange(5.0)) is None
