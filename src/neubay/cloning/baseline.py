"""The clones that a run's policies are compared with, of the data and of its best episodes: trained
once, kept where worlds are, and found again by every run of the same data and sizes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from neubay.cloning.held_out import best_episodes
from neubay.cloning.training import account, clone, in_words
from neubay.config import (
    VARIANTS,
    AgentConfig,
    EvaluationConfig,
    RolloutConfig,
    SelectionConfig,
    TrainConfig,
    WorldConfig,
    known,
    of_a_policy,
    updated,
)
from neubay.data.dataset import Dataset
from neubay.policy import LAYOUT, Policy
from neubay.runs import rundir, tracking
from neubay.runs.cache import kept_at
from neubay.runs.checkpoints import CHECKPOINTS, Checkpoints
from neubay.runs.files import atomic, atomic_write_json, read_json
from neubay.runs.locks import locked
from neubay.runs.messages import Tell, log
from neubay.runs.signals import deferred_signals, stop_if_signalled

STEPS_SHARE = 0.25
"""Of the agent's gradient steps, those of its clone at most; of a clone's, as many."""
MOST_STEPS = int(VARIANTS["bc"]["agent"]["steps"])
"""Gradient steps of a clone at most, unless the settings say otherwise."""
VERSION = 2
"""Of cloning: a clone of another one is not found."""
TOLD = ("score", "return_mean")
"""What is kept of the clone's evaluation."""
_OF_NO_USE = (
    "heads",
    "target_heads",
    "alpha_lr",
    "kappa",
    "gamma",
    "value_unit",
    "huber",
    "polyak",
    "decay_critic",
    "warm_start",
    "alpha",
    "tune_alpha",
    "target_entropy",
    "updates_per_row",
    "buffer",
    "epsilon_final",
    "epsilon_share",
    "average_share",
    "best_share",
)  # to cloning: the clone is the same whatever they are


def clones_for(dataset: Dataset, config: TrainConfig) -> list[str]:
    """The clones that a run of these settings is compared with. A clone of the data is compared
    with none, one of its best episodes with that of all. Where the actions of the best episodes are
    random, or all episodes are worth the same, the best ones are good by luck, and not cloned."""
    if config.agent.algorithm == "bc":
        return [] if config.agent.best_share == 1 else [rundir.CLONE]
    by_luck = good_by_luck(dataset, _best_share(config))
    return [rundir.CLONE] if by_luck else [rundir.CLONE, rundir.BEST_CLONE]


def good_by_luck(dataset: Dataset, share: float) -> bool:
    """Whether the best episodes are no better, or their actions follow from nothing."""
    best = best_episodes(dataset, share)
    rows = np.concatenate([np.arange(f, f + n) for f, n in zip(*best, strict=True)])
    return len(best.first) == len(dataset.returns) or not of_a_policy(dataset.foretold(rows))


def clone_config(
    config: TrainConfig, settings: SelectionConfig, name: str = rundir.CLONE
) -> TrainConfig:
    """The settings of a clone that a run is compared with: networks as large as the agent's."""
    defaults = AgentConfig()
    agent = config.agent.model_copy(update={name: getattr(defaults, name) for name in _OF_NO_USE})
    cloned = TrainConfig(
        seed=settings.judge_seed,
        world=WorldConfig(),
        rollout=RolloutConfig(),
        agent=agent,
        evaluation=EvaluationConfig(evaluations=1, episodes=config.evaluation.episodes),
    )
    share = 1.0 if config.agent.algorithm == "bc" else STEPS_SHARE
    most = min(max(int(known(config.agent.steps) * share), 1), MOST_STEPS)
    cloned = updated(cloned, VARIANTS["bc"])
    steps = {"steps": settings.clone_steps or most}
    best = {"best_share": _best_share(config)} if name == rundir.BEST_CLONE else {}
    return updated(cloned, {"agent": steps | best})


def _best_share(config: TrainConfig) -> float:
    """The share that is called the best: what was asked for, or that of the variant."""
    asked, usual = config.agent.best_share, VARIANTS["bc-best"]["agent"]["best_share"]
    return float(usual if asked == 1 else asked)


def train_clone(
    dataset: Dataset,
    config: TrainConfig,
    settings: SelectionConfig,
    folder: Path,
    name: str = rundir.CLONE,
    *,
    progress: Callable[[float], None] = lambda share: None,
    tell: Tell = log,
) -> dict[str, Any]:
    """Clone the data for a run of these settings, or find the clone of an earlier one; a copy of it
    is put into `folder`. Returns what is known of it."""
    cloning = clone_config(config, settings, name)
    kept = clone_directory(dataset, cloning)
    if not (kept / rundir.SUMMARY_FILE).exists():
        with locked(kept, waiting=tell):
            if not (kept / rundir.SUMMARY_FILE).exists():  # by the process that was waited for
                _train(dataset, cloning, kept, progress, tell)
    target = folder / f"{name}.npz"
    about = target.with_suffix(".json")
    for source, path in ((rundir.SUMMARY_FILE, about), (f"{rundir.CLONE}.npz", target)):
        with atomic(path) as draft:
            shutil.copyfile(kept / source, draft)
    known_of_it = read_json(about)
    tell(in_words(known_of_it))
    return known_of_it


def clone_directory(dataset: Dataset, config: TrainConfig) -> Path:
    """Where the clone of these data and settings is, or will be."""
    identity = [LAYOUT, VERSION, dataset.hash, config.record()]
    return kept_at("clones", dataset.name, identity)


def _train(
    dataset: Dataset,
    config: TrainConfig,
    directory: Path,
    progress: Callable[[float], None],
    tell: Tell,
) -> None:
    """Train a clone; it is resumed where it was interrupted. What was told is written last."""
    metrics = directory / rundir.METRICS_FILE

    def show(row: tracking.Row) -> None:
        progress(row["step"] / known(config.agent.steps))

    with deferred_signals() as signalled:
        checkpoints = Checkpoints(
            directory / CHECKPOINTS, metrics, signalled=signalled, tell=lambda text: None
        )
        track = tracking.together([tracking.json_lines(metrics), show])
        trained = clone(dataset, config, track, checkpoints)
        policy = Policy.trained_on(dataset, trained.agent, trained.state)
        policy.save(directory / f"{rundir.CLONE}.npz")
        evaluation = trained.evaluation or {}
        told = {name: evaluation[name] for name in TOLD if evaluation.get(name) is not None}
        told |= account(trained) | {"steps": trained.metrics["step"]}
        atomic_write_json(directory / rundir.SUMMARY_FILE, told)
        checkpoints.finish(kept=0)
        stop_if_signalled()
