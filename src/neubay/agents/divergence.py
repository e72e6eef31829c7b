"""Stopping where a training diverges."""

import math

from neubay.errors import TrainingError


def refuse_divergence(numbers: dict[str, float], step: int) -> None:
    """Raise where a loss is not finite: nothing good comes after it."""
    diverged = [
        name
        for name, value in numbers.items()
        if not math.isfinite(value) and not name.startswith("q_")  # NaN where no row is of its kind
    ]
    if diverged:
        raise TrainingError(
            f"diverged at step {step:,}: not finite is {', '.join(diverged)}. The last checkpoint "
            "is from before and is kept; resumed from it, the training would end here again. The "
            "paper advises a smaller learning rate of the recurrent encoder (eta_phi, which it "
            "sweeps from 3e-7 to 1e-4: --agent.encoder-lr) or a smaller discount (--agent.gamma), "
            "in another --out"
        )
