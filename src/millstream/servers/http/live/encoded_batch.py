r"""A burst: what is new in a partition, encoded once for everyone who watches it.

{"topic":"orders","partition":0,"records":[{"offset":40,...},{"offset":41,...}],"next":42,"head":42}
\______________ opening _________________/\____________ records ____________/\_____ ending _____/
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.protocols.http.records import origin_of, record_json
from millstream.records.record import StoredRecord


def event_prefix(topic: str, index: int) -> bytes:
    """Return what the data of every `records` event of a partition begins with."""
    return b'{"topic":%s,"partition":%d,"records":[' % (msgspec.json.encode(topic), index)


class EncodedBatch:
    """Records of a partition that follow each other, as JSON.

    It covers all offsets from `first_offset` on and before `next_offset`, though there may be a
    record for few of them or for none: the others were deleted, aborted, or are no records.
    """

    def __init__(
        self,
        opening: bytes,
        first_offset: int,
        next_offset: int,
        head: int,
        records: Sequence[StoredRecord],
    ) -> None:
        pieces = [record_json(record) for record in records]
        self.opening = opening
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.head = head
        self.records = b",".join(pieces)
        """With a comma between two of them."""
        self.data = self._data(self.records)
        """The whole event, for all who want every record."""
        self.size = len(self.data)
        origins = [origin_of(record) if record.headers else None for record in records]
        self._pieces = list(zip(origins, pieces, strict=True)) if any(origins) else []
        self._without: dict[bytes, bytes] = {}

    def records_without(self, excluded: bytes | None) -> bytes:
        """Return the records, save those of one origin; worked out once for each origin."""
        if excluded is None or not self._pieces:
            return self.records
        found = self._without.get(excluded)
        if found is None:
            found = b",".join([piece for origin, piece in self._pieces if origin != excluded])
            self._without[excluded] = found
        return found

    def _data(self, records: bytes) -> bytes:
        return b'%s%s],"next":%d,"head":%d}' % (
            self.opening,
            records,
            self.next_offset,
            self.head,
        )

    def data_of(self, records: bytes) -> bytes:
        """Return the event that ends with this burst, for `records` out of it and those before."""
        return self.data if records is self.records else self._data(records)


def coalesce(bursts: Sequence[EncodedBatch], excluded: bytes | None) -> bytes | None:
    """Return bursts that follow each other as the data of one event; `None` where it has none.

    Where it is one burst, and nothing of it is left out, these are the same bytes for everyone.
    """
    if len(bursts) == 1 and excluded is None:
        return bursts[0].data if bursts[0].records else None
    parts = [part for part in (one.records_without(excluded) for one in bursts) if part]
    if not parts:
        return None
    return bursts[-1].data_of(parts[0] if len(parts) == 1 else b",".join(parts))
