"""How well one quantity orders another: Spearman's correlation, AUROC and its curve."""

import numpy as np
from jaxtyping import Bool, Float
from scipy import stats

from neubay.studies.records import CURVE_POINTS


def spearman(first: Float[np.ndarray, " n"], second: Float[np.ndarray, " n"]) -> float | None:
    """Spearman's rank correlation; none where one of the two is constant."""
    if len(first) < 2 or np.all(first == first[0]) or np.all(second == second[0]):
        return None
    return float(stats.spearmanr(first, second).statistic)


def auroc(score: Float[np.ndarray, " n"], event: Bool[np.ndarray, " n"]) -> float | None:
    """P(score of an event > score of a non-event), ties counting half; none without both."""
    events = int(event.sum())
    others = len(event) - events
    if not events or not others:
        return None
    ranks = stats.rankdata(score)[event].sum()
    return float((ranks - events * (events + 1) / 2) / (events * others))


def roc(
    score: Float[np.ndarray, " n"], event: Bool[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    """Shares of non-events and of events above a falling threshold; empty without both."""
    events, others = np.sort(score[event]), np.sort(score[~event])
    if not len(events) or not len(others):
        return np.zeros(0), np.zeros(0)
    # Thresholds at quantiles of both kinds resolve the curve along both axes; those of the
    # non-events crowd at the top, where the false alarms are few.
    half = CURVE_POINTS // 2
    tops = 1 - np.append(np.geomspace(1 / len(others), 1, half), 0)
    kinds = (np.quantile(events, np.linspace(0, 1, half)), np.quantile(others, tops))
    thresholds = np.unique(np.concatenate([[-np.inf], *kinds]))[::-1]
    above = [
        1 - np.searchsorted(kind, thresholds, side="right") / len(kind) for kind in (others, events)
    ]
    return above[0], above[1]


def mean(values: Bool[np.ndarray, " n"] | Float[np.ndarray, " n"]) -> float | None:
    """Of numbers, or the share of true values; none without any values."""
    return float(values.mean()) if len(values) else None
