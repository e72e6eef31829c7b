"""From a dataset to a world: epochs of the pool until it stops improving, and the best of it."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from neubay.config import WorldConfig, updated
from neubay.data.dataset import Dataset
from neubay.devices import choices
from neubay.errors import RunError, WorldError, reason
from neubay.runs.checkpoints import CHECKPOINTS, Checkpoint, Checkpoints, Snapshot, fill
from neubay.runs.files import arrays_of
from neubay.runs.locks import locked
from neubay.runs.messages import Tell, log
from neubay.runs.provenance import provenance
from neubay.runs.signals import Stopped, deferred_signals, stop_if_signalled
from neubay.world.directory import world_directory
from neubay.world.fitted import (
    WORLD_FILE,
    EpochRecord,
    FittedWorld,
    check_identity,
    identity,
    load,
    refuse_former,
    save,
)
from neubay.world.model import Scaler, World
from neubay.world.termination import learn_termination, settled
from neubay.world.training import (
    Layout,
    Learner,
    Recipe,
    Snapshots,
    epoch_shuffles,
    initialise,
    joined,
    keep_best,
    member_keys,
    member_sizes,
    select,
    spread,
    train,
    training_flops,
    validate,
)
from neubay.world.transitions import Epochs, Transitions, fit_scaler, split_rows

FLOPS_PER_CALL = 1e12
"""Work of one call at most, so that progress shows and an interrupt is answered in seconds."""
CHECKPOINT_SECONDS = 60.0
"""Between two checkpoints, at least."""


Stage = Literal["training", "termination", "uncertainty"]


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a fit is, for a display."""

    stage: Stage
    share: float  # of the running epoch, of the heads' training, of the data whose U is measured
    seconds: float  # of training, those before an interruption included
    history: list[EpochRecord]  # an entry for each completed epoch
    waited: int  # epochs since a member improved
    most_epochs: int | None  # the cap, if there is one

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return len(self.history)


Show = Callable[[Progress], None]


def fit(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    *,
    directory: Path | None = None,
    progress: Show | None = None,
    tell: Tell = log,
) -> FittedWorld:
    """Train a pool of members on a dataset and keep the best N.

    With a `directory`, the fit is saved there: an interrupted one is resumed, a finished one is
    read, and another process that trains there is waited for. `progress` may raise
    KeyboardInterrupt to stop. `tell` is called with sentences for the user. After SIGINT or
    SIGTERM the fit is saved and `Stopped` is raised.
    """
    show = progress or (lambda _: None)
    config = settled(config, dataset)
    wanted = identity(dataset.hash, config, seed)
    if directory is None:
        return _fit(dataset, config, seed, None, show)
    if os.path.isfile(directory / WORLD_FILE):
        return _found(directory, wanted)
    try:
        with deferred_signals(), locked(directory, waiting=tell):
            if os.path.isfile(directory / WORLD_FILE):  # by the process that was waited for
                return _found(directory, wanted)
            refuse_former(directory)
            checkpoints = Checkpoints(directory / CHECKPOINTS, every=CHECKPOINT_SECONDS, tell=tell)
            without = world_directory(dataset, updated(config, {"termination": "none"}), seed)
            if config.termination == "learned" and os.path.isfile(without / WORLD_FILE):
                fitted = with_termination(load(without), dataset, show)
            else:
                fitted = _fit(dataset, config, seed, checkpoints, show)
            save(fitted, directory)
            checkpoints.finish(kept=0)
            stop_if_signalled()
            return fitted
    except OSError as error:
        raise WorldError(
            f"{directory}: cannot be written: {reason(error)}. What was saved before is "
            "untouched; give the same command to resume once that is mended"
        ) from error


def _found(directory: Path, wanted: dict[str, Any]) -> FittedWorld:
    fitted = load(directory)
    check_identity(directory, fitted.identity, wanted)
    return fitted


def _fit(
    dataset: Dataset, config: WorldConfig, seed: int, checkpoints: Checkpoints | None, show: Show
) -> FittedWorld:
    scaler = _checked_scaler(dataset, config)
    with deferred_signals() as signalled:
        pauses = _Pauses(checkpoints, identity(dataset.hash, config, seed), show, signalled)
        state = _train_pool(dataset, config, seed, scaler, pauses)
        scores = np.asarray(state.best.score)
        kept = select(scores, config.members)
        best = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[kept]), state.best.members)
        world = World(best, scaler, dataset.task.reward_only, config.quantifier)
        heads, termination = None, None
        if config.termination == "learned":
            heads, termination = learn_termination(
                world, dataset, seed, lambda share: pauses.pause(state, "termination", share)
            )
            world = dataclasses.replace(world, heads=heads)
        uncertainty = uncertainty_over(
            world, dataset, lambda share: pauses.pause(state, "uncertainty", share)
        )
    return FittedWorld(
        world=world,
        scores=scores,
        kept=kept,
        data_uncertainty=uncertainty,
        history=state.history,
        seconds=state.seconds,
        config=config,
        seed=seed,
        dataset_name=dataset.name,
        dataset_hash=dataset.hash,
        provenance=provenance(),
        termination=termination,
    )


def with_termination(
    fitted: FittedWorld, dataset: Dataset, show: Show | None = None
) -> FittedWorld:
    """A fitted world that also learns what ends an episode: what a fit that does so would give.
    `dataset` is the one it was fitted on."""
    if dataset.hash != fitted.dataset_hash:
        raise WorldError(
            f"what ends an episode is learned from the data of the world, {fitted.dataset_name} "
            f"(hash {fitted.dataset_hash}), and not from {dataset.name} (hash {dataset.hash})"
        )

    def progress(share: float) -> None:
        stop_if_signalled()
        if show is not None:
            show(Progress("termination", share, fitted.seconds, fitted.history, 0, None))

    heads, termination = learn_termination(fitted.world, dataset, fitted.seed, progress)
    return dataclasses.replace(
        fitted,
        world=dataclasses.replace(fitted.world, heads=heads),
        termination=termination,
        config=updated(fitted.config, {"termination": "learned"}),
    )


def best_of(fitted: FittedWorld, dataset: Dataset, members: int) -> FittedWorld:
    """The world of the best few members of a fitted one: what a fit of the same pool that keeps
    so many would give. `dataset` is the one it was fitted on."""
    if members > fitted.world.size:
        raise WorldError(f"{members} members wanted of a world that has {fitted.world.size}")
    kept = (fitted.world.members, fitted.world.heads)
    best, heads = jax.tree.map(lambda leaf: leaf[:members], kept)
    smaller = dataclasses.replace(fitted.world, members=best, heads=heads)
    return dataclasses.replace(
        fitted,
        world=smaller,
        kept=fitted.kept[:members],
        data_uncertainty=uncertainty_over(smaller, dataset, lambda _: stop_if_signalled()),
        config=fitted.config.model_copy(update={"members": members}),
    )


def _checked_scaler(dataset: Dataset, config: WorldConfig) -> Scaler:
    transitions = len(dataset.world_rows)
    if transitions < 2:
        raise WorldError(
            f"{dataset.name}: {transitions} transitions to learn from; a world needs one to train "
            "on and one to validate with, and deserves thousands"
        )
    scaler = fit_scaler(dataset, config.unit)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(scaler)):
        raise WorldError(
            f"{dataset.name}: states, actions or rewards are not finite or overflow float32; "
            "'neubay data validate' names the rows"
        )
    return scaler


@dataclasses.dataclass
class State:
    """A training between two calls: all that is needed to resume it."""

    lanes: list[Learner]
    best: Snapshots
    most_epochs: int | None
    history: list[EpochRecord] = dataclasses.field(default_factory=list)
    shares: int = 0  # of the running epoch, done
    waited: int = 0  # epochs since a member improved
    seconds: float = 0.0

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return len(self.history)

    def ended(self, config: WorldConfig) -> bool:
        """Early stopping, or the cap. A rate that decays is no reason to stop before its end."""
        stalled = self.waited >= config.patience and not config.decay
        return stalled or self.epoch == self.most_epochs

    def end_epoch(
        self, score: Float[np.ndarray, " pool"], improved: Bool[np.ndarray, " pool"]
    ) -> None:
        finite = score[np.isfinite(score)]
        best = float(finite.min()) if len(finite) else None
        median = float(np.median(finite)) if len(finite) else None
        self.history.append(EpochRecord(best, median, int(improved.sum())))
        self.shares = 0
        self.waited = 0 if improved.any() else self.waited + 1

    def progress(self, stage: Stage, share: float) -> Progress:
        return Progress(stage, share, self.seconds, self.history, self.waited, self.most_epochs)


def most_epochs(config: WorldConfig, epoch_steps: int) -> int | None:
    """The lower of both caps, of epochs and of gradient steps; at least one epoch."""
    caps = [] if config.max_epochs is None else [config.max_epochs]
    if config.max_steps is not None:
        caps.append(max(config.max_steps // epoch_steps, 1))
    return min(caps, default=None)


def _train_pool(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    scaler: Scaler,
    pauses: "_Pauses",
) -> State:
    """Epochs until no member has improved for `patience` of them, or the cap is reached."""
    training_rows, validation_rows = split_rows(dataset.world_rows, config, seed)
    validation = Transitions.copy(dataset, validation_rows)
    step_flops = config.pool * training_flops(*member_sizes(dataset.task), config)
    epochs = Epochs(
        dataset,
        training_rows,
        batch=config.batch,
        batches_per_call=max(int(FLOPS_PER_CALL / step_flops), 1),
        seed=seed,
    )
    cap = most_epochs(config, epochs.steps)
    recipe = Recipe.of(dataset.task, config, None if cap is None else cap * epochs.steps)
    keys = member_keys(config.pool, seed)
    learner, best = initialise(keys, recipe)
    state = pauses.resume(learner, best, recipe.layout, cap)
    del learner, best  # spread out, they would be held twice

    while not state.ended(config):
        for share in epochs.shares(state.epoch, state.shares):
            # One call in flight: where calls do not wait, the next chunk is read while it runs.
            jax.block_until_ready(state.lanes)
            shuffles = epoch_shuffles(keys, state.epoch, share.chunk)
            state.lanes = train(state.lanes, shuffles, share, scaler, recipe)
            state.shares += 1
            pauses.pause(state, "training", state.shares / len(epochs))
        members = joined([lane.result for lane in state.lanes])
        score = validate(members, validation, scaler, recipe)
        state.best, improved = keep_best(state.best, members, score, config)
        state.end_epoch(np.asarray(score), np.asarray(improved))
        pauses.pause(state, "training", 0.0)
    return state


class _Pauses:
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

    def resume(self, learner: Learner, best: Snapshots, layout: Layout, cap: int | None) -> State:
        """The state to train from: that of the last checkpoint, or else the fresh pool."""

        def use(checkpoint: Checkpoint) -> tuple[Learner, Snapshots, dict[str, Any]]:
            note = dict(checkpoint.note)
            check_identity(checkpoint.path, note.pop("identity"), self._fit)
            slices = checkpoint.slices()
            return fill(learner, next(slices)), fill(best, next(slices)), note

        progress: dict[str, Any] = {}
        with _as_world_errors():
            resumed = None if self._checkpoints is None else self._checkpoints.resume(use)
        if resumed is not None:
            learner, best, progress = resumed
            progress["history"] = [EpochRecord(*record) for record in progress["history"]]
        lanes, best = spread(learner, layout), jax.device_put(best, layout.sharding)
        return State(lanes, best, cap, **progress)

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
        if self._checkpoints is not None and (stop or stage == "training"):
            name = f"{state.epoch:07d}-{state.shares:07d}"
            with _as_world_errors():
                self._checkpoints.pause(name, lambda: self._snapshot(state), stop=stop)
        if stop:
            raise Stopped(stop)

    def _snapshot(self, state: State) -> Snapshot:
        note = {
            "identity": self._fit,
            "history": state.history,
            "shares": state.shares,
            "waited": state.waited,
            "seconds": state.seconds,
        }
        return note, [arrays_of(joined(state.lanes)), arrays_of(state.best)]


@contextlib.contextmanager
def _as_world_errors() -> Iterator[None]:
    try:
        yield
    except RunError as error:
        raise WorldError(str(error)) from error


def uncertainty_over(
    world: World, dataset: Dataset, progress: Callable[[float], None] = lambda share: None
) -> Float[np.ndarray, " transitions"]:
    """U of every transition of the dataset."""
    rows, at_once = dataset.world_rows, choices.data_rows()
    measure = eqx.filter_jit(World.uncertainty)
    values = np.empty(len(rows), np.float32)
    for begin in range(0, len(rows), at_once):
        piece = rows[begin : begin + at_once]
        # Padded to one shape, so that one compilation serves all pieces.
        tape = dataset.take(np.pad(piece, (0, at_once - len(piece)), mode="edge"))
        measured = measure(world, jnp.asarray(tape.state), jnp.asarray(tape.action))
        values[begin : begin + len(piece)] = measured[: len(piece)]
        progress((begin + len(piece)) / len(rows))
    return values
