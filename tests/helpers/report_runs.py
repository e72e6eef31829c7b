"""Run directories made by hand, with the files and columns of real ones and chosen numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from neubay.config import VARIANTS, Facts, TrainConfig, known, preset, settle, updated


def make_run(
    directory: Path,
    *,
    dataset: str = "hopper_medium_replay",
    variant: str = "neubay",
    seed: int = 0,
    score: float | None = 60.0,
    changes: dict[str, Any] | None = None,
    finished: bool = True,
    promised: float = 200.0,
    published: str | None = None,
    environment: str | None = "Hopper-v4",
    rows: int = 200,
    extra: dict[str, Any] | None = None,
) -> Path:
    """A run whose score rises to `score`, and whose critic promises `promised` at the end."""
    config: TrainConfig = preset("cpu")
    begun = {"seed": seed, "agent": {"steps": 16_000}}
    for change in (VARIANTS[variant], begun, changes or {}):
        config = updated(config, change)
    config = settle(config, Facts(horizon=1000, reward_rms=1.0, foretold=0.3))
    steps, evaluations = known(config.agent.steps), 10
    rng = np.random.default_rng([seed, rows])
    directory.mkdir(parents=True)
    world = directory / "world"
    world.mkdir()
    np.save(world / "data_uncertainty.npy", rng.lognormal(-4, 0.6, 2000).astype(np.float32))
    about = {
        "layout": 2,
        "config": config.model_dump(),
        "dataset": {
            "name": dataset,
            "source": f"d4rl:{dataset}",
            "hash": "572b72f91d0b9554cb234e98ab6c45ed",
            "episodes": 100,
            "transitions": 2000,
            "published": published,
            "return_mean": 600.0,
            "score": None if score is None else 19.1,
        },
        "task": "d4rl/hopper",
        "environment": environment,
        "provenance": {"neubay": "0.1.0", "jax": "0.10.2", "python": "3.11.7"},
        "command": f"neubay train {dataset} --seed {seed}",
        "preset": "cpu",
        "variant": variant,
    } | (extra or {})
    (directory / "world.json").write_text(json.dumps({"directory": str(world)}), encoding="utf-8")
    (directory / "run.json").write_text(json.dumps(about), encoding="utf-8")
    done = steps if finished else steps // 2
    with (directory / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for number in range(1, rows + 1):
            step = done * number // rows
            way = number / rows
            row = _train_row(step, way, promised, rng)
            file.write(json.dumps(row) + "\n")
            if environment is not None and (number * evaluations) % rows == 0:
                file.write(json.dumps(_evaluation_row(step, way, score, rng)) + "\n")
    if finished:
        (directory / "summary.json").write_text(
            json.dumps(_summary(about, score, promised, environment)), encoding="utf-8"
        )
    return directory


def _train_row(step: int, way: float, promised: float, rng: np.random.Generator) -> dict[str, Any]:
    median = 8 + 100 * way + rng.normal(0, 4)
    return {
        "kind": "train",
        "step": step,
        "iteration": step // 100,
        "critic_loss": float(np.exp(-2 * way) * rng.lognormal(0, 0.2)),
        "actor_loss": -promised * way,
        "entropy": 1 - 2 * way + float(rng.normal(0, 0.05)),
        "alpha": 0.2,
        "nonfinite_gradients": 0.0,
        "q_data": promised * way + float(rng.normal(0, 2)),
        "horizon_p5": median / 8,
        "horizon_p25": median / 2,
        "horizon_p50": median,
        "horizon_p75": 2 * median,
        "horizon_p95": 3 * median,
        "horizon_max": 4 * median,
        "ended_terminal": 0.2,
        "ended_uncertain": 0.5,
        "ended_non_finite": 0.0,
    }


def _evaluation_row(
    step: int, way: float, score: float | None, rng: np.random.Generator
) -> dict[str, Any]:
    now = (20.0 if score is None else score) * way
    return {
        "kind": "evaluation",
        "step": step,
        "return_mean": 32.5 * now - 20.3,
        "return_std": 325.4,
        "discounted_mean": 180 * way + float(rng.normal(0, 3)),
        "episodes": 20,
        "length_mean": 400.0,
        "score": None if score is None else now,
        "score_std": None if score is None else 10.0,
        "returns": [1.0, 2.0],
    }


def _summary(
    about: dict[str, Any], score: float | None, promised: float, environment: str | None
) -> dict[str, Any]:
    return {
        "dataset": about["dataset"]["name"],
        "dataset_hash": about["dataset"]["hash"],
        "task": about["task"],
        "environment": environment,
        "seed": about["config"]["seed"],
        "steps": about["config"]["agent"]["steps"],
        "return_mean": None if environment is None else 1900.0,
        "return_std": None if environment is None else 325.4,
        "episodes": 20,
        "score": score,
        "discounted_mean": 180.0,
        "data_return_mean": 600.0,
        "data_score": None if score is None else 19.1,
        "q_data": promised,
        "horizon": {"mean": 90.0, "p25": 54.0, "p50": 108.0, "p75": 216.0, "max": 432.0},
        "posterior": {
            "return_mean": 1700.0,
            "return_std": 300.0,
            "cut_share": 0.3,
            "length_mean": 310.0,
        },
        "seconds": {"world": 120.0, "imagination": 30.0, "updates": 900.0, "total": 1100.0},
    }
