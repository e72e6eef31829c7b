"""What selection says, read from its file: the verdict, its reasons, and the candidates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neubay.errors import RunError
from neubay.report.parts.numbers import number
from neubay.report.parts.tables import Cell, Grid, Heading, Row
from neubay.runs import rundir
from neubay.runs.files import read_json

_NOTE = (
    "Undiscounted returns from the data's start states, judged by members that trained none of "
    "these policies. Lower and upper are the 5 and 95 % quantiles over members; where the judge "
    "becomes unsure (the share that is cut), lower takes the least that the data grants. Gains are "
    "their lower ends, paired."
)


_CONDENSED = ("name", "step", "is_clone", "estimate", "lower", "upper", "return_mean", "score")


@dataclass(frozen=True)
class Decision:
    """A selection.json."""

    verdict: str
    chosen: str
    reasons: tuple[str, ...]
    data_return: float
    candidates: tuple[dict[str, Any], ...]

    @property
    def meaning(self) -> str:
        return rundir.VERDICTS[self.verdict]

    @property
    def meant(self) -> str:
        """What is to be deployed, copied or kept."""
        return rundir.KEPT.format(self.chosen) if self.verdict == "keep" else self.chosen

    @property
    def best(self) -> dict[str, Any]:
        """The chosen candidate."""
        return next(each for each in self.candidates if each["name"] == self.chosen)

    @property
    def clone(self) -> dict[str, Any] | None:
        """The clone of the data; none where none was judged."""
        return next((each for each in self.candidates if each.get("is_clone")), None)

    @property
    def best_clone(self) -> dict[str, Any] | None:
        """That of the best episodes; none where none was judged."""
        return next((each for each in self.candidates if each["name"] == rundir.BEST_CLONE), None)

    @property
    def condensed(self) -> dict[str, Any]:
        """As a selection.json that has the chosen candidate and the clones alone, and no
        reasons."""
        clones = (each for each in (self.clone, self.best_clone) if each != self.best)
        candidates = [self.best, *clones]
        return {
            "verdict": self.verdict,
            "chosen": self.chosen,
            "reasons": [],
            "data": {"return_mean": self.data_return},
            "candidates": [
                {name: each[name] for name in _CONDENSED if name in each}
                for each in candidates
                if each is not None
            ],
        }


def read_decision(folder: Path) -> Decision | None:
    """What selection left in a folder; none where nothing was selected."""
    path = folder / rundir.SELECTION_FILE
    if not path.is_file():
        return None
    return decision_of(read_json(path), path)


def decision_of(written: dict[str, Any], path: Path) -> Decision:
    """The content of a selection.json, which was read from `path`."""
    try:
        decision = Decision(
            written["verdict"],
            written["chosen"],
            tuple(map(str, written["reasons"])),
            float(written["data"]["return_mean"]),
            tuple(written["candidates"]),
        )
        _ = decision.meaning, decision.best["estimate"], decision.clone
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise RunError(f"{path}: damaged: {type(error).__name__} {error}") from None
    return decision


def candidate_grid(decision: Decision) -> Grid:
    """The candidates, the highest estimate first."""
    columns = {
        "estimate": "estimate",
        "lower": "lower",
        "upper": "upper",
        "gain_over_data": "gain over data",
        "gain_over_clone": "gain over clone",
        "cut_share": "cut",
        "return_mean": "measured",
        "score": "score",
    }

    def cell(candidate: dict[str, Any], name: str) -> Cell:
        value = candidate.get(name)
        if not isinstance(value, int | float):
            return Cell()
        if name == "cut_share":
            return Cell(f"{value:.0%}")
        return Cell(number(float(value)), best=candidate["name"] == decision.chosen)

    rows = tuple(
        Row(str(candidate["name"]), tuple(cell(candidate, name) for name in columns))
        for candidate in decision.candidates
    )
    headings = tuple(Heading(text) for text in columns.values())
    return Grid("candidates", "Candidates", _NOTE, "policy", headings, rows).without_empty()
