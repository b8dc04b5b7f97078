"""Sending dead letters: records that could not be read, to the topic that was named for them.

A letter is safe before the rows around it count as read. A task that is repeated sends its letters
again, so a letter may come twice: its header `millstream.origin` says which record it is.
"""

from __future__ import annotations

import pyarrow as pa

from millstream.clients.kafka.client import KafkaClient
from millstream.formats.dead_letters import COLUMNS
from millstream.spark.write.row_sender import RowSender

DEAD_LETTER_COLUMNS = ("offset", *COLUMNS)
"""What has to be decoded of records that may become letters."""

_TIMEOUT_MS = 60_000  # Of transactions, of which there are none.


def send(node: KafkaClient, topic: str, letters: pa.RecordBatch) -> None:
    """Write letters to a topic; they are safe when this returns."""
    sender = RowSender(node, None, timeout_ms=_TIMEOUT_MS)
    sender.send(topic, letters)
    sender.finish()
