"""A store inside your own process.

    with millstream.open("data") as store:
        log = store.log("orders")
        log.append(b"first")
        for record in log.read():
            print(record.offset, record.value)

With `async with`, the same call returns the store itself, whose methods are coroutines. The
blocking form runs that store on an event loop in its own thread, so concurrent appends of many
threads share their syncs; reads run in the calling thread and take no lock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.config.schema import Durability, LogConfig, StoreConfig, parse_durability
from millstream.errors import LogClosed, OffsetOutOfRange
from millstream.records.arrow.decoder import COLUMNS, arrow_batches
from millstream.records.compression import Codec
from millstream.records.iterate import read_all
from millstream.records.record import Gap, Record, StoredRecord
from millstream.storage.append.pending_append import Appended
from millstream.storage.compaction.cleaner import CleanerResult
from millstream.storage.files.names import LogName
from millstream.storage.log import Log
from millstream.storage.retention.eviction import Eviction
from millstream.storage.segment.reader import Address, TimestampedOffset
from millstream.storage.store import Store

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


def open_store(
    path: str | PathLike[str],
    *,
    durability: Durability | str = Durability.FSYNC,
    config: LogConfig | None = None,
    store_config: StoreConfig | None = None,
) -> EmbeddedStoreContext:
    """Open the data directory at `path`; create it if it does not exist.

    Use the result with `with` or with `async with`. `durability` is the class of new logs; `config`
    sets everything about them, and then `durability` is ignored.
    """
    if config is None:
        if isinstance(durability, str):
            durability = parse_durability(durability)
        config = LogConfig(durability=durability)
    store = Store(fspath(path), config=store_config, log_config=config, draw_id=uuid.uuid4)
    return EmbeddedStoreContext(store)


class EmbeddedStoreContext:
    """A store to be opened by `with` or by `async with`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._embedded: EmbeddedStore | None = None

    def __enter__(self) -> EmbeddedStore:
        self._embedded = EmbeddedStore(self._store)
        return self._embedded

    def __exit__(self, *_: object) -> None:
        assert self._embedded is not None
        self._embedded.close()

    async def __aenter__(self) -> Store:
        store = await self._store.__aenter__()
        store.start_maintenance()
        return store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()


class EmbeddedStore:
    """A store for code without an event loop. Thread-safe."""

    def __init__(self, store: Store) -> None:
        store.open()
        self.inner = store
        """The store itself, which belongs to the loop; any thread may read its metrics."""
        self._loop = _LoopThread()
        self._loop.run(_start_maintenance(store))

    def log(
        self,
        topic: str,
        partition: int = 0,
        *,
        durability: Durability | str | None = None,
        config: LogConfig | None = None,
    ) -> EmbeddedLog:
        """Return a log; create it if it does not exist."""
        if durability is not None and config is None:
            name = durability.value if isinstance(durability, Durability) else durability
            config = replace(self.inner.log_config, durability=parse_durability(name))
        return EmbeddedLog(self._loop.run(self.inner.log(topic, partition, config=config)), self)

    def delete(self, topic: str) -> None:
        """Delete all logs of a topic; durable when this returns, and the name can be used again."""
        self._loop.run(self.inner.delete(topic))

    def names(self) -> list[LogName]:
        """Return the names of all logs, sorted."""
        return self.inner.names()

    def close(self) -> None:
        """Commit and seal every log and release the directory. Further calls have no effect."""
        if not self._loop.is_ended:
            try:
                self._loop.run(self.inner.close())
            finally:
                self._loop.end()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the store's event loop, and return its result."""
        return self._loop.run(work)


async def _start_maintenance(store: Store) -> None:
    """Start the maintenance of a store on the running loop."""
    store.start_maintenance()


class EmbeddedLog:
    """A log for code without an event loop. Thread-safe."""

    def __init__(self, log: Log, store: EmbeddedStore) -> None:
        self.inner = log
        self._store = store

    @property
    def start_offset(self) -> int:
        """The first readable offset."""
        return self.inner.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last committed record."""
        return self.inner.end_offset

    def append(
        self,
        value: bytes | Record,
        *,
        key: bytes | None = None,
        timeout: float | None = None,
    ) -> int:
        """Append one record, and return its offset once it is as durable as its class promises."""
        record = value if isinstance(value, Record) else Record(value, key=key)
        return self.append_many([record], timeout=timeout).offset

    def append_many(
        self,
        records: Sequence[Record],
        *,
        codec: Codec = Codec.NONE,
        timeout: float | None = None,
    ) -> Appended:
        """Append records as one batch: all of them, or none."""
        work = self.inner.append_records(records, codec=codec, timeout=timeout)
        return self._store.run(work)

    def try_append(
        self, value: bytes | Record, *, key: bytes | None = None
    ) -> concurrent.futures.Future[Appended]:
        """Append one record if it can be admitted now; else raise `WouldBlock` with its `kind`.

        The future ends once the record is as durable as its class promises.
        """
        record = value if isinstance(value, Record) else Record(value, key=key)
        return self.try_append_many([record])

    def try_append_many(
        self, records: Sequence[Record], *, codec: Codec = Codec.NONE
    ) -> concurrent.futures.Future[Appended]:
        """Append records as one batch if it can be admitted now; see `try_append`."""
        outcome: concurrent.futures.Future[Appended] = concurrent.futures.Future()
        self._store.run(self._try_append(records, codec, outcome))
        return outcome

    async def _try_append(
        self,
        records: Sequence[Record],
        codec: Codec,
        outcome: concurrent.futures.Future[Appended],
    ) -> None:
        admitted = self.inner.try_append_records(records, codec=codec)

        def end(appended: asyncio.Future[Appended]) -> None:
            if appended.cancelled():
                outcome.set_exception(LogClosed("the store was closed during the call"))
            elif error := appended.exception():
                outcome.set_exception(error)
            else:
                outcome.set_result(appended.result())

        admitted.add_done_callback(end)

    @property
    def synced_offset(self) -> int:
        """The end of the records that survive a power cut."""
        return self.inner.synced_offset

    def flush(self, until: int | None = None) -> None:
        """Return once the records before `until`, or all, survive a power cut."""
        self._store.run(self.inner.flush(until))

    def cursor_at(self, offset: int) -> str:
        """Return the position `offset` of this log as text, to be stored by a reader.

        It names the log: if the log is deleted and created again, a reader that continues at the
        cursor gets a `Gap` with the reason `recreated`, and starts over.
        """
        return self.inner.cursor_at(offset)

    def read(
        self, offset: int | str | None = None, *, until: int | None = None
    ) -> Iterator[StoredRecord | Gap]:
        """Yield the committed records from an offset or a cursor on, or from the first.

        A `Gap` names records that were evicted before they could be read.
        """
        return self.inner.records(offset, until=until)

    def follow(self, offset: int | str | None = None) -> Iterator[StoredRecord | Gap]:
        """Yield the records from an offset or a cursor on, or from the first; wait for new ones.

        Gaps are reported as by `read`, also to a reader that waited at the end and was too slow.
        """
        position, recreated = self.inner.start_of(offset)
        if recreated is not None:
            yield recreated
        while True:
            self._store.run(self.inner.wait_for(position))
            try:
                chunk = self.inner.read(position)
            except OffsetOutOfRange:
                gap, position = self.inner.overtaken(position)
                if gap is not None:
                    yield gap
                continue
            for record in read_all(chunk.data):
                if record.offset >= position:
                    yield record
            position = chunk.next_offset

    def gap_at(self, offset: int) -> Gap | None:
        """Return the gap that a reader at `offset` has, if records there were evicted."""
        return self.inner.gap_at(offset)

    def read_at(self, address: Address) -> list[StoredRecord]:
        """Return the records of the batch at a physical address, without an index.

        An append returns the address of its batch. `InvalidAddress` means that no batch starts
        there, that it was deleted, or that its segment was rewritten.
        """
        start = self.start_offset
        return [r for r in read_all(self.inner.read_at(address).data) if r.offset >= start]

    def records_between(self, first_ms: int, last_ms: int) -> Iterator[StoredRecord]:
        """Yield the records with `first_ms` <= timestamp < `last_ms`, in the order of the log.

        Misses none, even if timestamps are not in order.
        """
        return self.inner.records_between(first_ms, last_ms)

    def find_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """Return the first record with timestamp `timestamp_ms` or later."""
        return self.inner.find_timestamp(timestamp_ms)

    def find_latest(self) -> TimestampedOffset | None:
        """Return the record with the greatest timestamp; of several, the first."""
        return self.inner.find_latest()

    def delete_before(self, offset: int) -> None:
        """Delete all records before `offset`; durable when this returns."""
        self._store.run(self.inner.delete_before(offset))

    def delete_keys(
        self,
        *,
        key: bytes | None = None,
        prefix: bytes | None = None,
        before: int | None = None,
    ) -> int:
        """Delete all records with this key, or with a key that starts with `prefix`.

        Only records before the offset `before`, if that is given. Returns their number. Durable
        when this returns.
        """
        return self._store.run(self.inner.delete_keys(key=key, prefix=prefix, before=before))

    def evict(self, *, dry_run: bool = False) -> Eviction | None:
        """Evict what the settings of the log require, and return what that is."""
        plan = self.inner.plan_eviction()
        if plan is not None and not dry_run:
            self._store.run(self.inner.evict_before(plan.before_offset, plan.gap_reason))
        return plan

    def compact(self) -> CleanerResult | None:
        """Rewrite the log without deleted and, if it is compacted, superseded records.

        Covers all committed records, whether that is worthwhile or not. Returns what was done.
        """
        return self._store.run(self._compact())

    async def _compact(self) -> CleanerResult | None:
        await self.inner.roll()  # Only sealed segments are rewritten.
        return await self._store.inner.maintenance.clean(self.inner, is_forced=True)

    def read_arrow(
        self,
        offset: int | str | None = None,
        *,
        until: int | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the committed records as Arrow batches; needs the extra `arrow`.

        A table cannot have a gap: if records were evicted before they could be read, it ends with
        `OffsetOutOfRange`, which names them. So it does if `offset` is a cursor of a deleted log.
        """
        position, recreated = self.inner.start_of(offset)
        end = self.end_offset if until is None else until
        if recreated is not None:
            error = OffsetOutOfRange(recreated.from_offset, start=position, end=end)
            error.add_note(f"{self.inner.name} was deleted and created again: {offset}")
            raise error
        while position < end:
            try:
                chunk = self.inner.read(position)
            except OffsetOutOfRange as error:
                gap, after = self.inner.overtaken(position)
                if gap is not None:
                    error.add_note(f"offsets {gap.from_offset} to {gap.to_offset}: {gap.reason}")
                    raise
                position = after
                continue
            if not chunk.data:
                return
            yield from arrow_batches(
                chunk.data, columns=columns, check=False, start=position, end=end
            )
            position = chunk.next_offset


class _LoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="millstream-loop", daemon=True
        )
        self._thread.start()
        self._lock = threading.Lock()
        """Held while work is passed to the loop, so that none is passed after its end."""
        self.is_ended = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it."""
        with self._lock:
            if self.is_ended:
                work.close()
                raise LogClosed("the store is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LogClosed("the store was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Cancel all pending calls, stop the loop and join its thread."""
        with self._lock:
            self.is_ended = True
            cancelling = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
        cancelling.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - absent on platforms that it does not support.
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
