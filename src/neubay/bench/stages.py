"""Speed of each stage as a share of what the machine can do: its own matmul rate in the same run.

Times on shared machines are noisy, so a stage and a plain float32 matmul (2048 x 256 x 256) are
timed in turns, and the best of each is compared. Flops are those of the stage's matrix products,
counted from shapes; everything else it does costs time and counts nothing.

Every case runs in a process of its own, so that its memory can be told apart.
"""

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from neubay import imagination
from neubay.agents import redq
from neubay.agents.networks import RecurrentPolicy
from neubay.config import Preset, Published, TrainConfig, WorldConfig, preset
from neubay.data.dataset import Dataset
from neubay.errors import NeubayError
from neubay.replay import Replay
from neubay.runs.files import atomic_file
from neubay.runs.provenance import provenance
from neubay.tape import AnyArray, Tape, slice_rows
from neubay.tasks import Task, get_task
from neubay.world import training
from neubay.world.model import Member, Scaler, World
from neubay.world.transitions import Epochs, Transitions, fit_scaler, split_rows

MATMUL = (2048, 256, 256)
_MATMULS_PER_TURN = 100
_WORLD_FLOPS = 2e11  # of the gradient steps timed in one turn
_AGENT_FLOPS = 5e10


class Measurement(NamedTuple):
    """The best rates of a stage and of the matmul beside it."""

    gflops: float
    matmul_gflops: float
    compile_s: float
    seconds: float  # of one call

    @property
    def ratio(self) -> float:
        return self.gflops / self.matmul_gflops


def measure(call: Callable[[], Any], flops: float, *, turns: int = 7) -> Measurement:
    """Time `call`, which does `flops` of matrix products, in turns with the machine's matmul.

    The first call compiles; what it takes beyond a later one is the compile time.
    """
    rows, inner, columns = MATMUL
    left, right = jnp.ones((rows, inner)), jnp.ones((inner, columns))
    product = jax.jit(jnp.matmul)

    def matmuls() -> None:
        for _ in range(_MATMULS_PER_TURN):
            product(left, right).block_until_ready()

    first = _seconds(lambda: jax.block_until_ready(call()))
    matmuls()
    times = []
    for _ in range(turns):
        matmul_seconds = _seconds(matmuls)
        times.append((_seconds(lambda: jax.block_until_ready(call())), matmul_seconds))
    stage, matmul = (min(column) for column in zip(*times, strict=True))
    return Measurement(
        gflops=flops / stage / 1e9,
        matmul_gflops=2 * rows * inner * columns * _MATMULS_PER_TURN / matmul / 1e9,
        compile_s=max(first - stage, 0.0),
        seconds=stage,
    )


def compile_seconds(call: Callable[[], Any]) -> float:
    """What the first call takes beyond the second."""
    first, second = (_seconds(lambda: jax.block_until_ready(call())) for _ in range(2))
    return max(first - second, 0.0)


def _seconds(function: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def peak_mb() -> float:
    """The most memory this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def made_up_dataset(task: Task, rows: int, seed: int = 0) -> Dataset:
    """Episodes of full length, of the task's sizes, that mean nothing."""
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
        name="made up",
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
    dataset = made_up_dataset(task, rows + rows // task.horizon + 1)
    recipe = training.Recipe.of(task, config)
    step_flops = pool * training.training_flops(recipe.inputs, recipe.outputs, config)
    steps = min(max(int(_WORLD_FLOPS / step_flops), 16), rows // config.batch)
    training_rows, validation_rows = split_rows(dataset.world_rows, config, seed=0)
    epochs = Epochs(dataset, training_rows, batch=config.batch, batches_per_call=steps, seed=0)
    share = next(epochs.shares(0, 0))
    validation = Transitions.copy(dataset, validation_rows)
    scaler = fit_scaler(dataset)
    keys = training.member_keys(pool, seed=0)
    shuffles = training.epoch_shuffles(keys, 0, 0)
    learner, best = training.initialise(keys, recipe)
    lanes = training.spread(learner, recipe.layout)
    del learner  # spread out, it would be held twice

    def epoch_of_one_step() -> Any:
        nonlocal lanes, best
        lanes = training.train(lanes, shuffles, share._replace(last=1), scaler, recipe)
        members = training.joined([lane.members for lane in lanes])
        score = training.validate(members, validation, scaler, recipe)
        best, _ = training.keep_best(best, members, score, config)
        return best

    def call() -> Any:
        nonlocal lanes
        lanes = training.train(lanes, shuffles, share, scaler, recipe)
        return lanes

    compile_s = compile_seconds(epoch_of_one_step)
    result = measure(call, float(steps * step_flops))._replace(compile_s=compile_s)
    return _record(result) | {
        "peak_mb": peak_mb() - before,
        "step_s": result.seconds / steps,
        "pool": pool,
        "rows": rows,
    }


# --- The agent -----------------------------------------------------------------------------------


def bench_agent(task: str, size: Preset) -> dict[str, Any]:
    """Gradient steps of the agent on tapes of the preset's length, half of their rows imagined."""
    known = get_task(task)
    config = preset(size, Published(benchmark=known.benchmark)).agent
    before = peak_mb()
    agent = redq.Agent(known.state_size, known.actions.size, config)
    rows = config.tape or 512 * math.ceil((known.horizon + 1) / 512)
    step_flops = redq.update_flops(agent.state_size, agent.action_size, config, rows)
    batches = max(int(_AGENT_FLOPS / step_flops), 2)
    tape = made_up_dataset(known, batches * rows).tape
    tape = tape._replace(real=np.arange(len(tape.start)) % 2 == 0)
    tapes = jax.tree.map(
        lambda field: jnp.asarray(field).reshape(batches, rows, *field.shape[1:]), tape
    )
    state = agent.init(jax.random.key(0))

    def call() -> Any:
        nonlocal state
        state, metrics = agent.update(state, tapes)
        return metrics

    result = measure(call, float(batches * step_flops))
    return _record(result) | {"peak_mb": peak_mb() - before, "step_s": result.seconds / batches}


def _record(result: Measurement) -> dict[str, Any]:
    return {
        "gflops": result.gflops,
        "matmul_gflops": result.matmul_gflops,
        "ratio": result.ratio,
        "compile_s": result.compile_s,
        "call_s": result.seconds,
    }


# --- Imagination ---------------------------------------------------------------------------------


class Countdown(eqx.Module):
    """A world whose rollouts last as long as the first number of their branching state says."""

    world: World

    @property
    def size(self) -> int:
        return self.world.size

    def select(self, member: Int[Array, " k"]) -> "Countdown":
        return Countdown(self.world.select(member))

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
    known = get_task(task)
    config = preset(size, Published(benchmark=known.benchmark))
    count, horizon = config.rollout.rollouts, known.horizon
    before, rng = peak_mb(), np.random.default_rng(0)
    world, policy = _untrained(known, config)
    dataset = made_up_dataset(known, 20 * (horizon + 1))
    start: Literal["any", "initial"] = "any" if histories else "initial"
    prefix = imagination.draw_histories(rng, dataset.histories, count, start)
    branches = imagination.branch(dataset, prefix)
    spread = -np.log((np.arange(count) + 0.5) / count) * horizon / 5
    lengths = rng.permutation(np.clip(np.ceil(spread), 1, horizon))
    branches.inputs.state[:, 0] = lengths
    rules = imagination.Rules(
        horizon=2 * horizon, max_steps=horizon, termination=_counted_down, threshold=1e9
    )
    member = imagination.draw_members(rng, count, world.size)
    rows, history_rows = int(lengths.sum()), int(np.sum(prefix.length))
    flops = rows * (_product_flops(world, 3) + _product_flops(policy.actor, 2))
    flops += history_rows * _product_flops(policy.actor.encoder, 2)

    def call() -> imagination.Rollouts:
        rollouts = imagination.imagine(world, policy, branches, member, rules, jax.random.key(0))
        assert rollouts.length.sum() == rows
        return rollouts

    result = measure(call, float(flops), turns=4)
    return _record(result) | {
        "peak_mb": peak_mb() - before,
        "rows_per_s": rows / result.seconds,
        "horizon_mean": rows / count,
        "horizon_max": float(lengths.max()),
        "history_mean": history_rows / count,
    }


def _untrained(task: Task, config: TrainConfig) -> tuple[Countdown, RecurrentPolicy]:
    """A world and a policy of the configured sizes."""
    inputs, outputs = task.state_size + task.actions.size, task.state_size + 1
    members = jax.vmap(lambda key: Member(inputs, outputs, config.world, key=key))(
        jax.random.split(jax.random.key(0), config.world.members)
    )
    scaler = Scaler(
        *(jnp.zeros(task.state_size), jnp.ones(task.state_size)),
        *(jnp.zeros(task.actions.size), jnp.ones(task.actions.size)),
        *(jnp.zeros(()), jnp.ones(())),
    )
    world = World(members, scaler, reward_only=False, quantifier="disagreement")
    agent = redq.Agent(task.state_size, task.actions.size, config.agent)
    return Countdown(world), agent.policy(agent.init(jax.random.key(0)), deterministic=False)


def _product_flops(network: Any, rank: int) -> int:
    """Of one row through every weight matrix; `rank` counts their axes, which are 3 if stacked."""
    return 2 * sum(leaf.size for leaf in jax.tree.leaves(network) if leaf.ndim == rank)


# --- Replay --------------------------------------------------------------------------------------


def bench_replay(task: str, size: Preset) -> dict[str, Any]:
    """Tapes drawn from a replay of a million rows, against an update at the full matmul rate."""
    known = get_task(task)
    config = preset(size, Published(benchmark=known.benchmark)).agent
    rng, horizon, count = np.random.default_rng(0), known.horizon, 100
    dataset = made_up_dataset(known, 100 * (horizon + 1))
    replay = Replay(dataset, config.buffer)
    while replay.rows < 1_000_000:
        prefix = imagination.draw_histories(rng, dataset.histories, count)
        length = np.minimum(rng.geometric(5 / horizon, count), horizon - prefix.length)
        imagined = slice_rows(dataset.tape, 0, int(np.sum(length + 1)))
        nothing = np.zeros(count, np.float32)
        replay.add(prefix, imagination.Rollouts(imagined, length, nothing.astype(int), nothing))
    rows = config.tape or 512 * math.ceil((horizon + 1) / 512)
    batches = 50  # as in training
    result = measure(
        lambda: replay.sample(rng, batches, rows),
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


# --- Cases, each in its own process --------------------------------------------------------------


class Case(NamedTuple):
    """A stage at one size."""

    name: str
    function: str
    arguments: dict[str, Any]


STAGES: dict[str, list[Case]] = {
    "world": [
        *(
            Case(f"pool {pool}, 100k transitions", "bench_world", {"pool": pool, "rows": 100_000})
            for pool in (8, 32, 128)
        ),
        *(
            Case(f"pool 8, {label} transitions", "bench_world", {"pool": 8, "rows": rows})
            for label, rows in (("10k", 10_000), ("1M", 1_000_000))
        ),
    ],
    "agent": [
        Case("published size", "bench_agent", {"task": "d4rl/halfcheetah", "size": "paper"}),
        Case("cpu preset, hopper", "bench_agent", {"task": "d4rl/hopper", "size": "cpu"}),
        Case("cpu preset, pendulum", "bench_agent", {"task": "pendulum", "size": "cpu"}),
    ],
    "imagination": [
        Case(
            f"{name}, {'with histories' if histories else 'from s_0'}",
            "bench_imagination",
            {"task": task, "size": size, "histories": histories},
        )
        for name, task, size in (
            ("N = K = 100", "d4rl/halfcheetah", "paper"),
            ("cpu preset, hopper", "d4rl/hopper", "cpu"),
        )
        for histories in (True, False)
    ],
    "replay": [
        Case("published size", "bench_replay", {"task": "d4rl/halfcheetah", "size": "paper"}),
        Case("cpu preset, hopper", "bench_replay", {"task": "d4rl/hopper", "size": "cpu"}),
    ],
}


def run_case(case: Case) -> dict[str, Any]:
    """Run a case in a fresh process."""
    request = json.dumps([case.function, case.arguments])
    finished = subprocess.run(
        [sys.executable, "-m", "neubay.bench.stages", request],
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise NeubayError(f"bench case '{case.name}' failed:\n{finished.stderr.strip()}")
    answer: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return answer


def results(stages: list[str], report: Callable[[str], None]) -> dict[str, Any]:
    """Every case of the stages, by stage and name; `report` is told each name before it runs."""
    measured: dict[str, Any] = {}
    rates = []
    for stage in stages:
        for case in STAGES[stage]:
            report(f"{stage}: {case.name}")
            measured[f"{stage}, {case.name}"] = answer = run_case(case)
            rates.append(answer.pop("matmul_gflops"))
    return {
        "matmul_gflops": float(np.median(rates)),
        "cases": measured,
        "provenance": provenance(),
    }


COLUMNS = {
    "gflops": ("GFLOP/s", ".0f"),
    "ratio": ("share of the matmul rate", ".2f"),
    "compile_s": ("compile s", ".1f"),
    "peak_mb": ("peak MB", ".0f"),
    "rows_per_s": ("imagined rows/s", ".0f"),
    "tape_ms": ("ms per tape", ".3f"),
    "update_share": ("share of an update at the matmul rate", ".4f"),
    "bytes_per_row": ("bytes per imagined row", ".0f"),
    "full_gb": ("GB if all rows were imagined", ".2f"),
}
"""Heading and format of every figure that a table shows."""


def table(cases: dict[str, Any]) -> list[list[str]]:
    """Heading and rows of text: the figures that any of the cases has."""
    keys = [key for key in COLUMNS if any(key in case for case in cases.values())]
    return [
        ["case", *(COLUMNS[key][0] for key in keys)],
        *(
            [name, *(f"{case[key]:{COLUMNS[key][1]}}" if key in case else "" for key in keys)]
            for name, case in cases.items()
        ),
    ]


def markdown(measured: dict[str, Any], stage: str) -> str:
    """The cases of a stage as a table."""
    heading, *rows = table(
        {
            name.removeprefix(f"{stage}, "): case
            for name, case in measured["cases"].items()
            if name.startswith(f"{stage}, ")
        }
    )
    rule = ["---", *("---:" for _ in heading[1:])]
    return "\n".join(
        [
            f"Matmul rate of the machine in the same run: {measured['matmul_gflops']:.0f} GFLOP/s.",
            "",
            *(f"| {' | '.join(row)} |" for row in (heading, rule, *rows)),
        ]
    )


def write_markdown(path: Path, section: str, text: str) -> None:
    """Put `text` between the markers of a section, and leave the rest of the file alone."""
    begin, end = f"<!-- bench:{section} -->", f"<!-- /bench:{section} -->"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    if begin not in old:
        old = f"{old.rstrip()}\n\n## {section}\n\n{begin}\n{end}\n"
    head, rest = old.split(begin, 1)
    _, tail = rest.split(end, 1)
    with atomic_file(path) as file:
        file.write(f"{head}{begin}\n{text}\n{end}{tail}".encode())


if __name__ == "__main__":
    name, arguments = json.loads(sys.argv[1])
    print(json.dumps(globals()[name](**arguments)))
