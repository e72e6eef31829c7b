"""The tape's one layout: its shift, its index, its episodes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tapes import concatenate
from neubay.tape import (
    Tape,
    agent_input,
    episode_bounds,
    episodes,
    has_successor,
    tape_length,
    transition_rows,
)

lengths_of_episodes = st.lists(st.integers(0, 6), min_size=1, max_size=8)
MOST_ROWS = 8 * 7


def numbered_tape(lengths: list[int]) -> Tape:
    """Episodes whose every value tells its episode and row: no two are alike."""
    parts = []
    for episode, length in enumerate(lengths):
        rows = np.arange(length + 1)
        last = rows == length
        value = 100.0 * episode + rows
        parts.append(
            Tape(
                state=np.stack([value, -value], axis=1).astype(np.float32),
                action=np.where(last, 0, value + 0.25)[:, None].astype(np.float32),
                reward=np.where(last, 0, value + 0.5).astype(np.float32),
                terminated=rows == length - 1,
                start=rows == 0,
                real=np.ones(length + 1, bool),
            )
        )
    return concatenate(parts)


@given(lengths_of_episodes)
def test_episodes_come_apart_as_they_were_put_together(lengths: list[int]) -> None:
    tape = numbered_tape(lengths)
    first, found = episode_bounds(tape.start)
    assert found.tolist() == lengths
    assert tape.start[first].all()
    for episode, part in enumerate(episodes(tape)):
        assert len(part.state) == lengths[episode] + 1
        assert (part.state[:, 0] // 100 == episode).all()


@given(lengths_of_episodes)
def test_no_transition_crosses_episodes(lengths: list[int]) -> None:
    tape = numbered_tape(lengths)
    rows = transition_rows(tape.start)
    assert len(rows) == sum(lengths)
    np.testing.assert_array_equal(tape.state[rows + 1, 0], tape.state[rows, 0] + 1)
    np.testing.assert_array_equal(np.flatnonzero(has_successor(tape.start)), rows)


@given(lengths_of_episodes)
def test_the_agent_sees_what_came_before_within_its_episode(lengths: list[int]) -> None:
    rows = sum(lengths) + len(lengths)
    tape = numbered_tape(lengths + [0] * (MOST_ROWS - rows))  # one size, so compiled once
    inputs = agent_input(tape)
    on_device = agent_input(Tape(*(None if leaf is None else jnp.asarray(leaf) for leaf in tape)))
    for row in range(len(tape.start)):
        expected = (0, 0) if tape.start[row] else (tape.action[row - 1, 0], tape.reward[row - 1])
        assert (inputs.last_action[row, 0], inputs.last_reward[row]) == expected
    for ours, theirs in zip(inputs, on_device, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_penalty_is_taken_off_the_target_and_never_shown() -> None:
    tape = numbered_tape([2])._replace(penalty=np.array([1.0, 2.0, 0.0], np.float32))
    np.testing.assert_array_equal(tape.target_reward, tape.reward - [1, 2, 0])
    np.testing.assert_array_equal(agent_input(tape).last_reward[1:], tape.reward[:-1])


@pytest.mark.parametrize("horizon, rows", [(1, 512), (511, 512), (512, 1024), (1000, 1024)])
def test_a_training_tape_holds_a_whole_episode(horizon: int, rows: int) -> None:
    assert tape_length(horizon) == rows
