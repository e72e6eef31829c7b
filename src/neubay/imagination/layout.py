"""The steps of a batch of rollouts -> rows of a tape, rollout after rollout."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from neubay.imagination.batch import Steps
from neubay.imagination.branches import Branches
from neubay.imagination.rules import Ending, Rules
from neubay.tape import AnyArray, Tape


class Rollouts(NamedTuple):
    """K imagined rollouts. `rows` are those beyond the histories, rollout after rollout:
    s_t (the branching state), ..., s_{t+L}, that is L + 1 rows for a rollout of L steps."""

    rows: Tape
    length: Int[np.ndarray, " k"]  # L, the horizon reached
    ending: Int[np.ndarray, " k"]  # an `Ending`
    uncertainty: Float[np.ndarray, " k"]  # the largest U on the way; 0 where nothing depends on U

    def record(self) -> dict[str, float]:
        """Horizons and endings as plain numbers, for a metrics file."""
        quantiles = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
        return {
            "horizon_mean": float(self.length.mean()),
            "uncertainty_max": float(self.uncertainty.max()),
            **{
                f"horizon_{name}": float(np.quantile(self.length, share))
                for name, share in quantiles.items()
            },
            **{
                f"ended_{ending.name.lower()}": float(np.mean(self.ending == ending))
                for ending in list(Ending)[1:]
            },
        }


def lay_out(branches: Branches, rules: Rules, record: Steps) -> Rollouts:
    """Records, step by step in the order of shrinking batches -> rows, rollout after rollout."""
    count = len(branches.length)
    ending = np.full(count, Ending.UNACTED, np.int8)
    number, place = np.nonzero(record.happened & (record.ending != Ending.NONE))
    ending[record.slot[number, place]] = record.ending[number, place]

    number, place = np.nonzero(record.happened & (record.ending != Ending.NON_FINITE))
    slot = record.slot[number, place]
    length = np.bincount(slot, minlength=count)
    first = np.cumsum(length + 1) - (length + 1)

    def rows(values: AnyArray, *, after: int = 0) -> np.ndarray:
        laid = np.zeros((count + len(slot), *values.shape[2:]), values.dtype)
        laid[first[slot] + number + after] = values[number, place]
        return laid

    state = rows(record.next_state, after=1)
    state[first] = branches.inputs.state
    start = np.zeros(len(state), bool)
    start[first] = branches.inputs.start
    uncertainty = rows(record.uncertainty)
    endings = rows(record.ending)
    halted = (endings == Ending.UNCERTAIN) & (rules.halt_penalty is not None)
    penalty = uncertainty * np.float32(rules.penalty) + halted * np.float32(rules.halt_penalty or 0)
    return Rollouts(
        rows=Tape(
            state=state,
            action=rows(record.action),
            reward=rows(record.reward),
            terminated=(endings == Ending.TERMINAL) | halted,
            start=start,
            real=np.zeros(len(state), bool),
            penalty=penalty if rules.penalised else None,
        ),
        length=length,
        ending=ending,
        uncertainty=np.maximum.reduceat(uncertainty, first),
    )
