"""The paper's Section 3: a two-armed bandit of which the data shows one arm only.

One task for the general code. The data are pulls of arm 0, and the world is a reward ensemble,
whose members agree on arm 0 and disagree on arm 1. Agents are trained in it with one uncertainty
penalty lambda each: lambda = 0 is the Bayesian agent, a large one the conservative agent. Each is
then evaluated in bandits with several values of p1, beside the exact answers of `theory.py`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from neubay import config, experiment, imagination, world
from neubay.config import Preset, TrainConfig
from neubay.data.collect import collect
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.imagination import HistoryPolicy, Rules
from neubay.runs import rundir, tracking
from neubay.runs.files import atomic_write_json, read_json
from neubay.runs.messages import Tell
from neubay.runs.provenance import provenance
from neubay.runs.signals import deferred_signals, stop_if_signalled
from neubay.runs.tracking import Tracker
from neubay.studies import theory
from neubay.studies.theory import Belief, Plan
from neubay.tape import AgentInput
from neubay.tasks import get_task, published_settings
from neubay.tasks.environments import Bandit
from neubay.world import FittedWorld, World

TEST_P1 = Bandit.TEST_P1
EPISODES = 200
"""Episodes per test bandit of the final evaluation; learning curves have the paper's 20."""


def collect_data(seed: int) -> Dataset:
    """The paper's data: 10 episodes of 100 pulls of arm 0, which pays with probability 1/2."""
    return collect(get_task("bandit"), _arm_zero, episodes=10, seed=seed, name="bandit")


def _arm_zero(
    memory: Any, inputs: AgentInput, rng: np.random.Generator
) -> tuple[Any, Float[np.ndarray, "episodes 2"]]:
    return memory, np.tile(np.array([1, 0], np.float32), (len(inputs.state), 1))


def settings(preset: Preset, seed: int, penalty: float) -> TrainConfig:
    """The preset's settings for the bandit with one lambda."""
    return config.resolve(
        published_settings(get_task("bandit"), None),
        preset,
        changes={"seed": seed, "rollout": {"penalty": penalty}},
    )


class Arms(NamedTuple):
    """What an ensemble predicts of the two arms."""

    means: Float[np.ndarray, "n 2"]
    """Each member's mean reward of each arm."""
    uncertainty: Float[np.ndarray, "2"]
    """U(0) and U(1), in standardised units."""


def view_arms(ensemble: World) -> Arms:
    """Every member's prediction for both arms."""
    return Arms(*map(np.asarray, _predict_arms(ensemble)))


@eqx.filter_jit
def _predict_arms(ensemble: World) -> tuple[Float[Array, "n 2"], Float[Array, "2"]]:
    state, action = jnp.zeros((2, 1)), jnp.eye(2)
    standardised = ensemble.predict(state, action).mean[:, :, -1]
    means = ensemble.scaler.reward_mean + standardised * ensemble.scaler.reward_std
    return means, ensemble.uncertainty(state, action)


# --- Playing -------------------------------------------------------------------------------------


class TrueBandits(eqx.Module):
    """Bernoulli bandits with the interface of a world, so that `imagine` plays a policy in them."""

    p0: Float[Array, ""]
    p1: Float[Array, " n"]

    @property
    def size(self) -> int:
        return self.p1.shape[0]

    def select(self, member: Int[Array, " k"]) -> "TrueBandits":
        return TrueBandits(self.p0, self.p1[member])

    def sample(
        self, state: Float[Array, "k 1"], action: Float[Array, "k 2"], keys: Key[Array, " k"]
    ) -> tuple[Float[Array, "k 1"], Float[Array, " k"]]:
        mean = action[:, 0] * self.p0 + action[:, 1] * self.p1
        paid = jax.vmap(jax.random.uniform)(keys) < mean
        return state, paid.astype(jnp.float32)

    def uncertainty(
        self, state: Float[Array, "b 1"], action: Float[Array, "b 2"]
    ) -> Float[Array, " b"]:
        return jnp.zeros(len(action))


class Play(NamedTuple):
    """Whole episodes in several bandits."""

    arm_one: Bool[np.ndarray, "bandits episodes T"]
    rewards: Float[np.ndarray, "bandits episodes T"]

    @property
    def returns(self) -> Float[np.ndarray, "bandits episodes"]:
        """Per pull, as the paper gives them."""
        return self.rewards.mean(axis=-1)


def play(
    policy: HistoryPolicy,
    dataset: Dataset,
    p0: float,
    p1: Sequence[float],
    *,
    episodes: int,
    seed: int,
) -> Play:
    """Play `episodes` episodes of a policy in each of the bandits (p0, p1)."""
    count, horizon = len(p1) * episodes, dataset.task.horizon
    prefix = imagination.draw_histories(np.random.default_rng(seed), dataset.histories, count, 1.0)
    rollouts = imagination.imagine(
        TrueBandits(jnp.float32(p0), jnp.asarray(p1, jnp.float32)),
        policy,
        imagination.branch(dataset, prefix),
        np.repeat(np.arange(len(p1), dtype=np.int32), episodes),
        Rules(horizon=horizon),
        jax.random.key(seed),
        widths=(count,),  # all end together
    )
    shape = (len(p1), episodes, horizon + 1)  # an episode's last row has no pull
    return Play(
        arm_one=np.asarray(rollouts.rows.action)[:, 1].reshape(shape)[..., :-1] > 0.5,
        rewards=np.asarray(rollouts.rows.reward, np.float64).reshape(shape)[..., :-1],
    )


# --- The whole of Section 3 ----------------------------------------------------------------------


def run(
    preset: Preset,
    seed: int,
    directory: Path,
    *,
    penalties: Sequence[float],
    overrides: dict[str, Any] | None = None,
    tell: Tell = lambda _: None,
    track: Tracker | None = None,
) -> dict[str, Any]:
    """Data, ensemble, one agent per lambda, evaluation; written to `directory`/summary.json.

    An unfinished run is resumed, a finished one is read.

    Args:
        penalties: lambda, in units of U / mean_D(U): a pull of arm 1 costs
            lambda (U(1) / U(0) - 1) more than one of arm 0.
        overrides: changes to the preset's settings, such as {"agent": {"encoder_lr": 1e-5}}.
        tell: called with a line of text when a part begins.
        track: called with every row of the agents' metrics.
    """
    if not penalties:
        raise ConfigError("no penalty is given: name one lambda or more, such as 0")
    configs = {  # checked before the directory is claimed
        penalty: config.updated(settings(preset, seed, penalty), overrides or {})
        for penalty in penalties
    }
    about = {
        "kind": "bandit",
        "config": {
            "preset": preset,
            "seed": seed,
            "penalties": list(penalties),
            "overrides": overrides or {},
        },
        "provenance": provenance(),
    }
    with rundir.claimed(directory, about), deferred_signals():
        if not rundir.is_finished(directory):
            summary = _run(preset, seed, directory, configs, overrides or {}, tell, track)
            atomic_write_json(directory / rundir.SUMMARY_FILE, summary)
            stop_if_signalled()
        return read_json(directory / rundir.SUMMARY_FILE)


def _run(
    preset: Preset,
    seed: int,
    directory: Path,
    configs: dict[float, TrainConfig],
    overrides: dict[str, Any],
    tell: Tell,
    track: Tracker | None,
) -> dict[str, Any]:
    dataset = collect_data(seed)
    tell("reward ensemble")
    shared = next(iter(configs.values()))  # configs differ in lambda alone
    fitted = world.fit(dataset, shared.world, seed, directory=directory / "world", tell=tell)
    arms = view_arms(fitted.world)
    belief = Belief.of_ensemble(arms.means)
    summary: dict[str, Any] = {
        "preset": preset,
        "seed": seed,
        "overrides": overrides,
        "steps": shared.agent.steps,
        **_describe(dataset, arms, belief),
        "mean_return": {},
        "agents": {},
        "seconds": fitted.seconds,
        "provenance": provenance(),
    }
    for penalty, chosen in configs.items():
        name = f"{penalty:g}"
        stop_if_signalled()
        tell(f"agent with lambda = {name}")
        result = experiment.run(
            dataset,
            chosen,
            directory / f"lambda-{name}",
            fitted=fitted,
            trackers=() if track is None else (track,),
            tell=tell,
        )
        extra_cost = surcharge(fitted, arms, penalty)
        agent = compare(result.policy.mode, dataset, belief, extra_cost, seed)
        agent["curve"] = list(_curve(result.directory / "metrics.jsonl", seed))
        summary["agents"][name] = agent
        summary["mean_return"][name] = {
            p1: bandit["mean_return"] for p1, bandit in agent["bandits"].items()
        }
        summary["seconds"] += result.summary["seconds"]["total"]
    return summary


def _describe(dataset: Dataset, arms: Arms, belief: Belief) -> dict[str, Any]:
    """The data, the ensemble, and what is the best that any policy can do in it."""
    horizon = dataset.task.horizon
    _, best = theory.bayes_optimal(belief, horizon)
    _, worst_case = theory.robust_optimal(belief, horizon)
    return {
        "episodes": EPISODES,
        "test_p1": list(TEST_P1),
        "data_mean_reward": float(dataset.returns.mean() / horizon),
        "uncertainty": {str(arm): float(u) for arm, u in enumerate(arms.uncertainty)},
        "uncertainty_ratio": float(arms.uncertainty[1] / arms.uncertainty[0]),
        "ensemble_means": np.round(arms.means.astype(float), 4).tolist(),
        "posterior": {"bayes_optimal": best / horizon, "robust_optimal": worst_case / horizon},
    }


def surcharge(fitted: FittedWorld, arms: Arms, penalty: float) -> float:
    """What lambda makes a pull of arm 1 cost more than one of arm 0."""
    return float(penalty * (arms.uncertainty[1] - arms.uncertainty[0]) / fitted.mean_uncertainty)


def compare(
    policy: HistoryPolicy, dataset: Dataset, belief: Belief, extra_cost: float, seed: int
) -> dict[str, Any]:
    """A learned policy beside the exact optimum of what it was trained for, all per pull.

    Regret is the optimum's return less the agent's: in each test bandit, and under the ensemble's
    own posterior, where no policy without a penalty can have less than zero but by chance.
    """
    horizon = dataset.task.horizon
    plan, _ = theory.bayes_optimal(belief, horizon, surcharge=extra_cost)
    tests = play(policy, dataset, Bandit.P0, TEST_P1, episodes=EPISODES, seed=seed)
    members = play(
        policy, dataset, belief.p0, belief.p1.tolist(), episodes=EPISODES // 10, seed=seed
    )
    return {
        "surcharge": extra_cost,
        "bandits": {
            f"{p1:g}": _compare_in(plan, p1, arm_one, returns)
            for p1, arm_one, returns in zip(TEST_P1, tests.arm_one, tests.returns, strict=True)
        },
        "posterior": {
            "mean_return": float(members.returns.mean()),
            "optimal_return": float(
                np.mean([plan.in_bandit(belief.p0, p1).expected_return for p1 in belief.p1])
                / horizon
            ),
        },
    }


def _compare_in(
    plan: Plan,
    p1: float,
    arm_one: Bool[np.ndarray, "episodes T"],
    returns: Float[np.ndarray, " episodes"],
) -> dict[str, Any]:
    """One test bandit."""
    optimum = plan.in_bandit(Bandit.P0, p1)
    best = optimum.expected_return / plan.horizon
    return {
        "mean_return": float(returns.mean()),
        "standard_error": float(returns.std(ddof=1) / np.sqrt(len(returns))),
        "optimal_return": best,
        "regret": best - float(returns.mean()),
        "arm_one": np.round(arm_one.mean(axis=0), 4).tolist(),
        "optimal_arm_one": np.round(optimum.arm_one, 4).tolist(),
    }


def _curve(metrics: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Mean return per pull and test bandit at every evaluation; which bandit an episode was in
    follows from the seed that its environment was reset with."""
    pulls = get_task("bandit").horizon
    for row in tracking.read_json_lines(metrics):
        if row["kind"] == "evaluation":
            returns = np.asarray(row["returns"])
            bandit = (seed + np.arange(len(returns))) % len(TEST_P1)
            yield {
                "step": row["step"],
                "mean_return": {
                    f"{p1:g}": round(float(returns[bandit == number].mean()) / pulls, 4)
                    for number, p1 in enumerate(TEST_P1)
                },
            }
