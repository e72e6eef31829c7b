"""`neubay analyze ...`: the paper's pictures of the world, each with its numbers as JSON."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from neubay import published
from neubay.commands.options import NO_FLAGS, Belongs, File, TaskFlags, described, named_data
from neubay.commands.report import preset_of, read_runs
from neubay.commands.text import Console, say, told
from neubay.errors import NeubayError, damage_reported
from neubay.runs import rundir
from neubay.runs.files import atomic_write_json, read_json, write_between
from neubay.runs.provenance import provenance

if TYPE_CHECKING:
    from neubay.data import Dataset
    from neubay.report.runs.records import RunRecord
    from neubay.world import FittedWorld

# Imports of ours happen inside the commands: `--help` answers at once.

World = Annotated[Path, described("DIR")]
Worlds = Annotated[
    tuple[tuple[Path, ...], ...],
    tyro.conf.UseAppendAction,
    described("DIR ..."),
]
Datasets = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    described("DATASET ..."),
]
Sources = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN ...")]
Judged = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN|FILE ...")]
Files = Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILE ...")]


def uncertainty(
    *,
    world: Worlds = (),
    data: Datasets = (),
    belongs: Belongs = NO_FLAGS,
    out: Path = Path("analysis"),
) -> None:
    """How a world's uncertainty is spread over its own data and over other data.

    Writes uncertainty.png, the empirical distribution functions of U in units of its mean over
    the world's own data, and uncertainty.json.

    Args:
        world: Directories of worlds.
        data: Other datasets to measure every world on; none for the worlds' own data alone.
        out: Directory to write to.
    """
    from neubay.report.studies.world_figures import uncertainty_figure
    from neubay.studies.spread import uncertainty_spread

    worlds, datasets = _worlds(world), _datasets(data, belongs)
    spreads = [
        uncertainty_spread(name, fitted, dataset)
        for name, fitted in worlds.items()
        for dataset in (None, *(d for d in datasets if d.hash != fitted.dataset_hash))
    ]
    records = [spread.record() for spread in spreads]
    _write(out, "uncertainty", worlds, records, uncertainty_figure(records))
    levels = (0.5, *published.ZETAS[:-1])  # at 1 it is the largest, which is printed apart
    for spread in spreads:
        quantiles = ", ".join(f"{p:g}: {spread.quantile(p):.2f}" for p in levels)
        say(
            f"{spread.world} on {spread.data}: U / mean at quantiles {quantiles}; "
            f"largest {spread.normalised[-1]:.2f}"
        )


def compounding(
    *,
    world: Worlds = (),
    data: Datasets = (),
    belongs: Belongs = NO_FLAGS,
    rollouts: int = 200,
    steps: int | None = None,
    seed: int = 0,
    out: Path = Path("analysis"),
) -> None:
    """How errors compound when worlds replay recorded actions, with and without LayerNorm.

    Writes compounding.png, a row of panels for every dataset, and compounding.json. Rollouts
    ignore thresholds and terminal states; they end with the recording, or when float32 overflows.

    Args:
        world: Directories of the worlds to compare.
        data: Datasets whose actions are replayed.
        rollouts: Recorded trajectories of each dataset, spread evenly over the members.
        steps: Replay at most so many steps of each; none for all of them.
        seed: Of the draws of trajectories and of imagined states.
        out: Directory to write to.
    """
    from neubay.report.studies.world_figures import compounding_figure
    from neubay.studies.compounding import compounding

    _at_least_one("--rollouts", rollouts)
    _at_least_one("--steps", 1 if steps is None else steps)
    worlds, datasets = _worlds(world), _datasets(data, belongs)
    if not datasets:
        raise NeubayError("name the datasets whose actions are replayed: --data DATASET")
    results = []
    for dataset in datasets:
        result = compounding(worlds, dataset, rollouts=rollouts, steps=steps, seed=seed)
        results.append(result)
        for errors in result.worlds:
            rank = "-" if errors.spearman is None else f"{errors.spearman:.2f}"
            say(
                f"{result.data} in {errors.world}: error after {result.longest} steps "
                f"{errors.state_error.median[-1]:.3g} (p95 {errors.state_error.high[-1]:.3g}), "
                f"{errors.overflowed} of {result.rollouts} overflow, Spearman {rank}"
            )
        if result.comparison is not None:
            step = result.comparison.passes_at
            say(
                f"{result.data}: without LayerNorm p95 "
                + ("never passes" if step is None else f"passes, at step {step},")
                + " 10 times the one with it"
            )
    records = [result.record() for result in results]
    _write(out, "compounding", worlds, records, compounding_figure(records))


def calibration(
    *,
    world: World,
    data: Datasets = (),
    belongs: Belongs = NO_FLAGS,
    transitions: int = 100_000,
    seed: int = 0,
    out: Path = Path("analysis"),
) -> None:
    """How well uncertainty tells dangerous one-step errors, and whether intervals are honest.

    Writes calibration.png and calibration.json. An error is dangerous above the 99.9th percentile
    of the errors on the data that the world was trained on, which must be among the datasets.

    Args:
        world: Directory of the world.
        data: Datasets whose transitions are predicted.
        transitions: At most so many of each, drawn at random.
        seed: Of that draw.
        out: Directory to write to.
    """
    from neubay.report.studies.world_figures import calibration_figure
    from neubay.studies.calibration import calibration

    _at_least_one("--transitions", transitions)
    worlds, datasets = _worlds(((world,),)), _datasets(data, belongs)
    ((name, fitted),) = worlds.items()
    result = calibration(name, fitted, datasets, transitions=transitions, seed=seed)
    record = result.record()
    _write(out, "calibration", worlds, [record], calibration_figure(record))
    for assessed in record["assessments"]:
        false_safe = assessed["separations"][-1]["false_safe"]
        coverage = next(each for each in assessed["coverage"] if each["nominal"] == 0.9)
        say(
            f"{assessed['data']}: {assessed['dangerous']:.3%} dangerous, "
            + ("" if assessed["auroc"] is None else f"AUROC {assessed['auroc']:.3f}, ")
            + ("" if false_safe is None else f"{false_safe:.1%} of them below U(1), ")
            + f"90 % intervals hold {coverage['member']:.1%} (member), {coverage['mixture']:.1%} "
            "(mixture)"
        )


def termination(
    *,
    world: Worlds = (),
    data: Datasets = (),
    belongs: Belongs = NO_FLAGS,
    rollouts: int = 200,
    seed: int = 0,
    out: Path = Path("analysis"),
    text: File = None,
) -> None:
    """How well learned ends agree with the known rule, on held-out and on imagined steps.

    Writes termination.png, the shares of imagined rollouts that still run under both, and
    termination.json. A world that did not learn ends does so first.

    Args:
        world: Directories of worlds.
        data: The datasets that they were trained on, in the same order; their tasks have rules.
        rollouts: Imagined rollouts for each world.
        seed: Of their draws.
        out: Directory to write to.
        text: Put the tables between the markers of this Markdown file instead of printing them.
    """
    from neubay.report.studies import termination as shown
    from neubay.studies.termination import termination

    _at_least_one("--rollouts", rollouts)
    worlds, datasets = _worlds(world), _datasets(data, belongs)
    if len(worlds) != len(datasets):
        raise NeubayError(
            f"{len(worlds)} worlds and {len(datasets)} datasets: name for each world the dataset "
            "that it was trained on (--world DIR ... --data DATASET ...)"
        )
    records = [
        termination(name, fitted, dataset, rollouts=rollouts, seed=seed).record()
        for (name, fitted), dataset in zip(worlds.items(), datasets, strict=True)
    ]
    _write(out, "termination", worlds, records, shown.survival_figure(records))
    _put_tables(text, shown.markdown(records), shown.BEGIN)


def exploitation(
    sources: Sources,
    *,
    data: Datasets = (),
    held_out: Annotated[str | None, described("DATASET")] = None,
    belongs: Belongs = NO_FLAGS,
    episodes: int = 20,
    policies: int = 1,
    seed: int = 0,
    out: File = None,
    text: File = None,
    figures: Annotated[Path | None, described("DIR")] = None,
) -> None:
    """Whether policies exploit the posterior that they were trained in: each is run in its world
    and in the environment from the same starts. What was promised against what is paid; whether
    uncertainty cuts where the world is wrong, how early or late; what the cut costs on the data.

    Args:
        sources: Run directories of 'neubay train', folders of them, or JSON files that --out wrote;
            runs that are damaged, not finished or without a world are left out, with a warning.
        data: The datasets of the runs, where they are not where they were.
        held_out: Episodes that no world has seen, such as a validation file; for runs of one
            dataset. Without it, one-step errors are those of rows that the worlds held out, and
            the episodes are of the training data.
        episodes: In the environment, from each of which the world is run too; and of the data.
        policies: So many of each run, spread evenly over its training; one is the last.
        seed: Of environments and draws.
        out: Write what was found to this JSON file.
        text: Put the tables between the markers of this Markdown file instead of printing them.
        figures: Draw exploitation_promised.png and exploitation_cuts.png into this folder.
    """
    from neubay.report.parts.figures import save
    from neubay.report.studies import exploitation as shown

    _at_least_one("--episodes", episodes)
    _at_least_one("--policies", policies)
    if not sources:
        raise NeubayError("name run directories, or a JSON file that --out wrote")
    measured = _measure_runs(
        [path for path in sources if not path.is_file()], data, held_out, belongs,
        episodes=episodes, policies=policies, seed=seed,
    )  # fmt: skip
    files = [path for path in sources if path.is_file()]
    records = shown.merged([*(shown.records_of(path, read_json(path)) for path in files), measured])
    if not records:
        raise NeubayError("no run could be measured")
    if out is not None:
        atomic_write_json(out, {shown.KEY: records, "provenance": provenance()})
    if figures is not None:
        save(shown.promised_figure(records), figures / "exploitation_promised.png")
        save(shown.cuts_figure(records), figures / "exploitation_cuts.png")
    _put_tables(text, shown.markdown(records), shown.BEGIN)


def _measure_runs(
    directories: list[Path],
    data: tuple[tuple[str, ...], ...],
    held_out: str | None,
    belongs: TaskFlags,
    *,
    episodes: int,
    policies: int,
    seed: int,
) -> list[dict[str, Any]]:
    """What `studies.exploitation` finds of the policies of runs; what cannot be is said."""
    if not directories:
        return []
    from neubay.studies import exploitation as study

    found = [run for run in read_runs(directories)[0] if _is_finished(run)]
    if held_out is not None and len({run.hash for run in found}) > 1:
        raise NeubayError(
            "--held-out belongs to one dataset, and these runs are of several: measure those of "
            "each dataset with an --out of its own, then give these files"
        )
    datasets = {dataset.hash: dataset for dataset in _datasets(data, belongs)}
    unseen = None if held_out is None else _datasets(((held_out,),), belongs)[0]
    records = []
    for run in found:
        try:
            dataset = _data_of(run, datasets, belongs)
            subject = study.open_run(Path(run.directory), dataset, _changed(run))
            on_data, unit = study.on_data(subject, unseen, episodes=episodes, seed=seed)
            for step, file in subject.policies(policies):
                result = study.exploitation(
                    subject, step, file, on_data, unit, episodes=episodes, seed=seed
                )
                records.append(result.record())
                say(
                    f"{result.run} at step {step:,}: promised {result.promised:,.0f}, paid "
                    f"{result.paid:,.0f}, false safe {result.cuts.false_safe:.0%}",
                    file=sys.stderr,
                )
        except NeubayError as problem:
            say(f"warning: left out: {run.directory}: {problem}", file=sys.stderr)
    return records


def _changed(run: "RunRecord") -> tuple[str, ...]:
    """Where a run differs from today's preset, also in settings that came after it."""
    from neubay.config import TrainConfig, validated
    from neubay.report.runs.records import changes
    from neubay.runs.values import flat

    config = validated(TrainConfig, run.config, str(run.directory))
    return changes(flat(config.model_dump()), preset_of(run.about))


def _data_of(run: "RunRecord", datasets: dict[str, "Dataset"], belongs: TaskFlags) -> "Dataset":
    """The data of a run: one that is known by now, or where the run had it from."""
    if run.hash not in datasets:
        source = run.about["dataset"].get("source")
        try:
            (dataset,) = _datasets(((str(source),),), belongs)
        except NeubayError as problem:
            raise NeubayError(f"its data is not at {source}: name it (--data): {problem}") from None
        datasets[dataset.hash] = dataset
    if run.hash not in datasets:
        raise NeubayError(f"{source} is not what it was trained on any more: name it (--data)")
    return datasets[run.hash]


def cloning(
    sources: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="DATASET ...")],
    *,
    belongs: Belongs = NO_FLAGS,
    seeds: tuple[int, ...] = (0,),
    steps: int | None = None,
    episodes: int = 10,
    past_actions: bool = False,
    out: File = None,
    text: File = None,
) -> None:
    """Whether the clone that held-out likelihood chooses is the better one in the environment:
    clones with and without memory, trained as `--variant bc` does with the sizes of `cpu`.

    Args:
        sources: Datasets whose task has an environment.
        seeds: Trainings of each.
        steps: Gradient steps at most; none for what cloning has.
        episodes: Of every score.
        past_actions: Let memory see past actions, which it does not otherwise.
        out: Write the numbers to this JSON file; those of other data and seeds stay in it.
        text: Put the tables between the markers of this Markdown file instead of printing them.
    """
    from neubay.config import resolve, settle
    from neubay.report.studies import cloning_tables
    from neubay.studies.cloning import compare

    _at_least_one("--episodes", episodes)
    if not sources and out is None:
        raise NeubayError("name datasets, or with --out a file of earlier results")
    results: list[Any] = []
    if out is not None and out.exists():
        with damage_reported(out):
            results = read_json(out)["cloning"]
    for dataset in _datasets((sources,), belongs):
        for seed in seeds:
            changes = {"seed": seed, "agent": {} if steps is None else {"steps": steps}}
            config = settle(resolve(None, "cpu", "bc", changes), dataset.facts)
            found = compare(dataset, config, episodes=episodes, past_actions=past_actions)
            results = cloning_tables.merged(results, [found.record()])
            if out is not None:
                atomic_write_json(out, {"cloning": results, "provenance": provenance()})
    _put_tables(text, cloning_tables.markdown(results), cloning_tables.BEGIN)


def table(
    files: Files,
    *,
    out: File = None,
    text: File = None,
) -> None:
    """Tables in Markdown of compounding.json and calibration.json files, or of a condensed one.

    Args:
        files: What the analyses wrote, or what --out wrote.
        out: Write the figures behind the tables, condensed, to this JSON file.
        text: Put the tables between the markers of this Markdown file instead of printing them.
    """
    from neubay.report.studies import world_tables

    if not files:
        raise NeubayError("name the JSON files that 'neubay analyze' wrote")
    condensed = world_tables.condense([read_analysis(path) for path in files])
    if out is not None:
        atomic_write_json(out, condensed)
    _put_tables(text, world_tables.markdown(condensed), world_tables.BEGIN)


def selection(
    sources: Judged,
    *,
    data: Datasets = (),
    belongs: Belongs = NO_FLAGS,
    fitted_q: bool = True,
    out: File = None,
    text: File = None,
) -> None:
    """Tables of how well selection chooses, where an environment has measured the policies: rank
    correlation and regret, beside those of the critic's own value and of fitted Q evaluation, and
    the two errors of the verdict.

    Args:
        sources: Run directories, of any number of datasets: their policies are judged together, per
            dataset. Or files: what 'neubay select' or 'neubay train' wrote (selection.json, one
            per dataset), or what --out wrote.
        data: Datasets of the runs, where they are no longer where they were.
        fitted_q: Value the policies of runs by fitted Q evaluation too, which needs their data.
        out: Write the numbers behind the tables, condensed, to this JSON file.
        text: Put the tables between the markers of this Markdown file instead of printing them.
    """
    from neubay.report.studies import selection_tables

    if not sources:
        raise NeubayError("name run directories, or selection.json files")
    documents = [read_json(path) for path in sources if not path.is_dir()]
    if runs := [path for path in sources if path.is_dir()]:
        from neubay.studies.selecting import by_dataset, selection_study

        tell, datasets = told(Console(stderr=True)), _datasets(data, belongs)
        documents += [
            selection_study(
                group,
                lambda source: named_data(source, belongs, tell),
                data=datasets,
                fitted_q=fitted_q,
                tell=tell,
            )
            for group in by_dataset(runs)
        ]
    condensed = selection_tables.condense(documents)
    tables = selection_tables.markdown(condensed)
    if out is not None:
        atomic_write_json(out, condensed)
    _put_tables(text, tables, selection_tables.BEGIN)


def guard(
    sources: Judged,
    *,
    episodes: int = 20,
    seed: int = 0,
    out: File = None,
    text: File = None,
    figure: File = None,
) -> None:
    """Tables of what a guard says of the policies of runs in their environment: alarms before
    falls, false alarms, and the score with the clone as the fall-back.

    Args:
        sources: Run directories, or JSON files that --out wrote.
        episodes: Episodes of each policy.
        seed: Of the first episode's reset; the others count on.
        out: Write the numbers behind the tables to this JSON file.
        text: Put the tables between the markers of this Markdown file instead of printing them.
        figure: Draw falls announced over false alarms into this file.
    """
    from neubay.report.parts import figures
    from neubay.report.studies import guard_tables

    if not sources:
        raise NeubayError("name run directories, or JSON files that --out wrote")
    _at_least_one("--episodes", episodes)
    documents = [read_json(path) for path in sources if not path.is_dir()]
    if runs := [rundir.opened(path) for path in sources if path.is_dir()]:
        from neubay.studies.guarding import guard_study

        tell = told(Console(stderr=True))
        documents += [guard_study(run, episodes=episodes, seed=seed, tell=tell) for run in runs]
    found = guard_tables.condense(documents)
    if out is not None:
        atomic_write_json(out, found)
    if figure is not None:
        figures.save(guard_tables.guard_figure(found["guards"]), figure)
    _put_tables(text, guard_tables.markdown(found["guards"]), guard_tables.BEGIN)


def read_analysis(path: Path) -> dict[str, Any]:
    """A JSON file of an analysis, of which tables can be made."""
    from neubay.report.studies import world_tables

    document = read_json(path)
    with damage_reported(path):
        world_tables.markdown(world_tables.condense([document]))
    return document


def runs(
    sources: Sources,
    *,
    out: File = None,
    text: File = None,
    figure: File = None,
) -> None:
    """Tables of finished runs of `neubay train`, and figures of their learning curves.

    Args:
        sources: Run directories, folders of them, or JSON files that --out wrote; those that are
            damaged or not finished are left out, with a warning.
        out: Write the runs, condensed, to this JSON file; `neubay report` reads it too.
        text: Put the tables between the markers of this Markdown file instead of printing them.
        figure: Draw the runs into this file: of one dataset a line per setting, of several a panel
            each.
    """
    from neubay.report.parts import figures, tables
    from neubay.report.runs import groups, records, sweeps
    from neubay.report.runs.figures import curves_figure, line_styles, overview_figure

    if not sources:
        raise NeubayError("name run directories, or a JSON file that --out wrote")
    found = [run for run in read_runs(sources)[0] if _is_finished(run)]
    if not found:
        raise NeubayError("no run is finished; 'neubay report' shows runs as far as they have come")
    if out is not None:
        atomic_write_json(out, {"runs": [records.condense(run) for run in found]})
    datasets = groups.arrange(found)
    compared = groups.overview(datasets)
    grids = [sweeps.score_grid(compared)] if len(datasets) > 1 else []
    grids += [grid for data in datasets for grid in sweeps.detail_grids(data)]
    if figure is not None and len(datasets) == 1:
        lines = sweeps.by_value(datasets[0])
        styles = line_styles([group.label for group in lines])
        figures.save(overview_figure(lines, styles), figure)
    elif figure is not None:
        panels = {data.title: {group.label: group for group in data.groups} for data in compared}
        figures.save(curves_figure(panels, line_styles(groups.labels(compared))), figure)
    _put_tables(text, "\n".join(map(tables.markdown, grids)).strip(), sweeps.BEGIN)


def _is_finished(run: "RunRecord") -> bool:
    if run.summary is None:
        say(f"warning: left out: {run.directory}: not a finished run", file=sys.stderr)
    return run.summary is not None


def _put_tables(text: Path | None, tables: str, begin: str) -> None:
    """Print tables, or write them between the markers of a text."""
    from neubay.report.parts.tables import END

    if text is None:
        say(tables)
    else:
        write_between(text, begin, END, f"\n{tables}\n")


def _worlds(groups: tuple[tuple[Path, ...], ...]) -> dict[str, "FittedWorld"]:
    """Worlds by the names of their directories, or by whole paths where names repeat."""
    from neubay import world

    directories = [directory for group in groups for directory in group]
    if not directories:
        raise NeubayError("name a world, the directory that 'neubay world' wrote: --world DIR")
    names = [directory.resolve().name for directory in directories]
    if len(set(names)) < len(names):
        names = [str(directory) for directory in directories]
    return {name: world.load(path) for name, path in zip(names, directories, strict=True)}


def _datasets(groups: tuple[tuple[str, ...], ...], belongs: TaskFlags) -> list["Dataset"]:

    tell = told(Console(stderr=True))
    return [named_data(source, belongs, tell) for group in groups for source in group]


def _at_least_one(flag: str, value: int) -> None:
    if value < 1:
        raise NeubayError(f"{flag} {value}: must be at least 1")


def _write(
    out: Path, name: str, worlds: dict[str, "FittedWorld"], records: list[Any], figure: Any
) -> None:
    from neubay.report.parts import figures
    from neubay.studies.records import world_info

    document = {
        "worlds": [world_info(label, fitted) for label, fitted in worlds.items()],
        name: records,
        "provenance": provenance(),
    }
    figures.save(figure, out / f"{name}.png")
    atomic_write_json(out / f"{name}.json", document)
    say(f"{out / name}.png and .json written", file=sys.stderr)
