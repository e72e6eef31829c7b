"""Learned ends beside a known rule, on rollouts made by hand."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.known_worlds import fitted, random_walk, true_world
from neubay.errors import WorldError
from neubay.imagination import Rollouts
from neubay.report.studies import termination as shown
from neubay.studies.termination import compare, termination
from neubay.tape import Tape
from neubay.world import Head

RULE, LEARNED = 3.0, 4.0


def above(threshold: float, members: int = 2) -> Head:
    """Heads that call s' terminal where its first number is above a threshold."""
    blank = Head(6, key=jax.random.key(0))
    weights = [jnp.zeros_like(linear.weight) for linear in blank.linears]
    weights = [weights[0].at[4, 0].set(1.0), *(each.at[0, 0].set(1.0) for each in weights[1:])]
    head = eqx.tree_at(
        lambda h: [*(linear.weight for linear in h.linears), h.threshold],
        blank,
        [*weights, jnp.asarray(threshold)],
    )
    head = eqx.tree_at(
        lambda h: [linear.bias for linear in h.linears],
        head,
        [jnp.zeros_like(linear.bias) for linear in head.linears],
    )
    return jax.tree.map(lambda leaf: jnp.stack(members * [leaf]), head)


@pytest.mark.slow
def test_ends_are_compared_rollout_by_rollout() -> None:
    paths = [
        [0, 1, 5, 0],  # both at the second step
        [0, 3.5, 1, 4.5],  # the rule first, the learned one two steps later
        [0, 1, 2],  # neither
        [0, 3.5, 2],  # the rule alone
    ]
    position = np.concatenate(paths).astype(np.float32)
    state = np.stack([position, np.zeros_like(position)], axis=1)
    start = np.concatenate([np.arange(len(path)) == 0 for path in paths])
    blank = np.zeros(len(state), bool)
    reward = np.zeros(len(state), np.float32)
    rows = Tape(state, np.zeros((len(state), 2), np.float32), reward, blank, start, blank)
    length = np.array([len(path) - 1 for path in paths])
    made = Rollouts(rows, length, np.zeros(4, np.int8), np.zeros(4, np.float32))
    data = random_walk([20, 20])
    task = dataclasses.replace(data.task, termination=lambda s, a, n: jnp.asarray(n[..., 0] > RULE))
    world = dataclasses.replace(true_world(), heads=above(LEARNED))
    found = compare(
        world, dataclasses.replace(data, task=task), made, np.array([0, 1, 0, 1]), seed=0
    )
    assert (found.both, found.rule_first, found.learned_first, found.neither) == (1, 2, 0, 1)
    assert found.within_ten == 1 and found.steps == 2 + 1 + 2 + 1
    assert found.rate_rule == pytest.approx(3 / (2 + 1 + 2 + 1))
    assert found.rate_learned == pytest.approx(2 / (2 + 3 + 2 + 2))
    assert found.survival_steps.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found.survival_rule, [0.5, 0.25, 0.25])
    np.testing.assert_allclose(found.survival_learned, [1, 0.75, 0])

    way = {
        "decided": "threshold",
        "precision": None,
        "recall": 0.5,
        "false_alarms": 1e-3,
        "false_alarms_apart": 1e-3,
        "false_alarms_apart_at_most": 2e-3,
        "rate_recorded": 0.01,
        "rate_imagined": 0.01,
    }
    about = {"data": "walk", "held_out_ends": 4, "held_out_steps": 100, "rate": 0.01, "ways": [way]}
    record = json.loads(json.dumps(about | {"imagined": found.record()}))
    text = shown.markdown([record])
    assert "| 39.4 % |" in text, "a false alarm in 1,000 steps ends 39 % of 500-step rollouts"
    assert "walk" in {axes.get_title(loc="left") for axes in shown.survival_figure([record]).axes}


def test_what_cannot_be_compared_is_refused() -> None:
    data, other = random_walk([20, 20]), random_walk([20], seed=1, name="other")
    known = fitted(true_world(), data)
    with pytest.raises(WorldError, match="has no rule to compare with"):
        termination("world", known, data, rollouts=2, seed=0)
    with pytest.raises(WorldError, match=f"trained on walk .*{data.hash}.*not on other"):
        termination("world", known, other, rollouts=2, seed=0)
