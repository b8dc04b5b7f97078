"""Start of a node: empty, with much data, and after a kill; and of the test fixture."""

from __future__ import annotations

from subjects.start.clean import CLEAN, EMPTY
from subjects.start.fixture import FIXTURE
from subjects.start.unclean import UNCLEAN

EXPERIMENTS = (EMPTY, CLEAN, UNCLEAN, FIXTURE)
