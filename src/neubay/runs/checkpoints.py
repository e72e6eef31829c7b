"""Checkpoints of a training: written whole, sealed, and checked before they are believed.

    checkpoints/000012000-0000031/    a moment of the training: gradient steps, gatherings
        arrays/                       orbax: agent, optimiser states, random key; replay
        replay/0001/ ...              orbax: more of the replay, where it is large
        checkpoint.json               position, arrays, SHA-256 of every file and of itself
    checkpoints/best-000008000/       the agent that scored best so far, without the replay

A moment appears under its name when everything in it is on the disk. The last two are kept: if the
last one is damaged, the training goes on from the one before. The moment at the end of a training
needs no replay, and is the only one that a finished run keeps, beside the best.
"""

import dataclasses
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from neubay.errors import RunError
from neubay.runs.files import atomic_file, file_hash, flush_to_disk
from neubay.runs.messages import Report, log
from neubay.runs.rundir import CHECKPOINTS, moments
from neubay.runs.signals import Stopped

LAYOUT = 2
"""Version of a checkpoint. 1 had all of the replay in arrays/; it is read all the same."""
EVERY = 30.0
"""Seconds between two checkpoints, at least."""
SHARE = 0.02
"""Of the time, what checkpoints may take: a slow one is followed by a longer pause."""
SLICE = 64_000_000
"""Bytes of the replay that are written or read at once: orbax copies what it is given twice."""
_SEAL = "checkpoint.json"

Arrays = dict[str, np.ndarray]


@runtime_checkable
class Experience(Protocol):
    """Where tapes come from, as far as it has to be kept."""

    def slices(self, size: int) -> Iterator[Arrays]: ...

    def load(self, slices: Iterable[Arrays]) -> None: ...


@dataclasses.dataclass
class Position:
    """Where Algorithm 1 is between two device calls, beside agent and replay.

    Random numbers need no place in it: they follow from seed, iteration and step, and the agent
    has a key of its own.
    """

    step: int = 0
    """Gradient steps done."""
    iteration: int = 0
    """Times that experience was gathered."""
    due: float = 0.0
    """Gradient steps that are owed to the rows gathered."""
    gathered: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the last gathering had to tell."""
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The last row of training."""
    evaluation: dict[str, Any] | None = None
    """The last evaluation."""
    best: float | None = None
    """The highest mean return so far."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Wall time per stage, those before an interruption included."""

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Count the time of a block towards a stage."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begun
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


class Damaged(Exception):
    """A checkpoint is not what was written."""


Described = dict[str, list[Any]]
"""Arrays by name: dtype and shape of each."""


class _Note(NamedTuple):
    """What checkpoint.json says."""

    position: dict[str, Any]
    metrics_bytes: int
    arrays: dict[str, Described]
    slices: list[Described]


class Checkpoints:
    """The moments of one training, in one run directory.

    Args:
        directory: the run directory, held by this process.
        metrics: the file of rows that goes with the training: going on from a moment cuts it back
            to what the moment knew.
        every: seconds between two checkpoints, at least; with 0 there is one at every pause.
        signalled: tells whether the process was asked to stop, as `deferred_signals` gives it.
        report: told, in a sentence, what a user should know.
    """

    def __init__(
        self,
        directory: Path,
        metrics: Path,
        *,
        every: float = EVERY,
        signalled: Callable[[], int] = lambda: 0,
        report: Report = log,
    ) -> None:
        self.directory, self.metrics, self.every = directory / CHECKPOINTS, metrics, every
        self._signalled, self._report = signalled, report
        self._next = time.monotonic() + every

    # --- Going on

    def resume(self, state: PyTree, experience: Experience, end: int) -> tuple[PyTree, Position]:
        """The agent's state and the position of the last sound moment, its experience loaded; or
        the fresh `state` and the beginning, where there is none."""
        self._tidy()
        found = moments(self.directory)[::-1]
        for path in found:
            try:
                note = _checked(path, self.metrics)
                arrays = read_arrays(path / "arrays", note.arrays)
                resumed = _filled(state, arrays["agent"])
                position = Position(**note.position)
                if position.step < end:
                    experience.load(_slices(path, note, arrays))
            except Damaged as damage:
                self._report(f"{path}: damaged ({damage}); it is not used")
                continue
            for damaged in found[: found.index(path)]:
                _discard(damaged)
            self._cut_metrics(note.metrics_bytes)
            self._report(f"going on from step {position.step:,} of {end:,}")
            return resumed, position
        if found:
            raise RunError(
                f"{self.directory}: none of its {len(found)} checkpoints is sound. "
                "Remove that folder to train from the start; nothing else is lost"
            )
        self._cut_metrics(0)
        return state, Position()

    def _tidy(self) -> None:
        """Remove what a kill left half made or half removed."""
        for path in self.directory.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)

    def _cut_metrics(self, size: int) -> None:
        if self.metrics.exists():
            with self.metrics.open("r+b") as file:
                file.truncate(size)

    # --- Keeping

    def pause(self, state: PyTree, experience: Experience, at: Position, end: int) -> None:
        """A point where everything is whole: keep it if it is time to, or if the training ends
        here; keep the agent if none scored better; leave if that was asked for."""
        with at.clock("checkpoints"):
            scored = at.evaluation or {"step": None}
            if scored["step"] == at.step and _beats(scored["return_mean"], at.best):
                at.best = scored["return_mean"]
                self._keep_best(state, at)
        stop, ended = self._signalled(), at.step >= end
        if stop or ended or time.monotonic() >= self._next:
            begun = time.monotonic()
            with at.clock("checkpoints"):
                self._keep(state, [] if ended else list(experience.slices(SLICE)), at)
            now = time.monotonic()
            self._next = now + (max(self.every, (now - begun) / SHARE) if self.every else 0.0)
        if stop:
            raise Stopped(stop)

    def _keep(self, state: PyTree, experience: list[Arrays], at: Position) -> None:
        target = self.directory / f"{at.step:09d}-{at.iteration:07d}"
        self._write(target, _plain(state), experience, at)
        self._prune(2)

    def finish(self) -> None:
        """Nothing will be gone on with: the last moment is enough."""
        self._tidy()
        self._prune(1)

    def _prune(self, kept: int) -> None:
        for old in moments(self.directory)[:-kept]:
            _discard(old)

    def _keep_best(self, state: PyTree, at: Position) -> None:
        target = self.directory / f"best-{at.step:09d}"
        self._write(target, _plain(state), [], at)
        for other in self.directory.glob("best-*"):
            if other != target:
                _discard(other)

    def _write(self, target: Path, agent: Arrays, experience: list[Arrays], at: Position) -> None:
        draft = target.with_name(f".{target.name}.partial")
        try:
            draft.mkdir(parents=True)
            parts = {"agent": agent} | ({"experience": experience[0]} if experience else {})
            _orbax().save((draft / "arrays").absolute(), parts)
            for number, arrays in enumerate(experience[1:], start=1):
                _orbax().save((draft / _slice_name(number)).absolute(), arrays)
            if self.metrics.exists():
                flush_to_disk(self.metrics)
            seal(
                draft,
                {
                    "layout": LAYOUT,
                    "position": dataclasses.asdict(at),
                    "metrics_bytes": self.metrics.stat().st_size if self.metrics.exists() else 0,
                    "arrays": {name: _described(arrays) for name, arrays in parts.items()},
                    "slices": [_described(arrays) for arrays in experience[1:]],
                },
            )
            if target.exists():  # of the same moment, before an interruption
                _discard(target)
            draft.rename(target)
            flush_to_disk(self.directory)
        except (OSError, ValueError, RuntimeError) as error:  # tensorstore raises the last two
            size = sum(array.nbytes for part in (agent, *experience) for array in part.values())
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
            raise RunError(
                f"{target}: {size / 1e6:.1f} MB could not be written: {reason}. The checkpoints "
                "before it are untouched: make room, and give the same command to go on"
            ) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _beats(score: float, best: float | None) -> bool:
    """A score that is no number beats none, and any other beats it."""
    return not math.isnan(score) and (best is None or not score <= best)


def _discard(path: Path) -> None:
    """Remove a checkpoint, which is gone at once even if the removal is cut short."""
    removed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    path.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


# --- The seal ------------------------------------------------------------------------------------


def seal(folder: Path, note: dict[str, Any]) -> None:
    """Write `note` and the hash of every file into a folder, and its own hash with them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        flush_to_disk(path)
    content = note | {"files": {str(p.relative_to(folder)): file_hash(p) for p in files}}
    with atomic_file(folder / _SEAL) as file:  # metrics may not be finite: not strict JSON
        file.write(json.dumps(content | {"sha256": _digest(content)}).encode())


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checked(folder: Path, metrics: Path) -> _Note:
    """What the seal of a checkpoint says, if every byte is as it was written."""
    content = unsealed(folder)
    if content["layout"] not in (1, LAYOUT):
        raise RunError(
            f"{folder}: a checkpoint of layout {content['layout']}, this version reads 1 and "
            f"{LAYOUT}; go on with the version of neubay that wrote it, or choose another --out"
        )
    note = _Note(
        content["position"], content["metrics_bytes"], content["arrays"], content.get("slices", [])
    )
    found = metrics.stat().st_size if metrics.exists() else 0
    if found < note.metrics_bytes:
        raise Damaged(f"{metrics.name} had {note.metrics_bytes} bytes, now it has {found}")
    return note


def unsealed(folder: Path) -> dict[str, Any]:
    """The content of a seal; `Damaged` says which file is not as it was written."""
    try:
        content = json.loads((folder / _SEAL).read_bytes())
        claimed = content.pop("sha256")
        if claimed != _digest(content):
            raise Damaged(f"{_SEAL} is not as it was written")
        files = content["files"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damaged(f"{_SEAL} cannot be read") from None
    for name, expected in files.items():
        try:
            intact = file_hash(folder / name) == expected
        except RunError:
            raise Damaged(f"{name} cannot be read") from None
        if not intact:
            raise Damaged(f"{name} is not as it was written")
    return content


# --- Arrays --------------------------------------------------------------------------------------


def _orbax() -> Any:
    """Arrays in a folder. Imported here: it takes as long as JAX, and few commands need it."""
    import orbax.checkpoint as ocp

    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _slice_name(number: int) -> str:
    return f"replay/{number:04d}"


def _slices(folder: Path, note: _Note, arrays: dict[str, Arrays]) -> Iterator[Arrays]:
    """The experience in a checkpoint whose files are intact."""
    if "experience" in note.arrays:
        yield arrays.pop("experience")
    for number, wanted in enumerate(note.slices, start=1):
        yield read_arrays(folder / _slice_name(number), wanted)


def _described(arrays: Arrays) -> Described:
    return {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}


def read_arrays(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """What orbax wrote into a folder whose files are intact; `wanted` has a list for each array."""
    import orbax.checkpoint as ocp

    plain = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        wanted,
        is_leaf=lambda node: isinstance(node, list),
    )
    try:
        arrays: dict[str, Any] = _orbax().restore(folder.absolute(), restore_args=plain)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise Damaged(" ".join(str(error).split())[:200]) from None
    return arrays


def _plain(state: PyTree) -> Arrays:
    """The leaves of a state by their place in it, random keys as their numbers."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path): np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for path, leaf in leaves
    }


def _filled(like: PyTree, arrays: Arrays) -> PyTree:
    """A state of the structure of `like` with other leaves."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    expected = _plain(like)
    if strays := sorted(arrays.keys() ^ expected.keys()):
        raise Damaged(f"it holds other arrays than this agent has: '{strays[0]}'")
    for name, array in expected.items():
        got = arrays[name]
        if (got.shape, got.dtype) != (array.shape, array.dtype):
            raise Damaged(
                f"'{name}' is {got.dtype}{list(got.shape)}, "
                f"expected {array.dtype}{list(array.shape)}"
            )

    def restored(name: str, leaf: Any) -> Any:
        array = jnp.array(arrays[name])  # a copy: updates give up the memory of what they get
        if not _is_key(leaf):
            return array
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))

    return jax.tree.unflatten(structure, [restored(name, leaf) for name, leaf in named.items()])


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
