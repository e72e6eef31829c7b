"""docs/deploy.md: its loop in Python runs, and its log is read; its loop in C++ fits the graph."""

import dataclasses
import json
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import neubay
from helpers.known_worlds import fitted, random_walk, true_world
from helpers.policies import some_policy
from neubay import cli, world
from neubay.export import standalone

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_guard_of_a_run_that_was_copied_is_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The posterior was in a cache; from where the command says, it goes with the run."""
    data, run = random_walk([9, 9]), tmp_path / "here" / "runs" / "first"
    policy = some_policy("gated", 2, 2)
    for name in ("selection/policy.npz", "policies/clone.npz"):
        (run / name).parent.mkdir(parents=True)
        policy.save(run / name)
    made = fitted(true_world(), data, layer_norm=False, width=8, depth=1)
    of_its_data = dataclasses.replace(made, dataset_hash=policy.dataset["hash"])
    world.save(of_its_data, tmp_path / "cache")
    (run / "run.json").write_text("{}")
    (run / "world.json").write_text(json.dumps({"directory": str(tmp_path / "cache")}))
    monkeypatch.chdir(tmp_path / "here")
    (line,) = re.findall(r"^ +neubay (world info .*)$", PAGE, flags=re.MULTILINE)
    with pytest.raises(SystemExit):
        cli.main(line.split())
    place = capsys.readouterr().out.splitlines()[-1].removeprefix("world directory ")
    shutil.copytree(place, run / "world")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    begin = PAGE.index("    policy = neubay.load_policy(")
    (code, step) = re.findall(r"(?:^    .*\n)+", PAGE[begin:], flags=re.MULTILINE)[:2]
    names: dict[str, Any] = {
        "neubay": neubay,
        "observation": np.zeros(2),
        "state": None,
        "reward": None,
    }
    exec(textwrap.dedent(code + step), names)
    assert names["guard"].counts["steps"] == 1 and not names["check"].broken


@pytest.mark.slow
def test_the_loop_in_python_runs_and_its_log_is_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some_policy("gated", 3, 1).export("numpy", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "policy", standalone)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(block, "docs/deploy.md", "exec"), {})
    assert re.search(r"return -\d+\.\d, \d+ alarms", capsys.readouterr().out)
    (line,) = re.findall(r"^ +neubay (data import .*)$", PAGE, flags=re.MULTILINE)
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    assert ended.value.code == 0
    assert (tmp_path / "next.hdf5").exists()


def test_the_names_are_where_the_page_says(tmp_path: Path) -> None:
    exported = some_policy("gated", 3, 1)
    for form in ("numpy", "onnx"):
        exported.export(form, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    lines = re.findall(r"^ +((?:session|policy)\..*\[.*\])  ", PAGE, flags=re.MULTILINE)
    policy = standalone.load(tmp_path)
    found: dict[str, Any] = {"session": session, "policy": policy}
    for name, line in zip(("text", "names"), lines, strict=True):
        exec(f"{name} = {line}", found)
    expected = [f"sensor {i} [bar]" for i in range(3)]
    assert json.loads(found["text"]) == found["names"] == expected


def test_the_loop_in_cpp_names_what_the_graph_has(tmp_path: Path) -> None:
    some_policy("recurrent", 3, 1).export("onnx", tmp_path)
    graph = onnx.load(tmp_path / "policy.onnx").graph
    inputs, outputs = re.findall(r"const char\* \w+\[\] = \{(.*)\};", PAGE)
    assert re.findall(r'"(\w+)"', inputs) == [each.name for each in graph.input]
    assert re.findall(r'"(\w+)"', outputs) == [each.name for each in graph.output]
