"""The optimiser against its formula written out in NumPy, in double precision."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from helpers.optimisers import steps_made
from neubay.agents.learning import (
    Average,
    alpha_optimiser,
    averaged,
    copied,
    descend,
    init_optimiser,
    kept,
    network_optimiser,
    warm_optimiser,
)
from neubay.config import AgentConfig

STEPS = 12
CONFIG = AgentConfig(
    encoder_lr=3e-3, head_lr=2e-2, alpha_lr=5e-3, clip_norm=2.0, steps=STEPS, kappa=0.5
)


class Parts(NamedTuple):
    encoder: dict
    head: dict


def random_parts(rng: np.random.Generator, scale: float) -> Parts:
    def draw(*shape: int) -> np.ndarray:
        return (scale * rng.normal(size=shape)).astype(np.float32)

    return Parts({"w": draw(4, 3), "b": draw(3)}, {"w": draw(2, 3, 5), "b": draw(5)})


def gradients() -> list[Parts]:
    """Small ones, ones that are clipped in one part or in both, one with a NaN and one whose norm
    overflows."""
    rng = np.random.default_rng(1)
    found = [random_parts(rng, scale) for scale in np.resize([0.01, 0.2, 30.0], STEPS + 3)]
    found[3] = found[3]._replace(head=found[2].head)
    found[9] = found[9]._replace(encoder=found[8].encoder)
    found[4].encoder["b"][1] = np.nan
    found[7].head["w"][0] = 1e30
    return found


class Adam:
    """Adam with clipping: what one leaf sees of it is `scale`, the same for all leaves."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values.astype(np.float64)
        self.mu, self.nu, self.count = np.zeros_like(self.values), np.zeros_like(self.values), 0

    def step(self, gradient: np.ndarray, rate: float) -> None:
        self.count += 1
        self.mu = 0.9 * self.mu + 0.1 * gradient
        self.nu = 0.999 * self.nu + 0.001 * gradient**2
        mean = self.mu / (1 - 0.9**self.count)
        square = self.nu / (1 - 0.999**self.count)
        self.values = self.values - rate * mean / (np.sqrt(square) + 1e-8)


@pytest.mark.parametrize("decay", [False, True])
def test_the_optimiser_is_its_formula(decay: bool) -> None:
    network = random_parts(np.random.default_rng(0), 1.0)
    rates = [CONFIG.encoder_lr] * 2 + [CONFIG.head_lr] * 2
    expected = [Adam(leaf) for leaf in jax.tree.leaves(network)]
    optimiser = network_optimiser(CONFIG, decay=decay)
    found, state = jax.tree.map(jnp.asarray, network), init_optimiser(optimiser, network)
    step = jax.jit(lambda *arguments: descend(optimiser, *arguments))
    for count, gradient in enumerate(gradients()):
        found, state, health = step(found, gradient, state)
        leaves = [leaf.astype(np.float64) for leaf in jax.tree.leaves(gradient)]
        norm = np.sqrt(sum((leaf**2).sum() for leaf in leaves))
        finite = norm < 1e19  # beyond, its square is no float32
        assert float(health.norm) == pytest.approx(norm if finite else 0, rel=1e-5)
        assert float(health.nonfinite) == (not finite)
        fall = 0.5 * (1 + np.cos(np.pi * min(count / STEPS, 1))) if decay else 1.0
        parts = [leaves[:2], leaves[:2], leaves[2:], leaves[2:]]  # encoder and head
        for adam, leaf, part, rate in zip(expected, leaves, parts, rates, strict=True):
            own = np.sqrt(sum((each**2).sum() for each in part))
            clipped = leaf * min(1, CONFIG.clip_norm / own) if finite else np.zeros_like(leaf)
            adam.step(clipped, rate * fall)
        for adam, leaf in zip(expected, jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(leaf, adam.values, rtol=1e-5, atol=1e-6)
    assert steps_made(state) == len(gradients())


@pytest.mark.parametrize(
    "optimiser",
    [
        network_optimiser(CONFIG, decay=False),
        network_optimiser(CONFIG, decay=True),
        warm_optimiser(CONFIG),
        alpha_optimiser(CONFIG),
    ],
    ids=["steady", "decaying", "warm", "alpha"],
)
def test_an_optimiser_begins_as_it_says_itself(optimiser: optax.GradientTransformation) -> None:
    network = random_parts(np.random.default_rng(0), 1.0)
    ours, its_own = init_optimiser(optimiser, network), jax.jit(optimiser.init)(network)
    assert jax.tree.structure(ours) == jax.tree.structure(its_own)
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(its_own), strict=True):
        assert found.aval == expected.aval
        np.testing.assert_array_equal(found, expected)


def test_a_copy_outlives_what_it_was_copied_from() -> None:
    network = jax.tree.map(jnp.asarray, random_parts(np.random.default_rng(0), 1.0))
    before = jax.tree.map(np.array, network)
    copy, overwrite = (
        copied(network),
        jax.jit(lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0),
    )
    overwrite(network)
    assert jax.tree.leaves(network)[0].is_deleted()
    jax.tree.map(np.testing.assert_array_equal, copy, before)
    overwrite(copy)
    assert jax.tree.leaves(copy)[0].is_deleted()


def test_alphas_optimiser_is_adam() -> None:
    expected, optimiser = Adam(np.float32(-1.0)), alpha_optimiser(CONFIG)
    found = jnp.float32(-1.0)
    state, step = init_optimiser(optimiser, found), jax.jit(descend, static_argnums=0)
    for gradient in (0.3, np.nan, -20.0, np.inf, 0.1):
        found, state, _ = step(optimiser, found, jnp.float32(gradient), state)
        expected.step(np.float64(gradient if np.isfinite(gradient) else 0), CONFIG.alpha_lr)
        assert float(found) == pytest.approx(float(expected.values), rel=1e-5)


def test_a_part_without_weights_is_no_hindrance() -> None:
    """As the encoder of the Markov agent."""
    network = Parts({}, {"w": jnp.ones(3)})
    optimiser = network_optimiser(CONFIG, decay=True)
    state, step = init_optimiser(optimiser, network), jax.jit(descend, static_argnums=0)
    after, _, _ = step(optimiser, network, network, state)
    np.testing.assert_allclose(after.head["w"], 1 - CONFIG.head_lr, rtol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
def test_the_average_is_of_about_the_last_share_of_the_steps(share: float) -> None:
    """Its weights, one for each step, are read off networks that have a one at that step alone."""
    steps = 50
    average = Average.begin(jnp.full(steps, 7.0), share)  # what was before step 1 is forgotten
    assert average is not None
    network, weights, ages = jnp.eye(steps), np.zeros(0), []
    for t in range(1, steps + 1):
        average = average.updated(network[t - 1], share)
        rate = min((2 / share - 1) / (t + 2 / share - 2), 1.0)
        weights = np.append(weights * (1 - rate), rate)
        np.testing.assert_allclose(average.network[:t], weights, rtol=1e-4, atol=1e-7)
        ages.append(float(np.arange(t)[::-1] @ weights))
    assert weights.sum() == pytest.approx(1) and (np.diff(weights) >= -1e-9).all()
    assert ages[-1] == pytest.approx(share * steps / 2, abs=1)  # as of their plain mean
    if share == 1:
        np.testing.assert_allclose(weights, 1 / steps)
    else:
        assert weights[-int(1.5 * share * steps) :].sum() > 0.8


def test_an_average_of_what_stays_is_what_stays() -> None:
    """To the last bit, over as many steps as are published."""
    network = {"constants": jnp.asarray([1e-20, np.pi, 3e30], jnp.float32)}
    average = Average.begin(network, 0.4)
    assert average is not None
    for steps in (0, 1, 40_000, 1_999_999):
        after = Average(average.network, jnp.int32(steps)).updated(network, 0.4)
        np.testing.assert_array_equal(after.network["constants"], network["constants"])
        assert int(after.steps) == steps + 1


def test_without_a_share_the_last_step_is_kept() -> None:
    last = jnp.ones(3)
    assert Average.begin(last, 0.0) is None
    assert averaged(None, last, 0.0) is None and kept(None, last) is last
