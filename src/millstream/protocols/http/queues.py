"""Work queues over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from millstream.protocols.http.records import WAIT_MS_MAX, HeaderValue, RequestCost, record_json
from millstream.protocols.http.values import Text
from millstream.records.record import StoredRecord

CLAIM_MAX = 1_000
"""Jobs in one claim, and receipts in one request."""

RECEIPT_LENGTH_MAX = 200
"""Characters of a receipt: several times what one has, so that it may grow."""

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
        description="How long a job belongs to who claimed it; then others may claim it.",
    ),
]
Receipts: TypeAlias = Annotated[
    list[Annotated[str, Meta(max_length=RECEIPT_LENGTH_MAX)]],
    Meta(min_length=1, max_length=CLAIM_MAX),
]
WorkerName: TypeAlias = Annotated[
    str, Meta(max_length=255, description="Who claims; shown to those who look, and no more.")
]


class QueueBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a queue is set to; what is left out stays as it is, or gets its default."""

    lease_ms: LeaseMs | UnsetType = UNSET
    """For claims that do not say it; 30,000 where nobody does."""
    deliveries_max: Annotated[int, Meta(ge=1, le=DELIVERIES_MAX)] | UnsetType = UNSET
    """How often a job is handed out before it goes to the dead-letter topic; 5."""
    dead_letter: Annotated[str, Meta(min_length=1, max_length=249)] | UnsetType = UNSET
    """The topic for jobs that were handed out too often; the queue's name with `-dead` behind."""
    claim_window_ms: Annotated[int, Meta(ge=0, le=WINDOW_MS_MAX)] | UnsetType = UNSET
    """How long claims are gathered, to be served evenly; 0 serves each when it comes."""


class QueueAnswer(Struct, kw_only=True):
    """A queue. At every quiet moment, enqueued = acked + dead + ready + delayed + leased."""

    name: str
    lease_ms: int
    deliveries_max: int
    dead_letter: str
    claim_window_ms: int
    enqueued: int
    """Jobs that were put in since the queue was made, without those in `removed`."""
    ready: int
    """Jobs that can be claimed."""
    leased: int
    """Jobs that belong to a worker."""
    delayed: int
    """Jobs that a worker gave back for later."""
    acked: int
    """Jobs that are done."""
    dead: int
    """Jobs that went to the dead-letter topic."""
    delivered: int
    """How often a job was handed out, all jobs together."""
    removed: int
    """Jobs that were deleted from the topic before they were done."""


class QueuesAnswer(Struct, kw_only=True):
    """All queues of the node."""

    queues: list[QueueAnswer]


class ClaimBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which jobs a worker wants."""

    max: Annotated[int, Meta(ge=1, le=CLAIM_MAX)] = 1
    lease_ms: LeaseMs | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    """How long to wait for a job where there is none."""
    worker: WorkerName = ""


class JobShape(Struct, kw_only=True):
    """A job, and the receipt by which its worker speaks of it."""

    receipt: str
    offset: int
    partition: int
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    node: str | UnsetType = UNSET
    deliveries: int
    """How often it was handed out, this time included."""
    deadline_ms: int
    """How long it belongs to the worker, from now."""


class WorkQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are pushed to a worker."""

    worker: WorkerName = ""
    max: Annotated[
        int,
        Meta(
            ge=1,
            le=CLAIM_MAX,
            description="Jobs that the worker has at a time: more come as it is done with some.",
        ),
    ] = 1
    lease_ms: LeaseMs | None = None


class JobsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to look at."""

    state: (
        Annotated[
            Literal["ready", "leased", "delayed"],
            Meta(description="Only jobs of this state; without it, all that are not done."),
        ]
        | UnsetType
    ) = UNSET
    after: Annotated[
        str,
        Meta(
            pattern="^([0-9]{1,10}:[0-9]{1,19})?$",
            description="Go on from `next` of the answer before.",
        ),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=CLAIM_MAX, description="Jobs in the answer, at the most.")
    ] = 100


class BrowsedJobShape(Struct, kw_only=True):
    """A job, to look at: nothing is claimed by it."""

    partition: int
    offset: int
    state: Literal["ready", "leased", "delayed"]
    deliveries: int
    """How often it was handed out so far."""
    ready_in_ms: int | None
    """When its lease or its delay is over; null where it can be claimed."""
    worker: str
    """Who has it; empty where nobody does, it did not say, or the node was started since."""
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    node: str | UnsetType = UNSET


class BrowsedJobsAnswer(Struct, kw_only=True):
    """Some jobs, by partition and offset."""

    jobs: list[BrowsedJobShape]
    next: str | None
    """What to ask `after` for more; null where there is no more."""


class ClaimAnswer(Struct, kw_only=True):
    """Jobs that belong to the worker now; none where there was none in time."""

    jobs: list[JobShape]
    cost: RequestCost


class ReceiptsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs that are done."""

    receipts: Receipts


class NackBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs that a worker gives back."""

    receipts: Receipts
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] = 0
    """How long nobody is to have them."""


class ExtendBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Jobs that take longer."""

    receipts: Receipts
    lease_ms: LeaseMs | None = None
    """From now on; what the queue is set to, where nothing is said."""


class AckAnswer(Struct, kw_only=True):
    """How many jobs are done by this."""

    acked: int
    cost: RequestCost


class NackAnswer(Struct, kw_only=True):
    """How many jobs were given back."""

    nacked: int
    cost: RequestCost


class ExtendAnswer(Struct, kw_only=True):
    """How many leases are longer now."""

    extended: int
    deadline_ms: int
    cost: RequestCost


# From jobs to JSON. These run for every job that is handed out, so they put bytes together.

_encode = msgspec.json.Encoder().encode


def job_json(
    receipt: str, partition: int, record: StoredRecord, *, deliveries: int, deadline_ms: int
) -> bytes:
    """Return a job as `JobShape` has it."""
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
    """Return a job as `BrowsedJobShape` has it."""
    return b'{"partition":%d,"state":"%s","deliveries":%d,"ready_in_ms":%s,"worker":%s,%s' % (
        partition,
        state.encode(),
        deliveries,
        _encode(ready_in_ms),
        _encode(worker),
        record_json(record)[1:],
    )


def browsed_jobs_json(jobs: Iterable[bytes], after: str | None) -> bytes:
    """Return a `BrowsedJobsAnswer`, of jobs that are JSON already."""
    return b'{"jobs":[%s],"next":%s}' % (b",".join(jobs), _encode(after))


def jobs_json(jobs: Iterable[bytes]) -> bytes:
    """Return the data of an event that pushes jobs, of jobs that are JSON already."""
    return b'{"jobs":[%s]}' % b",".join(jobs)


def claim_json(jobs: Iterable[bytes], cost: RequestCost) -> bytes:
    """Return a `ClaimAnswer`, of jobs that are JSON already."""
    return b'{"jobs":[%s],"cost":%s}' % (b",".join(jobs), _encode(cost))
