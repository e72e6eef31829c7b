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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neubay import published, world
from neubay.config import VARIANTS, TrainConfig, updated
from neubay.data.dataset import Dataset
from neubay.errors import ConfigError
from neubay.published import Over
from neubay.tasks import Task

Changes = Iterator[tuple[str, dict[str, Any]]]
"""Names of arms, and what they change in the main setting."""

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


def arms(over: Over, config: TrainConfig, task: Task) -> list[Arm]:
    """The main arm, which is `config`, and those that differ from it."""
    found = [Arm(MAIN, config)]
    for name, changes in _GRIDS[over](config, task):
        changed = updated(config, changes)
        if changed not in [arm.config for arm in found]:
            found.append(Arm(name, changed))
    if len(found) == 1:
        raise ConfigError(
            f"--over {over}: nothing differs from the main setting; the smallest posterior of the "
            f"paper has {SIZES[-1]} members, this one {config.world.members}"
        )
    return found


def plan(
    over: Over, config: TrainConfig, task: Task, seeds: Sequence[int], folder: Path
) -> list[Planned]:
    """All runs, seed by seed: after each seed there is a whole ablation to report."""
    return [
        Planned(arm, seed, updated(arm.config, {"seed": seed}), folder / f"{arm.name}-seed{seed}")
        for seed in dict.fromkeys(seeds)
        for arm in arms(over, config, task)
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


def _zeta(config: TrainConfig, task: Task) -> Changes:
    for zeta in reversed(published.ZETAS):
        yield f"zeta-{zeta:g}", {"rollout": {"zeta": zeta}}


def _size(config: TrainConfig, task: Task) -> Changes:
    for members in SIZES:
        if members < config.world.members:
            yield f"N-{members}", {"world": {"members": members}}


def _penalty(config: TrainConfig, task: Task) -> Changes:
    for penalty in PENALTIES:
        yield f"lambda-{penalty:g}", {"rollout": {"penalty": penalty}}


def _horizon(config: TrainConfig, task: Task) -> Changes:
    longest = LONG_HORIZON if task.horizon > LONG_HORIZON else HORIZON_OF_SHORT_EPISODES
    for horizon in (longest, *SHORT_HORIZONS):
        yield f"horizon-{horizon}", {"rollout": {"horizon": horizon, "zeta": None}}


def _memory(config: TrainConfig, task: Task) -> Changes:
    for kappa in dict.fromkeys((config.agent.kappa, *_kappas(task))):
        name = "markov" if kappa is None else f"markov-kappa-{kappa:g}"
        yield name, {"agent": VARIANTS["markov"]["agent"] | {"kappa": kappa}}


def _kappas(task: Task) -> tuple[float, ...]:
    """What the paper chose kappa from, for the benchmark that the task belongs to."""
    return _benchmark(task).kappa_grid


def _benchmark(task: Task) -> published.PaperBenchmark:
    for dataset in published.datasets().values():
        if dataset.task == task.name:
            return published.benchmarks()[dataset.benchmark]
    return published.benchmarks()[LARGEST]


def _kappa(config: TrainConfig, task: Task) -> Changes:
    for kappa in _benchmark(task).kappa_grid:
        yield f"kappa-{kappa:g}", {"agent": {"kappa": kappa}}


def _eta_phi(config: TrainConfig, task: Task) -> Changes:
    for rate in _benchmark(task).eta_phi_grid:
        yield f"eta_phi-{rate:g}", {"agent": {"encoder_lr": rate}}


def _critic(config: TrainConfig, task: Task) -> Changes:
    if task.actions.kind == "discrete":
        raise ConfigError(
            f"--over critic: '{task.name}' has discrete actions, whose critic is neither REDQ nor "
            "SAC; choose another ablation"
        )
    for zeta in SAC_ZETAS:
        changes = {"agent": {"heads": 2, "target_heads": 2}, "rollout": {"zeta": zeta}}
        yield f"sac-zeta-{zeta:g}", changes


def _layernorm(config: TrainConfig, task: Task) -> Changes:
    yield "layernorm", {"world": {"layer_norm": True}}
    yield "no-layernorm", {"world": {"layer_norm": False}}


_GRIDS: dict[Over, Callable[[TrainConfig, Task], Changes]] = {
    "zeta": _zeta,
    "N": _size,
    "lambda": _penalty,
    "horizon": _horizon,
    "memory": _memory,
    "critic": _critic,
    "layernorm": _layernorm,
    "kappa": _kappa,
    "eta_phi": _eta_phi,
}
