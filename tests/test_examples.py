"""The notebooks in examples/ run from the first cell to the last, and end as their text says."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.timeout(900)  # of one core that others may use as well
# Jupyter's own: no event loop on some systems, and files that its kernel leaves open.
@pytest.mark.filterwarnings("ignore")
def test_own_data_goes_from_arrays_to_a_policy_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = nbformat.read(EXAMPLES / "own_data.ipynb", as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=resources).execute()
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "findings in 30 episodes, 1,800 steps" in said
    assert "`level [m]`" in said and "`pump [share]` 0 to 1" in said
    paid, logged = (
        float(value)
        for value in re.findall(r"^(?:the log: )?mean return (-[\d.]+)(?: over|$)", said, re.M)
    )
    assert paid > logged + 5, said  # it has learned something
    deployed = sorted(path.name for path in (tmp_path / "own_data" / "deployed").glob("*.*"))
    assert deployed == ["card.md", "controller.py", "policy.npz", "policy.py"]


def test_notebooks_are_small_and_hold_text_alone() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        assert path.stat().st_size < 50_000
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                assert output.output_type == "stream", f"{path.name}: {output.output_type}"
