"""Which internal partition coordinates an id.

    groups          crc32(id) modulo the number of partitions
    transactions    the same, of the id without the numbers at its end:

                    spark-query/2b7c           the publisher  ┐
                    spark-query/2b7c/9/0/0     its first task ├─ all hash as `spark-query/2b7c`
                    spark-query/2b7c/9/12/1    another task   ┘

A publication commits the transactions of one publisher by one put, so their ids must be in the
partition of the publisher. Its tasks use the id `<publisher>/<run>/<task>/<attempt>`; therefore all
segments at the end of an id that are numbers are left out. This holds for every publisher, also for
one whose own name ends with a number.

The hashes decide where state is stored, so they never change: the checksum is CRC-32 as in zlib, of
the id in UTF-8. Python's `hash` would differ from process to process.
"""

from __future__ import annotations

import re
import zlib

_NUMBERS = re.compile(r"(?:/[0-9]+)+\Z")


def index_of_id(name: str, count: int) -> int:
    """Return which of `count` partitions an id belongs to."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % count


def index_of_group(group_id: str, count: int) -> int:
    """Return which of `count` partitions coordinates a group."""
    return index_of_id(group_id, count)


def index_of_transactional_id(transactional_id: str, count: int) -> int:
    """Return which of `count` partitions coordinates a transactional id or a publisher."""
    return index_of_id(publisher_part(transactional_id), count)


def publisher_part(transactional_id: str) -> str:
    """Return the part of a transactional id that its publisher has in common with it."""
    return _NUMBERS.sub("", transactional_id)
