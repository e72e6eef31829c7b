"""Memory is estimated before a training begins."""

from pathlib import Path

import numpy as np
import pytest

from helpers.faults import Tally, train
from helpers.small_runs import swings, tiny
from neubay import preflight
from neubay.config import TrainConfig, updated
from neubay.data.dataset import Dataset
from neubay.errors import TrainingError
from neubay.tasks import get_task


@pytest.fixture(scope="module")
def data() -> Dataset:
    return swings(get_task("pendulum"))


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    return tiny(agent={"steps": 300})


@pytest.mark.faults("not enough memory")
def test_memory_is_estimated_before_training(
    data: Dataset, config: TrainConfig, tmp_path: Path, tally: Tally, monkeypatch
) -> None:
    sizes = {"buffer": 40_000_000, "steps": 2_000_000, "updates_per_row": 0.05}
    large = updated(config, {"agent": sizes})
    monkeypatch.setattr(preflight, "free_memory", lambda: 1_000_000_000)
    with pytest.raises(TrainingError, match=r"may need .* and 1\.00 GB are free") as refused:
        train(data, large, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    message = str(refused.value)
    parts = preflight.memory_estimate(data, large)
    assert f"{sum(parts.values()) / 1e9:.2f} GB" in message
    assert f"replay {parts['replay'] / 1e9:.2f}" in message
    advised = int(message.split("--agent.buffer ")[1])
    preflight.check_memory(data, updated(large, {"agent": {"buffer": advised}}))
    with pytest.raises(
        TrainingError, match=r"has more: .*, or begin another run .* --agent.buffer"
    ):
        preflight.check_memory(data, large, begun=True)  # its settings cannot change any more
    sizes = {"pool": 2000, "members": 20, "width": 400, "depth": 2}
    pools = config.world.model_copy(update=sizes)
    with pytest.raises(TrainingError, match=r"members \d.* To train: .*--pool (\d+)$") as refused:
        preflight.check_world_memory(data, pools)
    advised = int(str(refused.value).split("--pool ")[1])
    preflight.check_world_memory(data, pools.model_copy(update={"pool": advised}))
    monkeypatch.setattr(preflight, "free_memory", lambda: 1000)
    with pytest.raises(TrainingError, match=r"make memory free$"):
        preflight.check_memory(data, config)
    with pytest.raises(TrainingError, match=r"make memory free$"):
        preflight.check_world_memory(data, config.world)
    tally(5, "refused before training: the parts in GB, what is free, the flag and a value for it")


def test_files_that_the_system_remembers_take_no_memory(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc" / "self", tmp_path / "sys" / "fs" / "cgroup"
    proc.mkdir(parents=True)
    assert preflight.free_memory(tmp_path) is None
    (proc.parent / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   9000 kB\n")
    assert preflight.free_memory(tmp_path) == 9000 * 1024

    def group(place: Path, names: list[str], *content: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in zip([*names, "memory.stat"], content, strict=True):
            (place / name).write_text(text)

    (proc / "cgroup").write_text("0::/user/job\n")
    second = ["memory.max", "memory.current"]
    held = "anon 50000\nactive_file 20000\ninactive_file 10000\n"
    group(groups / "user", second, "100000\n", "80000\n", held)
    group(groups / "user" / "job", second, "max\n", "80000\n", held)
    assert preflight.free_memory(tmp_path) == 100_000 - 80_000 + 30_000
    (proc / "cgroup").write_text("4:cpu:/\n3:memory:/job\n0::/\n")
    first = ["memory.limit_in_bytes", "memory.usage_in_bytes"]
    held = "cache 9\ntotal_active_file 300\ntotal_inactive_file 40\n"
    group(groups / "memory" / "job", first, "5000", "4000", held)
    assert preflight.free_memory(tmp_path) == 5000 - 4000 + 340


def test_the_memory_estimate_is_a_bound(data: Dataset, config: TrainConfig) -> None:
    parts = preflight.memory_estimate(data, config)
    assert parts["data"] == sum(
        np.asarray(field).nbytes for field in data.tape if field is not None
    )
    assert preflight.replay_rows(data, config) == 300 / 0.2 + 4 * 201
    free = preflight.free_memory()
    assert free is None or free > 0
