"""Search for the records that a deletion by key matches.

A batch with a correct checksum whose records cannot be decoded was malformed by its producer. It
has no readable keys, so nothing in it matches.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from millstream.errors import CorruptBatch
from millstream.records.batch import HEADER_SIZE, Bytes
from millstream.records.iterate import records_of
from millstream.records.opened_batch import LocatedBatch, OpenedBatch, open_groups, record_count
from millstream.records.varint import read_varint

KERNEL_RECORDS_MIN = 4096
"""With fewer, plain Python is done before the compiler would be loaded."""

_NEEDLES_MAX = 4
"""Searching a body for this many patterns takes less time than decoding its records."""

_NONE = -1


class KeyMatch(NamedTuple):
    """A key, or a prefix of keys."""

    pattern: bytes
    is_prefix: bool

    def matches(self, key: bytes | None) -> bool:
        """Whether a record with this key matches; one without a key never does."""
        if key is None:
            return False
        return key.startswith(self.pattern) if self.is_prefix else key == self.pattern


class KeyMatcher:
    """Many matches, each with an upper offset limit, as one.

    All patterns are in one sorted list. The last one that is not greater than a key is the key
    itself, or shares every pattern that is a prefix of the key. So each pattern has a *parent*, the
    longest other prefix pattern that it starts with, and holds the greatest limit of itself and its
    ancestors.
    """

    __slots__ = ("_needles", "keys", "parents", "patterns", "prefixes")

    def __init__(self, limits: Mapping[KeyMatch, int]) -> None:
        by_pattern: dict[bytes, tuple[int, int]] = {}
        for match, before in limits.items():
            key, prefix = by_pattern.get(match.pattern, (0, 0))
            by_pattern[match.pattern] = (key, before) if match.is_prefix else (before, prefix)
        self.patterns = sorted(by_pattern)
        self.keys = [by_pattern[pattern][0] for pattern in self.patterns]
        """By pattern, the limit for records with exactly this key; 0 if there is none."""
        self.prefixes = [by_pattern[pattern][1] for pattern in self.patterns]
        """By pattern, the limit for records whose key starts with it; 0 if there is none."""
        self.parents: list[int] = []
        self._needles = self.patterns if len(self.patterns) <= _NEEDLES_MAX else None
        # The prefix patterns that the current pattern starts with, shortest first. In sorted order
        # a pattern follows directly on those that it starts with, so a stack is enough.
        above: list[int] = []
        for number, pattern in enumerate(self.patterns):
            while above and not pattern.startswith(self.patterns[above[-1]]):
                above.pop()
            self.parents.append(above[-1] if above else _NONE)
            if self.prefixes[number]:
                above_limit = self.prefixes[above[-1]] if above else 0
                self.prefixes[number] = max(self.prefixes[number], above_limit)
                above.append(number)

    def before(self, key: bytes | None) -> int:
        """Return the offset before which records with this key match; 0 if none does."""
        if key is None:
            return 0
        number = bisect_right(self.patterns, key) - 1
        is_key = number >= 0 and self.patterns[number] == key
        limit = self.keys[number] if is_key else 0
        while number >= 0:
            if self.prefixes[number] and key.startswith(self.patterns[number]):
                return max(limit, self.prefixes[number])
            number = self.parents[number]
        return limit

    def may_match(self, records: Bytes) -> bool:
        """Whether any pattern occurs in these bytes; always true if that is slow to find out."""
        if self._needles is None:
            return True
        searched = bytes(records)
        return any(needle in searched for needle in self._needles)


class MatchedRecords(NamedTuple):
    """Records that matched."""

    offsets: array[int]
    """Ascending."""
    bytes: int
    """Their size in the log. In a compressed batch it is their share of its compressed size."""


KeyMatchSearch: TypeAlias = Callable[
    [Bytes, Sequence[OpenedBatch], KeyMatcher, int], MatchedRecords
]


def find_matched_records(
    data: Bytes, batches: Iterable[LocatedBatch], matcher: KeyMatcher, *, start: int = 0
) -> MatchedRecords:
    """Return the records from offset `start` on that `matcher` matches.

    The batches are in `data`, in log order; the caller verifies their checksums. A few MB are
    opened at a time, or one larger batch.
    """
    offsets, size = array("q"), 0
    data_batches = (batch for batch in batches if not batch.header.is_control)
    for group in open_groups(data, data_batches):
        candidates = [opened for opened in group if matcher.may_match(opened.records)]
        is_large = record_count(candidates) >= KERNEL_RECORDS_MIN
        find = _compiled() if is_large else find_matched_python
        matches = find(data, candidates, matcher, start)
        offsets.extend(matches.offsets)
        size += matches.bytes
    return MatchedRecords(offsets, size)


def find_matched_python(
    _: Bytes, group: Sequence[OpenedBatch], matcher: KeyMatcher, start: int
) -> MatchedRecords:
    """Reference in plain Python for `matcher_kernels.find`."""
    offsets, size = array("q"), 0
    for opened in group:
        try:
            records = list(records_of(opened.header, opened.records))
        except CorruptBatch:
            continue
        flags = [start <= record.offset < matcher.before(record.key) for record in records]
        if any(flags):
            offsets.extend(
                record.offset for record, is_match in zip(records, flags, strict=True) if is_match
            )
            size += _stored_size(opened, flags)
    return MatchedRecords(offsets, size)


def _stored_size(opened: OpenedBatch, flags: Sequence[bool]) -> int:
    """Return the size of the flagged records in the log. All records must be well-formed."""
    size, position = 0, 0
    for is_match in flags:
        record_size, start = read_varint(opened.records, position)
        if is_match:
            size += start + record_size - position
        position = start + record_size
    return size * (opened.header.size - HEADER_SIZE) // len(opened.records)


def _compiled() -> KeyMatchSearch:
    """Return the compiled search, or the plain one without Numba."""
    try:
        from millstream.records.filter.keys.matcher_kernels import find  # noqa: PLC0415 - an extra, slow to load.
    except ImportError:
        return find_matched_python
    return find
