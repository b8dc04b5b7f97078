"""Growth: what an append, a fetch, a lookup and a start cost in a log that is long."""

from __future__ import annotations

from subjects.growth.door import DOOR
from subjects.growth.engine import ENGINE

EXPERIMENTS = (ENGINE, DOOR)
