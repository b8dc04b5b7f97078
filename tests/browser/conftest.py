"""Fixtures: one browser for each worker, and one node for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.chromium import Chromium, running_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as running:
        yield running
