"""Layers: each is what its textbook form says, and so is its gradient."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from neubay.agents.layers import LARGEST_INPUT, LayerNorm, Linear, Standardiser, matmul


def assert_close(a: object, b: object) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        scale = max(1.0, float(jnp.abs(y).max()))
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * scale)


def test_the_gradient_of_matmul_is_that_of_a_matmul() -> None:
    x = jax.random.normal(jax.random.key(6), (4, 6, 5))
    weight = jax.random.normal(jax.random.key(7), (5, 3))

    def gradients(multiply: Callable) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda both: jnp.sin(multiply(*both)).sum())((x, weight))

    assert_close(gradients(matmul), gradients(jnp.matmul))


def test_centring_the_weights_is_the_first_half_of_a_layer_norm() -> None:
    linear = Linear(5, 7, rng=np.random.default_rng(0))
    norm = trained_norm(7)
    x = jax.random.normal(jax.random.key(8), (4, 5))
    assert_close(norm.activate(linear.centred()(x)), jax.nn.leaky_relu(norm(linear(x))))
    assert_close(LayerNorm(5)(x), jax.nn.standardize(x, epsilon=1e-5))  # before training


def trained_norm(features: int) -> LayerNorm:
    rng = np.random.default_rng(1)
    scale, shift = jnp.float32(rng.normal(size=(2, features)))
    return eqx.tree_at(lambda n: (n.scale, n.shift), LayerNorm(features), (scale, shift))


def test_a_layer_norm_scales_and_shifts_what_it_normalised() -> None:
    norm = eqx.tree_at(
        lambda n: (n.scale, n.shift),
        LayerNorm(4),
        (jnp.array([1.0, 2.0, 0.0, -1.0]), jnp.array([0.0, 1.0, 5.0, 0.5])),
    )
    row = jnp.array([1.0, 3.0, 5.0, 7.0])  # mean 4, variance 5
    unit = np.array([-3, -1, 1, 3]) / np.sqrt(5 + 1e-5)
    expected = [unit[0], 2 * unit[1] + 1, 5, -unit[3] + 0.5]
    np.testing.assert_allclose(norm(row), expected, rtol=1e-5)


def test_scale_and_shift_have_gradients_of_their_own() -> None:
    """d/d shift of a weighted sum of outputs is the weights, d/d scale the weighted unit rows."""
    norm, weights = trained_norm(5), jnp.arange(1.0, 6.0)
    x = jax.random.normal(jax.random.key(9), (3, 5))
    gradient = jax.grad(lambda n: (n(x) @ weights).sum())(norm)
    unit = np.asarray(jax.nn.standardize(x, epsilon=1e-5))
    np.testing.assert_allclose(gradient.shift, 3 * weights, rtol=1e-5)
    np.testing.assert_allclose(gradient.scale, (unit * weights).sum(axis=0), atol=1e-5)


def test_inputs_are_standardised_by_hand() -> None:
    """A state, an action and the reward; before the first step there is no reward."""
    standardise = Standardiser(jnp.array([10.0, 0.0, -4.0]), jnp.array([5.0, 1.0, 2.0]))
    rows = jnp.array([[20.0, 0.0, 0.0], [0.0, 0.5, -8.0], [1e4, -0.5, -4.0]])
    found = standardise(rows, np.array([True, False, False]))
    expected = [[2, 0, 0], [-2, 0.5, -2], [LARGEST_INPUT, -0.5, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_constants_are_not_trained() -> None:
    standardise = Standardiser(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))
    x = jax.random.normal(jax.random.key(10), (3, 2))
    gradient = jax.grad(lambda s: (s(x, np.zeros(3, bool)) ** 2).sum())(standardise)
    assert not gradient.mean.any() and not gradient.std.any()
