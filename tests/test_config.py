"""Configuration: presets are what they say, and what is wrong is explained."""

import math
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from neubay.config import (
    VARIANTS,
    Facts,
    Published,
    Variant,
    known,
    preset,
    read_yaml,
    resolve,
    settle,
    updated,
)
from neubay.errors import ConfigError


def test_paper_preset_of_each_benchmark() -> None:
    locomotion = preset("paper", Published(encoder_lr=3e-7, kappa=0.8, fixed_alpha=0.2))
    assert (locomotion.world.width, locomotion.world.depth, locomotion.world.pool) == (200, 4, 128)
    assert (locomotion.agent.encoder_lr, locomotion.agent.kappa) == (3e-7, 0.8)
    assert (locomotion.agent.alpha, locomotion.agent.tune_alpha) == (0.2, False)
    assert (locomotion.agent.tape, locomotion.agent.steps) == (2048, 2_000_000)
    adroit = preset("paper", Published(benchmark="adroit"))
    assert (adroit.world.width, adroit.world.depth, adroit.world.learning_rate) == (400, 5, 3e-4)
    assert (adroit.agent.head_depth, adroit.agent.clip_norm, adroit.agent.tape) == (3, 1e4, 1024)
    antmaze = preset("paper", Published(benchmark="antmaze"))
    assert (antmaze.agent.target_entropy, antmaze.agent.alpha) == (-10, 1e-5)
    assert (antmaze.agent.steps, antmaze.evaluation.episodes) == (3_000_000, 100)
    bandit = preset("paper", Published(benchmark="bandit"))
    assert (bandit.world.selection, bandit.world.improvement_kind) == ("nll", "absolute")
    assert (bandit.rollout.zeta, bandit.rollout.start) == (None, "initial")


def test_cpu_preset_is_smaller_and_keeps_what_defines_the_method() -> None:
    paper = preset("paper")
    cpu = settle(preset("cpu"), FACTS.model_copy(update={"foretold": 0.5}))
    assert cpu.world.pool < paper.world.pool and cpu.agent.steps < paper.agent.steps
    assert cpu.world.layer_norm and cpu.rollout.zeta == 1.0 and cpu.rollout.penalty == 0
    assert cpu.agent.memory in ("lru", "gated")


@pytest.mark.parametrize("benchmark", ["locomotion", "adroit", "antmaze", "cartpole", "other"])
def test_no_name_decides_a_reduced_setting(benchmark: Any) -> None:
    """A renamed file gets the same ones. What actions there are is seen in the data."""
    known_as = Published(
        benchmark=benchmark, encoder_lr=1e-6, kappa=0.95, max_epochs=7, fixed_alpha=0.1
    )
    assert preset("cpu", known_as) == preset("cpu")
    discrete = preset("cpu", updated(known_as, {"discrete": True}))
    assert discrete == updated(preset("cpu"), {"agent": {"algorithm": "dqn"}})


# --- What follows from the data ------------------------------------------------------------------

LEFT = {"agent": {"gamma": None, "steps": None, "value_unit": None, "kappa": None}}
FACTS = Facts(horizon=1000, reward_rms=2.0)


@pytest.mark.parametrize(
    ("facts", "gamma", "unit", "steps"),
    [
        (FACTS, 0.997, 2 / math.sqrt(0.003), 40_000),
        (Facts(horizon=200, reward_rms=6.0), 0.985, 6 / math.sqrt(0.015), 8_000),
        (Facts(horizon=5000, reward_rms=2.0), 0.997, 2 / math.sqrt(0.003), 100_000),
        (Facts(horizon=1, reward_rms=1.0), 0.25, 1 / math.sqrt(0.75), 8_000),
        (Facts(horizon=1000, reward_rms=0.0), 0.997, 1.0, 40_000),  # no reward, no unit
        (Facts(horizon=1000, reward_rms=2.0, terminals=False), 0.99, 2 / math.sqrt(0.01), 40_000),
        (Facts(horizon=200, reward_rms=6.0, terminals=False), 0.985, 6 / math.sqrt(0.015), 8_000),
    ],
)
def test_what_is_left_to_the_data_follows_by_rule(
    facts: Facts, gamma: float, unit: float, steps: int
) -> None:
    agent = settle(updated(preset("paper"), LEFT), facts).agent
    assert (agent.gamma, agent.value_unit) == (pytest.approx(gamma), pytest.approx(unit))
    assert (agent.steps, agent.kappa) == (steps, 0.5)


@pytest.mark.parametrize(
    ("foretold", "widen"), [(-0.2, 0.0), (0.0, 0.0), (0.09, 0.0), (0.1, 0.5), (0.9, 0.5)]
)
def test_worlds_are_widened_where_actions_follow_from_states(foretold: float, widen: float) -> None:
    facts = FACTS.model_copy(update={"foretold": foretold})
    assert settle(preset("cpu"), facts).rollout.widen == widen
    given = updated(preset("cpu"), {"rollout": {"widen": 0.3}})
    assert settle(given, facts).rollout.widen == 0.3
    assert settle(preset("paper"), facts).rollout.widen == 0.0  # as published
    for relative in ("mbpo", "mopo", "morel", "maple", "oracle"):
        assert settle(resolve(None, "cpu", relative), facts).rollout.widen == 0.0


@pytest.mark.parametrize(
    ("foretold", "terminals", "zeta"),
    [(0.0, True, None), (0.09, True, None), (0.1, True, 1.0), (0.0, False, 1.0), (0.9, False, 1.0)],
)
def test_nothing_is_cut_where_random_actions_led_into_terminal_states(
    foretold: float, terminals: bool, zeta: float | None
) -> None:
    facts = FACTS.model_copy(update={"foretold": foretold, "terminals": terminals})
    assert settle(preset("cpu"), facts).rollout.cut == zeta
    assert settle(preset("paper"), facts).rollout.cut == 1.0  # as published
    for given in (None, 0.9):
        asked = updated(preset("cpu"), {"rollout": {"zeta": given}})
        assert settle(asked, facts).rollout.cut == given
    with pytest.raises(ValueError, match="left to the data"):
        _ = preset("cpu").rollout.cut
    for relative, cut in (("mbpo", None), ("morel", 1.0), ("oracle", None)):
        assert settle(resolve(None, "cpu", relative), facts).rollout.cut == cut


@pytest.mark.parametrize("zeta", [2, -0.1, math.nan, "atuo", [], {}])
def test_a_quantile_that_is_none_is_refused_in_one_sentence(zeta: Any) -> None:
    words = r"^configuration: rollout\.zeta.*: must be a number from 0 to 1, 'auto' or none$"
    with pytest.raises(ConfigError, match=words):
        updated(preset("cpu"), {"rollout": {"zeta": zeta}})


def test_what_is_given_is_not_left_to_the_data() -> None:
    given = {"agent": {"gamma": 0.9, "steps": 7, "value_unit": 3.0, "kappa": 0.0}}
    config = updated(preset("paper"), given)
    assert settle(config, FACTS) == config == settle(settle(config, FACTS), FACTS)
    assert settle(preset("paper"), FACTS) == preset("paper")
    with_gamma = updated(updated(preset("cpu"), LEFT), {"agent": {"gamma": 0.75}})
    assert settle(with_gamma, FACTS).agent.value_unit == pytest.approx(2 / 0.5)


def test_a_setting_that_was_not_settled_is_no_value() -> None:
    with pytest.raises(ValueError, match="left to the data"):
        known(updated(preset("paper"), LEFT).agent.gamma)
    assert known(0.0) == 0.0


@pytest.mark.parametrize("name", get_args(Variant))
@pytest.mark.parametrize("size", ["paper", "cpu"])
def test_every_relative_can_be_assembled(name: str, size: str) -> None:
    assert updated(preset(size), VARIANTS[name]) == resolve(None, size, name)
    assert tuple(VARIANTS) == get_args(Variant)


def test_settings_are_the_preset_then_the_variant_then_the_changes() -> None:
    published = Published(kappa=0.8, encoder_lr=3e-7)
    config = resolve(published, "paper", "mbpo", {"seed": 3, "agent": {"heads": 5}})
    assert (config.seed, config.agent.heads) == (3, 5)  # changed
    assert (config.rollout.horizon, config.agent.kappa) == (5, 0.05)  # the variant's
    assert config.agent.encoder_lr == 3e-7  # the dataset's
    assert resolve(published, "paper", "neubay", {}) == preset("paper", published)


def test_what_settings_cannot_be_made_of_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown variant 'sarsa'; known: neubay, mbpo"):
        resolve(None, "cpu", "sarsa")
    with pytest.raises(ConfigError, match=r"^mine\.yaml: agent\.kappa 2: must be at most 1$"):
        resolve(None, "cpu", "neubay", {"agent": {"kappa": 2}}, "mine.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": {"encoderlr": 1e-3}}, "did you mean 'agent.encoder_lr'"),
        ({"kappa": 0.5}, "did you mean 'agent.kappa'"),
        ({"agent": {"kappa": 2}}, r"^configuration: agent\.kappa 2: must be at most 1$"),
        ({"agent": {"steps": "many"}}, r"agent\.steps many: must be a whole number$"),
        ({"agent": {"algorithm": "sac"}}, r"agent\.algorithm sac: must be 'redq', 'dqn' or 'bc'$"),
        ({"world": {"layer_norm": "maybe"}}, r"world\.layer_norm maybe: must be true or false$"),
        ({"agent": 3}, r"agent 3: must be a section of settings$"),
        ({"agent": {"kappa": [1]}}, r"agent\.kappa \[1\]: must be a number$"),
        ({"world": {"members": 1000}}, r"members \(1000\) exceeds pool"),
        ({"agent": {"target_heads": 99}}, r"target_heads \(99\) exceeds heads"),
        ({"agent": {"gamma": float("nan")}}, "agent.gamma nan: must be a finite number"),
        ({"zzz": 1}, "known keys: seed"),
    ],
)
def test_what_is_wrong_is_explained(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        updated(preset("cpu"), changes)


def test_yaml_reads_scientific_notation_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("agent:\n  encoder_lr: 3e-6\n")  # a string for PyYAML
    assert updated(preset("cpu"), read_yaml(path)).agent.encoder_lr == 3e-6
    path.write_text("")
    assert read_yaml(path) == {}


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "just words", "!!python/object:os.system x"])
def test_a_file_that_is_no_settings_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.yaml"):
        read_yaml(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as text"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / "absent.yaml")


ALIASES = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ALIASES, "more than 10,000 values, aliases counted"),
        ("a: &a [*a]", "has no anchor before it"),
        ("a: " + 5000 * "[" + 5000 * "]", "nested more than 20 levels"),
        (5000 * "- ", "nested more than 20 levels"),
        ("agent: {kappa: 1}\nagent: {kappa: 2}", "'agent' is given twice, in line 2"),
        ("agent: {kappa: 1, kappa: 2}", "'kappa' is given twice"),
        ("a: " + 200_000 * "x", "more than 100,000 bytes"),
        ("seed: " + 6000 * "9", "digits"),
        ("seed: " + ":".join(3000 * ["59"]), "too large"),
        ("seed: 2020-99-99", "month"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_settings_is_refused_at_once(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    begun = time.process_time()
    with pytest.raises(ConfigError, match=message) as problem:
        read_yaml(path)
    assert "settings.yaml" in str(problem.value)
    assert time.process_time() - begun < 5


def test_anchors_may_be_used_as_yaml_means_them(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("x: &x {k: 1}\ny: {<<: *x, m: 2}\nz: *x\n")
    assert read_yaml(path) == {"x": {"k": 1}, "y": {"k": 1, "m": 2}, "z": {"k": 1}}


def test_what_is_not_a_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a file"):
        read_yaml(Path("/dev/zero"))
