"""Reports: reading runs, saying what matters, grouping, pages, files, the live page, films."""

import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.report_runs import make_run
from neubay.cli import main
from neubay.errors import NeubayError, RunError
from neubay.report.parts import document, tables
from neubay.report.runs import figures, page, records, reel, serve, sweeps
from neubay.report.runs.findings import findings
from neubay.report.runs.groups import Group, arrange, labels
from neubay.runs.locks import locked

SOURCE = Path(page.__file__).parents[3]


class Parsed(HTMLParser):
    """Counts elements and checks that they close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img"}:  # these never close
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-5:])
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def check_page(text: str, scripts: int = 0) -> Parsed:
    """Well formed, self-contained, with one h1, unique ids, and a name for every picture."""
    parsed = Parsed(text)
    assert parsed.count("h1") == 1 and parsed.count("script") == scripts
    ids = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in parsed.elements:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            if attrs.get(name) is not None:
                assert re.match(r"#|data:", attrs[name] or ""), (tag, attrs)
        if tag == "svg":
            assert attrs["role"] == "img" and attrs["aria-label"]
        if tag == "img":
            assert attrs["alt"]
    assert "url(http" not in text and "@import" not in text
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    return parsed


# ------------------------------------------------------------------------------------- imports


@pytest.mark.slow
def test_reports_need_no_jax() -> None:
    """Looking at runs does not wait for it; `jaxtyping` is imported without it."""
    names = [
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in (SOURCE / "neubay" / "report").rglob("*.py")
    ]
    assert len(names) > 15
    imports = "; ".join(f"import {name.removesuffix('.__init__')}" for name in names)
    code = f"import sys; {imports}; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# ------------------------------------------------------------------------------------- reading


def test_a_finished_run_is_read(tmp_path: Path) -> None:
    run = records.read(make_run(tmp_path / "run", score=60.0))
    assert (run.status, run.step, run.seed) == ("finished", 16_000, 0)
    assert run.result == 60.0 and run.result_std == 10.0 and run.data_result == 19.1
    assert run.unit == "normalised score" and len(run.evaluations["step"]) == 10
    assert run.settings["agent.kappa"] == 0.5 and "seed" not in run.settings
    assert run.uncertainty is not None and len(run.uncertainty) == 2000


def test_a_run_that_goes_on_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", finished=False)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 99999, "q_da')  # a line that is being written
    run = records.read(directory)
    assert (run.status, run.step, run.data_result) == ("stopped", 8000, 19.1)
    with locked(directory):
        assert records.read(directory).status == "running"
        (directory / "metrics.jsonl").unlink()
        assert records.read(directory).status == "starting"
        (directory / "world.json").unlink()
        assert records.read(directory).status == "fitting the world"


def test_a_resumed_stretch_counts_as_it_was_done_last(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run")
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "evaluation", "step": 16_000, "score": 1.0}) + "\n")
    run = records.read(directory)
    assert run.result == 1.0 and np.all(np.diff(run.evaluations["step"]) > 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", "{", "not valid JSON"),
        ("run.json", "[1]", "expected a JSON object"),
        ("run.json", "{}", "damaged, or of another version"),
        ("run.json", '{"kind": "bandit"}', "'neubay bandit report' shows those"),
        ("run.json", '{"layout": 99}', "layout 99, this version of neubay reads up to 4"),
        ("run.json", '{"config": {"seed": 0}, "dataset": {"name": "x"}}', "damaged"),
        ("summary.json", '{"environment": 3}', "damaged, or of another version"),
        (
            "metrics.jsonl",
            '{"kind": "train", "step"\n',
            "line 1: .*Expecting ':' delimiter.*damaged",
        ),
        ("metrics.jsonl", '{"kind": "train", "step": null}\n', "line 1: .*damaged"),
    ],
)
def test_damage_is_explained(tmp_path: Path, name: str, content: str, message: str) -> None:
    directory = make_run(tmp_path / "run")
    (directory / name).write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=message):
        records.read(directory)


def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not a run directory \(there is no run.json\)"):
        records.read(tmp_path)
    with pytest.raises(NeubayError, match="name run directories"):
        records.read_all([])


def test_a_folder_of_runs_stands_for_them(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / "runs" / f"s{seed}", seed=seed, rows=10)
    bandit = tmp_path / "runs" / "bandit"
    bandit.mkdir()
    (bandit / "run.json").write_text('{"kind": "bandit"}', encoding="utf-8")
    both = records.read_all([tmp_path / "runs", tmp_path / "runs" / "s1"])
    assert [run.name for run in both] == ["s0", "s1"]


def test_one_run_is_one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = make_run(tmp_path / "a", rows=10)
    (tmp_path / "link").symlink_to(original)
    monkeypatch.chdir(tmp_path)
    assert len(records.read_all([Path("a"), original, tmp_path / "link"])) == 1
    shutil.copytree(original, tmp_path / "copy")
    with pytest.raises(NeubayError, match=r"a and .*copy: the same dataset, settings and seed \(0"):
        arrange(records.read_all([original, tmp_path / "copy"]))


# ------------------------------------------------------------------------------------- curves


@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=200),
    st.integers(1, 50),
)
def test_an_envelope_keeps_extremes_and_order(values: list[float], buckets: int) -> None:
    column = np.array(values, np.float64)
    curves = {"step": np.arange(len(column), dtype=np.float64), "x": column}
    thin = figures.envelope(curves, "x", buckets)
    finite = column[np.isfinite(column)]
    assert len(thin.step) == min(buckets, len(finite)) and np.all(np.diff(thin.step) > 0)
    if len(finite):
        assert thin.low.min() == finite.min() and thin.high.max() == finite.max()
        assert thin.step[-1] == np.flatnonzero(np.isfinite(column))[-1]
        slack = 1e-9 * np.abs(finite).max()
        assert np.all(thin.low <= thin.mean + slack) and np.all(thin.mean <= thin.high + slack)


def test_seeds_are_averaged_where_all_have_been(tmp_path: Path) -> None:
    both = [
        records.read(make_run(tmp_path / "a", seed=0, rows=50)),
        records.read(make_run(tmp_path / "b", seed=1, rows=80, finished=False)),
    ]
    steps, values = figures.shared_steps(both, "q_data")
    assert steps[-1] <= 8000 and values.shape == (2, len(steps)) and np.isfinite(values).all()


# ----------------------------------------------------------------------------------- findings


def titles(directory: Path) -> dict[str, str]:
    return {each.title: each.kind for each in findings(records.read(directory))}


def test_overestimation_is_said_with_the_papers_advice(tmp_path: Path) -> None:
    calm = titles(make_run(tmp_path / "calm", promised=190.0))
    assert calm["Values are not overestimated"] == "good"
    assert calm["Better than the data by 40.9"] == "good"
    run = records.read(make_run(tmp_path / "wild", promised=600.0, score=8.0))
    first = findings(run)
    assert [each.kind for each in first[:2]] == ["warning", "warning"]
    advice = next(each.text for each in first if each.title == "Values are overestimated")
    assert "--agent.encoder-lr" in advice and "--agent.gamma" in advice
    assert "Worse than the data by 11.1" in [each.title for each in first]


def test_early_on_nothing_is_advised(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", promised=600.0, rows=200)
    (directory / "summary.json").unlink()
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(lines[:30]), encoding="utf-8")
    kinds = {each.title: each.kind for each in findings(records.read(directory))}
    assert kinds["Values are above the returns, as they are early on"] == "fact"


def test_the_critics_view_of_the_same_episodes_goes_before_the_data(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", promised=600.0)
    text = (directory / "metrics.jsonl").read_text(encoding="utf-8")
    text = text.replace('"discounted_mean"', '"q_start": 190.0, "discounted_mean"')
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")
    found = {each.title: each.text for each in findings(records.read(directory))}
    assert "predicts 190.0 at the start" in found["Values are not overestimated"]
    assert "On the data it predicts 57" in found["Values are not overestimated"]


def test_short_rollouts_name_their_reason(tmp_path: Path) -> None:
    changes = {"rollout": {"zeta": 0.9}}
    directory = make_run(tmp_path / "run", changes=changes)
    text = (directory / "metrics.jsonl").read_text(encoding="utf-8")
    text = re.sub(r'"horizon_p50": [\d.]+', '"horizon_p50": 3.0', text)
    text = text.replace('"nonfinite_gradients": 0.0', '"nonfinite_gradients": 1.0')
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")
    found = {each.title: each.text for each in findings(records.read(directory))}
    assert "ζ = 0.9 cuts them early" in found["Rollouts are short: 3 steps in the median"]
    assert "200 of the 200 rows" in found["Gradients that were not finite"]


def test_a_world_that_is_gone_is_told(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", rows=10)
    title = "The world's uncertainty is not shown"
    assert title not in titles(directory)
    (directory / "world").rename(tmp_path / "elsewhere")
    found = {each.title: each for each in findings(records.read(directory))}
    assert found[title].kind == "fact" and str(directory / "world") in found[title].text
    (directory / "world.json").unlink()
    assert title not in titles(directory), "there is none yet"


LEARNED = {
    "ends": 1483,
    "precision": 0.97,
    "recall": 0.96,
    "false_alarms": 4e-4,
    "false_alarms_apart": 2e-5,
    "rate": 0.0145,
    "rate_imagined": 0.0146,
    "survival": {
        "steps": [1, 10, 100],
        "data": [1.0, 0.9, 0.4],
        "recorded": [1.0, 0.9, 0.39],
        "imagined": [1.0, 0.89, 0.4],
    },
}


def test_learned_ends_are_told_and_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert "What ends an episode was learned" not in titles(run)
    about = run / "world" / "world.json"
    about.write_text(json.dumps({"termination": LEARNED}))
    assert titles(run)["What ends an episode was learned"] == "fact"
    (text,) = (n.text for n in findings(records.read(run)) if "was learned" in n.title)
    assert "1,483 ends" in text and "precision 97.0%" in text and "ends 1% of rollouts" in text
    names = [picture.name for picture in page.run_pictures(records.read(run))]
    assert names.index("survival") == names.index("uncertainty") + 1
    about.write_text(json.dumps({"termination": LEARNED | {"false_alarms_apart": 1e-3}}))
    assert titles(run)["Learned ends come too often"] == "warning"
    # What is not as it should be is not shown, and stops nothing.
    for part, wrong in (
        ("precision", "high"),
        ("rate", 7),
        ("survival", {"steps": [1]}),
        ("survival", LEARNED["survival"] | {"data": [1.0]}),
        ("survival", LEARNED["survival"] | {"steps": [0, 1, 2]}),
    ):
        about.write_text(json.dumps({"termination": LEARNED | {part: wrong}}))
        assert records.read(run).termination is None
    about.write_text("[]")
    assert records.read(run).termination is None


def test_without_an_environment_the_posterior_speaks(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", environment=None, score=None)
    run = records.read(directory)
    assert run.result is None
    text = page.one_run(run).html
    assert "Expected return" in text and "The posterior expects a return of 1,700.0" in text
    assert "Nothing was measured: no run has an environment." in tables_of(run)


def tables_of(run: records.RunRecord) -> str:
    return sweeps.score_grid(arrange([run])).note


def test_the_posterior_is_silent_beside_a_verdict(tmp_path: Path) -> None:
    """It counts other steps, so that the two numbers contradict each other."""
    directory = make_run(tmp_path / "run", environment=None, score=None)
    (directory / "selection").mkdir()
    judged = {"name": "clone", "estimate": -131.2, "lower": -140.0, "upper": -120.0}
    selected = {
        "verdict": "keep",
        "chosen": "clone",
        "reasons": [],
        "data": {"return_mean": -329.2},
        "candidates": [judged],
    }
    (directory / "selection" / "selection.json").write_text(json.dumps(selected))
    text = page.one_run(records.read(directory)).html
    assert "-131.2" in text and "The posterior expects" not in text
    assert "<b>Keep</b> your controller (judged best: clone): nothing is surely better" in text


# ------------------------------------------------------------------------------------- groups


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[records.RunRecord]:
    """Two datasets; the method, three changes of one setting, and a relative; two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    variations: dict[str, tuple[float, dict[str, Any]]] = {
        "zeta": (20.0, {"changes": {"rollout": {"zeta": 0.9}}, "promised": 600.0}),
        "main": (60.0, {}),
        "markov": (55.0, {"variant": "markov"}),
        "encoder": (40.0, {"changes": {"agent": {"encoder_lr": 1e-5}}}),
        "members": (58.0, {"changes": {"world": {"pool": 6, "members": 5}}}),
    }
    directories = []
    for dataset, name in (("hopper_medium_replay", "hopper-medium-replay-v2"), ("mine", None)):
        for label, (score, options) in variations.items():
            for seed in range(2):
                directories.append(
                    make_run(
                        root / f"{dataset}-{label}-{seed}",
                        dataset=dataset,
                        published=name,
                        seed=seed,
                        score=score + 2 * seed,
                        rows=40,
                        **options,
                    )
                )
    return records.read_all(directories)


def test_groups_are_named_by_what_differs(many: list[records.RunRecord]) -> None:
    datasets = arrange(many)
    assert [data.title for data in datasets] == ["hopper_medium_replay", "mine"]
    assert labels(datasets) == [
        "neubay",
        "neubay, ζ = 0.9",
        "markov",
        "neubay, η_φ = 1e-05",
        "neubay, N = 5",
    ]
    assert all(data.main.label == "neubay" and len(data.main.runs) == 2 for data in datasets)


def test_the_score_table(many: list[records.RunRecord]) -> None:
    grid = sweeps.score_grid(arrange(many))
    cells = dict(zip((heading.name for heading in grid.headings), grid.rows[0].cells, strict=True))
    assert (cells["neubay"].mean, cells["neubay"].n) == (61.0, 2)
    assert cells["neubay"].std == pytest.approx(np.sqrt(2))
    assert cells["neubay"].best and cells["neubay"].marked
    assert cells["neubay, N = 5"].marked and not cells["neubay, ζ = 0.9"].marked
    assert cells["environment"].text == "Hopper-v4" and cells["hash"].text == "572b72f9"
    assert cells["source"].text == "d4rl:hopper_medium_replay"
    assert cells["dataset"].text == "hopper-medium-replay-v2"
    assert (cells["NEUBAY"].mean, cells["NEUBAY"].std) == (110.6, 0.7)
    assert not cells["NEUBAY"].marked, "published numbers are beside ours, not among them"
    assert grid.rows[1].cells[-3].text == "-", "nothing was published on data of one's own"


def test_every_format_names_data_and_environment(many: list[records.RunRecord]) -> None:
    of_the_paper = "published (paper, D4RL v2 data, Gym MuJoCo v2 env)"
    one = [run for run in many if run.dataset == "hopper_medium_replay"]
    grid = sweeps.score_grid(arrange(one))
    header = tables.markdown(grid).splitlines()[2].replace("\\", "")
    names = [name.strip() for name in header.strip("|").split("|")]
    assert names[:5] == ["dataset", "environment", "measure", "data", "neubay"]
    assert {"source", "hash", f"{of_the_paper}: NEUBAY"} <= set(names) and "NEUBAY" not in names
    ours = ("d4rl:hopper_medium_replay", "Hopper-v4", "572b72f9")
    for text in (document.table(grid), tables.latex(grid).replace("\\_", "_")):
        assert of_the_paper in text and all(words in text for words in ours)
    lines = tables.comma_separated(grid).splitlines()
    assert any(f',NEUBAY,"{of_the_paper}",' in line for line in lines)
    assert all(any(f",{words}," in line for line in lines) for words in ours)
    both = sweeps.score_grid(arrange(many))
    assert [row.cells[0].text for row in both.rows] == ["Hopper-v4"] * 2


def test_benchmarks_have_columns_of_their_own(tmp_path: Path) -> None:
    """What was published on other data and in another environment shares no column."""
    hopper = make_run(tmp_path / "a", published="hopper-medium-replay-v2", rows=10)
    other = make_run(tmp_path / "b", dataset="x", published="Hopper-v3-Low", rows=10)
    grid = sweeps.score_grid(arrange(records.read_all([hopper, other])))
    groups = [heading.group for heading in grid.headings if heading.name == "NEUBAY"]
    assert groups == [
        "published (paper, D4RL v2 data, Gym MuJoCo v2 env)",
        "published (paper, NeoRL data, Gym MuJoCo v3 env)",
    ]
    first, second = ([cell.mean for cell in row.cells] for row in grid.rows)
    assert (first[-6], first[-3]) == (110.6, None) and (second[-6], second[-3]) == (None, 30.3)


def test_published_numbers_enter_no_aggregate(many: list[records.RunRecord]) -> None:
    found = sweeps.intervals(arrange(many))
    assert found["neubay"][0] == 61.0 and found["neubay"][1] >= 60.0 and found["neubay"][2] <= 62.0
    grid = sweeps.aggregate_grid(arrange(many))
    assert grid is not None and [cell.text for cell in grid.rows[0].cells[3:]] == ["2", "4"]


def test_a_group_that_cannot_be_averaged_says_why(tmp_path: Path) -> None:
    """One setting has run on one of two datasets; a third dataset has returns and no scores."""
    zeta = {"rollout": {"zeta": 0.9}}
    several = [
        make_run(tmp_path / "a", dataset="a", rows=10),
        make_run(tmp_path / "az", dataset="a", changes=zeta, rows=10),
        make_run(tmp_path / "b", dataset="b", rows=10),
        make_run(tmp_path / "c", dataset="c", score=None, rows=10),
        make_run(tmp_path / "cm", dataset="c", score=None, variant="markov", rows=10),
    ]
    grid = sweeps.aggregate_grid(arrange(records.read_all(several)))
    assert grid is not None and "averaged over datasets: c left out" in grid.note
    why = {row.name: row.cells[-1].text for row in grid.rows}
    assert grid.headings[-1].name == "left out, for want of"
    assert why == {
        "neubay": "",
        "neubay, ζ = 0.9": "finished runs on b",
        "markov": "finished runs on a, b",
    }
    assert grid.rows[0].cells[0].mean == 60.0 and grid.rows[1].cells[0].mean is None
    returns = [make_run(tmp_path / "d", dataset="d", score=None, rows=10), several[3]]
    grid = sweeps.aggregate_grid(arrange(records.read_all(returns)))
    assert grid is not None and [row.cells[-1].text for row in grid.rows] == ["scores"]


def test_sensitivity_tables(many: list[records.RunRecord]) -> None:
    grids = {grid.name: grid for grid in sweeps.sensitivity_grids(arrange(many))}
    assert set(grids) == {"sensitivity_zeta", "sensitivity_memory", "sensitivity_ensemble_size"}
    zeta = grids["sensitivity_zeta"]
    assert [heading.name for heading in zeta.headings] == ["ζ = 1", "ζ = 0.9"]
    assert [cell.shade for cell in zeta.rows[0].cells] == [0, -3]
    assert [cell.shade for cell in grids["sensitivity_memory"].rows[0].cells] == [0, -1]
    panels = sweeps.curve_panels(arrange(many), "agent.encoder_lr")
    assert list(panels["mine"]) == ["η_φ = 1e-05", "η_φ = 3e-05"]
    assert not sweeps.curve_panels(arrange(many), "agent.kappa")


def test_a_group_looks_the_same_in_every_figure(many: list[records.RunRecord]) -> None:
    datasets = arrange(many)
    shared = figures.line_styles(labels(datasets))
    panels = sweeps.curve_panels(datasets, "agent.encoder_lr")
    sweep = figures.curves_figure(panels, shared)
    groups = datasets[1].groups
    overview = figures.overview_figure(groups, shared)
    legend = [text.get_text() for text in sweep.legends[0].get_texts()]
    assert legend == ["η_φ = 1e-05", "η_φ = 3e-05"], "the setting by name and value"
    assert [text.get_text() for text in overview.legends[0].get_texts()] == [
        group.label for group in groups
    ]
    drawn = {line.get_label(): line.get_color() for line in sweep.axes[0].lines}
    for axes in overview.axes:
        seen = {line.get_label(): line.get_color() for line in axes.lines}
        assert seen["neubay"] == drawn["η_φ = 3e-05"]
        assert seen["neubay, η_φ = 1e-05"] == drawn["η_φ = 1e-05"]
    several = figures.line_styles([str(number) for number in range(len(figures.LINE_STYLES))])
    assert len({str(line_style) for line_style in several.values()}) == len(several)


def test_a_legend_needs_no_evaluation(tmp_path: Path) -> None:
    run = records.read(make_run(tmp_path / "a", environment=None, score=None, rows=10))
    figure = figures.overview_figure([Group("neubay", (run,))], figures.line_styles(["neubay"]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["neubay"]


def test_without_a_main_result_there_is_nothing_to_shade(tmp_path: Path) -> None:
    changes = {"rollout": {"zeta": 0.9}}
    three = [
        make_run(tmp_path / "main", finished=False, rows=10),
        make_run(tmp_path / "zeta", changes=changes, rows=10),
        make_run(tmp_path / "lower", changes={"rollout": {"zeta": 0.5}}, rows=10),
    ]
    datasets = arrange(records.read_all(three))
    assert datasets[0].main.runs[0].name == "main"
    assert sweeps.sensitivity_grids(datasets) == []


def test_the_main_result_keeps_its_column(tmp_path: Path) -> None:
    """Though other numbers of heads, which are REDQ as well, score higher."""
    runs_of_heads = [
        make_run(tmp_path / "main", score=40.0, rows=10),
        make_run(tmp_path / "main2", score=40.0, seed=1, rows=10),
        make_run(tmp_path / "five", score=90.0, changes={"agent": {"heads": 5}}, rows=10),
        make_run(
            tmp_path / "cut",
            score=80.0,
            changes={"agent": {"heads": 8}, "rollout": {"zeta": 0.9}},
            rows=10,
        ),
        make_run(tmp_path / "sac", score=20.0, changes={"agent": {"heads": 2}}, rows=10),
    ]
    (grid,) = sweeps.sensitivity_grids(arrange(records.read_all(runs_of_heads)))
    assert grid.name == "sensitivity_critic"
    assert [heading.name for heading in grid.headings] == ["REDQ, ζ = 1", "SAC, ζ = 1"]
    assert [cell.mean for cell in grid.rows[0].cells] == [40.0, 20.0]
    assert [cell.shade for cell in grid.rows[0].cells] == [0, -2]


def test_other_data_or_environments_are_never_averaged(tmp_path: Path) -> None:
    first = records.read(make_run(tmp_path / "a", seed=0))
    second = records.read(make_run(tmp_path / "b", seed=1, environment="Hopper-v5"))
    titles = [data.title for data in arrange([first, second])]
    assert titles == [
        "hopper_medium_replay (Hopper-v4, data 572b72)",
        "hopper_medium_replay (Hopper-v5, data 572b72)",
    ]


def test_unfinished_and_single_runs_are_not_tested(tmp_path: Path) -> None:
    three = [
        records.read(make_run(tmp_path / "a", seed=0)),
        records.read(make_run(tmp_path / "b", seed=1, finished=False)),
        records.read(make_run(tmp_path / "c", seed=0, variant="markov", score=10.0)),
    ]
    grid = sweeps.score_grid(arrange(three))
    cells = grid.rows[0].cells[3:5]
    assert [cell.n for cell in cells] == [1, 1] and not any(cell.marked for cell in cells)
    assert "1 unfinished runs are left out" in grid.note


def test_a_run_that_has_just_begun_does_not_speak_for_the_others(tmp_path: Path) -> None:
    begun = make_run(tmp_path / "a", seed=0, finished=False, rows=10)
    (begun / "metrics.jsonl").unlink()
    both = records.read_all([begun, make_run(tmp_path / "b", seed=1, rows=20)])
    (data,) = arrange(both)
    assert data.first.name == "b" and data.first.scored
    check_page(page.many_runs(both).html)


# -------------------------------------------------------------------------------------- pages


@pytest.mark.slow
def test_the_page_of_one_run(tmp_path: Path) -> None:
    run = records.read(make_run(tmp_path / "run"))
    frames = [np.full((40, 60, 3), shade, np.uint8) for shade in range(0, 240, 20)]
    shown = page.one_run(run, reel=reel.reel(frames, "Seed 0 in Hopper-v4"))
    parsed = check_page(shown.html)
    assert parsed.count("svg") == 5 and parsed.count("img") == 2
    for words in ("60.0", "19.1", "Values are not overestimated", "neubay train", "kappa"):
        assert words in parsed.text
    assert "prefers-color-scheme: dark" in shown.html and "@media print" in shown.html
    assert "var(--ink)" in shown.html and "#222222" not in shown.html
    assert [len(grid.rows) for grid in shown.grids] == [1]
    paths = shown.save(tmp_path / "out")
    names = {str(path.relative_to(tmp_path / "out")) for path in paths}
    assert {"index.html", "figures/score.png", "figures/values.pdf", "figures/film.gif"} <= names
    assert {"tables/scores.md", "tables/scores.csv", "tables/scores.tex"} <= names
    assert all(path.stat().st_size > 100 for path in paths)


@pytest.mark.slow
def test_the_page_of_many_runs(many: list[records.RunRecord], tmp_path: Path) -> None:
    chosen = [run for run in many if run.dataset == "mine"][:6]
    shown = page.many_runs(chosen)
    parsed = check_page(shown.html)
    assert parsed.count("table") == len(shown.grids) and parsed.count("details") > len(chosen)
    shown.save(tmp_path)
    table = (tmp_path / "tables" / "scores.md").read_text(encoding="utf-8")
    assert "| mine | Hopper-v4 | score |" in table
    assert (tmp_path / "tables" / "scores.tex").exists()
    assert (tmp_path / "figures" / "overview.png").exists()


def test_a_report_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept.txt"
    page.paper_tables("ablations").save(out)
    for path in (kept, own := out / "tables" / "own.md"):
        path.write_text("mine", encoding="utf-8")
    with (out / page.LIST).open("a", encoding="utf-8") as file:
        file.write("tables/../../kept.txt\n../kept.txt\n")
    page.paper_tables("antmaze").save(out)
    assert {path.stem for path in (out / "tables").iterdir()} == {"antmaze", "own"}
    assert kept.exists() and own.exists(), "what no report wrote stays"


def test_a_report_replaces_nothing_that_is_not_a_report(tmp_path: Path) -> None:
    shown, site, out = page.paper_tables("ablations"), tmp_path / "site", tmp_path / "out"
    for name in ("index.html", f"tables/{shown.grids[0].name}.md", page.LIST):
        path = site / name
        path.parent.mkdir(parents=True)
        path.write_text("mine", encoding="utf-8")
        with pytest.raises(NeubayError, match="no report wrote it"):
            shown.save(site)
        assert [p for p in site.rglob("*") if p.is_file()] == [path], "nothing is left behind"
        assert path.read_text(encoding="utf-8") == "mine"
        shutil.rmtree(site)
    shown.save(out)
    secret = tmp_path / "secret.html"
    secret.write_text("mine", encoding="utf-8")
    (out / "index.html").unlink()
    (out / "index.html").symlink_to(secret)
    with pytest.raises(NeubayError, match="is a link"):
        shown.save(out)
    (out / "index.html").unlink()
    (out / "tables").rename(tmp_path / "elsewhere")
    (out / "tables").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NeubayError, match="is a link"):
        shown.save(out)
    assert secret.read_text(encoding="utf-8") == "mine"


def test_a_copied_run_is_left_out_and_the_others_are_shown(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"s{seed}", seed=seed, rows=10) for seed in range(2)]
    shutil.copytree(runs[0], tmp_path / "copy")
    (tmp_path / "copy" / "summary.json").unlink()
    left_out: list[str] = []
    found = records.read_all([tmp_path / "copy", *runs], left_out)
    assert sorted(run.name for run in found) == ["s0", "s1"], "the finished one is kept"
    assert len(left_out) == 1 and f"seed (0) as {runs[0]}" in left_out[0]
    (data,) = arrange(found)
    assert len(data.groups[0].runs) == 2


@pytest.mark.slow
def test_names_from_files_cannot_become_markup(tmp_path: Path) -> None:
    nasty = '<script>alert("x")</script>&$\\frac'
    extra = {
        "command": nasty,
        "preset": nasty,
        "provenance": {nasty: nasty},
        "environment": nasty,
    }
    first = make_run(tmp_path / "a", dataset=nasty, environment=nasty, extra=extra)
    second = make_run(tmp_path / "b", dataset=nasty, environment=nasty, extra=extra, seed=1)
    both = records.read_all([first, second])
    for text in (page.one_run(both[0]).html, page.many_runs(both).html):
        assert nasty in check_page(text).text and "<script" not in text
    (first / "summary.json").unlink()
    check_page(page.one_run(records.read(first), refresh=5).html, scripts=1)


@pytest.mark.slow
def test_a_page_that_refreshes_says_so(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", finished=False)
    with locked(directory):
        text = page.one_run(records.read(directory), refresh=7).html
    check_page(text, scripts=1)
    assert (
        '<noscript><meta http-equiv="refresh" content="7">' in text and 'data-refresh="7"' in text
    )
    assert "running, 50%" in text
    finished = page.one_run(records.read(make_run(tmp_path / "done", rows=10))).html
    assert "script-src" not in finished and "data-refresh" not in finished


# -------------------------------------------------------------------------------- command line


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.mark.slow
def test_report_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    out = tmp_path / "out"
    assert run_command("report", str(run), "--out", str(out)) == 0
    check_page(text := (out / "index.html").read_text(encoding="utf-8"))
    assert "There is no saved policy yet" in text, "a clear line where nothing can be shown"
    assert "index.html written" in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_run_is_left_out_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "runs", tmp_path / "out"
    for seed in range(4):
        make_run(folder / f"s{seed}", seed=seed, rows=10)
    metrics = folder / "s1" / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[8] = lines[8][:40] + "\n"  # an evaluation before it, so that rows and lines differ
    metrics.write_text("".join(lines), encoding="utf-8")
    about = json.loads((folder / "s3" / "run.json").read_text(encoding="utf-8"))
    del about["config"]
    (folder / "s3" / "run.json").write_text(json.dumps(about), encoding="utf-8")
    assert run_command("report", str(folder), "--no-film", "--out", str(out)) == 0
    told = capsys.readouterr()
    assert f"{metrics}, line 9:" in told.err and f"{folder / 's3'}: its files" in told.err
    assert "over 2 finished seeds" in told.out
    text = check_page((out / "index.html").read_text(encoding="utf-8")).text
    assert text.count("A run is left out") == 2 and f"{metrics}, line 9:" in text
    for seed in (0, 2):
        (folder / f"s{seed}" / "run.json").write_text("{", encoding="utf-8")
    assert run_command("report", str(folder), "--out", str(out)) == 2
    told = capsys.readouterr()
    assert "no run can be read" in told.err and "line 9" in told.err


def test_report_of_the_papers_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("report", "--paper", "AntMaze") == 0
    assert "**94.4** ± 6.3 •" in capsys.readouterr().out
    assert run_command("report", "--paper", "ablations", "--out", str(tmp_path)) == 0
    check_page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert len(list((tmp_path / "tables").glob("*.csv"))) == 4


def test_report_explains_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["report"], "name run directories"),
        (["report", str(tmp_path)], "not a run directory"),
        (["report", "--paper", "adriot"], "did you mean 'adroit'?"),
        (["report", "--paper", "walking"], "there are locomotion, neorl, adroit, antmaze"),
        (["report", "x", "--paper", "adroit"], "not both"),
        (["watch", str(tmp_path)], "not a run directory"),
    ):
        assert run_command(*arguments) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    (tmp_path / "file").write_text("")
    run = make_run(tmp_path / "run", rows=10)
    assert run_command("report", str(run), "--no-film", "--out", str(tmp_path / "file")) == 2
    assert "cannot be written" in " ".join(capsys.readouterr().err.split())


# --------------------------------------------------------------------------------- the live page


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    directory = make_run(tmp_path / "run", finished=False, rows=20)
    with (
        locked(directory),
        serve.server(directory, host="127.0.0.1", port=0, refresh=3) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield directory, server.address
        server.shutdown()


def fetch(address: str, method: str = "GET", host: str | None = None) -> tuple[int, str, Any]:
    request = urllib.request.Request(address, method=method)
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, "", error.headers


@pytest.mark.slow
def test_the_live_page_follows_the_run(live: tuple[Path, str]) -> None:
    directory, address = live
    assert address.startswith("http://127.0.0.1:")
    status, before, headers = fetch(address)
    assert status == 200 and "running, 50%" in before and 'http-equiv="refresh"' in before
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert fetch(address)[1] == before, "nothing has changed"
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 12_000, "q_data": 1.0}) + "\n")
    assert "running, 75%" in fetch(address)[1]
    (directory / "run.json").write_text("{", encoding="utf-8")
    assert "This run cannot be read" in fetch(address)[1]


def test_the_live_page_is_read_only_and_for_this_machine(live: tuple[Path, str]) -> None:
    directory, address = live
    before = sorted((path, path.stat().st_mtime_ns) for path in directory.rglob("*"))
    assert fetch(address, "HEAD")[:2] == (200, "")
    for method in ("POST", "PUT", "DELETE"):
        assert fetch(address, method)[0] == 501
    for path in ("run.json", "../run.json", "%2e%2e/run.json", "metrics.jsonl"):
        assert fetch(address + path)[0] == 404
    assert fetch(address, host="evil.example")[0] == 403
    assert fetch(address, host="localhost:1")[0] == 200
    assert sorted((path, path.stat().st_mtime_ns) for path in directory.rglob("*")) == before


def test_a_port_in_use_is_explained(live: tuple[Path, str]) -> None:
    directory, address = live
    port = int(address.rsplit(":", 1)[1].strip("/"))
    with (
        pytest.raises(NeubayError, match="choose another --port"),
        serve.server(directory, host="127.0.0.1", port=port, refresh=3),
    ):
        pass
