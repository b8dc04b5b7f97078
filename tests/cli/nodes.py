"""Nodes in separate processes, started as an operator starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

MILLSTREAM = os.path.join(os.path.dirname(sys.executable), "millstream")
PATIENCE = 60.0
"""Timeout in seconds, long enough for a busy machine."""


class Node:
    """`millstream serve` on free ports."""

    def __init__(self, data: Path, *options: str) -> None:
        self._command = [
            MILLSTREAM, "serve", "--data", str(data),
            "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", *options,
        ]  # fmt: skip
        self.lines: list[str] = []
        """Lines on standard output up to "ready"."""
        self.errors = ""
        """Standard error output; set when the process has ended."""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while not self.lines or self.lines[-1] != "ready":
            self.lines.append(self._read_line())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.returncode is None:
            self.process.kill()
            self._finish()
        if error is not None:
            print(self.errors)  # pytest shows it with the failure.

    def _read_line(self) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            self._finish()
            raise AssertionError(f"ended with {self.process.returncode}: {self.errors}")
        return line.rstrip("\n")

    def _finish(self) -> int:
        _, self.errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    @property
    def bootstrap(self) -> str:
        return self._said("kafka ")

    @property
    def url(self) -> str:
        return self._said("http ")

    def _said(self, prefix: str) -> str:
        (line,) = (line for line in self.lines if line.startswith(prefix))
        return line.removeprefix(prefix)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the process to end, and return its exit status."""
        self.process.send_signal(number)
        return self._finish()

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a GET request."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def get_json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return every sample of a scrape, by name and label values."""
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }


def wait_until(is_so: Any) -> None:
    """Poll until a condition is true that has no notification."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)
