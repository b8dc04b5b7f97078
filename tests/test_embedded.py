"""Embedded store, with and without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import millstream
from millstream import Address, Codec, Durability, LogConfig, Record, StoreConfig
from millstream.embedded import EmbeddedLog, EmbeddedStore
from millstream.errors import (
    DeadlineExceeded,
    InvalidAddress,
    InvalidConfig,
    LogClosed,
    OffsetOutOfRange,
    StoreLocked,
    WouldBlock,
)
from millstream.records.record import StoredRecord
from millstream.storage.disk.filesystem import File, OsFile, OsFilesystem
from millstream.storage.store import Store

QUICK = {"durability": "disk"}


def values(log: EmbeddedLog, *bounds: int | None, until: int | None = None) -> list[bytes | None]:
    return [record.value for record in log.read(*bounds, until=until)]


def run_all(*works: Callable[[], None]) -> None:
    """Run each in its own thread, and raise the first error."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test.
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class HeldFile(OsFile):
    """A file whose syncs wait at a gate."""

    def __init__(self, descriptor: int, gate: threading.Event) -> None:
        super().__init__(descriptor)
        self._gate = gate

    def sync(self) -> None:
        self._gate.wait()
        super().sync()


class HeldFilesystem(OsFilesystem):
    """A disk as slow as a test wants: while the gate is shut, no sync returns."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: str) -> File:
        return HeldFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), self.gate)

    def open(self, path: str) -> File:
        return HeldFile(os.open(path, os.O_RDWR), self.gate)


# Examples of the docstrings.


def shown_in(docstring: str | None) -> str:
    """Return the indented example of a docstring."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    start = next(n for n, line in enumerate(lines) if "millstream.open(" in line)
    indent = len(lines[start]) - len(lines[start].lstrip())
    body = itertools.takewhile(
        lambda line: not line.strip() or len(line) - len(line.lstrip()) >= indent,
        lines[start:],
    )
    return textwrap.dedent("\n".join(body))


def test_the_five_lines_of_the_module_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = shown_in(inspect.getmodule(EmbeddedStore).__doc__)
    assert len(code.strip().splitlines()) == 5
    exec(code, {"millstream": millstream})
    assert capsys.readouterr().out == "0 b'first'\n"


def test_the_two_lines_of_the_package_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = (millstream.__doc__ or "").splitlines()
    start = next(n for n, line in enumerate(lines) if "millstream.open(" in line)
    exec(textwrap.dedent("\n".join(lines[start : start + 2])), {"millstream": millstream})
    with millstream.open("data") as store:
        assert values(store.log("orders")) == [b"first"]


def test_the_same_call_serves_an_event_loop(tmp_path):
    async def main() -> list[bytes | None]:
        async with millstream.open(tmp_path / "data", **QUICK) as store:
            log = await store.log("orders")
            await log.append_records([Record(b"first"), Record(b"second")])
            return [record.value for record in log.records()]

    assert asyncio.run(main()) == [b"first", b"second"]


# Appending and reading.


def test_what_is_appended_is_there_after_opening_again(tmp_path):
    with millstream.open(tmp_path / "data") as store:
        assert store.log("orders").append(b"first", key=b"k") == 0
        assert store.log("orders").append(Record(b"second", headers=(("h", b"1"),))) == 1
    with millstream.open(tmp_path / "data") as store:
        first, second = store.log("orders").read()
    assert (first.offset, first.key, first.value) == (0, b"k", b"first")
    assert (second.offset, second.value, second.headers) == (1, b"second", (("h", b"1"),))


def test_many_records_go_in_as_one_batch(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("orders")
        appended = log.append_many([Record(b"a"), Record(b"b")], codec=Codec.GZIP)
        assert (appended.offset, appended.last_offset) == (0, 1)
        assert (log.start_offset, log.end_offset) == (0, 2)
        assert values(log) == [b"a", b"b"]


def test_a_record_is_found_by_its_time(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("orders")
        log.append_many([Record(b"a", timestamp_ms=100), Record(b"b", timestamp_ms=300)])
        assert log.find_timestamp(200) == (1, 300)
        assert log.find_timestamp(301) is None


def test_the_latest_record_is_found(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("t")
        assert log.find_latest() is None
        for at in (10, 30, 20, 30):
            log.append(Record(b"v", timestamp_ms=at))
        assert log.find_latest() == (1, 30)


def test_what_was_deleted_from_the_front_stays_deleted(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("t")
        log.append_many([Record(b"%d" % number) for number in range(10)])
        log.delete_before(7)
        assert values(log) == [b"7", b"8", b"9"]
        [batch] = log.read_arrow(columns=["offset"])
        assert batch.column("offset").to_pylist() == [7, 8, 9]
        first = list(itertools.islice(log.follow(), 2))
        assert [record.offset for record in first] == [7, 8]
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("t")
        assert (log.start_offset, log.end_offset) == (7, 10)
        assert values(log, 6) == [b"7", b"8", b"9"], "a deletion leaves no gap"
        with pytest.raises(OffsetOutOfRange):
            log.delete_before(11)


def test_a_deleted_topic_can_be_made_anew(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        old = store.log("t")
        old.append(b"old")
        store.delete("t")
        store.delete("never-there")
        assert store.names() == []
        with pytest.raises(LogClosed):
            old.append(b"too late")
        with pytest.raises(LogClosed):
            values(old)
        assert store.log("t").append(b"new") == 0


def test_logs_are_listed_sorted(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        for topic, partition in [("b", 0), ("a", 10), ("a", 2)]:
            store.log(topic, partition)
        assert store.names() == [("a", 2), ("a", 10), ("b", 0)]


def test_many_threads_get_distinct_and_dense_offsets(tmp_path):
    threads, each = 16, 20
    offsets: list[int] = []
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("orders")

        def append() -> None:
            for _ in range(each):
                offsets.append(log.append(b"x" * 50))

        run_all(*[append] * threads)
        assert sorted(offsets) == list(range(threads * each))
        assert [record.offset for record in log.read()] == list(range(threads * each))


def test_threads_that_append_while_the_disk_is_busy_share_the_next_sync(tmp_path):
    threads = 16
    filesystem = HeldFilesystem()
    store = EmbeddedStore(Store(str(tmp_path / "data"), filesystem=filesystem))
    log = store.log("orders")
    log.append(b"before")
    counters = log.inner.counters
    syncs = counters.syncs
    filesystem.gate.clear()

    def append() -> None:
        log.append(b"x")

    def open_gate() -> None:
        while counters.appends < 1 + threads:
            pass
        assert log.end_offset == 1, "nothing is committed before it is synced"
        filesystem.gate.set()

    run_all(*[append] * threads, open_gate)
    assert log.end_offset == 1 + threads
    assert counters.syncs - syncs <= 2, "one that was under way, and one for all the others"
    store.close()


# Following.


def test_a_follower_in_another_thread_wakes_with_every_append(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("orders")
        log.append(b"0")
        seen: list[bytes | None] = []
        answers = threading.Semaphore(0)

        def follow() -> None:
            for record in itertools.islice(log.follow(), 5):
                seen.append(record.value)
                answers.release()

        def append() -> None:
            for number in range(1, 5):
                answers.acquire()
                log.append(b"%d" % number)

        run_all(follow, append)
        assert seen == [b"0", b"1", b"2", b"3", b"4"]


def test_a_follower_may_start_in_the_middle_of_a_batch(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("orders")
        log.append_many([Record(b"%d" % number) for number in range(5)])
        followed = itertools.islice(log.follow(3), 2)
        assert [record.value for record in followed] == [b"3", b"4"]


@pytest.mark.timeout(60)
def test_a_follower_ends_when_the_store_is_closed(tmp_path):
    for life in range(20):
        store = EmbeddedStore(Store(str(tmp_path / f"data-{life}"), log_config=_disk()))
        log = store.log("orders")
        log.append(b"0")
        waits = threading.Event()

        def follow(log: EmbeddedLog = log, waits: threading.Event = waits) -> None:
            followed = log.follow()
            next(followed)
            waits.set()
            with pytest.raises(LogClosed):
                next(followed)

        def close(store: EmbeddedStore = store, waits: threading.Event = waits) -> None:
            waits.wait()
            store.close()

        run_all(follow, close)


@pytest.mark.timeout(60)
def test_threads_that_append_while_the_store_closes_succeed_or_are_told(tmp_path):
    for life in range(20):
        store = EmbeddedStore(Store(str(tmp_path / f"data-{life}"), log_config=_disk()))
        log = store.log("orders")
        started = threading.Semaphore(0)
        counts: list[int] = []

        def append(
            log: EmbeddedLog = log,
            started: threading.Semaphore = started,
            counts: list[int] = counts,
        ) -> None:
            for count in itertools.count(1):
                try:
                    log.append(b"x")
                except LogClosed:
                    counts.append(count - 1)
                    return
                started.release()

        def close(store: EmbeddedStore = store, started: threading.Semaphore = started) -> None:
            for _ in range(8):
                started.acquire()
            store.close()

        run_all(*[append] * 4, close)
        with millstream.open(tmp_path / f"data-{life}") as again:
            assert again.log("orders").end_offset == sum(counts)


def _disk() -> LogConfig:
    return LogConfig(durability=Durability.DISK)


# Arrow.


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Return thirty records in batches of 1, 4 and 7, compressed and not, in several segments."""
    pytest.importorskip("pyarrow")
    config = LogConfig(durability=Durability.DISK, segment_bytes_max=1024)
    with millstream.open(tmp_path / "data", config=config) as store:
        log = store.log("orders")
        number = 0
        for size, codec in zip((1, 4, 7, 4, 7, 1, 6), itertools.cycle([Codec.NONE, Codec.GZIP])):
            records = [_sample(number + step) for step in range(size)]
            log.append_many(records, codec=codec)
            number += size
        assert len(log.inner.segments) > 1
        yield log


def _sample(number: int) -> Record:
    return Record(
        None if number % 5 == 0 else b"v%d" % number * 10,
        key=None if number % 3 == 0 else b"k%d" % number,
        headers=(("h", b"%d" % number), ("n", None)) if number % 4 == 0 else (),
        timestamp_ms=1_000 - number * (-1) ** number,
    )


def as_rows(records: Iterator[StoredRecord]) -> list[dict[str, object]]:
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for record in records
    ]


def arrow_rows(log: EmbeddedLog, **bounds: int | Sequence[str] | None) -> list[dict[str, object]]:
    return [row for batch in log.read_arrow(**bounds) for row in batch.to_pylist()]


def test_arrow_gives_what_reading_gives(filled):
    assert arrow_rows(filled) == as_rows(filled.read())
    assert len(arrow_rows(filled)) == 30


def test_arrow_starts_in_the_middle_of_a_batch(filled):
    for offset in range(31):
        assert arrow_rows(filled, offset=offset) == as_rows(filled.read(offset)), offset


def test_arrow_ends_in_the_middle_of_a_batch(filled):
    for until in range(31):
        assert arrow_rows(filled, until=until) == as_rows(filled.read(until=until)), until


def test_arrow_gives_any_range(filled):
    for offset, until in itertools.combinations(range(0, 31, 3), 2):
        rows = arrow_rows(filled, offset=offset, until=until)
        assert rows == as_rows(filled.read(offset, until=until)), (offset, until)


@pytest.mark.timeout(10)
def test_arrow_ends_with_the_log_where_more_is_asked_for(filled):
    assert arrow_rows(filled, until=1_000) == as_rows(filled.read(until=1_000))


def test_arrow_gives_only_the_columns_that_are_asked_for(filled):
    rows = arrow_rows(filled, offset=5, until=9, columns=["key"])
    assert rows == [{"key": row["key"]} for row in as_rows(filled.read(5, until=9))]


def test_arrow_leaves_out_no_column_that_it_was_asked_for_in_another_order(filled):
    rows = arrow_rows(filled, offset=3, until=20, columns=["value", "offset"])
    wanted = as_rows(filled.read(3, until=20))
    assert [list(row) for row in rows] == [["value", "offset"]] * 17
    assert rows == [{"value": row["value"], "offset": row["offset"]} for row in wanted]


@pytest.mark.parametrize("offset", [-1, 31])
def test_an_offset_outside_the_log_is_refused_alike(filled, offset):
    with pytest.raises(OffsetOutOfRange):
        list(filled.read(offset, until=100))
    with pytest.raises(OffsetOutOfRange):
        arrow_rows(filled, offset=offset, until=100)


# Limits.


def test_an_append_that_is_not_admitted_in_time_wrote_nothing(tmp_path):
    filesystem = HeldFilesystem()
    config = LogConfig(unflushed_bytes_max=1)
    store = EmbeddedStore(Store(str(tmp_path / "data"), log_config=config, filesystem=filesystem))
    log = store.log("orders")
    log.append(b"before")
    filesystem.gate.clear()

    def append_first() -> None:
        log.append(b"slow")

    def append_second() -> None:
        while log.inner.counters.appends < 2:
            pass
        with pytest.raises(DeadlineExceeded, match=r"not admitted within 0 s: .* unflushed"):
            log.append(b"late", timeout=0)
        filesystem.gate.set()

    run_all(append_first, append_second)
    assert log.append(b"after", timeout=60) == 2
    assert values(log) == [b"before", b"slow", b"after"]
    assert sum(log.inner.counters.refusals.values()) == 1
    store.close()


def test_an_append_that_was_admitted_outlives_its_deadline(tmp_path):
    filesystem = HeldFilesystem()
    store = EmbeddedStore(Store(str(tmp_path / "data"), filesystem=filesystem))
    log = store.log("orders")
    log.append(b"before")
    filesystem.gate.clear()

    async def append() -> int:
        task = asyncio.ensure_future(log.inner.append_records([Record(b"slow")], timeout=0))
        while log.inner.counters.appends < 2:  # noqa: ASYNC110 - turns of the loop, not time.
            await asyncio.sleep(0)
        filesystem.gate.set()
        return (await task).offset

    assert store.run(append()) == 1
    assert sum(log.inner.counters.refusals.values()) == 0
    store.close()


def test_a_durability_class_can_be_given_by_name(tmp_path):
    with millstream.open(tmp_path / "data", durability="disk") as store:
        assert store.log("a").inner.config.durability is Durability.DISK
        assert store.log("b", durability="memory").inner.config.durability is Durability.MEMORY
        kept = store.log("c", durability=Durability.FSYNC).inner.config
        assert kept.durability is Durability.FSYNC


def test_a_config_holds_whatever_durability_is_given_beside_it(tmp_path):
    config = LogConfig(durability=Durability.DISK, batch_size_max=100)
    with millstream.open(tmp_path / "data", config=config, durability="memory") as store:
        assert store.log("a").inner.config == config
        assert store.log("b", config=config, durability="memory").inner.config == config


def test_a_logs_durability_leaves_the_stores_other_settings_alone(tmp_path):
    config = LogConfig(batch_size_max=100)
    with millstream.open(tmp_path / "data", config=config) as store:
        log = store.log("a", durability="disk")
        assert log.inner.config.batch_size_max == 100


def test_an_unknown_durability_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(InvalidConfig, match="'forever'"):
        millstream.open(tmp_path / "data", durability="forever")
    assert list(tmp_path.iterdir()) == []
    with (
        millstream.open(tmp_path / "data", **QUICK) as store,
        pytest.raises(InvalidConfig, match="'forever'"),
    ):
        store.log("a", durability="forever")


def test_the_settings_of_the_store_reach_it(tmp_path):
    config = StoreConfig(sync_threads=1)
    with millstream.open(tmp_path / "data", store_config=config) as store:
        assert store.inner.config is config


# Closing.


def test_an_exception_inside_with_still_closes(tmp_path):
    def fail() -> None:
        with millstream.open(tmp_path / "data", **QUICK) as store:
            store.log("orders").append(b"first")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    with millstream.open(tmp_path / "data") as store:
        assert store.inner.recovered() == {}, "it was closed cleanly"
        assert values(store.log("orders")) == [b"first"]


def test_an_exception_inside_async_with_still_closes(tmp_path):
    async def fail() -> None:
        async with millstream.open(tmp_path / "data", **QUICK) as store:
            await (await store.log("orders")).append_records([Record(b"first")])
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(fail())
    with millstream.open(tmp_path / "data") as store:
        assert store.inner.recovered() == {}, "it was closed cleanly"
        assert values(store.log("orders")) == [b"first"]


def test_after_closing_nothing_can_be_appended(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        log = store.log("orders")
        log.append(b"first")
    with pytest.raises(LogClosed):
        log.append(b"second")
    with pytest.raises(LogClosed):
        log.append_many([Record(b"second")])
    with pytest.raises(LogClosed):
        store.log("orders")
    with pytest.raises(LogClosed):
        next(log.follow(1))


def test_closing_twice_is_fine(tmp_path):
    with millstream.open(tmp_path / "data", **QUICK) as store:
        store.close()
        store.close()


def test_who_still_waits_for_work_on_the_loop_when_the_store_closes_is_told(tmp_path):
    store = EmbeddedStore(Store(str(tmp_path / "data"), log_config=_disk()))
    begun, told = threading.Event(), threading.Event()

    async def never_ends() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(LogClosed):
            store.run(never_ends())
        told.set()

    threading.Thread(target=wait, daemon=True).start()
    begun.wait()
    store.close()
    assert told.wait(timeout=5)


def test_closing_ends_every_thread_that_opening_began(tmp_path):
    before = set(threading.enumerate())
    with millstream.open(tmp_path / "data") as store:
        store.log("orders").append(b"first")
    assert set(threading.enumerate()) == before


def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    with millstream.open(tmp_path / "data", **QUICK):
        inside = set(threading.enumerate())
        with (
            pytest.raises(StoreLocked),
            millstream.open(tmp_path / "data"),
        ):
            pass
        assert set(threading.enumerate()) == inside
    assert set(threading.enumerate()) == before


def test_try_append_returns_a_future_or_says_for_what_it_would_wait(tmp_path):
    config = LogConfig(unflushed_bytes_max=1)
    with millstream.open(tmp_path / "data", config=config) as store:
        log = store.log("t")
        assert log.try_append(b"a", key=b"k").result(timeout=60).offset == 0
        many = log.try_append_many([Record(b"b"), Record(b"c")], codec=Codec.LZ4)
        assert many.result(timeout=60).last_offset == 2

        async def two() -> tuple[object, object]:
            first = log.inner.try_append_records([Record(b"d")])
            try:
                log.inner.try_append_records([Record(b"e")])
            except WouldBlock as error:
                return await first, error.kind
            return await first, None

        first, kind = store.run(two())
        assert first.offset == 3
        assert kind == "log"


def test_a_batch_is_read_by_its_address(tmp_path):
    with millstream.open(tmp_path / "data") as store:
        log = store.log("t")
        log.append(b"before")
        appended = log.append_many([Record(b"a"), Record(b"b")])
        log.append(b"after")
        assert [(r.offset, r.value) for r in log.read_at(appended.address)] == [
            (1, b"a"),
            (2, b"b"),
        ]
        log.delete_before(2)
        assert [r.value for r in log.read_at(appended.address)] == [b"b"]
        log.delete_before(3)
        with pytest.raises(InvalidAddress, match="deleted"):
            log.read_at(appended.address)
        with pytest.raises(InvalidAddress, match="no segment starts at 77"):
            log.read_at(Address(77, 0))


def test_records_of_a_time_range_are_found_in_any_order(tmp_path):
    with millstream.open(tmp_path / "data") as store:
        log = store.log("t")
        for timestamp_ms in (5, 1, 9, 3, 5):
            log.append(Record(b"%d" % timestamp_ms, timestamp_ms=timestamp_ms))
        assert [r.offset for r in log.records_between(3, 6)] == [0, 3, 4]
        assert list(log.records_between(6, 6)) == []


def test_flush_makes_records_of_class_disk_survive_a_power_cut(tmp_path):
    config = LogConfig(durability=Durability.DISK, flush_ms=2**40)
    with millstream.open(tmp_path / "data", config=config) as store:
        log = store.log("t")
        log.append(b"a")
        assert log.synced_offset == 0
        log.flush(until=1)
        assert log.synced_offset == 1
