"""Sending dead letters: records that could not be read, to the topic that was named for them.

A letter is safe before the rows around it count as read. A task that is repeated sends its letters
again, so a letter may come twice: its header `millstream.origin` says which record it is.
"""

from __future__ import annotations

import pyarrow as pa

from millstream.client.node import Node
from millstream.spark.formats.dead_letters import COLUMNS
from millstream.spark.sending import Sender

DEAD_LETTER_COLUMNS = ("offset", *COLUMNS)
"""What has to be decoded of records that may become letters."""

_TIMEOUT_MS = 60_000  # Of transactions, of which there are none.


def send(node: Node, topic: str, letters: pa.RecordBatch) -> None:
    """Write letters to a topic; they are safe when this returns."""
    sender = Sender(node, None, timeout_ms=_TIMEOUT_MS)
    sender.send(topic, letters)
    sender.finish()
