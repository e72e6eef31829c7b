"""What a sweep searches: settings, each with a range or a list of values.

agent.kappa=0.05:0.95            a range
agent.encoder_lr=log:1e-6:1e-3   a range, even on a logarithmic scale
agent.gamma=[0.99, 0.995]        a list
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import yaml

from neubay.config import Section, TrainConfig, updated
from neubay.errors import ConfigError
from neubay.runs.values import is_number

Choice = float | int | str | bool | None
Settings = dict[str, Any]
"""Searched settings with their values, such as {"agent.kappa": 0.5}."""
LONGEST_LIST = 1000
MOST_POINTS = 100_000
_FORMS = "write KEY=LOW:HIGH, KEY=log:LOW:HIGH or KEY=[A, B, ...]"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float | int
    high: float | int
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whole numbers only."""
        return isinstance(self.low, int)

    def __contains__(self, value: object) -> bool:
        return is_number(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low}:{self.high}"


@dataclass(frozen=True)
class Choices:
    """One of some values."""

    values: tuple[Choice, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return yaml.safe_dump(list(self.values), default_flow_style=True, width=math.inf).strip()


Dimension = Range | Choices
Space = dict[str, Dimension]


def parse(search: Sequence[str] | Mapping[str, Any], config: TrainConfig) -> Space:
    """The space that words of a command, or a mapping from keys to ranges and lists, describe.

    Args:
        search: such as ["agent.kappa=0.05:0.95"], or {"agent.kappa": "0.05:0.95"}, or
            {"agent.gamma": [0.99, 0.995]}.
        config: the settings that the search varies; every end and every value must fit them.
    """
    if isinstance(search, Mapping):
        given = [(str(key), value) for key, value in search.items()]
    else:
        given = [_split(word) for word in search]
    if not given:
        raise ConfigError(f"--search: nothing to search; {_FORMS}")
    space: Space = {}
    for name, value in given:
        key = name.strip().replace("-", "_")
        if key in space:
            raise ConfigError(f"--search {key}: given twice")
        kind = _kind(key, config)
        dimension = _dimension(key, value, kind)
        ends = (
            dimension.values if isinstance(dimension, Choices) else (dimension.low, dimension.high)
        )
        for each in ends:
            updated(config, nested({key: each}), f"--search {key}")
        space[key] = dimension
    return space


def nested(settings: Settings) -> dict[str, Any]:
    """{"agent.kappa": 0.5} -> {"agent": {"kappa": 0.5}}."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, leaf = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return tree


def points(space: Space) -> list[Settings]:
    """Every point of a space that has finitely many, and not too many to be tried."""
    values = grid_values(space)
    count = math.prod(map(len, values.values()))
    if count > MOST_POINTS:
        raise ConfigError(
            f"--search: a grid of {count:,} points, of at most {MOST_POINTS:,}; leave out values, "
            "or choose --sampler tpe or random"
        )
    return [dict(zip(space, point, strict=True)) for point in product(*values.values())]


def grid_values(space: Space) -> dict[str, list[Choice]]:
    """The values of each setting, where all are lists or ranges of few whole numbers."""
    grid: dict[str, list[Choice]] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Choices):
            grid[key] = list(dimension.values)
        elif dimension.whole and dimension.high - dimension.low < LONGEST_LIST:
            grid[key] = list(range(int(dimension.low), int(dimension.high) + 1))
        else:
            raise ConfigError(
                f"--search {key}={dimension}: a grid needs values; write {key}=[A, B, ...], or "
                "choose --sampler tpe or random"
            )
    return grid


def _split(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key or not value:
        raise ConfigError(f"--search {word}: {_FORMS}")
    return key, value


def _kind(key: str, config: TrainConfig) -> Any:
    """The annotation of a setting; an unknown key is refused as it is elsewhere."""
    if key == "seed":
        raise ConfigError("--search seed: seeds are not searched; give them with --seeds")
    section: Section = config
    *sections, leaf = key.split(".")
    for name in sections:
        inner = getattr(section, name, None) if name in type(section).model_fields else None
        if not isinstance(inner, Section):
            break
        section = inner
    else:
        if leaf in type(section).model_fields:
            if isinstance(getattr(section, leaf), Section):
                raise ConfigError(f"--search {key}: a section of settings; name one of them")
            return type(section).model_fields[leaf].annotation
    updated(config, nested({key: 0}), "--search")  # raises, with a suggestion
    raise ConfigError(f"--search: unknown key '{key}'")


def _dimension(key: str, value: Any, kind: Any) -> Dimension:
    kinds = set(get_args(kind)) - {type(None)} if get_args(kind) else {kind}
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return _range(key, value, kinds)
    if isinstance(value, str):
        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--search {key}={value}: not a list such as [A, B]") from None
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise ConfigError(f"--search {key}={value}: {_FORMS}")
    return _choices(key, value, kinds)


def _choices(key: str, given: Sequence[Any], kinds: set[Any]) -> Choices:
    values = []
    for each in given:
        if isinstance(each, str) and float in kinds:  # YAML reads 3e-6 as a word
            each = _number(key, each)
        if isinstance(each, int) and not isinstance(each, bool) and float in kinds:
            each = float(each)
        if not isinstance(each, Choice):
            raise ConfigError(f"--search {key}: {each} is not a number, a word or none")
        values.append(each)
    if not 0 < len(values) <= LONGEST_LIST:
        raise ConfigError(f"--search {key}: a list has 1 to {LONGEST_LIST} values")
    if any(value in values[:place] for place, value in enumerate(values)):
        raise ConfigError(f"--search {key}: a value is listed twice")
    return Choices(tuple(values))


def _range(key: str, text: str, kinds: set[Any]) -> Range:
    whole = int in kinds and float not in kinds
    if not kinds & {int, float}:
        raise ConfigError(
            f"--search {key}={text}: {key} is not a number, so that it has no range; write "
            f"{key}=[A, B, ...]"
        )
    words = text.split(":")
    log = words[0].strip() == "log"
    ends = words[1:] if log else words
    if len(ends) != 2:
        raise ConfigError(f"--search {key}={text}: {_FORMS}")
    low, high = (_number(key, end) for end in ends)
    if whole and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"--search {key}={text}: {key} is a whole number, and so are its ends")
    if not low < high:
        raise ConfigError(f"--search {key}={text}: the low end comes first, and is below the high")
    if log and not low > 0:
        raise ConfigError(f"--search {key}={text}: a logarithmic range is above zero")
    return Range(int(low), int(high), log) if whole else Range(low, high, log)


def _number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"--search {key}: '{text.strip()}' is not a number; {_FORMS}")
    return number
