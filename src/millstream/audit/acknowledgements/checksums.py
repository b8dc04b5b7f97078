"""Checksums that represent a record in an acknowledgement file: 64 bits, XXH3.

    key      checksum of its bytes; none if there is no key
    value    the same
    headers  checksum of all headers, concatenated in the order in which they were sent:

             +-------------+-----------+--------------+-------------+
             | name length | name      | value length | value       |   for each header
             | 4           | UTF-8     | 4            |             |
             +-------------+-----------+--------------+-------------+

             Lengths are big-endian; a header without a value has the length ff ff ff ff. A record
             without headers has the checksum of no bytes.

The seed is 0. The checksums detect changes by disks and bugs; they do not protect against
deliberate manipulation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

_LENGTH = struct.Struct(">I")
_NO_VALUE = b"\xff\xff\xff\xff"

NO_HEADERS_CHECKSUM: int = xxh3_64_intdigest(b"")


def bytes_checksum(data: bytes | None) -> int | None:
    """Return the checksum of a key or a value; `None` for `None`."""
    return None if data is None else xxh3_64_intdigest(data)


def headers_checksum(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the checksum of the headers of a record, in the order in which they were sent."""
    parts: list[bytes] = []
    for name, value in headers:
        text = name.encode()
        parts += (_LENGTH.pack(len(text)), text)
        parts += (_NO_VALUE,) if value is None else (_LENGTH.pack(len(value)), value)
    checksum: int = xxh3_64_intdigest(b"".join(parts)) if parts else NO_HEADERS_CHECKSUM
    return checksum
