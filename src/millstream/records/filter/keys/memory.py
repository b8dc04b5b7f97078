"""Memory of a key table: slots that point to entries.

    slot                                   0 if free; found by the lowest bits of the key's hash,
    +---+---------------+-----------+      or after those that are taken
    | 0 | tag           | position  |      tag: the highest bits of the hash
    |   |       23 bits |   40 bits |      position: of the entry, in words; 0 means none
    +---+---------------+-----------+

    entry, in the arena; all words have 64 bits
    +---------------+----------+-------------------------------- - -
    | latest offset | key size | key, eight bytes a word, lowest first
    +---------------+----------+-------------------------------- - -

The tag saves most comparisons, but keys are equal only if all their bytes are. At most three
quarters of the slots are taken; then their number doubles, and the entries stay in place. The
addresses of the arena are reserved at once, but only words that were written take memory.

`table_kernels.py` has compiled versions of all operations on single keys. Both may work on the
same memory in turn.
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
"""Start of a cache line: entries of four words, as most are, then fit into one each."""

_POSITION_MASK = (1 << POSITION_BITS) - 1
_SLOTS_MIN = 64
_WORD_SIZE = 8
_UINT64_MAX = 2**64 - 1

# Huge pages, if the system has them, make a large table a fifth faster. Linux gives them only to
# private mappings.
_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class KeyMemory:
    """Slots and entries, in at most `bytes_max` at any time, also while the slots double."""

    def __init__(self, *, bytes_max: int, seed: int) -> None:
        self.seed = (seed & _UINT64_MAX, seed >> 64 & _UINT64_MAX)
        self.slots = _words(_SLOTS_MIN)
        self.arena = _words(bytes_max // _WORD_SIZE)
        self.count = 0
        self.end = FIRST_POSITION
        """The first free word of the arena."""
        self._words_max = bytes_max // _WORD_SIZE

    @property
    def count_max(self) -> int:
        """Number of keys at which more slots are needed."""
        return len(self.slots) * 3 // 4

    @property
    def end_max(self) -> int:
        """Number of words of the arena that may be used."""
        return self._words_max - len(self.slots)

    def find(self, key: bytes) -> int:
        """Return the latest offset of `key`, or `NOT_FOUND`."""
        _, entry = self._find_slot(siphash(key, self.seed), key)
        return self._read(entry) if entry else NOT_FOUND

    def insert(self, key: bytes, offset: int) -> bool:
        """Store an offset of `key`; return `False` if there is no space for another key."""
        hashed = siphash(key, self.seed)
        index, entry = self._find_slot(hashed, key)
        if entry:
            self.arena[entry] = max(self._read(entry), offset)
            return True
        words = array("q", (offset, len(key), *key_words(key)))
        if self.count >= self.count_max or self.end + len(words) > self.end_max:
            return False
        self.slots[index] = slot_of(hashed, self.end)
        self.arena[self.end : self.end + len(words)] = words
        self.end += len(words)
        self.count += 1
        return True

    def grow(self) -> bool:
        """Double the number of slots; return `False` if the memory is used up."""
        count = 2 * len(self.slots)
        if self.count < self.count_max:  # The arena is full, so more slots would not help.
            return False
        if self.end + count > self._words_max:
            return False
        self.slots = _words(0)  # Free the old slots first: the entries are enough to rebuild them.
        self.slots = _words(count)
        _REHASH.choose(self.count)(self)
        return True

    def key_at(self, entry: int) -> bytes:
        """Return the key of an entry."""
        size = self.arena[entry + 1]
        first = entry + HEAD_WORDS
        words = self.arena[first : first + _word_count(size)]
        return struct.pack(f"<{len(words)}q", *words)[:size]

    def _find_slot(self, hashed: int, key: bytes) -> tuple[int, int]:
        """Return the slot of a key and the position of its entry; 0 if the slot is free."""
        mask = len(self.slots) - 1
        index = hashed & mask
        while slot := self.slots[index]:
            entry = slot & _POSITION_MASK
            if slot == slot_of(hashed, entry) and self.key_at(entry) == key:
                return index, entry
            index = index + 1 & mask
        return index, 0

    def _read(self, entry: int) -> int:
        return int(self.arena[entry])


def rehash_python(memory: KeyMemory) -> None:
    """Insert every key of the arena into empty slots."""
    mask = len(memory.slots) - 1
    entry = FIRST_POSITION
    while entry < memory.end:
        hashed = siphash(memory.key_at(entry), memory.seed)
        index = hashed & mask
        while memory.slots[index]:
            index = index + 1 & mask
        memory.slots[index] = slot_of(hashed, entry)
        entry += HEAD_WORDS + _word_count(memory.arena[entry + 1])


def slot_of(hashed: int, entry: int) -> int:
    """Return the content of the slot of a key with this hash."""
    return hashed >> TAG_SHIFT << POSITION_BITS | entry


def key_words(key: bytes) -> tuple[int, ...]:
    """Return a key as words, padded with zeros."""
    count = _word_count(len(key))
    return struct.unpack(f"<{count}q", key.ljust(count * _WORD_SIZE, b"\0"))


def _word_count(size: int) -> int:
    return (size + _WORD_SIZE - 1) // _WORD_SIZE


def _words(count: int) -> Words:
    """Return zeroed words in mapped memory, which is allocated as it is written."""
    memory = mmap.mmap(-1, max(count, 1) * _WORD_SIZE, **_PRIVATE)
    if _HUGE_PAGES is not None:
        memory.madvise(_HUGE_PAGES)
    return memoryview(memory).cast("q")


def _load() -> Rehash:
    from millstream.records.filter.keys.table_vectorized import rehash  # noqa: PLC0415 - an extra, slow to load.

    return rehash


_REHASH: KernelDispatch[Rehash] = KernelDispatch(rehash_python, _load)
