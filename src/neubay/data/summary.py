"""What is in a dataset: sizes, returns, how episodes end, coverage, score and category.

Coverage is measured on at most `_SAMPLE` evenly spaced transitions, by four figures that need no
model and no environment:

- *effective dimension* of the states: the participation ratio (sum of l)^2 / (sum of l^2) of the
  eigenvalues l of their correlation matrix; s if all dimensions vary independently, 1 if all
  move together;
- *occupied states*: cells of a grid over the first principal components that hold a state, as a
  share of the cells a Gaussian cloud of the same covariance and size would reach. Near 1 for
  data that fills its own range, small for a few tracks through it;
- *action freedom*: the share of the variance of actions that no linear function of the state
  explains. 1 for random actions, near 0 for one linear controller;
- per action dimension, the range that the middle 98 % of actions use.
"""

import math
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from neubay.data.dataset import Dataset
from neubay.tape import has_successor
from neubay.tasks import DiscreteActions, category

_SAMPLE = 100_000
_COMPONENTS = 3
_CELLS = 12  # per principal component, over three standard deviations to each side
_MAP_CELLS = 40
_LOW_SCORE = 10.0

Quality = Literal["low-quality", "moderate coverage", "narrow coverage", "unknown"]


@dataclass(frozen=True)
class Spread:
    """A handful of numbers in place of many."""

    mean: float
    std: float
    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Spread":
        return cls(
            mean=float(values.mean()),
            std=float(values.std()),
            min=float(values.min()),
            median=float(np.median(values)),
            max=float(values.max()),
        )


@dataclass(frozen=True)
class Histogram:
    """Episodes per bin; `edges` has one entry more than `counts`."""

    edges: list[float]
    counts: list[int]

    @classmethod
    def of(cls, values: np.ndarray) -> "Histogram":
        # Few episodes get few bins; and there are no more bins than different values:
        # successes are two bars, equal returns are one.
        bins = min(24, 2 * math.ceil(math.sqrt(len(values))))
        different = len(np.unique(values.astype(np.float32)))
        low, high = float(values.min()), float(values.max())
        if different == 1:  # NumPy's half on each side is nothing beside a huge value
            half = max(0.5, abs(low) * 1e-6)
            low, high = low - half, high + half
        counts, edges = np.histogram(values, bins=min(bins, different), range=(low, high))
        return cls(edges.tolist(), counts.tolist())

    def coarser(self) -> "Histogram":
        """Pairs of bins as one, where there are many."""
        if len(self.counts) % 2 or len(self.counts) <= 14:
            return self
        pairs = zip(self.counts[::2], self.counts[1::2], strict=True)
        return Histogram(self.edges[::2], [first + second for first, second in pairs])


@dataclass(frozen=True)
class Endings:
    """How many episodes end in which way."""

    terminal: int
    """In a terminal state."""
    horizon: int
    """After T steps or more, or past a terminal that did not end the recording (AntMaze)."""
    cut: int
    """Before T and without a terminal: the recording stopped. Their returns are incomplete."""


@dataclass(frozen=True)
class Returns:
    """Raw returns (reward shift undone) up to the first terminal.

    `whole` are the episodes as recorded, cut ones left out. `evaluated` are the same episodes as
    an evaluation would count them: at most T steps.
    """

    whole: Spread
    evaluated: Spread
    with_cut: Spread
    """Like `whole`, with the cut episodes."""
    histogram: Histogram
    """Of `whole`."""
    histogram_with_cut: Histogram
    """Of all episodes."""
    only_cut: bool
    """Every episode was cut, so that the figures above are of cut episodes."""


@dataclass(frozen=True)
class Coverage:
    """See the head of this module."""

    effective_dimension: float
    constant_states: list[int]
    """State dimensions with a single value."""
    occupied: float
    action_freedom: float | None
    """None for discrete actions."""
    action_mean: list[float]
    """Continuous: mean in [-1, 1]. Discrete: share of each action."""
    action_std: list[float]
    action_low: list[float]
    """1st percentile, in [-1, 1]."""
    action_high: list[float]
    """99th percentile, in [-1, 1]."""
    saturated: float | None
    """Share of action entries within 1 % of a bound; none for discrete actions."""
    state_map: list[list[int]]
    """Transitions by the first two principal components of their state, each cut into cells
    over three standard deviations to both sides; rows are the second component."""
    explained: list[float]
    """Shares of the standardised states' variance along these components."""
    transitions: int
    """How many transitions the figures were measured on."""


@dataclass(frozen=True)
class Score:
    """Mean normalised score of the data, or why there is none."""

    mean: float | None
    reference: str | None
    """Whose random and expert returns normalise it."""
    reason: str | None


@dataclass(frozen=True)
class Grouping:
    """The paper's grouping, and how it was decided."""

    name: Quality
    decided: str


@dataclass(frozen=True)
class Summary:
    name: str
    source: str
    published: str | None
    hash: str
    task: str
    environment: str | None
    state_size: int
    action_size: int
    actions: Literal["continuous", "discrete"]
    horizon: int
    episodes: int
    transitions: int
    lengths: Spread
    length_histogram: Histogram
    longer_than_horizon: int
    runs_past_terminal: int
    """Episodes that run on after a terminal (AntMaze)."""
    endings: Endings
    returns: Returns
    score: Score
    category: Grouping
    coverage: Coverage

    def record(self) -> dict[str, Any]:
        """As plain numbers, lists and strings, for a JSON file or a figure."""
        return asdict(self)


def summarise(dataset: Dataset) -> Summary:
    """Measure a dataset."""
    tape, task = dataset.tape, dataset.task
    first, length = dataset.bounds
    has_terminal = np.asarray(tape.terminated[first + dataset.lifetimes - 1])
    runs_on = dataset.lifetimes < length
    cut = ~has_terminal & (length < task.horizon)
    complete = ~cut if (~cut).any() else np.ones_like(cut)
    evaluated = _evaluated_returns(dataset)
    score = _score(dataset, evaluated[complete])
    return Summary(
        name=dataset.name,
        source=dataset.source,
        published=dataset.published,
        hash=dataset.hash,
        task=task.name,
        environment=task.env_name,
        state_size=task.state_size,
        action_size=task.actions.size,
        actions=task.actions.kind,
        horizon=task.horizon,
        episodes=dataset.episodes,
        transitions=dataset.transitions,
        lengths=Spread.of(length),
        length_histogram=Histogram.of(length),
        longer_than_horizon=int((length > task.horizon).sum()),
        runs_past_terminal=int(runs_on.sum()),
        endings=Endings(
            terminal=int((has_terminal & ~runs_on).sum()),
            horizon=int((runs_on | (~has_terminal & ~cut)).sum()),
            cut=int(cut.sum()),
        ),
        returns=Returns(
            whole=Spread.of(dataset.returns[complete]),
            evaluated=Spread.of(evaluated[complete]),
            with_cut=Spread.of(dataset.returns),
            histogram=Histogram.of(dataset.returns[complete]),
            histogram_with_cut=Histogram.of(dataset.returns),
            only_cut=bool(cut.all()),
        ),
        score=score,
        category=_category(dataset, evaluated),
        coverage=_coverage(dataset),
    )


def _evaluated_returns(dataset: Dataset) -> Float[np.ndarray, " episodes"]:
    """Raw returns over each episode's usable history: at most T steps."""
    first, length = (np.asarray(field) for field in dataset.histories)
    evaluated = dataset.returns.copy()
    for episode in np.flatnonzero(dataset.lifetimes > length).tolist():
        begin, steps = int(first[episode]), int(length[episode])
        rewards = np.asarray(dataset.tape.reward[begin : begin + steps], np.float64)
        evaluated[episode] = rewards.sum() - dataset.task.reward_shift * steps
    return evaluated


def _score(dataset: Dataset, evaluated: Float[np.ndarray, " episodes"]) -> Score:
    scores = dataset.task.score(evaluated)
    if scores is None or dataset.task.reference is None:
        return Score(None, None, f"no reference returns are known for '{dataset.task.name}'")
    return Score(float(scores.mean()), dataset.task.reference.source, None)


def _category(dataset: Dataset, evaluated: Float[np.ndarray, " episodes"]) -> Grouping:
    """The paper's word for its own datasets; for others only what its argument carries over.

    The paper calls Adroit and AntMaze data of low quality where the mean score is below 10.
    Weighted by transitions: an agent that fails early fills few rows with many episodes.
    """
    if dataset.published is not None and (known := category(dataset.published)) is not None:
        return Grouping(known, f"the paper's grouping of {dataset.published}")
    scores = dataset.task.score(evaluated)
    if scores is not None:
        mean = float(np.average(scores, weights=dataset.bounds[1]))
        if mean < _LOW_SCORE:
            return Grouping(
                "low-quality",
                f"a rule of thumb, not the paper's word: the mean score over transitions is "
                f"{mean:.1f}, below {_LOW_SCORE:g}",
            )
    return Grouping("unknown", "the paper groups its own 33 datasets only")


def _coverage(dataset: Dataset) -> Coverage:
    start = np.asarray(dataset.tape.start)
    rows = np.arange(0, len(start), -(-dataset.transitions // _SAMPLE))
    rows = rows[has_successor(start)[rows]]
    sample = dataset.take(rows)
    states, actions = np.asarray(sample.state, np.float64), np.asarray(sample.action, np.float64)
    deviation = states.std(axis=0)
    # Relative to the size of the values: the spread of a constant is rounding, not zero.
    varies = deviation > 1e-7 * np.maximum(np.abs(states).max(axis=0), 1e-5)
    standardised = (states[:, varies] - states[:, varies].mean(axis=0)) / deviation[varies]
    eigenvalues, directions = _principal(standardised)
    components = min(_COMPONENTS, int((eigenvalues > 1e-9).sum()))
    whitened = standardised @ directions[:, :components] / np.sqrt(eigenvalues[:components])
    discrete = isinstance(dataset.task.actions, DiscreteActions)
    low, high = np.quantile(actions, [0.01, 0.99], axis=0)
    return Coverage(
        effective_dimension=float(eigenvalues.sum() ** 2 / max((eigenvalues**2).sum(), 1e-9)),
        constant_states=np.flatnonzero(~varies).tolist(),
        occupied=_occupied(whitened),
        action_freedom=None if discrete else _action_freedom(standardised, actions),
        action_mean=actions.mean(axis=0).tolist(),
        action_std=actions.std(axis=0).tolist(),
        action_low=low.tolist(),
        action_high=high.tolist(),
        saturated=None if discrete else float((np.abs(actions) > 0.98).mean()),
        state_map=_state_map(whitened),
        explained=(eigenvalues[:2] / max(eigenvalues.sum(), 1e-9)).tolist(),
        transitions=len(rows),
    )


def _principal(
    standardised: Float[np.ndarray, "n s"],
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, "s s"]]:
    """Eigenvalues of the correlation matrix, largest first, and their directions as columns."""
    correlation = standardised.T @ standardised / len(standardised)
    eigenvalues, directions = np.linalg.eigh(correlation)
    return np.maximum(eigenvalues[::-1], 0.0), directions[:, ::-1]


def _occupied(whitened: Float[np.ndarray, "n c"]) -> float:
    """Occupied cells over the number expected of a Gaussian cloud of the same covariance."""
    points, components = whitened.shape
    if not components:
        return 0.0
    edges = np.linspace(-3, 3, _CELLS + 1)[1:-1]
    cell = np.ravel_multi_index(tuple(np.digitize(whitened, edges).T), (_CELLS,) * components)
    return len(np.unique(cell)) / _expected_cells(edges, components, points)


def _state_map(whitened: Float[np.ndarray, "n c"]) -> list[list[int]]:
    plane = np.zeros((len(whitened), 2))
    plane[:, : whitened.shape[1]] = whitened[:, :2]
    edges = np.linspace(-3, 3, _MAP_CELLS + 1)
    first, second = np.clip(plane, -3, 3).T
    counts, _, _ = np.histogram2d(second, first, bins=[edges, edges])
    return [[int(count) for count in row] for row in counts]


def _expected_cells(edges: Float[np.ndarray, " edges"], dimensions: int, points: int) -> float:
    """Cells that `points` independent standard normal points occupy, on average."""
    below = [(1 + math.erf(edge / math.sqrt(2))) / 2 for edge in edges.tolist()]
    along_one = np.diff([0.0, *below, 1.0])
    share = reduce(np.multiply.outer, [along_one] * dimensions)
    return float(-np.expm1(points * np.log1p(-share)).sum())


def _action_freedom(
    standardised: Float[np.ndarray, "n s"], actions: Float[np.ndarray, "n a"]
) -> float:
    """Variance of actions around their linear regression on the state, over their variance."""
    centred = actions - actions.mean(axis=0)
    total = float((centred**2).sum())
    if total == 0:
        return 0.0
    # Through the small s x s matrix; its pseudo-inverse takes dimensions that move together.
    inverse = np.linalg.pinv(standardised.T @ standardised, rcond=1e-10, hermitian=True)
    weights = inverse @ (standardised.T @ centred)
    return float(((centred - standardised @ weights) ** 2).sum() / total)


def text_histogram(histogram: Histogram, *, width: int = 40) -> list[str]:
    """One line per bin: its range, a bar, and the number of episodes."""
    histogram = histogram.coarser()
    most = max(histogram.counts)
    labels = [_short(edge) for edge in histogram.edges]
    pad = max(len(label) for label in labels)
    lines = []
    for low, high, count in zip(labels[:-1], labels[1:], histogram.counts, strict=True):
        # Eighths of a character; what is not empty shows at least the thinnest bar.
        eighths = max(round(8 * width * count / most), 1 if count else 0)
        bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
        lines.append(f"{low:>{pad}} … {high:>{pad}}  {bar:<{width}}  {count:,}")
    return lines


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
