"""The commands in the guide and the reference work as described."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.broker import RunningBroker, running_broker

ROOT = Path(__file__).parents[3]
PAGES = ("docs/guides/http.md", "docs/reference/http.md")
SHOWN_ONLY = ("wait_ms", "/v1/queues", "/v1/events", "/v1/ws", "/v1/streams", "/breaker", "curl -N")
"""Commands that take long, need a cluster, or have tests of their own."""

EXPECTED = ("unknown_topic", "offset_out_of_range", "unknown_transaction")
"""Errors that commands of the pages show."""


def commands(page: str) -> list[str]:
    text = (ROOT / page).read_text().replace("\\\n", " ")
    found = re.findall(r"^    \$ (curl [^\n']*(?:'[^']*'[^\n']*)*)$", text, re.MULTILINE)
    return [one for one in found if not any(word in one for word in SHOWN_ONLY)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_work_one_after_the_other(running: RunningBroker, page: str) -> None:
    asked = commands(page)
    assert len(asked) >= 5
    netloc = running.url.removeprefix("http://")
    for command in asked:
        words = shlex.split(command.replace("localhost:8080", netloc))
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        if "error" in done.stdout:
            code = json.loads(done.stdout)["error"]["code"]
            assert "vlaue" in command or code in EXPECTED, command
