"""Downloads arrive whole and checked, or fail with a message: tried against a server on this
machine that misbehaves in the ways hosts do."""

import hashlib
import io
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest

from neubay import published
from neubay.data import download as downloads
from neubay.data import load
from neubay.data.catalogue import FILES, address
from neubay.data.download import cached_path, download, storage_path
from neubay.errors import DatasetError

NAME = "hopper-medium-v2"
NEORL_NAME = "Hopper-v3-Low"


class Server:
    """Serves one body; `behave` decides what is done wrong on the n-th request."""

    def __init__(self) -> None:
        self.body = b""
        self.etag = '"first"'
        self.ranges: list[str | None] = []
        self.paths: list[str] = []
        self.behave: Callable[[BaseHTTPRequestHandler, int], bool] = lambda handler, n: False
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.ranges.append(self.headers.get("Range"))
                server.paths.append(self.path)
                if not server.behave(self, len(server.ranges)):
                    server.serve(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.mirror = f"http://127.0.0.1:{self.http.server_port}/mirror"

    def serve(
        self,
        handler: BaseHTTPRequestHandler,
        *,
        stop_after: int | None = None,
        honour_range: bool = True,
        length: bool = True,
    ) -> None:
        """Send the body from the asked offset on, and hang up after `stop_after` bytes of it."""
        asked = handler.headers.get("Range")
        valid = handler.headers.get("If-Range") in (None, self.etag)
        offset = int(asked[len("bytes=") : -1]) if asked and honour_range and valid else 0
        if offset >= len(self.body):
            handler.send_response(416)
            handler.end_headers()
            return
        handler.send_response(206 if offset else 200)
        if offset:
            end = len(self.body)
            handler.send_header("Content-Range", f"bytes {offset}-{end - 1}/{end}")
        if length:
            handler.send_header("Content-Length", str(len(self.body) - offset))
        handler.send_header("ETag", self.etag)
        handler.end_headers()
        body = self.body[offset:]
        handler.wfile.write(body if stop_after is None else body[:stop_after])
        handler.close_connection = True

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEUBAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def d4rl_bytes(folder: Path, rows: int = 2000, keys: tuple[str, ...] = ()) -> bytes:
    rng = np.random.default_rng(rows)
    columns = {
        "observations": rng.normal(size=(rows, 11)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % 100 == 99,
    }
    path = folder / "made.hdf5"
    with h5py.File(path, "w") as file:
        for key in keys or columns:
            file[key] = columns[key]
    return path.read_bytes()


def neorl_bytes(folder: Path, rows: int = 2000, **changes: np.ndarray | None) -> bytes:
    rng = np.random.default_rng(rows)
    states = rng.normal(size=(rows + 1, 12)).astype(np.float32)
    columns = {
        "obs": states[:-1],
        "next_obs": states[1:],
        "action": rng.uniform(-1, 1, (rows, 3)).astype(np.float32),
        "reward": rng.normal(size=(rows, 1)).astype(np.float32),
        "done": (np.arange(rows) % 100 == 99)[:, None],
        "index": np.arange(0, rows, 100),
        **changes,
    }
    file = io.BytesIO()
    np.savez_compressed(
        file, **{key: values for key, values in columns.items() if values is not None}
    )
    return file.getvalue()


MADE = {NAME: d4rl_bytes, NEORL_NAME: neorl_bytes}
both_benchmarks = pytest.mark.parametrize("name", MADE)

Publish = Callable[[str, bytes], None]


@pytest.fixture
def publish(server: Server, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Serve a body as the file of a dataset; where checksums are published, with its own."""

    def serve(name: str, body: bytes) -> None:
        server.body = body
        if FILES[name].md5 is not None:
            monkeypatch.setitem(
                FILES, name, replace(FILES[name], md5=hashlib.md5(body).hexdigest())
            )

    return serve


def fetch(server: Server, name: str = NAME, **options: object) -> Path:
    return download(name, **{"mirror": server.mirror, "pause": 0.0, "timeout": 5.0, **options})


def leftovers(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir() if ".part" in p.name)


def test_every_dataset_of_the_paper_has_its_published_address() -> None:
    assert FILES.keys() == published.datasets().keys()
    assert len({address(name) for name in FILES}) == 33
    assert address("hopper-medium-replay-v2") == (
        "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
        "gym_mujoco_v2/hopper_medium_replay-v2.hdf5"
    )
    assert FILES["pen-cloned-v1"].path == "hand_dapg_v1/pen-cloned-v1.hdf5"
    assert FILES["antmaze-umaze-v2"].path == (
        "ant_maze_v2/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5"
    )
    assert FILES["antmaze-large-play-v2"].path == (
        "ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5"
    )
    assert address("door-human-v1", "https://m.example/a/") == (
        "https://m.example/a/hand_dapg_v1/door-human-v1.hdf5"
    )
    assert address("Walker2d-v3-Medium") == (
        "http://datasets.polixir.site/v2/Walker2d-v3/Walker2d-v3-medium-1000-train-noise.npz"
    )


def test_neorls_checksums_are_all_there_and_all_different() -> None:
    checksums = {file.md5 for file in FILES.values() if file.md5 is not None}
    assert len(checksums) == 9
    assert all(len(md5) == 32 and int(md5, 16) for md5 in checksums)
    neorl = {name for name, known in published.datasets().items() if known.task[:6] == "neorl/"}
    assert {name for name, file in FILES.items() if file.md5 is not None} == neorl


@both_benchmarks
def test_a_whole_file_is_recorded_cached_and_not_fetched_twice(
    name: str, server: Server, publish: Publish, tmp_path: Path
) -> None:
    publish(name, MADE[name](tmp_path))
    seen: list[tuple[int, int | None]] = []
    assert cached_path(name) is None
    path = fetch(server, name, progress=lambda done, total: seen.append((done, total)))
    assert path == storage_path(name) == cached_path(name)
    assert path.read_bytes() == server.body
    assert server.paths == [f"/mirror/{FILES[name].path}"]
    assert seen[-1] == (len(server.body), len(server.body))
    record = path.with_name(path.name + ".sha256").read_text()
    assert record == f"{hashlib.sha256(server.body).hexdigest()}  {path.name}\n"
    assert leftovers(path) == []
    assert fetch(server, name) == path and len(server.paths) == 1


@both_benchmarks
def test_a_download_is_the_papers_dataset_by_name(
    name: str, server: Server, publish: Publish, tmp_path: Path
) -> None:
    scheme = FILES[name].publisher.scheme
    for spec in (name, f"{scheme}:{name}"):
        with pytest.raises(DatasetError, match=rf"data download {name}'.*{scheme}:PATH"):
            load(spec)
    publish(name, MADE[name](tmp_path))
    fetch(server, name)
    for spec in (name, f"{scheme}:{name}"):
        assert load(spec).published == name


def test_a_file_without_the_published_checksum_is_refused_and_removed(
    server: Server, publish: Publish, tmp_path: Path
) -> None:
    publish(NEORL_NAME, neorl_bytes(tmp_path))
    server.body = neorl_bytes(tmp_path, rows=1900)
    with pytest.raises(DatasetError, match=r"MD5 is \w+, NeoRL publishes \w+.*another version"):
        fetch(server, NEORL_NAME)
    assert cached_path(NEORL_NAME) is None
    assert leftovers(storage_path(NEORL_NAME)) == []


def test_a_file_that_was_put_there_by_hand_needs_the_published_checksum_too(
    server: Server, publish: Publish, tmp_path: Path
) -> None:
    publish(NEORL_NAME, neorl_bytes(tmp_path))
    path = storage_path(NEORL_NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(server.body)
    assert cached_path(NEORL_NAME) == path == fetch(server, NEORL_NAME)
    path.write_bytes(neorl_bytes(tmp_path, rows=1900))
    for use in (lambda: cached_path(NEORL_NAME), lambda: fetch(server, NEORL_NAME)):
        with pytest.raises(DatasetError, match=rf"NeoRL publishes.*download {NEORL_NAME} --force"):
            use()
    assert fetch(server, NEORL_NAME, force=True).read_bytes() == server.body


def test_a_connection_that_breaks_off_is_taken_up_where_it_stopped(
    server: Server, tmp_path: Path
) -> None:
    server.body = d4rl_bytes(tmp_path)
    quarter = len(server.body) // 4 + 1

    def breaks_off(handler: BaseHTTPRequestHandler, n: int) -> bool:
        server.serve(handler, stop_after=quarter)
        return True

    server.behave = breaks_off
    # More breaks than retries: what counts is attempts without headway.
    assert fetch(server, retries=1).read_bytes() == server.body
    assert server.ranges == [None, *(f"bytes={n * quarter}-" for n in (1, 2, 3))]


def test_a_later_command_resumes_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    half = len(server.body) // 2
    server.behave = lambda handler, n: (
        server.serve(handler, stop_after=half) or True
        if n == 1
        else handler.close_connection or True
    )
    with pytest.raises(DatasetError, match=f"{half:,} bytes are kept; the same command resumes"):
        fetch(server, retries=1)
    assert leftovers(storage_path(NAME)) == [f"{NAME}.hdf5.part", f"{NAME}.hdf5.part.json"]
    server.behave = lambda handler, n: False
    assert fetch(server).read_bytes() == server.body
    assert server.ranges[-1] == f"bytes={half}-"


def test_a_server_that_ignores_ranges_is_read_from_the_beginning(
    server: Server, tmp_path: Path
) -> None:
    server.body = d4rl_bytes(tmp_path)
    server.behave = lambda handler, n: (
        server.serve(handler, honour_range=False, stop_after=1000 if n == 1 else None) or True
    )
    assert fetch(server).read_bytes() == server.body


def test_a_server_that_ignores_ranges_and_always_breaks_off_is_given_up(
    server: Server, tmp_path: Path
) -> None:
    server.body = d4rl_bytes(tmp_path)
    server.behave = lambda handler, n: (
        server.serve(handler, honour_range=False, stop_after=1000) or True
    )
    with pytest.raises(DatasetError, match="broke off after 1,000 of"):
        fetch(server, retries=2)
    assert len(server.ranges) == 4  # the first made headway, three more did not


def test_a_file_that_changed_on_the_server_is_not_mixed_with_the_old_one(
    server: Server, tmp_path: Path
) -> None:
    server.body = d4rl_bytes(tmp_path)

    def changes(handler: BaseHTTPRequestHandler, n: int) -> bool:
        if n == 2:
            server.body, server.etag = d4rl_bytes(tmp_path, rows=2100), '"second"'
        server.serve(handler, stop_after=5000 if n == 1 else None)
        return True

    server.behave = changes
    assert fetch(server).read_bytes() == server.body


def test_a_part_longer_than_the_servers_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    fetch(server)
    path = storage_path(NAME)
    part = path.with_name(path.name + ".part")
    path.rename(part)
    part.write_bytes(server.body + b"more")
    source = address(NAME, server.mirror)
    note = f'{{"source": "{source}", "validator": null, "length": null}}'
    part.with_name(part.name + ".json").write_text(note)
    assert fetch(server).read_bytes() == server.body


def test_a_complete_part_needs_no_further_byte(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    path = storage_path(NAME)
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True)
    part.write_bytes(server.body)
    source = address(NAME, server.mirror)
    note = f'{{"source": "{source}", "validator": null, "length": {len(server.body)}}}'
    part.with_name(part.name + ".json").write_text(note)
    assert fetch(server).read_bytes() == server.body
    assert server.paths == []


def test_a_part_from_another_mirror_is_not_continued(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    path = storage_path(NAME)
    path.parent.mkdir(parents=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(b"another mirror's bytes")
    part.with_name(part.name + ".json").write_text(
        '{"source": "http://elsewhere/x", "validator": null, "length": null}'
    )
    assert fetch(server).read_bytes() == server.body
    assert server.ranges == [None]


def test_busy_servers_are_asked_again(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    server.behave = lambda handler, n: (handler.send_error(503) or True) if n < 3 else False
    assert fetch(server).read_bytes() == server.body


def test_no_announced_length_is_accepted_when_the_file_opens(
    server: Server, tmp_path: Path
) -> None:
    server.body = d4rl_bytes(tmp_path)
    server.behave = lambda handler, n: server.serve(handler, length=False) or True
    assert fetch(server).read_bytes() == server.body


@pytest.mark.parametrize("code", [403, 404])
def test_a_refusal_is_final_and_says_what_else_works(server: Server, code: int) -> None:
    server.behave = lambda handler, n: handler.send_error(code) or True
    with pytest.raises(DatasetError, match=rf"{code} .*--mirror.*d4rl:PATH"):
        fetch(server)
    assert len(server.paths) == 1


def test_a_silent_server_times_out(server: Server) -> None:
    hold = threading.Event()
    server.behave = lambda handler, n: hold.wait(5) or True
    with pytest.raises(DatasetError, match="timed out"):
        fetch(server, timeout=0.1, retries=0)
    hold.set()


def test_a_host_that_is_down_gets_a_message() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(DatasetError, match=r"cannot be reached.*given up after 2 attempts.*PATH"):
        download(NAME, mirror=nobody, pause=0.0, retries=1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<!DOCTYPE html><html><body>Not here any more</body></html>", "a web page"),
        (b"\n <html>sign in</html>", "a web page"),
        (b"\x80\x04\x95 a pickle", "a Python pickle.*never opened"),
        (b"neither of the two", "neither HDF5 nor npz"),
    ],
)
@both_benchmarks
def test_what_is_no_data_file_is_refused_and_removed(
    name: str, body: bytes, message: str, server: Server, publish: Publish
) -> None:
    publish(name, body)
    with pytest.raises(DatasetError, match=message):
        fetch(server, name)
    assert cached_path(name) is None
    assert leftovers(storage_path(name)) == []


def test_a_web_page_is_called_one_even_where_a_checksum_is_published(server: Server) -> None:
    server.body = b"<html>sign in</html>"
    with pytest.raises(DatasetError, match="a web page"):
        fetch(server, NEORL_NAME)


@both_benchmarks
def test_a_truncated_file_on_the_server_is_refused(
    name: str, server: Server, publish: Publish, tmp_path: Path
) -> None:
    publish(name, MADE[name](tmp_path)[:-5000])
    with pytest.raises(DatasetError, match="cannot be read"):
        fetch(server, name)


def test_a_file_without_its_benchmarks_arrays_is_refused(
    server: Server, publish: Publish, tmp_path: Path
) -> None:
    publish(NAME, d4rl_bytes(tmp_path, keys=("observations", "rewards")))
    with pytest.raises(DatasetError, match="lacks D4RL's array 'actions'"):
        fetch(server)
    publish(NEORL_NAME, neorl_bytes(tmp_path, done=None))
    with pytest.raises(DatasetError, match="lacks NeoRL's array 'done'"):
        fetch(server, NEORL_NAME)


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.mark,)


def test_pickled_objects_are_refused_without_being_loaded(
    server: Server, publish: Publish, tmp_path: Path
) -> None:
    mark = tmp_path / "unpickled"
    publish(NEORL_NAME, neorl_bytes(tmp_path, reward=np.array([Trap(mark)], object)))
    with pytest.raises(DatasetError, match="'reward' holds pickled Python objects"):
        fetch(server, NEORL_NAME)
    assert cached_path(NEORL_NAME) is None and not mark.exists()


def test_the_expected_checksum_is_enforced(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    with pytest.raises(DatasetError, match="expected 64 hexadecimal digits"):
        fetch(server, expected_sha256="abc")
    with pytest.raises(DatasetError, match=f"expected {'0' * 64}"):
        fetch(server, expected_sha256="0" * 64)
    assert cached_path(NAME) is None
    good = hashlib.sha256(server.body).hexdigest()
    assert fetch(server, expected_sha256=good.upper()).exists()


def test_a_copy_that_changed_on_disk_is_refused_until_fetched_again(
    server: Server, tmp_path: Path
) -> None:
    server.body = d4rl_bytes(tmp_path)
    path = fetch(server)
    path.write_bytes(server.body[:-1] + b"?")
    with pytest.raises(DatasetError, match=r"changed since it was downloaded.*--force"):
        cached_path(NAME)
    with pytest.raises(DatasetError, match="changed since"):
        fetch(server)
    assert fetch(server, force=True).read_bytes() == server.body
    assert cached_path(NAME) == path


def test_only_http_is_spoken_even_after_a_redirect(server: Server, tmp_path: Path) -> None:
    secret = tmp_path / "secret.hdf5"
    secret.write_bytes(d4rl_bytes(tmp_path))
    for mirror in (f"file://{tmp_path}", "ftp://host/x", "C:/data", ""):
        with pytest.raises(DatasetError, match="not an http:// or https:// address"):
            download(NAME, mirror=mirror)

    def redirects(handler: BaseHTTPRequestHandler, n: int) -> bool:
        handler.send_response(302)
        handler.send_header("Location", f"file://{secret}")
        handler.end_headers()
        return True

    server.behave = redirects
    with pytest.raises(DatasetError, match="302"):
        fetch(server)


def test_a_redirect_over_http_is_followed(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)

    def redirects(handler: BaseHTTPRequestHandler, n: int) -> bool:
        if n > 1:
            return False
        handler.send_response(301)
        handler.send_header("Location", f"{server.mirror}/elsewhere")
        handler.end_headers()
        return True

    server.behave = redirects
    assert fetch(server).read_bytes() == server.body


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(DatasetError, match="Did you mean 'hopper-medium-replay-v2'"):
        download("hopper_medium_replay-v2")
    with pytest.raises(DatasetError, match="'neubay data list' shows the names"):
        download("quantum chess")


def test_a_timeout_is_a_positive_time(server: Server) -> None:
    for timeout in (0.0, -1.0, float("nan")):
        with pytest.raises(DatasetError, match="expected a positive number of seconds"):
            fetch(server, timeout=timeout)


def test_a_folder_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    blocker = tmp_path / "a file"
    blocker.write_text("in the way")
    with pytest.raises(DatasetError, match=r"cannot be written.*--out"):
        fetch(server, directory=blocker / "data")
    folder = tmp_path / "folder"
    storage_path(NAME, folder).mkdir(parents=True)
    with pytest.raises(DatasetError, match="is a folder"):
        fetch(server, directory=folder)


def test_unicode_folders_work(server: Server, tmp_path: Path) -> None:
    server.body = d4rl_bytes(tmp_path)
    path = fetch(server, directory=tmp_path / "données 数据")
    assert path.read_bytes() == server.body


def test_pauses_double_up_to_a_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(downloads.time, "sleep", pauses.append)
    server.behave = lambda handler, n: handler.send_error(500) or True
    with pytest.raises(DatasetError):
        fetch(server, pause=4.0, retries=5)
    assert pauses == [4.0, 8.0, 16.0, 30.0, 30.0]
