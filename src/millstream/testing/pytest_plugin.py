"""Pytest plugin with the fixture `millstream_broker`, a real broker for each test.

    def test_orders_arrive(millstream_broker):
        producer = Producer({"bootstrap.servers": millstream_broker.bootstrap})

pytest loads it automatically if Millstream is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millstream.testing.broker import RunningBroker


@pytest.fixture
def millstream_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker on a free port, with an empty data directory, stopped after the test."""
    from millstream.testing.broker import running_broker  # noqa: PLC0415 - pytest starts quickly.

    with running_broker(tmp_path_factory.mktemp("millstream")) as broker:
        yield broker
