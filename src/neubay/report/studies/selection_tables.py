"""How well selection chooses: tables in Markdown of selection.json files whose candidates were also
measured in an environment, which is used to check and for nothing else.

Returns are compared as a share of the range that the candidates of a dataset span. A candidate is
deployed by the rule of the verdict: the judge has a vote, and the lower ends of both gains are
above zero. It should be if it truly beats the data and the clone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from neubay.errors import NeubayError
from neubay.report.parts.numbers import rounded, shown
from neubay.report.parts.tables import Columns, columns_markdown, text_markdown
from neubay.runs.values import is_number

BEGIN = "<!-- tables: neubay analyze selection -->"
KEPT = (
    *("name", "step", "estimate", "lower", "upper", "gain_over_data", "gain_over_clone"),
    *("cut_share", "known", "is_clone", "return_mean", "score", "q_start", "fqe"),
)
"""Of a candidate, what a condensed file holds."""
WAYS = {"estimate": "judge", "lower": "lower end", "q_start": "critic", "fqe": "fitted Q"}
"""What candidates are ranked by: the protocol's estimate, its lower end, the critic's value at the
first states of the evaluation, fitted Q evaluation at those of the data."""
FIXED_ON = ("hopper_medium", "pendulum")
"""The datasets that the rule was fixed on."""
REFINED_ON = (
    *("halfcheetah_medium_replay", "neorl2_SafetyHalfCheetah_train", "hopper_medium_expert"),
    *("door_human", "antmaze_umaze_diverse", "halfcheetah_medium_expert"),
)
"""Those that it was refined on, after it had been tested on them; all others test it."""

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

    @property
    def part(self) -> str:
        """What the dataset has to do with the rule."""
        if self.name in FIXED_ON:
            return "fixed on"
        return "refined on" if self.name in REFINED_ON else "tested on"

    def knows(self, way: str) -> bool:
        return bool(np.isfinite(self.column(way)).any())

    def spearman(self, way: str) -> float | None:
        return _correlation(*self.ranks(way))

    def ranks(self, way: str) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Ranks from 0 to 1 of that way and of the truth, of those that have both."""
        known = np.isfinite(self.column(way)) & np.isfinite(self.truth)
        sides = (stats.rankdata(side[known]) for side in (self.column(way), self.truth))
        first, second = ((ranks - 0.5) / max(len(ranks), 1) for ranks in sides)
        return first, second

    def regret(self, best_of: int, way: str = "estimate") -> float | None:
        """What the best of so many that are highest in that way is below the best candidate, as a
        share of the range; none where all are equal, so that there is nothing to regret."""
        spread = float(np.ptp(self.truth))
        if not self.knows(way) or spread == 0:
            return None
        column = self.column(way)
        first = np.argsort(-np.where(np.isnan(column), -np.inf, column), kind="stable")[:best_of]
        return float(self.truth.max() - self.truth[first].max()) / spread

    @property
    def deployed(self) -> np.ndarray:
        gains = (self.column("gain_over_data") > 0) & (self.column("gain_over_clone") > 0)
        gains &= np.array([each.get("known", True) for each in self.candidates])
        return gains & bool(self.entry["vote"])

    @property
    def better(self) -> np.ndarray:
        """Truly better than the data and than the clone; the clone itself is not."""
        clone = [each["return_mean"] for each in self.candidates if each["is_clone"]]
        return self.truth > max([self.entry["data"]["return_mean"], *clone])


def _correlation(first: Float[np.ndarray, " n"], second: Float[np.ndarray, " n"]) -> float | None:
    """Of ranks; none below three, or where one side is constant."""
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def condense(documents: Sequence[Entry]) -> Entry:
    """Selections, or files that this wrote, as few numbers."""
    entries: list[Entry] = []
    try:
        for document in documents:
            entries += document["selections"] if "selections" in document else [_entry(document)]
        for entry in entries:
            _ = [each["estimate"] for each in entry["candidates"]], entry["vote"], entry["verdict"]
            # Judges had all of their noise before it was scaled.
            if not is_number(noise := entry.setdefault("noise", 1.0)):
                raise TypeError(f"noise {noise!r}")
    except (KeyError, TypeError) as error:
        raise NeubayError(f"not a selection.json: {type(error).__name__} {error}") from None
    return {"selections": [each for i, each in enumerate(entries) if not _again(each, entries[i:])]}


def _again(entry: Entry, later: Sequence[Entry]) -> bool:
    """All of it is in an entry that follows, as when a study is repeated with more runs. Of several
    clones, each says of which run it is."""

    def names(of: Entry) -> set[str]:
        return {each["name"].partition(" of ")[0] for each in of["candidates"]}

    return any(
        each["data"]["hash"] == entry["data"]["hash"] and names(entry) <= names(each)
        for each in later
        if each is not entry
    )


def _entry(document: Entry) -> Entry:
    fitted_q = document.get("fitted_q")
    return {
        "dataset": document["data"]["name"],
        "data": {name: document["data"][name] for name in ("hash", "return_mean", "episodes")},
        "vote": document["protocol"]["vote"],
        "noise": document["protocol"].get("noise", 1.0),
        "verdict": document["verdict"],
        "chosen": document["chosen"],
        **({} if fitted_q is None else {"fitted_q": rounded(fitted_q, 5)}),
        "candidates": [
            {key: rounded(each[key], 5) for key in KEPT if each.get(key) is not None}
            for each in document["candidates"]
        ],
    }


def markdown(condensed: Entry) -> str:
    """All tables: how candidates are ranked, the verdicts, and both over all datasets."""
    checked = [Checked(entry["dataset"], entry) for entry in condensed["selections"]]
    checked = [each for each in checked if len(each.candidates) > 1]
    if not checked:
        raise NeubayError("no selection has two candidates that an environment measured")
    ways = [name for name in WAYS if any(each.knows(name) for each in checked)]
    verdicts = columns_markdown(_VERDICTS, checked)
    tables = [_ranking(checked, ways), verdicts, _overall(checked, ways)]
    if valued := [each for each in checked if each.entry.get("fitted_q")]:
        tables.append(columns_markdown(_FITTED_Q, valued))
    return "\n\n".join(tables)


_FITTED_Q: Columns = {
    "dataset": lambda each: each.name,
    "discount": lambda each: f"{each.entry['fitted_q']['gamma']:g}",
    "fitted Q of the data's own actions": lambda each: f"{each.entry['fitted_q']['of_data']:,.0f}",
    "what they earned, discounted": lambda each: f"{each.entry['fitted_q']['data_earned']:,.0f}",
    "fitted Q of the policies": lambda each: " to ".join(
        f"{end(each.column('fqe')):,.0f}" for end in (np.nanmin, np.nanmax)
    ),
}


def _ranking(checked: Sequence[Checked], ways: Sequence[str]) -> str:
    rows = [
        [
            each.name,
            f"{each.part} it",
            str(len(each.candidates)),
            *(shown(each.spearman(way), ".2f") for way in ways),
            *(shown(each.regret(1, way), ".1%") for way in ways),
            *(shown(each.regret(3, way), ".1%") for way in ways),
        ]
        for each in checked
    ]
    measures = product(("Spearman", "regret@1", "regret@3"), ways)
    names = (f"{measure}, {WAYS[way]}" for measure, way in measures)
    return text_markdown(("dataset", "the rule was", "policies", *names), rows)


_VERDICTS: Columns = {
    "dataset": lambda each: each.name,
    "noise of the judge": lambda each: f"{each.entry['noise']:g}",
    "the judge has a vote": lambda each: "yes" if each.entry["vote"] else "no",
    "verdict": lambda each: each.entry["verdict"],
    "deployed": lambda each: str(int(each.deployed.sum())),
    "of them wrongly": lambda each: str(int((each.deployed & ~each.better).sum())),
    "truly better": lambda each: str(int(each.better.sum())),
    "of them deployed": lambda each: str(int((each.deployed & each.better).sum())),
}


def _overall(checked: Sequence[Checked], ways: Sequence[str]) -> str:
    """The same facts of the datasets that the rule was fixed on, of the others, and of all."""
    parts = ("fixed on", "refined on", "tested on")
    groups = {
        **{part: [each for each in checked if each.part == part] for part in parts},
        "all": list(checked),
    }
    facts = {title: _facts(group, ways) for title, group in groups.items() if group}
    rows = ([name, *(each[name] for each in facts.values())] for name in facts["all"])
    return text_markdown(("overall", *facts), rows)


def _facts(checked: Sequence[Checked], ways: Sequence[str]) -> dict[str, str]:
    deployed, better = (
        np.concatenate([getattr(each, name) for each in checked]) for name in ("deployed", "better")
    )
    ranking: dict[str, str] = {}
    for way in ways:
        regrets = {k: _median([each.regret(k, way) for each in checked]) for k in (1, 3)}
        ranking |= {
            f"median Spearman, {WAYS[way]}": shown(
                _median([each.spearman(way) for each in checked]), ".2f"
            ),
            f"pooled Spearman, {WAYS[way]}": shown(pooled(checked, way), ".2f"),
            f"median regret@1, {WAYS[way]}": shown(regrets[1], ".1%"),
            f"median regret@3, {WAYS[way]}": shown(regrets[3], ".1%"),
        }
    return {
        "datasets": str(len({each.name for each in checked})),
        "policies": str(len(better)),
        **ranking,
        "wrongly deployed, of those deployed": f"{int((deployed & ~better).sum())} of "
        f"{int(deployed.sum())}",
        "deployed, of those truly better": f"{int((deployed & better).sum())} of "
        f"{int(better.sum())}",
    }


def pooled(checked: Sequence[Checked], way: str) -> float | None:
    """The correlation of ranks within each dataset, from 0 to 1, over the policies of all: what
    datasets differ in, units and levels, counts for nothing."""
    pairs = [each.ranks(way) for each in checked]
    return _correlation(*(np.concatenate(side) for side in zip(*pairs, strict=True)))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
