"""Writing down what was acknowledged, before whoever appended is told.

A record is noted as the node keeps it, which is what was sent: its JSON is read back as the node
reads it. The id of its topic is the one that the client heard of last, at most a minute before.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from millstream.audit.acknowledgements.file import AcknowledgementFile
from millstream.clients.http.core.values import Placed
from millstream.errors import MillstreamError
from millstream.protocols.http.records import AppendRecord, record_of

_decoder = msgspec.json.Decoder(AppendRecord)


class AcknowledgementRecorder:
    """What a client notes its acknowledgements by. Threads may share it."""

    def __init__(self, file: AcknowledgementFile) -> None:
        self._file = file

    def note(
        self,
        topic: str,
        topic_id: uuid.UUID | None,
        rows: Sequence[bytes],
        placed: Sequence[Placed],
    ) -> None:
        """Note records, given by their JSON, and where they went; raises `StorageFailed`."""
        lines = []
        for row, where in zip(rows, placed, strict=True):
            record = record_of(_decoder.decode(row), None)
            lines.append(
                self._file.acknowledgement(
                    topic,
                    where.partition,
                    where.offset,
                    value=record.value,
                    key=record.key,
                    headers=record.headers,
                    timestamp_ms=record.timestamp_ms,
                    topic_id=topic_id,
                )
            )
        try:
            self._file.write(*lines)
        except MillstreamError as error:
            error.add_note(f"the {len(lines)} records were appended")
            raise
