"""Many runs put in order: datasets, and in each the groups of seeds that share all settings.

A dataset is a row: its name, the hash of its data and the environment it was evaluated in; two that
differ in any of these are never averaged. A group is the runs of one dataset that differ in their
seeds alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from neubay.errors import NeubayError
from neubay.report.parts.statistics import Sample
from neubay.report.runs.records import RunRecord, Settings

SYMBOLS = {
    "world.members": "N",
    "rollout.penalty": "λ",
    "rollout.zeta": "ζ",
    "rollout.horizon": "H",
    "agent.encoder_lr": "η_φ",
    "agent.kappa": "κ",
    "agent.memory": "memory",
}

_METHOD: dict[str, Any] = {  # what makes a setting the paper's main one
    "rollout.penalty": 0.0,
    "rollout.zeta": 1.0,
    "rollout.horizon": None,
    "rollout.halt_penalty": None,
    "agent.memory": "lru",
}

DatasetKey = tuple[str, str | None, str | None]
"""Name, hash and environment."""


@dataclass(frozen=True)
class Group:
    """The seeds of one setting on one dataset."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def variant(self) -> str:
        return self.runs[0].variant

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings

    @property
    def scores(self) -> Float[np.ndarray, " seeds"]:
        """Results of the finished runs."""
        results = [run.result for run in self.runs if run.status == "finished"]
        return np.array([result for result in results if result is not None], np.float64)

    @property
    def sample(self) -> Sample | None:
        return Sample.of(self.scores) if len(self.scores) else None

    @property
    def mixed(self) -> bool:
        """Whether its runs differ in more than the seed, as they may in an overview."""
        return any(run.settings != self.settings for run in self.runs)

    def differs_in(self, other: "Group") -> frozenset[str]:
        """Names of the settings in which two groups differ."""
        return frozenset(differing(self.settings, other.settings))


@dataclass(frozen=True)
class Data:
    """All groups of one dataset."""

    title: str
    groups: tuple[Group, ...]
    main: Group
    """The method as the paper has it, or what comes nearest to it."""
    runs: tuple[RunRecord, ...] = field(repr=False)

    @property
    def first(self) -> RunRecord:
        """The run that represents all: one that has been evaluated, if there is any."""
        return representative(self.runs)

    def scores(self, label: str) -> Float[np.ndarray, " seeds"]:
        """Results of the group of that label; empty where there is none."""
        return next((one.scores for one in self.groups if one.label == label), np.empty(0))


def representative(runs: Sequence[RunRecord]) -> RunRecord:
    """The first run that knows most of what all share: its measure, and the data's own result."""
    return max(runs, key=lambda run: (run.result is not None, run.data_result is not None))


def arrange(runs: Sequence[RunRecord]) -> list[Data]:
    """Datasets in the order of the runs, each with its groups, the main one first."""
    by_dataset: dict[DatasetKey, list[RunRecord]] = {}
    for run in runs:
        by_dataset.setdefault((run.dataset, run.hash, run.environment), []).append(run)
    names = [name for name, _, _ in by_dataset]
    return [
        _data(name if names.count(name) == 1 else _long_title(name, data, where), own)
        for (name, data, where), own in by_dataset.items()
    ]


def overview(datasets: Sequence[Data]) -> list[Data]:
    """Datasets with one group per variant, named by it: of each seed the run whose settings are
    nearest to the variant's main one. A variant that was run on one dataset alone is left out,
    unless it is the main one or a baseline, cloning."""
    always = (datasets[0].main.variant, "bc", "bc-best")
    counts = [variant for data in datasets for variant in {group.variant for group in data.groups}]
    shown = []
    for data in datasets:
        groups = []
        for variant in dict.fromkeys(group.variant for group in data.groups):
            if variant in always or counts.count(variant) > 1:
                own = [group for group in data.groups if group.variant == variant]
                groups.append(Group(_variant_title(variant), _nearest_of_each_seed(own)))
        if groups:
            shown.append(replace(data, groups=tuple(groups), main=groups[0]))
    return shown


def _nearest_of_each_seed(groups: Sequence[Group]) -> tuple[RunRecord, ...]:
    centre = _centre([group.runs[0] for group in groups], [group.runs[0] for group in groups])
    nearest: dict[int, RunRecord] = {}
    for run in sorted(
        (run for group in groups for run in group.runs),
        key=lambda run: len(differing(run.settings, centre.settings)),
    ):
        nearest.setdefault(run.seed, run)
    return tuple(nearest[seed] for seed in sorted(nearest))


def labels(datasets: Sequence[Data]) -> list[str]:
    """The labels of all groups, in order."""
    return list(dict.fromkeys(group.label for data in datasets for group in data.groups))


def differing(settings: Settings, reference: Settings) -> list[str]:
    """Names of the settings in which two differ; a pool follows from its members."""
    names = [
        name
        for name in dict.fromkeys([*settings, *reference])
        if settings.get(name) != reference.get(name)
    ]
    return [name for name in names if name != "world.pool" or "world.members" not in names]


def _long_title(name: str, data: str | None, environment: str | None) -> str:
    """What tells apart two datasets of one name."""
    known = "unknown data" if data is None else f"data {data[:6]}"
    return f"{name} ({environment or 'no environment'}, {known})"


def _data(title: str, runs: Sequence[RunRecord]) -> Data:
    alike: list[list[RunRecord]] = []
    for run in runs:
        own = next((own for own in alike if own[0].settings == run.settings), None)
        if own is None:
            alike.append([run])
        else:
            own.append(run)
    firsts = [own[0] for own in alike]
    centres = {
        variant: _centre([run for run in firsts if run.variant == variant], firsts)
        for variant in dict.fromkeys(run.variant for run in firsts)
    }
    for own in alike:
        _refuse_twins(own)
    groups = [Group(_label(own[0], centres[own[0].variant]), tuple(own)) for own in alike]
    centre = _centre(firsts, firsts)
    groups.sort(key=lambda group: group.runs[0] is not centre)
    return Data(title, tuple(groups), groups[0], tuple(runs))


def _refuse_twins(runs: Sequence[RunRecord]) -> None:
    """Two runs of one seed are one sample: counted as two, they would feign certainty."""
    seen: dict[int, RunRecord] = {}
    for run in runs:
        twin = seen.setdefault(run.seed, run)
        if twin is not run:
            raise NeubayError(
                f"{twin.directory} and {run.directory}: the same dataset, settings and seed "
                f"({run.seed}), so that one would count as two seeds; name only one of them"
            )


def _centre(candidates: Sequence[RunRecord], everyone: Sequence[RunRecord]) -> RunRecord:
    """The run whose settings are the main ones: of the method rather than of a variant, nearest to
    its preset where that is known, most like the paper's method, and nearest to all others, as
    where one setting is varied at a time."""

    def nearness(one: RunRecord) -> tuple[int, ...]:
        apart = sum(len(differing(other.settings, one.settings)) for other in everyone)
        return one.variant == "neubay", -len(one.changed), *_likeness(one.settings), -apart

    return max(candidates, key=nearness)


def _likeness(settings: Settings) -> tuple[int, int]:
    """How much settings are the paper's: its choices first, then the size of its ensemble."""
    kept = sum(settings.get(name) == value for name, value in _METHOD.items())
    redq = int((settings.get("agent.heads") or 0) > 2)
    return kept + redq, int(settings.get("world.members") or 0)


def _label(run: RunRecord, main: RunRecord) -> str:
    words = [setting(name, run.settings) for name in differing(run.settings, main.settings)]
    return ", ".join([_variant_title(run.variant), *words])


def _variant_title(variant: str) -> str:
    return {"bc": "cloning", "bc-best": "cloning the best"}.get(variant, variant)


def setting(name: str, settings: Mapping[str, Any]) -> str:
    """A setting with its value, by the paper's symbol where it has one."""
    symbol = SYMBOLS.get(name, name.split(".")[-1].replace("_", " "))
    return f"{symbol} = {show(settings[name]) if name in settings else 'default'}"


def show(value: Any) -> str:
    """A setting's value as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
