"""The latest offset of every key: what compaction keeps."""

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

    `memory_bytes_max` is for all that it holds, also while it grows; what `add` unpacks at a time,
    a few MB or one batch, comes on top. `seed`, of up to 128 bits and unknown to those who choose
    the keys, keeps them from choosing such that meet in one slot. One thread at a time may use a
    table.
    """

    def __init__(self, *, memory_bytes_max: int, seed: int) -> None:
        self.memory = KeyMemory(bytes_max=memory_bytes_max, seed=seed)

    @property
    def count(self) -> int:
        """How many keys it knows."""
        return self.memory.count

    def find(self, key: bytes) -> int:
        """Return the latest offset of `key`; -1 where it is not known."""
        return self.memory.find(key)

    def add(self, data: Bytes, rules: FilterRules) -> int:
        """Take note of the records in whole batches that `rules` do not remove.

        Of the rules, `start_offset`, `deleted` and `aborted` count. Control batches, records
        without a key and batches whose records cannot be read are left out. Checks every sum of
        its input; raises `CorruptBatch`.

        Returns the offset up to which it took note: the end of `data`, or, where the memory is used
        up, the start of a batch. Some keys of that batch may be known already, which does no harm,
        since what is known of them is true. Without a batch in `data` it returns `start_offset`.
        """
        end = rules.start_offset
        batches = []
        for batch, _ in checked_batches(data):
            end = batch.header.next_offset
            if not batch.header.is_control and not rules.remove_all(batch.header):
                batches.append(batch)
        for group in open_groups(data, batches):
            if left := self._note(data, group, rules):
                return left[0].header.base_offset
        return end

    def _note(
        self, data: Bytes, group: Sequence[OpenedBatch], rules: FilterRules
    ) -> Sequence[OpenedBatch]:
        """Take note of a group; return the batches for which there is no room."""
        note = _INSERT_KEYS.choose(record_count(group))
        while True:
            group = group[note(data, group, rules, self.memory) :]
            if not group or not self.memory.grow():
                return group


def insert_keys_python(
    _: Bytes, group: Sequence[OpenedBatch], rules: FilterRules, memory: KeyMemory
) -> int:
    """Do in plain Python what `table_vectors.note` does with kernels.

    Enters keys as long as there is room, and returns how many batches are entered wholly.
    """
    for number, opened in enumerate(group):
        if not all(memory.enter(key, offset) for key, offset in _keys(opened, rules)):
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
        if record.key is not None and not rules.name(record.offset)
    ]


def _load() -> InsertKeys:
    from millstream.records.filter.keys.table_vectorized import insert_keys  # noqa: PLC0415 - an extra, slow to load.

    return insert_keys


_INSERT_KEYS: KernelDispatch[InsertKeys] = KernelDispatch(insert_keys_python, _load)
