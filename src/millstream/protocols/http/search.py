"""Messages about searching records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

from millstream.protocols.http.records import (
    TIMESTAMP_MAX,
    HeaderValue,
    PartitionIndex,
    record_json,
)
from millstream.protocols.http.values import Text
from millstream.records.record import StoredRecord

FOUND_MAX = 1_000
"""Records in one response."""

TEXT_LENGTH_MAX = 1_000


class SearchQuery(Struct, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """The records to find. All given conditions have to be met."""

    key: (
        Annotated[str, Meta(max_length=TEXT_LENGTH_MAX, description="The key, exactly.")] | None
    ) = None
    key_prefix: (
        Annotated[str, Meta(max_length=TEXT_LENGTH_MAX, description="The beginning of the key.")]
        | None
    ) = None
    text: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=TEXT_LENGTH_MAX,
                description="Text in the key, the value or a header, byte by byte.",
            ),
        ]
        | None
    ) = None
    field: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=TEXT_LENGTH_MAX,
                description="Path of a field of the value: `customer.country`, or a JSON Pointer,"
                " `/customer/country`. A number is an index of a list.",
            ),
        ]
        | None
    ) = None
    value: (
        Annotated[
            str,
            Meta(
                max_length=TEXT_LENGTH_MAX,
                description="Value of the field: its text, or a number, `true`, `false`, `null`."
                " Without it, the field only has to exist.",
            ),
        ]
        | None
    ) = None
    from_: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=TIMESTAMP_MAX,
                description="Begin with the first record at or after this time, in milliseconds"
                " since 1970.",
            ),
        ]
        | None
    ) = None
    to: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=TIMESTAMP_MAX,
                description="End before the first record at or after this time.",
            ),
        ]
        | None
    ) = None
    partition: PartitionIndex | None = None
    after: Annotated[
        str,
        Meta(
            pattern="^([0-9]{1,10}:[0-9]{1,19})?$",
            description="`next` of the previous response, with the same conditions.",
        ),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=FOUND_MAX, description="Maximum number of records.")] = 100


class FoundRecordShape(Struct, kw_only=True):
    """A record that was found."""

    partition: int
    offset: int
    timestamp: int
    key: Text | None
    value: Raw
    headers: dict[str, HeaderValue]
    node: str | UnsetType = msgspec.UNSET


class SearchAnswer(Struct, kw_only=True):
    """Records that match, by partition and offset, and how far the search came."""

    records: list[FoundRecordShape]
    next: str | None
    """Pass as `after` to continue; null if everything was searched. There may be more though this
    response has no record."""
    scanned: int
    """Number of records that this request looked at."""
    remaining: int
    """Number of offsets that are left to search, at most."""


def found_json(partition: int, record: StoredRecord) -> bytes:
    """Return a record as the JSON of a `FoundRecordShape`."""
    return b'{"partition":%d,%s' % (partition, record_json(record)[1:])


def search_json(
    records: Iterable[bytes], *, after: str | None, scanned: int, remaining: int
) -> bytes:
    """Return a `SearchAnswer` of encoded records."""
    return b'{"records":[%s],"next":%s,"scanned":%d,"remaining":%d}' % (
        b",".join(records),
        msgspec.json.encode(after),
        scanned,
        remaining,
    )
