"""Topics as Delta tables: the writer, the planning of reads, and union reads in Spark."""

from __future__ import annotations

from subjects.lake.plan import PLAN
from subjects.lake.union import UNION
from subjects.lake.writer import WRITE_1_KB, WRITE_100_BYTES

EXPERIMENTS = (WRITE_1_KB, WRITE_100_BYTES, PLAN, UNION)
