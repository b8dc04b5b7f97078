"""Answers of a partition, as plain values: what was appended, read or found."""

from __future__ import annotations

from typing import NamedTuple

from millstream.records.batch import split
from millstream.storage.append import Appended

__all__ = [
    "Aborted",
    "Appended",
    "Fetched",
    "Found",
    "ProducerView",
    "Stamped",
    "append_time_of",
    "cut_at",
]


class Stamped(Appended):
    """An `Appended` of a topic that dates its records itself."""

    log_append_time_ms: int

    @classmethod
    def of(cls, appended: Appended, log_append_time_ms: int) -> Stamped:
        """Return the same with the time that its records were dated."""
        stamped = cls(*appended)
        stamped.log_append_time_ms = log_append_time_ms
        return stamped


def append_time_of(appended: Appended) -> int:
    """When the broker dated the batch, in ms since 1970; -1 where producers date their records."""
    return appended.log_append_time_ms if isinstance(appended, Stamped) else -1


class Aborted(NamedTuple):
    """A transaction that a reader of committed records has to leave out."""

    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    """Whole batches in the order of the log, as they lie there."""

    parts: tuple[memoryview, ...]
    """At least one for each segment that was read; bytes of a sealed one are not copied."""
    next_offset: int
    """Where to read on; the asked offset itself where nothing was there."""
    size: int
    """Bytes of all parts together."""
    aborted: tuple[Aborted, ...] = ()
    """Aborted transactions with records among these; empty for readers of everything."""


class Found(NamedTuple):
    """The answer to a question about a time or an end of the log."""

    offset: int
    timestamp_ms: int
    """-1 where the question was not about a record."""
    leader_epoch: int


class ProducerView(NamedTuple):
    """What a partition remembers of a producer, for those who administrate."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1 where the present epoch has written nothing yet."""
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int
    """-1 where no transaction is open here."""


def cut_at(data: memoryview, end_offset: int) -> tuple[memoryview, int]:
    """Return the batches of `data` before `end_offset`, which lies between two of them."""
    size, next_offset = 0, end_offset
    for header, batch in split(data):
        if header.base_offset >= end_offset:
            break
        size += len(batch)
        next_offset = header.next_offset
    return data[:size], next_offset
