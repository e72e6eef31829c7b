"""Two processes that want the same directory."""

from pathlib import Path

import pytest

from helpers.faults import Tally, held, saved, train
from helpers.small_runs import outcome, tiny
from neubay import world
from neubay.config import TrainConfig
from neubay.data.dataset import Dataset
from neubay.errors import RunError
from neubay.runs import rundir


@pytest.mark.faults("two processes on one directory")
def test_a_second_process_is_refused_and_told_of_the_first(
    data: Dataset, config: TrainConfig, left: Path, reference: dict, tally: Tally
) -> None:
    before = saved(left)
    with held(left) as holder:
        with pytest.raises(RunError, match=rf"in use by process {holder.pid} on "):
            train(data, config, left)
        assert rundir.look(left).holder.startswith(f"process {holder.pid}")
        with pytest.raises(RunError, match="in use"):
            rundir.remove(left)
        assert saved(left) == before
        holder.kill()
        holder.wait()
        train(data, config, left)
    assert outcome(left) == reference
    tally(2, "the second is refused and told who holds it; free again when the first was killed")


@pytest.mark.slow
@pytest.mark.faults("two processes that train one world")
def test_a_world_in_training_is_waited_for(data: Dataset, tmp_path: Path, tally: Tally) -> None:
    told: list[str] = []
    with held(tmp_path / "world") as holder:

        def waiting(text: str) -> None:
            told.append(text)
            holder.kill()

        world.fit(data, tiny().world, 0, directory=tmp_path / "world", tell=waiting)
    assert len(told) == 1 and f"waiting for process {holder.pid}" in told[0]
    tally(1, "the second says whom it waits for, and then uses the world")
