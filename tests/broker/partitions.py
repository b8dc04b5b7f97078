"""Partitions on a simulated disk, for tests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import SimpleNamespace
from typing import Any

from millstream.broker.partition.batch_opener import BatchOpener, DecompressionBudget
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.producers.snapshot import SNAPSHOT_FILE
from millstream.broker.partition.results import Appended
from millstream.config.schema import KafkaConfig, LogConfig
from millstream.errors import UnknownTopic
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.records.batch import split
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.files.names import LogName
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.manual_timers import ManualTimers
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.storage.logs import HeldExecutor, turns

TOPIC_ID = uuid.UUID(int=1)
DIRECTORY = "/data/topics/t/0"
SNAPSHOT = f"{DIRECTORY}/{SNAPSHOT_FILE}"
NOW_MS = ManualClock().wall_ms()


@dataclass(frozen=True)
class Config:
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    message_bytes_max: int = 1_048_588
    timestamp_type: str = "CreateTime"
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    checked_values: tuple[str, str] | None = None
    log: LogConfig = LogConfig()  # noqa: RUF009 - frozen

    lake: int | None = None

    def log_config(self) -> LogConfig:
        return self.log

    def lake_position(self, partition: int) -> int | None:
        return self.lake


SMALL_SEGMENTS = Config(log=LogConfig(segment_bytes_max=1024))


class Bench:
    """A partition on a simulated disk that can lose power."""

    def __init__(
        self,
        filesystem: Filesystem | None = None,
        *,
        config: Config | None = None,
        clock: ManualClock | None = None,
        store_background: HeldExecutor | None = None,
        seed: int = 1,
    ) -> None:
        self.filesystem = filesystem or SimulatedFilesystem()
        self.config = config or Config()
        self.clock = clock or ManualClock()
        self.background = HeldExecutor()
        self.store = Store(
            "/data",
            log_config=self.config.log,
            filesystem=self.filesystem,
            clock=self.clock,
            background=store_background or SeededBackground(seed),
        )
        self.store.open()
        self.partition = Partition(
            "t",
            0,
            topic_id=TOPIC_ID,
            store=self.store,
            config=self.config,
            clock=self.clock,
            producer_id_expiration_ms=3_600_000,
            background=self.background,
            # Its requests wait for memory as long as the test lets them, however slow the machine.
            opener=BatchOpener(
                DecompressionBudget(timers=ManualTimers(self.clock)), self.background
            ),
        )

    async def close(self) -> None:
        await self.partition.close()
        await self.store.close()

    async def upkeep(self, *, is_forced: bool = False) -> None:
        """Run log maintenance once, as the broker does."""

        async def open_log(name: LogName) -> Log:
            await self.partition.open()
            return self.store.get(*name)

        self.store.maintenance.opener = open_log
        self.store.maintenance.config_of = lambda _: self.partition.config.log_config()
        failures = self.store.maintenance.counters.failures
        await self.store.maintenance.run_once(is_forced=is_forced)
        assert self.store.maintenance.counters.failures == failures

    async def again(self, *, seed: int | None = None, is_clean: bool = False) -> Bench:
        """Open the same disk again, after a power cut or a clean close."""
        assert isinstance(self.filesystem, SimulatedFilesystem)
        if is_clean:
            await self.close()
            filesystem = self.filesystem.copy()
        else:
            filesystem = self.filesystem.crash(seed)
        bench = Bench(filesystem, config=self.config, clock=self.clock)
        await bench.partition.open()
        return bench


def run(
    scenario: Callable[[Bench], Awaitable[None]], bench: Bench | None = None, **options
) -> None:
    """Run a scenario with an open partition."""

    async def go() -> None:
        made = bench or Bench(**options)
        await made.partition.open()
        await scenario(made)
        await turns()

    asyncio.run(go())


def batch(
    *values: bytes,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    is_transactional: bool = False,
    timestamp_ms: int = NOW_MS,
    codec: Codec = Codec.NONE,
    key: bytes | None = None,
    keys: Sequence[bytes] | None = None,
) -> bytes:
    values = values or (b"v",)
    return build_batch(
        [Record(value, key=k) for value, k in zip(values, keys or repeat(key), strict=False)],
        now_ms=timestamp_ms,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        is_transactional=is_transactional,
    )


def append(partition: Partition, data: bytes, **options: Any) -> asyncio.Future[Appended]:
    """Append a batch and return a future for its acknowledgement."""
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    partition.appender.append(data, future, **options)
    return future


def values(
    partition: Partition, offset: int = 0, *, is_committed_only: bool = False
) -> list[bytes]:
    """Return the values that a consumer sees, filtered as Kafka's clients do."""
    found = []
    while True:
        got = partition.reader.read(offset, size_max=1 << 20, is_committed_only=is_committed_only)
        if not got.parts:
            return found
        opened = {(a.producer_id, a.first_offset) for a in got.aborted}
        aborted: set[int] = set()
        for header, data in split(b"".join(got.parts)):
            producer_id = header.producer_id
            for item in [one for one in opened if one[1] <= header.last_offset]:
                aborted.add(item[0])
                opened.remove(item)
            if header.is_control:
                aborted.discard(producer_id)
            elif not (header.is_transactional and producer_id in aborted):
                found += [r.value for r in read_all(data) if r.offset >= offset]
        offset = got.next_offset


class _Topics:
    """The part of `Topics` that a handler needs, with the bench's topic only."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def partition(self, name: str, index: int) -> Partition:
        if (name, index) != (self._partition.topic, self._partition.index):
            raise UnknownTopic(f"no partition {name}/{index}")
        return self._partition


async def ask(
    bench: Bench,
    handler: Callable[[Any, RequestContext], Awaitable[Any]],
    request: Any,
    version: int,
) -> Any:
    """Call a handler with a request, and encode and decode both messages as over the wire."""
    broker: Any = SimpleNamespace(topics=_Topics(bench.partition))
    sessions: Any = None
    context = RequestContext(
        broker=broker,
        config=KafkaConfig(),
        fetch_sessions=sessions,
        version=version,
        client_id="test",
    )
    sent = decode(type(request), memoryview(encode(request, version)), version)
    answer = await handler(sent, context)
    return decode(type(answer), memoryview(encode(answer, version)), version)
