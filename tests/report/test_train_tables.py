"""Tables and the figure of training runs are made from what the runs wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from neubay import cli
from neubay.errors import NeubayError
from neubay.report.parts.tables import END
from neubay.report.studies import train_figures, train_tables
from neubay.runs.files import write_between

ROOT = Path(__file__).parents[2]


def write_run(directory: Path, *, seed: int, zeta: float, returns: list[float]) -> Path:
    """A run directory with an evaluation after every two rows of training."""
    directory.mkdir(parents=True)
    run = {
        "variant": "neubay",
        "preset": "cpu",
        "task": "toy",
        "dataset": {"published": None},
        "config": {"seed": seed, "rollout": {"zeta": zeta, "penalty": 0.0}},
    }
    summary = {
        "dataset": "toy",
        "task": "toy",
        "environment": "Toy-v0",
        "seed": seed,
        "steps": 100 * len(returns),
        "return_mean": returns[-1],
        "return_std": 3.0,
        "episodes": 20,
        "score": None,
        "data_return_mean": -900.0,
        "data_score": None,
        "discounted_mean": -50.123456,
        "q_data": -40.0,
        "horizon": {"p50": 16.0, "max": 64.0},
        "posterior": {"return_mean": -120.0},
        "seconds": {"world": 60.0, "total": 240.0},
    }
    rows: list[dict[str, Any]] = []
    for number, value in enumerate(returns):
        for half in (1, 2):
            step = 100 * number + 50 * half
            horizons = {f"horizon_{q}": 8.0 * half for q in ("p25", "p50", "p75", "max")}
            numbers = {"q_data": 10.0 * half, "entropy": None, **horizons}
            rows.append({"kind": "train", "step": step, **numbers})
        rows.append({"kind": "evaluation", "step": step, "return_mean": value, "score": None})
    (directory / "run.json").write_text(json.dumps(run))
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def condensed(directory: Path, variant: str = "neubay", **result: Any) -> dict[str, Any]:
    """A run of `write_run` as `neubay analyze runs` keeps it, with another result."""
    about, summary = (
        json.loads((directory / f"{name}.json").read_text()) for name in ("run", "summary")
    )
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    about["variant"] = variant
    return train_tables.condense(
        directory.name, about, summary | result, rows, default=about["config"]
    )


def run_command(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code in (None, 0)


def test_tables_and_figure_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = [
        write_run(tmp_path / f"{zeta}-{seed}", seed=seed, zeta=zeta, returns=[-800.0, last])
        for zeta, seed, last in ((1.0, 0, -100.0), (1.0, 1, -200.0), (0.9, 0, -700.0))
    ]
    kept, figure, text = tmp_path / "runs.json", tmp_path / "zeta.png", tmp_path / "page.md"
    named = ["analyze", "runs", *map(str, directories)]
    run_command([*named, "--out", str(kept), "--figure", str(figure)])
    printed = capsys.readouterr().out
    assert "| neubay | 2 | -150.0 ± 70.7 |" in printed
    assert "| neubay, rollout.zeta 0.9 | 1 | -700.0 |" in printed
    with Image.open(figure) as image:
        assert image.width > 1000

    # What training reports is averaged between evaluations; numbers are kept to four digits.
    first = json.loads(kept.read_text())["runs"][0]
    assert [point["q_data"] for point in first["curve"]] == [15.0, 15.0]
    assert [point["step"] for point in first["curve"]] == [100, 200]
    assert first["discounted_mean"] == -50.12

    # The condensed file makes the same tables, into the page's own place for them.
    text.write_text(f"Above.\n{train_tables.BEGIN}\nold\n{END}\nBelow.\n")
    run_command(["analyze", "runs", str(kept), "--text", str(text)])
    page = text.read_text()
    assert printed.strip() in page and page.startswith("Above.") and page.endswith("Below.\n")
    assert "old" not in page


def test_a_run_that_has_not_ended_is_named(tmp_path: Path) -> None:
    with pytest.raises(NeubayError, match="early: not a finished run"):
        train_tables.condense(
            "early", {"config": {"rollout": {"zeta": 1.0}}}, {}, [], {"rollout": {}}
        )


def test_a_page_without_a_place_for_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing here")
    with pytest.raises(NeubayError, match="needs one line"):
        write_between(tmp_path / "page.md", train_tables.BEGIN, END, "| a |")


@pytest.mark.parametrize("name", ["train", "benchmarks"])
def test_the_results_page_shows_what_its_records_say(name: str, tmp_path: Path) -> None:
    docs = ROOT / "docs" / "results"
    copy = Path(shutil.copy(docs / f"{name}.md", tmp_path))
    run_command(["analyze", "runs", str(docs / f"{name}.json"), "--text", str(copy)])
    assert copy.read_bytes() == (docs / f"{name}.md").read_bytes()


def test_several_datasets_get_one_table_of_their_scores(tmp_path: Path) -> None:
    def run(dataset: str, seed: int, score: float | None, last: float) -> dict[str, Any]:
        directory = write_run(
            tmp_path / f"{dataset}{last}{seed}", seed=seed, zeta=1.0, returns=[last]
        )
        own = None if score is None else 5.2
        return condensed(directory, dataset=dataset, score=score, data_score=own)

    runs = [
        run("a", 0, 50.0, 1.0),
        run("a", 1, 0.0, 2.0),
        run("a", 2, 70.0, 2.0),
        run("a", 3, 60.0, 2.0),
        run("b", 0, None, 3.0),
        run("b", 1, None, 4.0),
        run("b", 0, None, 9.0),
    ]
    runs[2]["variant"] = runs[5]["variant"] = "bc"
    runs[3]["variant"] = "markov"  # on one dataset only: in that one's tables
    runs[6]["changed"] = ["rollout.zeta 0.9"]  # another setting of a seed that was run without
    text = train_tables.markdown(runs)
    head = "| dataset | environment | the data | neubay | seeds | bc | seeds |"
    assert head in text and "| markov | 1 |" in text
    assert "| a | Toy-v0 | 5.2 | 25.0 ± 35.4 | 2 | 70.0 | 1 |" in text
    assert "| b | Toy-v0 | -900.0 | 3.0 | 1 | 4.0 | 1 |" in text
    assert "differ in more" not in text
    assert head not in train_tables.markdown(runs[:4])

    # Where no seed was run without it, a changed setting counts, and the table says so.
    runs[1]["changed"] = ["world.max_epochs 30"]
    text = train_tables.markdown(runs)
    assert "| a | Toy-v0 | 5.2 | 25.0 ± 35.4* | 2 |" in text and "differ in more" in text


def test_datasets_are_drawn_side_by_side(tmp_path: Path) -> None:
    runs = []
    for number, (dataset, variant) in enumerate([("a", "neubay"), ("a", "bc"), ("b", "neubay")]):
        path = write_run(tmp_path / str(number), seed=0, zeta=1.0, returns=[-3.0, -2.0 + number])
        runs.append(condensed(path, variant, dataset=dataset))
    panels = train_figures.curves_figure(runs).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["a", "b"]
    drawn = [{line.get_label(): list(line.get_ydata()) for line in axes.lines} for axes in panels]
    assert drawn[0] == {
        "the data": [-900.0, -900.0],
        "copied (bc)": [-1.0, -1.0],
        "neubay": [-3.0, -2.0],
    }
    assert drawn[1] == {"the data": [-900.0, -900.0], "neubay": [-3.0, 0.0]}
    assert len(train_figures.curves_figure(runs[:2]).axes) == 3  # one dataset: over zeta
    with pytest.raises(NeubayError, match="no run"):
        train_figures.curves_figure([])


def test_a_score_of_zero_is_a_score(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", seed=0, zeta=1.0, returns=[1.0])
    row = {"kind": "evaluation", "step": 1, "return_mean": 0.0, "score": 0.0}
    (directory / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert "± 3.0 | 0.0 | 0.0 |" in train_tables.markdown([condensed(directory, score=0.0)])
