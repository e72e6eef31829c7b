"""Pages: of one run, of many, of the paper's tables. A page and its figures and tables as files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neubay.errors import NeubayError
from neubay.report import paper
from neubay.report.parts import document as html
from neubay.report.parts import figures, tables
from neubay.report.parts.document import Picture
from neubay.report.parts.tables import Grid
from neubay.report.runs import run_figures, sweeps
from neubay.report.runs.findings import Finding, findings, promised
from neubay.report.runs.groups import Data, arrange, labels, show
from neubay.report.runs.records import RunRecord, newest
from neubay.report.runs.reel import Reel

Looks = Mapping[str, run_figures.Look]

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
        """Write index.html, figures/ and tables/ in the place of an earlier report's; the page
        needs none of the others."""
        page = folder / "index.html"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_listed(folder)
            page.write_text(self.html, encoding="utf-8")
            paths = [page, *(tables.save(self.grids, folder / "tables") if self.grids else [])]
            for name, reel in self.reels.items():
                for suffix, content in (("png", reel.strip), ("gif", reel.film)):
                    if content is not None:
                        path = folder / "figures" / f"{name}.{suffix}"
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(content)
                        paths.append(path)
        except OSError as error:
            raise NeubayError(
                f"{folder}: cannot be written: {error.strerror or error}; choose another --out"
            ) from None
        for picture in self.pictures:
            for suffix in SUFFIXES:
                path = folder / "figures" / f"{picture.name}.{suffix}"
                figures.save(picture.figure, path)
                paths.append(path)
        names = [path.relative_to(folder).as_posix() for path in paths[1:]]
        (folder / LIST).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        return paths


def _remove_listed(folder: Path) -> None:
    """Remove what an earlier report wrote beside its page, and nothing outside of its folders."""
    listed = folder / LIST
    if not listed.is_file():
        return
    for line in listed.read_text(encoding="utf-8", errors="replace").splitlines():
        place, _, name = line.partition("/")
        if place in FOLDERS and name == Path(name).name and (folder / place / name).is_file():
            (folder / place / name).unlink()


# --- One run -------------------------------------------------------------------------------------


def one_run(
    run: RunRecord,
    *,
    reel: Reel | None = None,
    maze: Picture | None = None,
    refresh: int | None = None,
    left_out: Sequence[str] = (),
) -> Report:
    """The page of a single run. `left_out` tells of others that could not be read."""
    drawn = run_pictures(run) + ([maze] if maze is not None else [])
    lead = (
        f"<h1>{html.escape(run.dataset)}{html.badge(_status(run))}</h1>"
        + html.paragraph(_subtitle(run), "lead")
        + html.tiles(_facts(run))
    )
    body = [
        _notices([*_unread(left_out), *findings(run)]),
        html.heading(2, "How it went"),
        html.pictures(drawn, "run"),
        *([_film(reel, 2)] if reel is not None else []),
        html.heading(2, "How it was made"),
        _origin(run),
    ]
    if not run.step and run.status != "finished":
        body[1:3] = [html.paragraph("No gradient step has been taken yet.")]
    page = html.document(f"{run.dataset}: {run.name}", lead, body, refresh=refresh)
    grids = (sweeps.score_grid(arrange([run])),) if run.status == "finished" else ()
    return Report(page, tuple(drawn), grids, {"film": reel} if reel is not None else {})


def run_pictures(run: RunRecord) -> list[Picture]:
    """The figures for which the run has numbers."""
    shown = []
    if run.result is not None:
        caption = f"{run.unit.capitalize()} over time, in {run.environment}."
        shown.append(Picture("score", run_figures.score_figure(run), caption))
    if _has(run, "q_data"):
        caption = (
            "The critic's value of the data against the discounted return that evaluation "
            "episodes paid. A promise far above what is paid is overestimation."
        )
        shown.append(Picture("values", run_figures.value_figure(run), caption))
    if _has(run, "horizon_p50"):
        caption = "Steps that imagined rollouts lasted, on an axis of powers of two."
        shown.append(Picture("horizons", run_figures.horizon_figure(run), caption))
    uncertainty = run_figures.uncertainty_figure(run)
    if uncertainty is not None:
        caption = (
            "How unsure the posterior is of the transitions it was trained on. A rollout ends "
            "where it is more unsure than U(ζ), the ζ-quantile of these."
        )
        shown.append(Picture("uncertainty", uncertainty, caption))
    if len(run.train["step"]):
        caption = "Lines are means, bands reach from the lowest to the highest value."
        shown.append(Picture("losses", run_figures.loss_figure(run), caption))
    return shown


def _has(run: RunRecord, name: str) -> bool:
    return bool(np.isfinite(run.train.get(name, np.empty(0))).any())


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
        f"scored in {run.environment}" if run.environment else "no environment",
    ]
    return " · ".join(word for word in words if word)


def _facts(run: RunRecord) -> list[tuple[str, str, str]]:
    """Numbers first: what was reached, what the data has, and why."""
    facts = [_headline(run)]
    data = run.data_result
    facts.append(
        ("The data's own", _number(data), run.unit if data is not None else "not known yet")
    )
    value, paid = promised(run), run.last("discounted_mean")
    if value is not None:
        remark = "" if paid is None else f"episodes pay {_number(paid)}"
        facts.append(("Q on the data", _number(value), remark))
    median = newest(run.train, "horizon_p50")
    if median is not None:
        quartiles = [newest(run.train, f"horizon_{name}") for name in ("p25", "p75", "max")]
        low, high, longest = (0 if value is None else value for value in quartiles)
        facts.append(
            (
                "Rollout horizon",
                f"{median:.0f}",
                f"quartiles {low:.0f} to {high:.0f}, longest {longest:.0f}",
            )
        )
    if run.status != "finished":
        facts.append(("Gradient steps", f"{run.step:,}", f"of {run.steps:,}"))
    seconds = (run.summary or {}).get("seconds", {})
    if "total" in seconds:
        parts = [
            f"{name} {_duration(value)}"
            for name, value in seconds.items()
            if name in ("world", "updates")
        ]
        facts.append(("Time", _duration(seconds["total"]), ", ".join(parts)))
    return facts


def _headline(run: RunRecord) -> tuple[str, str, str]:
    name = "Score" if run.scored else "Return"
    if run.result is not None:
        spread = "" if run.result_std is None else f"± {_number(run.result_std)} over "
        episodes = f"{run.last('episodes') or 0:.0f} episodes in {run.environment}"
        return name, _number(run.result), f"{spread}{episodes}, at step {_last_step(run):,}"
    posterior = (run.summary or {}).get("posterior")
    if posterior:
        remark = f"± {_number(posterior['return_std'])}, by the posterior: nothing was measured"
        return "Expected return", _number(posterior["return_mean"]), remark
    return name, "-", "not evaluated yet"


def _last_step(run: RunRecord) -> int:
    steps = run.evaluations["step"]
    return int(steps[-1]) if len(steps) else 0


def _unread(problems: Sequence[str]) -> list[Finding]:
    return [Finding("warning", "A run is left out", problem) for problem in problems]


def _notices(found: Sequence[Finding]) -> str:
    items = "".join(
        f'<li class="{finding.kind}"><b>{html.escape(finding.title)}</b>'
        f"<span>{html.escape(finding.text)}</span></li>"
        for finding in found
    )
    return f'<ul class="findings">{items}</ul>' if items else ""


def _film(reel: Reel, level: int) -> str:
    title = html.heading(level, "An evaluation episode")
    if reel.strip is None:
        return title + html.paragraph(reel.text)
    strip = html.image(reel.strip, "png", f"Film strip: {reel.text}")
    text = f"{title}<figure>{strip}<figcaption>{html.escape(reel.text)}</figcaption></figure>"
    if reel.film is not None:
        film = html.image(reel.film, "gif", f"Film: {reel.text}")
        text += html.folded("Play it", "", film, kind="play")
    return text


def _origin(run: RunRecord) -> str:
    command = str(run.about.get("command") or _python_call(run))
    facts = run.about["dataset"]
    data = {
        name: facts[name] for name in ("name", "source", "hash", "published") if facts.get(name)
    }
    seconds = (run.summary or {}).get("seconds", {})
    posterior = (run.summary or {}).get("posterior") or {}
    parts = [
        html.paragraph("The command to reproduce it:"),
        html.code(command),
        html.folded("Settings", "as resolved", html.pairs(_settings(run))),
        html.folded("Data", str(facts.get("hash", "")), html.pairs(data)),
        html.folded(
            "Versions and machine",
            f"neubay {run.about.get('provenance', {}).get('neubay', 'unknown')}",
            html.pairs(run.about.get("provenance", {})),
        ),
    ]
    if seconds:
        parts.append(
            html.folded(
                "Time",
                "",
                html.pairs({stage: _duration(value) for stage, value in seconds.items()}),
            )
        )
    if posterior:
        values = {name.replace("_", " "): _number(value) for name, value in posterior.items()}
        parts.append(html.folded("What the posterior expects", "", html.pairs(values)))
    return "".join(parts)


def _settings(run: RunRecord) -> dict[str, str]:
    return {"seed": str(run.seed)} | {name: show(value) for name, value in run.settings.items()}


def _python_call(run: RunRecord) -> str:
    """For a run that was started from Python."""
    call = f"neubay.train({str(run.about['dataset'].get('source', run.dataset))!r}, seed={run.seed}"
    return f"{call}, variant={run.variant!r}, preset={run.about.get('preset', 'cpu')!r}, ...)"


# --- Many runs -----------------------------------------------------------------------------------


def many_runs(runs: Sequence[RunRecord], *, left_out: Sequence[str] = ()) -> Report:
    """The page of several runs: tables, aggregates, sweeps, and every run folded away. `left_out`
    tells of others that could not be read."""
    datasets = arrange(runs)
    grids = [sweeps.score_grid(datasets)]
    if (aggregate := sweeps.aggregate_grid(datasets)) is not None:
        grids.append(aggregate)
    sensitive = sweeps.sensitivity_grids(datasets)
    looks = run_figures.looks(labels(datasets))
    intervals = _interval_pictures(datasets, looks)
    compared, curves = _comparisons(datasets, looks), _sweep_pictures(datasets, looks)
    sections = [
        ("scores", "Scores", "".join(map(html.table, grids)) + html.pictures(intervals, "many")),
        ("sensitivity", "Sensitivity", "".join(map(html.table, sensitive))),
        ("curves", "Learning curves", html.pictures(compared + curves, "many")),
        ("runs", "Runs", _folded_runs(datasets, looks)),
    ]
    shown = [(name, title, content) for name, title, content in sections if content]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in shown)
    lead = (
        f"<h1>{html.escape(_many_title(datasets))}</h1>"
        + html.paragraph(_many_subtitle(runs, datasets), "lead")
        + f"<nav aria-label='Sections'><ul>{links}</ul></nav>"
    )
    body = [html.heading(2, title, name) + content for name, title, content in shown]
    page = html.document(_many_title(datasets), lead, [_notices(_unread(left_out)), *body])
    return Report(page, (*intervals, *compared, *curves), (*grids, *sensitive))


def _many_title(datasets: Sequence[Data]) -> str:
    if len(datasets) == 1:
        return datasets[0].title
    return f"{sum(len(data.runs) for data in datasets)} runs on {len(datasets)} datasets"


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


def _interval_pictures(datasets: Sequence[Data], looks: Looks) -> list[Picture]:
    found = sweeps.intervals(datasets)
    if not found or all(low == high for _, low, high in found.values()):
        return []
    unit = datasets[0].first.unit if len(datasets) == 1 else "normalised score"
    title = "Interquartile mean, 95 % interval"
    figure = run_figures.interval_figure(found, looks, unit, title)
    caption = "Interquartile means over seeds and datasets, with stratified bootstrap intervals."
    return [Picture("intervals", figure, caption, wide=True)]


def _comparisons(datasets: Sequence[Data], looks: Looks) -> list[Picture]:
    """Score, Q and horizons of the groups of each dataset."""
    shown = []
    for number, data in enumerate(datasets):
        groups = {
            group.label: list(group.runs) for group in data.groups[: len(run_figures.PALETTE)]
        }
        name = "overview" if len(datasets) == 1 else f"overview_{number + 1}"
        caption = f"{data.title}: lines are means over seeds, bands their range."
        if len(data.groups) > len(groups):
            caption += f" The first {len(groups)} of {len(data.groups)} groups."
        figure = run_figures.overview_figure(groups, looks)
        shown.append(Picture(name, figure, caption, wide=True))
    return shown


def _sweep_pictures(datasets: Sequence[Data], looks: Looks) -> list[Picture]:
    shown = []
    for setting, name, title in sweeps.CURVES:
        panels = sweeps.curve_panels(datasets, setting)
        if panels:
            figure = run_figures.curves_figure(panels, looks)
            caption = f"{title}: learning curves, means over seeds and their range."
            shown.append(Picture(name, figure, caption, wide=len(panels) > 1))
    return shown


def _folded_runs(datasets: Sequence[Data], looks: Looks) -> str:
    runs = [(group.label, run) for data in datasets for group in data.groups for run in group.runs]
    return "".join(
        _folded_run(number, run, label, looks) for number, (label, run) in enumerate(runs)
    )


def _folded_run(number: int, run: RunRecord, label: str, looks: Looks) -> str:
    content = (
        html.paragraph(_subtitle(run), "lead")
        + html.tiles(_facts(run))
        + _notices(findings(run))
        + html.pictures(_overview(run, label, looks), f"run{number}")
        + _origin(run)
    )
    result = "-" if run.result is None else _number(run.result)
    remark = f"{run.dataset}, {label}, seed {run.seed}: {result}, {_status(run)}"
    return html.folded(run.name, remark, content, name=f"run-{number}")


def _overview(run: RunRecord, label: str, looks: Looks) -> list[Picture]:
    """One figure for what the page of the run alone shows in five."""
    if not len(run.train["step"]):
        return []
    figure = run_figures.overview_figure({label: [run]}, looks)
    caption = f"All figures of this run: neubay report {run.directory}"
    return [Picture("overview", figure, caption, wide=True)]


# --- The paper -----------------------------------------------------------------------------------


def paper_tables(name: str) -> Report:
    """The page of the paper's own tables behind a name."""
    grids = paper.grids(name)
    lead = "<h1>The paper's tables</h1>" + html.paragraph(
        "Published numbers, from the data files of neubay. None of them is a result of this "
        "program.",
        "lead",
    )
    return Report(
        html.document("The paper's tables", lead, [html.table(grid) for grid in grids]),
        grids=tuple(grids),
    )


# --- Words ---------------------------------------------------------------------------------------


def _number(value: float | None) -> str:
    """As many digits as tell the value."""
    if value is None:
        return "-"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def _duration(seconds: Any) -> str:
    seconds = float(seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
