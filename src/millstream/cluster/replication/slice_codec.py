"""Slices of a log as they travel between peers.

Most of a slice has fields of its own in `PeerFetchResponsePartition`. The others describe the
segment and are few bytes, in the field `seal`:

     0         1            5                13              21
    +---------+------------+----------------+---------------+
    | version | generation | created_age_ms | sealed_age_ms |
    |    1    |            |                |               |
    +---------+------------+----------------+---------------+
"""

from __future__ import annotations

import struct

from millstream.errors import MalformedRequest
from millstream.protocols.peer.messages.peer_fetch import PeerFetchResponsePartition
from millstream.records.batch import decode_header
from millstream.storage.segment.replica_slice import ReplicaSlice

_SEGMENT = struct.Struct(">BIQQ")
_VERSION = 1


def encode_segment_info(source: ReplicaSlice) -> bytes:
    """Return what describes the segment of a slice."""
    return _SEGMENT.pack(
        _VERSION, source.generation, max(source.created_age_ms, 0), max(source.sealed_age_ms, 0)
    )


def decode_slice(response: PeerFetchResponsePartition, offset: int) -> ReplicaSlice:
    """Return the slice of a response to a fetch at `offset`; its batches are not checked yet."""
    info = response.seal
    if info is None or len(info) != _SEGMENT.size:
        size = 0 if info is None else len(info)
        raise MalformedRequest(
            f"description of a segment must have {_SEGMENT.size} bytes, got {size}"
        )
    version, generation, created_age_ms, sealed_age_ms = _SEGMENT.unpack(info)
    if version != _VERSION:
        raise MalformedRequest(f"description of a segment has version {version}, not {_VERSION}")
    batches = response.batches or b""
    assert isinstance(batches, bytes | memoryview), "as they were decoded"
    data = memoryview(batches)
    epoch, next_offset = response.leader_epoch, offset
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        if position == 0:
            offset, epoch = header.base_offset, header.leader_epoch
        next_offset = header.next_offset
        position += header.size
    return ReplicaSlice(
        leader_epoch=epoch,
        segment=response.segment_base,
        generation=generation,
        position=response.position,
        offset=offset,
        next_offset=next_offset,
        data=data,
        is_last_of_segment=response.is_last_of_segment,
        created_age_ms=created_age_ms,
        sealed_age_ms=sealed_age_ms,
    )
