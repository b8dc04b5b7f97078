"""Writes acknowledged records to a file before the caller is told.

A record is written as the node stores it: its JSON is decoded in the same way. The topic id is the
last one that the client was told, at most a minute old.
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
    """Writes the acknowledgements of a client. Thread-safe."""

    def __init__(self, file: AcknowledgementFile) -> None:
        self._file = file

    def record(
        self,
        topic: str,
        topic_id: uuid.UUID | None,
        rows: Sequence[bytes],
        placed: Sequence[Placed],
    ) -> None:
        """Write records, given as JSON, with their positions. Raises `StorageFailed`."""
        lines = []
        for row, place in zip(rows, placed, strict=True):
            decoded = record_of(_decoder.decode(row), None)
            lines.append(
                self._file.acknowledgement(
                    topic,
                    place.partition,
                    place.offset,
                    value=decoded.value,
                    key=decoded.key,
                    headers=decoded.headers,
                    timestamp_ms=decoded.timestamp_ms,
                    topic_id=topic_id,
                )
            )
        try:
            self._file.write(*lines)
        except MillstreamError as error:
            error.add_note(f"the {len(lines)} records were appended")
            raise
