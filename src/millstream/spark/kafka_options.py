"""Options of Spark's Kafka connector that this source does not have, and what to use instead.

Options that it has under the same or another name are aliases in `options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

IGNORED = frozenset(
    {
        "groupidprefix",
        "kafka.group.id",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "kafka.acks",
        "kafka.enable.idempotence",
        "kafka.linger.ms",
        "kafka.buffer.memory",
        "kafka.retries",
        "kafka.max.in.flight.requests.per.connection",
    }
)
"""Options that need no other: reads use no group, requests are retried until `timeoutMs`, and
writes are idempotent, of acks=all and gathered in memory. Names in lower case."""

_PEM = "use ssl.ca.location, ssl.certificate.location and ssl.key.location, with PEM files"

INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "kafkaconsumer.polltimeoutms": "use timeoutMs",
        "kafka.request.timeout.ms": "use timeoutMs",
        "kafka.delivery.timeout.ms": "use timeoutMs",
        "kafka.default.api.timeout.ms": "use timeoutMs",
        "maxrecordsperpartition": "use partitionBytes, the size of a task in bytes",
        "minoffsetspertrigger": "use trigger(processingTime=...), which waits for more records",
        "maxtriggerdelay": "use trigger(processingTime=...), which waits for more records",
        "startingoffsetsbytimestampstrategy": (
            "leave it out: a partition without a record of that time is read from its end"
        ),
        "kafka.auto.offset.reset": "use startingOffsets",
        "kafka.ssl.truststore.password": _PEM,
        "kafka.ssl.truststore.type": _PEM,
        "kafka.ssl.keystore.location": _PEM,
        "kafka.ssl.keystore.password": _PEM,
        "kafka.ssl.keystore.type": _PEM,
        "kafka.ssl.key.password": _PEM,
        "kafka.batch.size": "use batchBytes",
        "kafka.max.request.size": "use batchBytes",
        "kafka.transactional.id": "use jobId, or the checkpoint of a stream",
        "kafka.transaction.timeout.ms": "use transactionTimeoutMs",
        "kafka.max.poll.records": "use maxRecordsPerTrigger or partitionBytes",
        "kafka.fetch.max.bytes": "use partitionBytes",
        "kafka.max.partition.fetch.bytes": "use partitionBytes",
    }
)
"""What to do instead, by option in lower case."""

OTHERS = "leave it out: settings of Kafka's Java client have no effect here"
"""The same for all others that begin with `kafka.`."""


def instead_of(name: str) -> str | None:
    """Return what to use instead of an option of the connector; `None` for any other name."""
    lowered = name.lower()
    return INSTEAD.get(lowered) or (OTHERS if lowered.startswith("kafka.") else None)
