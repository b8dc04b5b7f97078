"""What is asked of a queue, and what it answers, as plain values."""

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
"""A shorter lease could end before its worker has heard of it."""
LEASE_MS_MAX = 12 * 3_600_000
"""Half a day; who needs longer extends it, and so shows that it is alive."""
DELAY_MS_MAX = 7 * 24 * 3_600_000
"""A week: a delayed job is kept in memory."""
DELIVERIES_MAX = 1_000_000
WINDOW_MS_MAX = 10_000
"""Nobody should wait longer than this only so that others are served evenly."""
CLAIM_MAX = 1_000
"""Jobs of one claim, and receipts of one request: a few milliseconds of the event loop."""
WAIT_MS_MAX = 10 * 60_000
"""How long a claimer may stand in line; the door allows less."""

LEASE_MS = 30_000
DELIVERIES = 5
DEAD_SUFFIX = "-dead"


class QueueLimits(NamedTuple):
    """How much is kept of each queue."""

    unfinished_max: int = 100_000
    """Jobs that may be handed out and not done. Beyond it nobody gets new ones: all of them are in
    memory, some 200 bytes each, and a snapshot holds them all."""
    ended_max: int = 100_000
    """Jobs that did not end by an ack of their first delivery, and are remembered, so that
    repeating an ack is answered as the first was. Receipts of older ones are stale."""
    events_bytes_min: int = 512 * KIB
    """With fewer events no snapshot is worth writing: replaying takes a fraction of a second."""


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue is set to."""

    lease_ms: int = LEASE_MS
    """How long a job belongs to who claimed it, where the claim does not say."""
    deliveries_max: int = DELIVERIES
    """How often a job is handed out before it goes to the dead-letter topic."""
    dead_letter: str
    """The topic for jobs that were handed out too often."""
    claim_window_ms: int = 0
    """How long claims are gathered, to be served evenly; 0 serves each when it comes."""


class QueueChanges(NamedTuple):
    """What to set a queue to; what is `None` stays as it is, or gets its default."""

    lease_ms: int | None = None
    deliveries_max: int | None = None
    dead_letter: str | None = None
    claim_window_ms: int | None = None


class QueueCounts(NamedTuple):
    """What there is in a queue. enqueued = acked + dead + ready + delayed + leased."""

    enqueued: int
    """Jobs that were put in since the queue was made, without those in `removed`."""
    ready: int
    """Jobs that can be claimed, or are on their way to the dead-letter topic."""
    leased: int
    delayed: int
    acked: int
    dead: int
    delivered: int
    """How often a job was handed out, all jobs together."""
    removed: int
    """Jobs that were deleted from the topic before they were done."""


class LeasedJob(NamedTuple):
    """A job that belongs to a worker."""

    receipt: str
    partition: int
    record: StoredRecord
    deliveries: int
    """How often it was handed out, this time included."""
    deadline_ms: int
    """How long it belongs to the worker, from now."""


class ClaimResult(NamedTuple):
    """Jobs that belong to the worker now; none where there was none in time."""

    jobs: list[LeasedJob]
    cost: AppendTimings


@dataclass(frozen=True, slots=True)
class SettleResult:
    """For how many receipts it was done."""

    count: int
    cost: AppendTimings


def apply_changes(name: str, config: QueueConfig | None, changes: QueueChanges) -> QueueConfig:
    """Return what a queue is set to after `changes`; raises `InvalidConfig`."""
    base = config or QueueConfig(dead_letter=name + DEAD_SUFFIX)
    wanted = {field: value for field, value in changes._asdict().items() if value is not None}
    made = msgspec.structs.replace(base, **wanted)
    for field, value, least, most in (
        ("lease_ms", made.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX),
        ("deliveries_max", made.deliveries_max, 1, DELIVERIES_MAX),
        ("claim_window_ms", made.claim_window_ms, 0, WINDOW_MS_MAX),
    ):
        if not least <= value <= most:
            raise InvalidConfig(f"{field} is {value}, allowed is {least} to {most}")
    check_topic(made.dead_letter)
    if made.dead_letter == name:
        raise InvalidConfig(f"dead_letter of {name} is the queue itself: jobs would never leave it")
    return made


def check_lease(lease_ms: int) -> int:
    """Return how long a lease is to last, if it may."""
    return _check("lease_ms", lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)


def check_delay(delay_ms: int) -> int:
    """Return how long a job is to rest, if it may."""
    return _check("delay_ms", delay_ms, 0, DELAY_MS_MAX)


def check_wait(wait_ms: int) -> int:
    """Return how long a claimer is to wait, if it may."""
    return _check("wait_ms", wait_ms, 0, WAIT_MS_MAX)


def check_count(what: str, count: int) -> int:
    """Return how many jobs or receipts a request is about, if it may be about so many."""
    return _check(what, count, 1, CLAIM_MAX)


def _check(what: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidRequest(f"{what} is {value}, allowed is {least} to {most}")
    return value
