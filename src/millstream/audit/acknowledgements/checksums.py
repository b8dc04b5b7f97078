"""What is remembered of a record instead of its bytes: sums of 64 bits, by XXH3.

    key      the sum of its bytes; nothing where there is no key
    value    the same
    headers  the sum of all headers, laid out one behind the other as they were sent:

             +-------------+-----------+--------------+-------------+
             | name length | name      | value length | value       |   for each header
             | 4           | UTF-8     | 4            |             |
             +-------------+-----------+--------------+-------------+

             Lengths are big-endian; a header without a value has the length ff ff ff ff. A record
             without headers has the sum of no bytes.

The seed is 0. Sums find what a disk or a bug changes; they are no defence against someone who wants
to deceive you.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

_LENGTH = struct.Struct(">I")
_NO_VALUE = b"\xff\xff\xff\xff"

NO_HEADERS_CHECKSUM: int = xxh3_64_intdigest(b"")


def bytes_checksum(data: bytes | None) -> int | None:
    """Return the sum of a key or a value; nothing where there is none."""
    return None if data is None else xxh3_64_intdigest(data)


def headers_checksum(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the sum of the headers of a record, in the order in which they were sent."""
    parts: list[bytes] = []
    for name, value in headers:
        text = name.encode()
        parts += (_LENGTH.pack(len(text)), text)
        parts += (_NO_VALUE,) if value is None else (_LENGTH.pack(len(value)), value)
    found: int = xxh3_64_intdigest(b"".join(parts)) if parts else NO_HEADERS_CHECKSUM
    return found
