"""A real schema registry (Apicurio, with Confluent's REST interface) for tests."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_APP = Path(__file__).parent / "compat" / "schema-registry" / "app"
_STARTED = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)")
_START_SECONDS = 120


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Yield the address of a registry that keeps its schemas in memory."""
    jars = list(_APP.glob("*-runner.jar"))
    if not jars:
        pytest.fail("the schema registry is missing: run `make clients`")
    log = folder / "registry.log"
    command = [
        "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
        "-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0",
        "-jar", str(jars[0]),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (started := _STARTED.search(log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.05)
        yield f"{started[1]}/apis/ccompat/v7"
    finally:
        process.kill()
        process.wait()
