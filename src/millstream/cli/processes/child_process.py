"""A process that a command runs beside itself: started, waited for, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from millstream.cli.processes import exec_child

POLL_SECONDS = 0.05


class ChildProcess:
    """A process in a session of its own: Ctrl-C of a terminal reaches only its parent.

    Standard error goes to a log file, and standard output too unless it is read by the parent.
    Without a log file, the parent reads standard error as well. The process is told to stop if its
    parent is killed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path | None,
        *,
        environment: Mapping[str, str] | None = None,
        is_read: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self._log_start = 0
        wrapper = [sys.executable, "-I", "-S", exec_child.__file__, str(os.getpid())]
        with contextlib.ExitStack() as stack:
            output: IO[bytes] | int = subprocess.DEVNULL
            errors: IO[bytes] | int = subprocess.PIPE
            if log is not None:
                output = errors = file = stack.enter_context(log.open("ab"))
                self._log_start = file.tell()
            self.process = subprocess.Popen(  # noqa: S603 - our own command.
                [*wrapper, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_read else output,
                stderr=errors,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self.process.poll()

    def read_line(self) -> str | None:
        """Return the next line of standard output; None at its end."""
        assert self.process.stdout is not None
        line: bytes = self.process.stdout.readline()
        return line.decode(errors="replace").rstrip("\n") if line else None

    def last_words(self, size: int = 600) -> str:
        """Return the end of what it wrote to its log since it was started."""
        if self.log is None:
            return "see the lines before"
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()[-size:].decode(errors="replace").strip()

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.is_running:
            self.process.send_signal(number)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.send(signal.SIGTERM)

    def wait(self, deadline: float) -> bool:
        """Wait until it has ended, or kill it at the deadline; return whether it ended itself."""
        while self.is_running:
            if time.monotonic() >= deadline:
                self.process.kill()
                self.process.wait()
                return False
            time.sleep(POLL_SECONDS)
        return True


def without_variables(*names: str) -> dict[str, str]:
    """Return the environment of this process without some variables."""
    return {name: value for name, value in os.environ.items() if name not in names}
