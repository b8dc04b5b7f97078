"""A process that a command runs beside itself: started, waited for, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.05


class ChildProcess:
    """A process in a session of its own: Ctrl-C of a terminal reaches only its parent.

    Standard error goes to a log file, and standard output too unless it is read by the parent.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        is_read: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as errors:
            self._log_start = errors.tell()
            self.process = subprocess.Popen(  # noqa: S603 - our own command.
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_read else errors,
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
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()[-size:].decode(errors="replace").strip()

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)

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
