"""How a query gets on: Spark's report about a batch as a value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LOST = "(lost)"
"""Where a position of the source counts what retention took; it is no topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """One batch of one target, done."""

    target: str
    batch: int
    at: str
    """When it began, as Spark writes it: ISO 8601 in UTC."""
    seconds: float
    rows_in: int
    rows_out: int | None
    """How many rows were written; `None` where Spark does not count them."""
    rows_per_second_in: float
    """How many rows arrived in a second since the batch before."""
    rows_per_second_out: float
    """How many rows were worked off in a second of this batch."""
    lag: Mapping[str, int]
    """For each topic, how many offsets were not read yet when the batch ended."""
    watermark: str | None
    """Rows before it are too late; `None` where there is none."""


def batch_of(target: str, report: Mapping[str, Any]) -> BatchProgress | None:
    """Return the batch that a report of Spark is about; nothing where it says that none ran."""
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
    """Return a rate that is a number: Spark has none for the first batch, or for one of no time."""
    found = float(value or 0)
    return found if 0 <= found < float("inf") else 0.0


def lag_of(sources: list[Mapping[str, Any]]) -> dict[str, int]:
    """Return how far each topic is ahead of what was read of it.

    A source whose positions are not offsets by topic and partition, such as a table, has no lag.
    """
    found: dict[str, int] = {}
    for source in sources:
        read, latest = (_position(source.get(name)) for name in ("endOffset", "latestOffset"))
        for topic, partitions in latest.items():
            ends = read.get(topic, {})
            behind = (max(0, end - ends.get(one, 0)) for one, end in partitions.items())
            found[topic] = max(found.get(topic, 0), sum(behind))
    return found


def _position(value: Any) -> dict[str, dict[str, int]]:
    """Return a position that is offsets by topic and partition; nothing where it is another."""
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
