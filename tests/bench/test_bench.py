"""The bench: honest flop counts, tables that leave the rest of a file alone, cases that fail."""

import json
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from neubay import cli, imagination
from neubay.bench import stages as bench
from neubay.config import AgentConfig, TrainConfig, WorldConfig
from neubay.errors import NeubayError
from neubay.tape import Prefix
from neubay.tasks import get_task
from neubay.world import training
from neubay.world.model import Member
from neubay.world.transitions import Batch


def test_flops_of_a_step_are_those_of_its_matrix_products() -> None:
    """The compiler counts them too, and a little for everything else."""
    config = WorldConfig(width=48, depth=3, batch=64, pool=1, members=1)
    shaped = jax.ShapeDtypeStruct
    member = jax.eval_shape(lambda: Member(7, 5, config, key=jax.random.key(0)))
    batch = Batch(shaped((64, 7), "f4"), shaped((64, 5), "f4"), shaped((64,), bool))
    compiled = jax.jit(jax.grad(training.loss)).lower(member, batch).compile()
    counted = training.training_flops(7, 5, config)
    assert counted <= compiled.cost_analysis()["flops"] <= 1.35 * counted


def test_turns_compare_the_best_of_both() -> None:
    def call() -> jax.Array:
        time.sleep(0.01)
        return jax.numpy.zeros(())

    measured = bench.measure(call, flops=1e9, turns=3)
    assert 50 < measured.gflops < 100.1  # 1e9 flops in a little more than 10 ms
    assert measured.ratio == measured.gflops / measured.matmul_gflops
    assert measured.compile_s >= 0


def test_a_small_world_has_all_its_figures() -> None:
    figures = bench.bench_world(pool=2, rows=600)
    assert {"gflops", "ratio", "compile_s", "peak_mb", "step_s"} <= figures.keys()
    assert all(value >= 0 for value in figures.values())


def test_made_up_data_has_the_tasks_sizes_and_whole_episodes() -> None:
    task = get_task("d4rl/halfcheetah")
    dataset = bench.made_up_dataset(task, 3003)
    assert dataset.episodes == 3
    assert dataset.tape.state.shape == (3003, 17) and dataset.tape.action.shape == (3003, 6)
    assert len(dataset.world_rows) == 3 * 999  # the transition at a timeout is left out


def test_rollouts_of_the_bench_last_as_long_as_they_should() -> None:
    """And their flops are those of every member's matrices and the actor's."""
    task = get_task("pendulum")
    small = WorldConfig(width=8, depth=2, pool=3, members=3)
    config = TrainConfig(world=small, agent=AgentConfig(width=8, memory_size=4, memory_layers=1))
    world, policy = bench._untrained(task, config)
    assert bench._product_flops(world, 3) == 2 * 3 * (4 * 8 + 8 * 8 + 8 * 8)
    encoder = 5 * 8 + 4 * 8 * 4 + 8 * 16
    assert bench._product_flops(policy.actor, 2) == 2 * (encoder + 2 * 8 * 8 + 8 * 2)
    dataset = bench.made_up_dataset(task, 201)
    branches = imagination.branch(dataset, Prefix(np.zeros(4, int), np.array([9, 5, 1, 0])))
    branches.inputs.state[:, 0] = [3, 20, 1, 7]
    rules = imagination.Rules(horizon=400, termination=bench._counted_down, threshold=1e9)
    rollouts = imagination.imagine(
        world, policy, branches, np.array([0, 1, 2, 0], np.int32), rules, jax.random.key(0)
    )
    np.testing.assert_array_equal(rollouts.length, [3, 20, 1, 7])


def test_a_replay_has_all_its_figures() -> None:
    figures = bench.bench_replay("pendulum", "cpu")
    assert figures["bytes_per_row"] == 4 * (3 + 1 + 1) + 1
    assert figures["update_share"] > 0 and figures["tape_ms"] > 0


def test_tables_show_the_figures_that_cases_have() -> None:
    cases = {"one": {"gflops": 12.3, "step_s": 1.0}, "other": {"tape_ms": 0.25}}
    assert bench.table(cases) == [
        ["case", "GFLOP/s", "ms per tape"],
        ["one", "12", ""],
        ["other", "", "0.250"],
    ]


def test_a_table_is_put_between_its_markers(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "benchmarks.md"
    bench.write_markdown(path, "world", "first")
    text = path.read_text() + "\nwritten by hand\n"
    path.write_text(text)
    bench.write_markdown(path, "agent", "other")
    bench.write_markdown(path, "world", "second")
    written = path.read_text()
    assert "first" not in written and written.count("written by hand") == 1
    assert "<!-- bench:world -->\nsecond\n<!-- /bench:world -->" in written
    assert "<!-- bench:agent -->\nother\n<!-- /bench:agent -->" in written


def test_the_command_prints_and_writes_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"gflops": 90.0, "ratio": 0.5, "compile_s": 3.0, "peak_mb": 300.0}
    case = bench.Case("pool 8", "bench_world", {"pool": 8, "rows": 10})
    monkeypatch.setattr(bench, "STAGES", {"world": [case]})
    monkeypatch.setattr(bench, "run_case", lambda case: {**figures, "matmul_gflops": 180.0})
    report, docs = tmp_path / "bench.json", tmp_path / "benchmarks.md"
    with pytest.raises(SystemExit) as finished:
        cli.main(["bench", "world", "--json", str(report), "--write-docs", str(docs)])
    assert finished.value.code == 0
    assert "0.50" in capsys.readouterr().out
    written = json.loads(report.read_text())
    assert written["matmul_gflops"] == 180.0
    assert written["cases"] == {"world, pool 8": figures}
    assert "| pool 8 | 90 | 0.50 | 3.0 | 300 |" in docs.read_text()


def test_a_case_that_fails_says_which_and_why() -> None:
    with pytest.raises(NeubayError, match=r"'broken' failed:\n[^$]*negative"):
        bench.run_case(bench.Case("broken", "bench_world", {"pool": 2, "rows": -600}))
