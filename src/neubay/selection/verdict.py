"""From judged candidates to a ranking and a verdict, in plain numbers.

Ranking is by `estimate`. `lower` and `upper` are the 5 and 95 % quantiles over members of the mean
return, `lower` of the floor. A gain is paired over starts, members and keys: its lower end is the
5 % quantile over members of the floor less what the data earned, or the clone's floor, there, and
less what the judge itself is off where it can be checked: on excerpts of the log, and in what it
promises to the data's own behaviour.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from neubay.selection.candidates import Candidate
from neubay.selection.protocol import Reproduced, Rollouts

LOW, HIGH = 0.05, 0.95
"""Quantiles over members."""
NOT_WORSE = 0.05
"""By what share of the data's return the clone may be below it and still be worth copying."""
SPREAD = 0.5
"""Of the spread (std) of the data's returns, how far the judge may be off when it is asked to
reproduce them; at least `NOT_WORSE` of the return."""

EXCERPT_ERROR, EXCERPT_ENDS = 0.5, 0.05
"""How well the log's excerpts must be reproduced: single returns to half of their std or
`NOT_WORSE` of their mean, and the share that ends. A judge that does not is not without a vote:
what it is off is taken off every gain (`Sanity.margin`)."""

KNOWN = 0.5
"""Of a candidate's rollouts, the share that the judge must not lose sight of. What follows a cut is
granted what the data earned at the least. Where all of the data is good, that is nearly as good,
and a policy that leaves the data at once would live on it."""

_IN_WHICH = "in the episodes that are judged"
"""What the data earned is otherwise that of all its episodes."""

Word = Literal["deploy", "copy", "keep"]


@dataclass(frozen=True)
class Judged:
    """A candidate, and what it got."""

    candidate: Candidate
    rollouts: Rollouts

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def estimate(self) -> float:
        return float(self.rollouts.estimate.mean())

    @property
    def floor(self) -> float:
        """The mean if little is granted after a cut."""
        return float(self.rollouts.floor.mean())

    @property
    def known(self) -> bool:
        """The judge does not lose sight of most of its rollouts."""
        return float(self.rollouts.cut.mean()) <= 1 - KNOWN

    @property
    def lower(self) -> float:
        return float(np.quantile(self.rollouts.floor.mean(axis=1), LOW))

    @property
    def upper(self) -> float:
        return float(np.quantile(self.rollouts.estimate.mean(axis=1), HIGH))

    def lower_gain(self, other: Float[np.ndarray, "*members starts"], margin: float = 0.0) -> float:
        """The lower end of the gain over other returns from the same starts; `margin` is what the
        judge is off (`Sanity.margin`)."""
        return float(np.quantile((self.rollouts.floor - other).mean(axis=1), LOW)) - margin

    def record(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "name": self.name,
            "run": self.candidate.run,
            "step": self.candidate.step,
            "estimate": self.estimate,
            "lower": self.lower,
            "upper": self.upper,
            "cut_share": float(self.rollouts.cut.mean()),
            "known": self.known,
            "length_mean": float(self.rollouts.length.mean()),
            "is_clone": self.candidate.is_clone,
            **(self.candidate.told or {}),
        }


@dataclass(frozen=True)
class Excerpts:
    """Recorded actions from recorded states, as the judge replays them and as the log has them."""

    count: int
    steps: float
    """Of one in the mean: some end before the others."""
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
            steps=found.steps,
            data=float(found.recorded.mean()),
            judged=float(found.judged.mean()),
            spread=float(found.recorded.std()),
            error=float(np.sqrt(((found.judged - found.recorded) ** 2).mean())),
            data_ended=float(found.recorded_ended.mean()),
            judged_ended=float(found.judged_ended.mean()),
        )

    @property
    def faithful(self) -> bool:
        allowed = max(EXCERPT_ERROR * self.spread, NOT_WORSE * abs(self.data))
        ends = abs(self.judged_ended - self.data_ended)
        return self.error <= allowed and ends <= EXCERPT_ENDS

    @property
    def bias(self) -> float:
        """By how much the judge is off in one step, whichever way."""
        return abs(self.judged - self.data) / self.steps

    @property
    def doubt(self) -> float:
        """What one step of a gain must exceed: the bias of a judge that is right about single
        excerpts; of one that is not, and whose errors may cancel by chance, all that it is off."""
        return self.bias if self.faithful else self.error / self.steps


@dataclass(frozen=True)
class Sanity:
    """What the judge says of the data's own behaviour against what the data earned. That behaviour
    is samples of the clone; or, where the clone's spread is its own error and not the logged
    controller's chance, the clone without it. Both are what the judge expects: a cut excuses
    nothing here."""

    estimate: float
    lower: float
    upper: float
    """Of samples of the clone, quantiles over members."""
    data: float
    tolerance: float
    clone: Judged | None = None
    """Without its spread."""
    excerpts: Excerpts | None = None
    steps: float = 0.0
    """How long the judged episodes can be, in the mean."""
    chance: float = 0.0
    """By how much the data's mean return may be off by chance: two standard errors."""

    @classmethod
    def of(
        cls,
        imitated: Judged,
        data_returns: Float[np.ndarray, " starts"],
        reproduced: Reproduced | None = None,
        *,
        clone: Judged | None = None,
        steps: float = 0.0,
    ) -> "Sanity":
        """`imitated` is samples of the clone."""
        mean = float(data_returns.mean())
        tolerance = max(SPREAD * float(data_returns.std()), NOT_WORSE * abs(mean))
        excerpts = None if reproduced is None else Excerpts.of(reproduced)
        lower = float(np.quantile(imitated.rollouts.estimate.mean(axis=1), LOW))
        told = imitated.estimate, lower, imitated.upper
        chance = 2 * float(data_returns.std()) / math.sqrt(len(data_returns))
        return cls(*told, mean, tolerance, clone, excerpts, steps, chance)

    @property
    def drift(self) -> float:
        """What the judge is off in the mean: on excerpts, drawn out to whole episodes, or by what
        it promises to the data's own behaviour. It is taken off the clone."""
        replayed = 0.0 if self.excerpts is None else self.excerpts.bias * self.steps
        return max(replayed, self.estimate - self.data)

    @property
    def margin(self) -> float:
        """What the judge may be off where the truth is known; a gain must be larger. What a member
        promises to the data's own behaviour beyond what that earned, it may promise to others."""
        replayed = 0.0 if self.excerpts is None else self.excerpts.doubt * self.steps
        return max(replayed, self.upper - self.data)

    @property
    def flatters(self) -> bool:
        """More is promised to the data's behaviour than it earned, by nearly all members. How far
        the data's returns lie apart is no excuse here beyond chance: what is promised is a mean."""
        return self.lower - max(NOT_WORSE * abs(self.data), self.chance) > self.data

    @property
    def short(self) -> bool:
        """Samples of the clone are given less than the data earned."""
        return self.upper + self.tolerance < self.data

    @property
    def same_without_spread(self) -> bool:
        """The clone without its spread is given what the data earned."""
        return self.clone is not None and abs(self.clone.estimate - self.data) <= self.tolerance

    @property
    def poor_copy(self) -> bool:
        """The clone earns less than the data did, in the eyes of a judge that reproduces the log's
        own actions: then the clone falls short, and not the judge."""
        faithful = self.excerpts is not None and self.excerpts.faithful
        return self.short and not self.same_without_spread and faithful

    @property
    def reproduced(self) -> bool:
        """The data's return is within what the judge says, give or take the tolerance; a judge that
        says less of samples may be right about the clone, or show on the log itself that it is."""
        return not self.flatters and (not self.short or self.same_without_spread or self.poor_copy)

    def record(self) -> dict[str, Any]:
        return {
            "estimate": self.estimate,
            "lower": self.lower,
            "upper": self.upper,
            "tolerance": self.tolerance,
            "same_without_spread": self.same_without_spread,
            "drift": self.drift,
            "margin": self.margin,
            "reproduced": self.reproduced,
            "excerpts": None
            if self.excerpts is None
            else asdict(self.excerpts) | {"faithful": self.excerpts.faithful},
        }


class Gains(NamedTuple):
    """The lower ends of a candidate's gains, the latter none where there is no clone."""

    over_data: float
    over_clone: float | None

    @classmethod
    def of(
        cls,
        judged: Judged,
        data_returns: Float[np.ndarray, " starts"],
        clone: Judged | None,
        sanity: Sanity | None,
    ) -> "Gains":
        margin = 0.0 if sanity is None else sanity.margin
        return cls(
            judged.lower_gain(data_returns, margin),
            None if clone is None else judged.lower_gain(clone.rollouts.floor, margin),
        )

    @property
    def sure(self) -> bool:
        return self.over_data > 0 and self.over_clone is not None and self.over_clone > 0


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


def compared(candidates: Sequence[Judged]) -> Judged | None:
    """The clone that all are compared with, if there is one. Of several, as when runs of other
    sizes bring theirs, it is the best: the one with the highest estimate, of equal ones the first
    by name. So the order in which runs are named decides nothing."""
    clones = [judged for judged in candidates if judged.candidate.is_clone]
    return min(clones, key=lambda judged: (-judged.estimate, judged.name), default=None)


def decide(
    candidates: Sequence[Judged],
    data_returns: Float[np.ndarray, " starts"],
    sanity: Sanity | None,
    objections: Sequence[str] = (),
) -> Verdict:
    """The verdict. `objections` say why the judge has no vote, beside what `sanity` says. Of those
    that pass for `deploy` it is the one with the highest estimate, by which they are ranked: what
    the judge does not know has its say in whether they pass. What else is named, such as the clone
    to copy, is what has the highest lower end. None is, if it can be helped, of which the judge
    loses sight more often than not."""
    data = float(data_returns.mean())
    by_lower = sorted(candidates, key=lambda judged: (not judged.known, -judged.lower))
    best = by_lower[0]
    clone = compared(candidates)
    no_vote = list(objections)
    if clone is None or sanity is None:
        no_vote.append(
            "no clone was judged, so nothing shows that the judge can reproduce the data; give the "
            "run's 'neubay train' again without --no-baseline, which trains one and judges, or "
            "name a run of --variant bc too"
        )
    elif not sanity.reproduced:
        no_vote.append(
            f"the judge cannot reproduce the data: of actions like the data's it says "
            f"{_interval(sanity)}, and the data earned {_number(sanity.data)} {_IN_WHICH}"
            f"{_replayed(sanity)}"
        )
    if no_vote or clone is None:
        reasons = [f"The judge has no vote: {why}." for why in no_vote]
        return Verdict("keep", best.name, reasons, vote=False)
    assert sanity is not None
    said = f"The judge says {_interval(sanity)} of actions like the data's, which earned "
    reasons = [f"{said}{_number(sanity.data)} {_IN_WHICH}{_replayed(sanity)}."]
    gains = {judged.name: Gains.of(judged, data_returns, clone, sanity) for judged in by_lower}
    sure = [judged for judged in by_lower if gains[judged.name].sure]
    passing = [judged for judged in sure if judged.known]
    if passing:
        chosen = ranked(passing)[0]
        return Verdict(
            "deploy", chosen.name, [*reasons, _told(chosen, gains[chosen.name], sanity.margin)]
        )
    reasons.append(
        _told(best, gains[best.name], sanity.margin)
        if best is not clone
        else f"No candidate is surely better than cloning, which has {_number(clone.estimate)}."
    )
    if sure:
        reasons.append(_out_of_sight(sure))
    clones = [judged for judged in by_lower if judged.candidate.clone_of]
    copy, reason = _copied(clones, data, sanity)
    reasons.append(reason)
    if copy is not None:
        return Verdict("copy", copy.name, reasons)
    return Verdict("keep", best.name, reasons)


def _copied(clones: Sequence[Judged], data: float, sanity: Sanity) -> tuple[Judged | None, str]:
    """The first clone that is good enough where little is granted after the judge has become
    unsure, less what the judge is off; and why it is copied, or none is."""
    enough = data - NOT_WORSE * abs(data)
    # Where candidates are compared with other episodes than the judge is checked on.
    where = _IN_WHICH if data == sanity.data else "in the incumbent's episodes"
    earned = f"{_number(data)} {where}"
    for copy in clones:
        if copy.known and copy.floor - sanity.drift >= enough:
            return copy, (
                f"{_cloning(copy)} is estimated at {_number(copy.estimate)}, not worse by more "
                f"than {NOT_WORSE:.0%} than the data, which earned {earned}."
            )
    nearest = max(clones, key=lambda judged: (judged.known, judged.floor))
    copied = f"{_cloning(nearest)} is estimated at {_number(nearest.estimate)}"
    if not nearest.known:
        lost = _lost(nearest)
        return None, f"{copied}, but {lost}, too many to believe it: keep your controller."
    if nearest.estimate >= enough:
        sure = _number(nearest.floor - sanity.drift)
        only = f"but only {sure} is certain; the data earned {earned}"
        return None, f"{copied}, {only}: keep your controller."
    return None, f"{copied}, worse than the data, which earned {earned}: keep your controller."


def _out_of_sight(sure: Sequence[Judged]) -> str:
    """Why candidates with a gain are not deployed."""
    first = max(sure, key=lambda judged: judged.lower)
    others = f", like those of {len(sure) - 1} more" if len(sure) > 1 else ""
    return (
        f"{first.name} is promised more ({_interval(first)}), but {_lost(first)}{others}: too many "
        "to believe it."
    )


def _lost(judged: Judged) -> str:
    return f"{float(judged.rollouts.cut.mean()):.0%} of its rollouts go where the judge is unsure"


def _cloning(copy: Judged) -> str:
    return "Cloning the data" if copy.candidate.is_clone else "Cloning the best of the data"


def _told(judged: Judged, gains: Gains, margin: float) -> str:
    over_data, over_clone = gains
    assert over_clone is not None
    off = f" ({_number(margin)}, the judge's own error on the data, is subtracted from both)"
    decides = any(gain <= 0 < gain + margin for gain in (over_data, over_clone))
    return (
        f"{judged.name} is estimated at {_interval(judged)}; it {_at_least(over_data)} than the "
        f"data, and {_at_least(over_clone)} than cloning"
        + (off if decides else "")
        + (f"; {_lost(judged)}." if judged.rollouts.cut.any() else ".")
    )


def _at_least(gain: float) -> str:
    """The lower end of a gain, in words."""
    if gain > 0:
        return f"is at least {_number(gain)} better"
    return f"may be up to {_number(abs(gain))} worse"


def _replayed(sanity: Sanity) -> str:
    """What the judge makes of the clone without spread, or of the log's own actions, where its word
    on samples of the clone is not enough."""
    if sanity.short and sanity.same_without_spread and sanity.clone is not None:
        return f"; of the clone without its spread it says {_interval(sanity.clone)}"
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
