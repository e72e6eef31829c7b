"""Selection where an environment can check it: the policies that runs kept, judged under one
protocol, and beside it valued by fitted Q evaluation.

Which policies: all that the runs kept, that is one at every evaluation point, the end, and the
clone. That is decided before any of them is judged.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neubay import selection
from neubay.data.dataset import Dataset
from neubay.errors import RunError
from neubay.policy import load_policy
from neubay.runs import rundir
from neubay.runs.messages import Tell, log
from neubay.runs.values import is_number
from neubay.studies.fitted_q import FittedQ

Load = Callable[[str], Dataset]
"""The dataset behind a name or path."""


def by_dataset(runs: Sequence[Path]) -> list[list[rundir.Run]]:
    """Runs of the same data together, in the order given."""
    groups: dict[str, list[rundir.Run]] = {}
    for run in map(rundir.opened, runs):
        groups.setdefault(str(run.about["dataset"].get("hash")), []).append(run)
    return list(groups.values())


def selection_study(
    runs: Sequence[rundir.Run],
    load: Load,
    *,
    data: Sequence[Dataset] = (),
    fitted_q: bool = True,
    tell: Tell = log,
) -> dict[str, Any]:
    """The selection.json of runs of the same data; with `fitted_q` each candidate has `fqe` too.

    Args:
        load: reads the data from where a run says that it was.
        data: datasets at hand, which need not be read.
    """
    paths = [run.directory for run in runs]
    if not fitted_q:
        return selection.select(paths, tell=tell).record
    dataset = _dataset(runs[0], load, data)
    record = selection.select(paths, data=dataset, tell=tell).record
    gamma = runs[0].about["config"]["agent"].get("gamma")
    study = FittedQ(dataset, float(gamma) if is_number(gamma) else 0.99)
    found, earned = study.of_data()
    record["fitted_q"] = {"gamma": study.gamma, "of_data": found, "data_earned": earned}
    known = {each.name: each for each in selection.of_runs(runs)}
    for number, judged in enumerate(record["candidates"], 1):
        candidate = known[judged["name"]]
        assert isinstance(candidate.source, Path) and candidate.digest is not None
        judged["fqe"] = study.kept_value(load_policy(candidate.source).mode, candidate.digest)
        tell(f"{dataset.name}: fitted Q, {number} of {len(record['candidates'])} policies")
    return record


def _dataset(run: rundir.Run, load: Load, data: Sequence[Dataset]) -> Dataset:
    """The data of a run, at hand or from where it was."""
    about = run.about["dataset"]
    dataset = next((each for each in data if each.hash == about.get("hash")), None)
    if dataset is None:
        dataset = load(str(about.get("source") or about["name"]))
    if dataset.hash != about.get("hash"):
        raise RunError(
            f"{run.directory}: trained on data with hash {about.get('hash')}, and "
            f"{dataset.source} has hash {dataset.hash}; name its data (--data)"
        )
    return dataset
