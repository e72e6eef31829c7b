"""docs/deploy.md: its loop in Python runs, and its log is read; its loop in C++ fits the graph."""

import re
import sys
from pathlib import Path

import onnx
import pytest

from helpers.policies import some_policy
from neubay import cli
from neubay.export import standalone

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")


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


def test_the_loop_in_cpp_names_what_the_graph_has(tmp_path: Path) -> None:
    some_policy("recurrent", 3, 1).export("onnx", tmp_path)
    graph = onnx.load(tmp_path / "policy.onnx").graph
    inputs, outputs = re.findall(r"const char\* \w+\[\] = \{(.*)\};", PAGE)
    assert re.findall(r'"(\w+)"', inputs) == [each.name for each in graph.input]
    assert re.findall(r'"(\w+)"', outputs) == [each.name for each in graph.output]
