"""Progress in plain lines, for a log or a notebook: how far a training is, and the time left."""

import time
from collections.abc import Callable
from typing import Any

from neubay.runs.messages import Tell, duration
from neubay.runs.tracking import Row, Tracker

EVERY = 20.0
"""Seconds between two lines; an evaluation has one of its own."""

_HEADLINE = {
    "q_data": "Q on data",
    "critic_loss": "critic loss",
    "horizon_p50": "median horizon",
    "squared_error": "squared error",  # of behaviour cloning, which has no critic and no rollouts
    "log_likelihood": "log-likelihood",
}


def headline(row: Row) -> str:
    """The few numbers of a row of training that tell how it is going."""
    return ", ".join(f"{name} {row[key]:.3g}" for key, name in _HEADLINE.items() if key in row)


def reached(row: Row) -> str:
    """What an evaluation found."""
    score = "" if row["score"] is None else f" (score {row['score']:.1f})"
    return f"return {row['return_mean']:.1f} ± {row['return_std']:.1f}{score}"


def agent_lines(tell: Tell, steps: int) -> Tracker:
    """A tracker that tells of every evaluation, and now and then of the training.

    The time left follows from the pace since the first row: what comes before it is compilation.
    """
    first: tuple[float, int] | None = None
    last = time.monotonic()

    def left(step: int) -> str:
        nonlocal first
        now = time.monotonic()
        first = first or (now, step)
        begun, before = first
        if not before < step < steps:
            return ""
        return f"; {duration((now - begun) * (steps - step) / (step - before))} left"

    def track(row: Row) -> None:
        nonlocal last
        evaluated, step = row["kind"] == "evaluation", row["step"]
        remaining = left(step)
        if evaluated or time.monotonic() - last >= EVERY:
            last = time.monotonic()
            numbers = reached(row) if evaluated else headline(row)
            tell(f"step {step:,} of {steps:,}: {numbers}{remaining}")

    return track


def world_text(progress: Any, score: str) -> str:
    """Where the fit of a world is (`world.Progress`), its validation score called `score`."""
    if progress.stage == "uncertainty":
        return f"uncertainty over the data {progress.share:.0%}"
    if progress.stage == "termination":
        return f"what ends an episode {progress.share:.0%}"
    text, done = f"epoch {progress.epoch + 1}", progress.epoch + progress.share
    if progress.history:
        last = progress.history[-1]
        median = "not finite" if last.median is None else f"{last.median:.4g}"
        text += f", validation {score.upper()} {median} (median), {last.improved} members improved"
    if done and progress.most_epochs is not None:
        left = progress.seconds * (progress.most_epochs - done) / done
        text += f"; at most {duration(left)} left"
    return text


def world_lines(tell: Tell, score: str) -> Callable[[Any], None]:
    """Tells now and then where the fit of a world is."""
    last = time.monotonic()

    def show(progress: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            tell(f"world: {world_text(progress, score)}")

    return show


def stage_lines(tell: Tell) -> Callable[[str, float], None]:
    """Tells now and then how far a stage beside the training is, such as cloning."""
    begun: dict[str, float] = {}
    last = time.monotonic()

    def show(stage: str, share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if stage not in begun:
            begun[stage] = last = now
            tell(f"{stage} ...")
        elif now - last >= EVERY and 0 < share < 1:
            last = now
            left = duration((now - begun[stage]) * (1 - share) / share)
            tell(f"{stage}: {share:.0%}; {left} left")

    return show
