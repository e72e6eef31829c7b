"""The bandit of Section 3: its data, its world without dynamics, its play, and its records."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neubay import evaluation, imagination, world
from neubay.cli import main
from neubay.config import updated
from neubay.errors import RunError
from neubay.experience import initial_share, rollout_rules
from neubay.imagination import Ending
from neubay.report.studies import bandit_figures, bandit_tables
from neubay.runs import rundir
from neubay.runs.signals import Stopped
from neubay.studies import bandit, theory
from neubay.studies.bandit import TEST_P1
from neubay.studies.theory import Belief
from neubay.tape import AgentInput
from neubay.tasks import get_task
from neubay.tasks.environments import Bandit
from neubay.world import FittedWorld, World

SMALL = {
    "world": {"pool": 6, "members": 4, "max_epochs": 2},
    "rollout": {"rollouts": 8},
    "agent": {
        "width": 8,
        "memory_size": 4,
        "memory_layers": 1,
        "steps": 20,
        "tape": 202,
        "buffer": 10_000,
    },
    "evaluation": {"evaluations": 2, "episodes": 10},
}


class Always(eqx.Module):
    """A policy that pulls one arm; which one is data, so that both share a compilation."""

    arm: jax.Array = eqx.field(converter=jnp.asarray)

    def initial(self, batch: int) -> Any:
        return jnp.zeros((batch, 1))

    def recall(self, history: AgentInput, length: Any) -> Any:
        return jnp.zeros((len(length), 1))

    def act(self, memory: Any, inputs: AgentInput, keys: Any) -> Any:
        rows = inputs.state.shape[0]
        return memory, jnp.broadcast_to(jnp.eye(2)[self.arm], (rows, 2))


class WinStay(Always):
    """Arm 1 first; then the same arm after a reward, the other one after none."""

    def act(self, memory: Any, inputs: AgentInput, keys: Any) -> Any:
        last, paid = jnp.asarray(inputs.last_action)[:, 1], jnp.asarray(inputs.last_reward)
        arm = jnp.where(jnp.asarray(inputs.start), 1.0, jnp.where(paid > 0, last, 1 - last))
        return memory, jnp.stack([1 - arm, arm], axis=1)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    directory = tmp_path_factory.mktemp("bandit") / "run"
    record = bandit.run("paper", 1, directory, penalties=(0.0,), overrides=SMALL)
    return record, directory


@pytest.fixture(scope="module")
def fitted(summary: tuple[dict, Path]) -> FittedWorld:
    """The world of that run."""
    return world.load(summary[1] / "world", bandit.collect_data(1))


# --- Data and environment ------------------------------------------------------------------------


def test_the_data_are_ten_episodes_of_a_hundred_pulls_of_arm_zero() -> None:
    data = bandit.collect_data(3)
    assert data.episodes == 10 and (data.bounds[1] == 100).all()
    pulls = data.take(data.world_rows)
    assert (pulls.action == [1, 0]).all() and set(np.unique(pulls.reward)) == {0, 1}
    assert not np.asarray(data.tape.terminated).any() and (np.asarray(data.tape.state) == 0).all()
    assert abs(pulls.reward.mean() - 0.5) < 4 * 0.5 / np.sqrt(1000)
    assert data.hash == bandit.collect_data(3).hash != bandit.collect_data(4).hash


def test_consecutive_seeds_meet_each_test_bandit_equally_often() -> None:
    env = Bandit()
    met = [env.reset(seed=seed)[1]["p1"] for seed in range(7, 7 + 20)]
    assert sorted(met) == sorted(4 * TEST_P1)
    assert Bandit(p1=0.8).reset(seed=3)[1]["p1"] == 0.8


def test_arms_pay_with_their_probabilities() -> None:
    env = Bandit(p1=0.9)
    env.reset(seed=0)
    paid = np.array([[env.step(arm)[1] for arm in (0, 1)] for _ in range(2000)])
    np.testing.assert_allclose(paid.mean(axis=0), [0.5, 0.9], atol=0.04)


def test_the_published_setting() -> None:
    config = bandit.settings("paper", 5, 0.25)
    assert (config.seed, config.rollout.penalty) == (5, 0.25)
    world, agent, rollout = config.world, config.agent, config.rollout
    assert (world.pool, world.members, world.width, world.depth) == (128, 100, 16, 2)
    assert (world.batch, world.selection, world.improvement) == (128, "nll", 0.001)
    assert (agent.algorithm, agent.steps, agent.tape, agent.encoder_lr) == (
        "dqn",
        20_000,
        1000,
        3e-6,
    )
    assert (agent.clip_norm, agent.updates_per_row, agent.buffer) == (1.0, 0.02, 1_000_000)
    assert (rollout.start, rollout.zeta, rollout.rollouts) == ("initial", None, 100)
    assert (agent.epsilon_final, agent.epsilon_share) == (0.1, 0.1)
    # Five test bandits, 20 episodes each.
    assert config.evaluation.episodes == 100
    cpu = bandit.settings("cpu", 0, 0.0)
    assert cpu.world == world and cpu.evaluation.episodes == 100
    assert (cpu.rollout.start, cpu.rollout.zeta) == ("initial", None)


# --- A world without dynamics --------------------------------------------------------------------


@pytest.mark.slow
def test_the_world_has_no_dynamics(fitted: FittedWorld) -> None:
    state = jnp.zeros((6, 1))
    member = jnp.arange(6) % 4
    keys = jax.random.split(jax.random.key(0), 6)
    pulls = jnp.eye(2)[jnp.arange(6) % 2]
    step = eqx.filter_jit(World.step)(fitted.world, state, pulls, member, keys)
    np.testing.assert_array_equal(step.next_state, state)
    prediction = eqx.filter_eval_shape(World.predict, fitted.world, state, pulls)
    assert prediction.mean.shape == (4, 6, 1)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_rollouts_always_run_from_zero_to_the_horizon(fitted: FittedWorld, penalty: float) -> None:
    """Whatever the uncertainty of what the policy does."""
    data = bandit.collect_data(1)
    config = updated(bandit.settings("paper", 1, penalty), SMALL)
    rules = rollout_rules(config, data, fitted)
    rng = np.random.default_rng(0)
    prefix = imagination.draw_histories(rng, data.histories, 8, initial_share(config.rollout))
    assert (prefix.length == 0).all()
    rollouts = imagination.imagine(
        fitted.world,
        Always(1),
        imagination.branch(data, prefix),
        imagination.draw_members(rng, 8, fitted.world.size),
        rules,
        jax.random.key(0),
    )
    assert (rollouts.length == 100).all() and (rollouts.ending == Ending.TIMEOUT).all()
    assert not rollouts.rows.terminated.any()  # so that what follows is bootstrapped
    assert (rollouts.rows.penalty is None) == (penalty == 0)


def test_members_are_asked_about_both_arms(fitted: FittedWorld) -> None:
    arms = bandit.view_arms(fitted.world)
    predict = eqx.filter_jit(World.predict)
    own = predict(fitted.world, jnp.zeros((1, 1)), jnp.array([[0.0, 1.0]])).mean[:, 0, 0]
    scaler = fitted.world.scaler
    expected = np.asarray(scaler.reward_mean + own * scaler.reward_std)
    np.testing.assert_allclose(arms.means[:, 1], expected, rtol=1e-5)
    np.testing.assert_allclose(
        arms.uncertainty, arms.means.std(axis=0) / scaler.reward_std, rtol=1e-3
    )
    assert arms.uncertainty[0] == pytest.approx(fitted.mean_uncertainty, rel=1e-4)
    expected = 2.0 * (arms.uncertainty[1] / arms.uncertainty[0] - 1)
    assert bandit.surcharge(fitted, arms, 2.0) == pytest.approx(expected, rel=1e-3)


# --- Playing -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_play_pulls_what_the_policy_says_and_pays_what_the_bandit_says() -> None:
    data = bandit.collect_data(0)
    played = bandit.play(Always(1), data, 0.5, TEST_P1, episodes=200, seed=1)
    assert played.arm_one.shape == (5, 200, 100) and played.arm_one.all()
    np.testing.assert_allclose(played.returns.mean(axis=1), TEST_P1, atol=0.03)
    played = bandit.play(Always(0), data, 0.2, TEST_P1, episodes=200, seed=1)
    assert not played.arm_one.any()
    np.testing.assert_allclose(played.returns.mean(axis=1), 0.2, atol=0.03)


@pytest.mark.slow
def test_play_shows_the_policy_its_own_history() -> None:
    played = bandit.play(WinStay(0), bandit.collect_data(0), 0.5, TEST_P1, episodes=100, seed=0)
    arm, paid = played.arm_one, played.rewards > 0
    assert arm[..., 0].all()
    np.testing.assert_array_equal(
        arm[..., 1:], np.where(paid[..., :-1], arm[..., :-1], ~arm[..., :-1])
    )


@pytest.mark.slow
def test_play_and_the_environment_agree() -> None:
    """The same policy earns the same in the bandits as a world and in Gymnasium's."""
    task = get_task("bandit")
    scored = evaluation.evaluate(task, WinStay(0), episodes=100, seed=0)
    by_bandit = scored.returns.reshape(20, 5).mean(axis=0) / 100
    played = bandit.play(WinStay(0), bandit.collect_data(0), 0.5, TEST_P1, episodes=100, seed=0)
    np.testing.assert_allclose(by_bandit, played.returns.mean(axis=1), atol=0.05)


@pytest.mark.slow
def test_regret_is_measured_against_the_exact_optimum() -> None:
    """Never pulling arm 1 is the optimum of a heavy penalty, and has no regret against it; without
    one it misses what the optimum earns."""
    data = bandit.collect_data(0)
    belief = Belief(0.5, np.linspace(0.1, 0.9, 9), np.full(9, 1 / 9))
    heavy = bandit.compare(Always(0), data, belief, 5.0, 0)
    for p1 in TEST_P1:
        record = heavy["bandits"][f"{p1:g}"]
        assert record["optimal_return"] == pytest.approx(0.5)
        assert abs(record["regret"]) < 4 * record["standard_error"]
        assert sum(record["arm_one"]) == sum(record["optimal_arm_one"]) == 0
    free = bandit.compare(Always(0), data, belief, 0.0, 0)
    _, best = theory.bayes_optimal(belief, 100)
    assert free["posterior"]["optimal_return"] == pytest.approx(best / 100)
    assert free["bandits"]["0.99"]["regret"] > 0.45
    assert free["posterior"]["mean_return"] < free["posterior"]["optimal_return"] - 0.1


# --- The whole command ---------------------------------------------------------------------------


def test_the_summary_has_uncertainty_per_arm_and_return_per_lambda_and_p1(
    summary: tuple[dict, Path],
) -> None:
    _, directory = summary
    written = json.loads((directory / "summary.json").read_text())
    assert written["uncertainty"].keys() == {"0", "1"}
    assert written["mean_return"].keys() == {"0"}
    for returns in written["mean_return"].values():
        assert list(returns) == ["0.01", "0.3", "0.55", "0.7", "0.99"]
        assert all(0 <= value <= 1 for value in returns.values())
    curve = written["agents"]["0"]["curve"]
    assert [point["step"] for point in curve] == [20]
    assert len(written["agents"]["0"]["bandits"]["0.7"]["arm_one"]) == 100
    assert (directory / "lambda-0" / "policy.npz").exists()
    with pytest.raises(RunError, match="its penalties is"):
        bandit.run("paper", 1, directory, penalties=(0.0, 0.01), overrides=SMALL)


@pytest.mark.slow
@pytest.mark.faults("bandit stopped, and killed before its agent began")
def test_a_bandit_resumes(
    summary: tuple[dict, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tally: Callable[[int, str], None],
) -> None:
    def play() -> dict:
        played = bandit.run("paper", 1, tmp_path / "run", penalties=(0.0,), overrides=SMALL)
        return {name: value for name, value in played.items() if name != "seconds"}

    def stop_in(home: Any, name: str) -> None:
        def stopping(*arguments: Any, **named: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            return original(*arguments, **named)

        original = getattr(home, name)
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(home, name, stopping)
            play()

    whole = {name: value for name, value in summary[0].items() if name != "seconds"}
    stop_in(imagination, "imagine")
    assert rundir.look(tmp_path / "run" / "lambda-0").state == "unfinished"
    assert play() == whole
    shutil.rmtree(tmp_path / "run" / "lambda-0")
    (tmp_path / "run" / "summary.json").unlink()
    stop_in(bandit, "compare")  # after the agent's last pause
    assert rundir.is_finished(tmp_path / "run")
    assert play() == whole  # finished: read
    tally(3, "what was finished is read, what was not is resumed; the same numbers")


def test_curves_give_every_bandit_its_own_episodes(tmp_path: Path) -> None:
    row = {"kind": "evaluation", "step": 7, "returns": [10, 20, 30, 40, 50, 12, 22, 32, 42, 52]}
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"kind": "train", "step": 1}) + "\n" + json.dumps(row) + "\n"
    )
    (point,) = bandit._curve(tmp_path / "metrics.jsonl", seed=1)
    # With seed 1 the first episode is of the second bandit, and the fifth of the first.
    assert list(point["mean_return"].values()) == [0.51, 0.11, 0.21, 0.31, 0.41]


def test_figures_and_tables_are_drawn_from_the_summary(summary: tuple[dict, Path]) -> None:
    record, _ = summary
    for part in ("agents", "mean_return"):
        record = {**record, part: {**record[part], "0.5": record[part]["0"]}}
    other = {**record, "seed": 2}
    for draw, panels in (
        (bandit_figures.ensemble_figure, 2),
        (bandit_figures.returns_figure, 5),
        (bandit_figures.adaptation_figure, 2),
    ):
        assert len(draw([record, other]).axes) == panels
    claims = bandit_tables.claims_table([record, other])
    assert claims.count("\n") == 1 + 6 and "lambda = 0.5: 0.5 everywhere" in claims
    assert bandit_tables.returns_table([record, other]).count("\n") == 1 + 4


def test_the_results_page_shows_what_its_records_say() -> None:
    docs = Path(__file__).parents[2] / "docs" / "results"
    page = (docs / "bandit.md").read_text(encoding="utf-8")
    groups: dict[str, list[dict]] = {}
    for path in sorted((docs / "bandit").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        groups.setdefault(record["preset"], []).append(record)
    assert groups
    for records in groups.values():
        for table in bandit_tables.tables(records).strip().split("\n\n"):
            assert table in page


def test_bad_penalties_leave_nothing_and_summaries_of_others_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "summary.json"
    other.write_text("{}")
    run = ["bandit", "--preset", "cpu", "--out", str(tmp_path / "run"), "--penalties"]
    report = ["bandit", "report", str(other), "--out", str(tmp_path / "report")]
    cases = ((run, "no penalty"), ([*run, "-1"], "penalty"), (report, "not the summary.json"))
    for arguments, message in cases:
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 2 and message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == [other]


def test_theory_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as done:
        main(["bandit", "--theory", "--epsilon", "0.2", "--beta", "0.05", "--out", str(tmp_path)])
    assert done.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "never the uncertain arm; misses 20 in m_1" in said
    record = json.loads((tmp_path / "theory.json").read_text())
    assert record["ideal_coverage"] == pytest.approx(20)
    with pytest.raises(SystemExit) as done:
        main(["bandit", "--theory", "--epsilon", "0.7"])
    assert done.value.code == 2 and "epsilon is 0.7" in capsys.readouterr().err


def test_flags_change_the_agent_and_are_named_where_a_run_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict] = []

    def interrupted(*_: object, overrides: dict, **__: object) -> dict:
        asked.append(overrides)
        raise KeyboardInterrupt

    monkeypatch.setattr(bandit, "run", interrupted)
    for flags in ([], ["--memory", "none", "--encoder-lr", "0.001"]):
        with pytest.raises(SystemExit, match="130"):
            main(["bandit", "--penalties", "0", "--out", str(tmp_path / "b"), *flags])
    assert asked == [{}, {"agent": {"encoder_lr": 0.001, "memory": "none"}}]
    said = "".join(capsys.readouterr()).replace("\n", "")
    assert "--encoder-lr=0.001 --memory=none --penalties 0.0" in said
