"""How well selection chooses: tables in Markdown of selection.json files whose candidates were also
measured in an environment, which is used to check and for nothing else.

Returns are compared as a share of the range that the candidates of a dataset span. A candidate is
deployed by the rule of the verdict: the judge has a vote, and the lower ends of both gains are
above zero. It should be if it truly beats the data and the clone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from neubay.errors import NeubayError
from neubay.report.parts.tables import columns_markdown

BEGIN = "<!-- tables: neubay analyze selection -->"
KEPT = (
    *("name", "step", "estimate", "lower", "upper", "gain_over_data", "gain_over_clone"),
    *("cut_share", "is_clone", "return_mean", "score", "q_start", "fqe"),
)
"""Of a candidate, what a condensed file holds."""
RIVALS = {"q_start": "critic at s_0", "fqe": "fitted Q"}
"""Other estimates of a candidate, where they are known."""

Entry = dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """The measured candidates of one dataset."""

    name: str
    entry: Entry

    @property
    def candidates(self) -> list[Entry]:
        return [each for each in self.entry["candidates"] if each.get("return_mean") is not None]

    def column(self, name: str) -> Float[np.ndarray, " n"]:
        """NaN where it is not known."""
        return np.array([each.get(name, np.nan) for each in self.candidates], np.float64)

    @property
    def truth(self) -> Float[np.ndarray, " n"]:
        return self.column("return_mean")

    def share(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """As a share of the range of the true returns."""
        low, high = self.truth.min(), self.truth.max()
        return (values - low) / (high - low) if high > low else np.zeros_like(values)

    def spearman(self, name: str) -> float | None:
        return rank_correlation(self.column(name), self.truth)

    def regret(self, best_of: int) -> float:
        """What the best of the so many highest estimates is below the best candidate."""
        first = np.argsort(-self.column("estimate"), kind="stable")[:best_of]
        return float(1 - self.share(self.truth)[first].max())

    @property
    def deployed(self) -> np.ndarray:
        gains = (self.column("gain_over_data") > 0) & (self.column("gain_over_clone") > 0)
        return gains & bool(self.entry["vote"])

    @property
    def better(self) -> np.ndarray:
        """Truly better than the data and than the clone; the clone itself is not."""
        clone = [each["return_mean"] for each in self.candidates if each["is_clone"]]
        return self.truth > max([self.entry["data"]["return_mean"], *clone])


def rank_correlation(
    first: Float[np.ndarray, " n"], second: Float[np.ndarray, " n"]
) -> float | None:
    """Spearman's, over those that have both; none below three, or where one is constant."""
    known = np.isfinite(first) & np.isfinite(second)
    first, second = first[known], second[known]
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(stats.spearmanr(first, second).statistic)


def condense(documents: Sequence[Entry]) -> Entry:
    """Selections, or files that this wrote, as few numbers."""
    entries: list[Entry] = []
    try:
        for document in documents:
            entries += document["selections"] if "selections" in document else [_entry(document)]
        for entry in entries:
            _ = [each["estimate"] for each in entry["candidates"]], entry["vote"], entry["verdict"]
    except (KeyError, TypeError) as error:
        raise NeubayError(f"not a selection.json: {type(error).__name__} {error}") from None
    return {"selections": entries}


def _entry(document: Entry) -> Entry:
    return {
        "dataset": document["data"]["name"],
        "data": {name: document["data"][name] for name in ("hash", "return_mean", "episodes")},
        "vote": document["protocol"]["vote"],
        "verdict": document["verdict"],
        "chosen": document["chosen"],
        "candidates": [
            {key: _rounded(each[key]) for key in KEPT if each.get(key) is not None}
            for each in document["candidates"]
        ],
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def markdown(condensed: Entry) -> str:
    """All tables."""
    checked = [Checked(entry["dataset"], entry) for entry in condensed["selections"]]
    checked = [each for each in checked if len(each.candidates) > 1]
    if not checked:
        raise NeubayError("no selection has two candidates that an environment measured")
    return f"{_per_dataset(checked)}\n\n{_overall(checked)}"


def _ranked_by(name: str) -> Callable[[Checked], str]:
    return lambda each: _number(each.spearman(name))


def _per_dataset(checked: Sequence[Checked]) -> str:
    columns: dict[str, Callable[[Checked], str]] = {
        "dataset": lambda each: each.name,
        "policies": lambda each: str(len(each.candidates)),
        "Spearman": _ranked_by("estimate"),
        **{
            f"Spearman, {title}": _ranked_by(name)
            for name, title in RIVALS.items()
            if any(np.isfinite(each.column(name)).any() for each in checked)
        },
        "regret@1": lambda each: f"{each.regret(1):.1%}",
        "regret@3": lambda each: f"{each.regret(3):.1%}",
        "verdict": lambda each: each.entry["verdict"],
        "deployed": lambda each: str(int(each.deployed.sum())),
        "of them wrongly": lambda each: str(int((each.deployed & ~each.better).sum())),
        "truly better": lambda each: str(int(each.better.sum())),
        "of them deployed": lambda each: str(int((each.deployed & each.better).sum())),
    }
    return columns_markdown(columns, checked)


def _overall(checked: Sequence[Checked]) -> str:
    ranks = [rank for each in checked if (rank := each.spearman("estimate")) is not None]
    pooled = rank_correlation(
        np.concatenate([each.share(each.column("estimate")) for each in checked]),
        np.concatenate([each.share(each.truth) for each in checked]),
    )
    deployed, better = (
        np.concatenate([getattr(each, name) for each in checked]) for name in ("deployed", "better")
    )
    facts = {
        "policies": str(len(better)),
        "median Spearman": _number(float(np.median(ranks)) if ranks else None),
        "pooled Spearman, returns as shares of the range": _number(pooled),
        "median regret@1": f"{np.median([each.regret(1) for each in checked]):.1%}",
        "median regret@3": f"{np.median([each.regret(3) for each in checked]):.1%}",
        "wrongly deployed, of those deployed": f"{int((deployed & ~better).sum())} of "
        f"{int(deployed.sum())}",
        "deployed, of those truly better": f"{int((deployed & better).sum())} of "
        f"{int(better.sum())}",
    }
    columns: dict[str, Callable[[tuple[str, str]], str]] = {
        "overall": lambda fact: fact[0],
        "": lambda fact: fact[1],
    }
    return columns_markdown(columns, list(facts.items()))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
