"""Growth: cost of an append, a fetch, a lookup and a start in a long log."""

from __future__ import annotations

from subjects.growth.engine import ENGINE
from subjects.growth.topic import LARGE_TOPIC

EXPERIMENTS = (ENGINE, LARGE_TOPIC)
