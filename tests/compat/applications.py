"""Applications that run in a separate process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .conftest import TIMEOUT_S

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def running(log: Path, module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module during the block, with its output in `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        except AssertionError as error:
            error.add_note(f"{module} said:\n{log.read_text()[-5000:]}")
            raise
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
