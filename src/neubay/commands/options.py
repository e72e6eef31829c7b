"""Which data a command is given, and flags over a file over a preset: how the commands that train
build their configuration.

The preset depends on the dataset, and the flags' defaults on the preset and the file. So the
command line is parsed twice: once for what decides the defaults, once for everything.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import tyro
from pydantic import ValidationError
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from neubay.config import (
    VARIANTS,
    Preset,
    Published,
    Section,
    TrainConfig,
    Variant,
    WorldConfig,
    default_preset,
    in_words,
    read_yaml,
    resolve,
    shown,
)
from neubay.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    from neubay.data import Dataset
    from neubay.data.sources import Bounds
    from neubay.runs.messages import Tell
    from neubay.tasks import Task


def described(metavar: str | None = None, help: str | None = None) -> Any:
    """How an argument looks in the help text."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, described()]
File = Annotated[Path | None, described("FILE")]
"""A file that need not be given."""


@dataclass(frozen=True)
class TaskFlags:
    """What the data belongs to, the same flags for every command that takes data."""

    task: Annotated[str | None, described("NAME|none")] = None
    """The task the data belongs to, where its name does not say; 'none': to no task."""
    task_file: Annotated[Path | None, described("FILE")] = None
    """A task of your own: a .yaml file, or a .py file, which is run."""
    action_low: Annotated[str | None, described("X|X,X,...")] = None
    """The lowest value of the actions, one for all or one each, of data that belongs to no task."""
    action_high: Annotated[str | None, described("X|X,X,...")] = None
    """The highest."""

    def chosen(self) -> "Task | str | None":
        """The task to give to `load`."""
        if self.task_file is None:
            return self.task
        if self.task is not None:
            raise ConfigError("give --task or --task-file, not both")
        from neubay.tasks.files import read_task

        return read_task(self.task_file)

    @property
    def action_bounds(self) -> "Bounds | None":
        return action_bounds(self.action_low, self.action_high)

    def words(self) -> list[str]:
        """As words of a command."""
        given = [(field.name, getattr(self, field.name)) for field in fields(TaskFlags)]
        return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]

    def record(self) -> dict[str, str]:
        """What a run remembers: it is not resumed with another task file."""
        if self.task_file is None:
            return {}
        from neubay.tasks.files import fingerprint

        return {"task_file": fingerprint(self.task_file)}


Unprefixed = tyro.conf.arg(name="")
Belongs = Annotated[TaskFlags, Unprefixed]
NO_FLAGS = TaskFlags()


def action_bounds(low: str | None, high: str | None) -> "Bounds | None":
    """Bounds of actions from the two flags."""
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise ConfigError("give both --action-low and --action-high, or neither")
    bounds = [numbers("--action-low", low), numbers("--action-high", high)]
    first, second = (bound[0] if len(bound) == 1 else bound for bound in bounds)
    return first, second


def numbers(flag: str, text: str) -> list[float]:
    """Numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag} {text}: expected a number, or several with commas") from None


@dataclass(frozen=True)
class Settings(TaskFlags):
    """What decides the defaults of all other flags."""

    dataset: tyro.conf.Positional[str] = "pendulum"
    """A file, d4rl:NAME, neorl:NAME, minari:ID, or pendulum, the built-in one."""
    preset: Preset | None = None
    """Published sizes, or sizes for two cores; by default cpu unless there is an accelerator."""
    config: Path | None = None
    """A YAML file of settings, such as 'agent: {kappa: 0.8}'; flags override it."""

    @property
    def preset_name(self) -> Preset:
        return self.preset or default_preset()

    def about(self) -> dict[str, str]:
        """What the run.json of a run says of them."""
        variant = getattr(self, "variant", "neubay")
        return {"preset": self.preset_name, "variant": variant, **self.record()}


@dataclass(frozen=True)
class TrainSettings(Settings):
    variant: Variant = "neubay"
    """The method, or a relative assembled from the same code."""


class NamedDataset:
    """The dataset that a command names: found, checked and opened once, read when needed."""

    def __init__(self, spec: str, flags: TaskFlags) -> None:
        from neubay.data.sources import NO_TASK, identity, locate, open_source
        from neubay.tasks import get_task, published_settings

        wanted, bounds = flags.chosen(), flags.action_bounds
        if isinstance(wanted, str) and wanted != NO_TASK:
            wanted = get_task(wanted)
        self._open = ExitStack()
        try:
            self._source = self._open.enter_context(open_source(locate(spec), wanted, bounds))
            known, name = self._source.task, self._source.published
        except DatasetError as problem:
            # Flags and help still follow the name; `load` reports the problem.
            self._problem = problem
            known = None if isinstance(wanted, str) else wanted
            known, name, _ = identity(spec.split(":", 1)[-1], None, known)
        self.published: Published = published_settings(known, name)
        """What the paper fixes for it."""

    def load(self, tell: "Tell") -> "Dataset":
        """Read it, once; `tell` is given what was concluded from its name or assumed."""
        if problem := getattr(self, "_problem", None):
            raise problem
        with self._open:
            return self._source.load(tell)

    def close(self) -> None:
        self._open.close()


def named_data(spec: str, flags: TaskFlags, tell: "Tell") -> "Dataset":
    """Read the dataset that a command names, with what its flags say of it."""
    from neubay.data import load

    return load(spec, flags.chosen(), action_bounds=flags.action_bounds, tell=tell)


def train_defaults(settings: Settings, published: Published) -> TrainConfig:
    """Preset of the dataset, then the variant, then the file."""
    changes = {} if settings.config is None else read_yaml(settings.config)
    variant = getattr(settings, "variant", "neubay")
    return resolve(published, settings.preset_name, variant, changes, str(settings.config))


def world_defaults(settings: Settings, published: Published) -> WorldConfig:
    """The world's part of the same; its file may be one for training, or hold its keys alone."""
    changes = {} if settings.config is None else read_yaml(settings.config)
    if changes.keys() & TrainConfig.model_fields.keys():
        changes = changes.get("world", {})
    where = str(settings.config)
    return resolve(published, settings.preset_name, "neubay", {"world": changes}, where).world


_UNCHECKED = ConstructorRegistry()


@_UNCHECKED.struct_rule
def _flags_of_section(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The fields of a section as flags, whose values `parse` checks all together: where a section
    checks its own, tyro prints pydantic's message, which does not name the flag."""
    if not (isinstance(info.type, type) and issubclass(info.type, Section)):
        return None
    flags = tuple(
        StructFieldSpec(name, field.annotation, getattr(info.default, name), field.description)  # type: ignore[arg-type]
        for name, field in info.type.model_fields.items()
    )

    def unchecked(**values: Any) -> Section:
        return info.type.model_construct(**values)

    unchecked.__doc__ = info.type.__doc__  # heads the section in the help text
    return StructConstructorSpec(unchecked, flags)


Flags = TypeVar("Flags")


def parse(
    flags: type[Flags],
    settings: type[Settings],
    defaults: Callable[[Any, Published], Section],
    arguments: list[str],
    *,
    prog: str,
    description: str,
) -> tuple[Flags, NamedDataset]:
    """Parse `arguments` into `flags`, a dataclass with the fields `settings` and `values`, whose
    defaults `defaults` makes from the settings; and the dataset that they name."""
    make: Any = flags
    guess = _parse_settings(settings, arguments)
    dataset = NamedDataset(guess.dataset, guess)
    try:
        while True:
            default = make(settings=guess, values=defaults(guess, dataset.published))
            parsed = tyro.cli(
                make,
                args=_with_none_spelled(arguments, default.values),
                default=default,
                prog=prog,
                description=description,
                registry=_UNCHECKED,
            )
            found = parsed.settings
            if found == guess:
                return replace(parsed, values=_checked(parsed.values)), dataset
            # The dataset stood behind another flag: its defaults are others.
            if (found.dataset, found.words()) != (guess.dataset, guess.words()):
                dataset.close()
                dataset = NamedDataset(found.dataset, found)
            guess = found
    except BaseException:  # help, a wrong flag, Ctrl-C: no file stays open
        dataset.close()
        raise


def _checked(values: Section) -> Section:
    try:
        return type(values).model_validate(values.model_dump())
    except ValidationError as error:
        raise ConfigError("\n".join(map(_flag_problem, error.errors()))) from None


def _flag_problem(item: Any) -> str:
    """Such as '--agent.kappa 1.5: must be at most 1'."""
    flag = ".".join(str(part).replace("_", "-") for part in item["loc"])
    if item["type"] == "value_error":  # flags that do not go together
        return f"{flag}: {in_words(item)}" if flag else in_words(item)
    return f"--{flag} {shown(item['input'])}: {in_words(item)}"


def _with_none_spelled(arguments: list[str], values: Section) -> list[str]:
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


def _parse_settings(settings: type[Settings], arguments: list[str]) -> Settings:
    """The settings as far as they can be known before any other flag is."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for field in fields(settings):
        if field.name != "dataset":
            spellings = {f"--{field.name.replace('_', '-')}", f"--{field.name}"}
            parser.add_argument(*spellings, dest=field.name, default=field.default)
    try:
        seen, others = parser.parse_known_args(arguments)
    except argparse.ArgumentError:  # a flag without its value: the full parser says so
        return settings()
    found = vars(seen)
    if found.get("preset") not in (None, *get_args(Preset)) or found.get("variant") not in (
        None,
        *VARIANTS,
    ):
        return settings()
    for name in ("config", "task_file"):
        found[name] = None if found[name] is None else Path(found[name])
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
