"""Progress of a query: Spark's report of a batch as a value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LOST = "(lost)"
"""Key of lost offsets in a position of the source; not a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A completed batch of one target."""

    target: str
    batch: int
    at: str
    """Start time in Spark's format: ISO 8601 in UTC."""
    seconds: float
    rows_in: int
    rows_out: int | None
    """Rows written; `None` if Spark does not count them."""
    rows_per_second_in: float
    """Rows that arrived per second since the previous batch."""
    rows_per_second_out: float
    """Rows processed per second of this batch."""
    lag: Mapping[str, int]
    """For each topic, the offsets not yet read at the end of the batch."""
    watermark: str | None
    """Rows before it are late; `None` without a watermark."""


def batch_of(target: str, report: Mapping[str, Any]) -> BatchProgress | None:
    """Return the batch of one of Spark's reports; `None` if it reports that no batch ran."""
    durations = report["durationMs"]
    if "addBatch" not in durations:
        return None
    rows_out = report.get("sink", {}).get("numOutputRows", -1)
    return BatchProgress(
        target=target,
        batch=report["batchId"],
        at=report["timestamp"],
        seconds=durations.get("triggerExecution", 0) / 1000,
        rows_in=report["numInputRows"],
        rows_out=rows_out if rows_out >= 0 else None,
        rows_per_second_in=_rate(report.get("inputRowsPerSecond")),
        rows_per_second_out=_rate(report.get("processedRowsPerSecond")),
        lag=lag_of(report["sources"]),
        watermark=report.get("eventTime", {}).get("watermark"),
    )


def _rate(value: Any) -> float:
    """Return a finite rate: Spark has none for the first batch, or for one that took no time."""
    rate = float(value or 0)
    return rate if 0 <= rate < float("inf") else 0.0


def lag_of(sources: list[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of offsets of each topic that were not read yet.

    A source whose positions are not offsets by topic and partition, such as a table, has no lag.
    """
    lags: dict[str, int] = {}
    for source in sources:
        read, latest = (_position(source.get(name)) for name in ("endOffset", "latestOffset"))
        for topic, partitions in latest.items():
            ends = read.get(topic, {})
            behind = (max(0, end - ends.get(partition, 0)) for partition, end in partitions.items())
            lags[topic] = max(lags.get(topic, 0), sum(behind))
    return lags


def _position(value: Any) -> dict[str, dict[str, int]]:
    """Return a position of offsets by topic and partition; empty for any other form."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    if not isinstance(parsed, Mapping):
        return {}
    return {
        topic: dict(partitions)
        for topic, partitions in parsed.items()
        if topic != LOST
        and isinstance(partitions, Mapping)
        and all(isinstance(offset, int) for offset in partitions.values())
    }
