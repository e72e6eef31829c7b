"""What `info` says of a dataset, against plain restatements and cases whose answer is known."""

import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from neubay.data import Dataset, load
from neubay.data.summary import Histogram, Summary, summarise, text_histogram
from neubay.errors import NeubayError
from neubay.report.parts import figures
from neubay.report.studies.data_figures import dataset_figure
from neubay.tasks import ContinuousActions, DiscreteActions, Reference, Task

TASK = Task(
    "known",
    2,
    ContinuousActions.symmetric(1),
    horizon=5,
    reference=Reference(0.0, 50.0, "a test"),
    reward_shift=-1.0,
    benchmark="adroit",  # longer episodes stay whole
)


def dataset(
    lengths: list[int],
    terminal: list[bool],
    *,
    task: Task = TASK,
    states: np.ndarray | None = None,
    actions: np.ndarray | None = None,
    rewards: np.ndarray | None = None,
    published: str | None = None,
) -> Dataset:
    """Episodes of the given lengths, each ending in a terminal or not; all rewards 1."""
    rows = sum(lengths)
    ends = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    terminals[ends] = terminal
    timeouts[ends] = ~terminals[ends]
    rng = np.random.default_rng(0)
    if states is None:
        states = rng.normal(size=(rows, task.state_size))
    if actions is None:
        actions = rng.uniform(-1, 1, (rows, task.actions.size))
    states = states.astype(np.float32)
    made = Dataset.from_arrays(
        states,
        actions,
        np.ones(rows) if rewards is None else rewards,
        terminals,
        timeouts,
        np.concatenate([states[1:], states[:1]]) + 9 * (terminals | timeouts)[:, None],
        task=task,
        name="made",
    )
    return replace(made, published=published)


def one_long(states: np.ndarray, actions: np.ndarray | None = None) -> Summary:
    task = replace(TASK, state_size=states.shape[1], horizon=len(states))
    return summarise(dataset([len(states)], [False], task=task, states=states, actions=actions))


# --- episodes, returns, score --------------------------------------------------------------


def test_endings_and_returns_with_and_without_cut_episodes() -> None:
    summary = summarise(dataset([3, 5, 2, 4], [True, False, False, False]))
    assert (summary.episodes, summary.transitions) == (4, 14)
    endings = summary.endings
    assert (endings.terminal, endings.horizon, endings.cut) == (1, 1, 2)
    assert summary.returns.whole.mean == 4  # of 3 and 5: rewards are 1, the shift is undone
    assert summary.returns.whole.std == 1
    assert summary.returns.with_cut.mean == 3.5
    assert not summary.returns.only_cut
    assert summary.score.mean == pytest.approx(8)
    assert summary.score.reference == "a test"


def test_where_every_episode_is_cut_the_figures_are_of_cut_ones() -> None:
    summary = summarise(dataset([2, 4], [False, False]))
    assert summary.returns.only_cut and summary.returns.whole.mean == 3


def test_episodes_longer_than_the_horizon_are_scored_over_it() -> None:
    summary = summarise(dataset([9, 5], [False, False]))
    assert summary.longer_than_horizon == 1
    assert summary.returns.whole.mean == 7 and summary.returns.evaluated.mean == 5
    assert summary.score.mean == pytest.approx(10)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 99),
)
def test_returns_agree_with_a_plain_restatement(shape: list[tuple[int, bool]], seed: int) -> None:
    lengths, terminal = [n for n, _ in shape], [end for _, end in shape]
    rewards = np.random.default_rng(seed).normal(size=sum(lengths)).astype(np.float32)
    summary = summarise(dataset(lengths, terminal, rewards=rewards))
    whole, evaluated, begin = [], [], 0
    for length, ends in shape:
        if ends or length >= TASK.horizon:
            whole.append(rewards[begin : begin + length].astype(float).sum())
            evaluated.append(rewards[begin : begin + min(length, TASK.horizon)].astype(float).sum())
        begin += length
    if whole:
        assert summary.returns.whole.mean == pytest.approx(np.mean(whole), abs=1e-5)
        assert summary.returns.whole.std == pytest.approx(np.std(whole), abs=1e-5)
        assert summary.returns.evaluated.mean == pytest.approx(np.mean(evaluated), abs=1e-5)
    else:
        assert summary.returns.only_cut
    assert summary.endings.cut == len(shape) - len(whole)
    assert sum(summary.returns.histogram.counts) == (len(whole) or len(shape))


def test_episodes_that_run_on_past_a_success_count_up_to_it() -> None:
    task = replace(TASK, reward_shift=-1.0, split_by_timeouts_only=True, horizon=4)
    rewards = np.float32([0, 1, 1, 0, 0, 0, 0, 0])
    states = np.random.default_rng(0).normal(size=(8, 2))
    made = Dataset.from_arrays(
        states,
        np.zeros((8, 1)),
        rewards,
        rewards > 0,
        [0, 0, 0, 1, 0, 0, 0, 1],
        np.roll(states, -1, axis=0),
        task=task,
    )
    summary = summarise(made)
    assert summary.runs_past_terminal == 1
    assert (summary.endings.terminal, summary.endings.horizon, summary.endings.cut) == (0, 2, 0)
    assert summary.returns.whole.mean == 0.5
    assert summary.returns.histogram.counts == [1, 1]


def test_without_a_reference_the_score_is_refused_not_guessed() -> None:
    summary = summarise(dataset([5], [False], task=replace(TASK, reference=None)))
    assert summary.score.mean is None
    assert summary.score.reason is not None and "no reference returns" in summary.score.reason
    assert summary.category.name == "unknown"


def test_the_papers_category_is_the_papers_and_any_other_is_labelled() -> None:
    good = np.full(5, 20.0)
    paper = summarise(dataset([5], [False], rewards=good, published="hopper-medium-v2"))
    assert paper.category.name == "narrow coverage"
    assert "the paper's grouping of hopper-medium-v2" in paper.category.decided
    assert summarise(dataset([5], [False], rewards=good)).category.name == "unknown"
    poor = summarise(dataset([5], [False], rewards=np.zeros(5)))
    assert poor.category.name == "low-quality" and "rule of thumb" in poor.category.decided


def test_many_short_failures_do_not_make_a_dataset_low_in_quality() -> None:
    """The rule of thumb weighs by transitions: most rows here are of a good episode."""
    lengths = [1] * 4 + [5] * 4
    rewards = np.concatenate([np.zeros(4), np.full(20, 2.0)])
    summary = summarise(dataset(lengths, [True] * 8, rewards=rewards))
    assert summary.score.mean == pytest.approx(10)
    assert summary.category.name == "unknown"


# --- coverage ------------------------------------------------------------------------------


def test_effective_dimension_counts_independent_directions() -> None:
    rng = np.random.default_rng(0)
    free = rng.normal(size=(20_000, 4))
    assert one_long(free).coverage.effective_dimension == pytest.approx(4, abs=0.01)
    tied = free[:, [0, 0, 0, 0]] * [1, -2, 3, 0.5]
    assert one_long(tied).coverage.effective_dimension == pytest.approx(1, abs=1e-4)
    two = free[:, [0, 0, 1, 1]]
    assert one_long(two).coverage.effective_dimension == pytest.approx(2, abs=0.01)


def test_a_cloud_fills_its_cells_and_a_track_does_not() -> None:
    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(20_000, 3)) @ rng.normal(size=(3, 6))
    assert one_long(cloud).coverage.occupied == pytest.approx(1, abs=0.05)
    # The measure is of the data's own range: fewer points of the same cloud fill it as well.
    assert one_long(cloud[:1500]).coverage.occupied == pytest.approx(1, abs=0.1)
    angle = np.linspace(0, 60, 20_000)
    track = np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle)], axis=1)
    assert one_long(track).coverage.occupied < 0.1


def test_action_freedom_is_one_for_noise_and_nought_for_a_linear_controller() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(20_000, 3))
    noise = rng.uniform(-1, 1, (20_000, 1))
    linear = (states @ [[0.1], [-0.05], [0.02]]).clip(-1, 1)
    half = linear / linear.std() * noise.std() / 8 + noise / 8

    def freedom(actions: np.ndarray) -> float:
        value = one_long(states, actions).coverage.action_freedom
        assert value is not None
        return value

    assert freedom(noise) == pytest.approx(1, abs=0.01)
    assert freedom(linear) == pytest.approx(0, abs=1e-3)
    assert freedom(half) == pytest.approx(0.5, abs=0.02)
    assert freedom(np.zeros((20_000, 1))) == 0


def test_constant_dimensions_are_named_and_do_not_disturb() -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(2000, 4))
    states[:, 1], states[:, 3] = 0.1, 1e4
    coverage = one_long(states).coverage
    assert coverage.constant_states == [1, 3]
    assert coverage.effective_dimension == pytest.approx(2, abs=0.05)
    nothing = one_long(np.zeros((50, 2))).coverage
    assert nothing.constant_states == [0, 1]
    assert nothing.effective_dimension == nothing.occupied == 0


def test_discrete_actions_are_reported_as_shares() -> None:
    task = replace(TASK, actions=DiscreteActions(3))
    actions = np.array([0, 0, 0, 2, 2])
    coverage = summarise(dataset([5], [False], task=task, actions=actions)).coverage
    assert coverage.action_mean == pytest.approx([0.6, 0, 0.4])
    assert coverage.action_freedom is None and coverage.saturated is None


def test_a_single_transition_can_be_summarised() -> None:
    summary = summarise(dataset([1], [True]))
    assert summary.transitions == 1 and summary.returns.whole.std == 0
    dataset_figure(summary.record())


# --- text and figure -----------------------------------------------------------------------


def test_the_text_histogram_shows_every_episode_to_scale() -> None:
    lines = text_histogram(Histogram([0.0, 1.0, 2.0, 3.0], [40, 1, 0]), width=20)
    assert [line.count("█") for line in lines] == [20, 0, 0]
    assert "▌" in lines[1] and lines[1].endswith("  1")
    assert len({line.index("…") for line in lines}) == 1
    many = Histogram([float(edge) for edge in range(25)], [1] * 24)
    assert len(text_histogram(many)) == 12


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_histograms_count_each_value_once(values: list[float]) -> None:
    histogram = Histogram.of(np.array(values))
    assert sum(histogram.counts) == sum(histogram.coarser().counts) == len(values)
    assert len(histogram.edges) == len(histogram.counts) + 1
    text_histogram(histogram)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["continuous", "discrete"])
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_figure_is_drawn_from_the_json_record(tmp_path: Path, kind: str, suffix: str) -> None:
    task = TASK if kind == "continuous" else replace(TASK, actions=DiscreteActions(3))
    actions = None if kind == "continuous" else np.arange(12) % 3
    summary = summarise(dataset([5, 3, 4], [False, True, False], task=task, actions=actions))
    record = json.loads(json.dumps(summary.record(), allow_nan=False))
    path = tmp_path / "ein Bild" / f"données{suffix}"
    figures.save(dataset_figure(record), path)
    beginnings = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(beginnings[suffix])


@pytest.mark.parametrize("name", ["money$$ and \\frac{", "数据", "a" * 300, ""])
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    record = summarise(dataset([5, 4], [False, True])).record() | {"name": name}
    figures.save(dataset_figure(record), tmp_path / "figure.png")


def test_a_figure_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    figure = dataset_figure(summarise(dataset([5], [False])).record())
    with pytest.raises(NeubayError, match=r"is a \.png, \.pdf or \.svg file"):
        figures.save(figure, tmp_path / "figure.exe")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NeubayError, match="cannot be written"):
        figures.save(figure, tmp_path / "file" / "figure.png")


# --- real data -----------------------------------------------------------------------------

# file -> transitions, episodes, mean and std of returns, score: the table that came with the
# data. Door is listed over T = 200 steps; AntMaze's last rows of episodes have no successor.
TABLE = {
    "hopper_random.hdf5": (100_000, 4521, 18.4, 17.5, 1.2),
    "hopper_medium_replay.hdf5": (100_000, 1515, 150.2, 422.3, 5.2),
    "hopper_medium.hdf5": (100_000, 245, 1493.0, 685.7, 46.5),
    "hopper_medium_expert.hdf5": (100_000, 162, 2275.9, 1141.9, 70.6),
    "halfcheetah_random.hdf5": (100_000, 100, -290.8, 79.8, -0.1),
    "halfcheetah_medium_replay.hdf5": (100_000, 104, 2747.2, 1047.5, 24.4),
    "halfcheetah_medium_expert.hdf5": (100_000, 100, 8250.8, 3270.0, 68.7),
    "door_human.hdf5": (6_704, 25, 171.7, None, 7.8),
    "antmaze_umaze_diverse.hdf5": (100_114, 143, 0.161, 0.367, 16.1),
    "neorl2_SafetyHalfCheetah_train.npz": (18_000, 18, 1769.3, 52.5, 73.6),
    "neorl2_SafetyHalfCheetah_val.npz": (2_000, 2, 1656.5, 19.2, 69.5),
}


@pytest.mark.parametrize("file", TABLE)
def test_real_data_gives_the_figures_it_came_with(shared_data: Path, file: str) -> None:
    transitions, count, mean, std, score = TABLE[file]
    summary = summarise(load(str(shared_data / file)))
    assert (summary.transitions, summary.episodes) == (transitions, count)
    digits = 0.0006 if abs(mean) < 1 else 0.06
    assert summary.returns.evaluated.mean == pytest.approx(mean, abs=digits)
    if std is not None:
        assert summary.returns.evaluated.std == pytest.approx(std, abs=digits)
    assert summary.score.mean == pytest.approx(score, abs=0.06)
    assert summary.published is None  # none of these files is one of the paper's
