"""What members of classic groups were given, from bytes that clients made."""

from __future__ import annotations

import struct

import pytest

from millstream.protocols.kafka.assignment import assigned_partitions


def assignment(*topics: tuple[str, tuple[int, ...]], version: int = 3, rest: bytes = b"") -> bytes:
    data = struct.pack(">hi", version, len(topics))
    for name, partitions in topics:
        text = name.encode()
        data += struct.pack(">h", len(text)) + text
        data += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return data + rest


WHOLE = assignment(("orders", (0, 2)), ("mail", (1,)))


def test_partitions_are_read_topic_by_topic() -> None:
    assert assigned_partitions(WHOLE) == [("orders", 0), ("orders", 2), ("mail", 1)]


@pytest.mark.parametrize("version", [0, 1, 3, 99])
def test_all_versions_begin_alike_and_user_data_is_left_alone(version: int) -> None:
    data = assignment(("orders", (7,)), version=version, rest=b"\x00\x00\x00\x02xy")
    assert assigned_partitions(data) == [("orders", 7)]


def test_a_member_without_a_share_has_nothing() -> None:
    assert assigned_partitions(b"") == []
    assert assigned_partitions(assignment()) == []


@pytest.mark.parametrize("size", range(1, len(WHOLE)))
def test_a_share_that_is_cut_short_is_not_read(size: int) -> None:
    assert assigned_partitions(WHOLE[:size]) is None


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">hi", 0, 2**31 - 1),
        struct.pack(">hi", 0, -1),
        struct.pack(">hih", 0, 1, -1) + bytes(8),
        struct.pack(">hihi", 0, 1, 0, 2**31 - 1),
        struct.pack(">hihi", 0, 1, 0, -5),
        struct.pack(">hih", 0, 1, 1) + b"\xff" + struct.pack(">i", 0),
    ],
)
def test_what_claims_more_than_there_is_or_is_no_text_is_not_read(data: bytes) -> None:
    assert assigned_partitions(data) is None
