"""Key table: the latest offset of every key, for compaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from millstream.errors import CorruptBatch
from millstream.records.batch import Bytes
from millstream.records.filter.keys.memory import KeyMemory
from millstream.records.filter.rules import FilterRules
from millstream.records.iterate import records_of
from millstream.records.kernels.dispatch import KernelDispatch
from millstream.records.opened_batch import OpenedBatch, checked_batches, open_groups, record_count

InsertKeys: TypeAlias = Callable[[Bytes, Sequence[OpenedBatch], FilterRules, KeyMemory], int]


class KeyTable:
    """The latest offset of every key: exact, since it compares bytes, and bounded in memory.

    `memory_bytes_max` limits the memory of the table, even while it grows; the data that `add`
    decompresses at a time, a few MB or one batch, is extra. `seed`, up to 128 bits and unknown to
    those who choose the keys, keeps them from choosing keys with the same slot. A table is for one
    thread at a time.
    """

    def __init__(self, *, memory_bytes_max: int, seed: int) -> None:
        self.memory = KeyMemory(bytes_max=memory_bytes_max, seed=seed)

    @property
    def count(self) -> int:
        """Number of keys."""
        return self.memory.count

    def find(self, key: bytes) -> int:
        """Return the latest offset of `key`; -1 if it is unknown."""
        return self.memory.find(key)

    def add(self, data: Bytes, rules: FilterRules) -> int:
        """Add the keys of the records that `rules` do not remove.

        Of the rules, `start_offset`, `deleted` and `aborted` apply. Control batches, records
        without a key and batches that cannot be decoded are left out. Verifies every checksum of
        its input; raises `CorruptBatch`.

        Returns the offset up to which keys were added: the end of `data`, or the start of a batch
        if the memory is used up. Some keys of that batch may have been added, which is harmless:
        their offsets are correct. Without a batch in `data` it returns `start_offset`.
        """
        end = rules.start_offset
        batches = []
        for batch, _ in checked_batches(data):
            end = batch.header.next_offset
            if not batch.header.is_control and not rules.removes_all(batch.header):
                batches.append(batch)
        for group in open_groups(data, batches):
            if remaining := self._insert(data, group, rules):
                return remaining[0].header.base_offset
        return end

    def _insert(
        self, data: Bytes, group: Sequence[OpenedBatch], rules: FilterRules
    ) -> Sequence[OpenedBatch]:
        """Insert the keys of a group; return the batches for which there is no space."""
        insert_keys = _INSERT_KEYS.choose(record_count(group))
        while True:
            group = group[insert_keys(data, group, rules, self.memory) :]
            if not group or not self.memory.grow():
                return group


def insert_keys_python(
    _: Bytes, group: Sequence[OpenedBatch], rules: FilterRules, memory: KeyMemory
) -> int:
    """Reference in plain Python for `table_vectorized.insert_keys`.

    Inserts keys as long as there is space, and returns how many batches were inserted completely.
    """
    for number, opened in enumerate(group):
        if not all(memory.insert(key, offset) for key, offset in _keys(opened, rules)):
            return number
    return len(group)


def _keys(opened: OpenedBatch, rules: FilterRules) -> list[tuple[bytes, int]]:
    try:
        records = list(records_of(opened.header, opened.records))
    except CorruptBatch:
        return []
    return [
        (record.key, record.offset)
        for record in records
        if record.key is not None and not rules.removes_offset(record.offset)
    ]


def _load() -> InsertKeys:
    from millstream.records.filter.keys.table_vectorized import insert_keys  # noqa: PLC0415 - an extra, slow to load.

    return insert_keys


_INSERT_KEYS: KernelDispatch[InsertKeys] = KernelDispatch(insert_keys_python, _load)
