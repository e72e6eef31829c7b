"""Tables of runs: scores with the paper's marks, details, aggregates, and sensitivity."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from neubay.report.runs.groups import Data, Group, labels, setting
from neubay.report.runs.records import RunRecord, Settings, finite_values

BEGIN = "<!-- tables: neubay analyze runs -->"
"""The marker above tables that `neubay analyze runs` writes into a text."""

Interval = tuple[float, float, float]
"""Interquartile mean, and the ends of its 95 % interval."""


# --- Scores --------------------------------------------------------------------------------------


def score_grid(datasets: Sequence[Data]) -> Grid:
    """A row per dataset: where it was evaluated, the data's own result and that of each group. What
    was published stands in columns of its own, a set per benchmark, whose heading names the data
    and the environment it comes from."""
    known = {g.label for data in datasets for g in data.groups if g.sample is not None}
    shown = [label for label in labels(datasets) if label in known] or labels(datasets)
    benchmarks = list(dict.fromkeys(filter(None, (_benchmark(data.first) for data in datasets))))
    before = ("environment", "measure", "data", "clone", "clone of the best")
    after = ("verdict", "verdict followed")
    headings = [Heading(name) for name in (*before, *shown, *after, "seeds", "source", "hash")]
    for one in benchmarks:
        origin = f"published (paper, {one.data} data, {one.environment} env)"
        headings += [Heading(name, origin) for name in ("NEUBAY", "best method", "dataset")]
    rows = []
    for data in datasets:
        run = data.first
        cells = [
            Cell(run.environment or "none"),
            Cell("score" if run.scored else "return"),
            Cell.of_value(run.data_result),
            _mean(dict.fromkeys(each.clone_result for each in data.main.runs)),  # seeds share one
            _mean(dict.fromkeys(each.best_clone_result for each in data.main.runs)),
            *_our_cells(data, shown),
            Cell(_verdicts(data.main)),
            _mean([each.followed for each in data.main.runs]),
            Cell(_counts([len(data.scores(label)) for label in shown])),
            Cell(_source(run)),
            Cell((run.hash or "-")[:8]),
        ]
        for one in benchmarks:
            cells += _published_cells(run) if _benchmark(run) == one else [Cell()] * 3
        rows.append(Row(data.title, tuple(cells)))
    note = _score_note(datasets, bool(benchmarks))
    return Grid("scores", "Scores", note, "dataset", tuple(headings), tuple(rows)).without_empty()


def _verdicts(group: Group) -> str:
    return " / ".join(run.decision.verdict for run in group.runs if run.decision) or "-"


def _mean(values: Iterable[float | None]) -> Cell:
    """Over the seeds of which it is known."""
    known = [float(value) for value in values if value is not None]
    return Cell.of(Sample.of(np.array(known))) if known else Cell()


def _counts(seeds: Sequence[int]) -> str:
    """Of each group, or one number where all have as many."""
    words = [str(count or "-") for count in seeds]
    return words[0] if len(set(words)) == 1 else " / ".join(words)


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


def _source(run: RunRecord) -> str:
    """Where the data come from, without folders."""
    return str(run.about["dataset"].get("source") or "-").rsplit("/", 1)[-1]


def _published_cells(run: RunRecord) -> list[Cell]:
    name = _published_name(run)
    if name is None:
        return [Cell()] * 3
    table = published.table(published.datasets()[name].benchmark)
    method = published.result(name)
    cells = {column.name: table[name, column.name] for column in table.columns}
    best = [f"{name} {cell.mean:.1f}" for name, cell in cells.items() if cell and cell.best]
    return [
        Cell() if method is None else Cell.of(Sample(method.mean, method.std, 6)),
        Cell(best[0]) if best else Cell(),
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
        f"Mean ± standard deviation over {seeds} of the last evaluation. Bold: the best group. "
        "Marked: not significantly worse than it by Welch's one-sided t-test (p < 0.05); groups "
        "of a single seed are not tested."
    )
    if counts == [0]:
        runs = [run for data in datasets for group in data.groups for run in group.runs]
        finished = any(run.status == "finished" for run in runs)
        simulated = any(run.environment is not None for run in runs)
        why = "was evaluated" if simulated else "has an environment"
        why = f"no run {why if finished else 'is finished'}"
        note = f"Nothing was measured: {why}."
    judged = [run for data in datasets for run in data.main.runs if run.decision]
    if judged:
        best = any(run.best_clone_result is not None for run in judged)
        note += (
            " Clone: of the data, which the run was compared with"
            f"{', and of its best episodes' if best else ''}. Verdict: what selection advised "
            "without a simulator, for each seed of the first group; followed, it gives the chosen "
            "policy's result (deploy), the clone's (copy) or the data's own (keep)."
        )
    if published_too:
        note += (
            " Published numbers come from other data and another version of the environment; they "
            "enter no average, no mark and no test."
        )
    mixed = [f"{g.label} on {data.title}" for data in datasets for g in data.groups if g.mixed]
    if mixed:
        note += f" Runs that differ in more than the seed: {', '.join(mixed)}."
    unfinished = sum(run.status != "finished" for data in datasets for run in data.runs)
    return note if not unfinished else f"{note} {unfinished} unfinished runs are left out."


# --- Groups and runs in full ---------------------------------------------------------------------


def detail_grids(data: Data) -> tuple[Grid, Grid]:
    """The groups of a dataset, and its runs one by one, with what explains their results."""
    return _group_grid(data), _run_grid(data)


def _group_grid(data: Data) -> Grid:
    columns: dict[str, Callable[[Settings], float | None]] = {
        "return": lambda summary: summary["return_mean"],
        "score": lambda summary: summary["score"],
        "Q on data": lambda summary: summary["q_data"],
        "discounted return": lambda summary: summary["discounted_mean"],
        "median horizon": lambda summary: (summary["horizon"] or {}).get("p50"),
        "minutes": lambda summary: summary["seconds"]["total"] / 60,
    }
    rows = []
    for group in data.groups:
        summaries = [run.summary for run in group.runs if run.summary is not None]
        means = (_mean(map(value, summaries)) for value in columns.values())
        rows.append(Row(group.label, (Cell(str(len(summaries))), *means)))
    summary = data.first.summary or {}
    own, score = summary.get("data_return_mean"), summary.get("data_score")
    note = "Mean ± standard deviation over seeds."
    if own is not None:
        score_too = "" if score is None else f" (score {score:,.1f})"
        note += f" The data's own mean return: {own:,.1f}{score_too}."
    title = f"{data.title}, in {data.first.environment or 'no environment'}"
    return Grid("groups", title, note, "setting", _headings("seeds", *columns), tuple(rows))


def _run_grid(data: Data) -> Grid:
    names = (
        *("seed", "steps", "return", "score", "best score on the way", "Q on data"),
        *("discounted return", "horizon p50 / max", "by the posterior", "minutes (world)"),
    )
    rows = [
        Row(group.label, _run_cells(run, run.summary))
        for group in data.groups
        for run in group.runs
        if run.summary is not None
    ]
    note = (
        "Returns: mean ± standard deviation over episodes. Changed: from the preset of the dataset."
    )
    headings = _headings(*names, "changed")
    return Grid("runs", f"{data.title}: each run", note, "setting", headings, tuple(rows))


def _run_cells(run: RunRecord, summary: Settings) -> tuple[Cell, ...]:
    scores = finite_values(run.evaluations, "score")
    returned = Cell()
    if summary["return_mean"] is not None:
        mean, std = float(summary["return_mean"]), float(summary["return_std"])
        returned = Cell.of(Sample(mean, std, 1))
    horizon, seconds = summary["horizon"] or {}, summary["seconds"]
    return (
        Cell(str(run.seed)),
        Cell(f"{run.steps:,}"),
        returned,
        Cell.of_value(summary["score"]),
        Cell.of_value(float(scores.max()) if len(scores) else None),
        Cell.of_value(summary["q_data"]),
        Cell.of_value(summary["discounted_mean"]),
        Cell(f"{horizon['p50']:.0f} / {horizon['max']:.0f}") if horizon else Cell(),
        Cell.of_value((summary["posterior"] or {}).get("return_mean")),
        Cell(f"{seconds['total'] / 60:.1f} ({seconds['world'] / 60:.1f})"),
        Cell(", ".join(run.changed) or "-"),
    )


def _headings(*names: str) -> tuple[Heading, ...]:
    return tuple(map(Heading, names))


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
    return Grid("aggregate", title, note, "group", _headings(*names), tuple(rows))


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
    may: tuple[str, ...] = ()
    """Settings that may differ with it."""
    label: Callable[[Any, Settings], str] | None = None
    """Of a column, from the setting's value and all settings; its name with its value unless
    given."""
    between: Any = None
    """Where given, the value that one of the two sides must have."""

    def column(self, group: Group) -> str:
        settings = group.settings
        if self.label is None:
            return setting(self.must, settings)
        return self.label(settings.get(self.must), settings)

    def tells_apart(self, one: Group, other: Group) -> bool:
        """Whether two groups differ in this parameter alone."""
        differences = one.differs_in(other)
        values = [group.settings.get(self.must) for group in (one, other)]
        return (
            self.must in differences
            and differences <= {self.must, *self.may}
            and (self.between is None or self.between in values)
        )


_SAC_HEADS = 2  # other numbers of heads are all REDQ

PARAMETERS = (
    Parameter("ensemble_size", "Ensemble size N", "world.members", ("world.pool",)),
    Parameter("penalty", "Uncertainty penalty λ", "rollout.penalty"),
    Parameter("zeta", "Truncation threshold ζ", "rollout.zeta"),
    Parameter(
        "horizon",
        "Fixed horizon H",
        "rollout.horizon",
        may=("rollout.zeta",),
        label=lambda value, _: "adaptive" if value is None else f"H = {value}",
    ),
    Parameter(
        "memory",
        "History or Markov agent",
        "agent.memory",
        may=("agent.kappa", "agent.window", "agent.burn_in"),
        label=lambda value, _: "Markov" if value == "none" else "history",
    ),
    Parameter(
        "critic",
        "SAC instead of REDQ",
        "agent.heads",
        may=("agent.target_heads", "rollout.zeta"),
        label=lambda value, settings: (
            f"{'SAC' if value == _SAC_HEADS else 'REDQ'}, {setting('rollout.zeta', settings)}"
        ),
        between=_SAC_HEADS,
    ),
    Parameter(
        "layernorm",
        "LayerNorm in the world model",
        "world.layer_norm",
        label=lambda value, _: "with LayerNorm" if value else "without",
    ),
)

CURVES = (
    ("agent.encoder_lr", "encoder_learning_rate", "Context encoder learning rate η_φ"),
    ("agent.kappa", "real_data_ratio", "Real data ratio κ"),
)
"""Settings whose effect the paper shows as learning curves."""


def varied(data: Data, parameter: Parameter) -> list[Group]:
    """The groups that differ from the main one in this parameter alone."""
    return [group for group in data.groups if parameter.tells_apart(group, data.main)]


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
                _headings(*shown),
                tuple(_sensitivity_row(data, parameter, rows[data.title], shown) for data in kept),
            )
        )
    return grids


def _by_label(data: Data, parameter: Parameter) -> dict[str, Sample]:
    """Samples of the main group and the varied ones; of two varied ones under one label, the
    better, as in the paper. None at all where there is no main result to compare with."""
    if data.main.sample is None:
        return {}
    main = parameter.column(data.main)
    found = {main: data.main.sample}
    for group in varied(data, parameter):
        label, sample = parameter.column(group), group.sample
        if sample is None or label == main:
            continue
        if label not in found or sample.mean > found[label].mean:
            found[label] = sample
    return found


def _sensitivity_row(
    data: Data, parameter: Parameter, samples: Mapping[str, Sample], shown: Sequence[str]
) -> Row:
    main, scored = samples[parameter.column(data.main)].mean, data.first.scored
    cells = (
        Cell.of(sample, shade=shade(sample.mean - main) if scored else 0)
        if (sample := samples.get(label))
        else Cell()
        for label in shown
    )
    return Row(f"{data.title} ({'score' if scored else 'return'})", tuple(cells))


def by_value(data: Data) -> list[Group]:
    """The groups of a dataset, named by the one setting in which they differ, if it is only one."""
    names = frozenset[str]().union(*(group.differs_in(data.main) for group in data.groups))
    if len(names) != 1:
        return list(data.groups)
    (panel,) = curve_panels([data], *names).values()
    return [Group(label, group.runs) for label, group in panel.items()]


def curve_panels(datasets: Sequence[Data], name: str) -> dict[str, dict[str, Group]]:
    """Per dataset, the group of each value of one setting, all else being as in the main group."""
    panels = {}
    for data in datasets:
        groups = [group for group in data.groups if group.differs_in(data.main) <= {name}]
        if len(groups) > 1:
            ordered = sorted(groups, key=lambda group: group.settings.get(name) or 0)
            panels[data.title] = {setting(name, group.settings): group for group in ordered}
    return panels
