"""A node that is written to by real clients, and stopped so that its files can be tampered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from .nodes import Stage


@pytest.fixture
def stage(tmp_path: Path):
    with Stage(tmp_path) as made:
        yield made
