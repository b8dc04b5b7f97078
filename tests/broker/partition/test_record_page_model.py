"""A reader that follows `next` sees every live record once, in order (P10).

The model stores everything that was appended and the state of each record. Each reader has its own
cursor and continues at the returned offset; each step is compared with the model.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.broker.partition.record_page import RecordPage, read_page
from millstream.broker.topics.record_appender import RecordAppender
from millstream.records.compression import Codec
from millstream.records.record import Record
from tests.broker.partitions import SMALL_SEGMENTS, Bench, append, batch

KEYS = [None, b"a", b"b", b"ab"]
PRODUCERS = [7, 8]
READERS = 3


@dataclass
class Kept:
    """A record in the model; `producer_id` is set while its transaction is open."""

    key: bytes | None
    value: bytes
    is_live: bool = True
    producer_id: int | None = None


class DifferenceModel(RuleBasedStateMachine):
    """A partition, a model of it, and readers."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.records: dict[int, Kept] = {}
        self.end = 0
        self.floor = 0
        self.reason = "retention"
        self.first_offsets: dict[int, int] = {}
        """First offset of each open transaction, by producer."""
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.cursors = [0] * READERS

    @initialize()
    def open(self) -> None:
        async def go() -> Bench:
            bench = Bench(config=SMALL_SEGMENTS)
            await bench.partition.open()
            return bench

        self.bench = self.runner.run(go())

    def teardown(self) -> None:
        for reader in range(READERS):
            self.read_all(reader)
        self.runner.close()

    # Rules.

    def note(self, offset: int, records: list[Record], producer_id: int | None = None) -> None:
        assert offset == self.end
        for record in records:
            assert record.value is not None
            kept = Kept(record.key, record.value, producer_id=producer_id)
            self.records[self.end] = kept
            self.end += 1

    def made(self, keys: list[bytes | None], size: int) -> list[Record]:
        return [Record(b"%d" % (self.end + row) + b"x" * size, key) for row, key in enumerate(keys)]

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5), size=st.sampled_from([0, 300])
    )
    def append_records(self, keys: list[bytes | None], size: int) -> None:
        """Append as the HTTP server does."""
        records = self.made(keys, size)
        partition = self.bench.partition
        topic: Any = SimpleNamespace(name="t", partition_count=1, partition=lambda _: partition)
        appends = RecordAppender(self.bench.clock)
        placed = self.runner.run(appends.append(topic, records))
        assert list(placed.offsets) == [self.end + row for row in range(len(keys))]
        self.note(placed.offsets[0], records)
        assert placed.head == self.end

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
        producer_id=st.sampled_from([None, *PRODUCERS]),
    )
    def append_batch(self, keys: list[bytes | None], codec: Codec, producer_id: int | None) -> None:
        """Append as the Kafka server does; batches of a producer belong to a transaction."""
        records = self.made(keys, 10)
        stamp: dict[str, Any] = {}
        if producer_id is not None:
            sequence = self.sequences[producer_id]
            stamp = {"producer_id": producer_id, "sequence": sequence, "is_transactional": True}
            self.sequences[producer_id] += len(records)
            self.first_offsets.setdefault(producer_id, self.end)
        data = batch(*(one.value or b"" for one in records), keys=keys, codec=codec, **stamp)

        async def go() -> int:
            return (await append(self.bench.partition, data)).offset

        self.note(self.runner.run(go()), records, producer_id)

    @precondition(lambda self: self.first_offsets)
    @rule(is_commit=st.booleans(), data=st.data())
    def end_transaction(self, is_commit: bool, data: st.DataObject) -> None:
        producer_id = data.draw(st.sampled_from(sorted(self.first_offsets)))
        del self.first_offsets[producer_id]

        async def go() -> None:
            await self.bench.partition.appender.append_marker(
                producer_id, 0, is_commit=is_commit, coordinator_epoch=0
            )

        self.runner.run(go())
        self.end += 1
        for kept in self.records.values():
            if kept.producer_id == producer_id:
                kept.producer_id = None
                kept.is_live &= is_commit

    @rule(key=st.sampled_from(KEYS[1:]), is_prefix=st.booleans(), data=st.data())
    def delete_keys(self, key: bytes, is_prefix: bool, data: st.DataObject) -> None:
        before = data.draw(st.none() | st.integers(0, self.end))
        wanted = {"prefix": key} if is_prefix else {"key": key}

        async def go() -> None:
            await self.bench.partition.delete_keys(**wanted, before=before)

        self.runner.run(go())
        for offset, kept in self.records.items():
            hit = kept.key is not None and (
                kept.key.startswith(key) if is_prefix else kept.key == key
            )
            kept.is_live &= not (hit and offset < (self.end if before is None else before))

    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))

        async def go() -> None:
            await self.bench.partition.delete_before(offset)

        self.runner.run(go())
        self.bury(offset)

    @rule(data=st.data(), reason=st.sampled_from(["age", "bytes", "records"]))
    def evict(self, data: st.DataObject, reason: str) -> None:
        """Evict entire segments, as retention does."""
        log = self.bench.store.get("t")
        edges = [one.base_offset for one in log.segments if one.base_offset > log.start_offset]
        if not edges:
            return
        offset = data.draw(st.sampled_from(edges))

        async def go() -> None:
            await log.evict_before(offset, reason)

        self.runner.run(go())
        self.floor, self.reason = log.eviction_floor, reason
        assert self.floor == offset
        self.bury(offset)

    def bury(self, offset: int) -> None:
        for at, kept in self.records.items():
            kept.is_live &= at >= offset

    @rule(is_clean=st.booleans())
    def restart(self, is_clean: bool) -> None:
        async def go() -> Bench:
            return await self.bench.again(is_clean=is_clean)

        self.bench = self.runner.run(go())

    # Reads.

    @rule(
        reader=st.integers(0, READERS - 1),
        limit=st.sampled_from([1, 2, 1000]),
        size_max=st.sampled_from([1, 50, 1 << 20]),
    )
    def read(self, reader: int, limit: int, size_max: int) -> None:
        cursor = self.cursors[reader]
        self.cursors[reader] = self.check(
            cursor, self.ask(cursor, limit, size_max), limit, size_max
        )

    @rule(cursor=st.integers(0, 100), limit=st.sampled_from([1, 3, 1000]))
    def look(self, cursor: int, limit: int) -> None:
        """Read from any offset."""
        cursor = min(cursor, self.end)
        self.check(cursor, self.ask(cursor, limit, 1 << 20), limit, 1 << 20)

    def read_all(self, reader: int) -> None:
        cursor, last = self.cursors[reader], -1
        while cursor != last:
            last = cursor
            cursor = self.check(cursor, self.ask(cursor, 2, 100), 2, 100)
        assert cursor >= self.stable
        self.cursors[reader] = cursor

    def ask(self, cursor: int, limit: int, size_max: int) -> RecordPage:
        return self.runner.run(
            read_page(self.bench.partition, cursor, limit=limit, size_max=size_max)
        )

    @property
    def stable(self) -> int:
        """Return the first offset of the earliest open transaction, or the end if none is open."""
        return max(self.floor, min(self.first_offsets.values(), default=self.end))

    def visible(self, begin: int, end: int) -> list[tuple[int, bytes | None, bytes]]:
        return [
            (offset, kept.key, kept.value)
            for offset, kept in self.records.items()
            if begin <= offset < min(end, self.stable) and kept.is_live
        ]

    def check(self, cursor: int, found: RecordPage, limit: int, size_max: int) -> int:
        begin = cursor
        if cursor < self.floor:
            assert found.gap == (cursor, self.floor - 1, self.reason)
            begin = self.floor
        else:
            assert found.gap is None
        assert found.next_offset >= begin
        seen = [(one.offset, one.key, one.value) for one in found.records]
        assert seen == self.visible(begin, found.next_offset)
        assert len(seen) <= limit
        sizes = [len(key or b"") + len(value) for _, key, value in seen]
        assert len(seen) <= 1 or sum(sizes) <= size_max
        assert seen or not self.visible(begin, self.end)
        assert found.head == self.end
        return found.next_offset

    @invariant()
    def the_partition_ends_where_the_model_does(self) -> None:
        if hasattr(self, "bench"):
            assert self.bench.partition.high_watermark == self.end


TestDifference = DifferenceModel.TestCase
TestDifference.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
