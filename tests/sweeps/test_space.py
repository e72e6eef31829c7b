"""Search spaces: what is written is what is searched, and what cannot be searched is refused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neubay.config import TrainConfig, preset, updated
from neubay.errors import ConfigError
from neubay.sweeps.space import Choices, Range, nested, parse, points

CONFIG = preset("cpu")


def test_the_three_forms() -> None:
    asked = ["agent.kappa=0.05:0.95", "agent.encoder-lr=log:1e-6:1e-3", "agent.gamma=[0.99,0.995]"]
    assert parse(asked, CONFIG) == {
        "agent.kappa": Range(0.05, 0.95),
        "agent.encoder_lr": Range(1e-6, 1e-3, log=True),
        "agent.gamma": Choices((0.99, 0.995)),
    }


def test_whole_numbers_words_and_none() -> None:
    asked = {"agent.width": "16:64", "agent.memory": ["lru", "none"], "rollout.zeta": "[null, 1]"}
    space = parse(asked, CONFIG)
    assert space == {
        "agent.width": Range(16, 64),
        "agent.memory": Choices(("lru", "none")),
        "rollout.zeta": Choices((None, 1.0)),
    }
    assert space["agent.width"].whole  # type: ignore[union-attr]
    assert parse(["agent.encoder_lr=[3e-6, 1e-5]"], CONFIG)["agent.encoder_lr"] == Choices(
        (3e-6, 1e-5)
    )


@given(
    low=st.floats(1e-9, 1.0, allow_nan=False),
    high=st.floats(1e-9, 1.0, allow_nan=False),
    log=st.booleans(),
)
def test_a_range_is_read_back_as_it_is_written(low: float, high: float, log: bool) -> None:
    text = f"agent.head_lr={'log:' if log else ''}{low!r}:{high!r}"
    if low < high:
        found = parse([text], CONFIG)["agent.head_lr"]
        assert found == Range(low, high, log)
        assert parse([f"agent.head_lr={found}"], CONFIG)["agent.head_lr"] == found
        assert low in found and high in found and math.nextafter(high, 2) not in found
    else:
        with pytest.raises(ConfigError, match="the low end comes first"):
            parse([text], CONFIG)


@given(st.lists(st.sampled_from(["lru", "gated", "none"]), max_size=5))
def test_a_list_is_searched_as_it_is_or_refused(values: list[str]) -> None:
    text = f"agent.memory=[{', '.join(values)}]"
    if values and len(set(values)) == len(values):
        found = parse([text], CONFIG)
        assert found == {"agent.memory": Choices(tuple(values))}
        assert parse([f"agent.memory={found['agent.memory']}"], CONFIG) == found
        for point in points(found):
            assert updated(CONFIG, nested(point)).agent.memory == point["agent.memory"]
    else:
        with pytest.raises(ConfigError):
            parse([text], CONFIG)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.text(max_size=40))
def test_any_text_is_a_space_or_an_error_in_words(text: str) -> None:
    for word in (text, f"agent.kappa={text}", f"agent.memory={text}", f"{text}=0:1"):
        try:
            space = parse([word], CONFIG)
        except ConfigError as error:
            assert "Traceback" not in str(error) and str(error)
        else:
            assert all(isinstance(each, Range | Choices) for each in space.values())


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("agent.kapa=0:1", "did you mean 'agent.kappa'"),
        ("kappa=0:1", "did you mean 'agent.kappa'"),
        ("agent=0:1", "a section of settings"),
        ("seed=0:3", "--seeds"),
        ("agent.kappa=0.5:1.5", "must be at most 1"),
        ("agent.kappa=a:b", "'a' is not a number"),
        ("agent.kappa=0.5", "write KEY=LOW:HIGH"),
        ("agent.kappa", "write KEY=LOW:HIGH"),
        ("agent.kappa=0:1:2", "write KEY=LOW:HIGH"),
        ("agent.kappa=log:0:1", "above zero"),
        ("agent.kappa=[0.1, [0.2]]", "is not a number, a word or none"),
        ("agent.kappa=[0.1, 0.1]", "listed twice"),
        ("agent.kappa=[]", "1 to 1000 values"),
        ("agent.memory=0:1", "not a number, so that it has no range"),
        ("agent.memory=[lru, gru]", "must be"),
        ("agent.width=16.5:64", "whole number"),
        ("world.members=[4, 4000]", "exceeds pool"),
    ],
)
def test_what_is_wrong_is_said(word: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse([word], CONFIG)
    assert says in str(refused.value) and str(refused.value).startswith("--search")


def test_a_key_twice_and_no_key_at_all() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        parse(["agent.kappa=0:1", "agent.kappa=[0.5]"], CONFIG)
    with pytest.raises(ConfigError, match="nothing to search"):
        parse([], CONFIG)


def test_a_grid_is_every_combination_and_needs_values() -> None:
    space = parse(["agent.gamma=[0.9, 0.99]", "agent.heads=2:4"], TrainConfig())
    assert points(space) == [
        {"agent.gamma": gamma, "agent.heads": heads} for gamma in (0.9, 0.99) for heads in (2, 3, 4)
    ]
    with pytest.raises(ConfigError, match="a grid needs values"):
        points(parse(["agent.kappa=0:1"], CONFIG))
    large = ["agent.width=1:1000", "agent.steps=1:1000", "rollout.rollouts=1:100"]
    with pytest.raises(ConfigError, match="a grid of 100,000,000 points"):
        points(parse(large, TrainConfig()))
