"""Runs pytest, and writes down how long each set-up of `millstream_broker` took.

timed_fixture.py TIMES FOLDER      the seconds go to the file TIMES, as a JSON list
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Stopwatch:
    """A plugin that measures fixtures of one name."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Time what makes the fixture."""
        began = time.perf_counter()
        result = yield
        if fixturedef.argname == "millstream_broker":
            self.seconds.append(time.perf_counter() - began)
        return result


if __name__ == "__main__":
    stopwatch = Stopwatch()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", sys.argv[2]]
    code = pytest.main(options, plugins=[stopwatch])
    Path(sys.argv[1]).write_text(json.dumps(stopwatch.seconds))
    sys.exit(code)
