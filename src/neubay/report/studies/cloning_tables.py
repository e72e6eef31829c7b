"""Clones with and without memory: what `neubay analyze cloning` found, in tables."""

from collections.abc import Callable, Sequence
from operator import itemgetter

from neubay.report.parts.tables import Columns, Record, columns_markdown, sections

BEGIN = "<!-- tables: neubay analyze cloning -->"
SAME = 3.0
"""Points of score between which no difference is seen."""


def merged(earlier: Sequence[Record], results: Sequence[Record]) -> list[Record]:
    """Earlier results with newer ones in their place, in the order of data, seed and what memory
    sees."""
    order = itemgetter("data", "past_actions", "seed")
    return sorted({order(result): result for result in (*earlier, *results)}.values(), key=order)


def markdown(results: Sequence[Record]) -> str:
    """What cloning chooses, and the same if memory saw past actions."""
    usual = [result for result in results if not result["past_actions"]]
    seeing = [result for result in results if result["past_actions"]]
    parts = {"With and without memory": usual, "If memory saw past actions": seeing}
    return sections(
        {title: columns_markdown(_COLUMNS, found) for title, found in parts.items() if found}
    )


def _outcome(result: Record) -> str:
    """Whether the chosen one is the better one."""
    chosen, names = result["chosen"], ("memory", "markov")
    other = names[1 - names.index(chosen)]
    gain = result[chosen]["score"] - result[other]["score"]
    return "same" if abs(gain) <= SAME else "right" if gain > 0 else "wrong"


def _pair(name: str, text: str) -> Callable[[Record], str]:
    return lambda result: " / ".join(
        format(result[kind][name], text) for kind in ("memory", "markov")
    )


_COLUMNS: Columns = {
    "data": lambda result: result["data"],
    "seed": lambda result: str(result["seed"]),
    "data's score": lambda result: f"{result['data_score']:.1f}",
    "held-out log-likelihood: memory / none": _pair("held_out", ".3f"),
    "chosen": lambda result: {"memory": "memory", "markov": "none"}[result["chosen"]],
    "score of the mode: memory / none": _pair("score", ".1f"),
    "the chosen one is": _outcome,
    "score of samples: memory / none": _pair("sampled", ".1f"),
    "best step: memory / none": _pair("best_step", ",d"),
    "processor time": lambda result: f"{result['seconds']:.0f} s",
}
