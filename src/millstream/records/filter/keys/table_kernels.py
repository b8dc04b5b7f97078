"""Compiled loops over a table of keys. Needs Numba; `table_vectors.py` calls them.

The twin of `key_memory.py`, which draws the layout: both do the same to the same memory.

Hashes and blocks of keys are uint64, all else is int64. The two are never mixed, since Numba would
make floats of them.
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
"""Enough to keep the memory busy, few enough for all that they need to stay in a fast cache."""

_TAG_SHIFT: Final = np.uint64(TAG_SHIFT)


class KeyTableArrays(NamedTuple):
    """The memory of a table, and the two halves of its seed."""

    slots: Int64s
    arena: Int64s
    seed_low: Block
    seed_high: Block


class RemovedOffsets(NamedTuple):
    """Which records go because of where they lie: those before an offset, and some after it."""

    start_offset: int
    deleted: Int64s


class KeyLookups(NamedTuple):
    """The keys of some records, to be looked up together."""

    offsets: Int64s
    starts: Int64s
    """Where a key lies in the source; -1 where the record has none."""
    sizes: Int64s
    hashes: NDArray[np.uint64]
    indexes: Int64s
    """From which slot on a key may be found: those before it are of other keys."""
    places: Int64s
    """Of a key's entry; 0 where it has none."""
    fetched: Int64s
    """What was read ahead of a lookup; nobody asks for it."""


class KeyTableUsage(NamedTuple):
    """How much of a table's memory is used, and may be."""

    keys: int
    keys_max: int
    end: int
    end_max: int


@kernel
def hash_entry(memory: KeyTableArrays, place: int) -> Block:
    """Hash a key that lies in the arena."""
    v0, v1, v2, v3 = begin(memory.seed_low, memory.seed_high)
    size = memory.arena[place + 1]
    first = place + HEAD_WORDS
    for number in range(size >> 3):
        v0, v1, v2, v3 = take(v0, v1, v2, v3, np.uint64(memory.arena[first + number]))
    tail = np.uint64(memory.arena[first + (size >> 3)]) if size & 7 else np.uint64(0)
    return finish(v0, v1, v2, v3, tail | np.uint64(size & 0xFF) << np.uint64(56))


@kernel
def is_same(arena: Int64s, place: int, source: Octets, start: int, size: int) -> bool:
    """Compare the bytes of a key with those of an entry."""
    if arena[place + 1] != size:
        return False
    first = place + HEAD_WORDS
    for number in range((size + 7) >> 3):
        if np.uint64(arena[first + number]) != load_block(source, start, size, number):
            return False
    return True


@kernel
def slot_of(hashed: Block, place: int) -> int:
    """Return what a slot holds for a key of this hash."""
    tag: Any = np.int64(hashed >> _TAG_SHIFT)
    return int(tag << POSITION_BITS | place)


@kernel
def find_slot(
    memory: KeyTableArrays, source: Octets, stage: KeyLookups, row: int
) -> tuple[int, int]:
    """Return the slot of a key on the stage and the place of its entry; 0 where it has none."""
    tag = slot_of(stage.hashes[row], 0)
    mask = memory.slots.size - 1
    index = stage.indexes[row]
    while True:
        slot = memory.slots[index]
        place = slot & _POSITION_MASK
        if place == 0:
            return index, 0
        if slot == tag | place and is_same(
            memory.arena, place, source, stage.starts[row], stage.sizes[row]
        ):
            return index, place
        index = (index + 1) & mask


@kernel
def write_key(arena: Int64s, place: int, source: Octets, start: int, size: int) -> None:
    """Put a key and its size into an entry."""
    arena[place + 1] = size
    for number in range((size + 7) >> 3):
        block = load_block(source, start, size, number)
        arena[place + HEAD_WORDS + number] = np.int64(block)


@kernel
def make_lookups() -> KeyLookups:
    """Return a stage for use by one loop."""
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
    source: Octets, batch: Int64s, position: int, count: int, stage: KeyLookups
) -> int:
    """Put the keys of `count` records on the stage; return the position after these."""
    end = batch[END]
    for row in range(count):
        size, start = read_varint(source, position, end)
        position = start + size
        _delta, field = read_varlong(source, start + 1, position)
        offset_delta, field = read_varint(source, field, position)
        key_start, key_size, _field = read_field(source, field, position)
        stage.offsets[row] = batch[BASE_OFFSET] + offset_delta
        stage.starts[row] = key_start
        stage.sizes[row] = key_size
    return position


@kernel
def find_keys(memory: KeyTableArrays, source: Octets, count: int, stage: KeyLookups) -> None:
    """Look up the keys on the stage.

    Nearly every lookup has to wait for memory twice: for a slot, and for an entry, from its first
    word to where its last would be. Loads that do not depend on each other wait together, so each
    loop fetches what the next one needs; that makes a large table three times as quick.
    """
    mask = memory.slots.size - 1
    for row in range(count):
        hashed = hash_key(
            source, stage.starts[row], stage.sizes[row], memory.seed_low, memory.seed_high
        )
        stage.hashes[row] = hashed
        stage.indexes[row] = np.int64(hashed & np.uint64(mask))
    for row in range(count):
        stage.places[row] = memory.slots[stage.indexes[row]]
    for row in range(count):
        tag = slot_of(stage.hashes[row], 0)
        index = stage.indexes[row]
        slot = stage.places[row]
        while slot and slot & ~_POSITION_MASK != tag:
            index = (index + 1) & mask
            slot = memory.slots[index]
        stage.indexes[row] = index
        stage.places[row] = slot & _POSITION_MASK
    for row in range(count):
        place = stage.places[row]
        last = min(place + 1 + ((stage.sizes[row] + 7) >> 3), memory.arena.size - 1)
        stage.fetched[row] = memory.arena[place] ^ memory.arena[last]
    for row in range(count):
        place = stage.places[row]
        if place and not is_same(memory.arena, place, source, stage.starts[row], stage.sizes[row]):
            _index, stage.places[row] = find_slot(memory, source, stage, row)


@kernel
def insert_keys(
    source: Octets,
    batches: Int64s,
    named: RemovedOffsets,
    memory: KeyTableArrays,
    used: KeyTableUsage,
) -> tuple[int, int, int]:
    """Enter the keys of sound batches that are not named, as long as there is room.

    Returns how many batches are entered wholly, and how many keys and words are used then.
    """
    keys = used.keys
    end = used.end
    deleted = named.deleted
    stage = make_lookups()
    for number in range(batches.shape[0]):
        position = batches[number, START]
        left = batches[number, RECORD_COUNT]
        at = np.searchsorted(deleted, batches[number, BASE_OFFSET])
        while left > 0:
            count = min(left, _LOOKUP_ROWS)
            left -= count
            position = load_lookups(source, batches[number], position, count, stage)
            find_keys(memory, source, count, stage)
            for row in range(count):
                offset = stage.offsets[row]
                while at < deleted.size and deleted[at] < offset:
                    at += 1
                is_deleted = at < deleted.size and deleted[at] == offset
                if stage.starts[row] < 0 or is_deleted or offset < named.start_offset:
                    continue
                index, place = stage.indexes[row], stage.places[row]
                if not place:  # But a row before it may have been of the same key.
                    index, place = find_slot(memory, source, stage, row)
                if place:
                    memory.arena[place] = max(memory.arena[place], offset)
                    continue
                words = HEAD_WORDS + ((stage.sizes[row] + 7) >> 3)
                if keys >= used.keys_max or end + words > used.end_max:
                    return number, keys, end
                write_key(memory.arena, end, source, stage.starts[row], stage.sizes[row])
                memory.arena[end] = offset
                memory.slots[index] = slot_of(stage.hashes[row], end)
                end += words
                keys += 1
    return batches.shape[0], keys, end


@kernel
def mark_outdated(source: Octets, batches: Int64s, memory: KeyTableArrays, goes: Octets) -> None:
    """Set the flag of every record of whose key the table knows a later offset."""
    stage = make_lookups()
    first = 0
    for number in range(batches.shape[0]):
        position = batches[number, START]
        left = batches[number, RECORD_COUNT]
        while left > 0:
            count = min(left, _LOOKUP_ROWS)
            left -= count
            position = load_lookups(source, batches[number], position, count, stage)
            find_keys(memory, source, count, stage)
            for row in range(count):
                place = stage.places[row]
                is_known = place != 0 and stage.starts[row] >= 0
                if is_known and memory.arena[place] > stage.offsets[row]:
                    goes[first + row] = 1
            first += count


@kernel
def rehash(memory: KeyTableArrays, end: int) -> None:
    """Enter every key of the arena into empty slots."""
    mask = memory.slots.size - 1
    stage = make_lookups()
    place = FIRST_POSITION
    while place < end:
        count = 0
        while place < end and count < _LOOKUP_ROWS:
            hashed = hash_entry(memory, place)
            stage.starts[count] = place
            stage.hashes[count] = hashed
            stage.fetched[count] = memory.slots[np.int64(hashed & np.uint64(mask))]
            place += HEAD_WORDS + ((memory.arena[place + 1] + 7) >> 3)
            count += 1
        for row in range(count):
            index = np.int64(stage.hashes[row] & np.uint64(mask))
            while memory.slots[index]:
                index = (index + 1) & mask
            memory.slots[index] = slot_of(stage.hashes[row], stage.starts[row])
