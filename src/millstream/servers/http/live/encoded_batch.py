r"""New records of a partition, encoded once for all watchers.

{"topic":"orders","partition":0,"records":[{"offset":40,...},{"offset":41,...}],"next":42,"head":42}
\______________ prefix __________________/\____________ records ____________/\_____ ending _____/
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.protocols.http.records import origin_of, record_json
from millstream.records.record import StoredRecord


def event_prefix(topic: str, index: int) -> bytes:
    """Return the beginning of the data of every `records` event of a partition."""
    return b'{"topic":%s,"partition":%d,"records":[' % (msgspec.json.encode(topic), index)


class EncodedBatch:
    """Consecutive records of a partition, as JSON.

    It covers all offsets from `first_offset` to before `next_offset`, though few or none of them
    may have a record: the others were deleted or aborted, or are not records.
    """

    def __init__(
        self,
        prefix: bytes,
        first_offset: int,
        next_offset: int,
        head: int,
        records: Sequence[StoredRecord],
    ) -> None:
        pieces = [record_json(record) for record in records]
        self.prefix = prefix
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.head = head
        self.records = b",".join(pieces)
        """Separated by commas."""
        self.data = self._data(self.records)
        """The whole event, for watchers without exclusions."""
        self.size = len(self.data)
        origins = [origin_of(record) if record.headers else None for record in records]
        self._pieces = list(zip(origins, pieces, strict=True)) if any(origins) else []
        self._without: dict[bytes, bytes] = {}

    def records_without(self, excluded: bytes | None) -> bytes:
        """Return the records without those of one origin; computed once for each origin."""
        if excluded is None or not self._pieces:
            return self.records
        records = self._without.get(excluded)
        if records is None:
            records = b",".join([piece for origin, piece in self._pieces if origin != excluded])
            self._without[excluded] = records
        return records

    def _data(self, records: bytes) -> bytes:
        return b'%s%s],"next":%d,"head":%d}' % (
            self.prefix,
            records,
            self.next_offset,
            self.head,
        )

    def data_of(self, records: bytes) -> bytes:
        """Return the event that ends with this batch, for `records` of it and of those before."""
        return self.data if records is self.records else self._data(records)


def coalesce(batches: Sequence[EncodedBatch], excluded: bytes | None) -> bytes | None:
    """Return consecutive batches as the data of one event; `None` if it has no records.

    For a single batch without exclusions, these are the same bytes for all watchers.
    """
    if len(batches) == 1 and excluded is None:
        return batches[0].data if batches[0].records else None
    parts = [part for part in (batch.records_without(excluded) for batch in batches) if part]
    if not parts:
        return None
    return batches[-1].data_of(parts[0] if len(parts) == 1 else b",".join(parts))
