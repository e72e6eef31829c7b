"""Layers: each is what its textbook form says, and so is its gradient."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from neubay.agents.layers import Linear, activate, layer_norm, matmul


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
    x = jax.random.normal(jax.random.key(8), (4, 5))
    assert_close(activate(linear.centred()(x)), jax.nn.leaky_relu(layer_norm(linear(x))))
    assert_close(layer_norm(x), jax.nn.standardize(x, epsilon=1e-5))
