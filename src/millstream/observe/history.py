"""The last minutes of a node, second by second, for the console.

    plain counters ──once a second──► difference ──► one ring buffer per series

A sample reads numbers that are kept anyway: it costs well under a millisecond, whatever the node
holds, and nothing on the path of records. The arrays have a fixed size.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.clock import Clock, Timer, Timers
from millstream.observe.quantiles import quantile
from millstream.protocols.http.node import HistoryAnswer, SeriesShape

INTERVAL_SECONDS = 1.0

SAMPLES_MAX = 300
"""Five minutes: what a chart of the present shows. Prometheus keeps what is older."""

_MISSING = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySample:
    """Values of counters and gauges at one moment."""

    appended_records: int
    appended_bytes: int
    read_bytes: int
    kafka_requests: int
    http_requests: int
    commits: Sequence[int]
    """Counts by duration bucket, as are the next two."""
    kafka_answers: Sequence[int]
    http_answers: Sequence[int]
    connections: int
    cpu_seconds: float
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBuckets:
    """Upper bounds, in seconds, of the duration buckets of a sample."""

    commits: Sequence[float]
    kafka_answers: Sequence[float]
    http_answers: Sequence[float]


RATES = ("appended_records", "appended_bytes", "read_bytes", "kafka_requests", "http_requests")
"""Series with the increase of a counter per second."""

QUANTILES = (
    ("commit_p50_ms", "commits", 0.5),
    ("commit_p99_ms", "commits", 0.99),
    ("kafka_p99_ms", "kafka_answers", 0.99),
    ("http_p99_ms", "http_answers", 0.99),
)
INTEGER_SERIES = (*RATES, "connections", "memory_bytes")
"""Series of whole numbers."""

NAMES = (*RATES, *(name for name, *_ in QUANTILES), "connections", "cpu_percent", "memory_bytes")


class History:
    """Samples a node once a second, from `start` to `stop`. Runs on the event loop."""

    def __init__(
        self,
        read: Callable[[], HistorySample],
        bounds: HistoryBuckets,
        *,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._read = read
        self._bounds = bounds
        self._clock = clock
        self._timers = timers
        self._rings = {name: array("d", [_MISSING]) * SAMPLES_MAX for name in NAMES}
        self._count = 0
        """Samples taken since the start, including missed ones."""
        self._until_ms = clock.wall_ms()
        self._last: HistorySample | None = None
        self._last_at = 0.0
        self._due = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Start sampling; the first sample is taken a second later."""
        self._last, self._last_at = self._read(), self._clock.monotonic()
        self._due = self._last_at
        self._until_ms = self._clock.wall_ms()
        self._arm()

    def stop(self) -> None:
        """Stop sampling. Does nothing if it was never started."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answer(self) -> HistoryAnswer:
        """Return all samples that are kept, oldest first."""
        return HistoryAnswer(
            interval_ms=int(INTERVAL_SECONDS * 1000),
            until=self._until_ms,
            series=SeriesShape(**{name: self._series(name) for name in NAMES}),
        )

    def _series(self, name: str) -> list[Any]:
        ring = self._rings[name]
        end = self._count % SAMPLES_MAX
        kept = ring[:end] if self._count < SAMPLES_MAX else ring[end:] + ring[:end]
        if name in INTEGER_SERIES:
            return [None if math.isnan(value) else int(value) for value in kept]
        return [None if math.isnan(value) else round(value, 3) for value in kept]

    # Sampling.

    def _arm(self) -> None:
        self._due += INTERVAL_SECONDS
        delay = max(0.0, self._due - self._clock.monotonic())
        self._timer = self._timers.call_later(delay, self._on_time)

    def _on_time(self) -> None:
        now = self._clock.monotonic()
        missed = int((now - self._due) / INTERVAL_SECONDS)
        if missed > 0:  # The machine or the loop stood still: these samples are unknown.
            self._due += missed * INTERVAL_SECONDS
            for _ in range(min(missed, SAMPLES_MAX)):
                self._put({})
        self._sample(now)
        self._arm()

    def _sample(self, now: float) -> None:
        last, reading = self._last, self._read()
        assert last is not None, "sampling has started"
        seconds = max(now - self._last_at, 1e-9)
        self._last, self._last_at = reading, now
        self._until_ms = self._clock.wall_ms()
        # A late sample covers more than a second, and is scaled to one second.
        values: dict[str, float | None] = {
            name: round(_per_second(getattr(last, name), getattr(reading, name), seconds))
            for name in RATES
        }
        for name, buckets, share in QUANTILES:
            before, after = getattr(last, buckets), getattr(reading, buckets)
            counts = [new - old for old, new in zip(before, after, strict=True)]
            seconds_at_share = quantile(getattr(self._bounds, buckets), counts, share)
            values[name] = None if seconds_at_share is None else seconds_at_share * 1000
        values["connections"] = reading.connections
        values["cpu_percent"] = max(0.0, reading.cpu_seconds - last.cpu_seconds) / seconds * 100
        values["memory_bytes"] = reading.memory_bytes
        self._put(values)

    def _put(self, values: dict[str, float | None]) -> None:
        index = self._count % SAMPLES_MAX
        for name, ring in self._rings.items():
            value = values.get(name)
            ring[index] = _MISSING if value is None else value
        self._count += 1


def _per_second(before: int, after: int, seconds: float) -> float:
    """Return the increase per second. A counter that was reset counts from zero."""
    happened = after - before if after >= before else after
    is_punctual = abs(seconds - INTERVAL_SECONDS) < INTERVAL_SECONDS / 2
    return happened if is_punctual else happened / seconds
