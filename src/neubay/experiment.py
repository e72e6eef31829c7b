"""One call from data to a scored policy: world (reused if one matches), agent, evaluation, files.

A run that was interrupted is resumed from its directory (`rundir.py`), a finished one is opened.
"""

import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neubay import agents, data, imagination, preflight, selection, world
from neubay.agents import Agent, AgentState, Update
from neubay.algorithm import Trained, train_agent
from neubay.cloning import account, clone, clones_for, good_by_luck, in_words, train_clone
from neubay.config import (
    Preset,
    SelectionConfig,
    TrainConfig,
    WorldConfig,
    default_preset,
    known,
    resolve,
    settle,
)
from neubay.data.dataset import Dataset
from neubay.devices.together import at_once, run_together
from neubay.errors import ConfigError, RunError, WorldError
from neubay.experience import batch_shape, rollout_rules
from neubay.oracle import check_simulator, simulated_world
from neubay.policy import Policy, load_policy
from neubay.runs import progress, rundir, tracking
from neubay.runs.checkpoints import CHECKPOINTS, EVERY, Checkpoints
from neubay.runs.files import atomic_write_json, read_json, tree_hash
from neubay.runs.messages import Tell, log
from neubay.runs.provenance import provenance
from neubay.runs.signals import deferred_signals, stop_if_signalled
from neubay.runs.values import finite, is_number
from neubay.tasks import published_settings
from neubay.world import FittedWorld

WorldProgress = Callable[[world.Progress], None]
USUAL_SELECTION = SelectionConfig()
StageProgress = Callable[[str, float], None]
"""Is given the name of a stage and the share of it that is done."""
Shown = tuple[WorldProgress | None, StageProgress, Tell]
Judged = tuple[SelectionConfig, WorldConfig]
"""How policies are judged, and the settings of the world whose judge does it."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    policy: Policy
    """Of the last step, or the mean of the last steps (`agent.average_share`)."""
    world: FittedWorld | None
    summary: dict[str, Any]
    directory: Path

    @property
    def chosen(self) -> Policy | None:
        """The policy that selection chose; none where nothing was selected."""
        path = self.directory / rundir.SELECTION / rundir.POLICY_FILE
        return load_policy(path) if path.exists() else None


def train(
    dataset: Dataset | str | Path = "pendulum",
    *,
    preset: Preset | None = None,
    variant: str = "neubay",
    seed: int = 0,
    out: Path | str | None = None,
    changes: dict[str, Any] | None = None,
    quiet: bool = False,
    select: SelectionConfig | None = USUAL_SELECTION,
) -> Result:
    """Train on a dataset, or on what its name or path stands for, as `neubay train` does.

    Progress goes to standard error, a line now and then with the time left.

    Args:
        preset: published sizes, or sizes for two cores; by default cpu unless there is an
            accelerator.
        variant: the method, or one of its relatives in `config.VARIANTS`.
        out: the run directory; by default runs/DATASET-VARIANT-seedS.
        changes: nested settings over the preset, such as {"agent": {"kappa": 0.8}}.
        quiet: no progress; what must be known is still logged.
        select: how the run's policies are judged at its end; none: they are not.
    """
    if isinstance(dataset, str | Path):
        dataset = data.load(dataset)
    directory = Path(out) if out is not None else default_directory(dataset, variant, seed)
    published, chosen = (
        published_settings(dataset.task, dataset.published),
        preset or default_preset(),
    )
    config = resolve(published, chosen, variant, {"seed": seed, **(changes or {})})
    shown = {} if quiet else in_lines(dataset, config, _show)
    about = {"preset": chosen, "variant": variant}
    return run(dataset, config, directory, about=about, select=select, **shown)


def train_together(
    dataset: Dataset | str | Path = "pendulum",
    *,
    seeds: Sequence[int],
    preset: Preset | None = None,
    variant: str = "neubay",
    out: Path | str = "runs",
    changes: dict[str, Any] | None = None,
    quiet: bool = False,
    select: SelectionConfig | None = USUAL_SELECTION,
) -> list[Result]:
    """Train with several seeds on one device, their gradient steps as one program: for an
    accelerator that one run leaves partly idle.

    Each seed has its run directory with all that `train` leaves there, equal to that of a run of
    its own to rounding. What was interrupted is resumed, also by `train`. Everything but gradient
    steps is done for one seed after the other. Where one seed fails, the others are finished first.

    Args:
        seeds: one run each.
        out: the folder of the runs, each DATASET-VARIANT-seedS.

    The others are those of `train`.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds {list(seeds)}: expected one or more, each of them once")
    if isinstance(dataset, str | Path):
        dataset = data.load(dataset)
    published = published_settings(dataset.task, dataset.published)
    chosen, runs = preset or default_preset(), []
    for seed in seeds:
        config = resolve(published, chosen, variant, {**(changes or {}), "seed": seed})
        directory = Path(out) / default_directory(dataset, variant, seed).name
        options: dict[str, Any] = {"about": {"preset": chosen, "variant": variant}}
        if not quiet:
            options |= in_lines(dataset, config, seed_lines(_show, seed))
        runs.append((config, directory, options | {"select": select}))
    return run_all_together(dataset, runs)


def run_all_together(
    dataset: Dataset, runs: Sequence[tuple[TrainConfig, Path, dict[str, Any]]]
) -> list[Result]:
    """`run` of several settings on one device, their gradient steps as one program; each with its
    directory and its other options. What is wrong with any of them is refused before any work."""
    for config, directory, options in runs:
        settled, about = settle(config, dataset.facts), options.get("about") or {}
        every, fitted = options.get("checkpoint_seconds", EVERY), options.get("fitted")
        _check_settings(dataset, settled, directory, every, fitted)
        rundir.begun_before(directory, _description(dataset, settled) | about)

    def training(
        config: TrainConfig, directory: Path, options: dict[str, Any]
    ) -> Callable[[Update], Result]:
        return lambda update: run(dataset, config, directory, update=update, **options)

    with deferred_signals():
        return run_together([training(*each) for each in runs])


def in_lines(dataset: Dataset, config: TrainConfig, show: Callable[[str], None]) -> dict[str, Any]:
    """Options of `run` that show its progress, a line now and then with the time left."""
    steps = known(settle(config, dataset.facts).agent.steps)
    return {
        "trackers": (progress.agent_lines(show, steps),),
        "world_progress": progress.world_lines(show, config.world.selection),
        "stage_progress": progress.stage_lines(show),
    }


def seed_lines(show: Callable[[str], None], seed: int) -> Callable[[str], None]:
    """Shows lines of one run among others."""
    return lambda line: show(f"seed {seed}: {line}")


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def default_directory(dataset: Dataset, variant: str, seed: int) -> Path:
    """Where a run is kept unless told otherwise."""
    return Path("runs") / f"{dataset.name}-{variant}-seed{seed}"


def run(
    dataset: Dataset,
    config: TrainConfig,
    directory: Path,
    *,
    update: Update = agents.update,
    fitted: FittedWorld | None = None,
    about: dict[str, Any] | None = None,
    select: SelectionConfig | None = None,
    trackers: tuple[tracking.Tracker, ...] = (),
    world_progress: WorldProgress | None = None,
    stage_progress: StageProgress = lambda stage, share: None,
    checkpoint_seconds: float = EVERY,
    judged_as: WorldConfig | None = None,
    until: int | None = None,
    tell: Tell = log,
) -> Result:
    """Train world and agent on `dataset` and score the policy; everything is kept in `directory`.

    A run that was interrupted there is resumed and ends, on a CPU bit for bit, as if it never had
    been; a finished one is given back, judged as asked. `Stopped` is raised at SIGINT or SIGTERM.

    Args:
        update: makes the agent's gradient steps, here or together with those of other runs.
        fitted: a world to use instead of training or looking for one.
        about: more to write into run.json, such as the command.
        select: how the run's policies are judged at its end; none: they are not.
        trackers: where rows go beside metrics.jsonl.
        world_progress, stage_progress: are given that of worlds, and of cloning and selection.
        checkpoint_seconds: time between two checkpoints, at least.
        judged_as: settings of the world whose judge judges; by default the run's own.
        until: stop as at SIGTERM once this gradient step is done, to be resumed later.
        tell: is given a sentence that the user should know.
    """
    config = settle(config, dataset.facts)
    _check_settings(dataset, config, directory, checkpoint_seconds, fitted)
    asked = _description(dataset, config) | (about or {})
    with rundir.claimed(directory, asked) as begun, deferred_signals() as signalled:
        metrics, halt = directory / rundir.METRICS_FILE, _Halt(until, signalled)
        where, every = directory / CHECKPOINTS, checkpoint_seconds
        checkpoints = Checkpoints(where, metrics, every=every, signalled=halt.signalled, tell=tell)
        judging = None if select is None else (select, judged_as or config.world)
        shown = world_progress, stage_progress, tell
        if rundir.is_finished(directory):
            _judge_later(dataset, config, judging, directory, shown)
            return _finished(directory, fitted, checkpoints, tell)
        _tell_changes(begun, tell)
        needs_world, seconds = config.agent.algorithm != "bc", {"world": 0.0}
        if needs_world:
            fitted, seconds["world"] = _world(dataset, config, directory, fitted, shown)
        track = tracking.together([tracking.json_lines(metrics), halt, *trackers])
        how = config, track, checkpoints, partial(_keep, dataset, directory), update
        within = fitted if needs_world else None
        _tell_luck(dataset, config, tell)
        trained = clone(dataset, *how) if within is None else train_agent(dataset, within, *how)
        about_it = dataset, fitted, config, trained, directory
        policy, summary = _result(*about_it, seconds | trained.seconds, judging, shown)
        checkpoints.finish(kept=1)
        stop_if_signalled()
        return Result(policy, fitted, summary, directory)


def _tell_luck(dataset: Dataset, config: TrainConfig, tell: Tell) -> None:
    """Say so where the best episodes are cloned, and not worth a clone of their own."""
    agent = config.agent
    if agent.algorithm == "bc" and agent.best_share < 1 and good_by_luck(dataset, agent.best_share):
        tell(
            "the best episodes are no better than the others, or were good by luck: their actions "
            "do not follow from the states"
        )


def _check_settings(
    dataset: Dataset,
    config: TrainConfig,
    directory: Path,
    checkpoint_seconds: float,
    fitted: FittedWorld | None,
) -> None:
    """Refuse what cannot work before any work is done."""
    batch_shape(dataset.task, config)
    if config.agent.algorithm != "bc":
        world.ended_by(dataset, config.world)
    if not checkpoint_seconds >= 0:
        raise ConfigError(
            f"--checkpoint-seconds is {checkpoint_seconds}: expected a number of seconds, 0 or more"
        )
    if config.rollout.simulator and fitted is not None:
        raise ConfigError(
            "--world: rollouts of --variant oracle are the simulator's; leave out one of the two"
        )
    if not rundir.is_finished(directory):
        if config.rollout.simulator:
            check_simulator(dataset)
        preflight.check_environment(dataset)
        preflight.check_memory(dataset, config, begun=rundir.is_run(directory))


class _Halt:
    """A tracker that asks a training to stop once it has done a gradient step, beside signals."""

    def __init__(self, until: int | None, signalled: Callable[[], int]) -> None:
        self.until, self.reached, self.by_signal = until, 0, signalled

    def __call__(self, row: dict[str, Any]) -> None:
        if self.until is not None and row["step"] >= self.until:
            self.reached = signal.SIGTERM

    def signalled(self) -> int:
        return self.by_signal() or self.reached


def _keep(dataset: Dataset, directory: Path, agent: Agent, state: AgentState, step: int) -> None:
    """Keep the policy of an evaluation point, as a small file."""
    policy = Policy.trained_on(dataset, agent, state)
    policy.save(directory / rundir.POLICIES / f"{step:09d}.npz")


def _select(
    dataset: Dataset,
    config: TrainConfig,
    judged: Judged,
    directory: Path,
    seconds: dict[str, float],
    shown: Shown,
) -> dict[str, Any]:
    """Clones, judge and verdict; returns what the summary says of it. All of it is kept, so that it
    is resumed where it was interrupted. The time goes into `seconds`."""
    settings, judged_as = judged
    folder, policies = directory / rundir.SELECTION, directory / rundir.POLICIES
    _, stage_progress, tell = shown

    def clones() -> dict[str, Any]:
        return _clones(dataset, config, settings, policies, shown) if settings.baseline else {}

    def show_judge(fit: world.Progress) -> None:
        if fit.stage == "training" and fit.most_epochs:
            stage_progress("judge", (fit.epoch + fit.share) / fit.most_epochs)

    def fit_judge() -> selection.Judge:
        seed = settings.judge_seed
        return selection.fit_judge(dataset, judged_as, seed=seed, progress=show_judge, tell=tell)

    clock = tracking.clock(seconds, "clone and judge")
    with clock, at_once([clones, fit_judge]) as (cloned, judged_by):
        about, judge = cloned(), judged_by()
    atomic_write_json(folder / rundir.JUDGE_REFERENCE, judge.reference())
    with tracking.clock(seconds, "selection"):
        record = selection.DataRecord.of(dataset)
        record.save(folder / rundir.DATA_FILE)
        selected = selection.choose(
            selection.of_runs([rundir.look(directory)]),
            judge,
            record,
            dataset.task,
            out=folder,
            progress=lambda name, share: stage_progress("selection", share),
        )
    chosen = {name: selected.chosen[name] for name in ("estimate", "lower", "upper")}
    return {"verdict": selected.verdict, "chosen": selected.record["chosen"], **chosen, **about}


def _clones(
    dataset: Dataset, config: TrainConfig, settings: SelectionConfig, policies: Path, shown: Shown
) -> dict[str, Any]:
    """Train the clones that the run is compared with, and return what the summary says of each."""
    _, stage_progress, tell = shown
    about, names = {}, clones_for(dataset, config)
    for name in names:
        show = partial(stage_progress, name)
        made = train_clone(dataset, config, settings, policies, name, progress=show, tell=tell)
        about[name.replace("-", "_")] = made
    if rundir.BEST_CLONE not in names and config.agent.algorithm != "bc":
        tell("the best episodes are not cloned: they are not clearly better than the rest")
    return about


def _result(
    dataset: Dataset,
    fitted: FittedWorld | None,
    config: TrainConfig,
    trained: Trained,
    directory: Path,
    seconds: dict[str, float],
    judged: Judged | None,
    shown: Shown,
) -> tuple[Policy, dict[str, Any]]:
    """The policy, the selection and the summary of a training, written into the run directory."""
    policy = Policy.trained_on(dataset, trained.agent, trained.state)
    policy.save(directory / rundir.POLICY_FILE)
    chosen = {}
    if judged is not None:
        chosen = _select(dataset, config, judged, directory, seconds, shown)
    with tracking.clock(seconds, "summary"):
        summary = summarise(dataset, fitted, config, trained) | chosen
    if config.agent.algorithm == "bc":
        name = "clone" if config.agent.best_share == 1 else "clone_of_best"
        summary[name] = account(trained)
        shown[-1](in_words(summary[name]))
    summary["seconds"] = seconds | {"total": sum(seconds.values())}
    summary = finite(summary)
    atomic_write_json(directory / rundir.SUMMARY_FILE, summary)
    return policy, summary


def _description(dataset: Dataset, config: TrainConfig) -> dict[str, Any]:
    """What is asked of a run."""
    data_score = dataset.task.score(dataset.returns)
    return {
        "config": config.record(),
        "dataset": {
            "name": dataset.name,
            "source": dataset.source,
            "hash": dataset.hash,
            "episodes": len(dataset.returns),
            "transitions": int(dataset.bounds[1].sum()),
            "published": dataset.published,
            "facts": dataset.facts.model_dump(),
            "return_mean": float(dataset.returns.mean()),
            "score": None if data_score is None else float(data_score.mean()),
        },
        "task": dataset.task.name,
        "environment": dataset.task.env_name,
        "provenance": provenance(),
    }


def _tell_changes(begun: dict[str, Any], tell: Tell) -> None:
    """Say so where a run is resumed by other software than it was begun with."""
    before, now = begun.get("provenance", {}), provenance()
    changed = [
        f"{name} {before.get(name, 'none')}, now {now.get(name, 'none')}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        tell(f"begun with {'; '.join(changed)}: numbers may differ from an uninterrupted run")


def _world(
    dataset: Dataset,
    config: TrainConfig,
    directory: Path,
    fitted: FittedWorld | None,
    shown: Shown,
) -> tuple[FittedWorld, float]:
    """The run's world, found, trained or handed in, and the time that took; the run directory
    remembers which it was, and the run is resumed in no other."""
    show, _, tell = shown
    world.tell_choice(dataset, config.world, tell)
    begun, where = time.perf_counter(), None
    if config.rollout.simulator:
        fitted = simulated_world(dataset, config.world, config.seed)
    elif fitted is None:
        where = world.world_directory(dataset, config.world, config.seed)
        fitted = world.fit(
            dataset, config.world, config.seed, directory=where, progress=show, tell=tell
        )
    elif fitted.world.heads is None and world.ended_by(dataset, config.world) == "learned":
        fitted = world.with_termination(fitted, dataset, show)
    digest = tree_hash(fitted.world)
    path = directory / rundir.WORLD_REFERENCE
    if path.exists():
        reference = read_json(path)
        if "hash" not in reference:
            raise RunError(
                f"{path}: damaged: it does not tell which world the run was begun in. Restore it, "
                "or choose another --out"
            )
        if reference["hash"] != digest:
            raise RunError(
                f"{directory}: begun in the world {reference['hash']}, this one is {digest}. Use "
                "the same (--world), or choose another --out"
            )
    else:
        reference = {
            "directory": None if where is None else str(where),
            "hash": digest,
            "seed": fitted.seed,
            "config": fitted.config.record(),
            "seconds": time.perf_counter() - begun,
        }
        atomic_write_json(path, reference)
    return fitted, float(reference.get("seconds", 0.0))


def lacks_verdict(directory: Path, select: SelectionConfig) -> str:
    """Why a finished run is to be judged now: it was not, or without the clone or by another judge
    than is asked for. Empty where nothing is missing."""
    path = directory / rundir.SELECTION / rundir.SELECTION_FILE
    of_ours = rundir.look(directory).about.get("layout") == rundir.LAYOUT
    if not of_ours or rundir.is_shown_only(directory):
        return ""
    if not path.exists():
        return "finished without a verdict"
    found = read_json(path)
    judged, seed = found.get("candidates"), found.get("protocol")
    if not isinstance(judged, list) or not all(isinstance(each, dict) for each in judged):
        raise RunError(f"{path}: damaged; remove it, and the same command judges again")
    if select.baseline and not any(each.get("is_clone") for each in judged):
        return "judged without a clone"
    for name in ("judge", "seed"):
        seed = seed.get(name) if isinstance(seed, dict) else None
    if is_number(seed) and seed != select.judge_seed:
        return f"judged with --judge-seed {seed}, and {select.judge_seed} is asked for"
    return ""


def _judge_later(
    dataset: Dataset, config: TrainConfig, judged: Judged | None, directory: Path, shown: Shown
) -> None:
    """Train the clones of a finished run, judge its policies, and add that to its summary: where
    that is asked for now, and was not done."""
    if judged is None or not (why := lacks_verdict(directory, judged[0])):
        return
    shown[-1](f"{directory}: {why}: it is judged now")
    summary = read_json(directory / rundir.SUMMARY_FILE)
    seconds = {name: value for name, value in summary["seconds"].items() if name != "total"}
    chosen = _select(dataset, config, judged, directory, seconds, shown)
    summary |= chosen | {"seconds": seconds | {"total": sum(seconds.values())}}
    atomic_write_json(directory / rundir.SUMMARY_FILE, finite(summary))


def _finished(
    directory: Path, fitted: FittedWorld | None, checkpoints: Checkpoints, tell: Tell
) -> Result:
    """What a finished run left."""
    if not rundir.is_shown_only(directory):
        checkpoints.finish(kept=1)  # in case that the process ended just before
    policy = load_policy(directory / rundir.POLICY_FILE)
    summary = read_json(directory / rundir.SUMMARY_FILE)
    fitted = _world_left(directory, tell) if fitted is None else fitted
    return Result(policy, fitted, summary, directory)


def _world_left(directory: Path, tell: Tell) -> FittedWorld | None:
    """The world of a finished run, where it has one that was kept; if that is gone, it is told."""
    reference = directory / rundir.WORLD_REFERENCE
    if not reference.exists() or read_json(reference).get("directory") is None:
        return None
    try:
        place = world.world_of(directory)
    except WorldError as error:
        tell(f"{error}. Until then the result has no world")
        return None
    return world.load(place)


def summarise(
    dataset: Dataset, fitted: FittedWorld | None, config: TrainConfig, trained: Trained
) -> dict[str, Any]:
    """What a person wants to know of a run, as plain numbers."""
    task, evaluation = dataset.task, trained.evaluation or {}
    q_data = trained.metrics.get("q_data", math.nan)  # not a number where no row is real
    data_score = task.score(dataset.returns)
    horizon = {
        name.removeprefix("horizon_"): value
        for name, value in trained.metrics.items()
        if name.startswith("horizon_")
    }
    return {
        "dataset": dataset.name,
        "dataset_hash": dataset.hash,
        "task": task.name,
        "environment": task.env_name if task.make_env is not None else None,
        "seed": config.seed,
        "steps": trained.metrics.get("step", config.agent.steps),
        "return_mean": evaluation.get("return_mean"),
        "return_std": evaluation.get("return_std"),
        "episodes": evaluation.get("episodes", 0),
        "score": evaluation.get("score"),
        "discounted_mean": evaluation.get("discounted_mean"),
        "data_return_mean": float(dataset.returns.mean()),
        "data_score": None if data_score is None else float(data_score.mean()),
        "q_data": q_data if math.isfinite(q_data) else None,
        "horizon": horizon,
        "posterior": None
        if fitted is None or trained.agent.config.algorithm == "bc"
        else posterior_estimate(dataset, fitted, config, trained),
    }


def posterior_estimate(
    dataset: Dataset, fitted: FittedWorld, config: TrainConfig, trained: Trained
) -> dict[str, float]:
    """The policy's return from s_0 as the posterior sees it: mean and spread over rollouts that
    are spread evenly over the members, and the share that uncertainty cut short.

    What is cut short counts up to the cut, so the estimate leaves out what would have followed.
    """
    rng = np.random.default_rng(config.seed)
    prefix = imagination.draw_histories(rng, dataset.histories, config.rollout.rollouts, 1.0)
    rollouts = imagination.imagine(
        fitted.world,
        trained.agent.policy(trained.state, deterministic=True),
        imagination.branch(dataset, prefix),
        imagination.draw_members(rng, config.rollout.rollouts, fitted.world.size),
        rollout_rules(config, dataset, fitted),
        jax.random.key(config.seed),
    )
    ends = np.cumsum(rollouts.length + 1)
    first = ends - rollouts.length - 1
    rewards = np.asarray(rollouts.rows.reward, np.float64)
    returns = np.add.reduceat(rewards, first) - dataset.task.reward_shift * rollouts.length
    cut = rollouts.ending == imagination.Ending.UNCERTAIN
    return {
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "cut_share": float(cut.mean()),
        "length_mean": float(rollouts.length.mean()),
    }
