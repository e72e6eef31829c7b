"""The device programs of a training, from shapes alone: nothing is drawn, trained or run.

They are the functions that a training calls, with the arguments it calls them with. So they can be
lowered for machines that are not there, and what they send, read and hold can be counted.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from neubay import agents
from neubay.algorithm import ROWS_PER_CALL, UPDATES_PER_CALL
from neubay.config import EndedBy, TrainConfig
from neubay.devices import choices
from neubay.evaluation import act
from neubay.experience import batch_shape
from neubay.imagination import Branches, Rules, shrinking_widths, steps_of_rollouts
from neubay.replay import BatchShape
from neubay.tape import AgentInput, Tape
from neubay.tasks import Task
from neubay.world import termination, training
from neubay.world.model import Member, Scaler, World
from neubay.world.pool import FLOPS_PER_CALL
from neubay.world.transitions import Transitions


class Program(NamedTuple):
    """A function that runs on the device in one call."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]  # shapes in place of arrays
    sent: Callable[..., Any] = lambda *arguments: ()  # of them, what comes from the host each time
    read: Callable[[Any], Any] = lambda result: ()  # of the result, what the host reads
    donated: tuple[int, ...] = ()  # arguments whose memory is used for the result
    gradient_steps: int = 0  # of one call
    options_of_its_own: bool = False  # the function is jitted, with options for the compiler

    def jitted(self) -> Any:
        """As a training calls it."""
        if self.options_of_its_own:
            return self.function
        return jax.jit(self.function, donate_argnums=self.donated)

    @property
    def result(self) -> Any:
        """Shapes of what it gives."""
        return jax.eval_shape(self.function, *self.arguments)


def shape(*sizes: int, dtype: Any = jnp.float32) -> Any:
    """What stands for an array of these sizes."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def shapes(tree: PyTree) -> PyTree:
    """A tree with shapes in place of arrays."""
    return jax.tree.map(lambda leaf: shape(*leaf.shape, dtype=leaf.dtype), tree)


def number_of_bytes(tree: PyTree) -> int:
    """Of all arrays in a tree, or of their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def programs(task: Task, config: TrainConfig, transitions: int) -> dict[str, Program]:
    """Every program of a training on so many transitions, by name."""
    found = world_programs(task, config, transitions) | agent_programs(task, config)
    learned = config.world.termination == "learned"
    return found | (head_programs(task, config) if learned else {})


# --- The world -----------------------------------------------------------------------------------


def world_programs(task: Task, config: TrainConfig, transitions: int) -> dict[str, Program]:
    """Those that fit a pool of members."""
    pool, recipe = config.world.pool, training.Recipe.of(task, config.world)
    keys = jax.eval_shape(lambda: training.member_keys(pool, 0))
    learner, best = jax.eval_shape(lambda keys: training.initialise(keys, recipe), keys)
    shuffles = jax.eval_shape(training.epoch_shuffles, keys, 0, 0)
    lanes = recipe.layout.lanes
    lane = jax.tree.map(
        lambda leaf: shape(leaf.shape[0] // lanes, *leaf.shape[1:], dtype=leaf.dtype),
        (learner, shuffles),
    )
    step_flops = pool * training.training_flops(recipe.inputs, recipe.outputs, config.world)
    number = shape(dtype=jnp.int32)
    data, scaler, world = _transitions(task, transitions), _scaler(task), _world(task, config)
    validation = _transitions(task, config.world.validation_max or transitions // 5)
    rows = choices.data_rows()
    state, action = shape(rows, task.state_size), shape(rows, task.actions.size)
    return {
        "world: fresh members": Program(lambda keys: training.initialise(keys, recipe), (keys,)),
        "world: epoch": Program(
            training.trainer(recipe),
            (*lane, (data, number, number, number, scaler)),
            sent=lambda learner, shuffles, shared: shared[1:4],
            gradient_steps=max(int(FLOPS_PER_CALL / step_flops), 1),
            options_of_its_own=True,
        ),
        "world: validation": Program(
            lambda members, data, scaler: training.validate(members, data, scaler, recipe),
            (learner.members, validation, scaler),
            read=lambda score: score,
        ),
        "world: snapshots": Program(
            lambda best, members, score: training.keep_best(best, members, score, config.world),
            (best, learner.members, best.score),
            donated=(0,),
            read=lambda result: result[1],
        ),
        "world: U of the data": Program(
            World.uncertainty,
            (world, state, action),
            sent=lambda world, state, action: (state, action),
            read=lambda value: value,
        ),
    }


def _transitions(task: Task, count: int) -> Transitions:
    rows = count + math.ceil(count / task.horizon)
    return Transitions(
        shape(rows, task.state_size),
        shape(rows, task.actions.size),
        shape(rows),
        shape(count, dtype=jnp.int32),
    )


def _scaler(task: Task) -> Scaler:
    def build() -> Scaler:
        s, a, scalar = jnp.zeros(task.state_size), jnp.zeros(task.actions.size), jnp.zeros(())
        return Scaler(s, s, a, a, scalar, scalar)

    made: Scaler = jax.eval_shape(build)
    return made


def _world(task: Task, config: TrainConfig) -> World:
    """The members that are kept, as imagination has them."""
    inputs, outputs = training.member_sizes(task)

    def build(keys: Any, scaler: Scaler) -> World:
        members = jax.vmap(lambda key: Member(inputs, outputs, config.world, key=key))(keys)
        heads = None
        if config.world.termination == "learned":
            heads, _ = termination.fresh_heads(_head_inputs(task), keys)
        return World(members, scaler, task.reward_only, config.world.quantifier, heads)

    keys = jax.eval_shape(lambda: training.member_keys(config.world.members, 0))
    made: World = jax.eval_shape(build, keys, _scaler(task))
    return made


def _head_inputs(task: Task) -> int:
    return 2 * task.state_size + task.actions.size  # s, a, s'


def head_programs(task: Task, config: TrainConfig) -> dict[str, Program]:
    """Those that learn what ends an episode."""
    inputs, rows = _head_inputs(task), termination.BLOCK
    keys = jax.eval_shape(lambda: training.member_keys(config.world.members, 0))
    learners = jax.eval_shape(lambda keys: termination.fresh_heads(inputs, keys), keys)
    examples = termination.Examples(*3 * (shape(termination.MOST_ROWS, inputs),))
    state, action = shape(rows, task.state_size), shape(rows, task.actions.size)
    world, key = _world(task, config), shapes(jax.random.key(0))
    return {
        "heads: learning": Program(
            termination.learn,
            (learners, keys, shape(dtype=jnp.int32), examples),
            sent=lambda learners, keys, first, examples: first,
            gradient_steps=termination.STEPS_PER_CALL,
            options_of_its_own=True,
        ),
        "heads: logits": Program(
            termination.logits_of,
            (learners[0], shape(rows, inputs)),
            sent=lambda heads, x: x,
            read=lambda logits: logits,
        ),
        "heads: check": Program(
            termination.judged,
            (world, state, action, state, key),
            sent=lambda world, state, action, then, key: (state, action, then),
            read=lambda said: said,
        ),
    }


# --- The agent -----------------------------------------------------------------------------------


def agent_programs(task: Task, config: TrainConfig) -> dict[str, Program]:
    """Those of imagination, gradient steps and evaluation."""
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
    state = shapes(agent.init(jax.random.key(0)))
    batch = batch_shape(task, config)
    batches = max(min(UPDATES_PER_CALL, ROWS_PER_CALL // batch.size), 1)
    tapes, episodes = _tapes(task, batches, batch), config.evaluation.episodes
    warm = jax.eval_shape(agent.warm, state)

    def acting(state: Any) -> Any:
        return agent.policy(state, deterministic=True)

    memory = jax.eval_shape(lambda state: acting(state).initial(episodes), state)
    key, number = shapes(jax.random.key(0)), shape(dtype=jnp.int32)
    return {
        "imagination": _imagination(task, config, agent, state),
        "agent: update": Program(
            agent.update,
            (state, tapes),
            sent=lambda state, tapes: tapes,
            donated=(0,),
            read=lambda result: result[1],
            gradient_steps=batches,
        ),
        "agent: warm start": Program(
            agent.warm_update,
            (warm, tapes._replace(penalty=tapes.reward)),
            sent=lambda state, tapes: tapes,
            donated=(0,),
            gradient_steps=batches,
        ),
        "policy: step": Program(
            lambda state, *others: act(acting(state), *others),
            (state, memory, _inputs(task, episodes), key, number),
            sent=lambda state, memory, inputs, key, number: (inputs, number),
            read=lambda result: result[1],
        ),
        "policy: values": Program(
            agent.values,
            (state, _tapes(task, episodes, BatchShape(1))),
            sent=lambda state, tapes: tapes,
            read=lambda values: values,
        ),
    }


def _inputs(task: Task, *sizes: int) -> AgentInput:
    return AgentInput(
        shape(*sizes, task.state_size),
        shape(*sizes, task.actions.size),
        shape(*sizes),
        shape(*sizes, dtype=bool),
    )


def _tapes(task: Task, batches: int, batch: BatchShape) -> Tape:
    sizes = (batches, batch.rows) if batch.slots is None else (batches, batch.rows, batch.slots)
    flags = shape(*sizes, dtype=bool)
    return Tape(
        state=shape(*sizes, task.state_size),
        action=shape(*sizes, task.actions.size),
        reward=shape(*sizes),
        terminated=flags,
        start=flags,
        real=flags,
        burn_in=None if batch.slots is None else flags,
    )


def _imagination(task: Task, config: TrainConfig, agent: agents.Agent, state: Any) -> Program:
    """K rollouts from histories of any length."""
    count, rows = config.rollout.rollouts, task.horizon
    ended_by: EndedBy = "learned" if config.world.termination == "learned" else "rule"
    rules = Rules.of(
        config.rollout, task, threshold=1.0, mean_uncertainty=1.0, termination=ended_by
    )

    branches = Branches(
        _inputs(task, rows, count),
        _inputs(task, count),
        shape(count, dtype=jnp.int32),
        shape(count, dtype=bool),
    )

    def rollouts(world: Any, state: Any, branches: Any, member: Any, key: Any) -> Any:
        policy = agent.behaviour(state)
        return steps_of_rollouts(
            world, policy, branches, member, key, rules, shrinking_widths(count)
        )

    key, member = shapes(jax.random.key(0)), shape(count, dtype=jnp.int32)
    return Program(
        rollouts,
        (_world(task, config), state, branches, member, key),
        sent=lambda world, state, branches, member, key: (branches, member),
        read=lambda steps: steps,
    )
