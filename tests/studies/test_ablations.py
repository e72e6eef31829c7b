"""The paper's ablations: the grids are its tables' columns, and runs share their worlds."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from helpers.small_runs import swings, tiny
from neubay import published, world
from neubay.config import Facts, TrainConfig, preset, updated
from neubay.errors import ConfigError
from neubay.published import Over
from neubay.runs.files import tree_hash
from neubay.studies import ablations
from neubay.tasks import get_task, published_settings


def paper_arms(over: Over, name: str = "hopper-medium-replay-v2") -> dict[str, TrainConfig]:
    task = get_task(published.datasets()[name].task)
    config = preset("paper", published_settings(task, name))
    return {arm.name: arm.config for arm in ablations.arms(over, config, task)}


# --- The grids -----------------------------------------------------------------------------------


def columns(table: str, group: str) -> list[str]:
    return [column.name for column in published.table(table).columns if column.group == group]


def values(over: Over, show: Any) -> list[str]:
    return [show(config) for config in paper_arms(over).values()]


def test_the_grids_are_the_columns_of_the_papers_tables() -> None:
    assert values("zeta", lambda c: f"zeta={c.rollout.zeta:g}") == columns("ablations", "zeta")
    assert values("N", lambda c: f"N={c.world.members}") == columns("ablations", "N")
    assert values("lambda", lambda c: f"lambda={c.rollout.penalty:g}") == columns(
        "ablations", "lambda"
    )
    assert values(
        "horizon", lambda c: f"H={c.rollout.horizon}" if c.rollout.horizon else "adaptive"
    ) == columns("horizon_ablation", "horizon")
    assert values(
        "critic",
        lambda c: f"{'SAC' if c.agent.heads == 2 else 'REDQ'} zeta={c.rollout.zeta:g}",
    ) == columns("sac_ablation", "critic")


@pytest.mark.parametrize("over", get_args(Over))
def test_arms_differ_from_the_main_one_in_the_named_choice_alone(over: Over) -> None:
    may_differ = {
        "zeta": {"rollout.zeta"},
        "N": {"world.members"},
        "lambda": {"rollout.penalty"},
        "horizon": {"rollout.horizon", "rollout.zeta"},
        "memory": {"agent.memory", "agent.kappa", "agent.window"},
        "critic": {"agent.heads", "agent.target_heads", "rollout.zeta"},
        "layernorm": {"world.layer_norm"},
        "kappa": {"agent.kappa"},
        "eta_phi": {"agent.encoder_lr"},
    }[over]
    main, *others = paper_arms(over).values()
    assert others
    for other in others:
        differing = {
            f"{stage}.{name}"
            for stage in ("world", "rollout", "agent", "evaluation")
            for name, value in getattr(other, stage)
            if value != getattr(getattr(main, stage), name)
        }
        assert differing and differing <= may_differ


def test_fixed_horizons_are_not_cut_and_fit_into_an_episode() -> None:
    for name, longest in (("hopper-random-v2", 256), ("pen-cloned-v1", 32)):
        fixed = list(paper_arms("horizon", name).values())[1:]
        assert [config.rollout.horizon for config in fixed] == [longest, 10, 3]
        assert all(config.rollout.zeta is None for config in fixed)


@pytest.mark.parametrize(
    ("name", "kappas"),
    [
        ("hopper-medium-replay-v2", {0.05, 0.5, 0.8}),
        ("Hopper-v3-Low", {0.5, 0.8}),
        ("antmaze-umaze-v2", {0.5, 0.8, 0.95}),
    ],
)
def test_the_markov_agents_kappa_is_chosen_anew(name: str, kappas: set[float]) -> None:
    main, *markov = paper_arms("memory", name).values()
    assert main.agent.memory == "lru"
    assert all(config.agent.memory == "none" for config in markov)
    assert {config.agent.kappa for config in markov} == kappas


def test_a_reduced_posterior_shrinks_as_far_as_it_can() -> None:
    task = get_task("d4rl/hopper")
    small = updated(preset("cpu"), {"world": {"pool": 12, "members": 10}})
    found = ablations.arms("N", small, task)
    assert [arm.config.world.members for arm in found] == [10, 5]
    with pytest.raises(ConfigError, match="has 5 members, this one 4"):
        ablations.arms("N", updated(preset("cpu"), {"world": {"members": 4}}), task)


def test_what_is_the_main_setting_is_no_arm_of_its_own() -> None:
    config = updated(preset("cpu"), {"rollout": {"zeta": 0.99}})
    found = ablations.arms("zeta", config, get_task("d4rl/hopper"))
    assert [arm.name for arm in found] == ["main", "zeta-1", "zeta-0.999", "zeta-0.9"]
    of_policies = Facts(horizon=1000, reward_rms=1.0, foretold=0.5)  # for which zeta is 1
    found = ablations.arms("zeta", preset("cpu"), get_task("d4rl/hopper"), of_policies)
    assert [arm.name for arm in found] == ["main", "zeta-0.999", "zeta-0.99", "zeta-0.9"]
    without = updated(preset("cpu"), {"world": {"layer_norm": False}})
    found = ablations.arms("layernorm", without, get_task("d4rl/hopper"))
    assert [arm.name for arm in found] == ["main", "layernorm"]


def test_discrete_control_has_no_critic_to_exchange() -> None:
    with pytest.raises(ConfigError, match="discrete actions"):
        ablations.arms("critic", preset("cpu"), get_task("cartpole"))


def test_seeds_come_one_after_the_other_and_each_once(tmp_path: Path) -> None:
    task = get_task("d4rl/hopper")
    planned = ablations.plan("layernorm", preset("cpu"), task, [3, 1, 3], tmp_path)
    assert [(run.arm.name, run.seed) for run in planned] == [
        ("main", 3),
        ("no-layernorm", 3),
        ("main", 1),
        ("no-layernorm", 1),
    ]
    assert all(run.config.seed == run.seed for run in planned)
    assert planned[1].directory == tmp_path / "no-layernorm-seed3"


@pytest.mark.slow
def test_a_smaller_posterior_is_the_best_of_the_same_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what training the pool again and keeping fewer would give."""
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path))
    dataset = swings(get_task("pendulum"))
    main = tiny(world={"pool": 3, "members": 3})
    smaller = updated(main, {"world": {"members": 2}})
    where = world.world_directory(dataset, smaller.world, 0)
    ablations.share_pool(dataset, main, smaller)
    assert not where.exists(), "there is no main world yet"
    world.fit(dataset, main.world, 0, directory=world.world_directory(dataset, main.world, 0))
    ablations.share_pool(dataset, main, updated(smaller, {"world": {"max_epochs": 3}}))
    assert len(list(where.parent.iterdir())) == 1, "another world is none of its business"
    ablations.share_pool(dataset, main, smaller)
    shared, anew = world.load(where, dataset), world.fit(dataset, smaller.world, 0)
    assert shared.identity == anew.identity
    np.testing.assert_array_equal(shared.kept, anew.kept)
    np.testing.assert_array_equal(shared.data_uncertainty, anew.data_uncertainty)
    assert tree_hash(shared.world) == tree_hash(anew.world)


def test_kappa_and_eta_phi_have_the_grids_of_the_benchmark() -> None:
    """AntMaze's are others than locomotion's, which hold for data that is not the paper's."""
    grids = {
        "d4rl/hopper": ((0.05, 0.5, 0.8), (3e-7, 1e-6, 3e-6, 1e-5, 3e-5)),
        "antmaze/umaze": ((0.5, 0.8, 0.95), (1e-6, 3e-6, 1e-5, 3e-5)),
        "pendulum": ((0.05, 0.5, 0.8), (3e-7, 1e-6, 3e-6, 1e-5, 3e-5)),
    }
    main = updated(preset("cpu"), {"agent": {"kappa": 0.33, "encoder_lr": 0.2}})
    for name, (kappas, rates) in grids.items():
        task = get_task(name)
        found = [arm.config.agent.kappa for arm in ablations.arms("kappa", main, task)]
        assert found == [0.33, *kappas]
        found = [arm.config.agent.encoder_lr for arm in ablations.arms("eta_phi", main, task)]
        assert found == [0.2, *rates]
