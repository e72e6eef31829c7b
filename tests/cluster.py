"""A real Ray cluster on one machine, and what goes wrong with one.

    python tests/cluster.py faults [--trials 6] [--world]   kills workers, a node, the sweep
    python tests/cluster.py overhead [--trials 200]         seconds of the engine per trial, by one
                                     [--jobs 1 2]           and by two workers, or in other turns

Three raylets: a head, and two of one core each. `--world` trains worlds and agents instead of
clones. Every run is compared, bit for bit, with the same settings run alone. The suite runs the
short form.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from helpers.small_runs import outcome, swings, tiny
from helpers.sweep_driver import CLONING
from neubay import experiment
from neubay.config import TrainConfig, updated
from neubay.runs.rundir import is_finished
from neubay.runs.sweepdir import is_sweep, read
from neubay.sweeps.space import nested
from neubay.tasks import get_task

TESTS = Path(__file__).parent
WORLDS: dict[str, Any] = {
    "agent": {"steps": 200},
    "evaluation": {"evaluations": 4, "episodes": 1},
}


@contextmanager
def cluster(nodes: int = 3) -> Iterator[Any]:
    """Raylets on this machine, a head that does no tasks and others of one core each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks, and of files that Ray leaves open
        from ray.cluster_utils import Cluster

        about = {"num_cpus": 1, "object_store_memory": 80_000_000}
        made = Cluster(
            initialize_head=True,
            head_node_args={**about, "num_cpus": 0, "include_dashboard": False},
        )
        for _ in range(nodes - 1):
            made.add_node(**about)
        try:
            yield made
        finally:
            made.shutdown()


def driver(directory: Path, address: str, jobs: int = 0, **options: Any) -> subprocess.Popen[str]:
    """A sweep in a process of its own, on a cluster."""
    words = [f"{n}={v if isinstance(v, str) else json.dumps(v)}" for n, v in options.items()]
    command = [sys.executable, "-m", "helpers.sweep_driver", str(directory), "ray", str(jobs)]
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    log = directory.with_suffix(".log").open("a")
    return subprocess.Popen(
        [*command, f"address={address}", *words],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=log,
        stderr=log,
        text=True,
    )


def workers(node: Any) -> list[psutil.Process]:
    """The processes of a raylet that do a task."""
    found = []
    for process in node.all_processes["raylet"]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.process.pid).children(recursive=True)
            found += [child for child in children if child.name().startswith("ray::task")]
    return found


Found = TypeVar("Found")


def until(look: Callable[[], Found], sweep: subprocess.Popen[str], log: Path) -> Found:
    """Look for something while a sweep goes, and return it: a second look may find it gone."""
    deadline = time.monotonic() + 280
    while not (found := look()):
        assert sweep.poll() is None, f"the sweep ended: {log.read_text()}"
        assert time.monotonic() < deadline, f"the sweep hangs: {log.read_text()}"
        time.sleep(0.05)
    return found


def begun(directory: Path) -> list[Path]:
    """Runs on their way, with something to resume from."""
    runs = [path.parents[1] for path in directory.glob("*-seed*/checkpoints/[0-9]*")]
    return [run for run in dict.fromkeys(runs) if not is_finished(run)]


def finished(directory: Path) -> dict[Path, int]:
    """Finished runs, and when their policies were written."""
    runs = [path.parent for path in directory.glob("*-seed*/summary.json")]
    return {run: (run / "policy.npz").stat().st_mtime_ns for run in runs}


def equal_to_runs_alone(directory: Path, config: TrainConfig, folder: Path) -> int:
    """Compare every finished run with the same settings run here, alone; how many they are."""
    compared = 0
    for trial in read(directory).trials:
        assert trial.state == "finished", (trial.number, trial.state, trial.problem)
        for name in trial.runs:
            seed = int(name.rpartition("seed")[2])
            alone = folder / name
            own = updated(updated(config, nested(trial.settings)), {"seed": seed})
            data = swings(get_task("pendulum"))
            experiment.run(data, own, alone, checkpoint_seconds=0.0, tell=lambda text: None)
            assert outcome(alone) == outcome(directory / name), f"{name} is not as it would be"
            compared += 1
    return compared


def faults(folder: Path, *, trials: int = 3, changes: dict[str, Any] | None = None) -> str:
    """Kill a worker, the sweep, and a whole node, in this order; the sweep resumes each time."""
    directory, log = folder / "sweep", folder / "sweep.log"
    changes = changes or CLONING
    options = {"trials": trials, "changes": changes}
    with cluster() as made:
        sweep = driver(directory, made.address, **options)
        until(lambda: begun(directory), sweep, log)
        busy = until(
            lambda: [each for node in made.list_all_nodes() for each in workers(node)], sweep, log
        )
        busy[0].send_signal(signal.SIGKILL)
        until(lambda: finished(directory), sweep, log)
        sweep.kill()
        sweep.wait()
        before = finished(directory)
        sweep = driver(directory, made.address, **options)
        nodes = [node for node in made.list_all_nodes() if node is not made.head_node]
        busy_nodes = until(lambda: [node for node in nodes if workers(node)], sweep, log)
        made.remove_node(busy_nodes[0], allow_graceful=False)
        assert sweep.wait(280) == 0, log.read_text()
    after = finished(directory)
    assert all(after[run] == written for run, written in before.items()), "a run was done twice"
    count = equal_to_runs_alone(directory, tiny(**changes), folder / "alone")
    return f"{count} runs equal to the same settings run alone, {len(before)} of them not run again"


def overhead(folder: Path, trials: int, workers: Sequence[int] = (1, 2)) -> str:
    """Tiny clones by one worker and by two: what a trial costs beside its work."""
    lines = []
    changes = {"agent": {"algorithm": "bc", "steps": 10, "width": 2, "memory": "none"}}
    changes["evaluation"] = {"evaluations": 1, "episodes": 1}
    search = "agent.polyak=0.001:0.5"  # cloning has no use for it: nothing is compiled anew
    for turn, jobs in enumerate(workers):
        with cluster(nodes=jobs + 1) as made:
            directory = folder / f"{turn}"
            begin = time.monotonic()
            sweep = driver(directory, made.address, jobs, trials=trials, changes=changes,
                           search=search)  # fmt: skip
            until(
                lambda d=directory: is_sweep(d) and bool(finished(d)), sweep, folder / f"{turn}.log"
            )
            first = time.monotonic()
            assert sweep.wait() == 0, (folder / f"{turn}.log").read_text()
            spent = time.monotonic() - first
        work = sum(trial.seconds for trial in read(directory).trials[1:])
        lines.append(
            f"{jobs} workers: {trials} trials, first after {first - begin:.1f} s, others in "
            f"{spent:.1f} s, of which runs {work:.1f} s of the workers; beside them "
            f"{max(spent - work / jobs, 0) / (trials - 1):.3f} s a trial"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("faults", "overhead"))
    parser.add_argument("--trials", type=int)
    parser.add_argument("--jobs", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--world", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neubay-cluster-") as folder:
        os.environ["NEUBAY_CACHE"] = str(Path(folder) / "cache")
        if chosen.what == "faults":
            changes = WORLDS if chosen.world else CLONING
            print(faults(Path(folder), trials=chosen.trials or 6, changes=changes))
        else:
            print(overhead(Path(folder), chosen.trials or 200, chosen.jobs))


if __name__ == "__main__":
    main()
