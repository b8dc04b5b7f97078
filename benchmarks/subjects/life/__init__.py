"""The life of data: compacting, deleting by key, and what both cost those who write meanwhile."""

from __future__ import annotations

from subjects.life.beside import BESIDE
from subjects.life.compaction import COMPACTION
from subjects.life.deletion import DELETION

EXPERIMENTS = (COMPACTION, DELETION, BESIDE)
