"""The page of a sweep: trials best first, what each setting did, what it cost, a warning."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.report_runs import make_run
from neubay.commands.report import report
from neubay.errors import RunError
from neubay.report.runs import trials
from neubay.runs import sweepdir
from neubay.runs.sweepdir import Record, Trial


def a_record(metric: str = "posterior") -> Record:
    asked: dict[str, Any] = {
        "search": {"agent.kappa": "0.05:0.95", "agent.memory": "[lru, none]"},
        "seeds": [0],
        "trials": 5,
        "sampler": "tpe",
        "dataset": {"name": "hopper_medium_replay", "hash": "572b"},
    }

    def trial(number: int, kappa: float, memory: str, **about: Any) -> Trial:
        settings = {"agent.kappa": kappa, "agent.memory": memory}
        return Trial(number, settings, [f"{number:04d}-seed0"], **about)

    found = [
        trial(0, 0.2, "lru", state="finished", value=12.5, seconds=60.0),
        trial(1, 0.4, "none", state="finished", value=48.25, seconds=7200.0),
        trial(2, 0.6, "lru", state="pruned", value=99.0, seconds=10.0),
        trial(3, 0.9, "lru", state="failed", problem="diverged at step 50"),
        trial(4, 0.7, "none"),
    ]
    return Record(metric, asked, found)


def test_best_first_with_the_cost() -> None:
    grid = trials.trial_grid(a_record())
    assert [row.name for row in grid.rows] == [f"trial {n}" for n in (1, 0, 2, 4, 3)]
    names = [heading.name for heading in grid.headings]
    best = dict(zip(names, grid.rows[0].cells, strict=True))
    assert best["posterior"].text == "48.25" and best["posterior"].best
    assert best["work"].text == "2.0 h" and best["κ"].text == "0.4"
    assert "2.0 h in all" in grid.note
    assert not any(row.cells[0].best for row in grid.rows[1:]), "a pruned one is never the best"


def test_a_panel_for_each_setting_with_what_it_did() -> None:
    figure = trials.value_figure(a_record())
    assert figure is not None
    kappa, memory = figure.axes
    finished, pruned = (points.get_offsets().tolist() for points in kappa.collections)  # type: ignore[attr-defined]
    assert finished == [[0.2, 12.5], [0.4, 48.25]] and pruned == [[0.6, 99.0]]
    assert [text.get_text() for text in memory.get_xticklabels()] == ["lru", "none"]
    assert trials.value_figure(Record("score", {}, [])) is None


def test_what_was_tuned_on_the_test_environment_says_so() -> None:
    titles = [notice.title for notice in trials.notices(a_record("score"))]
    assert titles == ["Tuned on the test environment", "1 of the trials failed"]
    assert not [n for n in trials.notices(a_record()) if "test environment" in n.title]


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the runs that are there, of which one cannot be read."""
    sweep = tmp_path / "sweep"
    make_run(sweep / "0001-seed0", changes={"agent": {"kappa": 0.4}})
    make_run(sweep / "0000-seed0", changes={"agent": {"kappa": 0.2}}, score=20.0)
    (sweep / "0000-seed0" / "summary.json").write_text("{")
    a_record("score").save(sweep)
    report((sweep,), out=tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text()
    assert "Tuned on the test environment" in page and "What each setting did" in page
    assert page.index("0001-seed0") > page.index("trial 1")
    assert "A run is left out" in page and "<script" not in page
    assert (tmp_path / "page" / "figures" / "settings.png").stat().st_size > 1000
    printed = capsys.readouterr().out
    assert "| trial 1" in printed and "diverged at step 50" in printed


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content["trials"][0].update(number=7),
        lambda content: content["trials"][0].update(state="lucky"),
        lambda content: content["trials"][0].update(runs=["../../etc"]),
        lambda content: content["trials"][0].update(value="high"),
        lambda content: content["trials"][0].pop("settings"),
        lambda content: content["trials"][0]["settings"].pop("agent.kappa"),
        lambda content: content["trials"][4].update(runs=[]),
        lambda content: content["trials"][4].update(runs=["0004-seed0", "0004-seed1"]),
        lambda content: content["trials"][0].update(seconds="long"),
        lambda content: content.update(journal=-1),
        lambda content: content["asked"].pop("seeds"),
        lambda content: content.update(trials=7),
        lambda content: content.update(layout=2),
        lambda content: content.pop("metric"),
    ],
)
def test_a_damaged_record_is_refused_in_words(tmp_path: Path, damage: Any) -> None:
    a_record().save(tmp_path)
    path = tmp_path / sweepdir.FILE
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"sweep\.json"):
        sweepdir.read(tmp_path)
