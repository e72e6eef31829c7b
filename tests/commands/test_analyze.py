"""`neubay analyze`: pictures, numbers and tables of worlds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from helpers.known_worlds import (
    TRUTH,
    ZERO,
    fitted,
    linear_world,
    random_walk,
    true_world,
    untrained,
)
from neubay import world
from neubay.cli import main
from neubay.data import load
from neubay.errors import NeubayError
from neubay.report.parts import figures
from neubay.report.parts.tables import END
from neubay.report.studies import world_figures, world_tables
from neubay.runs.files import write_between
from neubay.studies import compounding


def texts(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


@pytest.mark.slow
def test_figures_draw_what_overflowed_and_what_is_undefined(tmp_path: Path) -> None:
    dataset = random_walk(5 * [12], sigma=0.1)
    growing = TRUTH.copy()
    growing[:2, :2] = 1e12 * np.eye(2)
    worlds = {
        "calm": fitted(true_world(), dataset),
        "wild": fitted(linear_world(2 * [growing], 2 * [ZERO], 0.1), dataset, layer_norm=False),
    }
    record = compounding.compounding(worlds, dataset, rollouts=5).record()
    json.dumps(record, allow_nan=False)
    figure = world_figures.compounding_figure([record])
    assert "5 of 5 overflow" in texts(figure)
    assert "Spearman undefined" in texts(figure)  # equal members: U is zero everywhere
    figures.save(figure, tmp_path / "figure.png")


@pytest.fixture(scope="module")
def two_worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of two tiny worlds, with and without LayerNorm, and two datasets."""
    folder = tmp_path_factory.mktemp("worlds")
    for name, seed in (("here", 0), ("there", 1)):
        dataset = random_walk([40, 40, 20], sigma=0.1, seed=seed, name=name)
        tape, rows = dataset.tape, dataset.world_rows
        np.savez(
            folder / f"{name}.npz",
            observations=tape.state[rows],
            actions=tape.action[rows],
            rewards=tape.reward[rows],
            terminals=tape.terminated[rows],
            timeouts=np.isin(np.arange(100), [39, 79, 99]),
            next_observations=tape.state[rows + 1],
        )
    own = load(str(folder / "here.npz"))
    for layer_norm in (True, False):
        name = "normed" if layer_norm else "plain"
        world.save(untrained(own, layer_norm=layer_norm), folder / name)
    return folder


def run(*words: Any) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    return exit_.value.code or 0


@pytest.mark.slow
def test_the_commands_write_pictures_and_numbers(
    two_worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    normed, plain = two_worlds / "normed", two_worlds / "plain"
    here, there = two_worlds / "here.npz", two_worlds / "there.npz"
    out = ("--out", tmp_path)
    assert run("analyze", "uncertainty", "--world", normed, plain, "--data", there, *out) == 0
    assert run(
        "analyze", "compounding", "--world", normed, "--world", plain, "--data", here, there,
        "--rollouts", 6, "--steps", 20, *out,
    ) == 0  # fmt: skip
    assert run("analyze", "calibration", "--world", normed, "--data", here, there, *out) == 0
    assert "there in normed: error after 20 steps" in capsys.readouterr().out
    documents = {}
    for name in ("uncertainty", "compounding", "calibration"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        documents[name] = json.loads((tmp_path / f"{name}.json").read_text())
        assert documents[name]["worlds"][0]["width"] == 8
    assert len(documents["uncertainty"]["uncertainty"]) == 4
    assert [r["data"] for r in documents["compounding"]["compounding"]] == ["here", "there"]

    text = tmp_path / "text.md"
    text.write_text(f"before\n{world_tables.BEGIN}\nold\n{END}\nafter\n")
    small = tmp_path / "small.json"
    sources = (tmp_path / "compounding.json", tmp_path / "calibration.json")
    assert run("analyze", "table", *sources, "--out", small, "--text", text) == 0
    tables = world_tables.markdown(json.loads(small.read_text()))
    assert text.read_text() == (f"before\n{world_tables.BEGIN}\n\n{tables}\n\n{END}\nafter\n")
    assert small.stat().st_size < sources[0].stat().st_size / 3
    assert "of 2 setups" in tables
    assert len(json.loads(small.read_text())["worlds"]) == 2
    capsys.readouterr()
    assert run("analyze", "table", small) == 0
    assert capsys.readouterr().out.strip() == tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a world"),
        (["--world", "nowhere"], "no world"),
        (["--world", "{folder}/normed"], "name the datasets"),
        (
            ["--world", "{folder}/normed", "--data", "{folder}/here.npz", "--steps", "41"],
            "41 steps",
        ),
        (["--world", "{folder}/normed", "--data", "{folder}/here.npz", "--rollouts", "0"], "least"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], message: str, two_worlds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("analyze", "compounding", *(w.format(folder=two_worlds) for w in words)) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_tables_refuse_other_documents_and_texts_without_markers(tmp_path: Path) -> None:
    with pytest.raises(NeubayError, match="one of these has worlds, uncertainty"):
        world_tables.condense([{"worlds": [], "uncertainty": []}])
    text = tmp_path / "text.md"
    text.write_text("no markers")
    with pytest.raises(NeubayError, match="needs one line"):
        write_between(text, world_tables.BEGIN, END, "tables")
    assert text.read_text() == "no markers"
