"""The card of a policy, in Markdown: what it was trained on and how, how good it is, who says so,
what its limits are, how to load it. Read from small files alone: no JAX."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neubay.errors import RunError
from neubay.runs import rundir
from neubay.runs.files import read_json, read_note
from neubay.runs.values import flat, is_number

TITLE = "# A policy for "
"""How every card begins."""

MOST_ROWS = 40
"""Observations whose ranges the card lists; more are in the files beside it."""


@dataclass(frozen=True)
class Origin:
    """Where a policy comes from, as far as files tell."""

    file: Path | None = None
    """The policy file."""
    run: dict[str, Any] = field(default_factory=dict)
    """run.json of the run that trained it."""
    summary: dict[str, Any] = field(default_factory=dict)
    selection: dict[str, Any] = field(default_factory=dict)
    """selection.json of the selection that chose it."""

    @property
    def candidate(self) -> dict[str, Any]:
        """What the selection says of the chosen policy."""
        candidates, chosen = self.selection.get("candidates", []), self.selection.get("chosen")
        found = [each for each in candidates if isinstance(each, dict)]
        return next((each for each in found if each.get("name") == chosen), {})

    @property
    def verdict(self) -> str | None:
        """That of the selection, or of the run where its selection is not at hand."""
        word = self.selection.get("verdict") or self.summary.get("verdict")
        return word if isinstance(word, str) else None


def origin_of(path: Path) -> Origin:
    """A run, a selection or a policy file. Of a run that ended with a selection, the policy is the
    one that was chosen; its last one is RUN/policy.npz."""
    if path.is_file():
        return _of_file(path)
    chosen = path / rundir.SELECTION / rundir.POLICY_FILE
    for file in (chosen, path / rundir.POLICY_FILE):
        if file.is_file():
            return _of_file(file)
    if rundir.is_run(path):
        raise RunError(f"{path}: has no {rundir.POLICY_FILE} yet; finish the run first")
    if not path.exists():
        raise RunError(f"{path}: no such run, selection or policy file; check the path")
    raise RunError(
        f"{path}: neither a run, nor a selection, nor a policy file "
        f"({rundir.RUN_FILE} or {rundir.POLICY_FILE} would be in it)"
    )


def _of_file(file: Path) -> Origin:
    folder = file.absolute().parent
    selection = {}
    if (folder / rundir.SELECTION_FILE).is_file() and file.name == rundir.POLICY_FILE:
        selection = read_json(folder / rundir.SELECTION_FILE)
    origin = Origin(file=file, selection=selection)
    trained_in = origin.candidate.get("run")
    inner = folder.name in (rundir.SELECTION, rundir.POLICIES)
    places = [Path(trained_in)] if isinstance(trained_in, str) else []
    for place in (*places, folder, *((folder.parent,) if inner else ())):
        if rundir.is_run(place):
            run = rundir.look(place)
            return Origin(file, run.about, run.summary, selection)
    return origin


def card_of(path: Path) -> str:
    """The card of a run, a selection or a policy file."""
    origin = origin_of(path)
    assert origin.file is not None
    note = read_note(origin.file)
    try:
        return card(note, origin)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a note of other things
        why = f"{type(error).__name__} {error}"
        raise RunError(f"{origin.file}: not a policy file, or a damaged one ({why})") from None


def card(note: dict[str, Any], origin: Origin) -> str:
    """The card of the policy whose file has this note."""
    sections = {
        "": _what(note, origin),
        "Verdict": _verdict(origin),
        "Scores": _scores(note, origin),
        "Data": _data(note, origin),
        "Inputs and outputs": _interface(note),
        "Limits": _limits(note),
        "Training": _training(note, origin),
        "How to load it": _loading(note),
        "Licence": _LICENCE,
    }
    texts = [f"## {title}\n\n{text}" if title else text for title, text in sections.items()]
    return "\n\n".join([f"{TITLE}{_code(note['task'])}", *texts]) + "\n"


def _what(note: dict[str, Any], origin: Origin) -> str:
    agent = note["agent"]
    kind = {
        "lru": "It remembers: every action follows from all of the episode so far.",
        "gated": "It remembers: every action follows from the state and from the episode so far.",
        "none": "It has no memory: every action follows from the observation alone.",
    }[agent["memory"]]
    best = agent.get("best_share", 1)
    how = {
        "bc": "A clone of the data's behaviour."
        if best == 1
        else f"A clone of the data's best episodes ({best:.0%} of its steps).",
        "dqn": "Trained by neubay: a posterior over worlds, imagined rollouts, a Q-network.",
        "redq": "Trained by neubay: a posterior over worlds, imagined rollouts, an actor.",
    }[agent["algorithm"]]
    step, name = origin.candidate.get("step"), origin.selection.get("chosen")
    chosen = f" Chosen by selection: {_code(name)}" if name else ""
    chosen += f", step {step:,}." if chosen and isinstance(step, int) else "." if chosen else ""
    return f"{how} {kind}{chosen}"


def _verdict(origin: Origin) -> str:
    word = origin.verdict
    if word is None:
        return "None: nothing has judged this policy. `neubay select RUN --out DIR` does."
    meaning = rundir.VERDICTS.get(word, "")
    if not origin.selection:
        chosen = origin.summary.get("chosen")
        return (
            f"**{word}** ({meaning}) is what the run says of {_code(chosen)}. This file is not "
            "what was chosen, or its selection is not at hand."
        )
    reasons = origin.selection.get("reasons", [])
    return "\n".join([f"**{word}**: {meaning}.", "", *(f"- {_plain(why)}" for why in reasons)])


def _scores(note: dict[str, Any], origin: Origin) -> str:
    """What was measured, and where; what was only estimated, and by whom."""
    summary, candidate = origin.summary, origin.candidate
    told = candidate if origin.selection else summary
    lines = []
    where = summary.get("environment") or note.get("environment")
    if is_number(told.get("return_mean")) or is_number(told.get("score")):
        shown = []
        if is_number(told.get("return_mean")):
            spread = f" ± {told['return_std']:.4g}" if is_number(told.get("return_std")) else ""
            shown.append(f"return {told['return_mean']:.4g}{spread}")
        if is_number(told.get("score")):
            shown.append(f"score {told['score']:.1f}")
        count = told.get("episodes") or summary.get("episodes")
        lines.append(f"- Measured in {_code(where)}, {count} episodes: {', '.join(shown)}.")
    else:
        lines.append("- Not measured: there was no environment to act in.")
    if is_number(candidate.get("estimate")):
        interval = [told.get(name) for name in ("lower", "upper")]
        between = (
            f" ({interval[0]:.4g} to {interval[1]:.4g})" if all(map(is_number, interval)) else ""
        )
        lines.append(
            f"- Estimated by the judge, in no environment: {told['estimate']:.4g}{between}."
        )
    data = {**origin.run.get("dataset", {})}
    if is_number(data.get("return_mean")):
        score = f", score {data['score']:.1f}" if is_number(data.get("score")) else ""
        lines.append(f"- The data's own episodes: return {data['return_mean']:.4g}{score}.")
    return "\n".join(lines)


def _data(note: dict[str, Any], origin: Origin) -> str:
    judged = origin.selection.get("data")
    data = {**(note.get("dataset") or {}), **(judged if isinstance(judged, dict) else {})}
    data |= origin.run.get("dataset", {})
    if not data:
        return "Not recorded in this file: it was written by an earlier version."
    lines = [f"- Dataset {_code(data.get('name'))}, content hash {_code(data.get('hash'))}"]
    if data.get("source"):
        lines.append(f"- From {_code(data['source'])}")
    if is_number(data.get("episodes")):
        rows = data.get("transitions")
        steps = f", {rows:,} transitions" if is_number(rows) else ""
        lines.append(f"- {data['episodes']:,} episodes{steps}")
    return "\n".join(lines)


def _interface(note: dict[str, Any]) -> str:
    actions, names = note["actions"], _names(note)
    lines = [f"- Observation: vectors of size {note['state_size']}, in the units of the data."]
    if "discrete" in actions:
        named = "".join(f" of {_code(name)}" for name in names["actions"])
        lines.append(f"- Action{named}: one of {actions['discrete']}, numbered from 0.")
    else:
        bounds = [
            f"{low:g} to {high:g}"
            for low, high in zip(actions["low"], actions["high"], strict=True)
        ]
        pairs = zip(names["actions"] or [""] * len(bounds), bounds, strict=True)
        shown = ", ".join(f"{_code(name)} {bound}" if name else bound for name, bound in pairs)
        lines.append(f"- Action: within {shown}, in the units of the data.")
    reward = f": {_code(names['reward'])}" if names["reward"] else ""
    lines.append(
        f"- Reward: that of the last action, as the data has it{reward}, at every later step."
    )
    lines.append(f"- Episodes of up to {note['horizon']:,} steps.")
    return "\n".join(lines)


def _names(note: dict[str, Any]) -> dict[str, Any]:
    """What columns are called; empty where the file does not say it."""
    return note.get("column_names") or {"states": (), "actions": (), "reward": None}


def _limits(note: dict[str, Any]) -> str:
    ranges = note.get("ranges")
    lines = [
        "- It knows what the data shows. Outside of that it extrapolates, and does not say so: "
        "check every observation against the ranges below (the light guard), and have a fall-back.",
        "- A change of the plant, of a sensor or of the reward after the data was logged is not "
        "known to it.",
        "- An estimate of its return is the opinion of models of the same data.",
    ]
    if note["agent"]["memory"] != "none":
        lines.append(
            "- Its memory must be fed every step, with the reward of the last action, and cleared "
            "where an episode starts."
        )
    if not ranges:
        return "\n".join([*lines, "", "The ranges of the data are not recorded in this file."])
    pairs = list(zip(ranges["observation_low"], ranges["observation_high"], strict=True))
    names = [f" {_code(name)}".replace("|", "\\|") for name in _names(note)["states"]]
    names = names or [""] * len(pairs)
    rows = [
        f"| {i}{names[i]} | {low:.6g} | {high:.6g} |"
        for i, (low, high) in enumerate(pairs[:MOST_ROWS])
    ]
    left = len(pairs) - len(rows)
    more = ["", f"The ranges of {left} more are in the file."] if left else []
    return "\n".join(
        [
            *lines,
            "",
            "| observation | lowest in the data | highest |",
            "|---|---:|---:|",
            *rows,
            *more,
        ]
    )


def _training(note: dict[str, Any], origin: Origin) -> str:
    config = origin.run.get("config") or {}
    kind = note["agent"]["algorithm"]
    if not config or config.get("agent", {}).get("algorithm", kind) != kind:
        config = {"agent": note["agent"]}  # a clone beside a run has settings of its own
    lines = [
        f"- {name.capitalize()}: {_code(origin.run[name])}"
        for name in ("variant", "preset", "command")
        if origin.run.get(name)
    ]
    seeds = {"training": config.get("seed")}
    protocol = origin.selection.get("protocol")
    if isinstance(protocol, dict):
        seeds |= {name: value for name, value in flat(protocol).items() if "seed" in name}
    shown = [f"{name} {value}" for name, value in seeds.items() if value is not None]
    lines.append(f"- Seeds: {_plain(', '.join(shown) or 'not recorded')}")
    lines += _likelihoods(note, origin)
    for section, values in config.items():
        if isinstance(values, dict):
            text = ", ".join(f"{name} {value}" for name, value in values.items())
            lines.append(f"- Settings of {section}: {_plain(text)}")
    versions = ", ".join(f"{k} {v}" for k, v in note.get("provenance", {}).items())
    lines.append(f"- Versions: {_plain(versions)}")
    return "\n".join(lines)


def _likelihoods(note: dict[str, Any], origin: Origin) -> list[str]:
    """How likely a clone and the other candidate found held-out actions."""
    kind = "clone" if note["agent"].get("best_share", 1) == 1 else "clone_of_best"
    told = origin.candidate if origin.selection else origin.summary.get(kind)
    if note["agent"]["algorithm"] != "bc" or not isinstance(told, dict):
        return []
    kinds = {"held_out_memory": "with memory", "held_out_markov": "without"}
    found = [
        f"{told[name]:.4g} {kind}" for name, kind in kinds.items() if is_number(told.get(name))
    ]
    return [f"- Held-out log-likelihood per step: {', '.join(found)}"] if found else []


def _loading(note: dict[str, Any]) -> str:
    recurrent = note["agent"]["memory"] != "none"
    memory, after = (", memory", ", next_memory") if recurrent else ("", "")
    return f"""With NumPy alone (`policy.py` and `policy.npz`, from `--to numpy`):

```python
from policy import load

policy = load(".")
action, state = policy.predict(observation)  # the first step of an episode
action, state = policy.predict(observation, state, reward=reward)  # every later step
```

With ONNX Runtime (`policy.onnx`): `observation, reward, start, last_action{memory}` ->
`action{after}`, all with a batch axis; `last_action` is the last `action`.
With JAX (`policy.stablehlo`): `jax.export.deserialize(bytes).call(observation, reward, start,
last_action{memory})`. With neubay: `neubay.load_policy("policy.npz")` reads the file of the run."""


_LICENCE = """The software, `policy.py` included: MIT. The weights are made of the data: what the
data's licence asks of works made of it holds for them too. Datasets do not record a licence, so it
is not stated here."""


def _plain(text: Any) -> str:
    """A text from a file on one line, with nothing in it that Markdown or HTML would obey."""
    line = " ".join(str(text).split())
    return line.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "'")


def _code(text: Any) -> str:
    """A text as code; one with backticks in it, such as a formula, between more of them."""
    if text is None:
        return "unknown"
    line = " ".join(str(text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if len(fence) > 1 else ""
    return f"{fence}{space}{line}{space}{fence}"
