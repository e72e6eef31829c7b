"""What the published setting asks of an accelerator, counted where there is none.

Programs are built as an accelerator gets them and compiled by the CPU's compiler: host transfers
are then exact, and memory is that of its buffers, which another compiler may lay out otherwise.
Times are estimates: flops from shapes at a stated share of a card's peak.
"""

import re
from typing import Any

import jax

from neubay import agents
from neubay.agents import redq
from neubay.bench.programs import Program, number_of_bytes, programs, world_programs
from neubay.config import TrainConfig, known, updated
from neubay.devices import choices
from neubay.tasks import Task
from neubay.world.training import member_sizes, training_flops

TRANSITIONS, EPOCHS = 2_000_000, 600
"""Of halfcheetah-medium-expert-v2, whose cost the paper reports, and the cap of its world."""
PEAK = 91.6e12
"""Float32 operations a second of the paper's card, an NVIDIA L40S (48 GB), outside tensor cores."""
SHARES = (0.1, 0.3)
"""Of that peak: what small batched products may reach, from poor to good. An assumption."""
COUNTED = ("world: epoch", "world: validation", "imagination", "agent: update", "policy: step")
PAPER_BOUNDS = {
    "world, N = 100": 15_000_000,
    "recurrent encoder": 600_000,
    "actor head": 200_000,
    "critic heads": 1_500_000,
}
"""Parameters, which the paper states as 'fewer than'."""
PAPER_GB = {"world": 10.7, "agent": 2.6}
PAPER_AGENT_HOURS = 4.4

_INSIDE = re.compile(r" (?:infeed|outfeed|send|recv)\(|custom_call_target=\"[^\"]*callback")


def count(program: Program) -> dict[str, Any]:
    """Host transfers of one call, inside of it and around it, and its memory on the device."""
    compiled = program.jitted().lower(*program.arguments).compile()
    memory = compiled.memory_analysis()
    sent, read = program.sent(*program.arguments), program.read(program.result)
    return {
        "transfers_inside": len(_INSIDE.findall(compiled.as_text())),
        "arrays_sent": len(jax.tree.leaves(sent)),
        "arrays_read": len(jax.tree.leaves(read)),
        "kb_sent": number_of_bytes(sent) / 1e3,
        "kb_read": number_of_bytes(read) / 1e3,
        "gradient_steps": program.gradient_steps or None,
        "device_mb": (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        )
        / 1e6,
    }


def count_published(task: Task, config: TrainConfig, name: str) -> dict[str, Any]:
    """The same of a program of a setting, as an accelerator gets it."""
    with choices.assumed("cuda"):
        return count(programs(task, config, TRANSITIONS)[name])


def parameters(task: Task, config: TrainConfig) -> dict[str, int]:
    """Numbers that are trained, of the parts that the paper counts."""
    agent = agents.make(task.state_size, task.actions.size, task.actions.kind, config.agent)
    state = agent.init(jax.random.key(0))
    learner = world_programs(task, config, TRANSITIONS)["world: fresh members"].result[0]
    members = config.world.members * _size(learner.members) // config.world.pool
    parts = (members, *map(_size, (state.actor.encoder, state.actor.head, state.critic.head)))
    return dict(zip(PAPER_BOUNDS, parts, strict=True))


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def expected_world(task: Task, config: TrainConfig, pool: int) -> dict[str, Any]:
    """Time and memory of training a pool to its cap of epochs, as an estimate."""
    sizes = {"world": {"pool": pool, "members": min(pool, config.world.members)}}
    setting = updated(config, sizes)
    held_out = config.world.validation_max or 0
    steps = -(-(TRANSITIONS - held_out) // config.world.batch) * EPOCHS
    flops = steps * pool * training_flops(*member_sizes(task), setting.world)
    with choices.assumed("cuda"):
        found = world_programs(task, setting, TRANSITIONS)
        snapshots = number_of_bytes(found["world: snapshots"].arguments[0])
        megabytes = count(found["world: epoch"])["device_mb"]
    return _expected(flops) | {"gb": megabytes / 1e3 + snapshots / 1e9}


def expected_agent(task: Task, config: TrainConfig) -> dict[str, Any]:
    """Time and memory of all gradient steps, as an estimate; the world is held beside them."""
    rows = config.agent.tape or 0
    step = redq.update_flops(task.state_size, task.actions.size, config.agent, rows)
    with choices.assumed("cuda"):
        found = programs(task, config, TRANSITIONS)
        world = number_of_bytes(found["imagination"].arguments[0])
        update, imagined = (
            count(found[name])["device_mb"] for name in ("agent: update", "imagination")
        )
    gigabytes = max(update / 1e3 + world / 1e9, imagined / 1e3)
    paper = {"paper_h": PAPER_AGENT_HOURS, "paper_gb": PAPER_GB["agent"]}
    return _expected(known(config.agent.steps) * step) | {"gb": gigabytes} | paper


def _expected(flops: int) -> dict[str, Any]:
    hours = {f"hours_{share:.0%}": flops / (share * PEAK) / 3600 for share in SHARES}
    return {"pflop": flops / 1e15} | hours
