"""Data with ends whose rule is known, and told to nobody."""

import numpy as np

from neubay.data.dataset import Dataset
from neubay.tasks import Task

LIMIT = 2.0  # the probe's rule: |s'_0| > LIMIT is terminal
LONGEST = 60


def walks(
    episodes: int = 400,
    *,
    by_chance: float = 0.0,
    seed: int = 0,
    task: Task | None = None,
    stored: bool = True,
) -> Dataset:
    """s' = s + a / 2 with three states: the first ends an episode beyond LIMIT, or nothing does but
    chance; after LONGEST steps there is a timeout. Every step pays 1. Unless `stored`, nothing
    tells where a terminal step led."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list] = {name: [] for name in ("s", "a", "d", "timeout", "n")}
    for _ in range(episodes):
        state = rng.uniform(-1, 1, 3)
        for step in range(LONGEST):
            action = rng.uniform(-1, 1, 3)
            after = state + action / 2
            ends = rng.random() < by_chance if by_chance else abs(after[0]) > LIMIT
            last = step == LONGEST - 1 and not ends
            for name, value in zip(columns, (state, action, ends, last, after), strict=True):
                columns[name].append(value)
            state = after
            if ends:
                break
    s, a, d, timeout, n = (np.asarray(column) for column in columns.values())
    return Dataset.from_arrays(
        s,
        a,
        np.ones(len(d)),
        d,
        timeout,
        n if stored else None,
        task=task,
        name="walks",
        tell=lambda _: None,
    )
