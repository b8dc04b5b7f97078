"""Messages about work queues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.protocols.http.records import (
    WAIT_MS_MAX,
    GapShape,
    HeaderValue,
    RequestCost,
    gap_json,
    record_json,
)
from millstream.protocols.http.values import Text
from millstream.records.cursor import TOPIC_ID_PATTERN
from millstream.records.record import Gap, StoredRecord

CLAIM_MAX = 1_000
"""Jobs in one claim, and receipts in one request."""

RECEIPT_LENGTH_MAX = 200
"""Characters of a receipt: several times the current length, so that it may grow."""

LEASE_MS_MIN = 100
LEASE_MS_MAX = 12 * 3_600_000
DELAY_MS_MAX = 7 * 24 * 3_600_000
WINDOW_MS_MAX = 10_000
DELIVERIES_MAX = 1_000_000

LeaseMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=LEASE_MS_MIN,
        le=LEASE_MS_MAX,
        description="How long a job belongs to its worker; after that, others may claim it.",
    ),
]
_RECEIPT_FORM = {"pattern": "^[A-Za-z0-9_-]{44}$"}
"""Form of the receipts that are issued now; anything else is answered as a stale receipt."""

Receipts: TypeAlias = Annotated[
    list[Annotated[str, Meta(max_length=RECEIPT_LENGTH_MAX, extra_json_schema=_RECEIPT_FORM)],],
    Meta(min_length=1, max_length=CLAIM_MAX),
]
WorkerName: TypeAlias = Annotated[
    str, Meta(max_length=255, description="Name of the worker, shown when jobs are browsed.")
]


class QueueBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of a queue. Fields that are left out keep their value, or get their default."""

    lease_ms: LeaseMs | UnsetType = UNSET
    """For claims that do not set it. Default 30,000."""
    deliveries_max: Annotated[int, Meta(ge=1, le=DELIVERIES_MAX)] | UnsetType = UNSET
    """Deliveries of a job before it is moved to the dead-letter topic. Default 5."""
    dead_letter: Annotated[str, Meta(min_length=1, max_length=249)] | UnsetType = UNSET
    """The topic for jobs that were delivered too often. Default: the name of the queue with
    `-dead`."""
    claim_window_ms: Annotated[int, Meta(ge=0, le=WINDOW_MS_MAX)] | UnsetType = UNSET
    """How long claims are collected to be served evenly; 0 serves each one when it arrives."""


class QueueAnswer(Struct, kw_only=True, frozen=True):
    """A queue. With no request in flight, enqueued = acked + dead + ready + delayed + leased."""

    name: str
    lease_ms: int
    deliveries_max: int
    dead_letter: str
    claim_window_ms: int
    enqueued: int
    """Jobs added since the queue was created, without those in `removed`."""
    ready: int
    """Jobs that can be claimed."""
    leased: int
    """Jobs that a worker has claimed."""
    delayed: int
    """Jobs that a worker returned with a delay."""
    acked: int
    """Jobs that are done."""
    dead: int
    """Jobs that were moved to the dead-letter topic."""
    delivered: int
    """Deliveries of all jobs together, with those that were released."""
    removed: int
    """Jobs that were deleted from the topic before they were done."""
    damaged: int
    """Batches that cannot be decoded. Each counts as one job, and is moved to the dead-letter topic
    as one record."""


class QueuesAnswer(Struct, kw_only=True):
    """All queues of the node."""

    queues: list[QueueAnswer]


class ClaimBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The jobs that a worker claims."""

    max: Annotated[int, Meta(ge=1, le=CLAIM_MAX)] = 1
    lease_ms: LeaseMs | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    """How long to wait for a job if none is ready."""
    worker: WorkerName = ""


class JobShape(Struct, kw_only=True):
    """A job with the receipt that its worker uses to acknowledge it."""

    receipt: Annotated[str, Meta(extra_json_schema=_RECEIPT_FORM)]
    offset: int
    partition: int
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    node: str | UnsetType = UNSET
    deliveries: int
    """Number of deliveries, including this one and without those that were released."""
    deadline_ms: int
    """Time until the lease ends."""


class WorkQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The jobs that are pushed to a worker."""

    worker: WorkerName = ""
    max: Annotated[
        int,
        Meta(
            ge=1,
            le=CLAIM_MAX,
            description="Maximum number of jobs in the worker's hands at a time.",
        ),
    ] = 1
    lease_ms: LeaseMs | None = None


class JobsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The jobs to browse."""

    state: (
        Annotated[
            Literal["ready", "leased", "delayed"],
            Meta(description="Only jobs in this state. Default: all that are not done."),
        ]
        | UnsetType
    ) = UNSET
    after: Annotated[
        str,
        Meta(
            pattern=f"^([0-9]{{1,10}}:[0-9]{{1,19}}(@{TOPIC_ID_PATTERN})?)?$",
            description="`next` of the previous response.",
        ),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=CLAIM_MAX, description="Maximum number of jobs.")] = 100


class BrowsedJobShape(Struct, kw_only=True):
    """A job that is browsed; it is not claimed by that."""

    partition: int
    offset: int
    state: Literal["ready", "leased", "delayed"]
    deliveries: int
    """Number of deliveries so far."""
    ready_in_ms: int | None
    """Time until its lease or delay ends; null if it can be claimed."""
    worker: str
    """The worker that has it; empty if there is none, it gave no name, or the node was restarted
    since."""
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    node: str | UnsetType = UNSET


class BrowsedJobsAnswer(Struct, kw_only=True):
    """A page of jobs, sorted by partition and offset."""

    jobs: list[BrowsedJobShape]
    next: str | None
    """Pass as `after` to get the next page; null on the last page."""
    gaps: list[GapShape]
    """One with the reason `recreated` if `after` is of a queue whose topic was deleted: this is the
    first page of the queue that now has the name. Else empty.
    """


class DeadLettersQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The dead letters to list."""

    after: Annotated[
        str,
        Meta(
            pattern="^([0-9]{1,10}:[0-9]{1,19})?$",
            description="`next` of the previous response.",
        ),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=CLAIM_MAX, description="Maximum number of letters.")] = 100


class DeadLetterShape(Struct, kw_only=True):
    """A record of the dead-letter topic."""

    partition: int
    """Of the dead-letter topic, as is `offset`."""
    offset: int
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    """Those of the job, and `millstream-*` headers with its queue, position, number of deliveries
    and reason: `expired` or `nacked`."""
    node: str | UnsetType = UNSET


class DeadLettersAnswer(Struct, kw_only=True):
    """A page of dead letters, by partition and offset."""

    letters: list[DeadLetterShape]
    next: str | None
    """Pass as `after` to get the next page; null on the last page."""
    count: int
    """Number of offsets in the dead-letter topic."""


class RedriveBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """How many dead letters to move back to the queue."""

    max: Annotated[int, Meta(ge=1, le=CLAIM_MAX)] = CLAIM_MAX


class RedriveAnswer(Struct, kw_only=True):
    """Number of dead letters that are jobs again."""

    moved: int
    remaining: int
    """Number of offsets left in the dead-letter topic."""


class PurgeAnswer(Struct, kw_only=True):
    """Number of dead letters that were deleted."""

    purged: int
    remaining: int
    """Number of offsets left in the dead-letter topic."""


class ClaimAnswer(Struct, kw_only=True):
    """The claimed jobs; none if there was none in time."""

    jobs: list[JobShape]
    cost: RequestCost


class ReceiptsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs that are done, or that a worker did not try."""

    receipts: Receipts


class NackBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs that a worker returns."""

    receipts: Receipts
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] = 0
    """How long they cannot be claimed."""


class ExtendBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs whose leases are to be extended."""

    receipts: Receipts
    lease_ms: LeaseMs | None = None
    """The new lease, from now on. Default: that of the queue."""


class AckAnswer(Struct, kw_only=True):
    """Number of jobs that were acknowledged."""

    acked: int
    cost: RequestCost


class NackAnswer(Struct, kw_only=True):
    """Number of jobs that were returned."""

    nacked: int
    cost: RequestCost


class ReleaseAnswer(Struct, kw_only=True):
    """Number of jobs that were released."""

    released: int
    cost: RequestCost


class ExtendAnswer(Struct, kw_only=True):
    """Number of leases that were extended."""

    extended: int
    deadline_ms: int
    cost: RequestCost


# From jobs to JSON. These run for every delivered job, so they concatenate bytes.

_encode = msgspec.json.Encoder().encode


def job_json(
    receipt: str, partition: int, record: StoredRecord, *, deliveries: int, deadline_ms: int
) -> bytes:
    """Return a job as the JSON of a `JobShape`."""
    return b'{"receipt":%s,"partition":%d,"deliveries":%d,"deadline_ms":%d,%s' % (
        _encode(receipt),
        partition,
        deliveries,
        deadline_ms,
        record_json(record)[1:],
    )


def browsed_job_json(
    partition: int,
    record: StoredRecord,
    *,
    state: str,
    deliveries: int,
    ready_in_ms: int | None,
    worker: str,
) -> bytes:
    """Return a job as the JSON of a `BrowsedJobShape`."""
    return b'{"partition":%d,"state":"%s","deliveries":%d,"ready_in_ms":%s,"worker":%s,%s' % (
        partition,
        state.encode(),
        deliveries,
        _encode(ready_in_ms),
        _encode(worker),
        record_json(record)[1:],
    )


def browsed_jobs_json(jobs: Iterable[bytes], after: str | None, gap: Gap | None) -> bytes:
    """Return a `BrowsedJobsAnswer` of encoded jobs."""
    gaps = b"" if gap is None else gap_json(gap)
    return b'{"jobs":[%s],"next":%s,"gaps":[%s]}' % (b",".join(jobs), _encode(after), gaps)


def dead_letters_json(letters: Iterable[bytes], after: str | None, count: int) -> bytes:
    """Return a `DeadLettersAnswer` of encoded letters."""
    return b'{"letters":[%s],"next":%s,"count":%d}' % (b",".join(letters), _encode(after), count)


def jobs_json(jobs: Iterable[bytes]) -> bytes:
    """Return the data of an event that pushes encoded jobs."""
    return b'{"jobs":[%s]}' % b",".join(jobs)


def claim_json(jobs: Iterable[bytes], cost: RequestCost) -> bytes:
    """Return a `ClaimAnswer` of encoded jobs."""
    return b'{"jobs":[%s],"cost":%s}' % (b",".join(jobs), _encode(cost))
