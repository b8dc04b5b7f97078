"""Kernels of the key table. Needs Numba; `table_vectorized.py` calls them.

They must have the same effect on the same memory as `memory.py`, which shows the layout.

Hashes and blocks of keys are uint64, everything else is int64. The two are never mixed, since
Numba would convert them to floats.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.records.filter.keys.memory import (
    FIRST_POSITION,
    HEAD_WORDS,
    POSITION_BITS,
    TAG_SHIFT,
)
from millstream.records.filter.keys.siphash_kernels import (
    Block,
    begin,
    finish,
    hash_key,
    load_block,
    take,
)
from millstream.records.kernels.compiler import Int64s, Octets, kernel
from millstream.records.kernels.decode_kernels import (
    BASE_OFFSET,
    END,
    RECORD_COUNT,
    START,
    read_field,
    read_varint,
    read_varlong,
)

_POSITION_MASK: Final = (1 << POSITION_BITS) - 1
_LOOKUP_ROWS: Final = 64
"""Enough to keep the memory busy, few enough for the lookups to stay in a fast cache."""

_TAG_SHIFT: Final = np.uint64(TAG_SHIFT)


class KeyTableArrays(NamedTuple):
    """The memory of a table, and the two halves of its seed."""

    slots: Int64s
    arena: Int64s
    seed_low: Block
    seed_high: Block


class RemovedOffsets(NamedTuple):
    """Offsets whose records are removed: those before `start_offset`, and some after it."""

    start_offset: int
    deleted: Int64s


class KeyLookups(NamedTuple):
    """Keys of some records, looked up together."""

    offsets: Int64s
    starts: Int64s
    """Position of a key in the source; -1 if the record has none."""
    sizes: Int64s
    hashes: NDArray[np.uint64]
    indexes: Int64s
    """The first slot that may have the key: those before it belong to other keys."""
    entries: Int64s
    """Position of a key's entry; 0 if it has none."""
    fetched: Int64s
    """Words read ahead of a lookup. Nothing reads them: storing them keeps the compiler from
    removing the loads.
    """


class KeyTableUsage(NamedTuple):
    """Used and available memory of a table."""

    keys: int
    keys_max: int
    end: int
    end_max: int


@kernel
def hash_entry(memory: KeyTableArrays, entry: int) -> Block:
    """Hash the key of an entry in the arena."""
    v0, v1, v2, v3 = begin(memory.seed_low, memory.seed_high)
    size = memory.arena[entry + 1]
    first = entry + HEAD_WORDS
    for number in range(size >> 3):
        v0, v1, v2, v3 = take(v0, v1, v2, v3, np.uint64(memory.arena[first + number]))
    tail = np.uint64(memory.arena[first + (size >> 3)]) if size & 7 else np.uint64(0)
    return finish(v0, v1, v2, v3, tail | np.uint64(size & 0xFF) << np.uint64(56))


@kernel
def is_same(arena: Int64s, entry: int, source: Octets, start: int, size: int) -> bool:
    """Compare the bytes of a key with those of an entry."""
    if arena[entry + 1] != size:
        return False
    first = entry + HEAD_WORDS
    for number in range((size + 7) >> 3):
        if np.uint64(arena[first + number]) != load_block(source, start, size, number):
            return False
    return True


@kernel
def slot_of(hashed: Block, entry: int) -> int:
    """Return the content of the slot of a key with this hash."""
    tag: Any = np.int64(hashed >> _TAG_SHIFT)
    return int(tag << POSITION_BITS | entry)


@kernel
def find_slot(
    memory: KeyTableArrays, source: Octets, lookups: KeyLookups, row: int
) -> tuple[int, int]:
    """Return the slot of a looked-up key and the position of its entry; 0 if it has none."""
    tag = slot_of(lookups.hashes[row], 0)
    mask = memory.slots.size - 1
    index = lookups.indexes[row]
    # Linear probing. It ends, since a quarter of the slots is always free.
    while True:
        slot = memory.slots[index]
        entry = slot & _POSITION_MASK
        if entry == 0:
            return index, 0
        if slot == tag | entry and is_same(
            memory.arena, entry, source, lookups.starts[row], lookups.sizes[row]
        ):
            return index, entry
        index = (index + 1) & mask


@kernel
def write_key(arena: Int64s, entry: int, source: Octets, start: int, size: int) -> None:
    """Write a key and its size to an entry."""
    arena[entry + 1] = size
    for number in range((size + 7) >> 3):
        block = load_block(source, start, size, number)
        arena[entry + HEAD_WORDS + number] = np.int64(block)


@kernel
def make_lookups() -> KeyLookups:
    """Return lookup arrays for one loop."""
    return KeyLookups(
        np.empty(_LOOKUP_ROWS, np.int64),
        np.empty(_LOOKUP_ROWS, np.int64),
        np.empty(_LOOKUP_ROWS, np.int64),
        np.empty(_LOOKUP_ROWS, np.uint64),
        np.empty(_LOOKUP_ROWS, np.int64),
        np.empty(_LOOKUP_ROWS, np.int64),
        np.empty(_LOOKUP_ROWS, np.int64),
    )


@kernel
def load_lookups(
    source: Octets, batch: Int64s, position: int, count: int, lookups: KeyLookups
) -> int:
    """Load the keys of `count` records into the lookups; return the position after them."""
    end = batch[END]
    for row in range(count):
        size, start = read_varint(source, position, end)
        position = start + size
        _delta, field = read_varlong(source, start + 1, position)
        offset_delta, field = read_varint(source, field, position)
        key_start, key_size, _field = read_field(source, field, position)
        lookups.offsets[row] = batch[BASE_OFFSET] + offset_delta
        lookups.starts[row] = key_start
        lookups.sizes[row] = key_size
    return position


@kernel
def find_keys(memory: KeyTableArrays, source: Octets, count: int, lookups: KeyLookups) -> None:
    """Look up the loaded keys.

    Nearly every lookup waits for memory twice: for a slot, and for an entry, from its first word to
    where its last would be. Loads that do not depend on each other wait together, so each loop
    fetches what the next one needs; that makes a large table three times as fast.
    """
    mask = memory.slots.size - 1
    # 1. Hash all keys; a record without a key hashes zero bytes, and its result is not used.
    for row in range(count):
        hashed = hash_key(
            source, lookups.starts[row], lookups.sizes[row], memory.seed_low, memory.seed_high
        )
        lookups.hashes[row] = hashed
        lookups.indexes[row] = np.int64(hashed & np.uint64(mask))
    # 2. Load the first slot of each key: independent loads, which miss the cache together.
    for row in range(count):
        lookups.entries[row] = memory.slots[lookups.indexes[row]]
    # 3. Probe for a slot with the right tag. The slots are in the cache by now.
    for row in range(count):
        tag = slot_of(lookups.hashes[row], 0)
        index = lookups.indexes[row]
        slot = lookups.entries[row]
        while slot and slot & ~_POSITION_MASK != tag:
            index = (index + 1) & mask
            slot = memory.slots[index]
        lookups.indexes[row] = index
        lookups.entries[row] = slot & _POSITION_MASK
    # 4. Touch the first and the last word of each entry, so that both are loaded together.
    for row in range(count):
        entry = lookups.entries[row]
        last = min(entry + 1 + ((lookups.sizes[row] + 7) >> 3), memory.arena.size - 1)
        lookups.fetched[row] = memory.arena[entry] ^ memory.arena[last]
    for row in range(count):
        entry = lookups.entries[row]
        if entry and not is_same(
            memory.arena, entry, source, lookups.starts[row], lookups.sizes[row]
        ):
            _index, lookups.entries[row] = find_slot(memory, source, lookups, row)


@kernel
def insert_keys(
    source: Octets,
    batches: Int64s,
    removed: RemovedOffsets,
    memory: KeyTableArrays,
    used: KeyTableUsage,
) -> tuple[int, int, int]:
    """Insert the keys of records that are not removed, as long as there is space.

    The batches are known to be well-formed. Returns the number of batches inserted completely, and
    the number of keys and words used then.
    """
    keys = used.keys
    end = used.end
    deleted = removed.deleted
    lookups = make_lookups()
    for number in range(batches.shape[0]):
        position = batches[number, START]
        remaining = batches[number, RECORD_COUNT]
        at = np.searchsorted(deleted, batches[number, BASE_OFFSET])
        while remaining > 0:
            count = min(remaining, _LOOKUP_ROWS)
            remaining -= count
            position = load_lookups(source, batches[number], position, count, lookups)
            find_keys(memory, source, count, lookups)
            for row in range(count):
                offset = lookups.offsets[row]
                while at < deleted.size and deleted[at] < offset:
                    at += 1
                is_deleted = at < deleted.size and deleted[at] == offset
                if lookups.starts[row] < 0 or is_deleted or offset < removed.start_offset:
                    continue
                index, entry = lookups.indexes[row], lookups.entries[row]
                if not entry:  # An earlier row of these lookups may have inserted the same key.
                    index, entry = find_slot(memory, source, lookups, row)
                if entry:
                    memory.arena[entry] = max(memory.arena[entry], offset)
                    continue
                words = HEAD_WORDS + ((lookups.sizes[row] + 7) >> 3)
                if keys >= used.keys_max or end + words > used.end_max:
                    return number, keys, end
                write_key(memory.arena, end, source, lookups.starts[row], lookups.sizes[row])
                memory.arena[end] = offset
                memory.slots[index] = slot_of(lookups.hashes[row], end)
                end += words
                keys += 1
    return batches.shape[0], keys, end


@kernel
def mark_outdated(
    source: Octets, batches: Int64s, memory: KeyTableArrays, removed_flags: Octets
) -> None:
    """Set the flag of every record for whose key the table has a later offset."""
    lookups = make_lookups()
    first = 0
    for number in range(batches.shape[0]):
        position = batches[number, START]
        remaining = batches[number, RECORD_COUNT]
        while remaining > 0:
            count = min(remaining, _LOOKUP_ROWS)
            remaining -= count
            position = load_lookups(source, batches[number], position, count, lookups)
            find_keys(memory, source, count, lookups)
            for row in range(count):
                entry = lookups.entries[row]
                is_known = entry != 0 and lookups.starts[row] >= 0
                if is_known and memory.arena[entry] > lookups.offsets[row]:
                    removed_flags[first + row] = 1
            first += count


@kernel
def rehash(memory: KeyTableArrays, end: int) -> None:
    """Insert every key of the arena into empty slots."""
    mask = memory.slots.size - 1
    lookups = make_lookups()
    entry = FIRST_POSITION
    while entry < end:
        count = 0
        while entry < end and count < _LOOKUP_ROWS:
            hashed = hash_entry(memory, entry)
            lookups.starts[count] = entry
            lookups.hashes[count] = hashed
            lookups.fetched[count] = memory.slots[np.int64(hashed & np.uint64(mask))]
            entry += HEAD_WORDS + ((memory.arena[entry + 1] + 7) >> 3)
            count += 1
        for row in range(count):
            index = np.int64(lookups.hashes[row] & np.uint64(mask))
            while memory.slots[index]:
                index = (index + 1) & mask
            memory.slots[index] = slot_of(lookups.hashes[row], lookups.starts[row])
