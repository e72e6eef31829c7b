"""Flags over a file over a preset that follows the dataset."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from neubay.commands.options import TrainSettings, parse, train_defaults
from neubay.commands.train import TrainFlags
from neubay.data.collect import RandomActions, collect
from neubay.data.convert import write
from neubay.errors import ConfigError
from neubay.tasks import get_task


def read(*arguments: str) -> TrainFlags:
    flags, dataset = parse(
        TrainFlags,
        TrainSettings,
        train_defaults,
        list(arguments),
        prog="neubay train",
        description="",
    )
    dataset.close()
    return flags


def test_the_preset_follows_the_dataset_wherever_it_stands() -> None:
    first = read("hopper-medium-v2", "--preset", "paper")
    assert (first.values.agent.encoder_lr, first.values.agent.kappa) == (1e-6, 0.8)
    assert not first.values.agent.tune_alpha
    behind = read("--world.no-layer-norm", "hopper-medium-v2", "--preset=paper")
    assert behind.values.agent == first.values.agent
    assert not behind.values.world.layer_norm
    assert read().settings.dataset == "pendulum"


def test_the_preset_follows_what_the_data_says_of_itself_and_not_its_name(tmp_path: Path) -> None:
    recorded, anonymous = tmp_path / "mine.hdf5", tmp_path / "theirs.npz"
    cartpole = get_task("cartpole")
    data = collect(cartpole, RandomActions(cartpole), episodes=2, seed=0)
    write(data, str(recorded))
    with h5py.File(recorded) as file:
        arrays = {key: file[key][:] for key in ("observations", "actions", "rewards", "terminals")}
    np.savez(anonymous, **arrays)
    for path in (recorded, anonymous):
        assert read(str(path)).values.agent.algorithm == "dqn"
    told = read(str(anonymous), "--task", "d4rl/hopper")
    assert told.values == read("hopper_mine.hdf5", "--task", "d4rl/hopper").values
    assert told.values == read(str(anonymous), "--task", "d4rl/halfcheetah").values == read().values
    assert not read(
        str(anonymous), "--task", "d4rl/hopper", "--preset", "paper"
    ).values.agent.tune_alpha


@pytest.mark.parametrize("none", ["None", "none", "null"])
def test_none_may_be_written_as_in_help_and_in_yaml(none: str) -> None:
    assert read("--rollout.zeta", none).values.rollout.zeta is None
    assert read(f"--rollout.zeta={none}").values.rollout.zeta is None
    assert read("--agent.tape", none, "--seed", "3").values.agent.tape is None


def test_none_as_a_choice_stays_one() -> None:
    assert read("--agent.memory", "none").values.agent.memory == "none"
    assert read("--agent.memory=none", "none").settings.dataset == "none"


@pytest.mark.slow
def test_a_value_out_of_range_is_named_with_its_flag_in_plain_words() -> None:
    script = "from neubay.cli import main; main(['train', '--agent.kappa', '1.5'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: --agent.kappa 1.5: must be at most 1\n"


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("agent: {kappa: 0.25, gamma: 0.9}\n")
    flags = read("--config", str(path), "--agent.kappa", "0.75", "--agent.encoder-lr", "3e-6")
    agent = flags.values.agent
    assert (agent.kappa, agent.gamma, agent.encoder_lr) == (0.75, 0.9, 3e-6)


def test_a_flag_that_only_fits_the_chosen_preset() -> None:
    assert read("--preset", "paper", "--world.members", "128").values.world.members == 128
    assert read("--preset", "cpu", "--world.pool", "50").values.world.pool == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--seed -1", "--seed -1: must be at least 0"),
        ("--agent.kappa 2", "--agent.kappa 2: must be at most 1"),
        ("--agent.gamma 1", "--agent.gamma 1: must be below 1"),
        ("--agent.encoder-lr 0", "--agent.encoder-lr 0: must be above 0"),
        ("--agent.gamma nan", "--agent.gamma nan: must be a finite number"),
        ("--agent.heads 1", "agent: target_heads (2) exceeds heads (1)"),
        (
            "--rollout.zeta 2 --agent.kappa 3",
            "--rollout.zeta 2: must be a number from 0 to 1, 'auto' or none\n"
            "--agent.kappa 3: must be at most 1",
        ),
    ],
)
def test_values_that_cannot_be_are_named_with_their_flags(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(*arguments.split())
    assert str(refused.value) == message


def test_a_relative_by_name() -> None:
    flags = read("--variant", "markov", "--rollout.zeta", "None")
    assert flags.values.agent.memory == "none"
    assert flags.values.rollout.zeta is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent.encoderlr", "1"], "--agent.encoder-lr"),
        (["--preset", "gpu"], "invalid choice"),
        (["--preset"], "Missing"),
        (["--agent.steps", "many"], "steps"),
    ],
)
def test_wrong_flags_are_explained(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        read(*arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_key_of_the_file_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("agent: {kapa: 0.25}\n")
    with pytest.raises(ConfigError, match=r"settings\.yaml.*did you mean 'agent\.kappa'"):
        read("--config", str(path))
