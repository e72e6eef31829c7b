"""From judged candidates to a ranking and a verdict, in plain numbers.

Ranking is by `estimate`. `lower` and `upper` are the 5 and 95 % quantiles over members of the mean
return, `lower` of the floor. A gain is paired over starts, members and keys: its lower end is the
5 % quantile over members of the floor less what the data, or the clone's estimate, has there.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from neubay.selection.protocol import Reproduced, Rollouts

LOW, HIGH = 0.05, 0.95
"""Quantiles over members."""
NOT_WORSE = 0.05
"""By what share of the data's return the clone may be below it and still be worth copying."""
SPREAD = 0.5
"""Of the spread (std) of the data's returns, how far the judge may be off when it is asked to
reproduce them; at least `NOT_WORSE` of the return."""

EXCERPT_BIAS, EXCERPT_ERROR, EXCERPT_ENDS = 0.1, 0.5, 0.05
"""How well the log's excerpts must be reproduced: the mean return to a tenth of the returns' std or
`NOT_WORSE` of it, the single ones to half of the std, and the share that ends."""

Word = Literal["deploy", "copy", "keep"]


@dataclass(frozen=True)
class Judged:
    """A candidate, and what it got."""

    name: str
    rollouts: Rollouts
    run: str | None = None
    step: int | None = None
    told: dict[str, float] | None = None
    """What an environment told: `score`, `return_mean`."""
    is_clone: bool = False

    @property
    def estimate(self) -> float:
        return float(self.rollouts.estimate.mean())

    @property
    def lower(self) -> float:
        return float(np.quantile(self.rollouts.floor.mean(axis=1), LOW))

    @property
    def upper(self) -> float:
        return float(np.quantile(self.rollouts.estimate.mean(axis=1), HIGH))

    def lower_gain(self, other: Float[np.ndarray, "*members starts"]) -> float:
        """The lower end of the gain over other returns from the same starts."""
        return float(np.quantile((self.rollouts.floor - other).mean(axis=1), LOW))

    def record(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "name": self.name,
            "run": self.run,
            "step": self.step,
            "estimate": self.estimate,
            "lower": self.lower,
            "upper": self.upper,
            "cut_share": float(self.rollouts.cut.mean()),
            "length_mean": float(self.rollouts.length.mean()),
            "is_clone": self.is_clone,
            **(self.told or {}),
        }


@dataclass(frozen=True)
class Excerpts:
    """Recorded actions from recorded states, as the judge replays them and as the log has them."""

    count: int
    data: float
    judged: float
    spread: float
    """Std of the recorded returns."""
    error: float
    """Root mean square over excerpts and members."""
    data_ended: float
    judged_ended: float

    @classmethod
    def of(cls, found: Reproduced) -> "Excerpts":
        return cls(
            count=len(found.recorded),
            data=float(found.recorded.mean()),
            judged=float(found.judged.mean()),
            spread=float(found.recorded.std()),
            error=float(np.sqrt(((found.judged - found.recorded) ** 2).mean())),
            data_ended=float(found.recorded_ended.mean()),
            judged_ended=float(found.judged_ended.mean()),
        )

    @property
    def faithful(self) -> bool:
        small = NOT_WORSE * abs(self.data)
        return (
            abs(self.judged - self.data) <= max(EXCERPT_BIAS * self.spread, small)
            and self.error <= max(EXCERPT_ERROR * self.spread, small)
            and abs(self.judged_ended - self.data_ended) <= EXCERPT_ENDS
        )


@dataclass(frozen=True)
class Sanity:
    """What the judge says of the data's own behaviour, that is of samples of the clone, against
    what the data earned."""

    estimate: float
    lower: float
    upper: float
    data: float
    tolerance: float
    excerpts: Excerpts | None = None

    @classmethod
    def of(
        cls,
        imitated: Judged,
        data_returns: Float[np.ndarray, " starts"],
        reproduced: Reproduced | None = None,
    ) -> "Sanity":
        mean = float(data_returns.mean())
        tolerance = max(SPREAD * float(data_returns.std()), NOT_WORSE * abs(mean))
        excerpts = None if reproduced is None else Excerpts.of(reproduced)
        return cls(imitated.estimate, imitated.lower, imitated.upper, mean, tolerance, excerpts)

    @property
    def flatters(self) -> bool:
        """More is promised to the data's behaviour than it earned."""
        return self.lower - self.tolerance > self.data

    @property
    def poor_copy(self) -> bool:
        """Samples of the clone earn less than the data did, in the eyes of a judge that reproduces
        the log's own actions: then the clone falls short, and not the judge."""
        short = self.upper + self.tolerance < self.data
        return short and self.excerpts is not None and self.excerpts.faithful

    @property
    def reproduced(self) -> bool:
        """The data's return is within what the judge says, give or take the tolerance; a judge that
        says less may show on the log itself that it is right."""
        short = self.upper + self.tolerance < self.data
        return not self.flatters and (not short or self.poor_copy)

    def record(self) -> dict[str, Any]:
        return {
            "estimate": self.estimate,
            "lower": self.lower,
            "upper": self.upper,
            "tolerance": self.tolerance,
            "reproduced": self.reproduced,
            "excerpts": None
            if self.excerpts is None
            else asdict(self.excerpts) | {"faithful": self.excerpts.faithful},
        }


@dataclass(frozen=True)
class Verdict:
    """One of three words, the candidate it speaks of, and why."""

    word: Word
    chosen: str
    reasons: list[str]
    vote: bool = True
    """The judge has one."""


def ranked(candidates: Sequence[Judged]) -> list[Judged]:
    """The highest estimate first; equal ones stay in their order."""
    return sorted(candidates, key=lambda judged: -judged.estimate)


def decide(
    candidates: Sequence[Judged],
    data_returns: Float[np.ndarray, " starts"],
    sanity: Sanity | None,
    objections: Sequence[str] = (),
) -> Verdict:
    """The verdict. `objections` say why the judge has no vote, beside what `sanity` says."""
    order, data = ranked(candidates), float(data_returns.mean())
    best = order[0]
    clone = next((judged for judged in candidates if judged.is_clone), None)
    no_vote = list(objections)
    if clone is None or sanity is None:
        no_vote.append(
            "no clone was judged, so nothing shows that the judge can reproduce the data; train "
            "one (leave out --no-baseline), or add a run with --variant bc"
        )
    elif not sanity.reproduced:
        no_vote.append(
            f"the judge cannot reproduce the data: of actions like the data's it says "
            f"{_interval(sanity)}, and the data earned {_number(sanity.data)}{_replayed(sanity)}"
        )
    if no_vote or clone is None:
        reasons = [f"The judge has no vote: {why}." for why in no_vote]
        return Verdict("keep", best.name, reasons, vote=False)
    reasons = (
        [
            f"The judge says {_interval(sanity)} of actions like the data's, which earned "
            f"{_number(data)}{_replayed(sanity)}."
        ]
        if sanity is not None
        else []
    )
    passing = [
        judged
        for judged in order
        if judged.lower_gain(data_returns) > 0 and judged.lower_gain(clone.rollouts.estimate) > 0
    ]
    if passing:
        chosen = passing[0]
        return Verdict("deploy", chosen.name, [*reasons, _gains(chosen, data_returns, clone)])
    reasons.append(
        _gains(best, data_returns, clone)
        if best is not clone
        else f"No candidate is estimated above cloning, which has {_number(clone.estimate)}."
    )
    if clone.estimate >= data - NOT_WORSE * abs(data):
        reasons.append(
            f"Cloning the data gets {_number(clone.estimate)}, not worse than the data's "
            f"{_number(data)} by more than {NOT_WORSE:.0%}."
        )
        return Verdict("copy", clone.name, reasons)
    reasons.append(
        f"Cloning the data gets {_number(clone.estimate)}, worse than the data's {_number(data)}: "
        "keep your controller."
    )
    return Verdict("keep", best.name, reasons)


def _gains(judged: Judged, data_returns: Float[np.ndarray, " starts"], clone: Judged) -> str:
    over_data = judged.lower_gain(data_returns)
    over_clone = judged.lower_gain(clone.rollouts.estimate)
    cut = float(judged.rollouts.cut.mean())
    return (
        f"{judged.name} is estimated at {_interval(judged)}; its gain over the data is at least "
        f"{_number(over_data)}, over cloning at least {_number(over_clone)}"
        + (f"; {cut:.0%} of its rollouts leave what the judge knows." if cut else ".")
    )


def _replayed(sanity: Sanity) -> str:
    """What the judge makes of the log's own actions, where its word on the clone is not enough."""
    of = sanity.excerpts
    if of is None or not (sanity.poor_copy or not sanity.reproduced):
        return ""
    found = (
        f"replaying the recorded actions of {of.count} excerpts of the log it gets "
        f"{_number(of.judged)} where {_number(of.data)} was paid, off by {_number(of.error)}, and "
        f"{of.judged_ended:.0%} of them end ({of.data_ended:.0%} in the log)"
    )
    return f"; {found}" + (": it is the copy that falls short" if sanity.poor_copy else "")


def _interval(of: Judged | Sanity) -> str:
    return f"{_number(of.estimate)} ({_number(of.lower)} to {_number(of.upper)})"


def _number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1e6 else f"{value:.3g}"
