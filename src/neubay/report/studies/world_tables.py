"""Tables of what `neubay analyze` found about worlds, as Markdown.

A condensed document holds the figures of many analyses without their curves and points, small
enough to be kept beside a text; the tables are made from it, never typed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from neubay.errors import NeubayError
from neubay.report.parts.tables import plain_markdown

BEGIN = "<!-- tables: neubay analyze table -->"

_CURVES = {
    "steps",
    "data_norm",
    "state_error",
    "state_norm",
    "reward_bias",
    "point_uncertainty",
    "point_error",
    "roc_false_alarm",
    "roc_caught",
}

Document = Mapping[str, Any]


def condense(documents: Sequence[Document]) -> dict[str, Any]:
    """Join the documents of several analyses, or condensed ones, and leave out what is drawn."""
    condensed: dict[str, Any] = {"worlds": [], "compounding": [], "calibration": []}
    for document in documents:
        known = [section for section in condensed if section in document]
        if "worlds" not in known or len(known) < 2:
            raise NeubayError(
                "a table is made of the JSON files that 'neubay analyze compounding' and "
                f"'neubay analyze calibration' write; one of these has {', '.join(document)}"
            )
        for section in known:
            fresh = [_without_curves(entry) for entry in document[section]]
            condensed[section] += [entry for entry in fresh if entry not in condensed[section]]
    return condensed


def _without_curves(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_curves(item) for key, item in value.items() if key not in _CURVES}
    return [_without_curves(item) for item in value] if isinstance(value, list) else value


def markdown(condensed: Document) -> str:
    """Every table for which there are figures, each under its heading."""
    parts = [("Worlds", _worlds(condensed["worlds"]))]
    if condensed["compounding"]:
        parts += [
            ("Compounding errors", _explosions(condensed["compounding"])),
            ("What truncation at U(ζ) would do", _safeguards(condensed["compounding"])),
        ]
    if condensed["calibration"]:
        parts.append(("One step ahead", _calibrations(condensed["calibration"])))
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts)


def _worlds(worlds: Sequence[Mapping[str, Any]]) -> str:
    return plain_markdown(
        (
            "world",
            "trained on",
            "LayerNorm",
            "members x layers x units",
            "epochs",
            "validation",
            "seconds",
        ),
        [
            (
                world["world"],
                world["trained_on"],
                _yes(world["layer_norm"]),
                f"{world['members']} of {world['pool']} x {world['depth']} x {world['width']}",
                str(world["epochs"]),
                _number(world["validation_score"]),
                f"{world['seconds']:.0f}",
            )
            for world in worlds
        ],
    )


def _explosions(results: Sequence[Mapping[str, Any]]) -> str:
    """The paper's claim: errors explode without LayerNorm, and not with it."""
    compared = [result for result in results if result["comparison"]]
    rows, pairs = [], []
    for result in compared:
        with_norm, without = _pair(result)
        comparison = result["comparison"]
        pairs.append((with_norm, without))
        rows.append(
            (
                with_norm["trained_on"],
                result["data"],
                str(result["longest"]),
                _step(comparison["passes_at"]),
                _step(comparison["median_passes_at"]),
                _yes(comparison["explodes"]),
                _yes(comparison["median_explodes"]),
                f"{_spreads(with_norm, result)} / {_spreads(without, result)}",
                f"{_step(with_norm['diverges_at'])} / {_step(without['diverges_at'])}",
                f"{with_norm['overflowed']} / {without['overflowed']}",
            )
        )
    table = plain_markdown(
        (
            "trained on",
            "evaluated on",
            "longest rollout",
            "p95 without > 10 x with at step",
            "median without > 10 x with at step",
            "explodes without",
            "median explodes without",
            "last p95 in spreads, with / without",
            "p95 > 10 spreads at step, with / without",
            "overflowed, with / without",
        ),
        rows,
    )
    counts = {
        "the 95th percentile explodes in": [bool(r["comparison"]["explodes"]) for r in compared],
        "the median explodes in": [bool(r["comparison"]["median_explodes"]) for r in compared],
    }
    lines = [f"Without LayerNorm {what} {_of(flags)} setups." for what, flags in counts.items()]
    for name, worlds in (("With", [a for a, _ in pairs]), ("Without", [b for _, b in pairs])):
        diverged = [world["diverges_at"] is not None for world in worlds]
        overflowed = [world["overflowed"] > 0 for world in worlds]
        lines.append(
            f"{name} LayerNorm it passes 10 spreads of the data in {_of(diverged)} setups, "
            f"and rollouts overflow in {_of(overflowed)}."
        )
    return f"{table}\n\n" + "\n".join(lines)


def _safeguards(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in results:
        for world in result["worlds"]:
            cut = world["cuts"][-1]
            rows.append(
                (
                    world["trained_on"],
                    result["data"],
                    _yes(world["layer_norm"]),
                    _score(world["spearman"]),
                    _percent(world["severe"]),
                    _score(world["auroc"]),
                    _percent(cut["beyond"]),
                    _percent(cut["false_safe"]),
                    f"{cut['horizon_median']:.0f} / {cut['horizon_q75']:.0f}",
                    _percent(cut["kept_severe"]),
                    f"{_number(cut['kept_error_p95'])} / {_number(result['spread'])}",
                )
            )
    zeta = results[0]["worlds"][0]["cuts"][-1]["zeta"]
    return plain_markdown(
        (
            "trained on",
            "evaluated on",
            "LayerNorm",
            "Spearman",
            "severe steps",
            "AUROC severe",
            f"beyond ζ = {zeta:g}",
            "false safe",
            "horizon, median / q75",
            "severe of those kept",
            "p95 error kept / spread",
        ),
        rows,
    )


def _calibrations(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in results:
        for assessed in result["assessments"]:
            last = assessed["separations"][-1]
            middle = next(i for i in assessed["coverage"] if i["nominal"] == 0.9)
            rows.append(
                (
                    result["trained_on"],
                    assessed["data"],
                    _yes(result["layer_norm"]),
                    _percent(assessed["dangerous"]),
                    _score(assessed["auroc"]),
                    _score(assessed["spearman"]),
                    *(_percent(each["false_safe"]) for each in assessed["separations"][1:]),
                    _percent(last["false_alarm"]),
                    f"{_percent(middle['member'])} / {_percent(middle['mixture'])}",
                )
            )
    zetas = [each["zeta"] for each in results[0]["assessments"][0]["separations"][1:]]
    return plain_markdown(
        (
            "trained on",
            "evaluated on",
            "LayerNorm",
            "dangerous",
            "AUROC dangerous",
            "Spearman",
            *(f"false safe, ζ = {zeta:g}" for zeta in zetas),
            f"false alarms, ζ = {zetas[-1]:g}",
            "coverage of 90 %, member / mixture",
        ),
        rows,
    )


def _pair(result: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The world with and the one without LayerNorm."""
    with_norm = next(world for world in result["worlds"] if world["layer_norm"])
    return with_norm, next(world for world in result["worlds"] if not world["layer_norm"])


def _of(flags: Sequence[bool]) -> str:
    return f"{sum(flags)} of {len(flags)}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _step(step: int | None) -> str:
    return "never" if step is None else str(step)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _spreads(world: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The 95th percentile of the last error in units of the data's spread."""
    spreads = world["last_error_p95"] / result["spread"]
    return f"{spreads:.1f}" if spreads < 1000 else f"{spreads:.0e}"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"
