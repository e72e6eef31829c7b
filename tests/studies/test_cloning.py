"""Whether the right clone is chosen: measured in miniature, and told in tables."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.small_runs import swings, tiny
from neubay.cli import main
from neubay.config import VARIANTS, settle, updated
from neubay.errors import TaskError
from neubay.report.parts.tables import END
from neubay.report.studies import cloning_tables
from neubay.studies.cloning import compare
from neubay.tasks import get_task


def result(data: str, seed: int, memory: float, markov: float, **about: Any) -> dict[str, Any]:
    kinds = {
        name: {"held_out": held, "best_step": 1200, "score": score, "sampled": score / 2}
        for name, held, score in (("memory", 2.5, memory), ("markov", 2.25, markov))
    }
    rest = {"data_score": 46.5, "chosen": "memory", "past_actions": False, "seconds": 20.0}
    return {"data": data, "seed": seed, **kinds, **rest, **about}


def test_the_tables_say_whether_the_choice_was_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = tmp_path / "cloning.json", tmp_path / "cloning.md"
    results = [
        result("b", 0, 40.0, 30.0),
        result("a", 1, 30.0, 40.0),
        result("a", 0, 30.0, 40.0, chosen="markov"),
        result("c", 0, 30.0, 32.0),
        result("c", 0, 10.0, 32.0, past_actions=True),
    ]
    out.write_text(json.dumps({"cloning": results}))
    text.write_text(f"before\n{cloning_tables.BEGIN}\nold\n{END}\nafter\n")
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "cloning", "--out", str(out), "--text", str(text)])
    assert not ended.value.code
    usual, seeing = text.read_text().split("If memory saw past actions")
    told = {
        tuple(row.split(" | ")[:2]): row for row in usual.splitlines() if "2.500 / 2.250" in row
    }
    ends = {data.strip("| "): row for (data, seed), row in told.items() if seed == "0"}
    assert [" right " in ends["a"], " right " in ends["b"], " same " in ends["c"]] == [True] * 3
    assert " wrong " in told["| a", "1"] and " wrong " in seeing and "| 1,200 / 1,200 |" in seeing
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "cloning"])
    assert ended.value.code == 2 and "name datasets" in capsys.readouterr().err


def test_newer_results_take_the_place_of_earlier_ones() -> None:
    merged = cloning_tables.merged(
        [result("b", 0, 1, 1), result("a", 1, 1, 1)], [result("a", 1, 2, 2), result("a", 0, 2, 2)]
    )
    assert [(each["data"], each["seed"]) for each in merged] == [("a", 0), ("a", 1), ("b", 0)]
    assert merged[1]["memory"]["score"] == 2


@pytest.mark.slow
def test_both_candidates_are_scored() -> None:
    dataset = swings(get_task("pendulum"), horizon=40)
    config = settle(updated(tiny(), VARIANTS["bc"]), dataset.facts)
    config = updated(config, {"agent": {"steps": 50, "window": 8, "burn_in": 4, "tape": 64}})
    found = compare(dataset, config, episodes=2)
    written = json.loads(json.dumps(found.record()))
    assert written["environment"] == "Pendulum-v1" and written["chosen"] in ("memory", "markov")
    for kind in (written["memory"], written["markov"]):
        assert -2000 < kind["score"] < 0 and kind["sampled"] != kind["score"]
        assert np.isfinite(kind["held_out"]) and kind["best_step"] <= 50
    with pytest.raises(TaskError, match="no environment"):
        compare(swings(), config, episodes=2)
