"""The paper's datasets from their hosts or a mirror: resumable, checked, kept in the cache.

A download grows in `NAME.hdf5.part` or `NAME.npz.part`; a broken connection is resumed where it
stopped. The file gets its name only when its length is what the server announced, its checksum is
the published one, and it opens with the arrays of its publisher. NeoRL publishes MD5 checksums,
D4RL none: the SHA-256 of what arrived is written beside it, and every later use is checked against
that.
"""

import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neubay import __version__, published
from neubay.data.archives import open_archive
from neubay.data.catalogue import (
    LOCAL_COPY_WORKS,
    Publisher,
    RemoteFile,
    address,
    published_file,
)
from neubay.data.files import written_whole
from neubay.errors import DatasetError, refusal_reported
from neubay.runs.cache import cache_directory
from neubay.runs.files import file_hash
from neubay.tasks import get_task

# Bytes received so far, and in all where the server says so.
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 18
_LONGEST_PAUSE = 30.0


def storage_path(name: str, directory: Path | None = None) -> Path:
    """Where the file of a dataset is kept once it has been downloaded."""
    publisher = published_file(name).publisher
    return (directory or cache_directory() / publisher.scheme) / f"{name}{publisher.suffix}"


def paper_datasets() -> list[dict[str, Any]]:
    """The paper's 33 datasets: what they are, its best settings, and where they are."""
    benchmarks = published.benchmarks()
    return [
        {
            "name": known.name,
            "benchmark": benchmarks[known.benchmark].title,
            "environment": get_task(known.task).env_name,
            "horizon": get_task(known.task).horizon,
            "category": known.category,
            "eta_phi": known.eta_phi,
            "kappa": known.kappa,
            "local": str(storage_path(known.name)) if storage_path(known.name).is_file() else None,
            "download": address(known.name),
        }
        for known in published.datasets().values()
    ]


def cached_path(name: str) -> Path | None:
    """The downloaded copy of a dataset, checked as `verify` does; none if absent."""
    path = storage_path(name)
    if not path.is_file():
        return None
    verify(name, path)
    return path


def verify(name: str, path: Path, expected_sha256: str | None = None) -> None:
    """Raise if the file of a dataset is no longer what its `.sha256` file says it was, or is not
    what is expected.

    A file without that record was not put there by `download`: it has to have the published
    checksum, where there is one.
    """
    recorded = _recorded_sha256(path)
    if recorded is None:
        _check_md5(path, path, published_file(name))
    if recorded is None and expected_sha256 is None:
        return
    actual = file_hash(path)
    if recorded is not None and actual != recorded:
        raise DatasetError(
            f"{path}: changed since it was downloaded: SHA-256 is {actual}, recorded was "
            f"{recorded}. Fetch it again with 'neubay data download {name} --force'."
        )
    _check_sha256(actual, path, expected_sha256)


def download(
    name: str,
    *,
    mirror: str | None = None,
    directory: Path | None = None,
    expected_sha256: str | None = None,
    force: bool = False,
    timeout: float = 30.0,
    retries: int = 5,
    pause: float = 1.0,
    progress: Progress | None = None,
) -> Path:
    """Fetch a dataset and return its path; what is already there and unchanged is not fetched.

    Args:
        mirror: base address that stands in for the host, with the same paths below it.
        directory: where to keep the file; the cache if none.
        expected_sha256: refuse a file whose SHA-256 is another one.
        force: fetch and replace a file that is already there.
        timeout: seconds without a byte after which the connection counts as lost.
        retries: attempts in a row that may bring nothing new before giving up.
        pause: seconds before the first retry; doubled for each further one.
        progress: called with the bytes received so far and in all.
    """
    file, source = published_file(name), address(name, mirror)
    if not timeout > 0:
        raise DatasetError(f"timeout {timeout}: expected a positive number of seconds.")
    if expected_sha256 is not None:
        expected_sha256 = _checked_hex(expected_sha256)
    target = storage_path(name, directory)
    if target.is_dir():
        raise DatasetError(f"{target}: is a folder; the file of '{name}' would be put there.")
    if target.is_file() and not force:
        verify(name, target, expected_sha256)
        return target
    part = target.with_name(target.name + ".part")
    with refusal_reported(
        DatasetError,
        f"{target}: cannot be written",
        ". Choose another folder with --out, or set NEUBAY_CACHE.",
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(source, part, timeout, retries, pause, progress)
        try:
            _refuse_web_page(part, source)
            _check_md5(part, target, file)
            digest = file_hash(part)
            _check_sha256(digest, target, expected_sha256)
            _check_arrays(part, source, file.publisher)
        except DatasetError:
            _discard(part)
            raise
        # The record goes first: a crash in between leaves a record without a file, never a file
        # that would pass for checked.
        with written_whole(_record_path(target), overwrite=True) as record:
            record.write_text(f"{digest}  {target.name}\n", encoding="utf-8")
        part.replace(target)
        _discard(part)
    return target


@dataclass(frozen=True)
class _Resumable:
    """What a `.part` file is a part of; only the same file is ever resumed."""

    source: str
    validator: str | None
    """The server's strong ETag or modification date: changes when its file changes."""
    length: int | None


class _Interrupted(Exception):
    """The network or the server failed in a way that may pass; trying again can help."""


def _fetch(
    source: str,
    part: Path,
    timeout: float,
    retries: int,
    pause: float,
    progress: Progress | None,
) -> None:
    """Bring `part` to its full length, over as many connections as it takes."""
    furthest = _size(part)
    failures = 0
    while True:
        try:
            _receive(source, part, timeout, progress)
            return
        except _Interrupted as error:
            # Only bytes never seen before count as headway: a server that ignores ranges and
            # breaks off at the same place each time would otherwise be asked for ever.
            reached = _size(part)
            failures = 0 if reached > furthest else failures + 1
            furthest = max(furthest, reached)
            if failures > retries:
                kept = f" {reached:,} bytes are kept; the same command resumes." if reached else ""
                raise DatasetError(
                    f"{source}: {error}; given up after {failures} attempts.{kept} "
                    f"The host may be down: try later or --mirror URL. {LOCAL_COPY_WORKS}"
                ) from None
            time.sleep(min(pause * 2 ** max(failures - 1, 0), _LONGEST_PAUSE))


def _receive(source: str, part: Path, timeout: float, progress: Progress | None) -> None:
    """One connection: resume `part` if the server agrees to, or start over."""
    known = _read_note(part)
    offset = _size(part) if known is not None and known.source == source else 0
    if known is not None and offset and offset == known.length:
        return  # complete: stopped between the last byte and the checks
    headers = {"User-Agent": f"neubay/{__version__}", "Accept-Encoding": "identity"}
    if offset and known is not None:
        headers["Range"] = f"bytes={offset}-"
        if known.validator:
            headers["If-Range"] = known.validator
    with closing(_open(source, headers, timeout, part)) as response:
        if response.status == 206 and known is not None:
            begin, length = _content_range(response.headers.get("Content-Range"))
            if begin != offset or (known.length is not None and length != known.length):
                _discard(part)
                raise _Interrupted("the server's file is not the one this download began with")
        else:
            # A fresh start, or a server that sends the whole file whatever range is asked for.
            offset = 0
            length = _content_length(response.headers.get("Content-Length"))
            etag = response.headers.get("ETag")  # a weak one (W/...) does not promise equal bytes
            strong = etag if etag and not etag.startswith("W/") else None
            known = _Resumable(source, strong or response.headers.get("Last-Modified"), length)
            _note_path(part).write_text(json.dumps(known.__dict__), encoding="utf-8")
        _copy(response, part, offset, length, progress)
    received = _size(part)
    if length is not None and received != length:
        raise _Interrupted(f"the connection broke off after {received:,} of {length:,} bytes")


def _copy(
    response: Any, part: Path, offset: int, length: int | None, progress: Progress | None
) -> None:
    """Write the body to `part` from `offset` on."""
    with part.open("r+b" if part.exists() else "w+b") as file:
        file.seek(offset)
        file.truncate()
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _Interrupted(f"the connection was lost ({_reason(error)})") from None
            if not chunk:
                return
            file.write(chunk)
            if progress is not None:
                progress(file.tell(), length)


def _open(source: str, headers: dict[str, str], timeout: float, part: Path) -> Any:
    request = urllib.request.Request(source, headers=headers)
    try:
        return _http_opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:  # nothing at our offset: the file there is shorter than ours
                _discard(part)
                raise _Interrupted("the server's file is shorter than what was received") from None
            if error.code in (408, 425, 429) or error.code >= 500:
                raise _Interrupted(f"the server answered {error.code} {error.reason}") from None
            raise DatasetError(
                f"{source}: the server answered {error.code} {error.reason}. "
                f"Try another --mirror URL. {LOCAL_COPY_WORKS}"
            ) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(f"cannot be reached ({_reason(error)})") from None
    except ValueError as error:  # an address that no server can have
        raise DatasetError(f"{source}: not a usable address: {error}.") from None


def _http_opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS only: no redirect can lead to a local file or another protocol."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    return str(cause) or type(cause).__name__


def _content_length(header: str | None) -> int | None:
    return int(header) if header is not None and header.isdecimal() else None


def _content_range(header: str | None) -> tuple[int | None, int | None]:
    """First byte and length of the whole file from 'bytes 5-9/10'."""
    unit, _, span = (header or "").partition(" ")
    byte_range, _, length = span.partition("/")
    begin = byte_range.partition("-")[0]
    if unit != "bytes":
        return None, None
    return _content_length(begin), _content_length(length)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _note_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_note(part: Path) -> _Resumable | None:
    try:
        values = json.loads(_note_path(part).read_text(encoding="utf-8"))
        return _Resumable(**values) if part.exists() else None
    except (OSError, ValueError, TypeError):  # absent or damaged: start over
        return None


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_path(part).unlink(missing_ok=True)


def _refuse_web_page(part: Path, source: str) -> None:
    """What hosts send instead of a file that is gone; says more than a wrong checksum would."""
    with part.open("rb") as file:
        beginning = file.read(512).lstrip().lower()
    if beginning.startswith((b"<!doctype", b"<html")):
        raise DatasetError(
            f"{source}: the server sent a web page, not a data file: the address has moved or asks "
            f"for a login. Try another --mirror URL. {LOCAL_COPY_WORKS}"
        )


def _check_arrays(part: Path, source: str, publisher: Publisher) -> None:
    """Raise unless the file opens and holds the publisher's arrays, as plain numbers."""
    try:
        with open_archive(part) as archive:
            for name in publisher.arrays:
                if name not in archive.keys:
                    raise DatasetError(f"lacks {publisher.title}'s array '{name}'.")
                archive.column(name)
    except DatasetError as error:
        reason = str(error).removeprefix(f"{part}: ")
        raise DatasetError(
            f"{source}: the file that the server sent is not used: {reason} "
            f"Try another --mirror URL. {LOCAL_COPY_WORKS}"
        ) from None


def _record_path(target: Path) -> Path:
    return target.with_name(target.name + ".sha256")


def _recorded_sha256(path: Path) -> str | None:
    """The digest in the `.sha256` file beside a download, in the format of `sha256sum`."""
    record = _record_path(path)
    try:
        text = record.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"{record}: cannot be read ({error}); delete it or fetch again."
        ) from None
    return text.split(maxsplit=1)[0] if text.strip() else None


def _checked_hex(digest: str) -> str:
    digest = digest.strip().lower()
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise DatasetError(f"sha256 '{digest}': expected 64 hexadecimal digits.")
    return digest


def _check_sha256(digest: str, target: Path, expected: str | None) -> None:
    if expected is not None and digest != expected:
        raise DatasetError(
            f"{target.name}: SHA-256 is {digest}, expected {expected}. The file is another version "
            "or was damaged on the way: try another --mirror URL, or check the expected value."
        )


def _check_md5(path: Path, target: Path, file: RemoteFile) -> None:
    if file.md5 is None:
        return
    # MD5 is what is published, and enough to detect damage and other versions.
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if digest != file.md5:
        raise DatasetError(
            f"{target}: MD5 is {digest}, {file.publisher.title} publishes {file.md5}. The file is "
            "another version or was damaged on the way: fetch it again with 'neubay data download "
            f"{target.stem} --force', from another --mirror URL if need be. {LOCAL_COPY_WORKS}"
        )
