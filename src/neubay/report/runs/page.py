"""Pages: of one run, of many, of the paper's tables. A page and its figures and tables as files."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from neubay.errors import NeubayError, refusal_reported
from neubay.report import paper
from neubay.report.parts import figures as files
from neubay.report.parts import tables
from neubay.report.parts.document import Picture, render
from neubay.report.parts.numbers import duration, number
from neubay.report.parts.tables import Grid
from neubay.report.runs import figures, findings, sweeps, trials
from neubay.report.runs.groups import Data, Group, arrange, labels, show
from neubay.report.runs.records import RunRecord, newest
from neubay.report.runs.reel import Reel
from neubay.report.runs.verdicts import candidate_grid
from neubay.runs.files import PARTIAL
from neubay.runs.sweepdir import Record

Styles = Mapping[str, figures.LineStyle]

SUFFIXES = ("png", "pdf")
"""Formats of the figures that are written beside a page."""

FOLDERS = ("figures", "tables")
"""Where the files beside a page are."""

LIST = "files.txt"
"""Names the files beside a page, so that the next report in its place can remove them."""


@dataclass(frozen=True)
class Report:
    """A page, and what it shows as files of their own."""

    html: str
    pictures: tuple[Picture, ...] = ()
    grids: tuple[Grid, ...] = ()
    reels: Mapping[str, Reel] = field(default_factory=dict)

    def save(self, folder: Path) -> list[Path]:
        """Write index.html, figures/ and tables/ in the place of an earlier report's, and of
        nothing else; the page needs none of the others."""
        with refusal_reported(
            NeubayError, f"{folder}: cannot be written", "; choose another --out"
        ):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".report.", suffix=PARTIAL, dir=folder) as draft:
                paths = self._write(Path(draft))
                names = [path.relative_to(draft).as_posix() for path in paths]
                _refuse_foreign(folder, [*names, LIST])
                for name in (*_listed(folder), LIST):
                    if (folder / name).is_file():
                        (folder / name).unlink()
                for name in names:
                    (folder / name).parent.mkdir(exist_ok=True)
                    Path(draft, name).replace(folder / name)
                (folder / LIST).write_text("\n".join([*names[1:], ""]), encoding="utf-8")
        return [folder / name for name in names]

    def _write(self, folder: Path) -> list[Path]:
        """All files, the page first."""
        page = folder / "index.html"
        page.write_text(self.html, encoding="utf-8")
        paths = [page, *(tables.save(self.grids, folder / "tables") if self.grids else [])]
        (folder / "figures").mkdir()
        for name, reel in self.reels.items():
            for suffix, content in (("png", reel.strip), ("gif", reel.film)):
                if content is not None:
                    paths.append(folder / "figures" / f"{name}.{suffix}")
                    paths[-1].write_bytes(content)
        for picture in self.pictures:
            for suffix in SUFFIXES:
                paths.append(folder / "figures" / f"{picture.name}.{suffix}")
                files.draw(picture.figure, paths[-1])
        return paths


def _refuse_foreign(folder: Path, names: Sequence[str]) -> None:
    """Refuse to replace what no report wrote, or to write through links to elsewhere."""
    report = ("index.html", LIST)
    ours = {*report, *_listed(folder)} if all((folder / one).exists() for one in report) else set()
    for place in (*FOLDERS, *names):
        path = folder / place
        if path.is_symlink():
            raise NeubayError(
                f"{path}: is a link; nothing is written through it: choose another --out"
            )
        if place in names and place not in ours and path.exists():
            raise NeubayError(
                f"{path}: exists, and no report wrote it; choose another --out, or move it away"
            )


def _listed(folder: Path) -> list[str]:
    """The files beside the page of an earlier report, those outside of its folders left out."""
    try:
        lines = (folder / LIST).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    split = [(line, *line.partition("/")[::2]) for line in lines]
    return [line for line, place, name in split if place in FOLDERS and name == Path(name).name]


# --- One run -------------------------------------------------------------------------------------


def one_run(
    run: RunRecord,
    *,
    reel: Reel | None = None,
    maze: Picture | None = None,
    refresh: int | None = None,
    left_out: Sequence[str] = (),
) -> Report:
    """The page of a single run. `left_out` says what is wrong with others that were named."""
    drawn = run_pictures(run) + ([maze] if maze is not None else [])
    page = render(
        "run.html",
        f"{run.dataset}: {run.name}",
        refresh=refresh,
        run=_view(run),
        decision=run.decision,
        candidates=candidate_grid(run.decision) if run.decision is not None else None,
        notices=[*findings.left_out(left_out), *findings.findings(run)],
        pictures=drawn,
        reel=reel,
    )
    grids = [sweeps.score_grid(arrange([run]))] if run.status == "finished" else []
    grids += [] if run.decision is None else [candidate_grid(run.decision)]
    return Report(page, tuple(drawn), tuple(grids), {"film": reel} if reel is not None else {})


_CAPTIONS = {
    "score": "{unit} over time, in {environment}.",
    "values": "The critic's value of the data against the discounted return of evaluation "
    "episodes. A value far above the return is overestimation.",
    "horizons": "Steps that imagined rollouts lasted, on an axis of powers of two.",
    "uncertainty": "How unsure the posterior is of the transitions it was trained on. A rollout "
    "ends where it is more unsure than U(ζ), the ζ-quantile of these.",
    "survival": "What ends an episode was learned. Shares of held-out episodes that still run: as "
    "the data has it, as the heads judge the same steps, and as they judge steps that the members "
    "imagine from the same states and actions.",
    "losses": "Lines are means, bands reach from the lowest to the highest value.",
}


def run_pictures(run: RunRecord) -> list[Picture]:
    """The figures for which the run has numbers."""
    drawn = {
        "score": figures.score_figure(run) if run.result is not None else None,
        "values": figures.value_figure(run) if _has(run, "q_data") else None,
        "horizons": figures.horizon_figure(run) if _has(run, "horizon_p50") else None,
        "uncertainty": figures.uncertainty_figure(run),
        "survival": figures.survival_figure(run),
        "losses": figures.loss_figure(run) if figures.losses(run) else None,
    }
    facts = {"unit": run.unit.capitalize(), "environment": run.environment}
    return [
        Picture(name, figure, _CAPTIONS[name].format(**facts))
        for name, figure in drawn.items()
        if figure is not None
    ]


def _has(run: RunRecord, name: str) -> bool:
    return newest(run.train, name) is not None


def _view(run: RunRecord) -> dict[str, Any]:
    """What the templates say of a run."""
    return {
        "name": run.name,
        "dataset": run.dataset,
        "status": _status(run),
        "begun": run.step or run.status == "finished",
        "subtitle": _subtitle(run),
        "facts": list(_facts(run)),
        "command": str(run.about.get("command") or _python_call(run)),
        "details": _details(run),
    }


def _status(run: RunRecord) -> str:
    if run.status in ("running", "stopped"):
        return f"{run.status}, {run.step / max(run.steps, 1):.0%}"
    return run.status


def _subtitle(run: RunRecord) -> str:
    facts = run.about["dataset"]
    words = [
        run.variant,
        f"seed {run.seed}",
        f"preset {run.about.get('preset', 'unknown')}",
        f"{int(facts['episodes']):,} episodes, {int(facts['transitions']):,} transitions"
        if "episodes" in facts and "transitions" in facts
        else "",
        f"evaluated in {run.environment}" if run.environment else "no environment",
    ]
    return " · ".join(word for word in words if word)


def _facts(run: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Numbers first: what was reached, what the data has, and why."""
    yield _headline(run)
    data = run.data_result
    yield "The data's own", number(data), "not known yet" if data is None else run.unit
    value, paid = findings.q_on_data(run), run.last("discounted_mean")
    if value is not None:
        remark = "" if paid is None else f"discounted return {number(paid)}"
        yield "Q on the data", number(value), remark
    median, *others = (
        newest(run.train, f"horizon_{name}") for name in ("p50", "p25", "p75", "max")
    )
    if median is not None:
        low, high, longest = (value or 0 for value in others)
        remark = f"quartiles {low:.0f} to {high:.0f}, longest {longest:.0f}"
        yield "Rollout horizon", f"{median:.0f}", remark
    if run.status != "finished":
        yield "Gradient steps", f"{run.step:,}", f"of {run.steps:,}"
    seconds = (run.summary or {}).get("seconds", {})
    if "total" in seconds:
        parts = [
            f"{name} {duration(seconds[name])}" for name in ("world", "updates") if name in seconds
        ]
        yield "Time", duration(seconds["total"]), ", ".join(parts)


def _headline(run: RunRecord) -> tuple[str, str, str]:
    name = "Score" if run.scored else "Return"
    if run.result is not None:
        spread = "" if run.result_std is None else f"± {number(run.result_std)} over "
        episodes = run.last("episodes") or (run.summary or {}).get("episodes") or 0
        step = int(run.evaluations["step"][-1])
        remark = f"{spread}{episodes:.0f} episodes in {run.environment}, at step {step:,}"
        return name, number(run.result), remark
    if run.decision is not None:
        best = run.decision.best
        remark = f"{number(best['lower'])} to {number(best['upper'])}, of {run.decision.chosen}"
        return "Estimated return", number(best["estimate"]), f"{remark}: nothing was measured"
    posterior = (run.summary or {}).get("posterior")
    if posterior:
        remark = f"± {number(posterior['return_std'])}, by the posterior: nothing was measured"
        return "Expected return", number(posterior["return_mean"]), remark
    return name, "-", "not evaluated yet"


def _details(run: RunRecord) -> list[tuple[str, str, Mapping[str, str]]]:
    """Headline, remark, and names with their values."""
    facts, provenance = run.about["dataset"], run.about.get("provenance", {})
    summary = run.summary or {}
    seconds, posterior = summary.get("seconds") or {}, summary.get("posterior") or {}
    settings = {name: show(value) for name, value in run.settings.items()}
    data = {key: facts[key] for key in ("name", "source", "hash", "published") if facts.get(key)}
    versions = f"neubay {provenance.get('neubay', 'unknown')}"
    details: list[tuple[str, str, Mapping[str, str]]] = [
        ("Settings", "as resolved", {"seed": str(run.seed), **settings}),
        ("Data", run.hash or "", data),
        ("Versions and machine", versions, provenance),
        ("Time", "", {stage: duration(value) for stage, value in seconds.items()}),
        (
            "What the posterior expects",
            "",
            {name.replace("_", " "): number(value) for name, value in posterior.items()},
        ),
    ]
    return [each for each in details if each[2]]


def _python_call(run: RunRecord) -> str:
    """For a run that was started from Python."""
    call = (
        f"neubay.train({str(run.about['dataset'].get('source') or run.dataset)!r}, seed={run.seed}"
    )
    return f"{call}, variant={run.variant!r}, preset={run.about.get('preset', 'cpu')!r}, ...)"


# --- Many runs -----------------------------------------------------------------------------------


def many_runs(runs: Sequence[RunRecord], *, left_out: Sequence[str] = ()) -> Report:
    """The page of several runs: tables, aggregates, sweeps, and every run folded away. `left_out`
    says what is wrong with others that were named."""
    datasets = arrange(runs)
    grids = [sweeps.score_grid(datasets)]
    if (aggregate := sweeps.aggregate_grid(datasets)) is not None:
        grids.append(aggregate)
    sensitivity = sweeps.sensitivity_grids(datasets)
    styles = figures.line_styles(labels(datasets))
    intervals = _interval_pictures(datasets, styles)
    curves = [*_comparisons(datasets, styles), *_sweep_pictures(datasets, styles)]
    page = render(
        "runs.html",
        datasets[0].title
        if len(datasets) == 1
        else f"{len(runs)} runs on {len(datasets)} datasets",
        subtitle=_many_subtitle(runs, datasets),
        notices=findings.left_out(left_out),
        scores=grids,
        intervals=intervals,
        sensitivity=sensitivity,
        curves=curves,
        runs=[
            _folded(run, group, styles)
            for data in datasets
            for group in data.groups
            for run in group.runs
        ],
    )
    return Report(page, (*intervals, *curves), (*grids, *sensitivity))


def _many_subtitle(runs: Sequence[RunRecord], datasets: Sequence[Data]) -> str:
    seeds = len({run.seed for run in runs})
    unfinished = sum(run.status != "finished" for run in runs)
    words = [
        f"{len(runs)} runs",
        f"{len(labels(datasets))} groups",
        f"{seeds} seeds" if seeds > 1 else "1 seed",
        f"{unfinished} not finished" if unfinished else "",
    ]
    return " · ".join(word for word in words if word)


def _interval_pictures(datasets: Sequence[Data], styles: Styles) -> list[Picture]:
    found = sweeps.intervals(datasets)
    if not found or all(low == high for _, low, high in found.values()):
        return []
    unit = datasets[0].first.unit if len(datasets) == 1 else "normalised score"
    figure = figures.interval_figure(found, styles, unit)
    caption = "Interquartile means over seeds and datasets, with stratified bootstrap intervals."
    return [Picture("intervals", figure, caption, wide=True)]


def _comparisons(datasets: Sequence[Data], styles: Styles) -> Iterator[Picture]:
    """Score, Q and horizons of the groups of each dataset."""
    for place, data in enumerate(datasets, start=1):
        name = "overview" if len(datasets) == 1 else f"overview_{place}"
        caption = f"{data.title}: lines are means over seeds, bands their range."
        if len(data.groups) > figures.MOST_GROUPS:
            caption += f" The first {figures.MOST_GROUPS} of {len(data.groups)} groups."
        figure = figures.overview_figure(data.groups, styles)
        yield Picture(name, figure, caption, wide=True)


def _sweep_pictures(datasets: Sequence[Data], styles: Styles) -> Iterator[Picture]:
    for setting, name, title in sweeps.CURVES:
        panels = sweeps.curve_panels(datasets, setting)
        if panels:
            figure = figures.curves_figure(panels, styles)
            caption = f"{title}: learning curves, means over seeds and their range."
            yield Picture(name, figure, caption, wide=len(panels) > 1)


def _folded(run: RunRecord, group: Group, styles: Styles) -> dict[str, Any]:
    """A run behind its headline, with one figure for what its own page shows in five."""
    pictures = []
    if len(run.train["step"]):
        figure = figures.overview_figure([Group(group.label, (run,))], styles)
        caption = f"Score, values and horizons of {run.name}."
        if run.directory.is_dir():
            caption = f"All figures of this run: neubay report {shlex.quote(str(run.directory))}"
        pictures = [Picture("overview", figure, caption, wide=True)]
    headline = (
        f"{run.dataset}, {group.label}, seed {run.seed}: {number(run.result)}, {_status(run)}"
    )
    extra = {"headline": headline, "notices": findings.findings(run), "pictures": pictures}
    return _view(run) | extra


# --- A sweep -------------------------------------------------------------------------------------

MOST_RUNS = 10
"""Runs of a sweep that are shown folded away: those of its best trials."""


def sweep(record: Record, runs: Sequence[RunRecord], *, left_out: Sequence[str] = ()) -> Report:
    """The page of a sweep: what each setting did to the value, all trials, the best runs. `runs`
    are those that can be read."""
    grid = trials.trial_grid(record)
    pictures = []
    if (figure := trials.value_figure(record)) is not None:
        caption = "The value over each setting that was searched; the line is the best."
        pictures.append(Picture("settings", figure, caption, wide=True))
    by_name = {run.name: run for run in runs}
    ordered = [name for trial in trials.best_first(record.trials) for name in trial.runs]
    best = [by_name[name] for name in dict.fromkeys(ordered) if name in by_name][:MOST_RUNS]
    datasets = arrange(best) if best else []
    styles = figures.line_styles(labels(datasets))
    groups = {run.name: group for data in datasets for group in data.groups for run in group.runs}
    name = record.asked.get("dataset", {}).get("name", "data")
    page = render(
        "sweep.html",
        f"{name}: a sweep",
        subtitle=_sweep_subtitle(record),
        notices=[*trials.notices(record), *findings.left_out(left_out)],
        grid=grid,
        pictures=pictures,
        runs=[_folded(run, groups[run.name], styles) for run in best],
    )
    return Report(page, tuple(pictures), (grid,))


def _sweep_subtitle(record: Record) -> str:
    ended = sum(trial.ended for trial in record.trials)
    asked = record.asked
    seeds = len(asked.get("seeds", []))
    words = [
        f"{ended} of {asked.get('trials', len(record.trials))} trials",
        f"{seeds} seed{'' if seeds == 1 else 's'} each",
        f"proposed by {asked.get('sampler', 'hand')}",
        f"metric {record.metric}",
        "pruned by successive halving" if asked.get("prune") else "",
    ]
    return " · ".join(word for word in words if word)


# --- The paper -----------------------------------------------------------------------------------


def paper_tables(name: str) -> Report:
    """The page of the paper's own tables behind a name."""
    grids = tuple(paper.grids(name))
    subtitle = (
        "Published numbers, from the data files of neubay. None of them is a result of this "
        "program."
    )
    page = render("tables.html", "The paper's tables", subtitle=subtitle, grids=grids)
    return Report(page, grids=grids)
