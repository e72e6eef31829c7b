"""The card says what files tell, and says so where they tell nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.policies import some_policy
from neubay.errors import RunError
from neubay.export.card import card_of, origin_of

RUN: dict[str, Any] = {
    "layout": 3,
    "config": {"seed": 7, "agent": {"width": 8, "steps": 100}, "rollout": {"zeta": 1.0}},
    "dataset": {
        "name": "toy",
        "hash": "f" * 32,
        "source": "logs/toy.hdf5",
        "episodes": 12,
        "transitions": 3400,
        "return_mean": -50.0,
        "score": None,
    },
    "task": "toy",
    "variant": "neubay",
    "provenance": {"neubay": "0.2.0"},
}
SUMMARY: dict[str, Any] = {
    "environment": "Toy-v1",
    "return_mean": -10.0,
    "return_std": 2.0,
    "episodes": 20,
    "score": 81.25,
}
SELECTION: dict[str, Any] = {
    "protocol": {"judge_seed": 1000},
    "candidates": [
        {
            "name": "point 60",
            "run": None,
            "step": 60,
            "estimate": -12.0,
            "lower": -15.0,
            "upper": -9.0,
            "return_mean": -11.0,
            "score": 79.0,
        },
        {"name": "clone", "run": None, "step": None, "estimate": -40.0},
    ],
    "chosen": "point 60",
    "verdict": "deploy",
    "reasons": ["Its gain over the data is at least 35.", "a <script> and a | b"],
}


def a_run(folder: Path, selection: bool = False) -> Path:
    """A finished run, with a selection or without."""
    folder.mkdir(parents=True)
    policy = some_policy("recurrent")
    policy.save(folder / "policy.npz")
    (folder / "run.json").write_text(json.dumps(RUN))
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    if selection:
        policy.save(folder / "selection" / "policy.npz")
        (folder / "selection" / "selection.json").write_text(json.dumps(SELECTION))
    return folder


def test_the_card_of_a_run_has_data_settings_seeds_scores(tmp_path: Path) -> None:
    text = card_of(a_run(tmp_path / "run"))
    for words in (
        "`" + "f" * 32 + "`",
        "12 episodes, 3,400 transitions",
        "training 7",
        "Settings of rollout: zeta 1.0",
        "Measured in `Toy-v1`, 20 episodes: return -10 ± 2, score 81.2",
        "The data's own episodes: return -50",
        "None: nothing has judged this policy",
        "| 2 `sensor 2 [bar]` | -1 | 2 |",  # a range of the data
        "as the data has it: `` -abs(`sensor 0 [bar]`) ``, at every later step",
        "MIT",
        "from policy import load",
    ):
        assert words in text, f"{words!r} is not in\n{text}"


def test_a_selection_gives_the_verdict_with_its_reasons(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", selection=True)
    assert origin_of(run).file == run / "selection" / "policy.npz"
    for place in (run, run / "selection", run / "selection" / "policy.npz"):
        text = card_of(place)
        assert "**deploy**: better than the data" in text
        assert "- Its gain over the data is at least 35." in text
        assert "a &lt;script> and a \\| b" in text
        assert "Chosen by selection: `point 60`, step 60." in text
        assert "return -11, score 79.0" in text  # of the chosen policy, not of the last one
        assert "Estimated by the judge, in no environment: -12 (-15 to -9)" in text
        assert "judge_seed 1000" in text
    last = card_of(run / "policy.npz")  # which the verdict does not speak of
    assert "**deploy**" not in last
    assert "return -10 ± 2" in last


def test_the_card_of_a_clone_says_what_it_was_chosen_by(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", selection=True)
    some_policy("cloned").save(run / "policy.npz")
    some_policy("cloned").save(run / "selection" / "policy.npz")
    told = {"held_out_markov": 1.25, "held_out_memory": 1.5}
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"clone": told}))
    text = "Held-out log-likelihood per step: 1.5 with memory, 1.25 without"
    assert text in card_of(run / "policy.npz") and "Held-out" not in card_of(run)
    clone = SELECTION["candidates"][1] | told | {"held_out_memory": None}
    (run / "selection" / "selection.json").write_text(
        json.dumps({**SELECTION, "candidates": [clone], "chosen": "clone"})
    )
    assert "Held-out log-likelihood per step: 1.25 without" in card_of(run)


def test_a_selection_elsewhere_finds_the_run_of_its_policy(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    chosen = {**SELECTION["candidates"][0], "run": str(run)}
    some_policy("recurrent").save(tmp_path / "selected" / "policy.npz")
    (tmp_path / "selected" / "selection.json").write_text(
        json.dumps({**SELECTION, "candidates": [chosen]})
    )
    assert "12 episodes, 3,400 transitions" in card_of(tmp_path / "selected")


def test_a_policy_file_alone_says_what_it_does_not_know(tmp_path: Path) -> None:
    policy = some_policy("DQN")
    policy.save(tmp_path / "one.npz")
    text = card_of(tmp_path / "one.npz")
    assert "Dataset `toy data`, content hash `" + "0" * 32 + "`" in text
    assert "Not measured" in text
    assert "Action of `valve`: one of 2, numbered from 0" in text
    policy.column_names = None
    policy.save(tmp_path / "one.npz")
    assert "Action: one of 2, numbered from 0" in card_of(tmp_path / "one.npz")
    assert "| 2 | -1 | 2 |" in card_of(tmp_path / "one.npz")
    policy.ranges, policy.dataset = None, None
    policy.save(tmp_path / "one.npz")
    text = card_of(tmp_path / "one.npz")
    assert "The ranges of the data are not recorded" in text
    assert "Not recorded in this file" in text


def test_a_run_without_a_policy_is_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "policy.npz").unlink()
    with pytest.raises(RunError, match="finish the run first"):
        origin_of(run)
