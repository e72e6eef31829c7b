"""One call from data to a scored policy: world (reused if one matches), agent, evaluation, files.

A run directory holds

    run.json        what was asked: settings as resolved, data, task, versions
    metrics.jsonl   one row per device call of updates, per evaluation
    policy.npz      the trained policy
    summary.json    the result
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neubay import data, imagination, runs, tracking, world
from neubay.algorithm import Trained, tape_rows, train_agent
from neubay.config import VARIANTS, Preset, TrainConfig, WorldConfig, updated
from neubay.config import preset as config_preset
from neubay.data.dataset import Dataset
from neubay.data.files import cache_directory
from neubay.errors import ConfigError, RunError
from neubay.experience import rollout_rules
from neubay.policy import Policy
from neubay.tasks import published_settings
from neubay.tracking import Tracker
from neubay.world import FittedWorld

LAYOUT = 1
"""Version of the run directory."""

WorldProgress = Callable[[world.Progress], None]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    policy: Policy
    world: FittedWorld | None
    summary: dict[str, Any]
    directory: Path


def train(
    dataset: Dataset | str = "pendulum",
    *,
    preset: Preset = "cpu",
    variant: str = "neubay",
    seed: int = 0,
    out: Path | str | None = None,
    changes: dict[str, Any] | None = None,
) -> Result:
    """Train on a dataset, or on what its name or path stands for, as `neubay train` does.

    Args:
        preset: published sizes, or sizes for two cores.
        variant: the method, or one of its relatives in `config.VARIANTS`.
        out: the run directory; by default runs/DATASET-VARIANT-seedS.
        changes: nested settings over the preset, such as {"agent": {"kappa": 0.8}}.
    """
    if isinstance(dataset, str):
        dataset = data.load(dataset)
    if variant not in VARIANTS:
        raise ConfigError(f"unknown variant '{variant}'; known: {', '.join(VARIANTS)}")
    config: TrainConfig = config_preset(preset, published_settings(dataset.task, dataset.published))
    for change in (VARIANTS[variant], {"seed": seed}, changes or {}):
        config = updated(config, change)
    directory = Path(out) if out is not None else default_directory(dataset, variant, seed)
    about = {"preset": preset, "variant": variant}
    return run(dataset, config, directory, about=about)


def default_directory(dataset: Dataset, variant: str, seed: int) -> Path:
    """Where a run goes that was not told."""
    return Path("runs") / f"{dataset.name}-{variant}-seed{seed}"


def run(
    dataset: Dataset,
    config: TrainConfig,
    directory: Path,
    *,
    fitted: FittedWorld | None = None,
    about: dict[str, Any] | None = None,
    trackers: tuple[Tracker, ...] = (),
    world_progress: WorldProgress | None = None,
) -> Result:
    """Train world and agent on `dataset` and score the policy; everything is kept in `directory`.

    Args:
        fitted: a world to use instead of training or looking for one.
        about: more to write into run.json, such as the command.
        trackers: where rows go beside metrics.jsonl.
        world_progress: told how the world's training goes.
    """
    tape_rows(dataset.task, config)  # settings that cannot work are refused before any work
    _begin(directory, dataset, config, about or {})
    begun = time.perf_counter()
    needs_world = config.agent.algorithm != "bc"
    if needs_world and fitted is None:
        where = world_directory(dataset, config.world, config.seed)
        fitted = world.fit(
            dataset, config.world, config.seed, directory=where, progress=world_progress
        )
    world_seconds = time.perf_counter() - begun
    track = tracking.together([tracking.json_lines(directory / "metrics.jsonl"), *trackers])
    trained = train_agent(dataset, fitted if needs_world else None, config, track)
    policy = Policy(trained.agent, trained.state, dataset.task, config.agent)
    policy.save(directory / "policy.npz")
    summary = summarise(dataset, fitted, config, trained)
    summary["seconds"] = {"world": world_seconds, **trained.seconds}
    summary["seconds"]["total"] = time.perf_counter() - begun
    runs.atomic_write_json(directory / "summary.json", summary)
    return Result(policy, fitted, summary, directory)


def world_directory(dataset: Dataset, config: WorldConfig, seed: int) -> Path:
    """Where the world of these data, settings and seed lives: the same for every run."""
    identity = json.dumps([dataset.hash, config.model_dump(), seed], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cache_directory() / "worlds" / f"{dataset.name}-{digest}"


def summarise(
    dataset: Dataset, fitted: FittedWorld | None, config: TrainConfig, trained: Trained
) -> dict[str, Any]:
    """What a person wants to know of a run, as plain numbers."""
    task, evaluation = dataset.task, trained.evaluation or {}
    q_data = trained.metrics.get("q_data", math.nan)  # not a number where no row is real
    data_score = task.score(dataset.returns)
    horizon = {
        name.removeprefix("horizon_"): value
        for name, value in trained.metrics.items()
        if name.startswith("horizon_")
    }
    return {
        "dataset": dataset.name,
        "dataset_hash": dataset.hash,
        "task": task.name,
        "environment": task.env_name if task.make_env is not None else None,
        "seed": config.seed,
        "steps": config.agent.steps,
        "return_mean": evaluation.get("return_mean"),
        "return_std": evaluation.get("return_std"),
        "episodes": evaluation.get("episodes", 0),
        "score": evaluation.get("score"),
        "discounted_mean": evaluation.get("discounted_mean"),
        "data_return_mean": float(dataset.returns.mean()),
        "data_score": None if data_score is None else float(data_score.mean()),
        "q_data": q_data if math.isfinite(q_data) else None,
        "horizon": horizon,
        "posterior": None
        if fitted is None or trained.agent.config.algorithm == "bc"
        else posterior_estimate(dataset, fitted, config, trained),
    }


def posterior_estimate(
    dataset: Dataset, fitted: FittedWorld, config: TrainConfig, trained: Trained
) -> dict[str, float]:
    """The policy's return from s_0 as the posterior sees it: mean and spread over rollouts that
    are spread evenly over the members, and the share that uncertainty cut short.

    What is cut short counts up to the cut, so the estimate leaves out what would have followed.
    """
    rng = np.random.default_rng(config.seed)
    prefix = imagination.draw_histories(rng, dataset.histories, config.rollout.rollouts, "initial")
    rollouts = imagination.imagine(
        fitted.world,
        trained.agent.policy(trained.state, deterministic=True),
        imagination.branch(dataset, prefix),
        imagination.draw_members(rng, config.rollout.rollouts, fitted.world.size),
        rollout_rules(config.rollout, dataset.task, fitted),
        jax.random.key(config.seed),
    )
    ends = np.cumsum(rollouts.length + 1)
    first = ends - rollouts.length - 1
    rewards = np.asarray(rollouts.rows.reward, np.float64)
    returns = np.add.reduceat(rewards, first) - dataset.task.reward_shift * rollouts.length
    cut = rollouts.ending == imagination.Ending.UNCERTAIN
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "cut_share": float(cut.mean()),
        "length_mean": float(rollouts.length.mean()),
    }


def _begin(directory: Path, dataset: Dataset, config: TrainConfig, about: dict[str, Any]) -> None:
    """Claim an empty directory, and write down what is asked of the run."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise RunError(
            f"{directory} exists and is not empty: nothing in it is overwritten; "
            "choose another --out, or remove it"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        runs.atomic_write_json(
            directory / "run.json",
            {
                "layout": LAYOUT,
                "config": config.model_dump(),
                "dataset": {
                    "name": dataset.name,
                    "source": dataset.source,
                    "hash": dataset.hash,
                    "episodes": len(dataset.returns),
                    "transitions": int(dataset.bounds[1].sum()),
                    "published": dataset.published,
                },
                "task": dataset.task.name,
                "environment": dataset.task.env_name,
                "provenance": runs.provenance(),
                **about,
            },
        )
    except OSError as error:
        raise RunError(f"{directory}: cannot be written: {error.strerror}") from None
