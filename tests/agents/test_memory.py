"""Memory: every way of running it gives the same numbers, and a reset is a new beginning."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from neubay.agents.memory import LRU, Complex, Encoder, NoMemory, linear_recurrence

ROWS, INTO, WIDTH, HIDDEN, LAYERS = 11, 5, 12, 7, 2
STARTS = [0, 6, 7]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """Its LayerNorms scale and shift as after some training."""
    rng = np.random.default_rng(0)
    fresh = Encoder(INTO, WIDTH, HIDDEN, LAYERS, rng=rng)

    def affine(encoder: Encoder) -> list[jax.Array]:
        norms = [encoder.norm, *(block.norm for block in encoder.blocks)]
        return [leaf for norm in norms for leaf in (norm.scale, norm.shift)]

    moved = [leaf + jnp.float32(0.3 * rng.normal(size=WIDTH)) for leaf in affine(fresh)]
    return eqx.tree_at(affine, fresh, moved)


@pytest.fixture(scope="module")
def tape() -> tuple[jax.Array, jax.Array]:
    inputs = jax.random.normal(jax.random.key(1), (ROWS, INTO))
    return inputs, jnp.zeros(ROWS, bool).at[jnp.array(STARTS)].set(True)


def by_steps(encoder: Encoder, inputs: jax.Array, start: jax.Array) -> jax.Array:
    """The encoder as a rollout runs it."""

    def step(memory: Any, row: Any) -> Any:
        return encoder.step(memory, *row)

    return jax.lax.scan(step, encoder.initial(), (inputs, start))[1]


def loss_and_gradients(run: Any, encoder: Encoder, inputs: jax.Array, start: jax.Array) -> Any:
    """A loss that weighs every output differently, and its gradients by weights and by inputs."""

    def loss(both: Any) -> tuple[jax.Array, jax.Array]:
        features = run(both[0], both[1], start)
        return (jnp.sin(features + jnp.arange(WIDTH, dtype=jnp.float32)) ** 2).sum(), features

    (_, features), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))((encoder, inputs))
    return features, *gradients


def assert_close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        scale = max(1.0, float(jnp.abs(y).max()))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)


@pytest.mark.slow
def test_sequential_associative_and_single_step_agree_with_their_gradients(
    encoder: Encoder, tape: tuple
) -> None:
    sequential = loss_and_gradients(lambda e, x, s: e(x, s, "sequential"), encoder, *tape)
    associative = loss_and_gradients(lambda e, x, s: e(x, s, "associative"), encoder, *tape)
    steps = loss_and_gradients(by_steps, encoder, *tape)  # differentiated by JAX, not by hand
    assert_close(associative, sequential)
    assert_close(sequential, steps)


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["sequential", "associative"])
def test_a_tape_with_resets_is_its_episodes_run_apart(
    encoder: Encoder, tape: tuple, scan: str
) -> None:
    inputs, start = tape
    bounds = list(zip(STARTS, [*STARTS[1:], ROWS], strict=True))

    def apart(encoder: Encoder, inputs: jax.Array, start: jax.Array) -> jax.Array:
        nowhere = jnp.zeros(ROWS, bool)  # not even a start at row 0: the memory is fresh anyway
        return jnp.concatenate([encoder(inputs[a:b], nowhere[a:b]) for a, b in bounds])

    together = loss_and_gradients(lambda e, x, s: e(x, s, scan), encoder, inputs, start)
    assert_close(together, loss_and_gradients(apart, encoder, inputs, start))


@pytest.mark.slow
def test_the_encoder_is_its_formula_in_complex_double_precision(
    encoder: Encoder, tape: tuple
) -> None:
    wide: Any = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), encoder)

    def norm(layer: Any, x: np.ndarray) -> np.ndarray:
        return layer.scale * (x - x.mean()) / np.sqrt(x.var() + 1e-5) + layer.shift

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    memory = np.zeros((LAYERS, HIDDEN), np.complex128)
    expected = []
    for row, start in zip(*(np.asarray(part) for part in tape), strict=True):
        x = norm(wide.norm, row @ wide.project.weight + wide.project.bias)
        x = np.where(x > 0, x, 0.01 * x)
        for layer, block in enumerate(wide.blocks):
            lru, z = block.lru, norm(block.norm, x)
            decay = np.exp(-np.exp(lru.nu_log) + 1j * np.exp(lru.theta_log))
            drive = np.exp(lru.gamma_log) * (z @ (lru.b.real + 1j * lru.b.imag))
            memory[layer] = drive if start else decay * memory[layer] + drive
            y = (memory[layer] @ (lru.c.real + 1j * lru.c.imag)).real + lru.d * z
            gated = gelu(y) @ block.gate.weight + block.gate.bias
            x = x + gated[:WIDTH] / (1 + np.exp(-gated[WIDTH:]))
        expected.append(x)
    np.testing.assert_allclose(encoder(*tape), np.stack(expected), atol=2e-5)


@pytest.mark.slow
def test_the_lru_is_that_of_memax(tape: tuple) -> None:
    from memax.equinox.semigroups import lru as oracle

    inputs, start = tape
    ours = LRU(INTO, INTO, rng=np.random.default_rng(2))  # theirs checks for equal sizes
    with jax.numpy_dtype_promotion("standard"):  # memax mixes types
        theirs = oracle.LRU(recurrent_size=INTO, hidden_size=INTO, key=jax.random.key(0))
    theirs = eqx.tree_at(
        lambda m: (m.nu_log, m.theta_log, m.gamma_log, m.B_re, m.B_im, m.C_re, m.C_im, m.D),
        theirs,
        (
            *(ours.nu_log, ours.theta_log, ours.gamma_log),
            *(part.T for part in (*ours.b, *ours.c)),
            ours.d,
        ),
    )
    nothing = Complex(jnp.zeros(INTO), jnp.zeros(INTO))

    @jax.jit
    def both() -> tuple[jax.Array, jax.Array]:
        _, y = ours(inputs, lambda *pair: linear_recurrence(*pair, start, nothing, "sequential"))
        with jax.numpy_dtype_promotion("standard"):
            return y, theirs(theirs.initialize_carry(), (inputs, start))[1]

    y, expected = both()
    np.testing.assert_allclose(y, expected, atol=1e-5)


halves = hnp.arrays(np.float32, (2, 9, 3), elements=st.floats(-2, 2, width=32))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(drive=halves, starts=hnp.arrays(bool, 9), initial=halves)
def test_the_recurrence_is_its_definition_whatever_the_resets(
    drive: np.ndarray, starts: np.ndarray, initial: np.ndarray
) -> None:
    decay = np.array([0.9, 0.5 - 0.3j, -0.2 + 0.7j])
    memory = initial[0, 0] + 1j * initial[1, 0].astype(np.complex128)
    expected = []
    for x, start in zip(drive[0] + 1j * drive[1], starts, strict=True):
        memory = x if start else decay * memory + x
        expected.append(memory)
    for scan in ("sequential", "associative"):
        found = recurrence(
            Complex(*jnp.float32([decay.real, decay.imag])),
            Complex(*jnp.asarray(drive)),
            jnp.asarray(starts),
            Complex(*jnp.asarray(initial[:, 0])),
            scan,
        )
        np.testing.assert_allclose(jax.lax.complex(*found), expected, atol=1e-5)


recurrence = jax.jit(linear_recurrence, static_argnums=4)


@pytest.mark.parametrize("scan", ["sequential", "associative"])
def test_nothing_crosses_a_reset_not_even_infinity(scan: str) -> None:
    decay = Complex(jnp.array([0.9]), jnp.array([0.1]))
    nothing = Complex(jnp.zeros(1), jnp.zeros(1))
    start = jnp.array([True, False, True, False])

    def later(real: jax.Array) -> jax.Array:
        drive = Complex(real[:, None], jnp.ones((4, 1)))
        memory = linear_recurrence(decay, drive, start, nothing, scan)
        return memory.real[2:].sum() + memory.imag[2:].sum()

    drive = jnp.array([1.0, jnp.inf, 1.0, 1.0])
    value, gradient = jax.jit(jax.value_and_grad(later))(drive)
    assert jnp.isfinite(value)
    assert gradient[:2].tolist() == [0, 0]
    assert (gradient[2:] > 0).all()


@pytest.mark.slow
def test_recall_is_the_memory_of_having_lived_through_the_history(encoder: Encoder) -> None:
    rows, histories = 150, 4  # more than two blocks of rows
    inputs = jax.random.normal(jax.random.key(3), (rows, histories, INTO))
    start = jnp.zeros((rows, histories), bool).at[0].set(True)
    length = jnp.array([0, 1, 64, 131])
    lived = encoder.initial(histories)
    step = eqx.filter_jit(encoder.step)
    remembered = lived
    for t in range(int(length.max())):
        lived, _ = step(lived, inputs[t], start[t])
        remembered = jax.tree.map(
            lambda now, old, t=t: jnp.where((length == t + 1)[:, None], now, old), lived, remembered
        )
    beyond = jnp.arange(rows)[:, None, None] >= length[:, None]
    padded = jnp.where(beyond, jnp.nan, inputs)  # what lies beyond a history is not looked at
    recall = eqx.filter_jit(encoder.recall)
    assert_close(recall(padded, start, length), remembered)
    assert not any(leaf.any() for leaf in jax.tree.leaves(recall(inputs, start, 0 * length)))


def test_memory_starts_on_the_published_ring() -> None:
    lru = LRU(16, 20_000, rng=np.random.default_rng(4))
    radius = np.exp(-np.exp(np.asarray(lru.nu_log, np.float64)))
    phase = np.exp(np.asarray(lru.theta_log))
    assert radius.min() > 0 and radius.max() <= 0.9 + 1e-6
    share = [(radius < r).mean() for r in (0.3, 0.6)]  # uniform in area: the share grows as r^2
    np.testing.assert_allclose(share, [(0.3 / 0.9) ** 2, (0.6 / 0.9) ** 2], atol=0.015)
    np.testing.assert_allclose(np.quantile(phase, [0.25, 0.75]) / np.pi, [0.5, 1.5], atol=0.03)
    np.testing.assert_allclose(np.exp(lru.gamma_log), np.sqrt(1 - radius**2), atol=1e-5)
    for half in lru.b:
        np.testing.assert_allclose(half.std(), 1 / np.sqrt(2 * 16), rtol=0.02)
    for half in lru.c:
        np.testing.assert_allclose(half.std(), 1 / np.sqrt(20_000), rtol=0.02)
    assert 0.4 < lru.d.std() < 2


def test_no_memory_sees_the_state_alone() -> None:
    encoder = NoMemory(3)
    inputs = jax.random.normal(jax.random.key(5), (ROWS, INTO))
    start = jnp.zeros(ROWS, bool)
    assert (encoder(inputs, start) == inputs[:, :3]).all()
    memory, features = encoder.step(encoder.initial(ROWS), inputs, start)
    assert (features == inputs[:, :3]).all()
    assert memory == encoder.initial(ROWS) == ()
    assert not jax.tree.leaves(encoder)


@pytest.mark.slow
def test_a_gated_memory_begins_as_the_state_alone_and_adds_to_it(tape: tuple) -> None:
    inputs, start = tape
    states = 3
    plain = Encoder(INTO, WIDTH, HIDDEN, 1, rng=np.random.default_rng(0))
    encoder = Encoder(INTO, WIDTH, HIDDEN, 1, rng=np.random.default_rng(0), gated_states=states)
    features = encoder(inputs, start)
    assert features.shape == (ROWS, encoder.width) == (ROWS, states + WIDTH)
    assert (features[:, :states] == inputs[:, :states]).all() and not features[:, states:].any()
    gate = jnp.linspace(-1, 1, WIDTH)
    opened = eqx.tree_at(lambda e: e.gate, encoder, gate)
    np.testing.assert_allclose(
        opened(inputs, start)[:, states:], gate * plain(inputs, start), atol=1e-6
    )
    d_gate = jax.grad(lambda e: e(inputs, start)[:, states:].sum())(encoder).gate
    assert (d_gate != 0).all()  # so that it opens where that helps
