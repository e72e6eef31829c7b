"""Damaged input of every kind that the program reads: it is used, or refused with a message.

    python tests/fuzz.py 10000            # inputs, spread over all kinds of files
    python tests/fuzz.py 1 --first 4711   # that one again, with its traceback

An error that is not of `neubay.errors` is a traceback for the user. So is a hang: an input may take
10 s of processor time, and the process 1 GB of memory. Exits with 1 where something was found.
"""

import argparse
import contextlib
import functools
import gzip
import json
import logging
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import jax
import numpy as np
import pyarrow.csv
import pyarrow.parquet

from helpers import mutations as mutate
from helpers.data_checks import check_invariants
from helpers.report_runs import make_run
from helpers.small_runs import swings, tiny
from neubay import agents, config, world
from neubay.algorithm import Position
from neubay.commands import analyze as analyze_command
from neubay.commands import bandit as bandit_command
from neubay.commands import report as report_command
from neubay.commands import runs as runs_command
from neubay.data import Dataset, load, validate
from neubay.data.convert import write
from neubay.data.summary import summarise
from neubay.data.tables import open_table, steps_of
from neubay.errors import NeubayError, damage_reported
from neubay.policy import Policy, load_policy
from neubay.report.parts import tables
from neubay.report.runs import findings, groups, page, records, sweeps, trials
from neubay.report.studies import bandit_tables, world_tables
from neubay.runs import rundir, sweepdir
from neubay.runs.checkpoints import Checkpoints, fill, seal
from neubay.runs.files import arrays_of, file_hash
from neubay.sweeps.space import nested
from neubay.tasks.files import read_task

SECONDS = 10.0
MEGABYTES = 1000
ROOT = Path(__file__).parents[1]

RESULTS = {
    "condensed.json": "benchmarks_0_2.json",
    "worlds.json": "world.json",
    "bandit.json": "bandit/cpu-seed0.json",
}
TASK = """name: boiler
state_size: 3
actions: {low: [0, 0], high: [100, 50.5]}
horizon: 288
environment: null
termination: next_state[0] > 95 or abs(action[1] - state[2]) < 0.1 and not (state[1] >= 2)
reference: {random: -5, expert: 12.5}
"""
SETTINGS = """seed: 3
world: {width: 64, depth: 2, pool: 8, members: 4, max_epochs: 20, learning_rate: 1.0e-3}
rollout: {rollouts: 20, zeta: 0.9, horizon: null}
agent: {kappa: 0.8, steps: 1000, memory: lru, gamma: 0.99, buffer: 100000}
evaluation: {episodes: 5, evaluations: 2}
"""


class Kind(NamedTuple):
    """A kind of file: where it is, how it is damaged in a fresh copy, and who reads it."""

    place: str
    damage: Callable[[random.Random, Path], None]
    read: Callable[[Path], object]
    share: int = 4


@functools.cache
def small_data() -> Dataset:
    return swings(episodes=3, horizon=20)


# --- Sound files ---------------------------------------------------------------------------------


def make_sound(folder: Path) -> None:
    """One sound file or folder of every kind."""
    data = small_data()
    for name in ("log.hdf5", "log.npz"):
        _write_data(folder / name, _arrays(data))
    write(data, str(folder / "minari" / "swings-v0"), force=False)
    log = pyarrow.table(
        {
            "run": np.repeat(np.arange(3), 20),
            "time": np.tile(np.arange(20.0), 3),
            **{f"x{i}": _arrays(data)["observations"][:, i] for i in range(3)},
            "pump": _arrays(data)["actions"][:, 0],
            "reward": _arrays(data)["rewards"],
            "terminal": np.zeros(60, bool),
        }
    )
    pyarrow.csv.write_csv(log, folder / "log.csv")
    pyarrow.parquet.write_table(log, folder / "log.parquet")
    (folder / "task.yaml").write_text(TASK)
    (folder / "settings.yaml").write_text(SETTINGS)
    make_run(folder / "run", rows=20)
    make_sweep(folder / "sweep")
    fitted = world.fit(data, tiny().world, 0, directory=folder / "world")
    assert fitted.world.size == 2
    agent = _agent()
    state = agent.init(jax.random.key(0))
    Policy(agent, state, data.task, tiny().agent).save(folder / "policy.npz")
    shutil.copy(folder / "policy.npz", folder / "run" / "policy.npz")
    checkpoint = folder / "checkpoints" / "000000050-0000001"
    checkpoint.mkdir(parents=True)
    np.savez(checkpoint / "0000.npz", **arrays_of(state))
    seal(checkpoint, vars(Position(step=50)))
    for name, source in (
        ("condensed", "benchmarks"),
        ("worlds", "world"),
        ("bandit", "bandit/cpu-seed0"),
    ):
        shutil.copy(ROOT / "docs" / "results" / f"{source}.json", folder / f"{name}.json")


def _agent() -> agents.Agent:
    return agents.make(3, 1, "continuous", tiny().agent)


def _arrays(data: Dataset) -> dict[str, np.ndarray]:
    rows = np.flatnonzero(~np.append(data.tape.start[1:], True))
    ends = np.append(data.tape.start[2:], [True, True])[rows]
    return {
        "observations": data.tape.state[rows],
        "next_observations": data.tape.state[rows + 1],
        "actions": data.tape.action[rows],
        "rewards": data.tape.reward[rows],
        "terminals": np.zeros(len(rows), bool),
        "timeouts": ends,
    }


def _write_data(path: Path, arrays: dict[str, np.ndarray]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            values = values.astype("S") if values.dtype.kind == "U" else values
            file.create_dataset(name.replace("/", "_"), data=values)


# --- Damage --------------------------------------------------------------------------------------


def bytes_of(name: str, change: mutate.Mutation) -> Callable[[random.Random, Path], None]:
    def damage(rng: random.Random, folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(rng, path.read_bytes()))

    return damage


def arrays_in(name: str) -> Callable[[random.Random, Path], None]:
    def damage(rng: random.Random, folder: Path) -> None:
        _write_data(folder / name, mutate.of_arrays(rng, _arrays(small_data())))

    return damage


def minari(rng: random.Random, folder: Path) -> None:
    path = rng.choice(sorted(p for p in (folder / "minari").rglob("*") if p.is_file()))
    change = mutate.of_json if path.suffix == ".json" else mutate.of_bytes
    path.write_bytes(change(rng, path.read_bytes()))


def zipped(rng: random.Random, folder: Path) -> None:
    text = mutate.of_text(rng, (folder / "log.csv").read_bytes())
    packed = gzip.compress(text)
    packed = packed if rng.random() < 0.7 else mutate.of_bytes(rng, packed)
    (folder / "log.csv.gz").write_bytes(packed)


def parquet(rng: random.Random, folder: Path) -> None:
    path = folder / "log.parquet"
    if rng.random() < 0.5:
        path.write_bytes(mutate.of_bytes(rng, path.read_bytes()))
        return
    table = pyarrow.parquet.read_table(path)
    arrays = {name: table[name].to_numpy() for name in table.column_names}
    columns = {
        name: list(values.reshape(-1)[:60]) + [None] * (60 - min(values.size, 60))
        for name, values in mutate.of_arrays(rng, arrays).items()
        if values.dtype.kind != "c"
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def resealed(rng: random.Random, folder: Path) -> None:
    """A checkpoint that is damaged and then sealed: its hashes hold, its content does not."""
    checkpoint = folder / "checkpoints" / "000000050-0000001"
    note = vars(Position(step=50))
    for path in checkpoint.glob("*.npz"):
        path.write_bytes(mutate.of_zip(rng, path.read_bytes()))
    seal(checkpoint, mutate.of_tree(rng, note) if rng.random() < 0.5 else note)


def world_files(rng: random.Random, folder: Path) -> None:
    path, about = (
        folder / "world" / "world.json",
        json.loads((folder / "world" / "world.json").read_bytes()),
    )
    name = rng.choice(("members.npz", "data_uncertainty.npy"))
    change = mutate.of_zip if name.endswith("npz") else mutate.of_text
    (folder / "world" / name).write_bytes(change(rng, (folder / "world" / name).read_bytes()))
    about["files"][name] = file_hash(folder / "world" / name)
    path.write_text(json.dumps(about))


# --- Readers -------------------------------------------------------------------------------------


def read_data(path: Path) -> None:
    try:
        data = load(path, tell=lambda text: None)
    except NeubayError:
        assert any(finding.severity == "error" for finding in validate(path)), "validate finds less"
        raise
    check_invariants(data)
    validate(path)
    summarise(data).record()


def read_table(path: Path) -> None:
    imported = steps_of([open_table(path)], {})
    bounds = imported.action_bounds
    check_invariants(Dataset.from_arrays(**imported.arrays, action_bounds=bounds, name="log"))


def read_settings(path: Path) -> None:
    config.resolve(config.Published(), "cpu", "neubay", config.read_yaml(path), str(path))


def read_run(folder: Path) -> None:
    seen = rundir.look(folder)
    runs_command._row(seen)
    runs_command._lines(seen)
    left_out: list[str] = []
    show(records.read_all([folder], left_out, report_command.preset_of))


def show(found: list[records.RunRecord]) -> None:
    """All that a page says, but for the drawing."""
    for run in found[:1]:
        findings.findings(run)
        page._view(run)
        if run.summary is not None:
            records.condense(run)
    datasets = groups.arrange(found)
    for grid in (
        sweeps.score_grid(datasets),
        *(g for d in datasets for g in sweeps.detail_grids(d)),
    ):
        tables.markdown(grid)


def read_checkpoint(folder: Path) -> None:
    state = _agent().init(jax.random.key(0))

    def use(checkpoint: Any) -> Any:
        return fill(state, next(checkpoint.slices())), Position(**checkpoint.note)

    Checkpoints(folder, tell=lambda text: None).resume(use)


def at(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: read(folder / name)


def changed(
    name: str, change: mutate.Mutation, read: Callable[[Path], object], share: int = 4
) -> Kind:
    """A file whose bytes are changed; what is read is the folder or file that it is in."""
    place = name.split("/")[0]
    return Kind(place, bytes_of(name, change), at(place, read), share)


def read_condensed(path: Path) -> None:
    show(records.read_all([path], []))


def read_sweep(folder: Path) -> None:
    """As it is shown, and as far as resuming it relies on it."""
    record = sweepdir.read(folder)
    with damage_reported(folder):
        tables.markdown(trials.trial_grid(record))
        trials.notices(record)
    for trial in sweepdir.left_over(record.trials):
        nested(trial.settings)
        list(zip(record.asked["seeds"], trial.runs, strict=True))
    sweepdir.check_same(folder, record, record.asked)
    record.save(folder)


def make_sweep(folder: Path) -> None:
    asked = {"search": {"agent.kappa": "0.1:0.9"}, "seeds": [0, 1], "trials": 4}
    states = ("finished", "pruned", "failed", "running")
    made = [
        sweepdir.Trial(n, {"agent.kappa": n / 5}, [f"{n:04d}-seed{s}" for s in (0, 1)], state, 1.0)
        for n, state in enumerate(states)
    ]
    folder.mkdir()
    sweepdir.Record("score", asked, made, 100).save(folder)


def read_analysis(path: Path) -> None:
    world_tables.markdown(world_tables.condense([analyze_command.read_analysis(path)]))


def read_bandit(path: Path) -> None:
    bandit_tables.tables([bandit_command.read_summary(path)])


KINDS = {
    "hdf5 bytes": changed("log.hdf5", mutate.of_bytes, read_data),
    "hdf5 arrays": Kind("log.hdf5", arrays_in("log.hdf5"), at("log.hdf5", read_data)),
    "npz bytes": changed("log.npz", mutate.of_zip, read_data),
    "npz arrays": Kind("log.npz", arrays_in("log.npz"), at("log.npz", read_data)),
    "minari": Kind("minari", minari, at("minari/swings-v0", read_data), 3),
    "csv": changed("log.csv", mutate.of_text, read_table),
    "csv.gz": Kind("log.csv", zipped, at("log.csv.gz", read_table), 2),
    "parquet": Kind("log.parquet", parquet, at("log.parquet", read_table)),
    "task yaml": changed("task.yaml", mutate.of_text, read_task, 2),
    "settings yaml": changed("settings.yaml", mutate.of_text, read_settings),
    "run.json": changed("run/run.json", mutate.of_json, read_run),
    "summary.json": changed("run/summary.json", mutate.of_json, read_run),
    "metrics.jsonl": changed("run/metrics.jsonl", mutate.of_json_lines, read_run),
    "sweep.json": changed("sweep/sweep.json", mutate.of_json, read_sweep, 2),
    "world.json of a run": changed("run/world.json", mutate.of_json, world.load, 1),
    "policy": changed("policy.npz", mutate.of_zip, load_policy, 1),
    "world.json": changed("world/world.json", mutate.of_json, world.load, 1),
    "world arrays": Kind("world", world_files, at("world", world.load), 1),
    "checkpoint": Kind("checkpoints", resealed, at("checkpoints", read_checkpoint), 1),
    "condensed runs": changed("condensed.json", mutate.of_json, read_condensed, 2),
    "analysis of worlds": changed("worlds.json", mutate.of_json, read_analysis, 2),
    "bandit summary": changed("bandit.json", mutate.of_json, read_bandit, 2),
}


# --- The run -------------------------------------------------------------------------------------


class Found(NamedTuple):
    number: int
    kind: str
    what: str
    trace: str = ""


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(
    first: int, count: int, tell: Callable[[Found], None] = lambda found: None
) -> tuple[list[Found], Counter[str], float]:
    """Try inputs by their numbers. What was found, told at once; how many of each kind were used
    or refused; and the longest that one took, in seconds of processor time."""
    found: list[Found] = []
    tried: Counter[str] = Counter()
    longest = 0.0
    names, shares = list(KINDS), [kind.share for kind in KINDS.values()]
    with tempfile.TemporaryDirectory() as place, _silence():
        sound, work = Path(place, "sound"), Path(place, "work")
        sound.mkdir()
        make_sound(sound)
        for number in range(first, first + count):
            rng = random.Random(number)
            name = rng.choices(names, shares)[0]
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            _copy(sound / KINDS[name].place, work / KINDS[name].place)
            KINDS[name].damage(rng, work)
            begun, before = time.process_time(), megabytes()
            try:
                KINDS[name].read(work)
                tried[f"{name}: used"] += 1
            except NeubayError as refusal:
                assert str(refusal)
                tried[f"{name}: refused"] += 1
            except Exception as error:
                what = f"{type(error).__name__}: {error}"[:300]
                found.append(Found(number, name, what, traceback.format_exc()))
                tell(found[-1])
            seconds = time.process_time() - begun
            longest = max(longest, seconds)
            if seconds > SECONDS:
                found.append(Found(number, name, f"took {seconds:.1f} s"))
                tell(found[-1])
            if megabytes() > max(MEGABYTES, before + 100):
                found.append(Found(number, name, f"memory grew to {megabytes():.0f} MB"))
                tell(found[-1])
    return found, tried, longest


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Warnings about damaged data are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable()
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=int, nargs="?", default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    flags = parser.parse_args()

    def tell(one: Found) -> None:
        trace = one.trace if flags.inputs == 1 else "".join(one.trace.splitlines(True)[-4:-1])
        print(f"input {one.number} ({one.kind}): {one.what}\n{trace}", flush=True)

    found, tried, longest = fuzz(flags.first, flags.inputs, tell)
    for name in KINDS:
        counts = f"{tried[f'{name}: used']:5} used, {tried[f'{name}: refused']:5} refused"
        print(f"{name:20} {counts}, {sum(each.kind == name for each in found)} found")
    print(
        f"{flags.inputs} inputs, {len(found)} found; longest {longest:.2f} s of processor time, "
        f"{megabytes():.0f} MB at most"
    )
    return 1 if found or megabytes() > MEGABYTES else 0


if __name__ == "__main__":
    sys.exit(main())
