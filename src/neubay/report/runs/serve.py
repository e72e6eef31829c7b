"""The page of a run over HTTP, for this machine, while the run is going. Nothing is written."""

import ipaddress
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from neubay.errors import NeubayError, reason
from neubay.report.parts import document
from neubay.report.runs import page, records
from neubay.runs import rundir


class RunServer(ThreadingHTTPServer):
    """Answers GET / with the run's page, drawn anew when its files have changed."""

    daemon_threads = True

    def __init__(self, directory: Path, host: str, port: int, refresh: int) -> None:
        self.render = remembered(directory, refresh)
        super().__init__((host, port), _Handler)
        self.host = host

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    @property
    def local(self) -> bool:
        """Whether only this machine can ask."""
        return _is_local(self.host)

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is no news."""


@contextmanager
def server(directory: Path, *, host: str, port: int, refresh: int) -> Iterator[RunServer]:
    """A server of a run that is there; closed at the end."""
    records.read(directory)  # a wrong directory is refused now, and not in the browser
    try:
        listening = RunServer(directory, host, port, refresh)
    except (OSError, OverflowError) as error:
        raise NeubayError(
            f"cannot listen at {host}:{port}: {reason(error)}; "
            "choose another --port, or 0 for any that is free"
        ) from None
    with listening:
        yield listening


def remembered(directory: Path, refresh: int) -> Callable[[], str]:
    """A function that draws the page once for every state of the run's files."""
    lock = threading.Lock()
    drawn = lru_cache(maxsize=1)(lambda state: _page(directory, refresh))

    def render() -> str:
        with lock:
            return drawn(_state(directory))

    return render


def _state(directory: Path) -> object:
    """Sizes and times of the files that the page is made of, and whether somebody works there."""
    found: list[object] = [rundir.look(directory).state]
    for name in ("run.json", "world.json", "metrics.jsonl", "summary.json"):
        try:
            facts = (directory / name).stat()
            found.append((facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def _page(directory: Path, refresh: int) -> str:
    """The page, or a page that says what is wrong: the files may be right again in a moment."""
    try:
        run = records.read(directory)
        return page.one_run(run, refresh=refresh if run.status != "finished" else None).html
    except NeubayError as error:
        return document.render("problem.html", "neubay", refresh=refresh, problem=str(error))


_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": document.LIVE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class _Handler(BaseHTTPRequestHandler):
    """Reads nothing but the request's path and its Host."""

    server: RunServer
    server_version = "neubay"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        # A page elsewhere could give its own name this machine's address, and read along.
        if self.server.local and not _is_local(_host_of(self.headers.get("Host", ""))):
            self.send_error(HTTPStatus.FORBIDDEN, "ask for localhost")
            return
        if self.path.split("?")[0] != "/":
            self.send_error(HTTPStatus.NOT_FOUND, "there is one page, at /")
            return
        body = self.server.render().encode("utf-8")
        self.send_response(HTTPStatus.OK)
        for name, value in (_HEADERS | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Requests are not news."""


def _host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_local(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
