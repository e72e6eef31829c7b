"""Many runs put in order: datasets, groups of seeds that share all settings, and sweeps.

A dataset is a row: its name, the hash of its data and the environment it was scored in; two that
differ in any of these are never averaged. A group is the runs of one dataset that differ in their
seeds alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
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

DatasetKey = tuple[str, str, str | None]
"""Name, hash and environment."""


@dataclass(frozen=True)
class Group:
    """The seeds of one setting on one dataset."""

    dataset: str
    label: str
    settings: Settings
    runs: tuple[RunRecord, ...]

    @property
    def scores(self) -> Float[np.ndarray, " seeds"]:
        """Results of the finished runs."""
        results = [run.result for run in self.runs if run.status == "finished"]
        return np.array([result for result in results if result is not None], np.float64)

    @property
    def sample(self) -> Sample | None:
        return Sample.of(self.scores) if len(self.scores) else None

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
        """The run that speaks for all: one that has been evaluated, if there is any."""
        return spokesman(self.runs)

    def scores(self, label: str) -> Float[np.ndarray, " seeds"]:
        """Results of the group of that label; empty where there is none."""
        return next((one.scores for one in self.groups if one.label == label), np.empty(0))


def spokesman(runs: Sequence[RunRecord]) -> RunRecord:
    """The first run that knows most of what all share: its measure, and the data's own result."""
    return max(runs, key=lambda run: (run.result is not None, run.data_result is not None))


def arrange(runs: Sequence[RunRecord]) -> list[Data]:
    """Datasets in the order of the runs, each with its groups, the main one first."""
    keys = [_dataset_key(run) for run in runs]
    titles = _titles(list(dict.fromkeys(keys)))
    return [
        _data(titles[key], [run for run, own in zip(runs, keys, strict=True) if own == key])
        for key in titles
    ]


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


def _dataset_key(run: RunRecord) -> DatasetKey:
    return run.dataset, run.about["dataset"]["hash"], run.environment


def _titles(keys: Sequence[DatasetKey]) -> dict[DatasetKey, str]:
    """The name alone where it is the only one of its kind."""
    names = [name for name, _, _ in keys]
    return {
        key: key[0]
        if names.count(key[0]) == 1
        else f"{key[0]} ({key[2] or 'no environment'}, data {key[1][:6]})"
        for key in keys
    }


def _data(title: str, runs: Sequence[RunRecord]) -> Data:
    settings = _distinct([run.settings for run in runs])
    by_variant = {
        variant: _centre(
            _distinct([run.settings for run in runs if run.variant == variant]), settings
        )
        for variant in dict.fromkeys(run.variant for run in runs)
    }
    groups = []
    for one in settings:
        own = tuple(run for run in runs if run.settings == one)
        _refuse_twins(own)
        label = _label(own[0].variant, one, by_variant[own[0].variant])
        groups.append(Group(title, label, one, own))
    centre = _centre(settings, settings)
    main = next(group for group in groups if group.settings == centre)
    groups.sort(key=lambda group: group is not main)
    return Data(title, tuple(groups), main, tuple(runs))


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


def _centre(candidates: Sequence[Settings], everyone: Sequence[Settings]) -> Settings:
    """The settings that others are told from: most like the method, then, as where one setting is
    varied at a time, nearest to all others."""

    def nearness(one: Settings) -> tuple[tuple[int, int], int]:
        return _likeness(one), -sum(len(differing(other, one)) for other in everyone)

    return max(candidates, key=nearness)


def _likeness(settings: Settings) -> tuple[int, int]:
    """How much settings are the paper's: its choices first, then the size of its ensemble."""
    kept = sum(settings.get(name) == value for name, value in _METHOD.items())
    redq = int((settings.get("agent.heads") or 0) > 2)
    return kept + redq, int(settings.get("world.members") or 0)


def _distinct(all_settings: Sequence[Settings]) -> list[Settings]:
    found: list[Settings] = []
    for one in all_settings:
        if one not in found:
            found.append(one)
    return found


def _label(variant: str, settings: Settings, reference: Settings) -> str:
    words = [
        f"{symbol(name)} = {show(settings.get(name))}" for name in differing(settings, reference)
    ]
    return ", ".join([variant, *words])


def symbol(name: str) -> str:
    """The paper's symbol of a setting, or its name."""
    return SYMBOLS.get(name, name.split(".")[-1].replace("_", " "))


def show(value: Any) -> str:
    """A setting's value as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
