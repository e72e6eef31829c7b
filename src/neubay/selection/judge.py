"""The judge: a world of members that did not train any candidate.

Each of its members is fitted on a bootstrap of its own of the data's episodes, so that they differ
where few episodes tell, and all of the data is known to some. It is kept where worlds are kept, and
so found again by every run of the same data and sizes. It has half the members of a small world and
a quarter of those of a large one, trained for at most two thirds of its epochs: together, cloning,
judge and selection take at most about a fifth of a run's time.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neubay import world
from neubay.config import EndedBy, WorldConfig, preset
from neubay.data.dataset import Dataset
from neubay.errors import RunError
from neubay.runs.files import read_json, tree_hash
from neubay.runs.messages import Tell, log
from neubay.tasks import Task, published_settings
from neubay.world import FittedWorld
from neubay.world.pool import Show

SMALL = 6
"""Members trained for a judge where half of the world's are no more."""
_SEED = 1_000_000
"""Added to the judge's seed: its first weights are those of no world with a small seed."""
EPOCHS_SHARE = 2 / 3
"""Of the world's cap, the judge's."""


@dataclass(frozen=True)
class Judge:
    """A fitted judge, and where it is."""

    fitted: FittedWorld
    seed: int
    directory: Path | None
    zeta: float | None
    """U is compared with this quantile over the judge's data; none: it has no cut."""

    @property
    def threshold(self) -> float:
        """U(zeta)."""
        return math.inf if self.zeta is None else self.fitted.threshold(self.zeta)

    def ended_by(self, task: Task) -> EndedBy:
        """What tells terminal states in its rollouts: the task's rule, else what it learned."""
        if task.termination is not None:
            return "rule"
        return "none" if self.fitted.world.heads is None else "learned"

    def saw(self, dataset_hash: str) -> bool:
        """It was fitted on episodes of that data."""
        return self.fitted.dataset_hash == dataset_hash

    def reference(self) -> dict[str, Any]:
        """What a run remembers of it."""
        return {
            "directory": None if self.directory is None else str(self.directory),
            "hash": tree_hash(self.fitted.world),
            "seed": self.seed,
            "zeta": self.zeta,
            "members": self.fitted.world.size,
        }


def judge_config(config: WorldConfig, dataset: Dataset) -> WorldConfig:
    """The settings of the judge of runs whose world has these: half the members, or a quarter of
    many, two thirds of the caps, and the paper's uncertainty, whatever a variant's is. Ends it
    learns where no rule tells them, if the data has enough."""
    learns = dataset.task.termination is None and config.termination != "none"
    learned = learns and world.is_learnable(dataset)
    pool = min(max(config.pool // 2, 2), max(config.pool // 4, SMALL), config.pool)
    caps = {name: getattr(config, name) for name in ("max_epochs", "max_steps")}
    changes = {
        "pool": pool,
        "members": min(max(pool * config.members // config.pool, 2), pool),
        "resample": True,
        "quantifier": "disagreement",
        "termination": "learned" if learned else "none",
        **{name: cap and math.ceil(cap * EPOCHS_SHARE) for name, cap in caps.items()},
    }
    return config.model_copy(update=changes)


def fit_judge(
    dataset: Dataset,
    config: WorldConfig,
    *,
    seed: int = 0,
    progress: Show | None = None,
    tell: Tell = log,
) -> Judge:
    """Fit the judge of a dataset, or find the one that was fitted before.

    Args:
        config: the settings of the world whose policies are judged.
        seed: decides its members, and which episodes each sees how often.
    """
    smaller, directory = judge_config(config, dataset), judge_directory(dataset, config, seed)
    fitted = world.fit(
        dataset, smaller, _SEED + seed, directory=directory, progress=progress, tell=tell
    )
    return Judge(fitted, seed, directory, usual_zeta(dataset))


def judge_directory(dataset: Dataset, config: WorldConfig, seed: int) -> Path:
    """Where that judge is, or will be."""
    return world.world_directory(dataset, judge_config(config, dataset), _SEED + seed)


def usual_zeta(dataset: Dataset) -> float | None:
    """The cut of the data's benchmark, whatever a run's own is; 1 where that follows from the data:
    a judge says where it has seen nothing."""
    zeta = preset("cpu", published_settings(dataset.task, dataset.published)).rollout.zeta
    return 1.0 if zeta == "auto" else zeta


def load_judge(reference: Path) -> Judge:
    """The judge that a run remembers."""
    about = read_json(reference)
    where, run = about.get("directory"), reference.parent.parent
    directory = None if where is None else Path(str(where))
    if directory is None or not world.is_whole(directory):
        raise RunError(
            f"{run}: its judge is not at {where}: name the data (--data), and it is fitted again"
        )
    fitted = world.load(directory)
    if about.get("hash") != tree_hash(fitted.world):
        raise RunError(
            f"{directory}: not the judge of {run}: its weights are others. Name the data (--data) "
            "to fit one anew"
        )
    try:
        return Judge(fitted, int(about["seed"]), directory, about["zeta"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{reference}: damaged: {type(error).__name__} {error}") from None
