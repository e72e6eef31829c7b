"""Fitted Q evaluation: values that are known, the order of policies, and what a policy reads."""

from pathlib import Path

import numpy as np
import pytest

from helpers.judges import logged
from helpers.policies import some_policy
from neubay.data.dataset import Dataset
from neubay.errors import NeubayError
from neubay.studies import fitted_q
from neubay.studies.fitted_q import FittedQ, actions_of

GAMMA = 0.9
FEW = (300, 1500)  # gradient steps


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for the few rows here."""
    monkeypatch.setattr(fitted_q, "BATCH", 64)
    monkeypatch.setattr(fitted_q, "WIDTH", 32)


def discounted(data: Dataset, gain: float) -> float:
    """What a = -gain s_1 is paid from the data's starts, by rollouts of the true system."""
    rng = np.random.default_rng(1)
    system, push = np.array([[0.95, 0.2], [-0.1, 0.9]]), np.array([0.0, 0.3])
    state = np.repeat(np.asarray(data.tape.state)[data.bounds[0]], 20, axis=0).astype(np.float64)
    total = 0.0
    for t in range(100):
        action = np.clip(-gain * state[:, 1], -1, 1)
        total += GAMMA**t * -((state**2).sum(axis=1) + 0.1 * action**2).mean()
        state = state @ system.T + action[:, None] * push + 0.05 * rng.normal(size=state.shape)
    return total


@pytest.mark.slow
def test_the_values_and_the_order_of_linear_policies() -> None:
    data = logged(100 * [30], gain=0.3)
    study, states = FittedQ(data, GAMMA, steps=FEW), np.asarray(data.tape.state)
    own, earned = study.of_data()
    assert own == pytest.approx(earned, rel=0.1)
    gains = (1.5, 0.3, 0.0, -1.0)  # the last leaves what the data holds
    truth = np.array([discounted(data, gain) for gain in gains])
    found = np.array(
        [study.value_of(np.clip(-gain * states[:, 1:], -1, 1).astype(np.float32)) for gain in gains]
    )
    assert np.array_equal(np.argsort(found), np.argsort(truth))
    np.testing.assert_allclose(found[:3], truth[:3], rtol=0.15)


@pytest.mark.slow
def test_a_terminal_step_is_worth_its_reward_and_a_cut_one_goes_on() -> None:
    # Of one state and one action, 1 a step: 1 + ... + gamma^4 = 4.10, or 1 / (1 - gamma) = 10.
    values = {}
    for terminal in (True, False):
        data = logged(60 * [5], terminal=terminal, pay=1.0, cost=0.0)
        same = data.tape.action
        values[terminal] = FittedQ(data, GAMMA, steps=FEW).value_of(np.asarray(same))
    assert values[False] == pytest.approx(10, rel=0.02)
    # Which step it is, the state does not tell: between one step and the whole episode.
    assert 1 < values[True] < 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gated", "Markov"])
def test_a_policy_acts_after_the_history_of_the_data(kind: str) -> None:
    policy, tape = some_policy(kind, states=2, actions=1), logged([7, 4]).tape
    data = Dataset(tape, policy.task, "toy", "toy")
    found = actions_of(policy.mode, data)
    state = None
    for row in range(len(tape.start)):
        begins = bool(tape.start[row])
        if not begins:  # what was done in the data, not what the policy would have done
            state = state._replace(last_action=np.asarray(tape.action[row - 1])[None])
        paid = None if begins else float(tape.reward[row - 1]) - policy.task.reward_shift
        _, state = policy.predict(
            tape.state[row][None], None if begins else state, reward=paid, episode_start=begins
        )
        np.testing.assert_allclose(found[row], state.last_action[0], atol=1e-5)


def test_a_known_value_is_not_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path))
    asked = []

    def value(self: FittedQ, policy: object) -> float:
        asked.append(policy)
        return 7.5

    monkeypatch.setattr(FittedQ, "value", value)
    study, policy = FittedQ(logged([5]), GAMMA), some_policy("Markov")
    assert [study.kept_value(policy.mode, digest) for digest in "aab"] == [7.5, 7.5, 7.5]
    assert len(asked) == 2
    assert FittedQ(logged([5]), 0.5).kept_value(policy.mode, "a") == 7.5 and len(asked) == 3
    for path in (tmp_path / "fitted_q").iterdir():
        path.write_text("{")
    study.kept_value(policy.mode, "a")
    assert len(asked) == 4


def test_a_discount_of_one_is_refused() -> None:
    with pytest.raises(NeubayError, match="below 1"):
        FittedQ(logged([5]), 1.0)
    assert fitted_q.STEPS == 10_000  # as docs/results/selection.md says
