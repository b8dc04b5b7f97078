"""Headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from websockets.sync.client import connect

from tests.browser.page import Page

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
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


UNLIMITED = ("/bin/sh", "-c", 'ulimit -S -v "$(ulimit -H -v)"; exec "$@"', "sh")
"""No limit of address space: a browser reserves terabytes of addresses, not of memory."""


class Chromium:
    """A running browser."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def page(self, url: str) -> Iterator[Page]:
        """Open a page, and return it once it is loaded."""
        with connect(self._url, max_size=None, proxy=None) as connection:
            page = Page(connection, url)
            try:
                yield page
            finally:
                page.close()


@contextmanager
def running_chromium(*flags: str) -> Iterator[Chromium]:
    """Run a browser with a fresh profile, and with further flags."""
    program = shutil.which("chromium")
    assert program, "run `make browser`"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [*UNLIMITED, program, *FLAGS, *flags, f"--user-data-dir={folder}", "about:blank"],
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
