"""Metrics of queues."""

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
        help="Jobs that are not done: ready to be claimed, leased to a worker, or delayed.",
        labels=("state",),
        samples=(
            MetricSample(labels=("ready",), read=lambda reading: reading.counts.ready),
            MetricSample(labels=("leased",), read=lambda reading: reading.counts.leased),
            MetricSample(labels=("delayed",), read=lambda reading: reading.counts.delayed),
        ),
    ),
    counter(
        "millstream_queue_acked_jobs_total",
        "Jobs done since the queue was created.",
        lambda reading: reading.counts.acked,
    ),
    counter(
        "millstream_queue_dead_jobs_total",
        "Jobs moved to the dead-letter topic since the queue was created.",
        lambda reading: reading.counts.dead,
    ),
    counter(
        "millstream_queue_removed_jobs_total",
        "Jobs deleted from the topic before they were done, since the queue was created.",
        lambda reading: reading.counts.removed,
    ),
    counter(
        "millstream_queue_delivered_jobs_total",
        "Deliveries of jobs since the queue was created.",
        lambda reading: reading.counts.delivered,
    ),
    counter(
        "millstream_queue_claims_total",
        "Claims that returned jobs.",
        lambda reading: reading.queue.counters.claims,
    ),
    counter(
        "millstream_queue_nacked_jobs_total",
        "Jobs returned by workers.",
        lambda reading: reading.queue.counters.nacked,
    ),
    counter(
        "millstream_queue_released_jobs_total",
        "Jobs returned untried, so that the delivery does not count.",
        lambda reading: reading.queue.counters.released,
    ),
    counter(
        "millstream_queue_damaged_batches_total",
        "Batches that cannot be decoded and were skipped, since the queue was created.",
        lambda reading: reading.counts.damaged,
    ),
    counter(
        "millstream_queue_extended_leases_total",
        "Leases that workers extended.",
        lambda reading: reading.queue.counters.extended,
    ),
    counter(
        "millstream_queue_expired_leases_total",
        "Leases that expired.",
        lambda reading: reading.queue.store.expired,
    ),
    counter(
        "millstream_queue_stale_receipts_total",
        "Receipts that were stale when workers sent them.",
        lambda reading: reading.queue.counters.stale,
    ),
)

QUEUES = MetricSection(metrics=QUEUE_METRICS, labels=("queue",))


def listed_queues(broker: Broker) -> LabelledSources[QueueReading]:
    """Yield the first queues by name."""
    for queue in islice(broker.queues.all(), LISTED_MAX):
        yield (queue.name,), QueueReading(queue, queue.counts())
