"""What a person should notice about a run, in plain words and with the paper's advice."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from neubay.report.runs.records import UNCERTAINTY_FILE, RunRecord, newest

SHORT_HORIZON = 10
"""Imagined steps at or below which the paper's method is known to overestimate."""

GAP = 0.5
"""By what share of what is paid a promise may exceed it before it counts as overestimation."""

EARLY = 0.2
"""Share of the steps before which a critic that began at 0 may still be on its way down."""

ADVICE = (
    "The paper's advice: lower the encoder's learning rate (--agent.encoder-lr, 3 to 300 times "
    "below the heads') or the discount factor (--agent.gamma), keep ζ = 1 so that rollouts stay "
    "long, and try κ between 0.5 and 0.95 (--agent.kappa)."
)


@dataclass(frozen=True)
class Finding:
    kind: Literal["good", "warning", "fact"]
    title: str
    text: str


def findings(run: RunRecord) -> list[Finding]:
    """Everything worth saying, warnings first."""
    found = [
        *_against_the_data(run),
        *_overestimation(run),
        *_short_rollouts(run),
        *_numbers_out_of_range(run),
        *_no_environment(run),
        *_no_world(run),
    ]
    order = ("warning", "good", "fact")
    return sorted(found, key=lambda finding: order.index(finding.kind))


def _against_the_data(run: RunRecord) -> list[Finding]:
    ours, data = run.result, run.data_result
    if ours is None or data is None:
        return []
    difference = f"{abs(ours - data):,.1f}"
    numbers = f"{ours:,.1f} against the data's {data:,.1f} ({run.unit})"
    if ours > data:
        return [Finding("good", f"Better than the data by {difference}", f"{numbers}.")]
    if run.status != "finished":
        return [Finding("fact", f"Below the data by {difference} so far", f"{numbers}.")]
    return [
        Finding(
            "warning",
            f"Worse than the data by {difference}",
            f"{numbers}. Copying the data would do better: look at what is promised and paid, "
            "and at the horizons, below; more gradient steps or other values of η_φ and κ may "
            "help.",
        )
    ]


def _overestimation(run: RunRecord) -> list[Finding]:
    """Of the evaluated episodes where the critic was asked about them, of the data elsewhere."""
    paid = run.last("discounted_mean")
    on_data, at_start = promised(run), run.last("q_start")
    expected = on_data if at_start is None else at_start
    if paid is None or expected is None:
        return []
    of_what = "on the data" if at_start is None else "at the start of evaluation episodes"
    text = (
        f"The critic promises {expected:,.1f} {of_what}; episodes pay {paid:,.1f}, discounted by "
        f"{run.config['agent']['gamma']:g}."
    )
    if at_start is not None and on_data is not None:
        text += f" On the data it promises {on_data:,.1f}."
    if expected - paid > GAP * max(abs(paid), 1.0):
        if run.step < EARLY * run.steps:
            return [Finding("fact", "Values are above what is paid, as they are early on", text)]
        return [Finding("warning", "Values are overestimated", f"{text} {ADVICE}")]
    return [Finding("good", "Values are not overestimated", text)]


def promised(run: RunRecord) -> float | None:
    """Q on the data, averaged over the last tenth of training."""
    values = run.train.get("q_data", np.empty(0))
    values = values[np.isfinite(values)]
    return float(values[-max(len(values) // 10, 1) :].mean()) if len(values) else None


def _short_rollouts(run: RunRecord) -> list[Finding]:
    median = newest(run.train, "horizon_p50")
    if median is None or median > SHORT_HORIZON:
        return []
    rollout = run.config["rollout"]
    if rollout["horizon"] is not None:
        reason = f"They are cut at H = {rollout['horizon']}."
    elif rollout["zeta"] is not None and rollout["zeta"] < 1:
        reason = f"ζ = {rollout['zeta']:g} cuts them early; the paper recommends ζ = 1."
    elif (newest(run.train, "ended_terminal") or 0) > 0.5:
        reason = "Most end in a terminal state: the policy fails early in imagination."
    else:
        reason = (
            "At ζ = 1 that means an unsure posterior: more members, LayerNorm, or more epochs "
            "make it surer."
        )
    return [
        Finding(
            "warning",
            f"Rollouts are short: {median:.0f} steps in the median",
            f"{reason} Values then rest on bootstrapping, which overestimates.",
        )
    ]


def _numbers_out_of_range(run: RunRecord) -> list[Finding]:
    found = []
    gradients = run.train.get("nonfinite_gradients", np.empty(0))
    bad = int(np.count_nonzero(np.nan_to_num(gradients) > 0))
    if bad:
        found.append(
            Finding(
                "warning",
                "Gradients that were not finite",
                f"In {bad:,} of the {len(gradients):,} rows shown; they were set to zero. Lower "
                "the learning rates or --agent.clip-norm if it goes on.",
            )
        )
    overflow = newest(run.train, "ended_non_finite") or 0
    if overflow:
        found.append(
            Finding(
                "warning",
                "Imagination overflowed",
                f"{overflow:.0%} of the last rollouts ended in numbers that are not finite: a "
                "world with LayerNorm stays bounded.",
            )
        )
    return found


def _no_environment(run: RunRecord) -> list[Finding]:
    if run.environment is not None:
        return []
    posterior = (run.summary or {}).get("posterior")
    text = "So no score can be measured, and the posterior's own estimate is all there is."
    if posterior:
        text = (
            f"The posterior expects a return of {posterior['return_mean']:,.1f} ± "
            f"{posterior['return_std']:,.1f}; the data's is "
            f"{run.summary['data_return_mean']:,.1f}."
            if run.summary
            else text
        )
    return [Finding("fact", "There is no environment to evaluate in", text)]


def _no_world(run: RunRecord) -> list[Finding]:
    if run.world is None or run.uncertainty is not None:
        return []
    return [
        Finding(
            "fact",
            "The world's uncertainty is not shown",
            f"It was looked for in {run.world / UNCERTAINTY_FILE}, and cannot be read there: the "
            "world was moved or removed, or its numbers are not finite.",
        )
    ]
