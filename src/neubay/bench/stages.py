"""The stages that are measured: world training, agent updates, imagination, replay, policies.

Every case, a stage at one size, runs in a process of its own, so that its memory can be told apart.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from neubay import imagination, published
from neubay.agents import redq
from neubay.agents.networks import GaussianPolicy
from neubay.bench import accelerator
from neubay.bench.measure import compile_seconds, measure, peak_mb, processor_seconds
from neubay.config import (
    Facts,
    Preset,
    Published,
    TrainConfig,
    WorldConfig,
    known,
    resolve,
    settle,
    updated,
)
from neubay.data.dataset import Dataset
from neubay.errors import NeubayError
from neubay.experience import batch_shape
from neubay.export import standalone
from neubay.policy import Policy
from neubay.replay import Replay
from neubay.runs.provenance import provenance
from neubay.tape import AnyArray, Tape, slice_rows
from neubay.tasks import Task, get_task
from neubay.world import training
from neubay.world.model import Member, Scaler, World
from neubay.world.transitions import Epochs, Transitions, fit_scaler, split_rows

_WORLD_FLOPS = 2e11  # of the gradient steps timed in one turn
_AGENT_FLOPS = 5e10


def synthetic_dataset(task: Task, rows: int, seed: int = 0) -> Dataset:
    """Episodes of full length filled with random numbers, of the task's sizes."""
    rng = np.random.default_rng(seed)
    start = np.arange(rows) % (task.horizon + 1) == 0
    last = np.roll(start, -1)
    action = rng.uniform(-1, 1, (rows, task.actions.size)).astype(np.float32)
    return Dataset(
        tape=Tape(
            state=rng.standard_normal((rows, task.state_size), np.float32),
            action=np.where(last[:, None], np.float32(0), action),
            reward=np.where(last, np.float32(0), rng.standard_normal(rows, np.float32)),
            terminated=np.zeros(rows, bool),
            start=start,
            real=np.ones(rows, bool),
        ),
        task=task,
        name="synthetic",
        source="bench",
    )


# --- The world -----------------------------------------------------------------------------------


def bench_world(pool: int, rows: int) -> dict[str, Any]:
    """A pool of the published size on `rows` transitions of halfcheetah's sizes.

    Speed is that of gradient steps; compile time and memory are of all that a fit does in an
    epoch: scaler, fresh members, steps, validation, snapshots, uncertainty.
    """
    task = get_task("d4rl/halfcheetah")
    config = WorldConfig(pool=pool, members=min(pool, 100))
    before = peak_mb()
    dataset = synthetic_dataset(task, rows + rows // task.horizon + 1)
    recipe = training.Recipe.of(task, config)
    step_flops = pool * training.training_flops(recipe.inputs, recipe.outputs, config)
    steps = min(max(int(_WORLD_FLOPS / step_flops), 16), rows // config.batch)
    training_rows, validation_rows = split_rows(dataset.world_rows, config, seed=0)
    validation, scaler = Transitions.copy(dataset, validation_rows), fit_scaler(dataset)
    train, best = _pool_training(dataset, training_rows, config, scaler, steps)

    def epoch_of_one_step() -> Any:
        nonlocal best
        members = training.joined([lane.result for lane in train(1)])
        score = training.validate(members, validation, scaler, recipe)
        best, _ = training.keep_best(best, members, score, config)
        return best

    compile_s = compile_seconds(epoch_of_one_step)
    result = measure(train, float(steps * step_flops))._replace(compile_s=compile_s)
    return result.record() | {
        "peak_mb": peak_mb() - before,
        "step_s": result.seconds / steps,
        "pool": pool,
        "rows": rows,
    }


def _pool_training(
    dataset: Dataset,
    rows: Int[np.ndarray, " n"],
    config: WorldConfig,
    scaler: Scaler,
    steps: int,
) -> tuple[Callable[..., Any], Any]:
    """A function that makes the first so many gradient steps of an epoch again and again, or fewer
    if told; and the snapshots to begin with."""
    recipe, keys = training.Recipe.of(dataset.task, config), training.member_keys(config.pool, 0)
    shuffles = training.epoch_shuffles(keys, 0, 0)
    epochs = Epochs(dataset, rows, batch=config.batch, batches_per_call=steps, seed=0)
    share = next(epochs.shares(0, 0))
    learner, best = training.initialise(keys, recipe)
    lanes = training.spread(learner, recipe.layout)

    def train(last: int = share.last) -> Any:
        nonlocal lanes
        lanes = training.train(lanes, shuffles, share._replace(last=last), scaler, recipe)
        return lanes

    return train, best


def bench_world_cost(pool: int) -> dict[str, Any]:
    """Processor time of one gradient step of all members of a pool, as in the paper's table of
    training times."""
    task, rows, steps = get_task("d4rl/halfcheetah"), 10_000, 8
    config = WorldConfig(pool=pool, members=min(pool, 100))
    dataset = synthetic_dataset(task, rows)
    train, _ = _pool_training(dataset, dataset.world_rows, config, fit_scaler(dataset), steps)
    paper = published.table("model_cost")["world", f"pool={pool}"]
    return {
        "step_cpu_ms": 1e3 * processor_seconds(train) / steps,
        "paper_h": None if paper is None else paper.mean,
    }


def setting(name: str = "d4rl/halfcheetah", size: Preset = "paper") -> tuple[Task, TrainConfig]:
    """A task with a preset's settings for it, whatever its data; if not told, what the paper gives
    the costs of."""
    task = get_task(name)
    settings = resolve(Published(benchmark=task.benchmark), size)
    facts = Facts(horizon=task.horizon, reward_rms=1.0, foretold=0.3)  # as of several policies
    return task, settle(settings, facts)


# --- The agent -----------------------------------------------------------------------------------


def bench_agent(task: str, size: Preset) -> dict[str, Any]:
    """Gradient steps of the agent on tapes of the preset's length, half of their rows imagined."""
    known, settings = setting(task, size)
    config = settings.agent
    before = peak_mb()
    agent = redq.Agent(known.state_size, known.actions.size, config)
    shape = batch_shape(known, settings)
    sizes = (shape.rows,) if shape.slots is None else (shape.rows, shape.slots)
    rows = shape.size
    step_flops = redq.update_flops(agent.state_size, agent.action_size, config, rows)
    batches = max(int(_AGENT_FLOPS / step_flops), 2)
    tape = synthetic_dataset(known, batches * rows).tape
    tape = tape._replace(real=np.arange(len(tape.start)) % 2 == 0)
    tapes = jax.tree.map(
        lambda field: jnp.asarray(field).reshape(batches, *sizes, *field.shape[1:]), tape
    )
    state = agent.init(jax.random.key(0))

    def call() -> Any:
        nonlocal state
        state, metrics = agent.update(state, tapes)
        return metrics

    result = measure(call, float(batches * step_flops))
    return result.record() | {"peak_mb": peak_mb() - before, "step_s": result.seconds / batches}


# --- Imagination ---------------------------------------------------------------------------------


class Countdown(eqx.Module):
    """A world whose rollouts last as long as the first number of their branching state says."""

    world: World

    @property
    def size(self) -> int:
        return self.world.size

    def select(self, member: Int[Array, " k"]) -> "Countdown":
        return Countdown(self.world.select(member))

    def beyond(self, others: "Countdown", widen: float) -> "Countdown":
        return Countdown(self.world.beyond(others.world, widen))

    def sample(
        self, state: Float[Array, "k s"], action: Float[Array, "k a"], keys: Key[Array, " k"]
    ) -> tuple[Float[Array, "k s"], Float[Array, " k"]]:
        next_state, reward = self.world.sample(_without_count(state), action, keys)
        return next_state.at[:, 0].set(state[:, 0] - 1), reward

    def uncertainty(
        self, state: Float[Array, "b s"], action: Float[Array, "b a"]
    ) -> Float[Array, " b"]:
        return self.world.uncertainty(_without_count(state), action)


def _without_count(state: Float[Array, "k s"]) -> Float[Array, "k s"]:
    return state.at[:, 0].set(0)


def _counted_down(
    state: Float[AnyArray, "*k s"],
    action: Float[AnyArray, "*k a"],
    next_state: Float[AnyArray, "*k s"],
) -> Bool[Array, "*k"]:
    return jnp.asarray(next_state)[..., 0] < 0.5


def bench_imagination(task: str, size: Preset, *, histories: bool) -> dict[str, Any]:
    """Rollouts of exponentially spread lengths, the mean a fifth of the longest, which is T.

    Counted are the products of rows that live: all members and the policy for an imagined row,
    the policy's encoder for a row of history.
    """
    before = peak_mb()
    timed = _timed_rollouts(*setting(task, size), histories=histories)
    result = measure(timed.call, timed.flops, turns=4)
    count = len(timed.lengths)
    return result.record() | {
        "peak_mb": peak_mb() - before,
        "rows_per_s": timed.lengths.sum() / result.seconds,
        "horizon_mean": timed.lengths.sum() / count,
        "horizon_max": float(timed.lengths.max()),
        "history_mean": timed.history_rows / count,
    }


class TimedRollouts(NamedTuple):
    """A call that is timed, and what it does."""

    call: Callable[[], imagination.Rollouts]
    flops: float
    lengths: Float[np.ndarray, " k"]
    history_rows: int


def _timed_rollouts(task: Task, config: TrainConfig, *, histories: bool) -> TimedRollouts:
    count, horizon, rng = config.rollout.rollouts, task.horizon, np.random.default_rng(0)
    world, policy = _untrained(task, config)
    dataset = synthetic_dataset(task, 20 * (horizon + 1))
    prefix = imagination.draw_histories(rng, dataset.histories, count, 0.0 if histories else 1.0)
    branches = imagination.branch(dataset, prefix)
    spread = -np.log((np.arange(count) + 0.5) / count) * horizon / 5
    lengths = rng.permutation(np.clip(np.ceil(spread), 1, horizon))
    branches.inputs.state[:, 0] = lengths
    rules = imagination.Rules(
        horizon=2 * horizon,
        max_steps=horizon,
        termination=_counted_down,
        threshold=1e9,
        widen=known(config.rollout.widen),
    )
    member = imagination.draw_members(rng, count, world.size)
    rows, history_rows = int(lengths.sum()), int(np.sum(prefix.length))
    flops = rows * (_product_flops(world, 3) + _product_flops(policy.actor, 2))
    flops += history_rows * _product_flops(policy.actor.encoder, 2)

    def call() -> imagination.Rollouts:
        rollouts = imagination.imagine(world, policy, branches, member, rules, jax.random.key(0))
        assert rollouts.length.sum() == rows
        return rollouts

    return TimedRollouts(call, float(flops), lengths, history_rows)


def bench_rollout_cost(members: int, rollouts: int) -> dict[str, Any]:
    """Processor time of one call of imagination with N members and K rollouts, as in the paper's
    table of rollout costs."""
    task, config = setting()
    sizes = {"world": {"members": members}, "rollout": {"rollouts": rollouts}}
    timed = _timed_rollouts(task, updated(config, sizes), histories=True)
    paper = published.table("rollout_cost")[f"N={members}", f"K={rollouts}"]
    return {
        "call_cpu_s": processor_seconds(timed.call),
        "horizon_mean": float(timed.lengths.mean()),
        "paper_s": None if paper is None else paper.mean,
    }


def _untrained(task: Task, config: TrainConfig) -> tuple[Countdown, GaussianPolicy]:
    """A world and a policy of the configured sizes."""
    inputs, outputs = training.member_sizes(task)
    build = jax.vmap(lambda key: Member(inputs, outputs, config.world, key=key))
    members = jax.jit(build)(jax.random.split(jax.random.key(0), config.world.members))
    scaler = Scaler(
        *(jnp.zeros(task.state_size), jnp.ones(task.state_size)),
        *(jnp.zeros(task.actions.size), jnp.ones(task.actions.size)),
        *(jnp.zeros(()), jnp.ones(())),
    )
    world = World(members, scaler, reward_only=False, quantifier="disagreement")
    agent = redq.Agent(task.state_size, task.actions.size, config.agent)
    return Countdown(world), agent.behaviour(agent.init(jax.random.key(0)))


def _product_flops(network: Any, rank: int) -> int:
    """Of one row through every weight matrix; `rank` counts their axes, which are 3 if stacked."""
    return 2 * sum(leaf.size for leaf in jax.tree.leaves(network) if leaf.ndim == rank)


# --- Replay --------------------------------------------------------------------------------------


def bench_replay(task: str, size: Preset) -> dict[str, Any]:
    """Tapes drawn from a replay of a million rows, against an update at the full matmul rate."""
    known, settings = setting(task, size)
    config = settings.agent
    rng, horizon, count = np.random.default_rng(0), known.horizon, 100
    dataset = synthetic_dataset(known, 100 * (horizon + 1))
    replay = Replay(dataset, config.buffer)
    while replay.rows < 1_000_000:
        prefix = imagination.draw_histories(rng, dataset.histories, count)
        length = np.minimum(rng.geometric(5 / horizon, count), horizon - prefix.length)
        imagined = slice_rows(dataset.tape, 0, int(np.sum(length + 1)))
        nothing = np.zeros(count, np.float32)
        replay.add(prefix, imagination.Rollouts(imagined, length, nothing.astype(int), nothing))
    shape = batch_shape(known, settings)
    rows = shape.size
    batches = 50  # as in training

    def draw() -> Any:
        if shape.slots is None:
            return replay.sample(rng, batches, rows)
        return replay.sample_windows(rng, batches, shape, 0.5)

    result = measure(
        draw,
        float(batches * redq.update_flops(known.state_size, known.actions.size, config, rows)),
    )
    seconds = result.seconds / batches
    return {
        "matmul_gflops": result.matmul_gflops,
        "tape_ms": 1e3 * seconds,
        "update_share": 1 / result.ratio,
        "bytes_per_row": replay.bytes_per_row,
        "full_gb": replay.bytes_per_row * replay.capacity / 1e9,
    }


# --- Exported policies ----------------------------------------------------------------------------


def bench_policy(task: str, size: Preset, form: str) -> dict[str, Any]:
    """One step of a policy on one observation, in one of its forms; the size of its files."""
    known, settings = setting(task, size)
    config = settings.agent
    agent = redq.Agent(known.state_size, known.actions.size, config)
    policy = Policy(agent, agent.init(jax.random.key(0)), known, config)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "policy"
        if form == "neubay":
            policy.save(out / "policy.npz")
        else:
            policy.export(form, out)  # type: ignore[arg-type]
        kilobytes = sum(p.stat().st_size for p in out.iterdir() if p.name != "card.md") / 1e3
        step = _stepper(policy, form, out)
    turns = 500  # a step is short, so many make one call

    def call() -> None:
        for _ in range(turns):
            step()

    result = measure(call, float(turns * _product_flops(policy.mode, rank=2)))
    return {
        "matmul_gflops": result.matmul_gflops,
        "step_us": 1e6 * result.seconds / turns,
        "files_kb": kilobytes,
    }


def _stepper(policy: Policy, form: str, out: Path) -> Callable[[], Any]:
    """Takes one step of the policy after another, its memory carried along."""
    task, config = policy.task, policy.config
    observation = np.zeros(task.state_size, np.float32)
    if form in ("neubay", "numpy"):
        acting: Any = policy if form == "neubay" else standalone.load(out)
        state = acting.predict(observation)[1]

        def step() -> None:
            nonlocal state
            _, state = acting.predict(observation, state, reward=0.0)

        return step
    inputs = {
        "observation": observation[None],
        "reward": np.zeros(1, np.float32),
        "start": np.zeros(1, bool),
        "last_action": np.zeros((1, task.actions.size), np.float32),
        "memory": np.zeros((1, config.memory_layers, 2, config.memory_size), np.float32),
    }
    run = _onnx_step(out) if form == "onnx" else _stablehlo_step(out)

    def feed() -> None:
        inputs["last_action"], inputs["memory"] = run(inputs)

    return feed


def _onnx_step(out: Path) -> Callable[[dict[str, np.ndarray]], Any]:
    try:
        import onnxruntime
    except ImportError:
        raise NeubayError("this case needs onnxruntime: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path, providers = str(out / "policy.onnx"), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    return lambda inputs: session.run(None, inputs)


def _stablehlo_step(out: Path) -> Callable[[dict[str, np.ndarray]], Any]:
    call = jax.jit(jax.export.deserialize(bytearray((out / "policy.stablehlo").read_bytes())).call)
    return lambda inputs: map(np.asarray, call(*inputs.values()))


# --- Accelerators ---------------------------------------------------------------------------------


def bench_parameters(part: str) -> dict[str, Any]:
    """Trained numbers of a part of the published setting, beside the paper's bound."""
    found = accelerator.parameters(*setting())
    return {"parameters": found[part], "paper_below": accelerator.PAPER_BOUNDS[part]}


def bench_device(program: str) -> dict[str, Any]:
    """Host transfers and memory of a program of the published setting."""
    return accelerator.count_published(*setting(), program)


def bench_estimate(pool: int | None) -> dict[str, Any]:
    """Expected time and memory on the paper's card: of a world's pool, or of the agent."""
    task, config = setting()
    if pool is None:
        return accelerator.expected_agent(task, config)
    paper = published.table("model_cost")["world", f"pool={pool}"]
    return accelerator.expected_world(task, config, pool) | {
        "paper_h": None if paper is None else paper.mean,
        "paper_gb": accelerator.PAPER_GB["world"] if pool == config.world.pool else None,
    }


# --- Cases, each in its own process --------------------------------------------------------------

MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "world": bench_world,
    "agent": bench_agent,
    "imagination": bench_imagination,
    "replay": bench_replay,
    "policy": bench_policy,
    "pools": bench_world_cost,
    "rollouts": bench_rollout_cost,
    "parameters": bench_parameters,
    "device": bench_device,
    "estimate": bench_estimate,
}


class Case(NamedTuple):
    """A stage at one size."""

    stage: str
    name: str
    arguments: dict[str, Any]


CASES = [
    *(
        Case("world", f"pool {pool}, {label} transitions", {"pool": pool, "rows": rows})
        for pool, label, rows in (
            (8, "100k", 100_000),
            (32, "100k", 100_000),
            (128, "100k", 100_000),
            (8, "10k", 10_000),
            (8, "1M", 1_000_000),
        )
    ),
    Case("agent", "published size", {"task": "d4rl/halfcheetah", "size": "paper"}),
    Case("agent", "cpu preset, hopper", {"task": "d4rl/hopper", "size": "cpu"}),
    Case("agent", "cpu preset, pendulum", {"task": "pendulum", "size": "cpu"}),
    *(
        Case(
            "imagination",
            f"{name}, {'with histories' if histories else 'from s_0'}",
            {"task": task, "size": size, "histories": histories},
        )
        for name, task, size in (
            ("N = K = 100", "d4rl/halfcheetah", "paper"),
            ("cpu preset, hopper", "d4rl/hopper", "cpu"),
        )
        for histories in (True, False)
    ),
    Case("replay", "published size", {"task": "d4rl/halfcheetah", "size": "paper"}),
    Case("replay", "cpu preset, hopper", {"task": "d4rl/hopper", "size": "cpu"}),
    *(
        Case("policy", f"{name}, {form}", {"task": "d4rl/hopper", "size": size, "form": form})
        for name, size in (("published size", "paper"), ("cpu preset", "cpu"))
        for form in ("neubay", "numpy", "onnx", "stablehlo")
    ),
    *(Case("pools", f"pool {pool}", {"pool": pool}) for pool in (8, 32, 128)),
    *(
        Case("rollouts", f"N = {n}, K = {k}", {"members": n, "rollouts": k})
        for n in (5, 20, 100)
        for k in (5, 20, 100)
        if k >= n
    ),
    *(Case("parameters", part, {"part": part}) for part in accelerator.PAPER_BOUNDS),
    *(Case("device", name, {"program": name}) for name in accelerator.COUNTED),
    *(Case("estimate", f"world, pool {pool}", {"pool": pool}) for pool in (8, 32, 128)),
    Case("estimate", "agent", {"pool": None}),
]


def run_case(case: Case) -> dict[str, Any]:
    """Run a case in a fresh process."""
    finished = subprocess.run(
        [sys.executable, "-m", "neubay.bench.stages", json.dumps(case)],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise NeubayError(f"bench case '{case.name}' failed:\n{finished.stderr.strip()}")
    answer: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return answer


def results(stages: Sequence[str], report: Callable[[str], None]) -> dict[str, Any]:
    """Run every case of the stages; `report` gets the name of each before it runs."""
    measured: dict[str, Any] = {}
    rates = []
    for case in (case for stage in stages for case in CASES if case.stage == stage):
        report(f"{case.stage}: {case.name}")
        measured[f"{case.stage}, {case.name}"] = answer = run_case(case)
        rates += [answer.pop("matmul_gflops")] if "matmul_gflops" in answer else []
    return {
        "matmul_gflops": float(np.median(rates)) if rates else None,
        "cases": measured,
        "provenance": provenance(),
    }


if __name__ == "__main__":
    stage, _, arguments = json.loads(sys.argv[1])
    print(json.dumps(MEASURES[stage](**arguments)))
