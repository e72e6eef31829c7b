"""Files that survive: atomic writes, arrays of a pytree, locks, provenance, stopping safely.

JAX is imported where it is used: who only looks at files does not wait for it.
"""

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy as np

from neubay.errors import RunError

Tree = Any  # a pytree; jaxtyping's name for it would import JAX
Report = Callable[[str], None]
"""Is told in a sentence what a user should know."""


def log(text: str) -> None:
    """The report of who names no other: standard error, unless logging is set up otherwise."""
    logging.getLogger("neubay").warning(text)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears whole under its name, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not valid JSON ({error}); the file is damaged") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def save_arrays(path: Path, tree: Tree, about: dict[str, Any]) -> None:
    """Write the array leaves of `tree`, named by their place in it, and a JSON note, atomically."""
    arrays = {f"tree{name}": np.asarray(leaf) for name, leaf in _named_leaves(tree)}
    note = np.frombuffer(json.dumps(about, allow_nan=False).encode(), np.uint8)
    with atomic_file(path) as file:
        np.savez(file, allow_pickle=False, about=note, **arrays)


def load_arrays(path: Path, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """Read what `save_arrays` wrote into the structure of `like`, whose leaves have a shape and a
    dtype; a leaf that is missing, left over or of another shape or dtype is an error."""
    wanted = {f"tree{name}": leaf for name, leaf in _named_leaves(like)}
    import jax

    with _arrays_in(path) as file:
        about = json.loads(file["about"].tobytes())
        stored = {name: file[name] for name in file.files if name != "about"}
    strays = sorted(stored.keys() ^ wanted.keys())
    if strays:
        where = "only in the file" if strays[0] in stored else "missing in the file"
        raise RunError(f"{path}: '{strays[0]}' is {where}: it holds other arrays than expected")
    for name, leaf in wanted.items():
        got, expected = stored[name], (tuple(leaf.shape), np.dtype(leaf.dtype))
        if (got.shape, got.dtype) != expected:
            raise RunError(
                f"{path}: '{name}' is {got.dtype}{list(got.shape)}, "
                f"expected {expected[1]}{list(expected[0])}"
            )
    leaves = [stored[name] for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), about


def read_note(path: Path) -> dict[str, Any]:
    """The JSON note of an array file, without its arrays."""
    with _arrays_in(path) as file:
        note = json.loads(file["about"].tobytes())
    if not isinstance(note, dict):
        raise RunError(f"{path}: its note is not an object; the file is damaged")
    return note


@contextlib.contextmanager
def _arrays_in(path: Path) -> Iterator[Any]:
    """An array file, open. What NumPy and zip raise over damaged bytes, which is of a dozen types,
    becomes a `RunError`: only calls into them may stand inside."""
    try:
        # Opened here: NumPy would leave a file open that is no archive.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except FileNotFoundError:
        raise RunError(f"{path}: not found") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"{path}: not a readable array file ({reason}); it is damaged") from None


def _named_leaves(tree: Tree) -> list[tuple[str, Any]]:
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None


def tree_hash(tree: Tree) -> str:
    """Hash of the arrays of a pytree, their places, shapes and dtypes."""
    digest = hashlib.sha256()
    for name, leaf in _named_leaves(tree):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


@functools.cache
def provenance() -> dict[str, str]:
    """Versions of what decides the numbers, and the kind of machine."""
    import jax

    packages = ("neubay", "jax", "jaxlib", "equinox", "optax", "numpy", "mujoco")
    return {
        **{name: importlib.metadata.version(name) for name in packages},
        **_commit(),
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _commit(package: Path = Path(__file__).parent) -> dict[str, str]:
    """The commit that the package is run from, where it is in a checkout; '-dirty' if a file of
    the package, not of its documentation or tests, is another one than in the commit."""
    git = shutil.which("git")
    if git is None or not (package.parents[1] / ".git").exists():
        return {}

    def ask(*words: str) -> str | None:
        command = [git, "-C", str(package), *words]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit, changes = ask("rev-parse", "HEAD"), ask("status", "--porcelain", "--", ".")
    return {"commit": commit + ("-dirty" if changes else "")} if commit else {}


# --- One process at a time -----------------------------------------------------------------------

LOCK_FILE = "lock"
"""Held by the process that works in a folder; who that is stands in it. It is never removed: the
system lets go of it when the process ends, however it ends."""
_GLANCE = 0.3  # seconds that others may hold it for a look, as `lock_holder` does
_PATIENCE = 0.5  # seconds between two looks at a lock that is waited for


@contextlib.contextmanager
def locked(directory: Path, waiting: Report | None = None) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if need be.

    Where another one holds it, this is an error that names it, or with `waiting` it is waited for
    and `waiting` is told so once.
    """
    if importlib.util.find_spec("fcntl") is None:  # Windows has no such locks
        yield
        return
    with _acquired(directory, waiting) as file:
        _sign(file)
        yield


def _acquired(directory: Path, waiting: Report | None) -> IO[str]:
    """The lock file of a folder, locked."""
    import fcntl

    begun, told = time.monotonic(), False
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = (directory / LOCK_FILE).open("a+", encoding="utf-8")
        except OSError as error:
            raise RunError(f"{directory}: cannot be written: {error.strerror}") from None
        with contextlib.ExitStack() as otherwise:
            otherwise.enter_context(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, directory / LOCK_FILE):
                    otherwise.pop_all()
                    return file
                continue  # the folder was removed meanwhile: its lock means nothing to others
            except BlockingIOError:
                holder = _holder(file)
            except OSError as error:
                raise RunError(f"{directory}: cannot be locked: {error.strerror}") from None
        leave_if_asked()
        if time.monotonic() - begun < _GLANCE:
            time.sleep(_GLANCE / 10)
            continue
        if waiting is None:
            raise RunError(
                f"{directory}: in use by {holder}: wait for it or stop it, "
                "or choose another directory"
            )
        if not told:
            waiting(f"{directory}: waiting for {holder}")
            told = True
        time.sleep(_PATIENCE)


def _is_at(file: IO[str], path: Path) -> bool:
    """An open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _sign(file: IO[str]) -> None:
    """Write down who holds a lock: a courtesy to others, so a full disk does not matter."""
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "host": platform.node(), "since": since}, file)
        file.flush()


def lock_holder(directory: Path) -> str | None:
    """Who works in a folder at this moment, in words; none if nobody does."""
    try:
        import fcntl

        with (directory / LOCK_FILE).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    except (ImportError, OSError):
        pass
    return None


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        held = json.load(file)
        return f"process {held['pid']} on {held['host']}, since {held['since']}"
    except (ValueError, KeyError, TypeError):  # it has only just begun
        return "another process"


# --- Stopping ------------------------------------------------------------------------------------


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Stopped(Interrupted):
    """It was answered at a safe point: what was done is saved."""


_held_back: list[int] | None = None  # signals that arrived, while they are held back


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], int]]:
    """Hold SIGINT and SIGTERM back; the yielded function gives the one that has arrived, or 0.

    The caller asks at points where its state is whole, saves, and raises `Stopped`; where nothing
    is left to save, `leave_if_asked` does. A second signal stops at once, with what the last
    checkpoint has. Inside another such block this one shares its signals. Outside the main thread
    signals cannot be held back, and none arrive.
    """
    global _held_back
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    outermost = _held_back is None
    arrived: list[int] = [] if _held_back is None else _held_back

    def note(signum: int, frame: FrameType | None) -> None:
        if arrived:
            raise Interrupted(signum)
        arrived.append(signum)

    if not outermost:
        yield lambda: arrived[0] if arrived else 0
        return
    _held_back = arrived
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: arrived[0] if arrived else 0
    finally:
        _held_back = None
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_if_asked() -> None:
    """A safe point: raises `Stopped` where a signal is held back that asks to end."""
    if _held_back:
        raise Stopped(_held_back[0])
