"""A node in a process of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Self

from output import show, show_command

FREE = "127.0.0.1:0"


class Node:
    """`millstream serve`, stopped at the end of a `with` block at the latest."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = FREE
        self.url = f"http://{FREE}"

    def start(self) -> None:
        """Start the node, at its previous addresses, and wait until it is ready."""
        started = time.perf_counter()
        listeners = ("--kafka", self.bootstrap, "--http", self.url.removeprefix("http://"))
        self._process = subprocess.Popen(
            [*show_command("serve", "--data", "data", *listeners), "--log-level", "error"],
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C goes to the demo, which then stops the node.
        )
        assert self._process.stdout is not None
        lines = []
        while (line := self._process.stdout.readline()) != "ready\n":
            assert line, "the node exited before it was ready"
            lines.append(line)
        addresses = dict(line.split() for line in lines)
        self.bootstrap, self.url = addresses["kafka"], addresses["http"]
        show(f"{''.join(lines)}ready after {time.perf_counter() - started:.1f} s")

    def end(self, number: int) -> int:
        """Send a signal, and return the exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        with self._process as process:
            return process.wait()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Also after a signal, leave nothing running.
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the node if it is running."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
