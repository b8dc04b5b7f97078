"""Writer of dead letters to their topic.

A dead letter is durable before the rows around it count as read. A task that is repeated writes its
dead letters again, so one may occur twice: its header `millstream.origin` identifies the record.
"""

from __future__ import annotations

import pyarrow as pa

from millstream.clients.kafka.client import KafkaClient
from millstream.formats.dead_letters import COLUMNS
from millstream.spark.write.row_sender import RowSender

DEAD_LETTER_COLUMNS = ("offset", *COLUMNS)
"""Columns to decode of records that may become dead letters."""

_TIMEOUT_MS = 60_000  # Of a transaction, which this producer does not use.


def send(node: KafkaClient, topic: str, letters: pa.RecordBatch) -> None:
    """Write dead letters to a topic, and return when they are durable."""
    sender = RowSender(node, None, timeout_ms=_TIMEOUT_MS)
    sender.send(topic, letters)
    sender.finish()
