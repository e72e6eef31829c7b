"""A headless Chromium, spoken to through a pair of pipes in its DevTools protocol."""

import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """The path of a Chromium, if there is one."""
    found = (shutil.which(name) for name in NAMES)
    return next((path for path in found if path), None)


class Browser:
    """One browser with one page. Everything it asks for and complains about is kept."""

    def __init__(self, pid: int, reads: int, writes: int) -> None:
        self.pid, self._reads, self._writes = pid, reads, writes
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loads = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, address: str) -> None:
        """Go to an address and wait until it has loaded."""
        before = self.loads
        self.call("Page.navigate", url=address)
        self.wait_for_loads(before + 1)

    def wait_for_loads(self, count: int, seconds: float = 60) -> None:
        """Until pages have been loaded so many times in all."""
        end = time.monotonic() + seconds
        while self.loads < count:
            self._next(end - time.monotonic())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, as a person does."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **(text if kind == "keyDown" else {}),
            )

    def show(self, width: int, scheme: str) -> None:
        """Set the width of the window and the colours a person prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        import base64

        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reads], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._reads, 1 << 20)
            if not piece:
                raise EOFError("the browser has ended")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loads += 1
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(parameters)[:500])


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Start a browser that keeps to itself, and end it."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [
            path,
            "--headless",
            "--no-sandbox",  # tests may run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        quiet = os.open(os.devnull, os.O_RDWR)
        # Its pipes are its files 3 and 4; moved up first, lest one overwrite the other.
        high_in, high_out = os.dup(theirs_in), os.dup(theirs_out)
        actions: list[tuple[int, ...]] = [
            (os.POSIX_SPAWN_DUP2, quiet, 1),
            (os.POSIX_SPAWN_DUP2, quiet, 2),
            (os.POSIX_SPAWN_DUP2, high_in, 20),
            (os.POSIX_SPAWN_DUP2, high_out, 21),
            (os.POSIX_SPAWN_DUP2, 20, 3),
            (os.POSIX_SPAWN_DUP2, 21, 4),
        ]
        pid = os.posix_spawn(path, arguments, os.environ, file_actions=actions, setsid=True)
        for number in (theirs_in, theirs_out, high_in, high_out, quiet):
            os.close(number)
        try:
            yield Browser(pid, ours_in, ours_out)
        finally:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ours_in)
            os.close(ours_out)


def keep(name: str, content: bytes) -> None:
    """Keep a screenshot to look at, where NEUBAY_SCREENSHOTS names a folder."""
    folder = os.environ.get("NEUBAY_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_bytes(content)
