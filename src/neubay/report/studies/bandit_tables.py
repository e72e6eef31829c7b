"""Tables in Markdown of what `neubay bandit` found, from its summaries."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from neubay.report.parts.tables import sections, text_markdown

Summary = dict[str, Any]

# What must show: of the Bayesian agent's mean return per pull, by p1; of the ratio U(1) / U(0).
CLAIMS = {"0.99": 0.9, "0.7": 0.6, "0.3": 0.42, "0.01": 0.42}
LEAST_RATIO = 5.0
STAYS = 0.02  # by how much "0.5 everywhere" may be missed


def tables(summaries: Sequence[Summary]) -> str:
    """All tables, each under its heading."""
    returns = "Return per pull, with the exact optimum of that lambda in parentheses"
    parts = {
        "What must show": claims_table(summaries),
        "The ensemble": uncertainty_table(summaries),
        returns: returns_table(summaries),
    }
    return sections(parts) + "\n"


def uncertainty_table(summaries: Sequence[Summary]) -> str:
    """The ensemble's opinion of the two arms."""
    headings = ("seed", "mean reward of the data", "mean p0", "mean p1")
    rows = [
        [
            str(summary["seed"]),
            f"{summary['data_mean_reward']:.3f}",
            *(f"{np.mean(summary['ensemble_means'], axis=0)[arm]:.3f}" for arm in (0, 1)),
            *(f"{summary['uncertainty'][str(arm)]:.4f}" for arm in (0, 1)),
            f"{summary['uncertainty_ratio']:.1f}",
        ]
        for summary in summaries
    ]
    return text_markdown((*headings, "U(0)", "U(1)", "U(1) / U(0)"), rows)


def returns_table(summaries: Sequence[Summary]) -> str:
    """Mean return per pull of every agent in every test bandit, the exact optimum beside it."""
    names = [f"{p1:g}" for p1 in summaries[0]["test_p1"]]
    rows = []
    for agent, summary in product(summaries[0]["agents"], summaries):
        found = summary["agents"][agent]
        places = [*(found["bandits"][p1] for p1 in names), found["posterior"]]
        cells = (f"{each['mean_return']:.3f} ({each['optimal_return']:.3f})" for each in places)
        rows.append([agent, str(summary["seed"]), *cells])
    bandits = (f"p1 = {p1}" for p1 in names)
    return text_markdown(("lambda", "seed", *bandits, "under the posterior"), rows)


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
    rows = [
        [
            text,
            *(f"{value:.3f}" for value in values),
            "yes" if all(holds) else f"{sum(holds)} of {len(holds)}",
        ]
        for text, values, holds in claims
    ]
    seeds = (f"seed {summary['seed']}" for summary in summaries)
    return text_markdown(("what must show", *seeds, "holds"), rows)
