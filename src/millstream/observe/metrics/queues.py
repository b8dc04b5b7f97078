"""What queues hold and do, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from millstream.broker.broker import Broker
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.values import QueueCounts
from millstream.observe.metrics.metric import (
    LISTED_MAX,
    LabelledSources,
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
)


class QueueReading(NamedTuple):
    """A queue at one moment."""

    queue: WorkQueue
    counts: QueueCounts


QUEUE_METRICS: Sequence[MetricDeclaration[QueueReading]] = (
    MetricDeclaration(
        name="millstream_queue_jobs",
        kind=MetricKind.GAUGE,
        help="Jobs that are not done: those that can be claimed, belong to a worker, or rest.",
        labels=("state",),
        samples=(
            MetricSample(labels=("ready",), read=lambda seen: seen.counts.ready),
            MetricSample(labels=("leased",), read=lambda seen: seen.counts.leased),
            MetricSample(labels=("delayed",), read=lambda seen: seen.counts.delayed),
        ),
    ),
    counter(
        "millstream_queue_acked_jobs_total",
        "Jobs that are done, since the queue was made.",
        lambda seen: seen.counts.acked,
    ),
    counter(
        "millstream_queue_dead_jobs_total",
        "Jobs that went to the dead-letter topic, since the queue was made.",
        lambda seen: seen.counts.dead,
    ),
    counter(
        "millstream_queue_removed_jobs_total",
        "Jobs that were deleted from the topic before they were done, since the queue was made.",
        lambda seen: seen.counts.removed,
    ),
    counter(
        "millstream_queue_delivered_jobs_total",
        "How often a job was handed out, since the queue was made.",
        lambda seen: seen.counts.delivered,
    ),
    counter(
        "millstream_queue_claims_total",
        "Claims that were answered with jobs.",
        lambda seen: seen.queue.counters.claims,
    ),
    counter(
        "millstream_queue_nacked_jobs_total",
        "Jobs that workers gave back.",
        lambda seen: seen.queue.counters.nacked,
    ),
    counter(
        "millstream_queue_extended_leases_total",
        "Leases that workers extended.",
        lambda seen: seen.queue.counters.extended,
    ),
    counter(
        "millstream_queue_expired_leases_total",
        "Leases that ran out.",
        lambda seen: seen.queue.store.expired,
    ),
    counter(
        "millstream_queue_stale_receipts_total",
        "Receipts that counted no more when workers came with them.",
        lambda seen: seen.queue.counters.stale,
    ),
)

QUEUES = MetricSection(metrics=QUEUE_METRICS, labels=("queue",))


def listed_queues(broker: Broker) -> LabelledSources[QueueReading]:
    """Return the first queues, by their names."""
    for queue in islice(broker.queues.all(), LISTED_MAX):
        yield (queue.name,), QueueReading(queue, queue.counts())
