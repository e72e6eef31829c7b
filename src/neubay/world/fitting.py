"""From a dataset to a world: a trained pool, the best of it, and what is measured of them."""

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from neubay.config import WorldConfig, prior_of, updated
from neubay.data.dataset import Dataset
from neubay.devices import choices
from neubay.errors import WorldError, reason
from neubay.runs.cache import kept_at
from neubay.runs.checkpoints import CHECKPOINTS, Checkpoints, found
from neubay.runs.locks import locked
from neubay.runs.messages import Tell, log
from neubay.runs.provenance import provenance
from neubay.runs.signals import deferred_signals, stop_if_signalled
from neubay.world.fitted import (
    WORLD_FILE,
    FittedWorld,
    check_identity,
    identity,
    load_world,
    refuse_former,
    save,
)
from neubay.world.model import Scaler, World
from neubay.world.pool import CHECKPOINT_SECONDS, Course, Pauses, Show, State, train_pool
from neubay.world.termination import ended_by, learn_termination, tell_quality
from neubay.world.training import select
from neubay.world.transitions import fit_scaler

SHARDS, SHARDS_FILE = "shards", "shards.json"
"""In the directory of a world whose pool is trained in shards: all that is theirs, and the file
that says which they are."""
Elsewhere = Callable[[WorldConfig, Path, Show], State]
"""Trains a pool with these settings, resumed from a folder of its own, and gives its end."""


def settled(config: WorldConfig, dataset: Dataset) -> WorldConfig:
    """The configuration as far as it makes a difference to the world: with heads, or without; and
    with what follows from the data."""
    learned = ended_by(dataset, config) == "learned"
    termination = "learned" if learned else "auto"
    prior = prior_of(config, dataset.facts)
    return config.model_copy(update={"termination": termination, "prior": prior})


def world_directory(dataset: Dataset, config: WorldConfig, seed: int) -> Path:
    """Where the world of these data, settings and seed is, or will be: the same for every run,
    whatever the data was called when it was trained."""
    identity = [dataset.hash, settled(config, dataset).record(), seed]
    return kept_at("worlds", dataset.name, identity)


def fit(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    *,
    directory: Path | None = None,
    progress: Show | None = None,
    tell: Tell = log,
    elsewhere: Elsewhere | None = None,
) -> FittedWorld:
    """Train a pool of members on a dataset and keep the best N.

    With a `directory`, the fit is saved there: an interrupted one is resumed, a finished one is
    read, and another process that trains there is waited for. `progress` may raise
    KeyboardInterrupt to stop. `tell` is called with sentences for the user. After SIGINT or
    SIGTERM the fit is saved and `Stopped` is raised. `elsewhere` trains the pool in the place of
    this process, which then needs a `directory`.
    """
    show = progress or (lambda _: None)
    config = settled(config, dataset)
    if directory is None:
        assert elsewhere is None, "shards are kept in the directory of their world"
        fitted = _fit(dataset, config, seed, None, show)
    else:
        fitted = _kept(dataset, config, seed, directory, show, tell, elsewhere)
    tell_quality(fitted, tell)
    return fitted


def _kept(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    directory: Path,
    show: Show,
    tell: Tell,
    elsewhere: Elsewhere | None,
) -> FittedWorld:
    """The fit that is in a directory, or that is saved there."""
    wanted = identity(dataset.hash, config, seed)
    if os.path.isfile(directory / WORLD_FILE):
        return _found(directory, wanted)
    try:
        with deferred_signals(), locked(directory, waiting=tell):
            if os.path.isfile(directory / WORLD_FILE):  # by the process that was waited for
                return _found(directory, wanted)
            refuse_former(directory)
            _refuse_other_way(directory, in_shards=elsewhere is not None)
            checkpoints = Checkpoints(directory / CHECKPOINTS, every=CHECKPOINT_SECONDS, tell=tell)
            without = world_directory(dataset, updated(config, {"termination": "none"}), seed)
            if config.termination == "learned" and os.path.isfile(without / WORLD_FILE):
                fitted = with_termination(load_world(without), dataset, show)
            else:
                fitted = _fit(dataset, config, seed, checkpoints, show, elsewhere)
            save(fitted, directory)
            checkpoints.finish(kept=0)
            shutil.rmtree(directory / SHARDS, ignore_errors=True)
            stop_if_signalled()
            return fitted
    except OSError as error:
        raise WorldError(
            f"{directory}: cannot be written: {reason(error)}. What was saved before is "
            "untouched; give the same command to resume once that is mended"
        ) from error


def _found(directory: Path, wanted: dict[str, Any]) -> FittedWorld:
    fitted = load_world(directory)
    check_identity(directory, fitted.identity, wanted)
    return fitted


def _refuse_other_way(directory: Path, *, in_shards: bool) -> None:
    """A training that was begun in one process is not resumed in shards, nor the reverse."""
    if in_shards and found(directory / CHECKPOINTS):
        raise WorldError(
            f"{directory}: its training was begun in one process; leave --engine out to resume it, "
            f"or remove {directory / CHECKPOINTS} to train from the start"
        )
    if not in_shards and (directory / SHARDS / SHARDS_FILE).is_file():
        raise WorldError(
            f"{directory}: its training was begun by 'neubay world --engine ray'; give that again "
            f"to resume it, or remove {directory / SHARDS} to train from the start"
        )


def _fit(
    dataset: Dataset,
    config: WorldConfig,
    seed: int,
    checkpoints: Checkpoints | None,
    show: Show,
    elsewhere: Elsewhere | None = None,
) -> FittedWorld:
    scaler = _checked_scaler(dataset, config)
    with deferred_signals() as signalled:
        kept_here = checkpoints if elsewhere is None else None
        pauses = Pauses(kept_here, identity(dataset.hash, config, seed), show, signalled)
        if elsewhere is None:
            state = train_pool(dataset, config, seed, scaler, pauses)
        else:
            assert checkpoints is not None
            state = elsewhere(config, checkpoints.folder.with_name(SHARDS), show)
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
            course = Course(most_epochs=None, history=fitted.history, seconds=fitted.seconds)
            show(course.progress("termination", share))

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
