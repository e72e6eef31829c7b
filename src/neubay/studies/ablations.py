"""The paper's ablations: which runs they are, and what their runs share.

An ablation varies one choice around the setting it is given, its *main* arm:

| over | arms beside the main one |
|---|---|
| zeta | the quantile of uncertainty that cuts a rollout: 1, 0.999, 0.99, 0.9 |
| N | smaller posteriors, the best 20 and 5 of the same pool |
| lambda | an uncertainty penalty on imagined rewards: 0.04, 0.2, 1, 5 |
| horizon | a fixed horizon instead of an adaptive one: 256 (32 where episodes are shorter), 10, 3 |
| memory | the Markov agent, with each kappa that the paper chose from |
| critic | SAC instead of REDQ, with zeta 1 and 0.9 |
| layernorm | a world without LayerNorm |
| kappa | the weight of real rows, from the grid of the data's benchmark |
| eta_phi | the encoder's learning rate, from the grid of the data's benchmark |

An arm equal to the main setting is left out. All ablations of a setting have the same main arm, and
in one folder they share its runs. Runs that need the same world find it in the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neubay import published, world
from neubay.config import VARIANTS, Facts, TrainConfig, settle, updated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.published import Over
from neubay.tasks import Task

SIZES = (20, 5)
PENALTIES = (0.04, 0.2, 1.0, 5.0)
LONG_HORIZON, HORIZON_OF_SHORT_EPISODES = 256, 32
SHORT_HORIZONS = (10, 3)
SAC_ZETAS = (1.0, 0.9)
LARGEST: published.BenchmarkName = "d4rl_locomotion"
"""The paper's largest benchmark, whose grids hold for data that is not the paper's."""
MAIN = "main"


@dataclass(frozen=True)
class Arm:
    """One setting of an ablation."""

    name: str
    config: TrainConfig


@dataclass(frozen=True)
class Planned:
    """One run of an ablation."""

    arm: Arm
    seed: int
    config: TrainConfig
    directory: Path


def arms(over: Over, config: TrainConfig, task: Task, facts: Facts | None = None) -> list[Arm]:
    """The main arm, which is `config`, and those that differ from it; with the facts of the data,
    in what follows from these too."""

    def settled(changed: TrainConfig) -> TrainConfig:
        return changed if facts is None else settle(changed, facts)

    found = [Arm(MAIN, config)]
    for name, changes in _grid(over, config, task).items():
        changed = updated(config, changes)
        if settled(changed) not in [settled(arm.config) for arm in found]:
            found.append(Arm(name, changed))
    if len(found) == 1:
        raise ConfigError(
            f"--over {over}: nothing differs from the main setting; the smallest posterior of the "
            f"paper has {SIZES[-1]} members, this one {config.world.members}"
        )
    return found


def plan(
    over: Over,
    config: TrainConfig,
    task: Task,
    seeds: Sequence[int],
    folder: Path,
    facts: Facts | None = None,
) -> list[Planned]:
    """All runs, seed by seed: after each seed there is a whole ablation to report."""
    return [
        Planned(arm, seed, updated(arm.config, {"seed": seed}), folder / f"{arm.name}-seed{seed}")
        for seed in dict.fromkeys(seeds)
        for arm in arms(over, config, task, facts)
    ]


def shares_pool(main: TrainConfig, smaller: TrainConfig) -> bool:
    """The world of a run is the best few of the main run's pool."""
    members = smaller.world.members
    same_pool = main.world.model_copy(update={"members": members}) == smaller.world
    return same_pool and members < main.world.members and main.seed == smaller.seed


def share_pool(dataset: Dataset, main: TrainConfig, smaller: TrainConfig) -> None:
    """Make the world of a run from the main run's, where it is the best few of the same pool.

    Training anew would give the very same members. Nothing happens where worlds differ in more.
    """
    if not shares_pool(main, smaller):
        return
    members = smaller.world.members
    source, target = (
        world.world_directory(dataset, config.world, config.seed) for config in (main, smaller)
    )
    if world.is_whole(source) and not world.is_whole(target):
        world.save(world.best_of(world.load(source, dataset), dataset, members), target)


# --- The grids -----------------------------------------------------------------------------------


def _grid(over: Over, config: TrainConfig, task: Task) -> dict[str, dict[str, Any]]:
    """Names of arms, and what each changes in the main setting."""
    if over == "critic" and task.actions.kind == "discrete":
        raise ConfigError(
            f"--over critic: '{task.name}' has discrete actions, whose critic is neither REDQ nor "
            "SAC; choose another ablation"
        )
    paper, markov = _benchmark(task), VARIANTS["markov"]["agent"]
    longest = LONG_HORIZON if task.horizon > LONG_HORIZON else HORIZON_OF_SHORT_EPISODES
    sac = {"heads": 2, "target_heads": 2}
    grids: dict[Over, dict[str, dict[str, Any]]] = {
        "zeta": {f"zeta-{z:g}": {"rollout": {"zeta": z}} for z in reversed(published.ZETAS)},
        "N": {f"N-{n}": {"world": {"members": n}} for n in SIZES if n < config.world.members},
        "lambda": {f"lambda-{each:g}": {"rollout": {"penalty": each}} for each in PENALTIES},
        "horizon": {
            f"horizon-{h}": {"rollout": {"horizon": h, "zeta": None}}
            for h in (longest, *SHORT_HORIZONS)
        },
        "memory": {
            "markov" if kappa is None else f"markov-kappa-{kappa:g}": {
                "agent": markov | {"kappa": kappa}
            }
            for kappa in (config.agent.kappa, *paper.kappa_grid)
        },
        "critic": {f"sac-zeta-{z:g}": {"agent": sac, "rollout": {"zeta": z}} for z in SAC_ZETAS},
        "layernorm": {
            "layernorm": {"world": {"layer_norm": True}},
            "no-layernorm": {"world": {"layer_norm": False}},
        },
        "kappa": {f"kappa-{k:g}": {"agent": {"kappa": k}} for k in paper.kappa_grid},
        "eta_phi": {f"eta_phi-{e:g}": {"agent": {"encoder_lr": e}} for e in paper.eta_phi_grid},
    }
    return grids[over]


def _benchmark(task: Task) -> published.PaperBenchmark:
    """The paper's benchmark that the task belongs to, with the grids that it chose from."""
    known = (each.benchmark for each in published.datasets().values() if each.task == task.name)
    return published.benchmarks()[next(known, LARGEST)]
