"""The public conformance suite of Durable Streams, with its own client, against a real node.

It takes most of a minute, mainly waiting for polls to end and for streams to expire.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from millstream.testing.broker import running_broker

FOLDER = Path(__file__).parent / "conformance"
TESTS_MIN = 330
"""Fewer mean that the suite did not find its tests."""


@pytest.mark.timeout(180)
def test_the_public_suite_passes(tmp_path: Path) -> None:
    vitest = FOLDER / "node_modules" / ".bin" / "vitest"
    assert vitest.exists(), "run `make clients`"
    report = tmp_path / "report.json"
    with running_broker(tmp_path / "data") as node:
        done = subprocess.run(
            [str(vitest), "run", "--reporter=json", f"--outputFile={report}"],
            cwd=FOLDER,
            env={**os.environ, "STREAMS_URL": f"{node.url}/v1/streams"},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(report.read_text())
    failed = [
        f"{test['fullName']}: {' '.join(test['failureMessages'])[:300]}"
        for file in found["testResults"]
        for test in file["assertionResults"]
        if test["status"] == "failed"
    ]
    assert not failed, f"{len(failed)} of the suite's tests fail:\n" + "\n".join(failed)
    assert found["numPassedTests"] >= TESTS_MIN
    assert done.returncode == 0
