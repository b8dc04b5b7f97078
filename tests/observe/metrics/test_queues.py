"""Metrics of queues: contents and operations, by queue name."""

from __future__ import annotations

import pytest

from millstream.broker.broker import Broker
from millstream.broker.queues.values import QueueChanges
from millstream.errors import StaleReceipt
from millstream.observe.metrics.queues import QUEUES, listed_queues
from millstream.records.record import Record
from millstream.testing import ManualClock

from .test_broker import with_broker
from .test_metric import parsed


@with_broker
async def test_each_queue_tells_where_its_jobs_are(broker: Broker, clock: ManualClock) -> None:
    queue, _ = await broker.queues.put("mail", QueueChanges(lease_ms=1000))
    await broker.queues.put("other", QueueChanges())
    await broker.appends.append(broker.topics.get("mail"), [Record(b"%d" % n) for n in range(8)])
    jobs = (await queue.claim(max_jobs=5)).jobs
    await queue.ack([jobs[0].receipt])
    await queue.nack([jobs[1].receipt], delay_ms=60_000)
    await queue.extend([jobs[2].receipt], lease_ms=60_000)
    with pytest.raises(StaleReceipt):
        await queue.ack([jobs[1].receipt])
    await broker.topics.partition("mail", 0).delete_before(1)
    await broker.topics.partition("mail", 0).delete_before(2)
    clock.advance(1.0)
    found = parsed("".join(QUEUES.text(listed_queues(broker))))
    told = {
        key[0].removeprefix("millstream_queue_"): v for key, v in found.items() if "mail" in key
    }
    states = {
        key[2]: value
        for key, value in found.items()
        if key[:2] == ("millstream_queue_jobs", "mail")
    }
    assert states == {"ready": 5, "leased": 1, "delayed": 0}
    del told["jobs"]
    assert told == {
        "acked_jobs_total": 1,
        "damaged_batches_total": 0,
        "released_jobs_total": 0,
        "dead_jobs_total": 0,
        "removed_jobs_total": 1,
        "delivered_jobs_total": 5,
        "claims_total": 1,
        "nacked_jobs_total": 1,
        "extended_leases_total": 1,
        "expired_leases_total": 2,
        "stale_receipts_total": 1,
    }
    assert found["millstream_queue_jobs", "other", "ready"] == 0
