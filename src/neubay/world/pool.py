"""The training of a pool, all of it or a shard: epochs from wherever the last checkpoint is."""

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from neubay.config import WorldConfig
from neubay.data.dataset import Dataset
from neubay.errors import RunError, WorldError, renamed
from neubay.runs.checkpoints import CHECKPOINTS, Checkpoint, Checkpoints, Snapshot, fill
from neubay.runs.files import arrays_of
from neubay.runs.locks import locked
from neubay.runs.messages import Tell, log
from neubay.runs.signals import Stopped, deferred_signals
from neubay.world.fitted import EpochRecord, check_identity, identity
from neubay.world.model import Scaler
from neubay.world.training import (
    Learner,
    Recipe,
    Snapshots,
    epoch_shuffles,
    initialise,
    joined,
    keep_best,
    member_keys,
    member_sizes,
    spread,
    train,
    training_flops,
    validate,
)
from neubay.world.transitions import Epochs, Transitions, fit_scaler, split_rows

FLOPS_PER_CALL = 1e12
"""Work of one call at most, so that progress shows and an interrupt is answered in seconds."""
NEGLIGIBLE = 1e-4
"""Mean squared error, in units of what a step changes, below which a better fit would not be seen:
one hundredth of a step."""
CHECKPOINT_SECONDS = 60.0
"""Between two checkpoints, at least."""


Stage = Literal["training", "termination", "uncertainty"]


class Shard(NamedTuple):
    """Some members of a pool, trained where the others are not. Their numbers depend on how many
    members take a step side by side, so that a shard is made of whole groups of that size."""

    first: int
    last: int
    group: int

    @property
    def name(self) -> str:
        return f"{self.first:04d}-{self.last:04d}"

    @property
    def size(self) -> int:
        return self.last - self.first


class MemberScores(NamedTuple):
    """What every member of a shard came to in one epoch, in plain values."""

    score: list[float]
    improved: list[bool]


@dataclasses.dataclass(kw_only=True)
class Course:
    """How a training has gone, and so whether it goes on."""

    most_epochs: int | None  # the cap, if there is one
    history: list[EpochRecord] = dataclasses.field(default_factory=list)  # of completed epochs
    waited: int = 0  # epochs since a member improved
    seconds: float = 0.0  # of training, those before an interruption included

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return len(self.history)

    def ended(self, config: WorldConfig) -> bool:
        """Early stopping, or the cap. With a rate that decays, members improve towards its end, so
        that only a negligible error ends the training before it."""
        stalled = self.waited >= config.patience and not config.decay
        return stalled or self.good_enough(config) or self.epoch == self.most_epochs

    def good_enough(self, config: WorldConfig) -> bool:
        """The median member's error is negligible, where it is measured in units of a step."""
        median = self.history[-1].median if self.history else None
        measured = config.unit == "change" and config.selection == "mse"
        return measured and median is not None and median <= NEGLIGIBLE

    def end_epoch(
        self, score: Float[np.ndarray, " pool"], improved: Bool[np.ndarray, " pool"]
    ) -> None:
        finite = score[np.isfinite(score)]
        best = float(finite.min()) if len(finite) else None
        median = float(np.median(finite)) if len(finite) else None
        self.history.append(EpochRecord(best, median, int(improved.sum())))
        self.waited = 0 if improved.any() else self.waited + 1

    def progress(self, stage: Stage, share: float) -> "Progress":
        course = {field.name: getattr(self, field.name) for field in dataclasses.fields(Course)}
        return Progress(stage=stage, share=share, **course)


@dataclasses.dataclass(kw_only=True)
class Progress(Course):
    """Where a fit is, for a display."""

    stage: Stage
    share: float  # of the running epoch, of the heads' training, of the data whose U is measured


Show = Callable[[Progress], None]


@dataclasses.dataclass(kw_only=True)
class State(Course):
    """A training between two calls: all that is needed to resume it."""

    lanes: list[Learner]
    best: Snapshots
    shares: int = 0  # of the running epoch, done
    members: list[MemberScores] = dataclasses.field(default_factory=list)  # kept of a shard only


# --- Epochs --------------------------------------------------------------------------------------


def training_epochs(dataset: Dataset, config: WorldConfig, seed: int, members: int) -> Epochs:
    """The epochs of so many members on the training rows."""
    step_flops = members * training_flops(*member_sizes(dataset.task), config)
    return Epochs(
        dataset,
        split_rows(dataset.world_rows, config, seed)[0],
        batch=config.batch,
        batches_per_call=max(int(FLOPS_PER_CALL / step_flops), 1),
        seed=seed,
        resample=config.resample,
    )


def most_epochs(config: WorldConfig, epoch_steps: int) -> int | None:
    """The lower of both caps, of epochs and of gradient steps; at least one epoch."""
    caps = [] if config.max_epochs is None else [config.max_epochs]
    if config.max_steps is not None:
        caps.append(max(config.max_steps // epoch_steps, 1))
    return min(caps, default=None)


class Training:
    """What members of a pool are trained with: data, keys and compiled steps."""

    def __init__(
        self, dataset: Dataset, config: WorldConfig, seed: int, scaler: Scaler, shard: Shard | None
    ) -> None:
        self._scaler, self._shard = scaler, shard
        self._epochs = training_epochs(
            dataset, config, seed, config.pool if shard is None else shard.size
        )
        _, validation = split_rows(dataset.world_rows, config, seed)
        self._validation = Transitions.copy(dataset, validation)
        self.most_epochs = cap = most_epochs(config, self._epochs.steps)
        steps = None if cap is None else cap * self._epochs.steps
        self.recipe = _recipe(dataset, config, shard, steps)
        self.keys = _keys(config, seed, shard)

    def epoch(self, state: State, pauses: "Pauses") -> None:
        """What is left of the running epoch, and its end."""
        for share in self._epochs.shares(state.epoch, state.shares):
            # One call in flight: where calls do not wait, the next chunk is read while it runs.
            jax.block_until_ready(state.lanes)
            shuffles = epoch_shuffles(self.keys, state.epoch, share.chunk)
            state.lanes = train(state.lanes, shuffles, share, self._scaler, self.recipe)
            state.shares += 1
            pauses.pause(state, "training", state.shares / len(self._epochs))
        members = joined([lane.result for lane in state.lanes])
        score = validate(members, self._validation, self._scaler, self.recipe)
        state.best, improved = keep_best(state.best, members, score, self.recipe.config)
        if self._shard is not None:
            state.members.append(MemberScores(score.tolist(), improved.tolist()))
        state.end_epoch(np.asarray(score), np.asarray(improved))
        state.shares = 0
        pauses.pause(state, "training", 0.0)


def _recipe(
    dataset: Dataset, config: WorldConfig, shard: Shard | None, steps: int | None = None
) -> Recipe:
    sizes = (config.pool, None) if shard is None else (shard.size, shard.group)
    return Recipe.of(dataset.task, config, steps, *sizes)


def _keys(config: WorldConfig, seed: int, shard: Shard | None) -> Key[Array, " members"]:
    keys = member_keys(config.pool, seed)
    return keys if shard is None else keys[shard.first : shard.last]


def train_pool(
    dataset: Dataset, config: WorldConfig, seed: int, scaler: Scaler, pauses: "Pauses"
) -> State:
    """Epochs until no member has improved for `patience` of them, or the cap is reached."""
    training = Training(dataset, config, seed, scaler, None)
    state = pauses.resume(training)
    while not state.ended(config):
        training.epoch(state, pauses)
    return state


# --- Pauses --------------------------------------------------------------------------------------


class Pauses:
    """Points where the state is complete: it is shown, saved when due, and signals are obeyed."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        fit: dict[str, Any],
        show: Show,
        signalled: Callable[[], int],
    ) -> None:
        self._last = time.monotonic()
        self._checkpoints, self._fit = checkpoints, fit
        self._show, self._signalled = show, signalled

    def resume(self, training: Training) -> State:
        """The state to train from: that of the last checkpoint, or else the fresh pool."""
        learner, best = fresh = initialise(training.keys, training.recipe)
        resumed = None
        if self._checkpoints is not None:
            with renamed(RunError, WorldError):
                resumed = self._checkpoints.resume(lambda found: _read(found, self._fit, *fresh))
        learner, best, progress = resumed or (learner, best, {})
        layout = training.recipe.layout
        lanes, best = spread(learner, layout), jax.device_put(best, layout.sharding)
        return State(lanes=lanes, best=best, most_epochs=training.most_epochs, **progress)

    def pause(self, state: State, stage: Stage, share: float) -> None:
        now = time.monotonic()
        if stage == "training":  # afterwards the state stays as it is
            state.seconds += now - self._last
        self._last = now
        try:
            self._show(state.progress(stage, share))
            stop = self._signalled()
        except KeyboardInterrupt:
            stop = signal.SIGINT
        if stop or stage == "training":
            self.write(state, stop=stop)
        if stop:
            raise Stopped(stop)

    def write(self, state: State, **when: Any) -> None:
        """Write a checkpoint if one is due; with `last` or `stop`, due or not."""
        if self._checkpoints is not None:
            name = f"{state.epoch:07d}-{state.shares:07d}"
            with renamed(RunError, WorldError):
                self._checkpoints.pause(name, lambda: self._snapshot(state), **when)

    def _snapshot(self, state: State) -> Snapshot:
        note = {
            "identity": self._fit,
            "history": state.history,
            "shares": state.shares,
            "waited": state.waited,
            "seconds": state.seconds,
            **({"members": state.members} if state.members else {}),
        }
        return note, [arrays_of(joined(state.lanes)), arrays_of(state.best)]


def _read(
    checkpoint: Checkpoint, fit: dict[str, Any], learner: Learner, best: Snapshots
) -> tuple[Learner, Snapshots, dict[str, Any]]:
    """What a checkpoint holds, in the shapes of a fresh pool; that of another fit is refused."""
    note = dict(checkpoint.note)
    check_identity(checkpoint.path, note.pop("identity"), fit)
    note["history"] = [EpochRecord(*record) for record in note["history"]]
    note["members"] = [MemberScores(*scores) for scores in note.get("members", ())]
    slices = checkpoint.slices()
    return fill(learner, next(slices)), fill(best, next(slices)), note


# --- Shards --------------------------------------------------------------------------------------


def _identity(dataset: Dataset, config: WorldConfig, seed: int, shard: Shard) -> dict[str, Any]:
    return {**identity(dataset.hash, config, seed), "shard": list(shard)}


def train_shard(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    shard: Shard,
    directory: Path,
    *,
    epochs: int,
    tell: Tell = log,
) -> list[MemberScores]:
    """Train a shard up to the end of an epoch, from wherever it is, and save it; what its members
    came to in all of its epochs."""
    with deferred_signals() as signalled, locked(directory, waiting=tell):
        checkpoints = Checkpoints(directory / CHECKPOINTS, every=CHECKPOINT_SECONDS, tell=tell)
        fit = _identity(dataset, config, seed, shard)
        pauses = Pauses(checkpoints, fit, lambda _: None, signalled)
        training = Training(dataset, config, seed, fit_scaler(dataset, config.unit), shard)
        state = pauses.resume(training)
        if state.epoch < epochs:
            while state.epoch < epochs:
                training.epoch(state, pauses)
            pauses.write(state, last=True)
        return state.members


def best_of_shard(
    dataset: Dataset, config: WorldConfig, seed: int, shard: Shard, directory: Path, epochs: int
) -> Snapshots:
    """The snapshots of a shard that was trained for so many epochs."""
    keys, recipe = _keys(config, seed, shard), _recipe(dataset, config, shard)
    learner, best = jax.eval_shape(lambda: initialise(keys, recipe))
    fit = _identity(dataset, config, seed, shard)
    checkpoints = Checkpoints(directory / CHECKPOINTS)
    with renamed(RunError, WorldError):
        resumed = checkpoints.resume(lambda checkpoint: _read(checkpoint, fit, learner, best))
    if resumed is None or len(resumed[2]["history"]) != epochs:
        raise WorldError(
            f"{directory}: its checkpoint of epoch {epochs} is missing or damaged; give the same "
            "command to train that part again"
        )
    return resumed[1]
