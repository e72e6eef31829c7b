"""Exact answers for two-armed Bernoulli bandits: what a learned agent is compared with.

Two parts, both plain NumPy.

*The bandit of Section 3.* Arm 0 is known to pay p0, arm 1 pays one of N values with given
probabilities (an ensemble: equally likely). How often arm 1 was pulled and how often it paid is a
sufficient statistic, so that the Bayes-optimal policy over T pulls comes from backward induction
over (t, pulls, successes), and its return in any test bandit from a forward pass over the same
table. The robust-optimal policy has a closed form.

*The two-model construction behind the paper's theorem.* The worlds m_{-1} and m_1 share an arm
that pays 1/2 and differ in the other, which pays 1/2 - epsilon or 1/2 + epsilon. There belief is a
walk on the integers (successes less failures of that arm), the Bayes-optimal policy of the
discounted, endless problem is a threshold on it, and every quantity of the theorem has a closed
form. `docs/theory.md` derives them.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from neubay.errors import ConfigError

# --- The bandit with one unknown arm -------------------------------------------------------------

_CERTAIN = 1e-3
"""Members' means are clipped to this distance from 0 and 1: no finite record rules one out."""


@dataclass(frozen=True, eq=False)
class Belief:
    """The belief about a bandit before its first pull."""

    p0: float
    """The mean of arm 0, which is known."""
    p1: Float[np.ndarray, " n"]
    """Values that the mean of arm 1 may have."""
    weights: Float[np.ndarray, " n"]
    """Their probabilities."""

    @classmethod
    def of_ensemble(cls, means: Float[np.ndarray, "n 2"]) -> "Belief":
        """The posterior that an ensemble is: its members' reward means per arm, equally likely.

        A member is read as a Bernoulli bandit with its own mean for arm 1, clipped to [0, 1], while
        arm 0 pays the ensemble's mean: there the members agree, since the data shows it.
        """
        means = np.asarray(means, np.float64)
        p1 = np.clip(means[:, 1], _CERTAIN, 1 - _CERTAIN)
        return cls(float(means[:, 0].mean()), p1, np.full(len(p1), 1 / len(p1)))

    def success_rates(self, pulls: int) -> Float[np.ndarray, "records records"]:
        """E[p1 | n pulls, k successes] at [n, k] up to `pulls` of them; k > n means nothing."""
        n, k = np.ogrid[: pulls + 1, : pulls + 1]
        wins, losses = k[..., None], np.maximum(n - k, 0)[..., None]
        log_odds = wins * np.log(self.p1) + losses * np.log1p(-self.p1) + np.log(self.weights)
        likelihood = np.exp(log_odds - log_odds.max(axis=-1, keepdims=True))
        return (likelihood @ self.p1) / likelihood.sum(axis=-1)


@dataclass(frozen=True, eq=False)
class Plan:
    """A policy over T pulls that depends on the record of arm 1."""

    pulls_one: Bool[np.ndarray, "T T T"]
    """At [t, n, k]: pull arm 1 at time t after n pulls of it with k successes."""

    @property
    def horizon(self) -> int:
        return len(self.pulls_one)

    def in_bandit(self, p0: float, p1: float) -> "Outcome":
        """What the plan does and earns, in expectation, where the arms pay p0 and p1."""
        horizon = self.horizon
        share = np.zeros(horizon)
        record = np.zeros((horizon + 1, horizon + 1))  # probability of (pulls, successes)
        record[0, 0] = 1.0
        for t, chosen in enumerate(self.pulls_one):
            pulled = np.where(chosen, record[:horizon, :horizon], 0.0)
            share[t] = pulled.sum()
            record[:horizon, :horizon] -= pulled
            record[1:, :horizon] += (1 - p1) * pulled
            record[1:, 1:] += p1 * pulled
        return Outcome(float(np.sum(p0 + (p1 - p0) * share)), share)


class Outcome(NamedTuple):
    """A plan in one bandit."""

    expected_return: float
    arm_one: Float[np.ndarray, " T"]
    """Probability that arm 1 is pulled at each time."""


def bayes_optimal(belief: Belief, horizon: int, *, surcharge: float = 0.0) -> tuple[Plan, float]:
    """The policy of greatest expected return over `horizon` pulls, and that return.

    `surcharge` is what a pull of arm 1 costs more than one of arm 0: the difference of their
    uncertainty penalties. The value counts it; `Plan.in_bandit` does not.
    """
    rate = belief.success_rates(horizon)[:horizon, :horizon]
    pulls_one = np.zeros((horizon, horizon, horizon), bool)
    value = np.zeros((horizon + 1, horizon + 1))
    for t in reversed(range(horizon)):
        stay = belief.p0 + value[:horizon, :horizon]
        pull = rate * (1 + value[1:, 1:]) + (1 - rate) * value[1:, :horizon] - surcharge
        pulls_one[t] = pull > stay
        value = np.pad(np.maximum(stay, pull), (0, 1))
    return Plan(pulls_one), float(value[0, 0])


def robust_optimal(belief: Belief, horizon: int) -> tuple[Plan, float]:
    """The policy whose return in the worst of the belief's worlds is greatest, and that return.

    If arm 1 may be the worse arm, no policy earns more than p0 a pull in the world where it is, and
    only never pulling it earns that much; otherwise arm 1 is at least as good in every world.
    """
    worst = float(belief.p1.min())
    always = worst > belief.p0
    plan = Plan(np.full((horizon, horizon, horizon), always))
    return plan, horizon * max(worst, belief.p0)


# --- Coverage ------------------------------------------------------------------------------------


class Mismatch(NamedTuple):
    """How far each world is from the true one, where a policy goes and where the data is."""

    visited: Float[np.ndarray, "*batch worlds"]
    """E over the policy's occupancy in that world of TV(m, m*)^2."""
    recorded: Float[np.ndarray, " worlds"]
    """E over the data's distribution of TV(m, m*)^2."""

    @classmethod
    def of_bandits(
        cls,
        means: Float[np.ndarray, "worlds arms"],
        truth: Float[np.ndarray, " arms"],
        occupancy: Float[np.ndarray, "*batch worlds arms"],
        behaviour: Float[np.ndarray, " arms"],
    ) -> "Mismatch":
        """For Bernoulli bandits, whose total variation is the difference of their means."""
        squared = (means - truth) ** 2
        return cls((squared * occupancy).sum(axis=-1), squared @ behaviour)


def robust_coverage(mismatch: Mismatch) -> Float[np.ndarray, "*batch"]:
    """C(pi) = sup over worlds of visited / recorded."""
    return np.asarray(_ratio(mismatch.visited, mismatch.recorded).max(axis=-1))


def bayesian_coverage(
    mismatch: Mismatch, posterior: Float[np.ndarray, "*batch worlds"]
) -> Float[np.ndarray, "*batch"]:
    """C_Bayes(pi): the same ratio of the posterior's averages."""
    visited = np.asarray((posterior * mismatch.visited).sum(axis=-1))
    return _ratio(visited, np.asarray(posterior @ mismatch.recorded))


def _ratio(
    visited: Float[np.ndarray, "*shape"], recorded: Float[np.ndarray, "*#shape"]
) -> Float[np.ndarray, "*shape"]:
    """Zero where the policy meets no mismatch, infinite where it meets one that the data hides."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(visited == 0, 0.0, visited / recorded)


# --- Two worlds ----------------------------------------------------------------------------------

CONFIDENCE = 1 / 8
"""delta_0 of the theorem."""


@dataclass(frozen=True)
class TwoWorlds:
    """The construction of the theorem's proof; the truth is m_1, rewards are at most 1."""

    epsilon: float
    """By how much the uncertain arm differs from 1/2."""
    beta: float
    """Share of the data's pulls that are of the uncertain arm."""
    data_size: int
    """|D|, independent pulls."""
    gamma: float = 0.99

    def __post_init__(self) -> None:
        allowed = {
            "epsilon": (0 < self.epsilon < 0.5, "above 0 and below 1/2"),
            "beta": (0 < self.beta <= 1, "above 0 and at most 1"),
            "data_size": (self.data_size >= 1, "at least 1"),
            "gamma": (0.5 < self.gamma < 1, "above 1/2 (the theorem's assumption) and below 1"),
        }
        for name, (holds, what) in allowed.items():
            if not holds:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be {what}")

    @property
    def evidence(self) -> float:
        """ln of the odds of m_1 that one success adds and one failure takes away."""
        return math.log((0.5 + self.epsilon) / (0.5 - self.epsilon))

    def descent(self, world: int) -> float:
        """E[gamma^tau] in m_world, tau being the pulls until failures lead by one more.

        With p the arm's mean there: x = gamma (1 - p + p x^2), and its root below one.
        """
        p = 0.5 + world * self.epsilon
        root = math.sqrt(1 - 4 * self.gamma**2 * p * (1 - p))
        return (1 - root) / (2 * self.gamma * p)

    @property
    def threshold(self) -> int:
        """k*: the Bayes-optimal policy pulls the uncertain arm while successes less failures of it,
        those of the data included, are at least this."""
        least_odds = (1 - self.descent(-1)) / (1 - self.descent(1))
        return math.floor(math.log(least_odds) / self.evidence) + 1

    def occupancy(self, lead: Int[np.ndarray, " k"], world: int) -> Float[np.ndarray, " k"]:
        """Discounted share of pulls that the Bayes-optimal policy gives the uncertain arm in
        m_world, where the data ended with that lead of successes over failures."""
        return 1 - self.descent(world) ** np.maximum(lead - self.threshold + 1, 0)

    def posterior(self, lead: Int[np.ndarray, " k"]) -> Float[np.ndarray, "k 2"]:
        """Probabilities of m_{-1} and m_1 given the data, from equal ones."""
        # A world is never ruled out: not even where its probability is too small to write down.
        odds = np.exp(np.clip(self.evidence * lead, -700.0, 700.0))
        return np.stack([1 / (1 + odds), 1 / (1 + 1 / odds)], axis=1)

    def leads(self) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """Leads of successes over failures that data of m_1 may show, and their probabilities.

        A pull adds 1, -1 or, being of the other arm, 0. The distribution of the sum is the inverse
        Fourier transform of the |D|-th power of one pull's.
        """
        win, lose = self.beta * (0.5 + self.epsilon), self.beta * (0.5 - self.epsilon)
        mean = self.data_size * (win - lose)
        spread = math.sqrt(self.data_size * (win + lose - (win - lose) ** 2))
        count = 2 ** math.ceil(math.log2(20 * spread + 40))  # beyond, nothing is left to wrap round
        lead = round(mean) - count // 2 + np.arange(count)
        wave = 2 * math.pi * np.fft.fftfreq(count)
        # One pull's transform is 1 + a + ib, written so that a rare arm costs no digits.
        a, b = -2 * self.beta * np.sin(wave / 2) ** 2, (win - lose) * np.sin(wave)
        with np.errstate(divide="ignore"):  # it may be zero
            log_size = 0.5 * np.log1p(np.maximum(2 * a + a**2 + b**2, -1.0))
        phase = self.data_size * np.arctan2(b, 1 + a) - wave * lead[0]
        total = np.exp(self.data_size * log_size) * np.exp(1j * phase)
        probability = np.maximum(np.fft.fft(total).real / count, 0.0)
        possible = (np.abs(lead) <= self.data_size) & (probability > 1e-17)
        return lead[possible], probability[possible] / probability[possible].sum()

    def theorem(self) -> dict[str, Any]:
        """Every quantity of the theorem as a plain number. What depends on the draw of the data is
        its expectation, or the probability that it holds."""
        lead, weight = self.leads()
        posterior = self.posterior(lead)
        chosen = np.stack([self.occupancy(lead, -1), self.occupancy(lead, 1)], axis=-1)
        # J(pi*(m*), m*) - J(pi, m*): what the robust- and the Bayes-optimal policy miss, and Delta,
        # the return of the second over that of the first in m*.
        robust_gap = self.epsilon / (1 - self.gamma)
        bayes_gap = robust_gap * (1 - chosen[:, 1])
        advantage = robust_gap - bayes_gap
        # C(pi*(M)), C_Bayes(pi*(m*)) and C_Bayes(pi*(P_D)).
        robust = float(robust_coverage(self._mismatch(np.zeros(2))))
        ideal = bayesian_coverage(self._mismatch(np.ones_like(chosen)), posterior)
        bayes = bayesian_coverage(self._mismatch(chosen), posterior)
        # What the proof says the Bayesian gap stays below, by a scale of
        # 8 r_max / (1 - gamma)^2 sqrt(ln(|M| / delta_0) / |D|).
        scale = 8 / (1 - self.gamma) ** 2 * math.sqrt(math.log(2 / CONFIDENCE) / self.data_size)
        gap_bound = scale * np.sqrt(np.maximum(ideal, bayes))
        # C(pi*(M)) as the proof has it: not computed, but a free number that fixes beta by
        # beta = (1 - gamma)^4 / (64 C).
        assumed = (1 - self.gamma) ** 4 / (64 * self.beta)
        found = {
            "epsilon": self.epsilon,
            "beta": self.beta,
            "data_size": self.data_size,
            "gamma": self.gamma,
            "delta": CONFIDENCE,
            "threshold": self.threshold,
            "posterior_of_truth": float(weight @ posterior[:, 1]),
            "robust_gap": robust_gap,
            "bayes_gap": float(weight @ bayes_gap),
            "advantage": float(weight @ advantage),
            "advantage_is_positive": float(weight[advantage > 0].sum()),
            "robust_coverage": robust,
            "assumed_coverage": assumed,
            "ideal_coverage": float(weight @ ideal),
            "bayes_coverage": float(weight @ bayes),
            "scale": scale,
            "bayes_gap_bound": float(weight @ gap_bound),
            "bayes_gap_bound_holds": float(weight[bayes_gap <= gap_bound].sum()),
            "robust_gap_bound": scale * math.sqrt(robust),
            "robust_gap_bound_as_assumed": scale * math.sqrt(assumed),
        }
        for reading in ("", "_as_assumed"):
            # What the theorem says the advantage exceeds.
            bound, name = found[f"robust_gap_bound{reading}"] - gap_bound, f"lower_bound{reading}"
            found[name] = float(weight @ bound)
            found[f"{name}_holds"] = float(weight[advantage > bound].sum())
            found[f"{name}_is_positive"] = float(weight[bound > 0].sum())
        return found | self._how_hard_to_tell()

    def _mismatch(self, uncertain: Float[np.ndarray, "*batch worlds"]) -> Mismatch:
        """Of policies that give the uncertain arm such shares of their pulls in either world."""
        means = np.array([[0.5, 0.5 - self.epsilon], [0.5, 0.5 + self.epsilon]])
        occupancy = np.stack([1 - uncertain, uncertain], axis=-1)
        behaviour = np.array([1 - self.beta, self.beta])
        return Mismatch.of_bandits(means, means[1], occupancy, behaviour)

    def _how_hard_to_tell(self) -> dict[str, float]:
        """KL between the data's distributions under m_{-1} and m_1: if only rewards were recorded,
        as the proof has it, and if D shows which arm was pulled."""
        hidden, x = 2 * self.epsilon * self.beta, 2 * self.epsilon
        pulls = self.data_size * self.beta
        return {
            "divergence": self.data_size * hidden * math.log((1 + hidden) / (1 - hidden)),
            "divergence_with_arms": pulls * x * math.log((1 + x) / (1 - x)),
            "largest_epsilon_of_proof": math.sqrt(math.log(16) / pulls),
        }
