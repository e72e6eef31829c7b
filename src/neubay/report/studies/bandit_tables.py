"""Tables in Markdown of what `neubay bandit` found, from its summaries."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neubay.report.parts.tables import columns_markdown

Summary = dict[str, Any]

# What must show: of the Bayesian agent's mean return per pull, by p1; of the ratio U(1) / U(0).
CLAIMS = {"0.99": 0.9, "0.7": 0.6, "0.3": 0.42, "0.01": 0.42}
LEAST_RATIO = 5.0
STAYS = 0.02  # by how much "0.5 everywhere" may be missed


def tables(summaries: Sequence[Summary]) -> str:
    """All tables, each under its heading."""
    parts = {
        "What must show": claims_table(summaries),
        "The ensemble": uncertainty_table(summaries),
        "Return per pull, with the exact optimum of that lambda in parentheses": returns_table(
            summaries
        ),
    }
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts.items()) + "\n"


def uncertainty_table(summaries: Sequence[Summary]) -> str:
    """The ensemble's opinion of the two arms."""

    def mean(arm: int) -> Callable[[Summary], str]:
        return lambda summary: f"{np.mean(summary['ensemble_means'], axis=0)[arm]:.3f}"

    columns: dict[str, Callable[[Summary], str]] = {
        "seed": lambda summary: str(summary["seed"]),
        "mean reward of the data": lambda summary: f"{summary['data_mean_reward']:.3f}",
        "mean p0": mean(0),
        "mean p1": mean(1),
        "U(0)": lambda summary: f"{summary['uncertainty']['0']:.4f}",
        "U(1)": lambda summary: f"{summary['uncertainty']['1']:.4f}",
        "U(1) / U(0)": lambda summary: f"{summary['uncertainty_ratio']:.1f}",
    }
    return columns_markdown(columns, summaries)


def returns_table(summaries: Sequence[Summary]) -> str:
    """Mean return per pull of every agent in every test bandit, the exact optimum beside it."""

    def cell(found: Summary) -> str:
        return f"{found['mean_return']:.3f} ({found['optimal_return']:.3f})"

    rows = [(name, summary) for name in summaries[0]["agents"] for summary in summaries]
    columns: dict[str, Callable[[Any], str]] = {
        "lambda": lambda row: row[0],
        "seed": lambda row: str(row[1]["seed"]),
    }

    def in_bandit(p1: str) -> Callable[[Any], str]:
        return lambda row: cell(row[1]["agents"][row[0]]["bandits"][p1])

    columns |= {f"p1 = {p1:g}": in_bandit(f"{p1:g}") for p1 in summaries[0]["test_p1"]}
    columns["under the posterior"] = lambda row: cell(row[1]["agents"][row[0]]["posterior"])
    return columns_markdown(columns, rows)


def claims_table(summaries: Sequence[Summary]) -> str:
    """What Section 3 says, and whether each seed shows it."""
    ratios = [summary["uncertainty_ratio"] for summary in summaries]
    claims = [(f"U(1) / U(0) at least {LEAST_RATIO:g}", ratios, [r >= LEAST_RATIO for r in ratios])]
    for p1, least in CLAIMS.items():
        values = [summary["mean_return"]["0"][p1] for summary in summaries]
        holds = [value >= least for value in values]
        claims.append((f"lambda = 0, p1 = {p1}: at least {least:g}", values, holds))
    heaviest = list(summaries[0]["mean_return"])[-1]
    furthest = [
        max(summary["mean_return"][heaviest].values(), key=lambda value: abs(value - 0.5))
        for summary in summaries
    ]
    text = f"lambda = {heaviest}: 0.5 everywhere (furthest of the five)"
    claims.append((text, furthest, [abs(value - 0.5) <= STAYS for value in furthest]))
    columns: dict[str, Callable[[Any], str]] = {"what must show": lambda claim: claim[0]}

    def of_seed(place: int) -> Callable[[Any], str]:
        return lambda claim: f"{claim[1][place]:.3f}"

    columns |= {f"seed {each['seed']}": of_seed(place) for place, each in enumerate(summaries)}
    columns["holds"] = lambda claim: _verdict(claim[2])
    return columns_markdown(columns, claims)


def _verdict(holds: list[bool]) -> str:
    return "yes" if all(holds) else f"{sum(holds)} of {len(holds)}"
