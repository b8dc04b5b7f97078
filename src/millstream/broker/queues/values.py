"""Settings, limits and results of queues: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from millstream.broker.topics.record_appender import AppendTimings
from millstream.config.schema import KIB
from millstream.errors import InvalidConfig, InvalidRequest
from millstream.records.record import StoredRecord
from millstream.storage.files.names import check_topic

LEASE_MS_MIN = 100
"""A shorter lease could end before its worker gets the answer."""
LEASE_MS_MAX = 12 * 3_600_000
"""Half a day; a worker that needs longer extends the lease, and shows that it is alive."""
DELAY_MS_MAX = 7 * 24 * 3_600_000
"""A week: a delayed job is kept in memory."""
DELIVERIES_MAX = 1_000_000
WINDOW_MS_MAX = 10_000
"""No claim should wait longer than this only to share evenly with others."""
CLAIM_MAX = 1_000
"""Jobs of one claim, and receipts of one request: a few milliseconds of the event loop."""
WAIT_MS_MAX = 10 * 60_000
"""How long a claim may wait; the HTTP server permits less."""

LEASE_MS = 30_000
DELIVERIES = 5
DEAD_SUFFIX = "-dead"


class QueueLimits(NamedTuple):
    """Limits of what is stored of each queue."""

    unfinished_max: int = 100_000
    """Unfinished jobs. Beyond it no new job is delivered: all of them are in memory, some 200
    bytes each, and a snapshot contains them all.
    """
    ended_max: int = 100_000
    """Jobs that were not acked at their first delivery and are remembered, so that a repeated ack
    gets the same answer. Receipts of older ones are stale.
    """
    events_bytes_min: int = 512 * KIB
    """No snapshot is written for fewer events: replaying them takes a fraction of a second."""


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a queue."""

    lease_ms: int = LEASE_MS
    """Length of a lease, unless the claim has its own."""
    deliveries_max: int = DELIVERIES
    """How often a job is delivered before it is moved to the dead-letter topic."""
    dead_letter: str
    """The dead-letter topic."""
    claim_window_ms: int = 0
    """How long claims are gathered, to get even shares; 0 serves each claim when it arrives."""


class QueueChanges(NamedTuple):
    """New settings of a queue; `None` leaves a setting as it is, or gives it its default."""

    lease_ms: int | None = None
    deliveries_max: int | None = None
    dead_letter: str | None = None
    claim_window_ms: int | None = None


class QueueCounts(NamedTuple):
    """Number of jobs of each state. enqueued = acked + dead + ready + delayed + leased."""

    enqueued: int
    """Jobs added since the queue was created, without those in `removed`."""
    ready: int
    """Jobs that can be claimed, or are being moved to the dead-letter topic."""
    leased: int
    delayed: int
    acked: int
    dead: int
    delivered: int
    """Deliveries of all jobs together, with those that were released."""
    removed: int
    """Jobs deleted from the topic before they were finished."""
    damaged: int = 0
    """Batches that cannot be decoded. Each counts as one job, and becomes one dead letter."""


class LeasedJob(NamedTuple):
    """A job that is leased to a worker."""

    receipt: str
    partition: int
    record: StoredRecord
    number: int
    """Number of this delivery of the job, which no other delivery has."""
    deliveries: int
    """Deliveries that count, including this one."""
    deadline_ms: int
    """Remaining time of the lease."""


class ClaimResult(NamedTuple):
    """The jobs of a claim; none if there was none in time."""

    jobs: list[LeasedJob]
    timings: AppendTimings


@dataclass(frozen=True, slots=True)
class SettleResult:
    """Number of receipts for which the request succeeded."""

    count: int
    timings: AppendTimings


def apply_changes(name: str, config: QueueConfig | None, changes: QueueChanges) -> QueueConfig:
    """Return the settings of a queue after `changes`; raises `InvalidConfig`."""
    base = config or QueueConfig(dead_letter=name + DEAD_SUFFIX)
    values = {field: value for field, value in changes._asdict().items() if value is not None}
    changed = msgspec.structs.replace(base, **values)
    for field, value, least, most in (
        ("lease_ms", changed.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX),
        ("deliveries_max", changed.deliveries_max, 1, DELIVERIES_MAX),
        ("claim_window_ms", changed.claim_window_ms, 0, WINDOW_MS_MAX),
    ):
        if not least <= value <= most:
            raise InvalidConfig(f"{field} must be between {least} and {most}, got {value}")
    check_topic(changed.dead_letter)
    if changed.dead_letter == name:
        raise InvalidConfig(
            f"dead_letter of queue {name} must not be the queue itself: no job would ever leave it"
        )
    return changed


def check_lease(lease_ms: int) -> int:
    return _check("lease_ms", lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)


def check_delay(delay_ms: int) -> int:
    return _check("delay_ms", delay_ms, 0, DELAY_MS_MAX)


def check_wait(wait_ms: int) -> int:
    return _check("wait_ms", wait_ms, 0, WAIT_MS_MAX)


def check_count(what: str, count: int) -> int:
    """Check the number of jobs or receipts of a request."""
    return _check(what, count, 1, CLAIM_MAX)


def _check(what: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidRequest(f"{what} must be between {least} and {most}, got {value}")
    return value
