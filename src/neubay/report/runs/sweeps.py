"""Tables over many runs: scores with the paper's marks, aggregates, and sensitivity."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neubay import published
from neubay.published import PaperBenchmark
from neubay.report.parts.statistics import (
    Sample,
    best_of,
    interquartile_mean,
    not_worse,
    shade,
    stratified_bootstrap,
)
from neubay.report.parts.tables import Cell, Grid, Heading, Row
from neubay.report.runs.groups import Data, Group, labels, show, symbol
from neubay.report.runs.records import RunRecord, Settings

Interval = tuple[float, float, float]
"""Interquartile mean, and the ends of its 95 % interval."""


# --- Scores --------------------------------------------------------------------------------------


def score_grid(datasets: Sequence[Data]) -> Grid:
    """A row per dataset: ours per group, and what was published in columns of their own, a set per
    benchmark. The headings of both name the data and the environment they come from."""
    known = {g.label for data in datasets for g in data.groups if g.sample is not None}
    shown = [label for label in labels(datasets) if label in known] or labels(datasets)
    benchmarks = list(dict.fromkeys(filter(None, (_benchmark(data.first) for data in datasets))))
    headings = [Heading("the data"), *(Heading(label, _our_origin(datasets)) for label in shown)]
    headings += [Heading(name, "ours come from") for name in ("environment", "data", "hash")]
    for one in benchmarks:
        names = ("NEUBAY", "best method", "dataset")
        headings += [Heading(name, published_origin(one)) for name in names]
    rows = []
    for data in datasets:
        cells = [_data_cell(data), *_our_cells(data, shown), *_where_cells(data.first)]
        for one in benchmarks:
            own = _benchmark(data.first) == one
            cells += _published_cells(data.first) if own else [Cell()] * 3
        rows.append(Row(f"{data.title} ({_unit(data)})", tuple(cells)))
    note = _score_note(datasets, bool(benchmarks))
    return Grid("scores", "Scores", note, "dataset", tuple(headings), tuple(rows))


def published_origin(benchmark: PaperBenchmark) -> str:
    """Where published numbers come from, in the words of a heading."""
    return f"published (paper, {benchmark.data} data, {benchmark.environment} env)"


def _our_origin(datasets: Sequence[Data]) -> str:
    """Where ours come from: in the heading if it is one place, and else in the row."""
    places = {(_source(data.first), data.first.environment) for data in datasets}
    if len(places) > 1:
        return "ours (data and env of the row)"
    source, environment = places.pop()
    return f"ours ({source} data, {environment or 'no'} env)"


def _our_cells(data: Data, shown: Sequence[str]) -> list[Cell]:
    samples = {group.label: group.sample for group in data.groups}
    known = {label: sample for label, sample in samples.items() if sample is not None}
    tested = {label: sample for label, sample in known.items() if sample.n > 1}
    best = best_of(known) if known else None
    marked = not_worse(tested) if best in tested and len(tested) > 1 else set()
    return [
        Cell.of(known[label], best=label == best and len(known) > 1, marked=label in marked)
        if label in known
        else Cell()
        for label in shown
    ]


def _data_cell(data: Data) -> Cell:
    level = data.first.data_result
    return Cell() if level is None else Cell.of(Sample(level, None, 1))


def _where_cells(run: RunRecord) -> list[Cell]:
    where = (run.environment or "none", _source(run), str(run.about["dataset"]["hash"])[:8])
    return [Cell(text) for text in where]


def _source(run: RunRecord) -> str:
    """Where the data come from, without folders."""
    return str(run.about["dataset"].get("source", run.dataset)).rsplit("/", 1)[-1]


def _published_cells(run: RunRecord) -> list[Cell]:
    name = _published_name(run)
    if name is None:
        return [Cell(), Cell(), Cell()]
    table = published.table(published.datasets()[name].benchmark)
    method = published.result(name)
    best = next(
        (
            column.name
            for column in table.columns
            if (cell := table[name, column.name]) and cell.best
        ),
        None,
    )
    best_cell = None if best is None else table[name, best]
    return [
        Cell() if method is None else Cell.of(Sample(method.mean, method.std, 6)),
        Cell() if best_cell is None else Cell(f"{best} {best_cell.mean:.1f}"),
        Cell(name),
    ]


def _published_name(run: RunRecord) -> str | None:
    name = run.about["dataset"].get("published")
    return name if name in published.datasets() else None


def _benchmark(run: RunRecord) -> PaperBenchmark | None:
    name = _published_name(run)
    return None if name is None else published.benchmarks()[published.datasets()[name].benchmark]


def _score_note(datasets: Sequence[Data], published_too: bool) -> str:
    counts = sorted({len(group.scores) for data in datasets for group in data.groups})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds += " finished seed" if counts == [1] else " finished seeds"
    note = (
        f"Mean ± standard deviation over {seeds} of the last evaluation. Bold: the "
        "best of ours. Marked: not significantly worse than it by Welch's one-sided t-test "
        "(p < 0.05); groups of a single seed are not tested."
    )
    if published_too:
        note += (
            " Published numbers come from other data and another version of the environment; they "
            "stand beside ours and enter no average, no mark and no test."
        )
    unfinished = sum(run.status != "finished" for data in datasets for run in data.runs)
    return note if not unfinished else f"{note} {unfinished} unfinished runs are left out."


def _unit(data: Data) -> str:
    return "score" if data.first.scored else "return"


# --- Aggregates ----------------------------------------------------------------------------------


def intervals(datasets: Sequence[Data]) -> dict[str, Interval]:
    """Interquartile mean over all tasks and seeds of a group, by label.

    Scores can be averaged over tasks and returns cannot: with several datasets, those with scores
    count, and only the groups that have run on all of them.
    """
    used = _averaged(datasets)
    found = {}
    for label in labels(datasets):
        if used and not _missing(label, used):
            tasks = [data.scores(label) for data in used]
            low, high = stratified_bootstrap(tasks)
            found[label] = (float(interquartile_mean(np.concatenate(tasks))), low, high)
    return found


def _averaged(datasets: Sequence[Data]) -> list[Data]:
    return [data for data in datasets if data.first.scored or len(datasets) == 1]


def _missing(label: str, used: Sequence[Data]) -> list[str]:
    """Datasets on which a group has no finished run."""
    return [data.title for data in used if not len(data.scores(label))]


def aggregate_grid(datasets: Sequence[Data]) -> Grid | None:
    """IQM with its interval, and the mean over tasks, per group; a group that cannot be averaged
    says why. None where no run is finished."""
    if not any(len(group.scores) for data in datasets for group in data.groups):
        return None
    used, found = _averaged(datasets), intervals(datasets)
    names = ["IQM", "95 % interval", "mean of means", "datasets", "runs"]
    rows = [Row(label, _aggregate_cells(label, used, found[label])) for label in found]
    left_out = [label for label in labels(datasets) if label not in found]
    if left_out:
        rows = [Row(row.name, (*row.cells, Cell(""))) for row in rows]
        names.append("left out, for want of")
        for label in left_out:
            missing = _missing(label, used)
            why = f"finished runs on {', '.join(missing)}" if missing else "scores"
            rows.append(Row(label, (*[Cell()] * 5, Cell(why))))
    note = (
        "IQM: the mean of the middle half of all runs. The interval is a stratified bootstrap over "
        "seeds, 2000 resamples, and tells the spread over seeds alone: with one seed a dataset it "
        "is a point. Published numbers are not part of it."
    )
    unscored = [data.title for data in datasets if data not in used]
    if unscored:
        note += f" Returns cannot be averaged over datasets: {', '.join(unscored)} left out."
    title = "Over all seeds" if len(datasets) == 1 else "Over all datasets and seeds"
    headings = tuple(map(Heading, names))
    return Grid("aggregate", title, note, "group", headings, tuple(rows))


def _aggregate_cells(label: str, used: Sequence[Data], interval: Interval) -> tuple[Cell, ...]:
    middle, low, high = interval
    scores = [data.scores(label) for data in used]
    runs = sum(map(len, scores))
    mean = float(np.mean([own.mean() for own in scores]))
    return (
        Cell.of(Sample(middle, None, runs)),
        Cell(f"{low:,.1f} to {high:,.1f}"),
        Cell.of(Sample(mean, None, len(scores))),
        Cell(str(len(scores))),
        Cell(str(runs)),
    )


# --- Sensitivity ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """A setting that the paper varies around its main result."""

    name: str
    title: str
    must: str
    """The setting that differs from the main result's."""
    may: frozenset[str]
    """Settings that may differ with it."""
    label: Callable[[Settings], str]
    between: Any = None
    """Where given, the value that one of the two sides must have."""


def _plain(symbol: str, name: str) -> Callable[[Settings], str]:
    return lambda settings: f"{symbol} = {show(settings.get(name))}"


def _horizon(settings: Settings) -> str:
    horizon = settings.get("rollout.horizon")
    return "adaptive" if horizon is None else f"H = {horizon}"


def _memory(settings: Settings) -> str:
    return "Markov" if settings.get("agent.memory") == "none" else "history"


def _critic(settings: Settings) -> str:
    name = "SAC" if settings.get("agent.heads") == 2 else "REDQ"
    return f"{name}, ζ = {show(settings.get('rollout.zeta'))}"


def _layernorm(settings: Settings) -> str:
    return "with LayerNorm" if settings.get("world.layer_norm") else "without"


PARAMETERS = (
    Parameter(
        "ensemble_size",
        "Ensemble size N",
        "world.members",
        frozenset({"world.pool"}),
        _plain("N", "world.members"),
    ),
    Parameter(
        "penalty",
        "Uncertainty penalty λ",
        "rollout.penalty",
        frozenset(),
        _plain("λ", "rollout.penalty"),
    ),
    Parameter(
        "zeta",
        "Truncation threshold ζ",
        "rollout.zeta",
        frozenset(),
        _plain("ζ", "rollout.zeta"),
    ),
    Parameter(
        "horizon",
        "Fixed horizon H instead of an adaptive one",
        "rollout.horizon",
        frozenset({"rollout.zeta"}),
        _horizon,
    ),
    Parameter(
        "memory",
        "Agent input: history or Markov",
        "agent.memory",
        frozenset({"agent.kappa"}),
        _memory,
    ),
    Parameter(
        "critic",
        "SAC instead of REDQ",
        "agent.heads",
        frozenset({"agent.target_heads", "rollout.zeta"}),
        _critic,
        between=2,  # SAC's: other numbers of heads are all REDQ
    ),
    Parameter(
        "layernorm",
        "LayerNorm in the world model",
        "world.layer_norm",
        frozenset(),
        _layernorm,
    ),
)

CURVES = (
    ("agent.encoder_lr", "encoder_learning_rate", "Context encoder learning rate η_φ"),
    ("agent.kappa", "real_data_ratio", "Real data ratio κ"),
)
"""Settings whose effect the paper shows as learning curves."""


def varied(data: Data, parameter: Parameter) -> list[Group]:
    """The groups that differ from the main one in this parameter alone."""
    allowed = parameter.may | {parameter.must}
    return [
        group
        for group in data.groups
        if parameter.must in (differences := group.differs_in(data.main))
        and differences <= allowed
        and _on_either_side(parameter, group, data.main)
    ]


def _on_either_side(parameter: Parameter, *sides: Group) -> bool:
    values = [side.settings.get(parameter.must) for side in sides]
    return parameter.between is None or parameter.between in values


def sensitivity_grids(datasets: Sequence[Data]) -> list[Grid]:
    """A table per parameter that the runs vary, shaded as the paper shades its tables."""
    grids = []
    for parameter in PARAMETERS:
        rows = {data.title: _by_label(data, parameter) for data in datasets}
        if all(len(row) < 2 for row in rows.values()):
            continue
        shown = list(dict.fromkeys(label for row in rows.values() for label in row))
        kept = [data for data in datasets if len(rows[data.title]) > 1]
        grids.append(
            Grid(
                f"sensitivity_{parameter.name}",
                parameter.title,
                "The first column is the main setting; all else is equal. Shaded or with arrows: "
                "3 to 10, 10 to 30 and more than 30 points away from it; returns that are not "
                "normalised are not shaded.",
                "dataset",
                tuple(Heading(label) for label in shown),
                tuple(_sensitivity_row(data, parameter, rows[data.title], shown) for data in kept),
            )
        )
    return grids


def _by_label(data: Data, parameter: Parameter) -> dict[str, Sample]:
    """Samples of the main group and the varied ones; of two varied ones under one label, the
    better, as in the paper. None at all where there is no main result to compare with."""
    if data.main.sample is None:
        return {}
    main = parameter.label(data.main.settings)
    found = {main: data.main.sample}
    for group in varied(data, parameter):
        label, sample = parameter.label(group.settings), group.sample
        if sample is None or label == main:
            continue
        if label not in found or sample.mean > found[label].mean:
            found[label] = sample
    return found


def _sensitivity_row(
    data: Data, parameter: Parameter, samples: Mapping[str, Sample], shown: Sequence[str]
) -> Row:
    main = samples[parameter.label(data.main.settings)].mean
    cells = []
    for label in shown:
        sample = samples.get(label)
        if sample is None:
            cells.append(Cell())
        else:
            level = shade(sample.mean - main) if data.first.scored else 0
            cells.append(Cell.of(sample, shade=level))
    return Row(f"{data.title} ({_unit(data)})", tuple(cells))


def curve_panels(datasets: Sequence[Data], setting: str) -> dict[str, dict[str, Group]]:
    """Per dataset, the group of each value of one setting, all else being as in the main group."""
    panels = {}
    for data in datasets:
        groups = [group for group in data.groups if group.differs_in(data.main) <= {setting}]
        if len(groups) > 1:
            ordered = sorted(groups, key=lambda group: group.settings.get(setting) or 0)
            panels[data.title] = {
                f"{symbol(setting)} = {show(group.settings.get(setting))}": group
                for group in ordered
            }
    return panels
