"""Topics as Spark tables: scans, streams, sinks and typed columns, beside Spark's own sources."""

from __future__ import annotations

from subjects.spark.scan import SCAN_1_KB, SCAN_100_BYTES
from subjects.spark.sink import SINK
from subjects.spark.stream import STREAM
from subjects.spark.typed import TYPED

EXPERIMENTS = (SCAN_100_BYTES, SCAN_1_KB, STREAM, SINK, TYPED)
