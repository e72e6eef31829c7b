"""What is cloned of the data, and what of that a clone is not shown and is compared on: whole
episodes, or ends of them."""

import heapq
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from neubay.data.dataset import Dataset
from neubay.tape import AnyArray, Prefix, Tape

SHARE = 0.1
"""Of the data's steps, those that are held out, about."""
MOST_STEPS = 10_000
"""Held-out steps at most: more of them cost time, and tell little more."""
CONTEXT = 256
"""Rows before the held-out end of an episode that are read, and not counted."""
COLUMNS = 16
"""Held-out pieces are read side by side, in so many columns at most."""
BLOCK = 50
"""Held-out steps in a row that count as one observation when likelihoods are compared: what one
step says, its neighbours say again."""


class Split(NamedTuple):
    """The data in two parts, each pieces of episodes."""

    training: Prefix
    held_out: Prefix
    read: Int[np.ndarray, " pieces"]  # rows at the top of each held-out piece that only precede it


class HeldOut(NamedTuple):
    """Held-out pieces as one batch of columns, and the blocks that their steps belong to."""

    tape: Tape
    block: Int[AnyArray, "rows columns"]  # its number; as many as there are where no step counts
    steps: Int[AnyArray, " blocks"]  # of each block


def best_episodes(dataset: Dataset, share: float) -> Prefix:
    """Histories of the episodes that were worth most, until they are a share of the steps; fewer
    where the others are worth as little as the worst, and all where all are worth the same.

    A history is worth its return. One that was cut before T, by a timeout or the log's end, is
    taken to have continued at the mean reward of all data: one that paid well for a few steps may
    have been lucky, and where rewards are costs it is no merit to stop early.
    """
    first, length = (np.asarray(leaf) for leaf in dataset.histories)
    worth = _worth(dataset)
    order = np.argsort(-worth, kind="stable")
    count = int(np.searchsorted(np.cumsum(length[order]), share * length.sum())) + 1
    better = int((worth > worth.min()).sum())
    chosen = np.sort(order[: min(count, better) if better else None])
    return Prefix(first[chosen], length[chosen])


def _worth(dataset: Dataset) -> Float[np.ndarray, " episodes"]:
    """What each history earned, or would have earned up to T."""
    first, length = (np.asarray(leaf) for leaf in dataset.histories)
    reward = np.asarray(dataset.tape.reward, np.float64)
    paid = np.concatenate([[0.0], np.cumsum(reward)])
    earned = paid[first + length] - paid[first]
    ended = np.asarray(dataset.tape.terminated)[first + np.maximum(length - 1, 0)]
    left = np.where(ended, 0, dataset.task.horizon - length)
    return earned + left * earned.sum() / max(int(length.sum()), 1)


def split(dataset: Dataset, seed: int, of: Prefix | None = None) -> Split:
    """All episodes, or those given by `of`, in two parts. Some are drawn and held out, as long as
    they are together at most a tenth of the steps.

    Where every episode is longer than that, the last tenth of each is held out; what precedes it in
    its episode may be read before it. Where nothing can be held out (a few episodes, all of one
    step), clones are compared on what they learn from.
    """
    first, length = (np.asarray(leaf) for leaf in of or dataset.histories)
    total = int(length.sum())
    most = min(math.floor(SHARE * total), MOST_STEPS)
    drawn, steps = np.zeros(len(length), bool), 0
    for episode in np.random.default_rng(seed).permutation(np.flatnonzero(length)).tolist():
        if steps + length[episode] <= most:
            drawn[episode] = True
            steps += int(length[episode])
    if steps:
        kept, held = (Prefix(first[those], length[those]) for those in (~drawn, drawn))
        return Split(kept, held, np.zeros_like(held.length))
    end = np.maximum((length * (most / max(total, 1))).astype(np.int64), 1)
    end = np.where(length > 1, end, 0)
    if not end.any():
        return Split(Prefix(first, length), Prefix(first, length), np.zeros_like(length))
    begin = length - end
    read = np.minimum(begin, CONTEXT)
    held = Prefix((first + begin - read)[end > 0], (end + read)[end > 0])
    return Split(Prefix(first, begin), held, read[end > 0])


def held_out(dataset: Dataset, parts: Split) -> HeldOut:
    """The held-out pieces, each with the rows before it that are only read, one below the other in
    columns of about the same length. What is left at the end of a column counts for nothing."""
    first, length = (np.asarray(leaf) for leaf in parts.held_out)
    ends = [(0, column) for column in range(min(COLUMNS, len(first)))]  # a heap: shortest first
    place = []
    for piece in np.argsort(-length, kind="stable").tolist():
        top, column = heapq.heappop(ends)
        place.append((piece, top, column))
        heapq.heappush(ends, (top + int(length[piece]) + 1, column))
    shape = max(ends)[0], len(ends)
    source, block = np.zeros(shape, np.int64), np.full(shape, -1)
    start, burn_in = np.ones(shape, bool), np.ones(shape, bool)
    steps: list[int] = []
    for piece, top, column in place:
        offset = np.arange(length[piece] + 1)
        rows = top + offset, column
        beyond = offset - parts.read[piece]  # steps that count, before each row
        counts = (beyond >= 0) & (offset < length[piece])
        source[rows], start[rows], burn_in[rows] = first[piece] + offset, offset == 0, ~counts
        block[rows] = np.where(counts, len(steps) + beyond // BLOCK, -1)
        steps += np.bincount(beyond[counts] // BLOCK).tolist()
    block[block < 0] = len(steps)
    taken = dataset.take(source.ravel())
    state, action, reward, terminated = (
        np.asarray(leaf).reshape(*shape, *leaf.shape[1:]) for leaf in taken[:4]
    )
    real = np.ones(shape, bool)
    tape = Tape(state, action, reward, terminated, start, real, burn_in=burn_in)
    return HeldOut(tape, block, np.asarray(steps))
