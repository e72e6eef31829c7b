"""Selection from start to end: candidates in, `selection.json` and the chosen policy out."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Shaped

from neubay import data as sources
from neubay.config import SelectionConfig, WorldConfig, default_preset, resolve, validated
from neubay.data.dataset import Dataset
from neubay.data.layout import describe_bounds
from neubay.devices.together import at_once
from neubay.errors import NeubayError, RunError, refusal_reported
from neubay.policy import Policy, load_policy
from neubay.runs import rundir
from neubay.runs.files import PARTIAL, atomic, atomic_write_json, read_arrays, save_arrays
from neubay.runs.messages import Tell, log
from neubay.runs.signals import deferred_signals, stop_if_signalled
from neubay.runs.values import finite
from neubay.selection.candidates import Candidate, brought, check_same_data, naming, of_runs
from neubay.selection.judge import Judge, fit_judge, load_judge
from neubay.selection.protocol import Predict, Rollouts, Trial
from neubay.selection.record import FLOOR_LEVEL, DataRecord, load_record
from neubay.selection.verdict import Gains, Judged, Sanity, Verdict, compared, decide, ranked
from neubay.tasks import ContinuousActions, Task, get_task, list_tasks, published_settings
from neubay.world.pool import Show

THREADS = 2
"""That judge candidates: what is judged by each fits into memory beside the others."""
LAYOUT = 1
"""Version of selection.json and of the results kept beside it."""

Episodes = Sequence[int] | Shaped[np.ndarray, " episodes"]
"""Their numbers."""
Progress = Callable[[str, float], None]
"""Is given what is being judged, and the share of the work that is done."""


@dataclass(frozen=True)
class Selection:
    """A finished selection."""

    record: dict[str, Any]
    """selection.json."""
    policy: Policy | Predict
    """The chosen one."""
    directory: Path | None

    @property
    def verdict(self) -> str:
        """deploy, copy or keep."""
        return str(self.record["verdict"])

    @property
    def chosen(self) -> dict[str, Any]:
        """The chosen candidate's numbers."""
        name = self.record["chosen"]
        found: dict[str, Any] = next(c for c in self.record["candidates"] if c["name"] == name)
        return found


def select(
    runs: Sequence[Path | str] | Path | str = (),
    *,
    candidates: Mapping[str, Policy | Path | str | Predict] | None = None,
    data: Dataset | Path | str | None = None,
    task: Task | None = None,
    judge_seed: int = 0,
    incumbent: Episodes | None = None,
    out: Path | str | None = None,
    progress: Progress = lambda name, share: None,
    judge_progress: Show | None = None,
    tell: Tell = log,
) -> Selection:
    """Which of these policies is best, and is it better than the data and than copying the data?

    Args:
        runs: run directories of the same data; every policy that they kept is a candidate.
        candidates: more of them by name: policies, paths of their files, or functions from
            observations (k, s) to actions (k, a), in the units of the environment.
        data: the dataset, or what its name or path stands for; needed where no run has kept what
            selection needs, or no judge of that seed.
        task: the task of the data, where it has a termination rule and is not registered; of the
            data's sizes, units and T.
        judge_seed: decides the judge's members and their episodes, starts and keys.
        incumbent: the episodes of today's controller, by number, where the log holds several.
        out: a folder for selection.json and policy.npz, which is no run directory.
        progress, judge_progress: are given the progress of judging, and of fitting a judge.
    """
    _check_asked(judge_seed, candidates, out)
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    looked = [rundir.opened(Path(path)) for path in paths]
    if looked:
        check_same_data(looked)
    dataset = sources.load(data) if isinstance(data, str | Path) else data
    found = _with_names(of_runs(looked), candidates or {})
    if not found:
        where = ", ".join(map(str, paths)) or "nothing was named"
        raise NeubayError(f"no policy to judge: {where}. Name runs that kept some")
    if out is not None:
        _check_out(Path(out), found)
    record = _record(looked, dataset)
    if incumbent is not None:
        record.only(incumbent)  # what is wrong with it is said before anything is judged
    of = _task(record, task, found, dataset)
    _check_sizes(found, of)
    with deferred_signals():
        judge = _judge(looked, dataset, record, judge_seed, judge_progress, tell)
        return choose(
            found,
            judge,
            record,
            of,
            incumbent=incumbent,
            out=None if out is None else Path(out),
            known=[run.directory / rundir.SELECTION for run in looked],
            again=task is not None,
            progress=progress,
        )


def choose(
    candidates: Sequence[Candidate],
    judge: Judge,
    record: DataRecord,
    task: Task,
    *,
    incumbent: Episodes | None = None,
    out: Path | None = None,
    known: Sequence[Path] = (),
    again: bool = False,
    progress: Progress = lambda name, share: None,
) -> Selection:
    """Judge the candidates and decide; what was judged before under the same protocol is not
    judged again.

    Args:
        incumbent: the episodes of today's controller, with which candidates are compared.
        known: folders of earlier selections.
        again: judge anew what was judged before, as its rule of termination may have been another.
    """
    whole = _trial(judge, record, task).calibrated()
    trial = whole
    if incumbent is not None:
        record = record.only(incumbent)
        trial = _trial(judge, record, task).with_noise(whole.noise)
    whole_court, court = (_Court(each, judge, out, known, again) for each in (whole, trial))
    judged = court.judge_all(candidates, progress)
    progress("the data's own behaviour", 1 - 1 / (len(candidates) + 1))
    clone = compared(judged)
    # The clone is of all the data, whoever it is compared with.
    sanity = None if clone is None else _sanity(clone.candidate, whole, whole_court)
    stop_if_signalled()
    verdict = decide(judged, trial.data_returns, sanity, _objections(judge, record, task))
    progress("done", 1.0)
    chosen = next(each for each in candidates if each.name == verdict.chosen)
    written = _written(judged, verdict, sanity, trial, judge)
    written["protocol"]["incumbent"] = None if incumbent is None else sorted(map(int, {*incumbent}))
    if out is not None:
        _save(written, chosen, out)
    return Selection(written, chosen.policy(), out)


def _sanity(clone: Candidate, trial: Trial, court: "_Court") -> Sanity:
    """What the judge says of the data's own behaviour."""
    return Sanity.of(
        court.judge(clone, deterministic=False),
        trial.data_returns,
        trial.reproduce(),
        clone=court.judge(clone),
        steps=float(trial.record.limit[trial.episode].mean()),
    )


def estimate(policy: Path, judge: Judge, dataset: Dataset, *, out: Path | None = None) -> float:
    """What a judge expects of one policy, under the same protocol; a later selection that is kept
    in `out` does not judge it again."""
    trial = _trial(judge, DataRecord.of(dataset), dataset.task).calibrated()
    return _Court(trial, judge, out, ()).judge(Candidate(policy.stem, policy)).estimate


def _trial(judge: Judge, record: DataRecord, task: Task) -> Trial:
    """The starts, members and keys of a judge."""
    world, ended_by = judge.fitted.world, judge.ended_by(task)
    return Trial.of(world, judge.threshold, record, task, seed=judge.seed, ended_by=ended_by)


def _objections(judge: Judge, record: DataRecord, task: Task) -> list[str]:
    """Why a judge has no vote whatever it says."""
    found = []
    if not judge.saw(record.dataset_hash):
        found.append(
            f"it was fitted on other data ({judge.fitted.dataset_name}), not on episodes of "
            f"{record.dataset}"
        )
    if record.terminals and judge.ended_by(task) == "none":
        found.append(
            "the data has terminal states, no rule says where an episode ends, and the judge could "
            "not learn it: too few ends, or learning was switched off; give a task with a rule "
            "(--task-file)"
        )
    return found


class _Court:
    """Judges candidates, and keeps what they got."""

    def __init__(
        self,
        trial: Trial,
        judge: Judge,
        out: Path | None,
        known: Sequence[Path],
        again: bool = False,
    ) -> None:
        self.trial = trial
        self.folders = [folder / "judged" for folder in ([] if out is None else [out])]
        earlier = [*self.folders, *(folder / "judged" for folder in known)]
        self.kept = [] if again else earlier
        reference = judge.reference()
        self.identity = [
            LAYOUT,
            reference["hash"],
            judge.threshold,
            judge.seed,
            trial.noise,
            trial.record.dataset_hash,
            trial.conditions.ended_by,
            trial.episode.tolist(),
            trial.record.start[trial.episode].tolist(),
        ]

    def judge(self, candidate: Candidate, *, deterministic: bool = True) -> Judged:
        digest = candidate.digest
        rollouts = None if digest is None else self._found(self._name(digest, deterministic))
        if rollouts is None:
            with naming(candidate.name):
                rollouts = self.trial.roll(candidate.policy(), deterministic=deterministic)
            if digest is not None and self.folders:
                path = self.folders[0] / self._name(digest, deterministic)
                save_arrays(path, rollouts._asdict(), {"layout": LAYOUT})
        return Judged(candidate, rollouts)

    def judge_all(self, candidates: Sequence[Candidate], progress: Progress) -> list[Judged]:
        """Policies of ours in threads, as a rollout keeps one core busy; a user's functions one
        after the other, in the thread that they were brought in."""
        judged: list[Judged | None] = [None] * len(candidates)
        ours = [i for i, each in enumerate(candidates) if isinstance(each.source, Path | Policy)]
        left, total = iter(ours), len(candidates) + 1

        def judge(place: int) -> None:
            stop_if_signalled()
            progress(candidates[place].name, sum(each is not None for each in judged) / total)
            judged[place] = self.judge(candidates[place])

        def take() -> None:  # the iterator gives each candidate to one thread
            try:
                for place in left:
                    judge(place)
            except BaseException:
                for _ in left:  # nothing is left to the others: what is wrong is told now
                    pass
                raise

        with at_once([take] * min(THREADS, len(ours))) as done:
            for wait in done:
                wait()
        for place in sorted({*range(len(candidates))} - {*ours}):
            judge(place)
        stop_if_signalled()
        return [each for each in judged if each is not None]

    def _name(self, digest: str, deterministic: bool) -> str:
        text = json.dumps([*self.identity, digest, deterministic])
        return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.npz"

    def _found(self, name: str) -> Rollouts | None:
        """What was judged before; what is damaged is judged again."""
        for folder in self.kept:
            if (folder / name).exists():
                try:
                    stored = read_arrays(folder / name)
                    found = Rollouts(*(stored[f"tree['{field}']"] for field in Rollouts._fields))
                except (RunError, KeyError):
                    continue
                if all(np.isfinite(leaf).all() and leaf.ndim == 2 for leaf in found):
                    return found
        return None


def _written(
    judged: Sequence[Judged],
    verdict: Verdict,
    sanity: Sanity | None,
    trial: Trial,
    judge: Judge,
) -> dict[str, Any]:
    """selection.json."""
    record, clone = trial.record, compared(judged)

    def gains(each: Judged) -> dict[str, float | None]:
        found = Gains.of(each, trial.data_returns, clone, sanity)
        return {f"gain_{name}": value for name, value in found._asdict().items()}

    written = {
        "layout": LAYOUT,
        "protocol": {
            "starts": len(trial.episode),
            "members": judge.fitted.world.size,
            "horizon": record.horizon,
            "zeta": judge.zeta,
            "threshold": None if judge.zeta is None else judge.threshold,
            "noise": trial.noise,
            "floor_level": FLOOR_LEVEL,
            "reward_range": list(record.reward_range),
            "termination": trial.conditions.ended_by,
            "judge": judge.reference(),
            "vote": verdict.vote,
            "sanity": None if sanity is None else sanity.record(),
        },
        "data": {
            "name": record.dataset,
            "hash": record.dataset_hash,
            "return_mean": float(record.returns.mean()),
            "length_mean": float(record.length.mean()),
            "episodes": len(record.returns),
        },
        "candidates": [each.record() | gains(each) for each in ranked(judged)],
        "chosen": verdict.chosen,
        "verdict": verdict.word,
        "reasons": verdict.reasons,
    }
    plain: dict[str, Any] = finite(written)
    return plain


def _save(written: dict[str, Any], chosen: Candidate, out: Path) -> None:
    """The chosen policy, then selection.json: where it is, the selection is finished."""
    target, other = out / rundir.POLICY_FILE, out / rundir.SELECTION_FILE
    with refusal_reported(RunError, f"{out}: cannot be written"):
        if isinstance(chosen.source, Path | Policy):
            with atomic(target) as draft:
                if isinstance(chosen.source, Path):
                    shutil.copyfile(chosen.source, draft)
                else:
                    chosen.source.save(draft)
                other.unlink(missing_ok=True)  # of the selection that is replaced
            if isinstance(chosen.source, Policy):
                chosen.source.path = target
        else:
            other.unlink(missing_ok=True)
            target.unlink(missing_ok=True)  # a function is in no file
        atomic_write_json(other, written)


def _check_asked(judge_seed: int, candidates: Any, out: Any) -> None:
    """Refuse what cannot be meant, whatever the runs and the data are."""
    validated(SelectionConfig, {"judge_seed": judge_seed}, "neubay.select")
    if candidates is not None and not isinstance(candidates, Mapping):
        raise NeubayError(
            f"candidates is of type {type(candidates).__name__}: give each a name, as in "
            "candidates={'today': controller}"
        )
    if isinstance(out, str) and not out.strip():
        raise NeubayError(
            "out is empty: name a folder ('.' is the current one), or leave it out to write nothing"
        )


def _with_names(of_the_runs: list[Candidate], more: Mapping[str, Any]) -> list[Candidate]:
    """The policies of the runs and those that a user brings, all of other names."""
    found = [*of_the_runs, *(brought(*each) for each in more.items())]
    if taken := {each.name for each in of_the_runs} & more.keys():
        raise NeubayError(
            f"candidate '{min(taken)}': a policy of the runs has that name; give another"
        )
    return found


def _check_out(out: Path, candidates: Sequence[Candidate]) -> None:
    """Refuse a folder that the selection would damage, or that cannot be written, before anything
    is judged."""
    if rundir.is_run(out):
        raise RunError(
            f"{out}: is a run directory, whose {rundir.POLICY_FILE} a selection would replace; "
            f"name another folder, such as {out / rundir.SELECTION} or a new one (--out)"
        )
    target = (out / rundir.POLICY_FILE).resolve()
    for each in candidates:
        if isinstance(each.source, Path) and each.source.resolve() == target:
            raise RunError(
                f"{out}: holds the candidate '{each.name}', which the chosen policy would replace; "
                "name another folder (--out)"
            )
    with refusal_reported(RunError, f"{out}: cannot be written", "; name another folder (--out)"):
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".select.", suffix=PARTIAL, dir=out):
            pass


# --- What runs and data have ---------------------------------------------------------------------


def _record(runs: Sequence[rundir.Run], dataset: Dataset | None) -> DataRecord:
    """What is known of the data: from the data itself, or as a run has kept it."""
    if dataset is not None:
        if runs and (hash := runs[0].about["dataset"].get("hash")) != dataset.hash:
            raise RunError(
                f"{runs[0].directory}: trained on data with hash {hash}, but {dataset.name} has "
                f"hash {dataset.hash}; name the same data"
            )
        return DataRecord.of(dataset)
    for run in runs:
        path = run.directory / rundir.SELECTION / rundir.DATA_FILE
        if path.exists():
            return load_record(path)
    if not runs:
        raise RunError("no run was named that could tell of the data: name the data (data)")
    raise RunError(
        f"{runs[0].directory}: has kept nothing of the data for a judge, as it was made with "
        "--no-select or by neubay 0.2: name the data (--data)"
    )


def _judge(
    runs: Sequence[rundir.Run],
    dataset: Dataset | None,
    record: DataRecord,
    seed: int,
    progress: Show | None,
    tell: Tell,
) -> Judge:
    """A judge that a run remembers, or one fitted on the data."""
    problem: Exception | None = None
    for run in runs:
        reference = run.directory / rundir.SELECTION / rundir.JUDGE_REFERENCE
        if reference.exists():
            try:
                judge = load_judge(reference)
            except NeubayError as error:
                problem = error
                continue
            blind = dataset is not None and judge.ended_by(dataset.task) == "none"
            if judge.seed == seed and not (blind and record.terminals):  # may be of 0.2
                return judge
    if dataset is None:
        raise problem or RunError(
            f"{runs[0].directory}: has no judge of seed {seed}: name the data (--data), and one is "
            "fitted"
        )
    if runs:
        about = runs[0].about["config"]["world"]
        config = validated(WorldConfig, about, str(runs[0].directory / rundir.RUN_FILE))
    else:
        published = published_settings(dataset.task, dataset.published)
        config = resolve(published, default_preset()).world
    return fit_judge(dataset, config, seed=seed, progress=progress, tell=tell)


def _task(
    record: DataRecord,
    given: Task | None,
    candidates: Sequence[Candidate],
    dataset: Dataset | None,
) -> Task:
    """Sizes and units from the data or from a policy's file; the rule from the registered task, or
    from the one that is given, which must fit."""
    if given is not None:
        known = _task_of_file(candidates, record) if dataset is None else dataset.task
        if known is not None:
            _refuse_misfit(f"task '{given.name}'", given, known, {"horizon": lambda of: of.horizon})
        return given
    if dataset is not None:
        return dataset.task
    if record.task in {task.name for task in list_tasks()}:
        return get_task(record.task)
    if record.rule:
        raise NeubayError(
            f"the task '{record.task}' has a termination rule and is not registered here: give it "
            "(--task-file)"
        )
    found = _task_of_file(candidates, record)
    if found is None:
        raise NeubayError(f"no policy of a run tells the sizes of '{record.task}': name the data")
    return found


def _task_of_file(candidates: Sequence[Candidate], record: DataRecord) -> Task | None:
    """Sizes and units as a policy of the runs has them, if there is one."""
    of_a_run = (each.source for each in candidates if each.run is not None)
    policy = next((load_policy(each) for each in of_a_run if isinstance(each, Path)), None)
    return None if policy is None else replace(policy.task, horizon=record.horizon)


def _check_sizes(candidates: Sequence[Candidate], task: Task) -> None:
    """Refuse a policy that a user brings whose sizes or units are others."""
    for each in candidates:
        if each.run is None and isinstance(each.source, Path | Policy):
            policy = load_policy(each.source) if isinstance(each.source, Path) else each.source
            _refuse_misfit(f"candidate '{each.name}'", policy.task, task)


def _refuse_misfit(what: str, ours: Task, wanted: Task, more: Mapping[str, Any] = {}) -> None:
    """Refuse what does not fit the data, and say where: in sizes, in units, or in more."""
    for name, of in {"state_size": _states, "actions": _actions, **more}.items():
        if of(ours) != of(wanted):
            raise NeubayError(
                f"{what}: does not fit the data: {name} {of(ours)}, and the data has {of(wanted)}"
            )


def _states(task: Task) -> int:
    return task.state_size


def _actions(task: Task) -> str:
    space = task.actions
    if isinstance(space, ContinuousActions):
        return f"{space.size} in {describe_bounds(space.low, space.high)}"
    return f"{space.n}, by number"
