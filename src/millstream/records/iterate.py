"""Decoder from a batch to records, in plain Python: the reference for the kernels.

`build.py` shows the layout of a record. Every number, length and count is checked, and bytes left
over are an error. The caller verifies the checksum, by `check_batch` or with `check` of
`read_all`: some callers know already that the bytes are intact.
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
    """Return all records of one batch, or raise `CorruptBatch`.

    The markers of a control batch are returned like records; skip such a batch by its header.
    """
    header = decode_header(batch)
    return list(records_of(header, open_body(header, batch, size_max=size_max)))


def read_all(
    data: Bytes, *, with_control: bool = False, check: bool = True, size_max: int = BODY_SIZE_MAX
) -> Iterator[StoredRecord]:
    """Yield the records of all batches in `data`, without those of control batches by default.

    Yields as many records as can be decoded before it raises `CorruptBatch`. `check` verifies the
    checksum of each batch.
    """
    for body in open_bodies(data, check=check, size_max=size_max):
        if with_control or not body.header.is_control:
            yield from records_of(body.header, body.records)


def first_offset_at(
    batch: Bytes, timestamp_ms: int, *, size_max: int = BODY_SIZE_MAX
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record with timestamp `timestamp_ms` or later."""
    header = decode_header(batch)
    if header.max_timestamp < timestamp_ms:
        return None
    for record in records_of(header, open_body(header, batch, size_max=size_max)):
        if record.timestamp_ms >= timestamp_ms:
            return record.offset, record.timestamp_ms
    return None


def records_of(header: BatchHeader, body: Bytes) -> Iterator[StoredRecord]:
    """Yield the records of an opened batch; raise `CorruptBatch` at the first malformed one."""
    data = bytes(body)
    position, last_delta = 0, -1
    for _ in range(header.record_count):
        size, start = read_varint(data, position)
        position = start + size
        if size < 0 or position > len(data):
            raise CorruptBatch(
                f"record must have {size} bytes, as its length field says, got {len(data) - start}"
            )
        record = _record(header, data[start:position], last_delta)
        last_delta = record.offset - header.base_offset
        yield record
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last record")


def _record(header: BatchHeader, data: bytes, last_delta: int) -> StoredRecord:
    timestamp_delta, position = read_varlong(data, 1)  # The first byte has no meaning yet.
    offset_delta, position = read_varint(data, position)
    if not last_delta < offset_delta <= header.last_offset_delta:
        raise CorruptBatch(
            f"offset delta must be between {last_delta + 1} and {header.last_offset_delta},"
            f" got {offset_delta}"
        )
    key, position = _read_bytes(data, position)
    value, position = _read_bytes(data, position)
    headers, position = _read_headers(data, position)
    if position != len(data):
        raise CorruptBatch(
            f"fields of the record must end at byte {len(data)}, as its length field says,"
            f" got {position}"
        )
    timestamp = _timestamp(header, timestamp_delta)
    return StoredRecord(header.base_offset + offset_delta, timestamp, key, value, headers)


def _timestamp(header: BatchHeader, delta: int) -> int:
    if header.is_log_append_time:
        return header.max_timestamp
    if (timestamp := header.base_timestamp + delta) not in _INT64:
        raise CorruptBatch(f"timestamp {timestamp} does not fit into 64 bits")
    return timestamp


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, start = read_varint(data, position)
    if size == -1:
        return None, start
    end = start + size
    if size < 0 or end > len(data):
        raise CorruptBatch(
            f"field must have {size} bytes, as its length says, got {len(data) - start}"
        )
    return data[start:end], end


def _read_headers(data: bytes, position: int) -> tuple[tuple[Header, ...], int]:
    count, position = read_varint(data, position)
    if count == 0:
        return (), position
    if not 0 < count <= (len(data) - position) // 2:
        raise CorruptBatch(f"{count} headers cannot fit into {len(data) - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        header, position = _read_header(data, position)
        headers.append(header)
    return tuple(headers), position


def _read_header(data: bytes, position: int) -> tuple[Header, int]:
    """Decode one header; in a key that is not UTF-8, replace the bad bytes, as Java's client does.

    Refusing it would let one careless producer write a batch that nobody can read.
    """
    key, position = _read_bytes(data, position)
    if key is None:
        raise CorruptBatch("header has no key")
    value, position = _read_bytes(data, position)
    return (key.decode(errors="replace"), value), position
