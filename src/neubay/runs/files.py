"""Files that survive: written whole or not at all, JSON, arrays of a pytree, hashes.

JAX is imported where it is used, so that commands that only look at files do not wait for it.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neubay.errors import RunError, reason, refusal_reported

PARTIAL = ".partial"
"""How the names end of what is not written whole yet."""

Tree = Any  # a pytree; jaxtyping's name for it would import JAX
Arrays = dict[str, np.ndarray]


# --- Written whole -------------------------------------------------------------------------------


@contextlib.contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A path to write a file or a folder to, which becomes `target` if the block succeeds.

    Readers see the old target or the complete new one, never a part: the work is done under a
    temporary name beside the target, flushed to the disk and renamed, or removed if the block
    fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name[:40]}."
    workshop = Path(tempfile.mkdtemp(prefix=prefix, suffix=PARTIAL, dir=target.parent))
    try:
        draft = workshop / target.name
        yield draft
        for path in (*draft.rglob("*"), draft):
            flush_to_disk(path)
        _replace(draft, target, workshop / "old")
        flush_to_disk(target.parent)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _replace(draft: Path, target: Path, old: Path) -> None:
    """Rename `draft` to `target`; a folder in the way is set aside to `old` first, because only
    files can be replaced in one step. A file takes the place of no folder."""
    if target.is_dir() and not target.is_symlink():
        if not draft.is_dir():
            raise RunError(f"{target}: is a folder, and not replaced by a file; name a file")
        target.rename(old)
        try:
            draft.rename(target)
        except OSError:
            old.rename(target)
            raise
    else:
        draft.replace(target)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    windows = os.name == "nt"  # flushes only what is open for writing, and no folders
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put `text` between two markers of a text file, and leave the rest of it alone."""
    try:
        old = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read as text: {error}") from None
    head, _, rest = old.partition(begin)
    inside, ended, tail = rest.partition(end)
    if old.count(begin) != 1 or not ended or "<!--" in inside:  # the end of other tables
        raise RunError(f"{path}: needs one line '{begin}' and, below it, a line '{end}'")
    with atomic(path) as draft:
        draft.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


# --- JSON ----------------------------------------------------------------------------------------


def atomic_write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically."""
    with atomic(path) as draft:
        draft.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: not valid JSON ({error}); the file is damaged") from None
    if not isinstance(value, dict):
        raise RunError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


# --- Arrays --------------------------------------------------------------------------------------


def save_arrays(path: Path, tree: Tree, about: dict[str, Any]) -> None:
    """Write the array leaves of `tree`, named by their place in it, and a JSON note, atomically."""
    arrays = {f"tree{name}": array for name, array in arrays_of(tree).items()}
    with atomic(path) as draft:
        write_arrays(draft, {"about": note_array(about)} | arrays)


def note_array(about: dict[str, Any]) -> np.ndarray:
    """A JSON note as an array file holds it, under the name 'about'."""
    return np.frombuffer(json.dumps(about, allow_nan=False).encode(), np.uint8)


def load_arrays(
    path: Path, like: Tree, absent: Callable[[str], bool] | None = None
) -> tuple[Tree, dict[str, Any]]:
    """Read what `save_arrays` wrote into the structure of `like`, whose leaves have a shape and a
    dtype; a leaf that is missing, left over or of another shape or dtype is an error. Of those that
    are `absent` in an older file, by their name, the leaves of `like` are kept."""
    stored = read_arrays(path)
    about = _note(path, stored.pop("about", None))
    arrays = {name.removeprefix("tree"): array for name, array in stored.items()}
    if absent is not None:
        kept = {name: leaf for name, leaf in arrays_of(like).items() if absent(name)}
        arrays = kept | arrays
    try:
        tree = filled(like, arrays)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from None
    return tree, about


def read_note(path: Path) -> dict[str, Any]:
    """The JSON note of an array file, without its arrays."""
    with _arrays_in(path) as file:
        stored = _array(file, "about") if "about" in file.files else None
    return _note(path, stored)


def array_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a file by their names, without its arrays."""
    with _arrays_in(path) as file:
        return _promised(file.zip, path.stat().st_size)


def _promised(archive: Any, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes in the headers of arrays. NumPy takes the memory that a header asks for before it
    reads on, so what asks for more than the file holds is refused. (Ours are not compressed.)"""
    shapes, total = {}, 0
    for member in archive.infolist():
        with archive.open(member) as stream:
            layout = np.lib.format
            first = layout.read_magic(stream) == (1, 0)
            read = layout.read_array_header_1_0 if first else layout.read_array_header_2_0
            shape, _, dtype = read(stream)
        if min(shape, default=0) < 0:
            raise ValueError(f"'{member.filename}' has the shape {shape}")
        total += math.prod(shape) * dtype.itemsize
        shapes[member.filename.removesuffix(".npy")] = shape
    if total > size:
        raise ValueError(f"its headers promise {total:,} bytes of arrays, it has {size:,}")
    return shapes


def _note(path: Path, stored: np.ndarray | None) -> dict[str, Any]:
    if stored is None:
        raise RunError(f"{path}: has no note: neubay did not write it, or it is damaged")
    try:
        note = json.loads(stored.tobytes())
    except (ValueError, RecursionError):
        note = None
    if not isinstance(note, dict):
        raise RunError(f"{path}: its note is not an object; the file is damaged")
    return note


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write named arrays into an npz file."""
    with path.open("wb") as file:  # opened here: NumPy would change the name
        np.savez(file, allow_pickle=False, **arrays)


def read_arrays(path: Path) -> Arrays:
    """The arrays of an npz file."""
    with _arrays_in(path) as file:
        return {name: _array(file, name) for name in file.files}


def _array(file: Any, name: str) -> np.ndarray:
    array = file[name]
    if not isinstance(array, np.ndarray):  # NumPy gives the bytes of what it does not know
        raise ValueError(f"'{name}' is no array")
    return array


def read_array(path: Path) -> np.ndarray:
    """The array of an npy file."""
    with _stream_of_arrays(path) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


@contextlib.contextmanager
def _arrays_in(path: Path) -> Iterator[Any]:
    """An array file, open."""
    # Opened here: NumPy would leave a file open that is no archive.
    with _stream_of_arrays(path) as stream:
        if not zipfile.is_zipfile(stream):  # NumPy would take it for a pickle
            raise ValueError("it is no npz archive")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as file:
            _promised(file.zip, path.stat().st_size)
            yield file


@contextlib.contextmanager
def _stream_of_arrays(path: Path) -> Iterator[Any]:
    """What NumPy and zip raise over damaged bytes, which is of a dozen types, becomes a `RunError`:
    only calls into them may stand inside."""
    try:
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise RunError(f"{path}: not found") from None
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"{path}: not a readable array file ({why}); it is damaged") from None


def arrays_of(tree: Tree) -> Arrays:
    """The leaves of a pytree by their place in it, random keys as their numbers."""
    import jax

    return {
        name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for name, leaf in _named_leaves(tree)
    }


def filled(like: Tree, arrays: Arrays) -> Tree:
    """A pytree of the structure of `like` with other leaves; a ValueError says what does not fit.

    The leaves are copies: a jitted update may give up the memory of what it gets.
    """
    import jax

    wanted = dict(_named_leaves(like))
    if strays := sorted(arrays.keys() ^ wanted.keys()):
        where = "only in the file" if strays[0] in arrays else "missing in the file"
        raise ValueError(f"'{strays[0]}' is {where}: it holds other arrays than expected")
    leaves = []
    for name, leaf in wanted.items():
        array, is_key = arrays[name], _is_key(leaf)
        expected = jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
        if (array.shape, array.dtype) != (tuple(expected.shape), np.dtype(expected.dtype)):
            raise ValueError(
                f"'{name}' is {array.dtype}{list(array.shape)}, "
                f"expected {np.dtype(expected.dtype)}{list(expected.shape)}"
            )
        copy = jax.device_put(np.array(array))  # `jnp.array` compiles a program a shape
        impl = jax.random.key_impl(leaf) if is_key else None
        leaves.append(jax.random.wrap_key_data(copy, impl=impl) if is_key else copy)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named_leaves(tree: Tree) -> list[tuple[str, Any]]:
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _is_key(leaf: Any) -> bool:
    import jax
    import jax.numpy as jnp

    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


# --- Hashes --------------------------------------------------------------------------------------


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with refusal_reported(RunError, f"{path}: cannot be read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_hash(tree: Tree) -> str:
    """Hash of the arrays of a pytree, their places, shapes and dtypes."""
    digest = hashlib.sha256()
    for name, array in arrays_of(tree).items():
        array = np.ascontiguousarray(array)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]
