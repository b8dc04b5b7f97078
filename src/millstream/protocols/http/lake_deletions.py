"""Deletions by key that the lake table of a topic must follow, as records of another topic.

A node appends one before it deletes from the log, so a deletion is known to the lake also if its
records have left the log. The value of a record is JSON.
"""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from millstream.errors import CorruptData


class LakeDeletion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Delete the records of a key, or of keys with a prefix, before an offset of one partition."""

    topic_id: uuid.UUID
    partition: Annotated[int, Meta(ge=0)]
    before: Annotated[int, Meta(ge=0)]
    key: bytes | None = None
    key_prefix: bytes | None = None


def encode_lake_deletion(deletion: LakeDeletion) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(deletion)


def decode_lake_deletion(value: bytes | None) -> LakeDeletion:
    """Return the deletion in a record; raises `CorruptData` if it is none."""
    try:
        deletion = msgspec.json.decode(value or b"", type=LakeDeletion)
    except msgspec.DecodeError as error:
        raise CorruptData(
            f"{(value or b'')[:60]!r} is not a deletion from a lake: {error}"
        ) from None
    if (deletion.key is None) == (not deletion.key_prefix):
        raise CorruptData("a deletion from a lake must have either a key or a prefix")
    return deletion
