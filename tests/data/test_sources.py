"""Every source gives the same tape for the same steps, and knows its task."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from helpers.data_checks import Log, check_invariants, make_log, small_task
from neubay.data import Dataset, load, validate
from neubay.errors import DatasetError, TaskError
from neubay.tasks import ContinuousActions, DiscreteActions


def write_hdf5(path: Path, arrays: dict[str, np.ndarray], **options: object) -> Path:
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file.create_dataset(key, data=values, **options)
    return path


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)
    return path


# --------------------------------------------------------------------------- HDF5 and npz


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "gzip"},
        {"compression": "gzip", "chunks": True, "shuffle": True, "fletcher32": True},
        {"dtype": "f8"},
        {"dtype": ">f4"},
        {"chunks": True, "dtype": "f2"},
    ],
)
def test_storage_does_not_matter(tmp_path: Path, options: dict[str, object]) -> None:
    log = make_log([50, 30, 3])
    if options.get("dtype") == "f2":
        log.states, log.next_states = np.round(log.states), np.round(log.next_states)
        log.actions, log.rewards = np.sign(log.actions), np.round(log.rewards)
    expected = Dataset.from_arrays(**log.arrays())
    path = write_hdf5(tmp_path / "log.hdf5", log.d4rl(), **options)
    for spec in (path, str(path), f"d4rl:{path}", f"hdf5:{path}"):
        dataset = load(spec)
        assert dataset.hash == expected.hash
        assert (dataset.name, dataset.source) == ("log", str(path))
        check_invariants(dataset)


def test_chunks_longer_than_a_block_and_column_by_column(tmp_path: Path) -> None:
    log = make_log([70_000])
    path = write_hdf5(tmp_path / "log.hdf5", {"observations": log.states[:1]})
    with h5py.File(path, "w") as file:
        for key, values in log.d4rl().items():
            chunks = (40_000, 1) if values.ndim == 2 else (40_000,)
            file.create_dataset(key, data=values, chunks=chunks, compression="lzf")
    assert load(path).hash == Dataset.from_arrays(**log.arrays()).hash


def test_npz_compressed_stored_and_column_major(tmp_path: Path) -> None:
    log = make_log([40_000, 30])
    expected = Dataset.from_arrays(**log.arrays()).hash
    arrays = log.d4rl()
    for name, values in arrays.items():
        assert values.flags.c_contiguous, name
    np.savez_compressed(tmp_path / "compressed.npz", **arrays)
    np.savez(tmp_path / "columns.npz", **{k: np.asfortranarray(v) for k, v in arrays.items()})
    assert load(tmp_path / "compressed.npz").hash == expected
    assert load(f"npz:{tmp_path / 'columns.npz'}").hash == expected


def test_what_a_file_is_does_not_depend_on_its_name(tmp_path: Path) -> None:
    log = make_log()
    write_npz(tmp_path / "log.npz", log.d4rl()).rename(tmp_path / "data.bin")
    write_hdf5(tmp_path / "log.npz", log.d4rl())
    assert load(tmp_path / "data.bin").hash == load(tmp_path / "log.npz").hash


def test_a_user_block_before_hdf5_is_skipped(tmp_path: Path) -> None:
    log = make_log()
    with h5py.File(tmp_path / "log.h5", "w", userblock_size=512) as file:
        for key, values in log.d4rl().items():
            file[key] = values
    assert load(tmp_path / "log.h5").hash == Dataset.from_arrays(**log.arrays()).hash


@pytest.mark.parametrize(
    ("states", "successors", "terminals", "timeouts"),
    [
        ("obs", "next_obs", "terminated", "truncated"),
        ("states", "next_states", "terminals", "timeouts"),
        ("observations", "next_observations", "terminations", "truncations"),
    ],
)
def test_usual_names(
    tmp_path: Path, states: str, successors: str, terminals: str, timeouts: str
) -> None:
    log = make_log()
    path = write_npz(
        tmp_path / "log.npz",
        {
            states: log.states,
            "action": log.actions,
            "reward": log.rewards,
            successors: log.next_states,
            terminals: log.terminals,
            timeouts: log.timeouts,
            "something": np.array(["else"]),
        },
    )
    assert load(path).hash == Dataset.from_arrays(**log.arrays()).hash


def test_d4rl_without_successors_loses_the_last_row_but_terminal_ones(tmp_path: Path) -> None:
    log = make_log([5, 3, 8, 4])
    dataset = load(write_hdf5(tmp_path / "log.hdf5", log.d4rl(successors=False)))
    assert dataset.bounds[1].tolist() == [5, 2, 8, 3]
    check_invariants(dataset)


def test_antmaze_is_split_by_timeouts_and_shifted(tmp_path: Path) -> None:
    log = make_log([700, 702], state_size=29, action_size=8)
    log.terminals[:] = False
    log.terminals[300:320] = True
    log.timeouts[[699, 1401]] = True
    log.rewards = log.terminals.astype(np.float32)
    path = write_hdf5(tmp_path / "antmaze_umaze_play.hdf5", log.d4rl(successors=False))
    dataset = load(path)
    assert dataset.task.name == "antmaze/umaze"
    assert dataset.bounds[1].tolist() == [699, 701]
    assert dataset.histories.length.tolist() == [301, 700]
    assert set(np.unique(dataset.tape.reward[:300])) == {-1.0}
    assert dataset.returns.tolist() == [1.0, 0.0]
    assert len(dataset.world_rows) == dataset.transitions - 20


# ---------------------------------------------------------------------------------- NeoRL


def neorl(log: Log, **more: np.ndarray) -> dict[str, np.ndarray]:
    """NeoRL's layout: columns of one, `done` at every end."""
    return {
        "obs": log.states,
        "action": log.actions,
        "next_obs": log.next_states,
        "reward": log.rewards[:, None],
        "done": (log.terminals | log.timeouts)[:, None].astype(np.float32),
        **more,
    }


def test_neorl_done_is_termination_if_shorter_than_the_horizon(tmp_path: Path) -> None:
    log = make_log([6, 10, 4, 10])
    log.terminals, log.timeouts = log.terminals | log.timeouts, log.timeouts & False
    log.terminals[[15, 29]], log.timeouts[[15, 29]] = False, True
    task = small_task(horizon=10)
    expected = Dataset.from_arrays(**log.arrays(), task=task)
    path = write_npz(tmp_path / "log.npz", neorl(log, index=np.array([0, 6, 16, 20])))
    assert load(f"neorl:{path}", task).hash == expected.hash
    assert load(write_npz(tmp_path / "noindex.npz", neorl(log)), task).hash == expected.hash


def test_neorls_timeouts_are_left_out_of_the_worlds_data(tmp_path: Path) -> None:
    """As in the published runs, though their successor is stored. The agent has them."""
    log = make_log([6, 1000, 4], state_size=12, action_size=3)
    arrays = neorl(log, index=np.array([0, 6, 1006]))
    dataset = load(write_npz(tmp_path / "log.npz", arrays), "neorl/hopper")
    assert np.asarray(dataset.tape.terminated).nonzero()[0].tolist() == [5, 1007 + 4]
    timeout = 7 + 999
    assert dataset.transitions == 1010 and dataset.histories.length.tolist() == [6, 1000, 4]
    assert np.setdiff1d(np.arange(6), dataset.world_rows).size == 0
    assert timeout not in dataset.world_rows and len(dataset.world_rows) == 1009


def test_neorl_index_ends_episodes_that_are_not_done(tmp_path: Path) -> None:
    log = make_log([6, 10])
    log.next_states[5] = log.states[6]  # a reset that looks like a step
    arrays = neorl(log, index=np.array([0, 6]))
    arrays["done"][:] = 0
    dataset = load(write_npz(tmp_path / "log.npz", arrays), small_task(horizon=10))
    assert dataset.bounds[1].tolist() == [6, 10]
    assert not dataset.tape.terminated.any()


@pytest.mark.parametrize("index", [[], [1, 6], [0, 0], [0, 16], [0.5, 6], [0, np.nan]])
def test_a_wrong_neorl_index_is_refused(tmp_path: Path, index: list[float]) -> None:
    path = write_npz(tmp_path / "log.npz", neorl(make_log([6, 10]), index=np.array(index)))
    with pytest.raises(DatasetError, match=r"'index'.*first row of every episode"):
        load(path, small_task())


def test_done_alone_needs_a_task(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "log.npz", neorl(make_log([6, 10])))
    with pytest.raises(DatasetError, match=r"'done' row 5: .* Name the task"):
        load(path)


def test_neorl2_truncated_is_not_terminal(tmp_path: Path) -> None:
    log = make_log([6, 10, 4])
    arrays = neorl(log, truncated=log.timeouts.astype(np.float32))
    expected = Dataset.from_arrays(**log.arrays())
    assert load(write_npz(tmp_path / "both.npz", arrays)).hash == expected.hash
    arrays["done"] = log.terminals.astype(np.float32)
    assert load(write_npz(tmp_path / "apart.npz", arrays)).hash == expected.hash


# ---------------------------------------------------------------------------------- tasks


def test_the_task_is_told_by_the_name_of_the_file(tmp_path: Path) -> None:
    log = make_log(state_size=11, action_size=3)
    own = load(write_hdf5(tmp_path / "hopper_medium.hdf5", log.d4rl()))
    assert (own.task.name, own.published) == ("d4rl/hopper", None)
    published = load(write_hdf5(tmp_path / "hopper_medium-v2.hdf5", log.d4rl()))
    assert (published.task.name, published.published) == ("d4rl/hopper", "hopper-medium-v2")


def test_an_explicit_task_wins_and_is_not_the_published_one(tmp_path: Path) -> None:
    log = make_log(state_size=11, action_size=3)
    path = write_hdf5(tmp_path / "hopper-medium-v2.hdf5", log.d4rl())
    dataset = load(path, small_task(log))
    assert (dataset.task.name, dataset.published) == ("small", None)
    assert load(path, "d4rl/hopper").published == "hopper-medium-v2"


def test_a_recorded_task_is_known_again(tmp_path: Path) -> None:
    log = make_log(state_size=11, action_size=3)
    path = write_hdf5(tmp_path / "anything.hdf5", log.d4rl())
    with h5py.File(path, "a") as file:
        file.attrs["task"] = "d4rl/hopper"
    assert load(path).task.name == "d4rl/hopper"
    with h5py.File(path, "a") as file:
        file.attrs["task"] = "a task of somebody else"
    assert load(path).task.name == "anything"


def test_a_task_of_another_size_names_both(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "hopper-medium-v2.hdf5", make_log().d4rl())
    with pytest.raises(DatasetError, match=r"size 3, .* task 'd4rl/hopper' have 11"):
        load(path, "d4rl/hopper")
    with h5py.File(path, "a") as file:
        file.attrs["task"] = "d4rl/hopper"
    with pytest.raises(DatasetError, match=r"size 3, .* task 'd4rl/hopper' have 11"):
        load(path)
    with pytest.raises(TaskError, match="unknown task"):
        load(path, "no such task")


@pytest.mark.parametrize(
    ("sizes", "scale", "reason"),
    [
        ((5, 1), 1.0, "states of size 5"),
        ((3, 2), 1.0, "actions of size 2"),
        ((3, 1), 3.0, r"outside \[-2, 2\]"),
    ],
)
def test_a_name_alone_chooses_no_simulator(
    tmp_path: Path, sizes: tuple[int, int], scale: float, reason: str
) -> None:
    log = make_log([50, 50], state_size=sizes[0], action_size=sizes[1])
    log.actions *= scale
    path = write_npz(tmp_path / "pendulum_rig.npz", log.d4rl())
    said: list[str] = []
    if scale > 1:  # a task of its own has bounds of its own, which these actions leave
        with pytest.raises(DatasetError, match=r"outside the bounds \[-1, 1\]"):
            load(path, tell=said.append)
    else:
        dataset = load(path, tell=said.append)
        assert (dataset.task.name, dataset.task.env_id) == ("pendulum_rig", None)
    assert re.search(f"not of task 'pendulum'.*{reason}", said[0])
    findings = validate(path)
    assert any("not of task 'pendulum'" in finding.message for finding in findings)


def test_a_name_that_fits_is_believed_and_said(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "pendulum_rig.npz", make_log(action_size=1).d4rl())
    said: list[str] = []
    assert load(path, tell=said.append).task.env_id == "Pendulum-v1"
    assert "taken for data of task 'pendulum'" in said[0] and len(said) == 1


def test_numbers_that_a_named_task_has_not_are_not_of_it(tmp_path: Path) -> None:
    log = make_log([60, 60], state_size=4, action_size=1)
    log.actions = np.arange(120) % 3
    said: list[str] = []
    dataset = load(write_npz(tmp_path / "cartpole_x.npz", log.d4rl()), tell=said.append)
    assert dataset.task.actions == DiscreteActions(3) and dataset.task.env_id is None
    assert "holds 2, outside the numbers 0 to 1" in said[0]


# ---------------------------------------------------------------------------------- specs


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "no dataset given"),
        ("d4rl:", "missing after the colon"),
        ("d4rl:hopper-medium-v2", "neubay data download hopper-medium-v2.*d4rl:PATH.hdf5"),
        ("hopper-medium-v2", "neubay data download hopper-medium-v2"),
        ("hopper-medum-v2", "Did you mean 'hopper-medium-v2'"),
        ("d4lr:x.hdf5", "Did you mean 'd4rl:x.hdf5'"),
        ("builtin:nothing", "Built in are: pendulum"),
        ("nowhere/file.hdf5", "no such file"),
        ("minari:no/such-v0", r"pip install 'minari\[hf\]' && minari download no/such-v0"),
        ("nul\0.hdf5", "no such file"),
        ("x" * 5000, "no such file"),
        ("~nobody-of-that-name/log.hdf5", "no such file"),
        ("minari:" + "x" * 5000, "cannot be read|no such folder"),
        ("minari:nul\0", "cannot be read|no such folder"),
        ("minari:~nobody-of-that-name/log", "no such folder"),
    ],
)
def test_what_cannot_be_found_says_what_to_do(
    spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    with pytest.raises(DatasetError, match=message):
        load(spec)


def test_a_downloaded_file_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path))
    (tmp_path / "d4rl").mkdir()
    log = make_log(state_size=11, action_size=3)
    write_hdf5(tmp_path / "d4rl" / "hopper-medium-v2.hdf5", log.d4rl())
    for spec in ("d4rl:hopper-medium-v2", "hopper-medium-v2"):
        assert load(spec).published == "hopper-medium-v2"


def test_the_built_in_dataset_belongs_to_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset.from_arrays(**make_log().arrays(), task=small_task(name="pendulum"))
    monkeypatch.setattr("neubay.data.builtin.pendulum", lambda: dataset)
    assert load("builtin:pendulum") is load("pendulum") is dataset
    with pytest.raises(DatasetError, match="belongs to task 'pendulum'"):
        load("pendulum", small_task())


# --------------------------------------------------------------------------------- Minari


def write_minari(
    folder: Path,
    log: Log,
    lengths: list[int],
    *,
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    metadata: dict[str, object] | None = None,
    env_spec: object = None,
) -> Path:
    states = observation_space or spaces.Box(-np.inf, np.inf, (log.states.shape[1],), np.float32)
    actions = action_space or spaces.Box(-1, 1, (log.actions.shape[1],), np.float32)
    folder.mkdir(parents=True)
    storage = MinariStorage.new(
        folder / "data", observation_space=states, action_space=actions, env_spec=env_spec
    )
    first = np.cumsum([0, *lengths])
    storage.update_episodes(
        EpisodeBuffer(
            id=number,
            observations=np.concatenate([log.states[a:b], log.next_states[b - 1 : b]]),
            actions=log.actions[a:b],
            rewards=log.rewards[a:b],
            terminations=log.terminals[a:b],
            truncations=log.timeouts[a:b],
        )
        for number, (a, b) in enumerate(pairwise(first))
    )
    storage.update_metadata(
        {"dataset_id": "mine/walk-v0", "minari_version": minari.__version__, **(metadata or {})}
    )
    return folder


LENGTHS = [5, 3, 8, 1]


def test_minari_by_folder_and_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    log = make_log(LENGTHS)
    folder = write_minari(tmp_path / "mine" / "walk-v0", log, LENGTHS)
    expected = Dataset.from_arrays(**log.arrays())
    for spec in (f"minari:{folder}", str(folder), f"minari:{folder}/data", "minari:mine/walk-v0"):
        dataset = load(spec)
        assert dataset.hash == expected.hash
        assert dataset.name == "mine/walk-v0"
        assert dataset.task.horizon == expected.task.horizon == 1000  # the longest is terminal
        check_invariants(dataset)


def test_long_logs_in_minari_are_cut_as_in_files(tmp_path: Path) -> None:
    log = make_log([2_500, 30])
    folder = write_minari(tmp_path / "walk", log, [2_500, 30])
    said: list[str] = []
    data = load(folder, tell=said.append)
    expected = Dataset.from_arrays(**log.arrays())
    assert data.hash == expected.hash and data.bounds[1].tolist() == [834, 834, 832, 30]
    assert data.task.horizon == expected.task.horizon == 834
    assert any("an episode of 2,500 steps is read in pieces" in each for each in said)
    assert any("an episode of 2,500 steps" in each.message for each in validate(folder))
    task = small_task(log, horizon=1_000)
    assert load(folder, task).bounds[1].tolist() == [1_000, 1_000, 500, 30]
    published = replace(task, benchmark="adroit")
    assert load(folder, published).bounds[1].tolist() == [2_500, 30]


@pytest.mark.parametrize("first", ["none", "long", "published"])
def test_a_mapped_tape_is_cut_as_the_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """What decides the cuts also tells cached tapes apart."""
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    log = make_log([2_500])
    path = write_npz(tmp_path / "log.npz", log.d4rl())
    long = small_task(log, horizon=2_500)
    tasks = {"none": "none", "long": long, "published": replace(long, benchmark="adroit")}
    load(path, tasks[first], memory_limit=10)  # is in the cache now
    for task in tasks.values():
        mapped, whole = load(path, task, memory_limit=10), load(path, task)
        assert mapped.hash == whole.hash and mapped.horizon_said == whole.horizon_said


def test_minari_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("neubay.data.minari_source.BLOCK_ROWS", 4)
    log = make_log(LENGTHS)
    folder = write_minari(tmp_path / "walk", log, LENGTHS)
    mapped = load(f"minari:{folder}", memory_limit=0)
    assert isinstance(mapped.tape.state, np.memmap)
    assert mapped.hash == Dataset.from_arrays(**log.arrays()).hash


def test_minari_tells_bounds_horizon_environment_and_scores(tmp_path: Path) -> None:
    log = make_log(LENGTHS, action_size=1)
    log.actions *= 2
    folder = write_minari(
        tmp_path / "walk",
        log,
        LENGTHS,
        action_space=spaces.Box(-2, 2, (1,), np.float32),
        metadata={"ref_min_score": -10.0, "ref_max_score": 30.0},
        env_spec=gymnasium.spec("Pendulum-v1"),
    )
    dataset = load(f"minari:{folder}")
    assert dataset.task.actions == ContinuousActions.symmetric(1, 2.0)
    assert (dataset.task.horizon, dataset.task.env_id) == (200, "Pendulum-v1")
    assert dataset.task.score(np.array([30.0])).tolist() == [100.0]
    assert np.abs(dataset.tape.action).max() <= 1


def test_minari_discrete_actions_from_any_first_number(tmp_path: Path) -> None:
    log = make_log(LENGTHS)
    log.actions = np.arange(len(log.actions)) % 3
    expected = Dataset.from_arrays(**log.arrays())
    log.actions = log.actions + 5
    folder = write_minari(tmp_path / "walk", log, LENGTHS, action_space=spaces.Discrete(3, start=5))
    dataset = load(f"minari:{folder}")
    assert dataset.task.actions == DiscreteActions(3)
    assert dataset.hash == expected.hash


def test_minari_recorded_task(tmp_path: Path) -> None:
    log = make_log(LENGTHS, state_size=11, action_size=3)
    folder = write_minari(
        tmp_path / "walk", log, LENGTHS, metadata={"neubay": {"task": "d4rl/hopper"}}
    )
    assert load(f"minari:{folder}").task.name == "d4rl/hopper"
    with pytest.raises(DatasetError, match=r"states of size 11 .*'d4rl/halfcheetah' has .* 17"):
        load(f"minari:{folder}", "d4rl/halfcheetah")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-1, 1, (2, 2)), "only vectors"),
        (spaces.Box(-np.inf, np.inf, (2,)), "no bounds"),
        (spaces.MultiDiscrete([2, 2]), "Discrete can be read"),
    ],
)
def test_minari_actions_that_cannot_be_read(
    tmp_path: Path, space: gymnasium.Space, message: str
) -> None:
    log = make_log(LENGTHS)
    if len(space.shape) == 2:
        log.actions = np.zeros((len(log.actions), 2, 2), np.float32)
    folder = write_minari(tmp_path / "walk", log, LENGTHS, action_space=space)
    with pytest.raises(DatasetError, match=message):
        load(f"minari:{folder}")


def test_minari_dictionaries_are_refused_with_a_way_out(tmp_path: Path) -> None:
    storage = MinariStorage.new(
        tmp_path / "data",
        observation_space=spaces.Dict({"a": spaces.Box(-1, 1, (2,))}),
        action_space=spaces.Discrete(2),
    )
    storage.update_metadata({"dataset_id": "d-v0", "minari_version": minari.__version__})
    storage.update_episodes(
        [
            EpisodeBuffer(
                id=0,
                observations={"a": np.zeros((3, 2), np.float32)},
                actions=np.zeros(2, np.int64),
                rewards=np.zeros(2),
                terminations=np.zeros(2, bool),
                truncations=np.zeros(2, bool),
            )
        ]
    )
    with pytest.raises(DatasetError, match=r"only vectors .*FlattenObservation"):
        load(f"minari:{tmp_path}")


def test_minari_without_spaces_never_makes_the_environment_it_names(tmp_path: Path) -> None:
    folder = write_minari(tmp_path / "walk", make_log(LENGTHS), LENGTHS)
    (folder / "data" / "metadata.json").write_text(
        '{"env_spec": "{\\"id\\": \\"x-v0\\", \\"entry_point\\": \\"os:abort\\"}"}'
    )
    with pytest.raises(DatasetError, match="does not hold the spaces"):
        load(f"minari:{folder}")


@pytest.mark.parametrize("key", ["observations", "rewards", "terminations", "actions"])
def test_minari_arrays_that_contradict_each_other(tmp_path: Path, key: str) -> None:
    folder = write_minari(tmp_path / "walk", make_log(LENGTHS), LENGTHS)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        values = file[f"episode_2/{key}"][()]
        del file[f"episode_2/{key}"]
        file[f"episode_2/{key}"] = values[:-1]
    with pytest.raises(DatasetError, match="'episode_2/"):
        load(f"minari:{folder}")


def test_minari_links_are_not_followed(tmp_path: Path) -> None:
    folder = write_minari(tmp_path / "walk", make_log(LENGTHS), LENGTHS)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/rewards"]
        file["episode_1/rewards"] = h5py.ExternalLink("other.hdf5", "/secret")
    with pytest.raises(DatasetError, match="'rewards' is a link"):
        load(f"minari:{folder}")


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"observation_space": 3}', "\x00"])
def test_minari_with_damaged_metadata(tmp_path: Path, damage: str) -> None:
    folder = write_minari(tmp_path / "walk", make_log(LENGTHS), LENGTHS)
    (folder / "data" / "metadata.json").write_text(damage)
    with pytest.raises(DatasetError, match=r"metadata\.json"):
        load(f"minari:{folder}")


def test_folders_that_are_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no data/metadata\.json"):
        load(f"minari:{tmp_path}")
    with pytest.raises(DatasetError, match="is a folder"):
        load(tmp_path)
