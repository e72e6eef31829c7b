"""Whatever a file holds, reading it gives a valid dataset or a `DatasetError`."""

import io
import os
import pickle
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from helpers.data_checks import check_invariants, make_log, small_task
from neubay.data import load, validate
from neubay.data.sources import ANY_END, NAMES
from neubay.errors import DatasetError

Arrays = dict[str, np.ndarray]


def write_hdf5(path: Path, contents: Arrays, **options: object) -> None:
    with h5py.File(path, "w") as file:
        for key, values in contents.items():
            file.create_dataset(key, data=values, **options)


def write_npz(path: Path, contents: Arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, **contents)


WRITERS: dict[str, Callable[[Path, Arrays], None]] = {"hdf5": write_hdf5, "npz": write_npz}


def valid_or_refused(path: Path, **arguments: object) -> None:
    """The claim of this file; what is refused is found by `validate` too."""
    try:
        dataset = load(path, **arguments)
    except DatasetError as refusal:
        assert str(path) in str(refusal) or path.name in str(refusal)
        findings = validate(path, **arguments)
        assert any(finding.severity == "error" for finding in findings), (refusal, findings)
    else:
        check_invariants(dataset)


# ------------------------------------------------------------------------- one by one


class Bomb:
    """Something that acts when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os._exit, (77,))


@pytest.mark.parametrize("name", ["log.hdf5", "log.npz", "log"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_in_disguise_is_never_loaded(tmp_path: Path, name: str, protocol: int) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(), protocol=protocol))
    with pytest.raises(DatasetError, match="pickle" if protocol else "neither HDF5 nor npz"):
        load(tmp_path / name)


def test_pickled_members_of_npz_are_never_loaded(tmp_path: Path) -> None:
    contents = make_log().d4rl()
    contents["rewards"] = np.array([Bomb()] * len(contents["rewards"]), dtype=object)
    write_npz(tmp_path / "log.npz", contents)
    with pytest.raises(DatasetError, match=r"'rewards' holds pickled .* never loaded"):
        load(tmp_path / "log.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"observations,actions\n1,2\n", "neither HDF5 nor npz"),
        (b"PK\x03\x04", "cannot be read"),
        (b"PK\x05\x06" + bytes(18), "no array of states"),
        (b"\x89HDF\r\n\x1a\n", "cannot be read"),
        (b"\x93NUMPY\x01\x00", "single array"),
        (b"<html>Not found</html>", "neither HDF5 nor npz"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "log.hdf5"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load(path)
    assert validate(path)[0].severity == "error"


@pytest.mark.parametrize("kind", WRITERS)
def test_wrong_keys_are_listed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"log.{kind}"
    WRITERS[kind](path, {"pixels": np.zeros(3), "moves": np.zeros(3)})
    with pytest.raises(
        DatasetError, match=r"no array of states.*'observations'.*'moves', 'pixels'"
    ):
        load(path)


@pytest.mark.parametrize("kind", WRITERS)
def test_text_instead_of_numbers(tmp_path: Path, kind: str) -> None:
    contents = make_log().d4rl()
    contents["rewards"] = np.array([b"much"] * len(contents["rewards"]))
    path = tmp_path / f"log.{kind}"
    WRITERS[kind](path, contents)
    with pytest.raises(DatasetError, match="'rewards': holds text, not numbers"):
        load(path)


def test_strings_of_any_length_in_hdf5(tmp_path: Path) -> None:
    contents = make_log().d4rl()
    rows = len(contents.pop("rewards"))
    write_hdf5(tmp_path / "log.hdf5", contents)
    with h5py.File(tmp_path / "log.hdf5", "a") as file:
        file.create_dataset("rewards", data=["x"] * rows, dtype=h5py.string_dtype())
    with pytest.raises(DatasetError, match="'rewards': holds objects or text"):
        load(tmp_path / "log.hdf5")


@pytest.mark.parametrize("kind", ["external", "soft", "virtual", "storage"])
def test_other_files_are_never_followed(tmp_path: Path, kind: str) -> None:
    contents = make_log().d4rl()
    path, other = tmp_path / "log.hdf5", tmp_path / "other.hdf5"
    write_hdf5(other, contents)
    states = contents.pop("observations")
    write_hdf5(path, contents)
    with h5py.File(path, "a") as file:
        if kind == "external":
            file["observations"] = h5py.ExternalLink("other.hdf5", "/observations")
        elif kind == "soft":
            file["observations"] = h5py.SoftLink("/next_observations")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(states.shape, states.dtype)
            layout[:] = h5py.VirtualSource(other, "observations", states.shape)
            file.create_virtual_dataset("observations", layout)
        else:
            (tmp_path / "raw.bin").write_bytes(states.tobytes())
            raw = [(str(tmp_path / "raw.bin"), 0, h5py.h5f.UNLIMITED)]
            file.create_dataset("observations", states.shape, states.dtype, external=raw)
    with pytest.raises(DatasetError, match=r"'observations'.* never followed"):
        load(path)


def test_a_group_where_an_array_should_be(tmp_path: Path) -> None:
    contents = make_log().d4rl()
    del contents["observations"]
    write_hdf5(tmp_path / "log.hdf5", contents)
    with h5py.File(tmp_path / "log.hdf5", "a") as file:
        file["observations/image"] = np.zeros(3)
    with pytest.raises(DatasetError, match="'observations' is a group"):
        load(tmp_path / "log.hdf5")


def test_sizes_that_no_compression_explains(tmp_path: Path) -> None:
    contents = make_log().d4rl()
    del contents["observations"]
    write_hdf5(tmp_path / "log.hdf5", contents)
    with h5py.File(tmp_path / "log.hdf5", "a") as file:
        file.create_dataset("observations", (10**12, 3), "f4", chunks=(1000, 3))
    with pytest.raises(DatasetError, match=r"claims .* GB in 0 stored bytes"):
        load(tmp_path / "log.hdf5")

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 3)}
    )
    with zipfile.ZipFile(tmp_path / "log.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("observations.npy", header.getvalue() + bytes(1000))
        for key, values in contents.items():
            with file.open(f"{key}.npy", "w") as member:
                np.save(member, values)
    with pytest.raises(DatasetError, match=r"claims .* GB"):
        load(tmp_path / "log.npz")


def test_an_array_shorter_than_its_header(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (20, 3)}
    )
    contents = make_log([20]).d4rl()
    del contents["observations"]
    with zipfile.ZipFile(tmp_path / "log.npz", "w") as file:
        file.writestr("observations.npy", header.getvalue() + bytes(100))
        for key, values in contents.items():
            with file.open(f"{key}.npy", "w") as member:
                np.save(member, values)
    with pytest.raises(DatasetError, match=r"'observations': cannot be read.*ends too early"):
        load(tmp_path / "log.npz")


def test_an_encrypted_or_nested_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "log.npz", "w") as file:
        file.writestr("data/observations.npy", b"x")
        file.writestr("readme.txt", b"x")
    with pytest.raises(DatasetError, match="no array of states"):
        load(tmp_path / "log.npz")


@pytest.mark.parametrize(
    "name", ["данные.hdf5", "データ 1.npz", 'sp ace\'s "quote".hdf5', "é" * 80]
)
def test_paths_of_any_letters(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder ünï"
    folder.mkdir()
    WRITERS["npz" if name.endswith("npz") else "hdf5"](folder / name, make_log().d4rl())
    dataset = load(folder / name)
    check_invariants(dataset)
    assert dataset.name == (folder / name).stem


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.hdf5")
    with pytest.raises(DatasetError, match="not a regular file"):
        load(tmp_path / "log.hdf5")


def test_a_read_only_folder_is_enough_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    write_hdf5(folder / "log.hdf5", make_log().d4rl())
    (folder / "log.hdf5").chmod(stat.S_IRUSR)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        check_invariants(load(folder / "log.hdf5"))
    finally:
        folder.chmod(stat.S_IRWXU)


def test_a_cache_that_cannot_be_written_says_which_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hdf5(tmp_path / "log.hdf5", make_log().d4rl())
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(DatasetError, match=r"cannot be made.*Set NEUBAY_CACHE"):
        load(tmp_path / "log.hdf5", memory_limit=0)
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    # Root may write anywhere: ask for the answer that another user would get.
    with (
        mock.patch("neubay.data.store.os.access", return_value=False),
        pytest.raises(DatasetError, match=r"cannot be written.*Set NEUBAY_CACHE"),
    ):
        load(tmp_path / "log.hdf5", memory_limit=0)
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    with (
        mock.patch("neubay.data.store.shutil.disk_usage", return_value=usage),
        pytest.raises(DatasetError, match=r"0\.0 GB left"),
    ):
        load(tmp_path / "log.hdf5", memory_limit=0)


def test_a_disk_that_fills_up_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hdf5(tmp_path / "log.hdf5", make_log().d4rl())
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    full = OSError(28, "No space left on device")
    with (
        mock.patch("neubay.data.store.FolderWriter.extend", side_effect=full),
        pytest.raises(DatasetError, match="No space left"),
    ):
        load(tmp_path / "log.hdf5", memory_limit=0)
    assert not list((tmp_path / "cache" / "tapes").iterdir())


def test_a_refused_large_file_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log()
    log.rewards[-1] = np.nan
    write_hdf5(tmp_path / "log.hdf5", log.d4rl())
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DatasetError, match="'rewards' row 19: holds nan"):
        load(tmp_path / "log.hdf5", memory_limit=0)
    assert not list((tmp_path / "cache" / "tapes").iterdir())


# ------------------------------------------------------------------------ structure, fuzzed

KEYS = sorted({name for names in NAMES.values() for name in names} | {*ANY_END, "index", "other"})

DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?"),
    arrays.complex_number_dtypes(),
    arrays.byte_string_dtypes(max_len=4),
)


def any_array(rows: int) -> st.SearchStrategy[np.ndarray]:
    """Mostly arrays that almost fit: the given number of rows, and one or two dimensions."""
    shapes = st.one_of(
        st.tuples(st.just(rows)),
        st.tuples(st.just(rows), st.integers(1, 3)),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
    small = arrays.arrays(
        st.sampled_from(["f4", "f8", "i8", "?", "u1"]), shapes, elements=st.sampled_from([0, 1])
    )
    return st.one_of(small, arrays.arrays(DTYPES, shapes))


@st.composite
def contents(draw: st.DrawFn) -> Arrays:
    """Arrays under names that mean something; some of a valid log, some of anything."""
    rows = draw(st.integers(0, 6))
    log = make_log([rows]).d4rl() if rows else {}
    required = {key: values for key, values in log.items() if draw(st.integers(0, 9))}
    others = draw(st.dictionaries(st.sampled_from(KEYS), any_array(rows), max_size=4))
    return {**required, **others}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(contents=contents(), with_task=st.booleans())
def test_any_arrays_under_any_names(
    tmp_path: Path, kind: str, contents: Arrays, with_task: bool
) -> None:
    path = tmp_path / f"log.{kind}"
    try:
        WRITERS[kind](path, contents)
    except TypeError:  # HDF5 has no such type
        return
    valid_or_refused(path, task=small_task(horizon=3) if with_task else None)


# ---------------------------------------------------------------------------- bytes, fuzzed


def valid_bytes(kind: str) -> bytes:
    buffer = io.BytesIO()
    contents = make_log([7, 5]).d4rl()
    if kind == "npz":
        np.savez_compressed(buffer, **contents)
    else:
        with h5py.File(buffer, "w") as file:
            for key, values in contents.items():
                options = {"compression": "gzip"} if key in ("observations", "rewards") else {}
                file.create_dataset(key, data=values, **options)
            file.attrs["task"] = "none"
    return buffer.getvalue()


VALID = {kind: valid_bytes(kind) for kind in WRITERS}


@pytest.mark.parametrize("kind", WRITERS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(share=st.floats(0, 1))
def test_truncated_anywhere(tmp_path: Path, kind: str, share: float) -> None:
    path = tmp_path / f"log.{kind}"
    path.write_bytes(VALID[kind][: int(share * len(VALID[kind]))])
    valid_or_refused(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    damage=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=9)),
        min_size=1,
        max_size=4,
    )
)
def test_bytes_changed_anywhere(
    tmp_path: Path, kind: str, damage: list[tuple[float, bytes]]
) -> None:
    path = tmp_path / f"log.{kind}"
    content = bytearray(VALID[kind])
    for share, junk in damage:
        position = int(share * len(content))
        content[position : position + len(junk)] = junk
    path.write_bytes(content)
    valid_or_refused(path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    prefix=st.sampled_from([b"", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\x93NUMPY", b"\x80\x04"]),
    junk=st.binary(max_size=200),
)
def test_any_bytes_at_all(tmp_path: Path, prefix: bytes, junk: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(prefix + junk)
    valid_or_refused(path)
