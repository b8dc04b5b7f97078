"""Life of data: compaction, deletion by key, and their effect on concurrent producers."""

from __future__ import annotations

from subjects.life.beside import BESIDE
from subjects.life.compaction import COMPACTION
from subjects.life.deletion import DELETION

EXPERIMENTS = (COMPACTION, DELETION, BESIDE)
