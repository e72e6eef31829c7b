"""`--preset paper` of the paper's 33 datasets: the published settings, and gradient steps at the
published size."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from neubay import agents, published
from neubay.agents import redq
from neubay.commands.options import NamedDataset, TaskFlags, TrainSettings, train_defaults
from neubay.config import AgentConfig, TrainConfig, preset
from neubay.data.dataset import Dataset
from neubay.experience import batch_shape
from neubay.replay import BatchShape, sample_data
from neubay.tape import Tape
from neubay.tasks import Task, get_task
from neubay.world.training import Recipe, initialise, member_keys

# Typed from the paper's tables of best settings and the sheet of facts: eta_phi, kappa, the cap of
# the world's epochs. Where every setting scored near zero, the defaults of the preset hold.
SETTINGS: dict[str, tuple[float, float, int | None]] = {
    "halfcheetah-random-v2": (3e-5, 0.8, 1200),
    "hopper-random-v2": (1e-5, 0.5, 1200),
    "walker2d-random-v2": (3e-5, 0.5, 1200),
    "halfcheetah-medium-replay-v2": (1e-5, 0.05, None),
    "hopper-medium-replay-v2": (3e-7, 0.5, None),
    "walker2d-medium-replay-v2": (1e-6, 0.5, None),
    "halfcheetah-medium-v2": (3e-5, 0.8, 1200),
    "hopper-medium-v2": (1e-6, 0.8, 1200),
    "walker2d-medium-v2": (3e-6, 0.5, 1200),
    "halfcheetah-medium-expert-v2": (3e-5, 0.8, 600),
    "hopper-medium-expert-v2": (3e-6, 0.5, 600),
    "walker2d-medium-expert-v2": (1e-6, 0.8, 600),
    "HalfCheetah-v3-Low": (1e-5, 0.8, 1200),
    "Hopper-v3-Low": (3e-6, 0.8, 1200),
    "Walker2d-v3-Low": (3e-7, 0.5, 1200),
    "HalfCheetah-v3-Medium": (3e-5, 0.5, 1200),
    "Hopper-v3-Medium": (3e-6, 0.5, 1200),
    "Walker2d-v3-Medium": (3e-7, 0.8, 1200),
    "HalfCheetah-v3-High": (3e-5, 0.5, 1200),
    "Hopper-v3-High": (3e-6, 0.5, 1200),
    "Walker2d-v3-High": (3e-7, 0.8, 1200),
    "pen-human-v1": (3e-5, 0.5, None),
    "pen-cloned-v1": (1e-5, 0.8, 2400),
    "door-human-v1": (3e-6, 0.5, None),
    "door-cloned-v1": (3e-6, 0.5, None),
    "hammer-human-v1": (3e-6, 0.5, None),
    "hammer-cloned-v1": (1e-5, 0.5, 1200),
    "antmaze-umaze-v2": (3e-6, 0.95, 1200),
    "antmaze-umaze-diverse-v2": (3e-6, 0.95, 1200),
    "antmaze-medium-play-v2": (1e-5, 0.95, 1200),
    "antmaze-medium-diverse-v2": (1e-6, 0.95, 1200),
    "antmaze-large-play-v2": (3e-6, 0.5, 1200),
    "antmaze-large-diverse-v2": (3e-6, 0.5, 1200),
}

# Typed likewise: what the datasets of a benchmark share.
LOCOMOTION: dict[str, Any] = {
    "world": {
        "width": 200,
        "depth": 4,
        "layer_norm": True,
        "learning_rate": 1e-3,
        "weight_decay": 5e-5,
        "batch": 256,
        "pool": 128,
        "members": 100,
        "max_steps": None,
        "patience": 5,
        "improvement": 0.01,
        "improvement_kind": "relative",
        "selection": "mse",
        "validation_fraction": 0.2,
        "validation_max": 1000,
        "quantifier": "disagreement",
    },
    "rollout": {
        "rollouts": 100,
        "zeta": 1.0,
        "penalty": 0.0,
        "horizon": None,
        "start": "any",
        "initial_share": 0.0,
    },
    "agent": {
        "memory_layers": 2,
        "memory_size": 128,
        "width": 256,
        "head_depth": 2,
        "heads": 10,
        "target_heads": 2,
        "head_lr": 1e-4,
        "alpha_lr": 1e-4,
        "alpha": 0.2,
        "target_entropy": -1.0,
        "clip_norm": 1000.0,
        "gamma": 0.99,
        "polyak": 0.005,
        "huber": 1.0,
        "steps": 2_000_000,
        "updates_per_row": 0.05,
        "buffer": 40_000_000,
        "tape": 2048,
        "memory": "lru",
        "standardise": False,
        "value_unit": 1.0,
        "window": None,
    },
    "evaluation": {"evaluations": 100, "episodes": 20},
}
SHARED: dict[str, dict[str, Any]] = {
    "d4rl_locomotion": LOCOMOTION,
    "neorl_locomotion": LOCOMOTION,
    "adroit": {
        **LOCOMOTION,
        "world": {**LOCOMOTION["world"], "width": 400, "depth": 5, "learning_rate": 3e-4},
        "agent": {
            **LOCOMOTION["agent"],
            "head_depth": 3,
            "alpha": 0.1,
            "clip_norm": 10_000.0,
            "tape": 1024,
        },
    },
    "antmaze": {
        **LOCOMOTION,
        "agent": {
            **LOCOMOTION["agent"],
            "alpha": 1e-5,
            "target_entropy": -10.0,
            "clip_norm": 1.0,
            "steps": 3_000_000,
            "buffer": 60_000_000,
        },
        "evaluation": {"evaluations": 100, "episodes": 100},
    },
}


def paper_config(name: str) -> TrainConfig:
    """As `neubay train NAME --preset paper` resolves it."""
    settings = TrainSettings(dataset=name, preset="paper")
    return train_defaults(settings, NamedDataset(name, TaskFlags()).published)


def task_of(name: str) -> Task:
    return get_task(published.datasets()[name].task)


def test_all_33_are_here() -> None:
    assert list(SETTINGS) == list(published.datasets()) and len(SETTINGS) == 33


@pytest.mark.parametrize("name", SETTINGS)
def test_the_preset_carries_the_published_settings(name: str) -> None:
    config = paper_config(name)
    assert (config.agent.encoder_lr, config.agent.kappa, config.world.max_epochs) == SETTINGS[name]
    assert config.agent.tune_alpha == (not name.lower().startswith("hopper"))
    values = config.model_dump()
    for section, expected in SHARED[published.datasets()[name].benchmark].items():
        assert {key: values[section][key] for key in expected} == expected


def test_the_page_of_settings_has_the_published_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)\.(\w+)` \| (\S+) \|", page, flags=re.MULTILINE)
    paper = preset("paper").model_dump()
    assert len(shown) > 10
    for section, name, value in shown:
        assert str(paper[section][name]) == value


@pytest.mark.parametrize("name", SETTINGS)
def test_the_world_has_the_published_size(name: str) -> None:
    task, config = task_of(name), paper_config(name)
    recipe = Recipe.of(task, config.world)
    learner, _ = jax.eval_shape(partial(initialise, recipe=recipe), member_keys(128, seed=0))
    width, depth = (400, 5) if "v1" in name else (200, 4)
    weights = [layer.weight.shape for layer in (*learner.members.linears, learner.members.head)]
    sizes = [task.state_size + task.actions.size, *[width] * depth, 2 * (task.state_size + 1)]
    assert weights == [(128, *layer) for layer in itertools.pairwise(sizes)]


# --- Gradient steps at the published size --------------------------------------------------------

STEPS = 2  # enough to see Adam's rates, clipping and the entropy's tuning at work


def structure(name: str) -> tuple[int, int, AgentConfig]:
    """All that decides the compiled program but the two numbers that differ between datasets."""
    task, config = task_of(name), paper_config(name).agent
    shared = config.model_copy(update={"encoder_lr": 0.0, "kappa": 0.0})
    return task.state_size, task.actions.size, shared


STRUCTURES: dict[tuple[int, int, AgentConfig], str] = {}
for _name in SETTINGS:
    STRUCTURES.setdefault(structure(_name), _name)
RATES = sorted({settings[:2] for settings in SETTINGS.values()})
SMALL = {"width": 8, "memory_size": 4, "heads": 2}


@pytest.fixture
def numbers_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of optimisers cannot hold settings that are arguments of a compiled program."""
    monkeypatch.setattr(redq, "network_optimiser", redq.network_optimiser.__wrapped__)
    monkeypatch.setattr(redq, "alpha_optimiser", redq.alpha_optimiser.__wrapped__)


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a machine that is busy with other things
@pytest.mark.usefixtures("numbers_as_arguments")
@pytest.mark.parametrize("name", STRUCTURES.values())
def test_gradient_steps_at_the_published_size(name: str) -> None:
    """Of all 33 datasets: sizes, tape, clipping, entropy and all other settings as published, on
    data of the right shape. There are 8 structures; within one, datasets differ in eta_phi and
    kappa alone, of which the next test has all."""
    task, config = task_of(name), paper_config(name)
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, structure(name)[2])
    check_steps(agent, made_up_tapes(task, batch_shape(task, config).rows), [SETTINGS[name][:2]])


@pytest.mark.slow
@pytest.mark.usefixtures("numbers_as_arguments")
def test_every_published_rate_and_kappa_in_small_networks() -> None:
    """All pairs of the 33 datasets. How far a rate moves a weight is no matter of the network's
    size, so one small program that has them as arguments shows it."""
    task = task_of("halfcheetah-random-v2")
    config = structure("halfcheetah-random-v2")[2].model_copy(update=SMALL)
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config)
    assert len(RATES) > 12
    check_steps(agent, made_up_tapes(task, 64), RATES)


def check_steps(agent: Any, tapes: Tape, rates: Sequence[tuple[float, float]]) -> None:
    """Gradient steps from the same beginning with each pair of eta_phi and kappa."""
    take_step, before = compiled_step(agent), agent.init(jax.random.key(0))
    for eta_phi, kappa in rates:
        numbers = {"encoder_lr": eta_phi, "kappa": kappa}
        after = before
        for step in range(STEPS):
            tape = jax.tree.map(lambda leaf, step=step: leaf[step], tapes)
            after, metrics = take_step(numbers, after, tape)
            assert all(np.isfinite(value) for value in metrics.values())
            assert not metrics["nonfinite_gradients"]
            used = float(metrics["rows_real"] + metrics["rows_imagined"])
            assert used == transitions(tapes)[step]
        counts = optax.tree.get_all_with_path(after.actor_optimiser, "count")
        assert counts and {int(count) for _, count in counts} == {STEPS}
        # Adam moves a weight by about its learning rate: both rates are where they belong.
        for network in ("actor", "critic"):
            old, new = getattr(before, network), getattr(after, network)
            assert 0.3 < largest_move(old.encoder, new.encoder) / (STEPS * eta_phi) < 3.2
            assert 0.3 < largest_move(old.head, new.head) / (STEPS * 1e-4) < 3.2
        tuned = float(after.log_alpha) != float(before.log_alpha)
        assert tuned == agent.config.tune_alpha
        assert float(before.log_alpha) == pytest.approx(math.log(agent.config.alpha))


def compiled_step(agent: Any) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A gradient step whose numbers are arguments."""

    @jax.jit
    def take_step(numbers: dict[str, float], state: Any, tape: Tape) -> Any:
        config = agent.config.model_copy(update=numbers)
        return dataclasses.replace(agent, config=config).gradient_step(state, tape)

    return take_step


def made_up_tapes(task: Task, rows: int) -> Tape:
    """Tapes of three made-up episodes, one of length T, whose second halves pass for imagined."""
    rng = np.random.default_rng(0)
    lengths = (task.horizon, task.horizon // 2, 7)
    steps = sum(lengths)
    states = rng.normal(size=(steps + 1, task.state_size)).astype(np.float32)
    dataset = Dataset.from_arrays(
        states[:-1],
        rng.uniform(-1, 1, (steps, task.actions.size)).astype(np.float32),
        rng.normal(size=steps).astype(np.float32),
        np.zeros(steps, bool),
        np.isin(np.arange(1, steps + 1), np.cumsum(lengths)),
        states[1:],
        task=task,
    )
    tapes = sample_data(dataset, rng, STEPS, BatchShape(rows))
    assert tapes.state.shape == (STEPS, rows, task.state_size)
    return tapes._replace(real=rng.random((STEPS, rows)) < 0.5)


def transitions(tapes: Tape) -> np.ndarray:
    """How many rows of each tape have a successor."""
    following = np.roll(np.asarray(tapes.start), -1, axis=1)
    following[:, -1] = True
    return (~following).sum(axis=1)


def largest_move(old: Any, new: Any) -> float:
    pairs = zip(*map(jax.tree.leaves, (old, new)), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
