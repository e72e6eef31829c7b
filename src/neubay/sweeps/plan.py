"""What many runs of one dataset share, and the jobs that they are."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from neubay import selection, world
from neubay.config import SelectionConfig, TrainConfig, WorldConfig
from neubay.data.dataset import Dataset
from neubay.runs.cache import cache_directory
from neubay.sweeps.data import Source, keep
from neubay.sweeps.jobs import Job, Metric, versions


@dataclass(frozen=True)
class Plan:
    """The data, and what is the same for all runs."""

    dataset: Dataset
    source: Source
    directory: Path
    """The folder of the runs."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """For every run.json."""
    select: SelectionConfig | None = None
    judged_as: WorldConfig | None = None
    metric: Metric | None = None
    versions: Mapping[str, str] = field(default_factory=versions)
    given_world: Path | None = None
    tensorboard: bool = False
    wandb: str | None = None
    checkpoint_seconds: float = 30.0
    threads: int | None = None
    """Threads of a worker's programs; by default as many as it has cores."""

    def begin(self) -> None:
        """Put the rows of a dataset that has no name into the folder, where workers find them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.source.spec is None:
            keep(self.dataset, self.directory)

    def job(
        self, config: TrainConfig, directory: Path, *, until: int | None = None, **about: Any
    ) -> Job:
        """The run with these settings."""
        judge = None if self.judged_as is None else self.judged_as.model_dump()
        return Job(
            kind="run",
            directory=str(directory.resolve()),
            about={**self.about, **about},
            metric=self.metric,
            until=until,
            judge=judge,
            worlds=tuple(need.directory for need in self.needs(config)),
            world=None if self.given_world is None else str(self.given_world.resolve()),
            tensorboard=self.tensorboard,
            wandb=self.wandb,
            checkpoint_seconds=self.checkpoint_seconds,
            **self._common(config),
        )

    def needs(self, config: TrainConfig) -> list[Job]:
        """The worlds that such a run needs: its own, and the judge of its policies."""
        jobs, common = [], self._common(config)
        if config.agent.algorithm != "bc" and self.given_world is None:
            where = world.world_directory(self.dataset, config.world, config.seed)
            jobs.append(Job(kind="world", directory=str(where.resolve()), **common))
        if self.select is not None:
            judged_as = self.judged_as or config.world
            where = selection.judge_directory(self.dataset, judged_as, self.select.judge_seed)
            judge = judged_as.model_dump()
            jobs.append(Job(kind="judge", directory=str(where.resolve()), judge=judge, **common))
        return jobs

    def shard(
        self, config: TrainConfig, shard: tuple[int, int, int], directory: Path, epoch: int
    ) -> Job:
        """Members of the pool of a world, up to the end of an epoch."""
        common, where = self._common(config), str(directory.resolve())
        return Job(kind="shard", directory=where, shard=shard, until=epoch, **common)

    def _common(self, config: TrainConfig) -> dict[str, Any]:
        return {
            "cache": str(cache_directory().resolve()),
            "data": asdict(self.source),
            "config": config.model_dump(),
            "home": str(self.directory.resolve()),
            "select": None if self.select is None else self.select.model_dump(),
            "versions": dict(self.versions),
        }
