"""Fixture: a node that real clients write to, and that is stopped before its files are changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .nodes import Stage


@pytest.fixture
def stage(tmp_path: Path):
    with Stage(tmp_path) as made:
        yield made
