"""Fixtures for command tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.broker import RunningBroker, running_broker


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningBroker]:
    """A node in this process, on free ports."""
    with running_broker(tmp_path / "node") as broker:
        yield broker
