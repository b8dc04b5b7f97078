r"""The assignment of a member of a classic group, as consumers encode it.

    version  int16
    count    int32, then for each topic:
               name        int16 length, UTF-8
               partitions  int32 count, int32 each
    user data, which is opaque

All versions begin in the same way. It comes from a client, so everything in it is checked.
"""

from __future__ import annotations

import struct

_VERSION_SIZE = 2
_TOPIC_SIZE_MIN = 6
"""Bytes of a topic with no name and no partitions."""


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]] | None:
    """Return the topics and partitions of an assignment; `None` if it cannot be decoded."""
    if not assignment:
        return []
    partitions_of_topics: list[tuple[str, int]] = []
    try:
        (count,) = struct.unpack_from(">i", assignment, _VERSION_SIZE)
        position = _VERSION_SIZE + 4
        if not 0 <= count <= (len(assignment) - position) // _TOPIC_SIZE_MIN:
            return None
        for _ in range(count):
            (size,) = struct.unpack_from(">h", assignment, position)
            name = assignment[position + 2 : position + 2 + size]
            if size < 0 or len(name) != size:
                return None
            topic = bytes(name).decode()
            position += 2 + size
            (partitions,) = struct.unpack_from(">i", assignment, position)
            position += 4
            if not 0 <= partitions <= (len(assignment) - position) // 4:
                return None
            numbers = struct.unpack_from(f">{partitions}i", assignment, position)
            position += 4 * partitions
            partitions_of_topics += [(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return None
    return partitions_of_topics
