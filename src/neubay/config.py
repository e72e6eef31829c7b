"""Configuration as data: one frozen model per stage, two presets, and the variants.

`paper` is the published setting of each benchmark, `cpu` a reduced one that gives real results
on two cores. `resolve` puts a run's settings together, for the command line, Python and the
analyses alike. Unknown keys are errors. Which benchmark a dataset belongs to is decided in
`tasks/`, and handed in here as a `Published` record.
"""

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from neubay.errors import ConfigError

Preset = Literal["paper", "cpu"]
UNSETTLED = "a setting is left to the data: `settle` was not called"
Benchmark = Literal["locomotion", "adroit", "antmaze", "bandit", "cartpole", "other"]
Variant = Literal[
    "neubay", "mbpo", "mopo", "morel", "maple", "markov", "sac", "bc", "bc-best", "oracle"
]
EndedBy = Literal["rule", "learned", "none"]
"""What tells terminal states in imagination: the task's rule, the members' heads, or nothing."""


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    later: ClassVar[frozenset[str]] = frozenset()
    """Settings that earlier versions did not have, and whose default is what these did."""

    def record(self) -> dict[str, Any]:
        """As runs and worlds remember it: a later setting is left out at its default, so that what
        was begun before there was such a setting is still the same run, or the same world."""
        kept: dict[str, Any] = {}
        for name, value in self:
            if isinstance(value, Section):
                kept[name] = value.record()
            elif name not in self.later or value != type(self).model_fields[name].default:
                kept[name] = value
        return kept


AnySection = TypeVar("AnySection", bound=Section)
Value = TypeVar("Value")


class WorldConfig(Section):
    """The world ensemble: members, their training and their selection."""

    width: int = Field(200, ge=1)
    """Units of each hidden layer."""
    depth: int = Field(4, ge=1)
    """Hidden layers."""
    layer_norm: bool = True
    """LayerNorm in every hidden block; off is the paper's ablation."""
    pool: int = Field(128, ge=1)
    """Members trained together."""
    members: int = Field(100, ge=1)
    """N, the best members kept as the posterior."""
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(5e-5, ge=0)
    batch: int = Field(256, ge=1)
    """Transitions per member and gradient step."""
    max_epochs: int | None = Field(None, ge=1)
    """Epoch cap; none trains until early stopping."""
    max_steps: int | None = Field(None, ge=1)
    """The same in gradient steps, rounded down to whole epochs: small data is seen more often."""
    decay: bool = False
    """Let the rate fall to zero along a cosine over the steps that the caps allow: what is left of
    the error is then mostly not noise of the last steps."""
    patience: int = Field(5, ge=1)
    """Epochs without any member improving before training stops."""
    improvement: float = Field(0.01, ge=0)
    """By how much a member's validation error must fall to count as improved."""
    improvement_kind: Literal["relative", "absolute"] = "relative"
    selection: Literal["mse", "nll"] = "mse"
    """What members are ranked and early-stopped by on the validation split."""
    validation_fraction: float = Field(0.2, gt=0, lt=1)
    validation_max: int | None = Field(1000, ge=1)
    """Cap on validation transitions; none for no cap."""
    unit: Literal["state", "change"] = "state"
    """What s' - s is learned in units of: the states' std, or the std of the changes themselves, in
    which slow dimensions count as much as fast ones."""
    beta: float = Field(0.0, ge=0, le=1)
    """Weight sigma^(2 beta) of each dimension in the likelihood (beta-NLL): 0 for the plain one,
    which soon neglects what it took for noise, 1 for the squared error."""
    average: float = Field(0.0, ge=0, lt=1)
    """Members are a running mean of their weights, which forgets a step to this share: 0.999 is a
    mean of about a thousand steps, without the noise of the last ones. 0 for the weights as they
    are."""
    resample: bool = False
    """Every member learns from a bootstrap of its own: whole episodes, drawn with replacement."""
    prior: float | None = Field(0.0, ge=0)
    """Weight of a prior beside the data, for logs of one controller: at random actions each member
    also learns a random function of its own, so that members differ where nothing was tried. It
    blurs data whose actions are varied. None: by the data's actions (`prior_of`)."""
    quantifier: Literal["disagreement", "aleatoric", "total"] = "disagreement"
    """U(s, a): across-member std of the means (the paper's), MOPO's max sigma, or total std."""
    termination: Literal["auto", "rule", "learned", "none"] = "auto"
    """What ends imagined episodes: the task's rule, heads that learn it from the data's terminals,
    or nothing. auto: the rule where one is known, else learned where there are terminals."""
    later: ClassVar[frozenset[str]] = frozenset(
        {"decay", "termination", "unit", "beta", "average", "resample", "prior"}
    )

    @model_validator(mode="after")
    def _members_fit_pool(self) -> "WorldConfig":
        if self.members > self.pool:
            raise ValueError(
                f"members ({self.members}) exceeds pool ({self.pool}): "
                "only trained members can be kept"
            )
        if self.decay and self.max_epochs is None and self.max_steps is None:
            raise ValueError("decay needs a cap to end at: set max_epochs or max_steps")
        if self.prior and self.unit != "change":
            raise ValueError("prior needs unit change: it expects steps as large as the data's")
        return self


def _quantile(value: Any) -> float | Literal["auto"] | None:
    """A quantile, also as text, or what stands in its place."""
    try:
        if value in (None, "auto") or 0 <= float(value) <= 1:
            return value if value in (None, "auto") else float(value)
    except (TypeError, ValueError):
        pass
    raise PydanticCustomError("quantile", "must be a number from 0 to 1, 'auto' or none")


class RolloutConfig(Section):
    """Imagination: Algorithm 2 and its ablations."""

    rollouts: int = Field(100, ge=1)
    """K, rollouts imagined in parallel."""
    zeta: Annotated[float | Literal["auto"] | None, BeforeValidator(_quantile)] = 1.0
    """Quantile of U over the data beyond which a rollout is cut; none turns truncation off, auto
    leaves it to the data (`settle`)."""
    horizon: int | None = Field(None, ge=1)
    """Fixed cap H on imagined steps; none for adaptive horizons."""
    penalty: float = Field(0.0, ge=0)
    """lambda, the uncertainty penalty on imagined rewards in units of U / mean_D(U)."""
    start: Literal["any", "initial"] = "any"
    """Branch from any time step of the data, or from s_0 only."""
    initial_share: float = Field(0.0, ge=0, le=1)
    """Share of the rollouts that branch from s_0, where policies will begin."""
    redraw_member: bool = False
    """Draw a new member at every step (MBPO style) instead of one per rollout."""
    widen: float | None = Field(0.0, ge=0)
    """k: a rollout lives in m + k (m - m'), for two members m and m' that are drawn for it. Members
    agree more than they are right, and such worlds lie as far apart as their errors. None: by the
    data's actions (`settle`)."""
    halt_penalty: float | None = None
    """MOReL: crossing the threshold is terminal and costs this much; none: it only truncates."""
    simulator: bool = False
    """Imagine in the task's simulator in place of the worlds, to see whether these or the agent
    limit a score: no offline learning."""
    later: ClassVar[frozenset[str]] = frozenset({"simulator", "widen"})

    @property
    def cut(self) -> float | None:
        """zeta, once it is known."""
        if self.zeta == "auto":
            raise ValueError(UNSETTLED)
        return self.zeta


class AgentConfig(Section):
    """The recurrent agent and its optimisation."""

    algorithm: Literal["redq", "dqn", "bc"] = "redq"
    memory: Literal["lru", "gated", "none"] = "lru"
    """Recurrent encoder; the same beside the state, through a gate that starts at zero; or none
    for the Markov agent."""
    standardise: bool = False
    """Standardise states and rewards by the data's constants before the encoders see them."""
    width: int = Field(256, ge=1)
    """Units of encoder and heads."""
    memory_size: int = Field(128, ge=1)
    """Complex hidden units of each LRU layer."""
    memory_layers: int = Field(2, ge=1)
    head_depth: int = Field(2, ge=1)
    heads: int = Field(10, ge=1)
    """Critic heads (REDQ 10, SAC 2)."""
    target_heads: int = Field(2, ge=1)
    """Heads drawn at random for the minimum in the target."""
    encoder_lr: float = Field(3e-6, gt=0)
    """eta_phi, the small learning rate of the recurrent encoders."""
    head_lr: float = Field(1e-4, gt=0)
    alpha_lr: float = Field(1e-4, gt=0)
    kappa: float | None = Field(0.5, ge=0, le=1)
    """Weight of real rows against imagined rows in every loss; none: by the data (`settle`)."""
    gamma: float | None = Field(0.99, ge=0, lt=1)
    """Discount; none: by the data's horizon (`settle`)."""
    value_unit: float | None = Field(1.0, gt=0)
    """What the critic's output of 1 stands for; none: by the data's rewards (`settle`)."""
    huber: float = Field(1.0, gt=0)
    """Temporal-difference error, in units of the values, beyond which the critic's loss grows
    linearly."""
    polyak: float = Field(0.005, gt=0, le=1)
    decay_critic: bool = False
    """Let the critic's rates fall to zero over the training as the actor's do."""
    alpha: float = Field(0.2, gt=0)
    """Initial entropy coefficient, or the coefficient when it is not tuned."""
    tune_alpha: bool = True
    target_entropy: float = -1.0
    """Target entropy in units of dim(A)."""
    clip_norm: float = Field(1000.0, gt=0)
    """Global gradient norm clip."""
    steps: int | None = Field(2_000_000, ge=1)
    """Gradient steps; none: by the data's horizon (`settle`)."""
    warm_start: int = Field(0, ge=0)
    """Gradient steps on the data before the training: the actor clones it, the critic learns its
    discounted returns. A starting point, which nothing holds the agent to."""
    updates_per_row: float = Field(0.05, gt=0)
    """Gradient steps per transition added to the replay, those of the real history included."""
    tape: int | None = Field(2048, ge=2)
    """Rows of one training batch; none for the smallest multiple of 512 that holds an episode.
    With windows: the rows that are learnt from, in windows of different trajectories."""
    window: int | None = Field(None, ge=1)
    """Rows that are learnt from of each trajectory in a batch; none for whole trajectories."""
    burn_in: int = Field(0, ge=0)
    """Rows before a window that are read without loss, to bring the memory up to date."""
    buffer: int = Field(40_000_000, ge=1)
    """Rows the replay holds before it overwrites the oldest trajectories."""
    epsilon_final: float = Field(0.1, ge=0, le=1)
    """Discrete control: exploration falls from 1 to this over a first share of the steps."""
    epsilon_share: float = Field(0.1, gt=0, le=1)
    average_share: float = Field(0.0, ge=0, le=1)
    """Share of the gradient steps, the last ones, over which the weights of the policy that is kept
    are averaged; 0 for those of the last step. The policy that imagines has the latter."""
    best_share: float = Field(1.0, gt=0, le=1)
    """Cloning: the share of the data's steps that is cloned, of the episodes worth most."""
    later: ClassVar[frozenset[str]] = frozenset({"average_share", "best_share"})

    @model_validator(mode="after")
    def _target_heads_exist(self) -> "AgentConfig":
        if self.target_heads > self.heads:
            raise ValueError(f"target_heads ({self.target_heads}) exceeds heads ({self.heads})")
        return self


class EvaluationConfig(Section):
    """Scoring in the real environment."""

    evaluations: int = Field(100, ge=1)
    """Evaluations over the whole training, the last one at its end."""
    episodes: int = Field(20, ge=1)
    """E, full episodes per evaluation."""


class TrainConfig(Section):
    """Everything that decides the numbers of a run."""

    seed: int = Field(0, ge=0)
    world: WorldConfig = WorldConfig()
    rollout: RolloutConfig = RolloutConfig()
    agent: AgentConfig = AgentConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


class SelectionConfig(Section):
    """What is judged at a run's end; it decides no number of the training."""

    judge_seed: int = Field(0, ge=0)
    """Decides the judge's members and their episodes, the starts and the random keys; also the
    clone's."""
    baseline: bool = True
    """Train a clone of the data to compare with."""
    clone_steps: int | None = Field(None, ge=1)
    """Gradient steps of the clone; none for a quarter of the agent's."""


class Published(Section):
    """What the paper fixes per dataset; `tasks.published_settings` fills it in."""

    benchmark: Benchmark = "other"
    """Whose settings hold; `other` for own data and small tasks."""
    encoder_lr: float | None = None
    kappa: float | None = None
    max_epochs: int | None = None
    fixed_alpha: float | None = None
    """Hopper's fixed entropy coefficient; none where alpha is tuned."""
    discrete: bool = False
    """Discrete actions, and so DQN."""


def updated(
    config: AnySection, changes: Mapping[str, Any], where: str = "configuration"
) -> AnySection:
    """A validated copy of `config` with nested changes, such as {"agent": {"kappa": 0.8}}."""

    def merged(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **old,
            **{
                key: merged(old[key], value)
                if isinstance(value, dict) and isinstance(old.get(key), dict)
                else value
                for key, value in new.items()
            },
        }

    return validated(type(config), merged(config.model_dump(), changes), where)


def validated(
    model: type[AnySection], values: dict[str, Any], where: str = "configuration"
) -> AnySection:
    """Build `model` from plain values; what is wrong becomes one `ConfigError` with suggestions."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(f"{where}: {_explain(model, item)}" for item in error.errors())
        ) from None


def _explain(model: type[Section], item: Any) -> str:
    path = ".".join(map(str, item["loc"]))
    if item["type"] != "extra_forbidden":
        return f"{path} {shown(item['input'])}: {in_words(item)}".lstrip()
    fields: list[str] = _field_paths(model)
    if path in fields:  # in one word, as a flag has it
        section, _, leaf = path.rpartition(".")
        return f"unknown key '{path}': write it nested, {{'{section}': {{'{leaf}': ...}}}}"
    close = difflib.get_close_matches(path, fields, n=1, cutoff=0.5)
    if not close:  # the right name in the wrong section
        leaf = path.rsplit(".", 1)[-1]
        close = [field for field in fields if field.rsplit(".", 1)[-1] == leaf][:1]
    hint = f"; did you mean '{close[0]}'?" if close else f"; known keys: {', '.join(fields)}"
    return f"unknown key '{path}'{hint}"


# What pydantic finds wrong with a value -> what we say; `{...}` is filled in from its context.
_WORDS = {
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be below {lt:g}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be a section of settings"),
    "value_error": "{error}",
}


def in_words(item: Any) -> str:
    """What is wrong with a value, from an entry of a pydantic error."""
    words = _WORDS.get(item["type"])
    return str(item["msg"]) if words is None else words.format(**item.get("ctx", {}))


def shown(value: Any) -> str:
    """A value as a user wrote it; nothing for a whole section."""
    return "" if isinstance(value, dict | Section) else str(value).removesuffix(".0")


def _field_paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    paths: list[str] = []
    for name, field in model.model_fields.items():
        paths.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            paths += _field_paths(field.annotation, f"{prefix}{name}.")
    return paths


LARGEST_YAML = 100_000
"""Bytes of a file of settings: more is not one."""
DEEPEST_YAML = 20
MOST_YAML = 10_000
"""Values of a file of settings, those that aliases repeat counted each time."""


class _Loader(yaml.SafeLoader):
    """YAML's own loader of plain values, which refuses keys given twice and absurd numbers."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise yaml.YAMLError(f"the key '{key.value}' is given twice, in line {line}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = int(super().construct_yaml_int(node))
        if abs(number) > 1 << 63:  # also one that is written as 59:59:59:...
            raise yaml.YAMLError(f"a number is too large, in line {node.start_mark.line + 1}")
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_yaml(path: Path) -> dict[str, Any]:
    """Nested settings from a YAML file, to be merged over a preset by `updated`."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: is not a file")
        with path.open("rb") as file:
            content = file.read(LARGEST_YAML + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}") from None
    if len(content) > LARGEST_YAML:
        raise ConfigError(f"{path}: more than {LARGEST_YAML:,} bytes, which is no file of settings")
    try:
        _refuse_huge_yaml(text)
        values = _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: expected settings such as 'agent:', got {type(values).__name__}"
        )
    return values


def _refuse_huge_yaml(text: str) -> None:
    """Refuse what is small as a text and huge as values: deep nesting, aliases of aliases."""
    sizes: dict[str, int] = {}  # anchor -> values below it
    open_nodes: list[tuple[str | None, int]] = []  # anchor, values before it
    count = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise yaml.YAMLError(f"the alias '*{event.anchor}' has no anchor before it")
            count += sizes[event.anchor]
        elif isinstance(event, yaml.NodeEvent):
            count += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, count - 1))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
        if len(open_nodes) > DEEPEST_YAML:
            raise yaml.YAMLError(f"nested more than {DEEPEST_YAML} levels deep")
        if count > MOST_YAML:
            raise yaml.YAMLError(f"more than {MOST_YAML:,} values, aliases counted each time")


# What a benchmark changes in the published setting of locomotion. CartPole is not in the paper. Its
# random data stops a third of the way to the track's end and is uncertain beyond, so that only
# rollouts without truncation reach the end of the track. The pole's motion does not depend on where
# the cart is, so that they can be trusted there.
_PAPER_BENCHMARKS: dict[Benchmark, dict[str, Any]] = {
    "locomotion": {},
    "other": {},
    "cartpole": {"rollout": {"zeta": None}},
    "adroit": {
        "world": {"width": 400, "depth": 5, "learning_rate": 3e-4},
        "agent": {"head_depth": 3, "clip_norm": 10_000.0, "alpha": 0.1, "tape": 1024},
    },
    "antmaze": {
        "agent": {
            "clip_norm": 1.0,
            "alpha": 1e-5,
            "target_entropy": -10.0,
            "steps": 3_000_000,
            "buffer": 60_000_000,
        },
        "evaluation": {"episodes": 100},
    },
    "bandit": {
        "world": {
            "width": 16,
            "depth": 2,
            "weight_decay": 1e-4,
            "batch": 128,
            "max_epochs": 500,
            "improvement": 0.001,
            "improvement_kind": "absolute",
            "selection": "nll",
            "validation_max": None,
        },
        "rollout": {"zeta": None, "start": "initial"},
        "agent": {
            "algorithm": "dqn",
            "clip_norm": 1.0,
            "steps": 20_000,
            "updates_per_row": 0.02,
            "tape": 1000,
            "buffer": 1_000_000,
        },
        "evaluation": {"episodes": 100},  # five test bandits, 20 episodes each
    },
}

# The reduced setting, the same for all data: small networks, larger rates, a short training. What
# is left to the data (none) follows from it by the rules of `settle`. docs/results/learning.md has
# the experiments behind it.
_CPU: dict[str, Any] = {
    "world": {
        "width": 128,
        "depth": 3,
        "pool": 40,
        "members": 36,  # ten are soon learned by heart
        "batch": 128,
        "learning_rate": 1e-2,
        "decay": True,  # with it, and a batch of half the rows, a fit takes half the time
        "max_epochs": 1_200,  # less than 1,250 transitions need fewer steps
        "max_steps": 11_700,  # 15 epochs of 100,000 transitions
        "unit": "change",
        "beta": 0.5,  # halves the error at equal time
        "prior": None,
    },
    "rollout": {"rollouts": 50, "initial_share": 0.2, "zeta": "auto", "widen": None},
    "agent": {
        "width": 64,
        "memory": "gated",
        "memory_size": 32,
        "memory_layers": 1,
        "standardise": True,
        "heads": 4,
        "encoder_lr": 3e-5,  # a tenth of the heads': faster memories learn the members by heart
        "head_lr": 3e-4,
        "alpha_lr": 3e-4,
        "kappa": None,
        "gamma": None,
        "value_unit": None,
        "huber": 3.0,
        "polyak": 0.01,
        "average_share": 0.4,  # the last step alone is a draw where a policy swings
        "steps": None,
        "updates_per_row": 0.0125,  # imagination is cheap here: more of it, and fresher
        "tape": 512,
        "window": 16,
        "burn_in": 16,
        "buffer": 2_000_000,
    },
    "evaluation": {"evaluations": 20, "episodes": 20},
}

# The bandit of the paper's Section 3, in a reduced setting: its world is small as it is, and its
# agent is one of the smallest that remembers a whole episode; docs/results/bandit.md.
_CPU_BANDIT: dict[str, Any] = {
    "world": {"pool": 128, "members": 100},
    "agent": {
        "width": 64,
        "memory_size": 96,
        "memory_layers": 1,
        "heads": 4,
        "encoder_lr": 3e-4,
        "head_lr": 1e-3,
        "alpha_lr": 1e-3,
        "polyak": 0.02,
        "decay_critic": True,
        "steps": 10_000,
        "tape": 1010,
        "buffer": 2_000_000,
    },
    "evaluation": {"evaluations": 20, "episodes": 100},
}


class Facts(Section):
    """What settings may follow from: numbers of the data, never its name."""

    horizon: int = Field(ge=1)
    """T, the longest that an episode can be."""
    reward_rms: float = Field(ge=0)
    """Root mean square of the rewards."""
    foretold: float = Field(0.0, le=1)
    """Share of the actions' variance that a linear function of the states foretells: 0 or less for
    random actions."""
    terminals: bool = True
    """Some step of it led into a terminal state."""


STEPS_OF_HORIZON = 40
SMALLEST_BUDGET, LARGEST_BUDGET = 8_000, 100_000
LARGEST_GAMMA, ENDLESS_GAMMA = 0.997, 0.99
WIDENED, LEAST_FORETOLD = 0.5, 0.1
PRIOR, MOSTLY_FORETOLD = 0.5, 0.6


def of_a_policy(foretold: float) -> bool:
    """Whether what acted looked at the states: a tenth of its actions' variance shows it."""
    return foretold >= LEAST_FORETOLD


def prior_of(world: WorldConfig, facts: Facts) -> float:
    """The weight of a world's prior. Where it is left to the data it is 1/2 for a log of one
    controller, whose actions mostly follow from the states, else 0."""
    if world.prior is not None:
        return world.prior
    narrow = facts.foretold >= MOSTLY_FORETOLD and world.unit == "change"
    return PRIOR if narrow else 0.0


def settle(config: TrainConfig, facts: Facts) -> TrainConfig:
    """Fill in the settings that are left to the data.

    gamma = 1 - 3 / T, at most 0.997: what lies within a third of the longest episode counts, as an
    early end costs all of it. Where no step of the data led into a terminal state at most 0.99, as
    published: nothing that is done now can cost so much later, and values are learned sooner.
    value_unit = rms reward / sqrt(1 - gamma): between a reward and the sum of a whole episode's.
    steps = 40 T, at least 8,000 and at most 100,000: longer episodes are harder to learn, and take
    longer to imagine; networks need some thousands of steps for the shortest.
    kappa = 1/2.
    widen = 1/2 where states foretell a tenth of the actions' variance or more, else 0: logs of
    policies show little of what other actions do, and policies must keep a distance from what only
    just works in their worlds; logs of random actions show it, and keeping a distance costs.
    zeta = none where random actions led into terminal states, else 1: there nearly all that a
    policy does at first ends soon, beyond the data. A cut before the end hides it, and what is
    expected of a state at which rollouts are cut is never corrected.
    prior: see `prior_of`.
    """
    agent = config.agent
    gamma = agent.gamma
    if gamma is None:
        largest = LARGEST_GAMMA if facts.terminals else ENDLESS_GAMMA
        gamma = min(1 - 3 / max(facts.horizon, 4), largest)
    in_proportion = max(STEPS_OF_HORIZON * facts.horizon, SMALLEST_BUDGET)
    steps = agent.steps or min(in_proportion, LARGEST_BUDGET)
    unit = agent.value_unit or facts.reward_rms / math.sqrt(1 - gamma) or 1.0
    kappa = 0.5 if agent.kappa is None else agent.kappa
    changes = {"gamma": gamma, "steps": steps, "value_unit": unit, "kappa": kappa}
    widen, zeta = config.rollout.widen, config.rollout.zeta
    if widen is None:
        widen = WIDENED if of_a_policy(facts.foretold) else 0.0
    if zeta == "auto":
        zeta = None if facts.terminals and not of_a_policy(facts.foretold) else 1.0
    rollout = {"widen": widen, "zeta": zeta}
    world = {"prior": prior_of(config.world, facts)}
    return updated(config, {"world": world, "agent": changes, "rollout": rollout})


def later_defaults() -> dict[str, Any]:
    """What runs that do not name a later setting did, as 'agent.average_share': 0."""
    sections = {
        name: field.annotation
        for name, field in TrainConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    return {
        f"{section}.{name}": kind.model_fields[name].default
        for section, kind in sections.items()
        for name in sorted(kind.later)
    }


def known(setting: Value | None) -> Value:
    """The value of a setting that `settle` has filled in."""
    if setting is None:
        raise ValueError(UNSETTLED)
    return setting


def default_preset() -> Preset:
    """`cpu` on CPUs, `paper` on accelerators."""
    from neubay.devices import choices  # here, as it imports JAX: a configuration is read without

    return choices.sizes()


def resolve(
    published: Published | None,
    preset_name: Preset,
    variant: str = "neubay",
    changes: Mapping[str, Any] | None = None,
    where: str = "configuration",
) -> TrainConfig:
    """The settings of a run: the preset of its dataset, then the variant, then the changes.

    Args:
        published: what the paper fixes for the dataset, from `tasks.published_settings`.
        changes: nested settings, such as {"agent": {"kappa": 0.8}}.
        where: the changes' origin, which messages name.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"unknown variant '{variant}'; known: {', '.join(VARIANTS)}")
    return updated(updated(preset(preset_name, published), VARIANTS[variant]), changes or {}, where)


def preset(name: Preset, published: Published | None = None) -> TrainConfig:
    """The `paper` setting of a dataset, or the `cpu` setting for it."""
    if name not in get_args(Preset):
        raise ConfigError(f"unknown preset '{name}'; known: {', '.join(get_args(Preset))}")
    published = published or Published()
    if name == "cpu" and published.benchmark != "bandit":  # no name decides a setting
        algorithm = {"algorithm": "dqn"} if published.discrete else {}
        return updated(updated(TrainConfig(), _CPU), {"agent": algorithm})
    config = updated(TrainConfig(), _PAPER_BENCHMARKS[published.benchmark])
    if name == "cpu":
        return updated(config, _CPU_BANDIT)
    fixed: dict[str, dict[str, Any]] = {
        "world": {"max_epochs": published.max_epochs},
        "agent": {
            "algorithm": "dqn" if published.discrete else None,
            "encoder_lr": published.encoder_lr,
            "kappa": published.kappa,
            "alpha": published.fixed_alpha,
            "tune_alpha": None if published.fixed_alpha is None else False,
        },
    }
    return updated(
        config,
        {
            section: {name: value for name, value in values.items() if value is not None}
            for section, values in fixed.items()
        },
    )


# Networks as large as the agent's; the rest is cloning's own, whatever the preset.
_CLONING: dict[str, Any] = {
    "algorithm": "bc",
    "memory": "gated",
    "standardise": True,
    "encoder_lr": 1e-3,
    "head_lr": 1e-3,
    "tape": 512,
    "window": 16,
    "burn_in": 16,
    "average_share": 0.0,  # its weights are those under which held-out actions are likeliest
    "steps": 10_000,
}

# The method and its relatives, assembled from the same code for comparison at equal budget.
VARIANTS: dict[str, dict[str, Any]] = {
    "neubay": {},
    "mbpo": {
        "world": {"prior": 0.0},
        "rollout": {"zeta": None, "horizon": 5, "redraw_member": True, "widen": 0.0},
        "agent": {"memory": "none", "heads": 2, "target_heads": 2, "kappa": 0.05},
    },
    "mopo": {
        "world": {"quantifier": "aleatoric", "prior": 0.0},
        "rollout": {
            "zeta": None,
            "horizon": 5,
            "redraw_member": True,
            "penalty": 1.0,
            "widen": 0.0,
        },
        "agent": {"memory": "none", "heads": 2, "target_heads": 2, "kappa": 0.05},
    },
    "morel": {
        "world": {"prior": 0.0},
        "rollout": {
            "zeta": 1.0,
            "horizon": 500,
            "redraw_member": True,
            "halt_penalty": 100.0,
            "widen": 0.0,
        },
        "agent": {"memory": "none", "heads": 2, "target_heads": 2},
    },
    "maple": {
        "world": {"prior": 0.0},
        "rollout": {"zeta": None, "horizon": 20, "penalty": 0.25, "widen": 0.0},
        "agent": {"heads": 2, "target_heads": 2, "kappa": 0.05},
    },
    "markov": {"agent": {"memory": "none", "window": 1, "burn_in": 0}},
    "sac": {"agent": {"heads": 2, "target_heads": 2}},
    "bc": {"agent": _CLONING},
    "bc-best": {"agent": _CLONING | {"best_share": 0.25}},
    # What the agent reaches where its worlds are right: the simulator itself, never unsure.
    "oracle": {"rollout": {"zeta": None, "simulator": True, "widen": 0.0}},
}
