"""Batch to records, in plain Python: the reference that the kernels are tested against.

A record's layout is drawn in `build.py`. Nothing in a batch is believed: every number, length and
count is checked, and what is left over is an error. The checksum is the caller's to verify, by
`check_batch` or by `check` of `read_all`, since some callers know the bytes to be sound.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, Bytes, decode_header
from millstream.records.body import open_bodies, open_body
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.record import Header, StoredRecord
from millstream.records.varint import read_varint, read_varlong

_INT64 = range(-(2**63), 2**63)


def read_records(batch: Bytes, *, size_max: int = BODY_SIZE_MAX) -> list[StoredRecord]:
    """Return the records of one whole batch, or of none: `CorruptBatch` says what is wrong.

    The markers of a control batch come back like records; skip the batch by its header.
    """
    header = decode_header(batch)
    return list(records_of(header, open_body(header, batch, size_max=size_max)))


def read_all(
    data: Bytes, *, with_control: bool = False, check: bool = True, size_max: int = BODY_SIZE_MAX
) -> Iterator[StoredRecord]:
    """Read batch after batch; control batches are left out unless asked for.

    Records come out as far as the data is sound. `check` verifies each batch's sum.
    """
    for body in open_bodies(data, check=check, size_max=size_max):
        if with_control or not body.header.is_control:
            yield from records_of(body.header, body.records)


def first_offset_at(
    batch: Bytes, timestamp_ms: int, *, size_max: int = BODY_SIZE_MAX
) -> tuple[int, int] | None:
    """Return offset and timestamp of the batch's first record dated `timestamp_ms` or later."""
    header = decode_header(batch)
    if header.max_timestamp < timestamp_ms:
        return None
    for record in records_of(header, open_body(header, batch, size_max=size_max)):
        if record.timestamp_ms >= timestamp_ms:
            return record.offset, record.timestamp_ms
    return None


def records_of(header: BatchHeader, body: Bytes) -> Iterator[StoredRecord]:
    """Yield the records of an opened batch, as far as they are sound."""
    data = bytes(body)
    position, last_delta = 0, -1
    for _ in range(header.record_count):
        size, start = read_varint(data, position)
        position = start + size
        if size < 0 or position > len(data):
            raise CorruptBatch(f"record claims {size} bytes, found {len(data) - start}")
        record = _record(header, data[start:position], last_delta)
        last_delta = record.offset - header.base_offset
        yield record
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last record")


def _record(header: BatchHeader, data: bytes, last_delta: int) -> StoredRecord:
    timestamp_delta, position = read_varlong(data, 1)  # The first byte has no meaning yet.
    offset_delta, position = read_varint(data, position)
    if not last_delta < offset_delta <= header.last_offset_delta:
        allowed = f"{last_delta + 1}-{header.last_offset_delta}"
        raise CorruptBatch(f"record has offset delta {offset_delta}, allowed is {allowed}")
    key, position = _read_bytes(data, position)
    value, position = _read_bytes(data, position)
    headers, position = _read_headers(data, position)
    if position != len(data):
        raise CorruptBatch(f"record claims {len(data)} bytes, its fields have {position}")
    timestamp = _timestamp(header, timestamp_delta)
    return StoredRecord(header.base_offset + offset_delta, timestamp, key, value, headers)


def _timestamp(header: BatchHeader, delta: int) -> int:
    if header.is_log_append_time:
        return header.max_timestamp
    if (timestamp := header.base_timestamp + delta) not in _INT64:
        raise CorruptBatch(f"timestamp {timestamp} has more than 64 bits")
    return timestamp


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, start = read_varint(data, position)
    if size == -1:
        return None, start
    end = start + size
    if size < 0 or end > len(data):
        raise CorruptBatch(f"field claims {size} bytes, found {len(data) - start}")
    return data[start:end], end


def _read_headers(data: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count == 0:
        return (), position
    if not 0 < count <= (len(data) - position) // 2:
        raise CorruptBatch(f"record claims {count} headers in {len(data) - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        header, position = _read_header(data, position)
        headers.append(header)
    return tuple(headers), position


def _read_header(data: bytes, position: int) -> tuple[Header, int]:
    """Read one header; a key that is not UTF-8 is mended, as Java's client does.

    Refusing it would let one careless producer make a batch that no one can read.
    """
    key, position = _read_bytes(data, position)
    if key is None:
        raise CorruptBatch("header has no key")
    value, position = _read_bytes(data, position)
    return (key.decode(errors="replace"), value), position
