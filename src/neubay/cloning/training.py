"""Behaviour cloning with and without memory: both learn from the same part of the data, and the one
to which the rest is likelier is the clone.

Of each candidate the weights are kept under which held-out actions were likeliest, and it is
trained until that is some time ago. Memory must earn its place: where held-out actions are not
clearly likelier with it, the clone has none. Memory reads states and rewards, not past actions.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from neubay import agents
from neubay.agents import AgentState, Standardiser
from neubay.agents.bc import Imitator
from neubay.agents.divergence import refuse_divergence
from neubay.algorithm import ROWS_PER_CALL, UPDATES_PER_CALL, Position, Trained, pause, resume
from neubay.cloning.held_out import HeldOut, best_episodes, held_out, split
from neubay.config import VARIANTS, TrainConfig, known, updated
from neubay.data.dataset import Dataset
from neubay.evaluation import Keep, score
from neubay.experience import batch_shape, constants
from neubay.replay import BatchShape, sample_data
from neubay.runs.checkpoints import Checkpoints
from neubay.runs.tracking import Tracker, clock
from neubay.tasks import Task

CHECKS = 50
"""Times that the likelihood is looked at over the whole training."""
PATIENCE = 0.2
"""Of the whole training, how long a candidate is trained without a better likelihood."""
ANYTHING = 0.01
"""Share of held-out actions that may be anything: a clone that is sure is otherwise judged by the
one episode that is unlike all others, where it is wrong by hundreds of nats a step."""
HIDDEN = 1e30
"""What divides an input that a clone is not to see."""
CLEARLY = 2.0
"""Standard errors by which held-out actions must be likelier with memory than without."""


class Progress(NamedTuple):
    """A candidate in training, and what it was at its best."""

    state: AgentState
    best: PyTree  # the network when held-out actions were likeliest
    likelihood: Float[Array, " blocks"]  # log-likelihood of each block of them then
    step: Int[Array, ""]  # when that was


@dataclass
class Candidate:
    """What may become the clone."""

    agent: Imitator
    shape: BatchShape
    progress: Progress

    @property
    def name(self) -> str:
        return "markov" if self.agent.config.memory == "none" else "memory"

    @property
    def at_best(self) -> AgentState:
        """Its state with the weights under which held-out actions were likeliest."""
        return self.progress.state._replace(actor=self.progress.best)

    def check(self, unseen: HeldOut, step: int) -> None:
        """Look at the held-out likelihood: the weights are kept if they are the best so far."""
        state, *best = self.progress
        kept = _checked(self.agent, state.actor, tuple(best), unseen, np.int32(step))
        self.progress = Progress(state, *kept)

    def record(self, unseen: HeldOut) -> dict[str, float]:
        """Its best likelihood per step, and when it was reached, as plain numbers."""
        mean = float(self.progress.likelihood.sum()) / int(np.sum(unseen.steps))
        return {f"held_out_{self.name}": mean, f"best_step_{self.name}": int(self.progress.step)}


def clone(
    dataset: Dataset,
    config: TrainConfig,
    track: Tracker,
    checkpoints: Checkpoints,
    keep: Keep | None = None,
    update: agents.Update = agents.update,
) -> Trained:
    """Clone the data: the better of the candidates, as it was at its best."""
    cloning = Cloning(dataset, config)
    at = cloning.train(track, checkpoints, keep, update)
    best = cloning.better()
    return Trained(best.agent, best.at_best, at.evaluation, at.metrics, at.seconds)


def account(trained: Trained) -> dict[str, Any]:
    """Which candidate the clone is, and how likely held-out actions were to each, per step."""
    numbers = {
        name: value
        for name, value in trained.metrics.items()
        if name.startswith(("held_out_", "best_step_"))
    }
    settings = trained.agent.config
    return {"memory": settings.memory, "best_share": settings.best_share, **numbers}


def in_words(clone: dict[str, Any]) -> str:
    """An account in one line."""
    kind = "without memory" if clone["memory"] == "none" else "with memory"
    if "held_out_memory" not in clone:
        compared = f"{clone['held_out_markov']:.3f} per step"
    else:
        compared = (
            f"{clone['held_out_memory']:.3f} per step with memory, "
            f"{clone['held_out_markov']:.3f} without"
        )
    share = clone.get("best_share", 1.0)
    if clone["memory"] == "none" and "held_out_memory" in clone:
        compared += "; memory has no clear advantage, so the simpler one is taken"
    of = "the clone" if share == 1 else f"the clone of the best {share:.0%} of the data"
    return f"{of} is the one {kind}: held-out log-likelihood {compared}"


class Cloning:
    """The candidates, what they learn from, and what they are compared on.

    Args:
        past_actions: memory sees them; for comparison only.
    """

    def __init__(
        self, dataset: Dataset, config: TrainConfig, *, past_actions: bool = False
    ) -> None:
        self.dataset, self.config, self.past_actions = dataset, config, past_actions
        share = config.agent.best_share
        parts = split(dataset, config.seed, best_episodes(dataset, share) if share < 1 else None)
        self.training = parts.training
        self.unseen: HeldOut = jax.tree.map(jnp.asarray, held_out(dataset, parts))
        self.candidates = [self._begin(each) for each in _settings(config)]

    def _begin(self, config: TrainConfig) -> Candidate:
        task = self.dataset.task
        agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
        assert isinstance(agent, Imitator)
        inputs = constants(self.dataset, config.agent)
        inputs = inputs if self.past_actions else _without_actions(inputs, task)
        state = agent.init(jax.random.key(config.seed), inputs)
        nothing = jnp.full(len(self.unseen.steps), -jnp.inf, jnp.float32)  # as later ones are
        begun = Progress(state, state.actor, nothing, jnp.int32(0))
        candidate = Candidate(agent, batch_shape(task, config), begun)
        candidate.check(self.unseen, 0)
        return candidate

    def train(
        self,
        track: Tracker,
        checkpoints: Checkpoints,
        keep: Keep | None = None,
        update: agents.Update = agents.update,
    ) -> Position:
        """A turn of the loop makes some gradient steps of every candidate that still gets better;
        between two turns the training can be stopped and resumed."""
        config, steps = self.config, known(self.config.agent.steps)
        between = max(steps // config.evaluation.evaluations, 1)
        progress = [each.progress for each in self.candidates]
        progress, at = resume(progress, None, steps, checkpoints)
        for each, resumed in zip(self.candidates, progress, strict=True):
            each.progress = resumed
        most = min(ROWS_PER_CALL // each.shape.size for each in self.candidates)
        while live := self.live(at.step):
            before, at.step = at.step, min(at.step + max(min(most, UPDATES_PER_CALL), 1), steps)
            for each in live:
                at.gathered[each.name] = self._advance(each, before, at, update)
            best, ended = self.better(), not self.live(at.step)
            at.metrics = {"kind": "train", "step": at.step, "iteration": 0}
            at.metrics |= at.gathered[best.name] | self.record()
            track(at.metrics)
            if at.step // between > before // between or ended:
                with clock(at.seconds, "evaluation"):
                    found = best.agent, best.at_best, self.dataset.task
                    at.evaluation = score(*found, config, at.step, keep)
                if at.evaluation is not None:
                    track(at.evaluation)
            progress = [each.progress for each in self.candidates]
            pause(progress, None, at, at.step if ended else steps, checkpoints)
        return at

    def _advance(
        self, candidate: Candidate, before: int, at: Position, update: agents.Update
    ) -> dict[str, float]:
        """Gradient steps of a candidate, from step `before` on, and what was told of them."""
        steps = known(self.config.agent.steps)
        rng = np.random.default_rng([self.config.seed, self.candidates.index(candidate), before])
        with clock(at.seconds, "sampling"):
            count, shape = at.step - before, candidate.shape
            tapes = sample_data(self.dataset, rng, count, shape, parts=self.training)
        with clock(at.seconds, "updates"):
            state, losses = update(candidate.agent, candidate.progress.state, tapes)
            numbers = {name: float(value) for name, value in losses.items()}
        candidate.progress = candidate.progress._replace(state=state)
        refuse_divergence(numbers, at.step)
        every = max(steps // CHECKS, 1)
        if at.step // every > before // every or at.step == steps:
            with clock(at.seconds, "likelihood"):
                candidate.check(self.unseen, at.step)
        return numbers

    def live(self, step: int) -> list[Candidate]:
        """The candidates that are trained on: those that were at their best not long ago."""
        steps = known(self.config.agent.steps)
        recent = max(PATIENCE * steps, 1)
        return [c for c in self.candidates if step < steps and step - int(c.progress.step) < recent]

    def better(self) -> Candidate:
        """The candidate that is the clone by now: that with memory only if held-out actions are
        clearly likelier with it."""
        without, *others = self.candidates
        steps, before = np.asarray(self.unseen.steps), np.asarray(without.progress.likelihood)
        for each in others:
            if clearly_above_zero(np.asarray(each.progress.likelihood) - before, steps):
                return each
        return without

    def record(self) -> dict[str, float]:
        """Likelihoods of the candidates as plain numbers."""
        records = [candidate.record(self.unseen) for candidate in self.candidates]
        return {name: value for record in records for name, value in record.items()}


def _without_actions(inputs: Standardiser | None, task: Task) -> Standardiser | None:
    """The same constants, by which the last action is as good as zero.

    The next action is often much like the last one. A clone that sees it learns to repeat it: that
    is likely on the data, where what was repeated was right, and wrong from its first error on.
    """
    if inputs is None:
        return None
    actions = slice(task.state_size, task.state_size + task.actions.size)
    return Standardiser(inputs.mean, inputs.std.at[actions].set(HIDDEN))


def clearly_above_zero(
    gain: Float[np.ndarray, " blocks"], steps: Int[np.ndarray, " blocks"]
) -> bool:
    """Whether a sum over blocks of steps is above zero by more than its standard errors."""
    rest = gain - gain.sum() * steps / steps.sum()
    return bool(gain.sum() > CLEARLY * math.sqrt((rest**2).sum()))


def _settings(config: TrainConfig) -> list[TrainConfig]:
    """Of the candidates: without memory, on single rows; and with that of the settings, if any."""
    markov = updated(config, VARIANTS["markov"])
    return [markov] if config.agent.memory == "none" else [markov, config]


def granted(agent: Imitator, likelihood: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Log-likelihoods if a small share of the actions may be anything at all."""
    anything = math.log(ANYTHING) + agent.any_action
    return jnp.logaddexp(math.log1p(-ANYTHING) + likelihood, anything)


@partial(jax.jit, static_argnums=0)
def _checked(agent: Imitator, actor: PyTree, best: tuple, unseen: HeldOut, step: Any) -> tuple:
    blocks = len(unseen.steps)
    each = granted(agent, agent.log_likelihood(actor, unseen.tape)).ravel()
    sums = jax.ops.segment_sum(each, unseen.block.ravel(), blocks + 1)[:blocks]
    now = actor, sums, step
    return jax.tree.map(partial(jnp.where, sums.sum() > best[1].sum()), now, best)
