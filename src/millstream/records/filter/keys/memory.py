"""The memory of a table of keys: slots that lead to entries.

    slot                                   0 where free; found by the lowest bits of the key's hash,
    +---+---------------+-----------+      or after those that are taken
    | 0 | tag           | place     |      tag: the highest bits of the hash
    |   |       23 bits |   40 bits |      place: of the entry, in words; 0 is none's
    +---+---------------+-----------+

    entry, in the arena; all words have 64 bits
    +---------------+----------+-------------------------------- - -
    | latest offset | key size | key, eight bytes a word, lowest first
    +---------------+----------+-------------------------------- - -

The tag spares most comparisons, but only equal bytes make equal keys. At most three quarters of the
slots are taken; then there are twice as many, and the entries stay where they are. The arena's
addresses are reserved at once, but only the words that were written take memory.

`table_kernels.py` has the compiled twin of all that is done with single keys here, and both may
work on the same memory in turn.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable
from typing import TypeAlias

from millstream.records.filter.keys.siphash import siphash
from millstream.records.kernels.dispatch import KernelDispatch

Words: TypeAlias = memoryview
Rehash: TypeAlias = Callable[["KeyMemory"], None]

NOT_FOUND = -1
POSITION_BITS = 40
TAG_SHIFT = 41
HEAD_WORDS = 2
FIRST_POSITION = 8
"""Where a cache line starts: entries of four words, as most are, then lie in one each."""

_POSITION_MASK = (1 << POSITION_BITS) - 1
_SLOTS_MIN = 64
_WORD_SIZE = 8
_UINT64_MAX = 2**64 - 1

# Where the system has them, large pages make a large table a fifth quicker. It gives them only to
# memory that no other process shares.
_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class KeyMemory:
    """Slots and entries, in no more than `bytes_max` at any time, also while the slots double."""

    def __init__(self, *, bytes_max: int, seed: int) -> None:
        self.seed = (seed & _UINT64_MAX, seed >> 64 & _UINT64_MAX)
        self.slots = _words(_SLOTS_MIN)
        self.arena = _words(bytes_max // _WORD_SIZE)
        self.count = 0
        self.end = FIRST_POSITION
        """The first word of the arena that is free."""
        self._words_max = bytes_max // _WORD_SIZE

    @property
    def count_max(self) -> int:
        """How many keys there may be before there have to be more slots."""
        return len(self.slots) * 3 // 4

    @property
    def end_max(self) -> int:
        """How many words of the arena may be used."""
        return self._words_max - len(self.slots)

    def find(self, key: bytes) -> int:
        """Return the latest offset of `key`, or `NOT_FOUND`."""
        _, place = self._find_slot(siphash(key, self.seed), key)
        return self._read(place) if place else NOT_FOUND

    def enter(self, key: bytes, offset: int) -> bool:
        """Take note of an offset; `False` where there is no room for another key."""
        hashed = siphash(key, self.seed)
        index, place = self._find_slot(hashed, key)
        if place:
            self.arena[place] = max(self._read(place), offset)
            return True
        entry = array("q", (offset, len(key), *key_words(key)))
        if self.count >= self.count_max or self.end + len(entry) > self.end_max:
            return False
        self.slots[index] = slot_of(hashed, self.end)
        self.arena[self.end : self.end + len(entry)] = entry
        self.end += len(entry)
        self.count += 1
        return True

    def grow(self) -> bool:
        """Make room for more keys; `False` where the memory is used up."""
        count = 2 * len(self.slots)
        if self.count < self.count_max:  # It is the arena that is full.
            return False
        if self.end + count > self._words_max:
            return False
        self.slots = _words(0)  # The entries tell all that they did, so they need not stay.
        self.slots = _words(count)
        _REHASH.choose(self.count)(self)
        return True

    def key_at(self, place: int) -> bytes:
        """Return the key of an entry."""
        size = self.arena[place + 1]
        first = place + HEAD_WORDS
        words = self.arena[first : first + _word_count(size)]
        return struct.pack(f"<{len(words)}q", *words)[:size]

    def _find_slot(self, hashed: int, key: bytes) -> tuple[int, int]:
        """Return the slot of a key and the place of its entry; 0 where the slot is free."""
        mask = len(self.slots) - 1
        index = hashed & mask
        while slot := self.slots[index]:
            place = slot & _POSITION_MASK
            if slot == slot_of(hashed, place) and self.key_at(place) == key:
                return index, place
            index = index + 1 & mask
        return index, 0

    def _read(self, place: int) -> int:
        return int(self.arena[place])


def rehash_python(memory: KeyMemory) -> None:
    """Enter every key of the arena into empty slots."""
    mask = len(memory.slots) - 1
    place = FIRST_POSITION
    while place < memory.end:
        hashed = siphash(memory.key_at(place), memory.seed)
        index = hashed & mask
        while memory.slots[index]:
            index = index + 1 & mask
        memory.slots[index] = slot_of(hashed, place)
        place += HEAD_WORDS + _word_count(memory.arena[place + 1])


def slot_of(hashed: int, place: int) -> int:
    """Return what a slot holds for a key of this hash."""
    return hashed >> TAG_SHIFT << POSITION_BITS | place


def key_words(key: bytes) -> tuple[int, ...]:
    """Return a key as words, padded with zeros."""
    count = _word_count(len(key))
    return struct.unpack(f"<{count}q", key.ljust(count * _WORD_SIZE, b"\0"))


def _word_count(size: int) -> int:
    return (size + _WORD_SIZE - 1) // _WORD_SIZE


def _words(count: int) -> Words:
    """Zeros that take memory once they are written to, as mapped memory does."""
    memory = mmap.mmap(-1, max(count, 1) * _WORD_SIZE, **_PRIVATE)
    if _HUGE_PAGES is not None:
        memory.madvise(_HUGE_PAGES)
    return memoryview(memory).cast("q")


def _load() -> Rehash:
    from millstream.records.filter.keys.table_vectorized import rehash  # noqa: PLC0415 - an extra, slow to load.

    return rehash


_REHASH: KernelDispatch[Rehash] = KernelDispatch(rehash_python, _load)
