"""Debian's Chromium without a window, driven through its DevTools protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-extensions",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
SECONDS_MAX = 60.0


class Page:
    """A page in the browser."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")
        self._call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Run a script in the page, and return what it, or its promise, comes to."""
        found = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._connection.send(json.dumps(message))
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, found["error"]
                return found["result"]

    def _wait_for(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> Any:
        return json.loads(self._connection.recv(timeout=SECONDS_MAX))


class Chromium:
    """A browser that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def page(self, url: str) -> Iterator[Page]:
        """Open a page, and return it once it is loaded."""
        with connect(self._url, max_size=None, proxy=None) as connection:
            yield Page(connection, url)


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """Run a browser that nobody has used before."""
    program = shutil.which("chromium")
    assert program, "run `make browser`"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "DevTools listening on " in line:
                    yield Chromium(line.split()[-1])
                    break
            else:
                raise AssertionError("the browser did not start")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # It is several processes.
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
