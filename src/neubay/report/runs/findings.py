"""What a page warns of: what a reader should notice about a run, with the paper's advice.

Every notice of a page, and whether it is a warning, is decided here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from neubay.report.parts.numbers import shown
from neubay.report.runs.records import UNCERTAINTY_FILE, RunRecord, finite_values, newest

SHORT_HORIZON = 10
"""Imagined steps at or below which the paper's method is known to overestimate."""

GAP = 0.5
"""By what share of the discounted return a value may exceed it before it is overestimated."""

FALSELY_ENDED = 0.2
"""Share of rollouts that false alarms may end within `LONG` steps before that is a warning."""

LONG = 500

EARLY = 0.2
"""Share of the steps before which a critic that began at 0 may still be on its way down."""

ADVICE = (
    "The paper's advice: lower the encoder's learning rate (--agent.encoder-lr, 3 to 300 times "
    "below the heads') or the discount factor (--agent.gamma), keep ζ = 1 so that rollouts stay "
    "long, and try κ between 0.5 and 0.95 (--agent.kappa)."
)


@dataclass(frozen=True)
class Notice:
    kind: Literal["good", "warning", "fact"]
    title: str
    text: str


def left_out(problems: Sequence[str]) -> list[Notice]:
    """Runs that could not be read, each with what is wrong with it."""
    return [Notice("warning", "A run is left out", problem) for problem in problems]


def findings(run: RunRecord) -> list[Notice]:
    """Everything worth saying, warnings first."""
    found = [
        *_against_the_data(run),
        *_overestimation(run),
        *_short_rollouts(run),
        *_numbers_out_of_range(run),
        *_no_environment(run),
        *_no_world(run),
        *_learned_ends(run),
    ]
    order = ("warning", "good", "fact")
    return sorted(found, key=lambda notice: order.index(notice.kind))


def _against_the_data(run: RunRecord) -> list[Notice]:
    ours, data = run.result, run.data_result
    if ours is None or data is None:
        return []
    difference = f"{abs(ours - data):,.1f}"
    numbers = f"{ours:,.1f} against the data's {data:,.1f} ({run.unit})"
    if ours > data:
        return [Notice("good", f"Better than the data by {difference}", f"{numbers}.")]
    if run.status != "finished":
        return [Notice("fact", f"Below the data by {difference} so far", f"{numbers}.")]
    text = (
        f"{numbers}. Cloning the data may do better: look at values, returns and horizons below; "
        "more gradient steps or other values of η_φ and κ may help."
    )
    return [Notice("warning", f"Worse than the data by {difference}", text)]


def _overestimation(run: RunRecord) -> list[Notice]:
    """Of the evaluated episodes where the critic was asked about them, of the data elsewhere."""
    earned = run.last("discounted_mean")
    on_data, at_start = q_on_data(run), run.last("q_start")
    expected = on_data if at_start is None else at_start
    if earned is None or expected is None:
        return []
    of_what = "on the data" if at_start is None else "at the start of evaluation episodes"
    gamma = run.settings.get("agent.gamma")  # not kept in the condensed files of version 0.1
    text = (
        f"The critic predicts {expected:,.1f} {of_what}; episodes return {earned:,.1f}, discounted"
        f"{f' by {gamma:g}' if gamma else ''}."
    )
    if at_start is not None and on_data is not None:
        text += f" On the data it predicts {on_data:,.1f}."
    if expected - earned > GAP * max(abs(earned), 1.0):
        if run.step < EARLY * run.steps:
            return [Notice("fact", "Values are above the returns, as they are early on", text)]
        return [Notice("warning", "Values are overestimated", f"{text} {ADVICE}")]
    return [Notice("good", "Values are not overestimated", text)]


def q_on_data(run: RunRecord) -> float | None:
    """Q on the data, averaged over the last tenth of training."""
    values = finite_values(run.train, "q_data")
    return float(values[-max(len(values) // 10, 1) :].mean()) if len(values) else None


def _short_rollouts(run: RunRecord) -> list[Notice]:
    median = newest(run.train, "horizon_p50")
    if median is None or median > SHORT_HORIZON:
        return []
    horizon, zeta = (run.settings.get(f"rollout.{name}") for name in ("horizon", "zeta"))
    if horizon is not None:
        reason = f"They are cut at H = {horizon}."
    elif zeta is not None and zeta < 1:
        reason = f"ζ = {zeta:g} cuts them early; the paper recommends ζ = 1."
    elif (newest(run.train, "ended_terminal") or 0) > 0.5:
        reason = "Most end in a terminal state: the policy fails early in imagination."
    else:
        reason = (
            "At ζ = 1 that means an unsure posterior: more members, LayerNorm, or more epochs "
            "make it surer."
        )
    text = f"{reason} Values then rest on bootstrapping, which overestimates."
    return [Notice("warning", f"Rollouts are short: {median:.0f} steps in the median", text)]


def _numbers_out_of_range(run: RunRecord) -> Iterator[Notice]:
    gradients = run.train.get("nonfinite_gradients", np.empty(0))
    bad = int(np.count_nonzero(np.nan_to_num(gradients) > 0))
    if bad:
        text = (
            f"In {bad:,} of the {len(gradients):,} rows shown; they were set to zero. Lower the "
            "learning rates or --agent.clip-norm if that continues."
        )
        yield Notice("warning", "Gradients that were not finite", text)
    overflow = newest(run.train, "ended_non_finite") or 0
    if overflow:
        text = (
            f"{overflow:.0%} of the last rollouts ended in numbers that are not finite: a world "
            "with LayerNorm stays bounded."
        )
        yield Notice("warning", "Imagination overflowed", text)


def _no_environment(run: RunRecord) -> list[Notice]:
    if run.environment is not None:
        return []
    summary = run.summary or {}
    text = "So no score can be measured, and the posterior's own estimate is all there is."
    if run.decision is not None:  # the posterior's counts other steps, up to where it is unsure
        text = "So no score can be measured: returns are estimated by the judge of the selection."
    elif posterior := summary.get("posterior"):
        text = (
            f"The posterior expects a return of {posterior['return_mean']:,.1f} ± "
            f"{posterior['return_std']:,.1f}; the data's is {summary['data_return_mean']:,.1f}."
        )
    return [Notice("fact", "There is no environment to evaluate in", text)]


def _no_world(run: RunRecord) -> list[Notice]:
    if run.world is None or run.uncertainty is not None:
        return []
    text = (
        f"It was looked for in {run.world / UNCERTAINTY_FILE}, and cannot be read there: the world "
        "was moved or removed, or its numbers are not finite."
    )
    return [Notice("fact", "The world's uncertainty is not shown", text)]


def _learned_ends(run: RunRecord) -> list[Notice]:
    """How well the world tells terminal states, where it learned that."""
    learned = run.termination
    if learned is None:
        return []
    alarms = learned["false_alarms_apart"]
    alarms = learned["false_alarms"] if alarms is None else alarms
    falsely = 1 - (1 - alarms) ** LONG
    precision, recall = (shown(learned[name], ".1%") for name in ("precision", "recall"))
    text = (
        f"From {learned['ends']:,} ends of the data. On held-out episodes: precision "
        f"{precision}, recall {recall}; of steps that "
        f"no end follows within ten, {1000 * alarms:.2g} in 1,000 are called ends, which ends "
        f"{falsely:.0%} of rollouts of {LONG} steps. Ends per 1,000 steps: "
        f"{1000 * learned['rate']:.3g} in the data, {1000 * learned['rate_imagined']:.3g} imagined."
    )
    if falsely > FALSELY_ENDED:
        advice = "Write the rule down (--task-file) if you know it, or log more ends."
        return [Notice("warning", "Learned ends come too often", f"{text} {advice}")]
    return [Notice("fact", "What ends an episode was learned", text)]
