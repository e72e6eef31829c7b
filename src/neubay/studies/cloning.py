"""Whether the clone that held-out likelihood chooses is the better one in the environment."""

import dataclasses
import tempfile
import time
from pathlib import Path

from neubay.cloning.training import Candidate, Cloning
from neubay.config import TrainConfig, known
from neubay.data.dataset import Dataset
from neubay.errors import TaskError
from neubay.evaluation import evaluate
from neubay.runs.checkpoints import Checkpoints
from neubay.studies.records import Record


@dataclasses.dataclass(frozen=True)
class Scored(Record):
    """A candidate, and what it gets in the environment."""

    held_out: float
    """Log-likelihood of held-out actions per step, at its best."""
    best_step: int
    score: float
    """Of its mode: a return where the task has no score."""
    sampled: float
    """The same of its samples."""


@dataclasses.dataclass(frozen=True)
class Compared(Record):
    """Both candidates on one dataset."""

    data: str
    environment: str
    seed: int
    steps: int
    """Gradient steps at most."""
    past_actions: bool
    """Memory sees them, which it does not outside of this study."""
    data_score: float
    memory: Scored
    markov: Scored
    chosen: str
    """memory or markov."""
    seconds: float
    """Processor time of both trainings."""


def compare(
    dataset: Dataset, config: TrainConfig, *, episodes: int, past_actions: bool = False
) -> Compared:
    """Train both candidates as cloning does, and score each."""
    task = dataset.task
    if task.make_env is None or task.env_name is None:
        raise TaskError(f"{dataset.name}: its task has no environment, in which clones are scored")
    begun = time.process_time()
    quiet = dataclasses.replace(task, env_id=None, make_env=None, env_name=None)
    cloning = Cloning(dataclasses.replace(dataset, task=quiet), config, past_actions=past_actions)
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints(Path(folder), tell=lambda text: None)
        cloning.train(lambda row: None, kept)
    seconds = time.process_time() - begun

    def scored(candidate: Candidate) -> Scored:
        found = []
        for deterministic in (True, False):
            policy = candidate.agent.policy(candidate.at_best, deterministic)
            told = evaluate(task, policy, episodes=episodes, seed=config.seed)
            found.append(float((told.returns if told.scores is None else told.scores).mean()))
        about = candidate.record(cloning.unseen)
        held_out, step = (about[f"{name}_{candidate.name}"] for name in ("held_out", "best_step"))
        return Scored(held_out, int(step), *found)

    candidates = {each.name: scored(each) for each in cloning.candidates}
    data = task.score(dataset.returns)
    return Compared(
        data=dataset.name,
        environment=task.env_name,
        seed=config.seed,
        steps=known(config.agent.steps),
        past_actions=past_actions,
        data_score=float((dataset.returns if data is None else data).mean()),
        memory=candidates["memory"],
        markov=candidates["markov"],
        chosen=cloning.better().name,
        seconds=seconds,
    )
