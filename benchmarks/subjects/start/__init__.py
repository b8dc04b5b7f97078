"""Starting: a node with nothing, with much and after a kill, and the fixture of the tests."""

from __future__ import annotations

from subjects.start.clean import CLEAN, EMPTY
from subjects.start.fixture import FIXTURE
from subjects.start.unclean import UNCLEAN

EXPERIMENTS = (EMPTY, CLEAN, UNCLEAN, FIXTURE)
