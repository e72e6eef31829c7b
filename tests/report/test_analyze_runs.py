"""`neubay analyze runs`: tables and figures of run directories, and of condensed files alike."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from helpers.report_runs import make_run
from neubay import cli
from neubay.errors import NeubayError, RunError
from neubay.report.parts import figures
from neubay.report.parts.tables import END
from neubay.report.runs import page, records, sweeps
from neubay.report.runs.groups import arrange
from neubay.runs.files import write_between

ROOT = Path(__file__).parents[2]


def old_entry(
    dataset: str,
    seed: int,
    results: list[float],
    *,
    scored: bool = True,
    variant: str = "neubay",
    changed: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A finished run as version 0.1 condensed it."""
    score = results[-1] if scored else None
    return {
        "run": f"{dataset}-{variant}-{seed}",
        "variant": variant,
        "preset": "cpu",
        "changed": list(changed),
        "zeta": 1.0,
        "dataset": dataset,
        "task": "toy",
        "environment": "Toy-v0",
        "seed": seed,
        "steps": 100 * len(results),
        "return_mean": results[-1],
        "return_std": 3.0,
        "episodes": 20,
        "score": score,
        "data_return_mean": -900.0,
        "data_score": 5.2 if scored else None,
        "discounted_mean": -50.12,
        "q_data": -40.0,
        "horizon": {"p50": 16.0, "max": 64.0},
        "posterior": {"return_mean": -120.0},
        "seconds": {"world": 60.0, "total": 240.0},
        "curve": [
            {
                "step": 100 * number,
                "return_mean": value,
                "score": value if scored else None,
                "discounted_mean": -50.12,
                "q_data": 15.0,
                **{f"horizon_{name}": 8.0 for name in ("p25", "p50", "p75", "max")},
            }
            for number, value in enumerate(results, start=1)
        ],
    }


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"runs": entries}), encoding="utf-8")
    return path


def run_command(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(map(str, arguments)))
    return int(ended.value.code or 0)


def printed(capsys: pytest.CaptureFixture[str], *sources: Path) -> str:
    assert run_command("analyze", "runs", *sources) == 0
    return capsys.readouterr().out


def test_tables_and_figure_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = [
        make_run(tmp_path / f"{zeta}-{seed}", seed=seed, score=score, rows=20,
                 changes={"rollout": {"zeta": zeta}}, dataset="pendulum")
        for zeta, seed, score in ((1.0, 0, 60.0), (1.0, 1, 40.0), (0.9, 0, 20.0))
    ]  # fmt: skip
    kept, figure, text = tmp_path / "runs.json", tmp_path / "zeta.png", tmp_path / "page.md"
    assert run_command("analyze", "runs", *directories, "--out", kept, "--figure", figure) == 0
    out = capsys.readouterr().out
    assert "| neubay | 2 | 1,900.0 ± 0.0 | 50.0 ± 14.1 |" in out
    assert "| neubay, ζ = 0.9 | 1 | 1,900.0 | 20.0 |" in out
    assert "The data's own mean return: 600.0 (score 19.1)." in out
    with Image.open(figure) as image:
        assert image.width > 1000

    # What training reports is averaged between evaluations; numbers are kept to four digits.
    first = json.loads(kept.read_text())["runs"][0]
    rows = [json.loads(line) for line in (directories[0] / "metrics.jsonl").open()]
    means = [np.mean([row["q_data"] for row in rows[3 * n : 3 * n + 2]]) for n in range(10)]
    assert [point["q_data"] for point in first["curve"]] == [float(f"{m:.4g}") for m in means]
    assert [point["step"] for point in first["curve"]] == list(range(1600, 16_001, 1600))

    # The condensed file makes the same tables, into the page's own place for them.
    text.write_text(f"Above.\n{sweeps.BEGIN}\nold\n{END}\nBelow.\n")
    assert run_command("analyze", "runs", kept, "--text", text) == 0
    written = text.read_text()
    assert out.strip() in written and "old" not in written
    assert written.startswith("Above.") and written.endswith("Below.\n")


def test_a_condensed_file_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    for source, kept in ((str(tmp_path / "log.hdf5"), "log.hdf5"), ("builtin:toy", "builtin:toy")):
        directory = make_run(tmp_path / kept.replace(":", "-"), seed=0)
        about = json.loads((directory / "run.json").read_text())
        about["dataset"]["source"] = source
        (directory / "run.json").write_text(json.dumps(about))
        assert records.condense(records.read(directory))["data"]["source"] == kept


def test_a_run_that_does_not_name_a_later_setting_has_its_default(tmp_path: Path) -> None:
    """One that was begun before there was a choice is told from those that chose otherwise."""
    before = make_run(tmp_path / "before", seed=0)
    since = make_run(tmp_path / "since", seed=0, changes={"agent": {"average_share": 0.4}})
    about = json.loads((before / "run.json").read_text())
    about["config"]["agent"].pop("average_share", None)
    (before / "run.json").write_text(json.dumps(about))
    (data,) = arrange(records.read_all([before, since]))
    assert {group.label for group in data.groups} >= {"neubay, average share = 0.4"} or {
        group.label for group in data.groups
    } >= {"neubay, average share = 0"}


@pytest.mark.slow
def test_a_report_of_a_condensed_file_is_that_of_its_runs(tmp_path: Path) -> None:
    """All tables are the same, though the files of the runs are gone."""
    changes = {"zeta": {"rollout": {"zeta": 0.9}}, "kappa": {"agent": {"kappa": 0.8}}, "main": {}}
    directories = [
        make_run(tmp_path / f"{name}{seed}", seed=seed, score=50.0 + 10 * seed, changes=change,
                 published="hopper-medium-replay-v2", rows=20)
        for name, change in changes.items() for seed in range(2)
    ]  # fmt: skip
    read = records.read_all(directories)
    kept = write(tmp_path / "runs.json", *map(records.condense, read))
    alone = write(tmp_path / "one.json", records.condense(read[0]))
    for directory in directories:
        shutil.rmtree(directory)

    def tables(runs: list[records.RunRecord]) -> list[Any]:
        datasets = arrange(runs)
        swept = sweeps.sensitivity_grids(datasets)
        return [sweeps.score_grid(datasets), sweeps.aggregate_grid(datasets), *swept]

    assert tables(records.read_all([kept])) == tables(read) and len(tables(read)) == 3
    assert run_command("report", alone, "--out", tmp_path / "out") == 0
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Rollout horizons" in text and "An evaluation episode" not in text


def test_the_table_says_what_following_the_verdict_gives(tmp_path: Path) -> None:
    """The chosen policy, the clone or the data; and the same from a condensed file."""
    policy = {"name": "early", "estimate": 900.0, "return_mean": 2000.0, "score": 61.0}
    clone = {"name": "clone", "is_clone": True, "estimate": 1.0, "return_mean": 5.0, "score": 44.0}
    best = {"name": "clone-of-best", "estimate": 2.0, "return_mean": 9.0, "score": 52.0}
    followed = {"deploy": 61.0, "copy": 44.0, "keep": None}
    made = {}
    for verdict in followed:
        made[verdict] = make_run(tmp_path / verdict, dataset=verdict, score=10.0, rows=10)
        (made[verdict] / "selection").mkdir()
        (made[verdict] / "selection" / "selection.json").write_text(
            json.dumps(
                {"verdict": verdict, "chosen": "clone" if verdict == "copy" else "early",
                 "reasons": ["why"],
                 "data": {"return_mean": 7.0}, "candidates": [policy | {"extra": 1}, clone, best]}
            )
        )  # fmt: skip
    other = make_run(tmp_path / "unjudged", dataset="unjudged", score=10.0, rows=10)
    runs = records.read_all([*made.values(), other])
    grid = sweeps.score_grid(arrange(runs))
    names = [heading.name for heading in grid.headings]
    shown = "clone", "clone of the best", "verdict", "verdict followed"
    clones, bests, said, got = (names.index(name) for name in shown)
    for row, run in zip(grid.rows, runs, strict=True):
        if row.name == "unjudged":
            assert {row.cells[place].text for place in (clones, bests, said, got)} == {"-"}
            continue
        assert row.cells[said].text == row.name and row.cells[clones].mean == 44.0
        assert row.cells[bests].mean == 52.0
        wanted = followed[row.name]
        assert row.cells[got].mean == (run.data_result if wanted is None else wanted)
    kept = write(tmp_path / "runs.json", *map(records.condense, runs))
    assert sweeps.score_grid(arrange(records.read_all([kept]))) == grid
    unjudged = sweeps.score_grid(arrange(runs[3:]))
    assert not {"clone", "verdict followed"} & {heading.name for heading in unjudged.headings}


@pytest.mark.parametrize("name", ["train", "benchmarks", "benchmarks_0_2"])
def test_the_results_page_shows_what_its_records_say(name: str, tmp_path: Path) -> None:
    docs = ROOT / "docs" / "results"
    copy = Path(shutil.copy(docs / f"{name}.md", tmp_path))
    assert run_command("analyze", "runs", docs / f"{name}.json", "--text", copy) == 0
    assert copy.read_bytes() == (docs / f"{name}.md").read_bytes()


@pytest.mark.slow
def test_a_report_shows_what_version_0_1_condensed() -> None:
    runs = records.read_all([ROOT / "docs" / "results" / "benchmarks_0_2.json"])
    assert len(runs) == 31 and {run.status for run in runs} == {"finished"}
    replay = next(data for data in arrange(runs) if data.title == "hopper_medium_replay")
    assert replay.main.label == "neubay" and len(replay.main.runs) == 2
    assert not sweeps.sensitivity_grids([replay]), "variants differ in more than they say"
    html = page.many_runs([run for run in runs if run.dataset == "hopper_random"]).html
    assert "neubay, max epochs = 30" in html and "Values are not overestimated" in html


def test_what_cannot_be_read_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = make_run(tmp_path / "whole", rows=10)
    early = make_run(tmp_path / "early", seed=1, finished=False, rows=10)
    damaged = make_run(tmp_path / "damaged", seed=2, rows=10)
    (damaged / "run.json").write_text("{", encoding="utf-8")
    blind = make_run(tmp_path / "blind", dataset="b", environment=None, score=None, rows=10)
    broken = write(tmp_path / "broken.json", {"run": "a", "curve": []})
    assert run_command("analyze", "runs", whole, early, damaged, blind, broken) == 0
    said = capsys.readouterr()
    for words in (f"{early}: not a finished run", f"{damaged}/run.json: not valid JSON",
                  f"{broken}: is damaged"):  # fmt: skip
        assert words in said.err
    assert "### b, in no environment" in said.out
    assert "| neubay | 1 | - | - | 200.0 | 180.0 | 108.0 | 18.3 |" in said.out
    assert run_command("analyze", "runs", early) == 2
    assert "no run is finished" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(RunError, match="early: not a finished run"):
        records.condense(records.read(early))
    with pytest.raises(RunError, match="holds no runs"):
        records.read_condensed(write(tmp_path / "none.json"))


def test_a_page_without_a_place_for_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing here")
    with pytest.raises(NeubayError, match="needs one line"):
        write_between(tmp_path / "page.md", sweeps.BEGIN, END, "| a |")


def test_a_page_may_have_tables_of_two_commands(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", "<!-- tables: other -->"
    page.write_text(f"{sweeps.BEGIN}\nold\n{END}\nbetween\n{other}\ntheirs\n{END}\n")
    write_between(page, sweeps.BEGIN, END, "ours")
    assert page.read_text() == f"{sweeps.BEGIN}\nours\n{END}\nbetween\n{other}\ntheirs\n{END}\n"
    page.write_text(f"{sweeps.BEGIN}\nno end\n{other}\ntheirs\n{END}\n")
    with pytest.raises(NeubayError, match="needs one line"):
        write_between(page, sweeps.BEGIN, END, "ours")


def test_several_datasets_get_one_table_of_their_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        old_entry("a", 0, [50.0]),
        old_entry("a", 1, [0.0]),
        old_entry("a", 2, [70.0], variant="bc"),
        old_entry("a", 3, [60.0], variant="markov"),  # on one dataset only: in that one's tables
        old_entry("b", 0, [3.0], scored=False),
        old_entry("b", 1, [4.0], scored=False, variant="bc"),
        # another setting of a seed that was run without it
        old_entry("b", 0, [9.0], scored=False, changed=("agent.kappa 0.9",)),
    ]
    text = printed(capsys, write(tmp_path / "runs.json", *runs))
    head = "| dataset | environment | measure | data | neubay | cloning | seeds |"
    assert head in text and "| markov | 1 |" in text
    assert "| a | Toy-v0 | score | 5.2 | 25.0 ± 35.4 | **70.0** | 2 / 1 |" in text
    assert "| b | Toy-v0 | return | -900.0 | 3.0 | **4.0** | 1 |" in text
    assert "differ in more" not in text
    assert head not in printed(capsys, write(tmp_path / "one.json", *runs[:4]))

    # Where no seed was run without it, a changed setting counts, and the table says so.
    runs[1] = old_entry("a", 1, [0.0], changed=("world.max_epochs 30",))
    text = printed(capsys, write(tmp_path / "runs.json", *runs))
    assert "| a | Toy-v0 | score | 5.2 | 25.0 ± 35.4 | **70.0** | 2 / 1 |" in text
    assert "Runs that differ in more than the seed: neubay on a." in text


def test_datasets_are_drawn_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        old_entry("a", 0, [-3.0, -2.0], scored=False),
        old_entry("a", 0, [-3.0, -1.0], scored=False, variant="bc"),
        old_entry("b", 0, [-3.0, 0.0], scored=False),
        old_entry("b", 1, [-5.0, 2.0], scored=False),
    ]
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, _: drawn.append(figure))
    for kept in (
        runs,
        runs[:1],
        [runs[0], old_entry("a", 0, [1.0, 2.0], scored=False, changed=("x.y 1",))],
    ):
        file = write(tmp_path / "runs.json", *kept)
        assert run_command("analyze", "runs", file, "--figure", tmp_path / "figure.png") == 0
    panels = drawn[0].axes
    assert [axes.get_title(loc="left") for axes in panels] == ["a", "b"]
    lines = [{line.get_label(): list(line.get_ydata()) for line in axes.lines} for axes in panels]
    assert lines[0]["neubay"] == [-3.0, -2.0] and lines[0]["cloning"] == [-3.0, -1.0]
    assert lines[1]["neubay"] == [-4.0, 1.0], "the mean over seeds"
    assert [-900.0, -900.0] in lines[0].values() and [-900.0, -900.0] in lines[1].values()
    assert len(drawn[1].axes) == 3, "one dataset: score, Q and horizons"
    legend = [text.get_text() for text in drawn[2].legends[0].get_texts()]
    assert legend == ["y = default", "y = 1"], "groups by the one setting in which they differ"
    with pytest.raises(RunError, match="holds no runs"):
        records.read_all([write(tmp_path / "none.json")])


def test_a_score_of_zero_is_a_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, write(tmp_path / "runs.json", old_entry("a", 0, [0.0])))
    assert "± 3.0 | 0.0 | 0.0 |" in text
