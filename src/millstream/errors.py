"""Every error that Millstream raises, sorted by who has to act.

One root and a handful of one-line classes. Deep code raises one of these; each door translates
them once, in a table. A message says what was found and what is allowed.
"""

from __future__ import annotations

from typing import Any


class MillstreamError(Exception):
    """The root: catch this to catch all that Millstream raises on purpose."""


# The caller has to change the request.


class RequestError(MillstreamError):
    """The request cannot be met as it is; repeating it will not help."""


class InvalidConfig(RequestError):
    """A setting has a value that is not allowed."""


class InvalidName(RequestError):
    """A topic name or a partition number cannot be one."""


class InvalidBatch(RequestError):
    """The bytes handed in are not one whole, sound batch."""


class BatchTooLarge(RequestError):
    """A batch exceeds the limit of its log."""


class InvalidAddress(RequestError):
    """No batch starts at the given physical address."""


class UnknownLog(RequestError):
    """There is no such topic or partition."""


class OffsetOutOfRange(RequestError):
    """The offset lies before the first or after the last that can be read."""

    def __init__(self, offset: int, *, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{start}, {end}]")
        self.offset = offset
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[Any, ...]:
        return _out_of_range, (self.offset, self.start, self.end)


def _out_of_range(offset: int, start: int, end: int) -> OffsetOutOfRange:
    """Make the error anew in the process that it was sent to."""
    return OffsetOutOfRange(offset, start=start, end=end)


# The caller may wait and try again.


class Unavailable(MillstreamError):
    """Nothing was written; the same request may succeed later."""


class WouldBlock(Unavailable):
    """The append was not admitted: it would have to wait, and was told not to."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"append would block: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return WouldBlock, (self.reason,)


class DeadlineExceeded(Unavailable):
    """The append was not admitted within its deadline."""


class DiskFull(Unavailable):
    """The disk has no room. Reads go on; writes resume by themselves when space returns."""


# An operator has to act.


class LogOffline(MillstreamError):
    """The log takes no appends until it was closed, opened again and checked."""


class LogClosed(MillstreamError):
    """The log or its store was closed."""


class StoreLocked(MillstreamError):
    """Another process has this data directory open."""


class StorageFailed(MillstreamError):
    """The operating system failed a call on which the store depends."""


class UnknownFormat(MillstreamError):
    """A file is of a version that this release does not know; it was left untouched."""


# Data is damaged.


class CorruptData(MillstreamError):
    """Stored bytes are not what was written."""


class CorruptBatch(CorruptData):
    """A batch is cut short, fails its checksum or contradicts its neighbours."""


class CorruptFile(CorruptData):
    """An index, seal or description is damaged, or a segment lacks bytes that it must have."""
