"""The agent: its fused update against a plain restatement, and problems whose answer is known."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.interpreters import partial_eval
from scipy import stats

from helpers.optimisers import copy_of, first_moments, steps_made, with_rates_at
from helpers.tapes import concatenate
from neubay.agents.layers import Standardiser
from neubay.agents.learning import (
    descend,
    init_optimiser,
    mixture_weights,
    network_optimiser,
    transition_kinds,
)
from neubay.agents.networks import Histories, TanhGaussian, observe
from neubay.agents.redq import Agent, AgentState, update_flops
from neubay.config import AgentConfig
from neubay.tape import AgentInput, Tape, agent_input, episodes

S, A = 3, 2
# Rates at which the critic moves enough in one step to be told from the one before.
TINY = AgentConfig(
    width=8,
    memory_size=4,
    memory_layers=1,
    heads=3,
    clip_norm=1e6,
    kappa=0.3,
    encoder_lr=1e-3,
    head_lr=1e-2,
)
SAC = TINY.model_copy(update={"huber": 0.4, "heads": 2, "kappa": 0.0, "head_depth": 1})


def episode(rng: np.random.Generator, steps: int, real: int, terminal: bool = False) -> Tape:
    """Random states and actions; the first `real` steps are data, the others imagined."""
    rows = steps + 1
    last = np.arange(rows) == steps
    return Tape(
        state=rng.normal(size=(rows, S)).astype(np.float32),
        action=np.where(last[:, None], 0, np.tanh(rng.normal(size=(rows, A)))).astype(np.float32),
        reward=np.where(last, 0, rng.normal(size=rows)).astype(np.float32),
        terminated=(np.arange(rows) == steps - 1) & terminal,
        start=np.arange(rows) == 0,
        real=np.arange(rows) < real,
    )


@pytest.fixture(scope="module")
def tape() -> Tape:
    """A real episode that ends in a terminal, a mixed one that is truncated, an imagined one."""
    rng = np.random.default_rng(0)
    return concatenate([episode(rng, 4, 4, True), episode(rng, 6, 3), episode(rng, 3, 0)])


def stacked(*tapes: Tape) -> Tape:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *tapes)


def fresh(config: AgentConfig, seed: int = 0) -> tuple[Agent, AgentState]:
    agent = Agent(S, A, config)
    return agent, agent.init(jax.random.key(seed))


def updated(agent: Agent, state: AgentState, *tapes: Tape) -> tuple[AgentState, dict]:
    """An update that leaves the state it was given to the test."""
    kept = copy_of(state)
    state, metrics = agent.update(kept, stacked(*tapes))
    return state, {name: float(value) for name, value in metrics.items()}


def gradients(state: AgentState) -> tuple[Any, Any]:
    """The gradients of the first update, read off Adam's first moments."""
    moments = [first_moments(each) for each in (state.actor_optimiser, state.critic_optimiser)]
    # Here and below in NumPy, as JAX would compile every operation for every shape.
    return tuple(jax.tree.map(lambda moment: np.asarray(moment) / np.float32(0.1), moments))


def norm(tree: Any) -> float:
    return float(np.sqrt(sum((np.abs(leaf) ** 2).sum() for leaf in jax.tree.leaves(tree))))


def assert_trees_close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=tolerance)


# --- The tanh-Gaussian ---------------------------------------------------------------------------


def test_log_probability_is_that_of_the_transformed_normal() -> None:
    rng = np.random.default_rng(0)
    mean, log_sigma, noise = rng.normal(size=(3, 50, A))
    policy = TanhGaussian(jnp.float32(mean), jnp.float32(log_sigma))
    action, log_prob = policy.sample(jnp.float32(noise))
    u = mean + np.exp(log_sigma) * noise
    density = stats.norm.logpdf(u, mean, np.exp(log_sigma)) - np.log(1 - np.tanh(u) ** 2)
    np.testing.assert_allclose(action, np.tanh(u), atol=1e-5)
    np.testing.assert_allclose(log_prob, density.sum(axis=-1), atol=2e-4)
    np.testing.assert_allclose(policy.log_prob(jnp.float32(u)), log_prob, atol=2e-4)


def test_the_density_of_actions_integrates_to_one() -> None:
    actions = np.linspace(-1, 1, 20_003)[1:-1]
    column = jnp.float32(np.arctanh(actions))[:, None]
    policy = TanhGaussian(jnp.full_like(column, 0.4), jnp.full_like(column, -0.5))
    assert np.trapezoid(np.exp(policy.log_prob(column)), actions) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("mean", [-40.0, 40.0])
@pytest.mark.parametrize("log_sigma", [-5.0, 2.0])
def test_log_probability_stays_finite_at_saturation(mean: float, log_sigma: float) -> None:
    def loss(parameters: tuple) -> tuple:
        action, log_prob = TanhGaussian(*parameters).sample(jnp.array([[1.3, -0.7]]))
        return log_prob.sum() + action.sum(), log_prob

    parameters = jnp.full((1, A), mean), jnp.full((1, A), log_sigma)
    (_, log_prob), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
    assert jnp.isfinite(log_prob).all()
    assert all(jnp.isfinite(part).all() for part in gradient)


# --- The update against a plain restatement ------------------------------------------------------


def encode(encoder: Any, observed: jax.Array) -> jax.Array:
    """One episode through an encoder: h_t is the sum of lambda^(t - s) drive_s over s <= t."""

    def normed(layer: Any, x: jax.Array) -> jax.Array:
        return layer.scale * jax.nn.standardize(x, epsilon=1e-5) + layer.shift

    age = jnp.arange(len(observed))[:, None, None] - jnp.arange(len(observed))[:, None]
    x = jax.nn.leaky_relu(
        normed(encoder.norm, observed @ encoder.project.weight + encoder.project.bias)
    )
    for block in encoder.blocks:
        lru, z = block.lru, normed(block.norm, x)
        log_decay = lax.complex(-jnp.exp(lru.nu_log), jnp.exp(lru.theta_log))
        gamma = jnp.exp(lru.gamma_log)
        drive = lax.complex(gamma * (z @ lru.b.real), gamma * (z @ lru.b.imag))
        decay = jnp.exp(jnp.maximum(age, 0).astype(jnp.complex64) * log_decay)
        kernel = jnp.where(age >= 0, decay, 0)
        y = ((kernel * drive).sum(axis=1) @ lax.complex(*lru.c)).real + lru.d * z
        value, gate = jnp.split(jax.nn.gelu(y) @ block.gate.weight + block.gate.bias, 2, axis=-1)
        x = x + value * jax.nn.sigmoid(gate)
    return x


def q_values(heads: Any, features: jax.Array, action: jax.Array) -> jax.Array:
    """(heads, rows): every head on features and action side by side."""
    pairs = jnp.concatenate([features, action], axis=-1)
    return jax.vmap(lambda head: head(pairs)[:, 0])(heads)


def plain_losses(
    config: AgentConfig, state: AgentState, tape: Tape, actor: Any, critic: Any, judge: Any
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """L_critic, L_actor, L_alpha and Q: one episode after the other, nothing shared. The actor's
    actions are judged by the critic `judge`."""
    _, noise_key, subset_key = jax.random.split(state.key, 3)
    noise = jax.random.normal(noise_key, tape.action.shape)
    subset = jnp.argsort(-jax.random.uniform(subset_key, (config.heads,)))[: config.target_heads]
    alpha = jnp.exp(state.log_alpha)
    rows, values, first = [], [], 0
    for part in episodes(tape):
        observed = jnp.asarray(observe(agent_input(part)))
        mean, log_sigma = jnp.split(actor.head(encode(actor.encoder, observed)), 2, axis=-1)
        policy = TanhGaussian(mean, jnp.clip(log_sigma, -5, 2))
        action, log_prob = policy.sample(noise[first : first + len(part.reward)])
        first += len(part.reward)
        q = q_values(critic.head, encode(critic.encoder, observed), jnp.asarray(part.action))
        values.append(q.mean(axis=0))
        q_policy = q_values(judge.head, encode(judge.encoder, observed), action)
        target_features = encode(state.target.encoder, observed)
        q_next = q_values(state.target.head, target_features, action)[subset].min(axis=0)
        next_value = lax.stop_gradient(q_next - alpha * log_prob)[1:]
        target = (part.reward + config.gamma * ~part.terminated * jnp.append(next_value, 0.0))[:-1]
        error = jnp.abs(q[:, :-1] - target)
        linear = config.huber * (error - 0.5 * config.huber)
        critic_rows = jnp.where(error < config.huber, 0.5 * error**2, linear).mean(axis=0)
        actor_rows = alpha * log_prob - q_policy.mean(axis=0)
        alpha_rows = -alpha * (log_prob + config.target_entropy * A)
        rows.append(jnp.stack([critic_rows, actor_rows[:-1], alpha_rows[:-1]]))
    losses, real = jnp.concatenate(rows, axis=1), np.delete(tape.real, [4, 11, 15])
    critic_loss, actor_loss, alpha_loss = config.kappa * losses[:, real].mean(axis=1) + (
        1 - config.kappa
    ) * losses[:, ~real].mean(1)
    return critic_loss, actor_loss, alpha_loss, jnp.concatenate(values)


@pytest.mark.slow
@pytest.mark.parametrize("config", [TINY, SAC], ids=["redq", "sac"])
def test_the_fused_update_is_the_plain_statement_of_each_loss(
    config: AgentConfig, tape: Tape
) -> None:
    agent, state = fresh(config)
    other = agent.init(jax.random.key(1))
    state = state._replace(target=other.critic)  # so that the target is seen to be used
    after, metrics = updated(agent, state, tape)

    def plain(actor: Any, critic: Any) -> tuple:
        critic_loss, actor_loss, alpha_loss, q = plain_losses(
            config, state, tape, actor, critic, judge=after.critic
        )
        return critic_loss + actor_loss, ((critic_loss, actor_loss, alpha_loss), q)

    # It runs once: to optimise it would take longer than to run it.
    compiler = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    expected, (losses, q) = compiler(jax.grad(plain, (0, 1), has_aux=True))(
        state.actor, state.critic
    )
    for name, loss in zip(("critic_loss", "actor_loss", "alpha_loss"), losses, strict=True):
        assert metrics[name] == pytest.approx(float(loss), abs=1e-5)
    assert_trees_close(gradients(after), expected)
    assert_trees_close(optax.tree.get(after.alpha_optimiser, "mu") / 0.1, losses[2])
    assert metrics["nonfinite_gradients"] == 0
    norms = [metrics["actor_gradient_norm"], metrics["critic_gradient_norm"]]
    np.testing.assert_allclose(norms, [norm(part) for part in expected], rtol=1e-4)

    polyak = 0.005 * np.asarray(after.critic.head.out.weight)
    polyak += 0.995 * np.asarray(state.target.head.out.weight)
    np.testing.assert_allclose(after.target.head.out.weight, polyak, atol=1e-7)

    np.testing.assert_allclose(agent.values(state, stacked(tape))[0], q, atol=1e-5)
    acted = np.append(~tape.start[1:], False)
    assert metrics["q_real"] == pytest.approx(float(q[acted & tape.real].mean()), abs=1e-5)
    assert metrics["q_imagined"] == pytest.approx(float(q[acted & ~tape.real].mean()), abs=1e-5)
    assert [metrics["rows_real"], metrics["rows_imagined"]] == [7, 6]


@pytest.fixture(scope="module")
def tiny() -> tuple[Agent, AgentState]:
    return fresh(TINY)


@pytest.mark.slow
def test_many_updates_in_one_call_are_as_many_calls(tiny: tuple, tape: Tape) -> None:
    agent, state = tiny
    flipped = tape._replace(state=-tape.state)
    together, _ = updated(agent, state, tape, flipped)
    apart, _ = updated(agent, updated(agent, state, tape)[0], flipped)
    assert steps_made(together.actor_optimiser) == steps_made(together.critic_optimiser) == 2
    assert_trees_close(together._replace(key=0), apart._replace(key=0), 1e-6)
    assert (jax.random.key_data(together.key) == jax.random.key_data(apart.key)).all()


@pytest.mark.slow
def test_an_episodes_last_row_is_no_transition(tiny: tuple, tape: Tape) -> None:
    agent, state = tiny
    last = np.append(tape.start[1:], True)
    garbage = tape._replace(
        action=np.where(last[:, None], 0.9, tape.action).astype(np.float32),
        reward=np.where(last, 1e3, tape.reward).astype(np.float32),
        terminated=tape.terminated | last,
        real=tape.real ^ last,
    )
    assert_trees_close(
        gradients(updated(agent, state, garbage)[0]), gradients(updated(agent, state, tape)[0])
    )


@pytest.mark.slow
def test_only_a_terminal_stops_bootstrapping(tiny: tuple, tape: Tape) -> None:
    """What the state after a terminal is does not matter; that after a truncation does."""
    agent, state = tiny

    def gradient_with(row: int) -> Any:
        moved = tape.state.copy()
        moved[row] += 1.0
        after, _ = updated(agent, state, tape._replace(state=moved))
        return gradients(after)[1].head

    after_terminal, after_truncation = 4, 11  # last rows of the first and of the second episode
    same, _ = updated(agent, state, tape)
    baseline = gradients(same)[1].head
    assert_trees_close(gradient_with(after_terminal), baseline, 1e-7)
    change = jax.tree.map(np.subtract, gradient_with(after_truncation), baseline)
    assert norm(change) > 1e-4 * norm(baseline)


@pytest.mark.slow
def test_kappa_0_is_deaf_to_real_rows_and_hears_the_imagined_ones(tape: Tape) -> None:
    agent, state = fresh(SAC)
    rows = np.arange(len(tape.reward))

    def gradients_with(changed: np.ndarray) -> Any:
        reward = np.where(changed, 10, tape.reward).astype(np.float32)
        return gradients(updated(agent, state, tape._replace(reward=reward))[0])

    plain = gradients(updated(agent, state, tape)[0])
    assert_trees_close(gradients_with(rows < 4), plain, 0)  # the first episode is real
    with pytest.raises(AssertionError):
        assert_trees_close(gradients_with(rows == 13), plain)  # the last one is imagined


def test_mixture_weights_are_means_over_the_transitions_of_each_kind(tape: Tape) -> None:
    kinds = transition_kinds(tape)
    acted = np.append(~tape.start[1:], False)
    for kappa in (0.0, 0.3, 1.0):
        weights = np.asarray(mixture_weights(kinds, kappa))
        assert not weights[~acted].any()
        np.testing.assert_allclose(weights[acted & tape.real], kappa / 7, rtol=1e-6)
        np.testing.assert_allclose(weights[acted & ~tape.real], (1 - kappa) / 6, rtol=1e-6)


@pytest.mark.slow
def test_a_tape_of_one_kind_has_no_term_of_the_other(tiny: tuple) -> None:
    agent, state = tiny
    rng = np.random.default_rng(1)
    tape = concatenate([episode(rng, 7, 0), episode(rng, 7, 0)])
    _, metrics = updated(agent, state, tape)
    everything_real = tape._replace(real=np.ones_like(tape.real))
    _, as_real = updated(agent, state, everything_real)
    assert metrics["critic_loss"] / 0.7 == pytest.approx(as_real["critic_loss"] / 0.3, rel=1e-4)
    assert np.isnan(metrics["q_real"]) and np.isfinite(metrics["q_imagined"])


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted(
    tiny: tuple, tape: Tape
) -> None:
    agent, state = tiny
    broken = tape._replace(reward=np.where(np.arange(len(tape.reward)) == 1, np.nan, tape.reward))
    after, metrics = updated(agent, state, broken)
    assert metrics["nonfinite_gradients"] == 2
    assert_trees_close((after.actor, after.critic), (state.actor, state.critic), 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after._replace(key=0)))


@pytest.mark.slow
def test_encoder_and_head_are_clipped_each_by_its_own_norm(tiny: tuple) -> None:
    _, state = tiny
    gradient = jax.tree.map(
        lambda leaf: jnp.asarray(np.full(leaf.shape, 5, leaf.dtype)), state.actor
    )
    small = jax.tree.map(lambda leaf: np.full(leaf.shape, 5e-3, leaf.dtype), gradient.head)
    gradient = eqx.tree_at(lambda actor: actor.head, gradient, jax.tree.map(jnp.asarray, small))
    encoder, head = (norm(part) for part in (gradient.encoder, gradient.head))
    config = TINY.model_copy(update={"clip_norm": 2.0})
    optimiser = network_optimiser(config, decay=True)
    _, after, health = jax.jit(descend, static_argnums=0)(
        optimiser, state.actor, gradient, init_optimiser(optimiser, state.actor)
    )
    assert encoder > 2 > head
    assert float(health.norm) == pytest.approx(np.hypot(encoder, head), rel=1e-4)  # as it was
    moments = first_moments(after)
    assert norm(moments.encoder) == pytest.approx(0.1 * 2, rel=1e-4)
    assert norm(moments.head) == pytest.approx(0.1 * head, rel=1e-4)


@pytest.mark.slow
def test_learning_rates_belong_to_parts_and_the_actors_alone_decay(tiny: tuple, tape: Tape) -> None:
    agent, state = tiny

    def largest_step(at: int) -> dict[str, float]:
        """Adam's first step moves every weight by its rate, or by nothing."""
        begun = state._replace(
            actor_optimiser=with_rates_at(state.actor_optimiser, at),
            critic_optimiser=with_rates_at(state.critic_optimiser, at),
        )
        after, _ = updated(agent, begun, tape)
        parts = {
            f"{name}_{part}": (getattr(getattr(old, name), part), getattr(getattr(new, name), part))
            for old, new in ((state, after),)
            for name in ("actor", "critic")
            for part in ("encoder", "head")
        }
        return {
            name: max(
                float(np.abs(np.asarray(a) - np.asarray(b)).max())
                for a, b in zip(*map(jax.tree.leaves, pair), strict=True)
            )
            for name, pair in parts.items()
        }

    config = agent.config
    for at, decay in ((0, 1.0), (config.steps // 2, 0.5), (config.steps, 0.0)):
        moved = largest_step(at)
        assert moved["actor_encoder"] == pytest.approx(decay * config.encoder_lr, rel=0.1, abs=1e-9)
        assert moved["actor_head"] == pytest.approx(decay * config.head_lr, rel=0.01, abs=1e-9)
        assert moved["critic_encoder"] == pytest.approx(config.encoder_lr, rel=0.1)
        assert moved["critic_head"] == pytest.approx(config.head_lr, rel=0.01)


@pytest.mark.slow
def test_alpha_rises_when_the_policy_is_too_sure_and_falls_when_it_is_not(
    tiny: tuple, tape: Tape
) -> None:
    agent, state = tiny

    def alpha_after(log_sigma: float) -> float:
        bias = state.actor.head.out.bias.at[A:].set(log_sigma)
        actor = eqx.tree_at(lambda actor: actor.head.out.bias, state.actor, bias)
        after, metrics = updated(agent, state._replace(actor=actor), tape)
        assert (metrics["entropy"] < agent.config.target_entropy * A) == (log_sigma < -2)
        return float(after.log_alpha)

    assert alpha_after(-4.0) > float(state.log_alpha) > alpha_after(-0.5)


@pytest.mark.slow
def test_a_unit_of_values_changes_units_and_nothing_else(tape: Tape) -> None:
    """Rewards and the entropy's price four times as high, in units four times as large: the same
    outputs of the same networks, and four times the values. Standardised, the rewards are the same
    inputs."""

    def begin(unit: float) -> tuple[Agent, AgentState]:
        changes = {"value_unit": unit, "alpha": unit * TINY.alpha, "standardise": True}
        agent = Agent(S, A, TINY.model_copy(update=changes))
        std = jnp.ones(S + A + 1).at[-1].set(unit)
        return agent, agent.init(jax.random.key(0), Standardiser(jnp.zeros(S + A + 1), std))

    (one, begun), (four, dearer) = begin(1.0), begin(4.0)
    after, metrics = updated(one, begun, tape)
    scaled, found = updated(four, dearer, tape._replace(reward=4 * tape.reward))
    (actor, critic), (scaled_actor, scaled_critic) = gradients(after), gradients(scaled)
    assert_trees_close(scaled_critic, critic)  # it learns in units
    assert_trees_close(scaled_actor, jax.tree.map(lambda leaf: 4 * np.asarray(leaf), actor))
    assert found["critic_loss"] == pytest.approx(metrics["critic_loss"], rel=1e-4)
    for name in ("actor_loss", "alpha_loss", "q_real", "q_imagined"):
        assert found[name] == pytest.approx(4 * metrics[name], rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(
        four.values(dearer, stacked(tape._replace(reward=4 * tape.reward))),
        4 * one.values(begun, stacked(tape)),
        atol=1e-5,
    )


@pytest.mark.slow
def test_windows_side_by_side_are_learnt_from_as_one_after_the_other(
    tiny: tuple, tape: Tape
) -> None:
    """Two windows give the losses and gradients that they give end to end on one tape; rows that
    are read for the memory's sake have no loss, and their successors have."""
    agent, state = tiny
    rng = np.random.default_rng(3)
    left, right = episode(rng, 5, 2), episode(rng, 5, 6)
    nothing = np.zeros(6, bool)
    read = np.arange(6) < 3
    pair = [left._replace(burn_in=nothing), right._replace(burn_in=read)]
    beside = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *pair)
    behind = concatenate(pair)

    def plain(tape: Tape) -> tuple[Any, dict[str, float]]:
        """With the same noise for the same rows, whatever their layout."""
        noise = jnp.asarray(np.random.default_rng(4).normal(size=(2, 6, A)), jnp.float32)
        laid = noise.swapaxes(0, 1) if tape.reward.ndim == 2 else noise.reshape(12, A)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.random, "normal", lambda key, shape: laid)
            after, metrics = jax.jit(agent.gradient_step)(state, tape)
        return gradients(after), {name: float(value) for name, value in metrics.items()}

    (found, metrics), (expected, other) = plain(beside), plain(behind)
    assert_trees_close(found, expected)
    for name in other:
        assert metrics[name] == pytest.approx(other[name], abs=1e-4), name
    assert [metrics["rows_real"], metrics["rows_imagined"]] == [2 + 2, 3]


def test_critic_values_start_near_zero() -> None:
    agent = Agent(S, A, TINY.model_copy(update={"width": 64, "heads": 10}))
    out = agent.init(jax.random.key(0)).critic.head.out
    assert not out.bias.any()
    assert float(out.weight.std()) == pytest.approx(0.1 / np.sqrt(3 * 64), rel=0.1)


@pytest.mark.slow
def test_updates_of_one_shape_compile_once(tiny: tuple, tape: Tape) -> None:
    agent, state = tiny
    state, _ = updated(agent, state, tape)
    before = Agent.update._cache_size()
    for _ in range(2):
        state, _ = updated(agent, state, tape)
    assert Agent.update._cache_size() == before


def dot_flops(jaxpr: Any) -> int:
    """Flops of the matrix products of a program, those in loops as often as they run."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracting, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = np.prod([left[axis] for axis in contracting])
            total += 2 * int(np.prod(equation.outvars[0].aval.shape) * inner)
        times = equation.params.get("length", 1)
        inside = [equation.params.get(name) for name in ("jaxpr", "call_jaxpr", "fun_jaxpr")]
        for program in inside:
            if program is not None:
                total += times * dot_flops(getattr(program, "jaxpr", program))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["lru", "gated", "none"])
def test_flops_are_those_of_the_program(memory: str) -> None:
    config = AgentConfig(width=64, memory_size=24, heads=3, head_depth=3, memory=memory)
    agent, rows = Agent(5, 2, config), 30
    state = agent.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    tape = stacked(episode(rng, rows - 1, 9))._replace(
        state=np.zeros((1, rows, 5), np.float32), action=np.zeros((1, rows, 2), np.float32)
    )
    program = jax.make_jaxpr(lambda state, tape: agent.update(state, tape))(state, tape).jaxpr
    used, _ = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    expected = update_flops(5, 2, config, rows)
    assert dot_flops(used) == pytest.approx(expected, rel=0.005)  # weighted sums are extra


# --- The policy ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_kept_is_an_average_that_changes_nothing_of_the_training(
    tape: Tape, tiny: tuple[Agent, AgentState]
) -> None:
    """Actor and critic learn and explore as they do without one; the average alone is kept."""
    plain = tiny[0]
    averaging = Agent(S, A, TINY.model_copy(update={"average_share": 0.5}))
    one, other, seen = copy_of(tiny[1]), averaging.init(jax.random.key(0)), []
    for _ in range(3):
        one, other = (
            agent.update(state, jax.tree.map(lambda leaf: leaf[None], tape))[0]
            for agent, state in ((plain, one), (averaging, other))
        )
        seen.append(copy_of(one.actor))
    for a, b in zip(
        jax.tree.leaves(other._replace(average=None)), jax.tree.leaves(one), strict=True
    ):
        assert a.dtype == b.dtype and (a == b).all()
    expected = jax.tree.map(lambda a, b, c: (a + 3 * b + 6 * c) / 10, *seen)  # t (t + 1) / 2
    kept = averaging.policy(other, deterministic=True).actor
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), kept, expected)
    jax.tree.map(np.testing.assert_array_equal, averaging.behaviour(other), plain.behaviour(one))
    assert not np.allclose(kept.head.out.weight, other.actor.head.out.weight, rtol=1e-4)


@pytest.mark.slow
def test_the_policy_in_a_rollout_is_the_actor_on_the_tape(tiny: tuple) -> None:
    agent, state = tiny
    tape = episode(np.random.default_rng(2), 5, 5)
    inputs = agent_input(tape)
    expected = jax.jit(lambda actor, seen: actor(Histories(*seen, 0)).mode())(
        state.actor, (observe(inputs), inputs.start)
    )
    histories: AgentInput = jax.tree.map(lambda leaf: np.stack([leaf, leaf], axis=1), inputs)
    policy = agent.policy(state, deterministic=True)
    recall, act = eqx.filter_jit(policy.recall), eqx.filter_jit(policy.act)
    keys = jax.random.split(jax.random.key(0), 2)
    for t in (0, 3):
        memory = recall(histories, jnp.array([t, t]))
        for row in range(t, 6):
            now = jax.tree.map(lambda leaf, row=row: leaf[row], histories)
            memory, action = act(memory, now, keys)
            np.testing.assert_allclose(action, np.asarray(expected)[[row, row]], atol=1e-5)


@pytest.mark.slow
def test_a_sample_depends_on_its_own_key_alone(tiny: tuple) -> None:
    agent, state = tiny
    policy = agent.policy(state, deterministic=False)
    act = eqx.filter_jit(policy.act)
    inputs = AgentInput(
        jnp.ones((3, S)), jnp.zeros((3, A)), jnp.zeros(3), jnp.array([True, True, True])
    )
    keys = jax.random.split(jax.random.key(0), 3)
    _, actions = act(policy.initial(3), inputs, keys)
    _, alone = act(policy.initial(1), jax.tree.map(lambda leaf: leaf[1:2], inputs), keys[1:2])
    np.testing.assert_allclose(actions[1:2], alone, atol=1e-6)
    assert len({round(float(action), 4) for action in actions[:, 0]}) == 3


# --- Problems whose answer is known --------------------------------------------------------------

PROBE = AgentConfig(
    width=16,
    memory_size=8,
    memory_layers=1,
    heads=2,
    encoder_lr=3e-3,
    head_lr=3e-3,
    gamma=0.5,
    polyak=0.05,
    alpha=1e-3,
    tune_alpha=False,
    kappa=1.0,
)
PROBE_ROWS, PROBE_BATCHES = 64, 100


def probe_tapes(make_episode: Any, seed: int = 0) -> Tape:
    """Tapes of whole episodes from `make_episode(rng) -> states, actions, rewards, terminal`."""
    rng = np.random.default_rng(seed)

    def one_tape() -> Tape:
        parts: list[Tape] = []
        while sum(len(part.reward) for part in parts) < PROBE_ROWS:
            states, actions, rewards, terminal = make_episode(rng)
            rows = len(states)
            parts.append(
                Tape(
                    state=np.float32(states)[:, None],
                    action=np.append(np.float32(actions), np.float32(0))[:, None],
                    reward=np.append(np.float32(rewards), np.float32(0)),
                    terminated=(np.arange(rows) == rows - 2) & terminal,
                    start=np.arange(rows) == 0,
                    real=np.ones(rows, bool),
                )
            )
        return jax.tree.map(lambda leaf: leaf[:PROBE_ROWS], concatenate(parts))

    return stacked(*(one_tape() for _ in range(PROBE_BATCHES)))


def learn(
    make_episode: Any, config: AgentConfig = PROBE, calls: int = 4
) -> tuple[Agent, AgentState]:
    agent = Agent(1, 1, config)
    state = agent.init(jax.random.key(0))
    for call in range(calls):
        state, _ = agent.update(state, probe_tapes(make_episode, call))
    return agent, state


def values_at(agent: Agent, state: AgentState, make_episode: Any, seed: int) -> tuple:
    """Q at the actions of fresh tapes, with the rows that are transitions and their states."""
    tapes = probe_tapes(make_episode, seed)
    acted = np.concatenate([~tapes.start[:, 1:], np.zeros_like(tapes.start[:, :1])], axis=1)
    return np.asarray(agent.values(state, tapes))[acted], tapes.state[acted][:, 0]


def actions_after(agent: Agent, state: AgentState, states: list[float]) -> float:
    """The deterministic action at the end of a history of states, actions and rewards zero."""
    policy = agent.policy(state, deterministic=True)
    act = eqx.filter_jit(policy.act)
    memory, keys = policy.initial(1), jax.random.split(jax.random.key(0), 1)
    for t, value in enumerate(states):
        inputs = AgentInput(
            jnp.full((1, 1), value), jnp.zeros((1, 1)), jnp.zeros(1), jnp.array([t == 0])
        )
        memory, action = act(memory, inputs, keys)
    return float(action[0, 0])


@pytest.mark.slow
def test_kappa_1_is_deaf_to_imagined_rows() -> None:
    agent = Agent(1, 1, PROBE)
    tapes = probe_tapes(cued)
    imagined = np.cumsum(tapes.start, axis=1) % 2 == 0  # every other episode

    def after(noise: float) -> AgentState:
        reward = np.where(imagined, noise, tapes.reward).astype(np.float32)
        state = agent.init(jax.random.key(0))
        return agent.update(state, tapes._replace(reward=reward, real=~imagined))[0]

    assert_trees_close(after(0.0)._replace(key=0), after(7.0)._replace(key=0), 0)


def random_actions(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.uniform(-1, 1, count)


@pytest.mark.slow
def test_constant_reward_is_worth_its_discounted_sum() -> None:
    def constant(rng: np.random.Generator) -> tuple:
        steps = 15
        return rng.normal(size=steps + 1), random_actions(rng, steps), np.ones(steps), False

    agent, state = learn(constant)
    assert float(state.log_alpha) == np.float32(np.log(PROBE.alpha))  # it is not tuned here
    q, _ = values_at(agent, state, constant, 99)
    np.testing.assert_allclose(q.mean(), 1 / (1 - PROBE.gamma), atol=0.1)
    assert np.abs(q - 2).mean() < 0.2


@pytest.mark.slow
def test_a_reward_one_step_later_is_discounted_once() -> None:
    def later(rng: np.random.Generator) -> tuple:
        cue = rng.choice([-1.0, 1.0])
        return [cue, 2 * cue, 0], random_actions(rng, 2), [0, cue], True

    q, states = values_at(*learn(later), later, 99)
    for cue in (-1.0, 1.0):
        assert q[states == 2 * cue].mean() == pytest.approx(cue, abs=0.1)
        assert q[states == cue].mean() == pytest.approx(0.5 * cue, abs=0.1)


@pytest.mark.slow
def test_the_policy_finds_the_better_action() -> None:
    def bandit(rng: np.random.Generator) -> tuple:
        side, action = rng.choice([-1.0, 1.0]), random_actions(rng, 1)
        return [side, 0], action, -4 * (action - 0.5 * side) ** 2, True

    agent, state = learn(bandit)
    for side in (-1.0, 1.0):
        assert actions_after(agent, state, [side]) == pytest.approx(0.5 * side, abs=0.15)


def cued(rng: np.random.Generator) -> tuple:
    """The cue is seen at t = 0 alone; the action at t = 3 is paid by it."""
    cue, actions = rng.choice([-1.0, 1.0]), random_actions(rng, 4)
    return [cue, 0, 0, 0, 0], actions, [0, 0, 0, cue * actions[-1]], True


@pytest.mark.slow
def test_memory_carries_a_cue_to_where_it_pays() -> None:
    agent, state = learn(cued, calls=8)
    assert actions_after(agent, state, [1.0, 0, 0, 0]) > 0.6
    assert actions_after(agent, state, [-1.0, 0, 0, 0]) < -0.6


@pytest.mark.slow
def test_without_memory_the_cue_is_lost() -> None:
    agent, state = learn(cued, PROBE.model_copy(update={"memory": "none"}), calls=1)
    assert actions_after(agent, state, [1.0, 0, 0, 0]) == pytest.approx(
        actions_after(agent, state, [-1.0, 0, 0, 0]), abs=1e-6
    )
    assert not jax.tree.leaves((state.actor.encoder, state.critic.encoder))


@pytest.mark.slow
def test_an_absorbing_terminal_is_worth_nothing_and_a_timeout_is_worth_the_rest() -> None:
    def ending(rng: np.random.Generator) -> tuple:
        terminal = rng.random() < 0.5
        state, steps = (1.0, 1) if terminal else (-1.0, 8)
        return np.full(steps + 1, state), random_actions(rng, steps), np.ones(steps), terminal

    q, states = values_at(*learn(ending), ending, 99)
    assert q[states == 1].mean() == pytest.approx(1, abs=0.1)
    assert q[states == -1].mean() == pytest.approx(2, abs=0.1)
