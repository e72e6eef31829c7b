"""What is tried next, and what is ended early: Optuna's samplers and its pruner.

The study is a journal in the sweep's directory, lines of JSON that Optuna's dashboard opens. Every
proposal is made by a sampler that is seeded with its number, so that a sweep which was killed and
resumed proposes what it would have proposed. The points of a grid are queued one by one, in order:
Optuna's grid sampler wants to stop a study of its own.
"""

import warnings
from pathlib import Path
from typing import Any, Literal

from neubay.errors import ConfigError, NeubayError, imported
from neubay.sweeps.space import Choices, Settings, Space, points

Sampler = Literal["tpe", "random", "grid"]
JOURNAL = "optuna.log"
REDUCTION = 4
"""Of the trials that come to a rung, one in so many goes on."""
NEEDS = 'sweeps need Optuna: pip install "neubay[sweep]"'


class Proposals:
    """A study that is asked and told.

    Args:
        directory: of the sweep.
        known: bytes of the journal that are known to be whole; what a kill left after them, half
            an answer or half a line, is cut off.
        seed: of the proposals.
        first_rung: evaluations before the first rung of successive halving.
    """

    def __init__(
        self,
        directory: Path,
        space: Space,
        sampler: Sampler,
        *,
        known: int = 0,
        seed: int = 0,
        first_rung: int = 1,
    ) -> None:
        self._optuna = optuna = needed()
        self._space, self._sampler, self._seed = space, sampler, seed
        self._path = directory / JOURNAL
        self._distributions = {key: _distribution(optuna, each) for key, each in space.items()}
        self._points = points(space) if sampler == "grid" else []
        self._trials: dict[int, Any] = {}
        _cut(self._path, known)
        try:
            journal = optuna.storages.journal.JournalFileBackend(str(self._path))
            self._study = optuna.create_study(
                study_name="sweep",
                storage=optuna.storages.JournalStorage(journal),
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.SuccessiveHalvingPruner(
                    min_resource=first_rung, reduction_factor=REDUCTION
                ),
            )
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise NeubayError(f"{self._path}: damaged ({error}); choose another --out") from None

    @property
    def size(self) -> int:
        """Bytes of the journal."""
        return self._path.stat().st_size

    def ask(self) -> tuple[int, Settings]:
        """The number of a new trial, and its settings."""
        number = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = self._seeded(number)
        if self._sampler == "grid":
            self._study.enqueue_trial(self._points[number])
        trial = self._study.ask(self._distributions)
        assert trial.number == number
        self._trials[number] = trial
        return number, {key: trial.params[key] for key in self._space}

    def report(self, number: int, evaluation: int, value: float) -> bool:
        """What a trial was worth at an evaluation; whether it should end there."""
        trial = self._trial(number)
        with warnings.catch_warnings():  # it was reported before, and the sweep was killed
            warnings.simplefilter("ignore")
            trial.report(value, evaluation)
        return bool(trial.should_prune())

    def tell(self, number: int, value: float | None, state: str) -> None:
        """How a trial ended."""
        states = self._optuna.trial.TrialState
        ended = {"finished": states.COMPLETE, "pruned": states.PRUNED}.get(state, states.FAIL)
        worth = value if state == "finished" else None
        self._study.tell(number, worth, state=ended, skip_if_finished=True)

    def _trial(self, number: int) -> Any:
        if number not in self._trials:  # asked before the sweep was interrupted
            self._study.sampler = self._seeded(number)
            stored = self._study.get_trials(deepcopy=False)[number]
            self._trials[number] = self._optuna.trial.Trial(self._study, stored._trial_id)
        return self._trials[number]

    def _seeded(self, number: int) -> Any:
        samplers, seed = self._optuna.samplers, self._seed * 1_000_003 + number
        if self._sampler != "tpe":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some versions call this option experimental
            return samplers.TPESampler(seed=seed, constant_liar=True)


def needed() -> Any:
    """The package Optuna."""
    optuna = imported("optuna", ConfigError(NEEDS))
    imported("optuna.storages.journal", ConfigError(NEEDS))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(optuna: Any, dimension: Any) -> Any:
    if isinstance(dimension, Choices):
        return optuna.distributions.CategoricalDistribution(dimension.values)
    kind = "IntDistribution" if dimension.whole else "FloatDistribution"
    make = getattr(optuna.distributions, kind)
    return make(dimension.low, dimension.high, log=dimension.log)


def _cut(path: Path, known: int) -> None:
    """Cut a journal back to what is known to be whole, and remove the lock of a killed process."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if not path.exists():
        if known:
            raise NeubayError(f"{path}: not found, and the sweep needs it; choose another --out")
        return
    if (size := path.stat().st_size) < known:
        raise NeubayError(
            f"{path}: has {size} bytes and had {known}: it was shortened. Restore it, or choose "
            "another --out; finished runs can be copied there"
        )
    with path.open("r+b") as file:
        file.truncate(known)
