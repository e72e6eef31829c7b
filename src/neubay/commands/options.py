"""Flags over a file over a preset: how the commands that train build their configuration.

The preset depends on the dataset, and the flags' defaults on the preset and the file. So the
command line is read twice: once for what decides the defaults, once for everything.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import tyro
from pydantic import ValidationError

from neubay.config import (
    VARIANTS,
    Preset,
    Section,
    TrainConfig,
    WorldConfig,
    default_preset,
    preset,
    read_yaml,
    updated,
    validated,
)
from neubay.errors import ConfigError

Variant = Literal["neubay", "mbpo", "mopo", "morel", "maple", "markov", "sac", "bc"]


@dataclass(frozen=True)
class Settings:
    """What decides the defaults of all other flags."""

    dataset: tyro.conf.Positional[str] = "pendulum"
    """A file, d4rl:NAME, neorl:NAME, minari:ID, or pendulum, the built-in one."""
    task: str | None = None
    """The task the data belongs to, where its name does not tell."""
    preset: Preset | None = None
    """Published sizes, or sizes for two cores; by default cpu unless there is an accelerator."""
    config: Path | None = None
    """A YAML file of settings, such as 'agent: {kappa: 0.8}'; flags go before it."""


@dataclass(frozen=True)
class TrainSettings(Settings):
    variant: Variant = "neubay"
    """The method, or a relative assembled from the same code."""


def train_defaults(settings: TrainSettings) -> TrainConfig:
    """Preset of the dataset, then the variant, then the file."""
    from neubay.data.sources import task_of
    from neubay.tasks import published_settings

    task, name = task_of(settings.dataset, settings.task)
    config: TrainConfig = preset(
        settings.preset or default_preset(), published_settings(task, name)
    )
    config = updated(config, VARIANTS[settings.variant])
    return config if settings.config is None else _with_file(config, settings.config)


def world_defaults(settings: Settings) -> WorldConfig:
    """The world's part of the same; its file may be one for training, or hold its keys alone."""
    config = train_defaults(TrainSettings(**{**vars(settings), "config": None}))
    if settings.config is None:
        return config.world
    values = read_yaml(settings.config)
    if values.keys() & (TrainConfig.model_fields.keys()):
        values = values.get("world", {})
    merged = config.world.model_dump() | values
    return validated(WorldConfig, merged, where=str(settings.config))


def _with_file(config: TrainConfig, path: Path) -> TrainConfig:
    values = read_yaml(path)
    try:
        return updated(config, values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


Unprefixed = tyro.conf.arg(name="")


def parse(
    flags: type[Any],
    settings: type[Settings],
    defaults: Callable[[Any], Any],
    arguments: list[str],
    *,
    prog: str,
    description: str,
) -> Any:
    """Read `arguments` into `flags`, a dataclass with the fields `settings` and `values`, whose
    defaults `defaults` makes from the settings."""
    guess = _glimpse(settings, arguments)
    while True:
        default = flags(settings=guess, values=defaults(guess))
        arguments = _spelled(arguments, default.values)
        try:
            parsed = tyro.cli(
                flags, args=arguments, default=default, prog=prog, description=description
            )
        except ValidationError as error:  # values that are right one by one, but not together
            raise ConfigError("; ".join(map(_told, error.errors()))) from None
        if parsed.settings == guess:
            return parsed
        guess = parsed.settings  # the dataset stood behind a flag: its defaults are others


def _spelled(arguments: list[str], values: Section) -> list[str]:
    """`none` and `null`, as help and YAML write it, in the parser's spelling; only behind flags
    that may be none: for some, such as the memory, `none` is a choice like any other."""
    optional, words, flag = set(_optional(values)), list[str](), ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            name, value = flag, argument
        spelled = "None" if name in optional and value.lower() in ("none", "null") else value
        words.append(f"{name}={spelled}" if equals else spelled)
        flag = argument
    return words


def _optional(values: Section, prefix: str = "--") -> Iterator[str]:
    for name, field in type(values).model_fields.items():
        flag, value = prefix + name.replace("_", "-"), getattr(values, name)
        if isinstance(value, Section):
            yield from _optional(value, f"{flag}.")
        elif type(None) in get_args(field.annotation):
            yield flag


def _told(item: Any) -> str:
    flag = ".".join(str(part).replace("_", "-") for part in item["loc"])
    return f"--{flag}: {item['msg']} (got {item['input']!r})" if flag else str(item["msg"])


def _glimpse(settings: type[Settings], arguments: list[str]) -> Settings:
    """The settings as far as they can be seen without knowing any other flag."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for field in fields(settings):
        if field.name != "dataset":
            parser.add_argument(f"--{field.name}", default=field.default)
    try:
        seen, others = parser.parse_known_args(arguments)
    except argparse.ArgumentError:  # a flag without its value: the full reading says so
        return settings()
    found = vars(seen)
    if found.get("preset") not in (None, "paper", "cpu") or found.get("variant") not in (
        None,
        *VARIANTS,
    ):
        return settings()
    if found["config"] is not None:
        found["config"] = Path(found["config"])
    if others and not others[0].startswith("-"):
        found["dataset"] = others[0]
    return settings(**found)


def as_flags(config: Section, defaults: Section, prefix: str = "--") -> list[str]:
    """The flags that make `config` of `defaults`."""
    words: list[str] = []
    for name, value in config:
        before, flag = getattr(defaults, name), name.replace("_", "-")
        if isinstance(value, Section):
            words += as_flags(value, before, f"{prefix}{flag}.")
        elif isinstance(value, bool) and value != before:
            words.append(f"{prefix}{flag}" if value else f"{prefix}no-{flag}")
        elif value != before:
            words += [f"{prefix}{flag}", str(value)]
    return words
