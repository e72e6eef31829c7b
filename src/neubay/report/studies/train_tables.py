"""Runs of `neubay train` condensed, and their tables as Markdown.

A condensed run holds its result and its curves at the evaluations, small enough to be kept beside
a text; tables and figures are made from it, never typed.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from neubay.errors import NeubayError
from neubay.report.parts.tables import plain_markdown

BEGIN = "<!-- tables: neubay analyze runs -->"

Run = Mapping[str, Any]
Row = Mapping[str, Any]

_CURVE = (
    "q_data",
    "q_imagined",
    "entropy",
    "horizon_p25",
    "horizon_p50",
    "horizon_p75",
    "horizon_max",
    "ended_uncertain",
)
_RESULT = (
    "dataset",
    "task",
    "environment",
    "seed",
    "steps",
    "return_mean",
    "return_std",
    "episodes",
    "score",
    "data_return_mean",
    "data_score",
    "discounted_mean",
    "q_data",
    "horizon",
    "posterior",
    "seconds",
)


def condense(
    name: str, run: Row, summary: Row, metrics: Iterable[Row], default: Row
) -> dict[str, Any]:
    """What run.json, summary.json and metrics.jsonl of a finished run say, in few numbers.

    `default` is the configuration of its preset and variant: only what differs is kept.
    """
    try:
        return {
            "run": name,
            "variant": run.get("variant", "neubay"),
            "preset": run.get("preset"),
            "changed": changes(default, run["config"]),
            "zeta": run["config"]["rollout"]["zeta"],
            **{key: _rounded(summary[key]) for key in _RESULT},
            "curve": list(_curve(metrics)),
        }
    except (KeyError, TypeError) as error:
        raise NeubayError(f"{name}: not a finished run of 'neubay train' ({error})") from None


def changes(default: Row, actual: Row, prefix: str = "") -> list[str]:
    """The settings in which a run differs from its preset, by their flags; the seed aside."""
    found = []
    for name, value in actual.items():
        if isinstance(value, Mapping):
            found += changes(default[name], value, f"{prefix}{name}.")
        elif value != default.get(name, value) and name != "seed":
            found.append(
                f"{prefix}{name} {value:g}" if _is_number(value) else f"{prefix}{name} {value}"
            )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _curve(metrics: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """A point per evaluation; what training reports is averaged since the one before."""
    since: dict[str, list[float]] = defaultdict(list)
    for row in metrics:
        if row["kind"] == "train":
            for name in _CURVE:
                if row.get(name) is not None:
                    since[name].append(row[name])
        elif row["kind"] == "evaluation":
            point = {name: row.get(name) for name in ("step", "return_mean", "score")}
            point["discounted_mean"] = row.get("discounted_mean")
            yield _rounded(point | {name: fmean(values) for name, values in since.items()})
            since.clear()


def _rounded(value: Any) -> Any:
    """Four digits: more would say what is not known, and fill the file."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.4g}")
    return value


def markdown(runs: Sequence[Run]) -> str:
    """Of several datasets one table of scores; for each its groups of runs that differ in the
    seed alone, then every run."""
    parts = [_overview(runs)] if len(grouped(runs, "dataset")) > 1 else []
    for dataset, members in grouped(runs, "dataset").items():
        first = members[0]
        data = _with_score(first["data_return_mean"], first["data_score"])
        parts.append(
            f"### {dataset}, in {first['environment']}\n\nThe data's own mean return: {data}.\n\n"
            f"{_groups(members)}\n\nEach run:\n\n{_runs(members)}"
        )
    return "\n\n".join(parts)


def setting(run: Run) -> str:
    """What distinguishes a run from the default, apart from its seed."""
    return ", ".join([run["variant"], *run["changed"]])


def grouped(runs: Sequence[Run], key: str) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[str(run[key]) if key != "setting" else setting(run)].append(run)
    return dict(groups)


def _overview(runs: Sequence[Run]) -> str:
    """Datasets down, variants across. What one dataset alone was trained with stands in that
    dataset's own tables."""
    variants = [
        variant
        for variant, members in grouped(runs, "variant").items()
        if variant == runs[0]["variant"] or len(grouped(members, "dataset")) > 1
    ]
    rows, mixed = [], False
    for dataset, members in grouped(runs, "dataset").items():
        key, data = yardstick(members[0])
        by_variant, cells = grouped(members, "variant"), []
        for variant in variants:
            counted = closest_to_the_preset(by_variant.get(variant, []))
            mark = "*" if len(grouped(counted, "setting")) > 1 else ""
            mixed = mixed or bool(mark)
            cells += [_spread([run[key] for run in counted]) + mark, str(len(counted) or "-")]
        rows.append((dataset, members[0]["environment"], _number(data), *cells))
    across = [name for variant in variants for name in (variant, "seeds")]
    table = plain_markdown(("dataset", "environment", "the data", *across), rows)
    note = "\n\n\\* These runs differ in more than the seed; the tables below say in what."
    return table + note if mixed else table


def yardstick(run: Run) -> tuple[str, float]:
    """What runs of a dataset are compared by, and the data's own: scores, or returns where a task
    has no reference."""
    if run["score"] is None:
        return "return_mean", run["data_return_mean"]
    return "score", run["data_score"]


def closest_to_the_preset(runs: Sequence[Run]) -> list[Run]:
    """Of each seed the run that changed fewest settings."""
    return [
        min(members, key=lambda run: len(run["changed"]))
        for members in grouped(runs, "seed").values()
    ]


def _groups(runs: Sequence[Run]) -> str:
    rows = []
    for name, members in grouped(runs, "setting").items():
        scores = [run["score"] for run in members]
        rows.append(
            (
                name,
                str(len(members)),
                _spread([run["return_mean"] for run in members]),
                "-" if None in scores else _spread(scores),
                _spread([run["q_data"] for run in members]),
                _spread([run["discounted_mean"] for run in members]),
                _spread([run["horizon"].get("p50") for run in members]),
                _spread([run["seconds"]["total"] / 60 for run in members]),
            )
        )
    head = ("setting", "seeds", "return", "score", "Q on data", "discounted return")
    return plain_markdown((*head, "median horizon", "minutes"), rows)


def _runs(runs: Sequence[Run]) -> str:
    rows = [
        (
            setting(run),
            str(run["seed"]),
            f"{run['steps']:,}",
            f"{run['return_mean']:.1f} ± {run['return_std']:.1f}",
            _number(run["score"]),
            _number(
                max((p["score"] for p in run["curve"] if p["score"] is not None), default=None)
            ),
            _number(run["q_data"]),
            _number(run["discounted_mean"]),
            _horizon(run["horizon"]),
            _number(run["posterior"] and run["posterior"]["return_mean"]),
            _minutes(run["seconds"]),
        )
        for run in runs
    ]
    head = ("setting", "seed", "steps", "return", "score", "best score on the way", "Q on data")
    more = ("discounted return", "horizon p50 / max", "by the posterior", "minutes (world)")
    return plain_markdown((*head, *more), rows)


def _spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation over seeds."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {stdev(known):.1f}" if len(known) > 1 else ""
    return f"{fmean(known):.1f}{spread}"


def _with_score(value: float, score: float | None) -> str:
    return f"{value:.1f}" + ("" if score is None else f" (score {score:.1f})")


def _horizon(horizon: Row) -> str:
    return f"{horizon['p50']:.0f} / {horizon['max']:.0f}" if horizon else "-"


def _minutes(seconds: Row) -> str:
    return f"{seconds['total'] / 60:.1f} ({seconds['world'] / 60:.1f})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
