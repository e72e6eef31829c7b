"""Statistics over seeds: mean and deviation, interquartile mean, bootstrap, Welch's test.

Everything here takes scores, one per seed, and knows nothing of where they came from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

Scores = Float[np.ndarray, " seeds"]

SIGNIFICANCE = 0.05
"""The paper's p below which a method counts as worse than the best."""

LIGHT, MEDIUM, DARK = 3.0, 10.0, 30.0
"""From where on the paper shades a change lightly and moderately, and above what darkly."""


@dataclass(frozen=True)
class Sample:
    """What a table says of one method: the mean over n seeds, and their deviation if known."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, scores: Scores) -> "Sample":
        """Of the seeds themselves. One seed has no deviation."""
        std = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
        return cls(float(np.mean(scores)), std, len(scores))


def interquartile_mean(scores: Float[np.ndarray, "*batch values"]) -> Float[np.ndarray, "*batch"]:
    """IQM: the mean of what remains without the lowest and the highest quarter."""
    return np.asarray(stats.trim_mean(scores, 0.25, axis=-1))


def stratified_bootstrap(
    tasks: Sequence[Float[np.ndarray, " _"]], *, resamples: int = 2000
) -> tuple[float, float]:
    """95 % interval of the IQM of all scores, by percentiles, resampling the seeds of each task
    apart.

    `scipy.stats.bootstrap` of several samples resamples each on its own, so that the interval tells
    the spread over seeds and not the difference between tasks. SciPy refuses samples of one
    observation: a task with a single seed enters every resample as it is, and with one seed for
    every task the interval is a point.
    """
    single = np.concatenate([np.empty(0), *(scores for scores in tasks if len(scores) == 1)])
    several = [scores for scores in tasks if len(scores) > 1]

    def of_all(*drawn: np.ndarray, axis: int) -> np.ndarray:
        constant = np.broadcast_to(single, (*drawn[0].shape[:-1], len(single)))
        return interquartile_mean(np.concatenate([*drawn, constant], axis=-1))

    if not several:
        return float(interquartile_mean(single)), float(interquartile_mean(single))
    found = stats.bootstrap(
        several,
        of_all,
        n_resamples=resamples,
        confidence_level=0.95,
        method="percentile",
        rng=0,
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def welch_p(best: Sample, other: Sample) -> float | None:
    """p of Welch's one-sided t-test that `other` is as good as `best`: small where it is worse.

    A deviation that is not known counts as none, which leaves a one-sample test against the mean
    that is printed. None where neither is known: nothing can be said.
    """
    if best.std is None and other.std is None:
        return None
    first, second = best.std or 0.0, other.std or 0.0
    if first == second == 0:  # no spread: any difference is real
        return 1.0 if other.mean >= best.mean else 0.0
    return float(
        stats.ttest_ind_from_stats(
            best.mean,
            first,
            max(best.n, 2),  # a constant has no spread, whatever its count
            other.mean,
            second,
            max(other.n, 2),
            equal_var=False,
            alternative="greater",
        ).pvalue
    )


def best_of(samples: Mapping[str, Sample]) -> str:
    """The method with the highest mean; the first of them where several are equal."""
    return max(samples, key=lambda name: samples[name].mean)


def not_worse(samples: Mapping[str, Sample]) -> set[str]:
    """The methods that the paper would mark: the best, and all not significantly worse than it.

    What cannot be tested, for want of any deviation, is marked only where the means are equal.
    """
    best = samples[best_of(samples)]
    return {
        name
        for name, sample in samples.items()
        if sample.mean == best.mean or (welch_p(best, sample) or 0.0) >= SIGNIFICANCE
    }


def shade(change: float, rounding: float = 0.0) -> int:
    """How strongly the paper shades a change of score: 0 to 3, negative where it got worse.

    Light is 3 to 10, medium 10 to 30 with both ends, and dark above 30.

    Args:
        rounding: by how much the change may be more than it is said to be.
    """
    size = round(abs(change), 6)  # scores have one decimal: 43.2 - 33.2 is 10 and not less
    level = (size >= LIGHT) + (size >= MEDIUM) + (size + rounding > DARK)
    return -level if change < 0 else level
