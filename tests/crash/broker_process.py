"""`millstream serve` as a process that can be killed, and started again at the same address."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


class BrokerProcess:
    """A node with its data in one directory. It keeps its ports, so that clients find it again."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._options = options
        self._data = str(directory / "data")
        self._log = directory / "log"
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = "127.0.0.1:0"
        self.http = "127.0.0.1:0"

    def start(self) -> None:
        """Start the node, and return as soon as there is a process."""
        command = [MILLSTREAM, "serve", "--data", self._data]
        options = ["--kafka", self.bootstrap, "--http", self.http, "--log-level", "warning"]
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                [*command, *options, *self._options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )

    def wait_until_ready(self) -> None:
        """Return when clients are served."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("kafka "):
                self.bootstrap = line.split()[1]
            if line.startswith("http "):
                self.http = line.split()[1].removeprefix("http://").rstrip("/")
            if line == "ready\n":
                return
        raise AssertionError(f"the broker did not start:\n{self.said()[-3000:]}")

    def kill(self) -> None:
        """Kill the process with SIGKILL. It must not have ended by itself."""
        process = self._take()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, self.said()[-3000:]

    def stop(self) -> None:
        """Ask the process to end, which it has to do cleanly."""
        process = self._take()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, self.said()[-3000:]

    def verify(self) -> None:
        """Fail unless all files of the node are valid."""
        command = [MILLSTREAM, "segments", "verify", "--data", self._data]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def verify_acknowledged(self, *files: str) -> dict[str, int]:
        """Fail unless everything acknowledged to clients is there, in the files or on the server.

        Returns the number of records by outcome.
        """
        place = ["--bootstrap", self.bootstrap] if self._process else ["--data", self._data]
        command = [MILLSTREAM, "verify", *place, "--json"]
        for file in files:
            command += ["--acknowledged", file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, int] = json.loads(done.stdout)["acknowledged"]
        return found

    def close(self) -> None:
        """End the process if there is one, whatever state a test left it in."""
        if self._process is not None:
            process = self._take()
            process.kill()
            process.wait()

    def said(self) -> str:
        """Everything that was logged, by all processes so far."""
        return self._log.read_text()

    def _take(self) -> subprocess.Popen[str]:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        process.stdout.close()
        return process
