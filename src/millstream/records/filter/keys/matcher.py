"""Which records a deletion by key hits.

A batch whose sum is right but whose records cannot be opened came so from its producer. It has no
keys that anyone could read, so nothing in it is hit.
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
"""Below this, plain Python is done before the compiler would have been loaded."""

_NEEDLES_MAX = 4
"""Searching a body for this many patterns takes less than reading its records."""

_NONE = -1


class KeyMatch(NamedTuple):
    """A key, or what the keys that are meant begin with."""

    pattern: bytes
    is_prefix: bool

    def hits(self, key: bytes | None) -> bool:
        """Whether a record with this key is meant; one without a key never is."""
        if key is None:
            return False
        return key.startswith(self.pattern) if self.is_prefix else key == self.pattern


class KeyMatcher:
    """Many matches as one, each with the offset before which it counts.

    All patterns stand in one sorted list. The last one that is not greater than a key is the key
    itself, or all patterns that the key begins with are what this one begins with too. So each
    pattern knows its *parent*, the longest other one that is a prefix and that it begins with, and
    has the greatest limit of itself and of all above it.
    """

    __slots__ = ("_needles", "keys", "parents", "patterns", "prefixes")

    def __init__(self, limits: Mapping[KeyMatch, int]) -> None:
        found: dict[bytes, tuple[int, int]] = {}
        for match, before in limits.items():
            key, prefix = found.get(match.pattern, (0, 0))
            found[match.pattern] = (key, before) if match.is_prefix else (before, prefix)
        self.patterns = sorted(found)
        self.keys = [found[pattern][0] for pattern in self.patterns]
        """By pattern, the limit for records with just this key; 0 where there is none."""
        self.prefixes = [found[pattern][1] for pattern in self.patterns]
        """By pattern, the limit for records whose key begins with it; 0 where there is none."""
        self.parents: list[int] = []
        self._needles = self.patterns if len(self.patterns) <= _NEEDLES_MAX else None
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
        """Return the offset before which records with this key are hit; 0 where none is."""
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

    def may_hit(self, records: Bytes) -> bool:
        """Whether any pattern stands anywhere in these bytes, if that is quick to find out."""
        if self._needles is None:
            return True
        searched = bytes(records)
        return any(needle in searched for needle in self._needles)


class MatchedRecords(NamedTuple):
    """Records that were hit."""

    offsets: array[int]
    """Rising."""
    bytes: int
    """What they take in the log. Of a packed batch it is their share of its packed size."""


KeyMatchSearch: TypeAlias = Callable[
    [Bytes, Sequence[OpenedBatch], KeyMatcher, int], MatchedRecords
]


def find_matched_records(
    data: Bytes, batches: Iterable[LocatedBatch], matcher: KeyMatcher, *, start: int = 0
) -> MatchedRecords:
    """Return the records from offset `start` on that `matcher` hits.

    The batches lie in `data` and come in the order of the log; their sums are the caller's to
    check. Some MB are opened at a time, or one larger batch.
    """
    offsets, size = array("q"), 0
    keyed = (placed for placed in batches if not placed.header.is_control)
    for group in open_groups(data, keyed):
        candidates = [opened for opened in group if matcher.may_hit(opened.records)]
        is_large = record_count(candidates) >= KERNEL_RECORDS_MIN
        find = _compiled() if is_large else find_matched_python
        hits = find(data, candidates, matcher, start)
        offsets.extend(hits.offsets)
        size += hits.bytes
    return MatchedRecords(offsets, size)


def find_matched_python(
    _: Bytes, group: Sequence[OpenedBatch], matcher: KeyMatcher, start: int
) -> MatchedRecords:
    """Do in plain Python what `match_kernels.find` does with kernels."""
    offsets, size = array("q"), 0
    for opened in group:
        try:
            records = list(records_of(opened.header, opened.records))
        except CorruptBatch:
            continue
        hit = [start <= record.offset < matcher.before(record.key) for record in records]
        if any(hit):
            offsets.extend(
                record.offset for record, is_hit in zip(records, hit, strict=True) if is_hit
            )
            size += _stored_size(opened, hit)
    return MatchedRecords(offsets, size)


def _stored_size(opened: OpenedBatch, hit: Sequence[bool]) -> int:
    """Add up what some of the records take, once all were found to be sound."""
    size, position = 0, 0
    for is_hit in hit:
        record_size, start = read_varint(opened.records, position)
        if is_hit:
            size += start + record_size - position
        position = start + record_size
    return size * (opened.header.size - HEADER_SIZE) // len(opened.records)


def _compiled() -> KeyMatchSearch:
    """Find the compiled search, or the plain one where Numba is missing."""
    try:
        from millstream.records.filter.keys.matcher_kernels import find  # noqa: PLC0415 - an extra, slow to load.
    except ImportError:
        return find_matched_python
    return find
