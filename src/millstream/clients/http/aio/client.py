"""`millstream.AsyncClient`: a node from Python that awaits.

    async with millstream.AsyncClient("http://localhost:8080") as client:
        await client.create_topic("orders", partitions=3)
        await client.append("orders", {"n": 1}, key="k1")
        async for record in client.read("orders"):
            print(record.value)

A client is for one event loop, and any number of its tasks. Appends of several tasks to the same
partition share requests, so many at once are fast.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from millstream.audit.acknowledgements.file import AcknowledgementFile
from millstream.clients.http.aio.append_sender import AsyncAppendSender
from millstream.clients.http.aio.queue import AsyncQueue
from millstream.clients.http.aio.readers import AsyncFollower, AsyncReader
from millstream.clients.http.aio.topic import AsyncTopic
from millstream.clients.http.core import operations as calls
from millstream.clients.http.core.address import parse_node_url
from millstream.clients.http.core.append.acknowledgement_recorder import AcknowledgementRecorder
from millstream.clients.http.core.append.appender import Appender, Rows, checked_records
from millstream.clients.http.core.append.new_record import NewRecord
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.read_state import PageOptions
from millstream.clients.http.core.steps import ClientContext, SendRequest, Steps
from millstream.clients.http.core.values import Headers, Key, Placed, QueueState, TopicInfo
from millstream.clients.http.transport.async_connection_pool import AsyncConnectionPool
from millstream.clock import Clock, SystemClock
from millstream.errors import MillstreamError

T = TypeVar("T")


class AsyncClient:
    """A client of one node."""

    def __init__(
        self,
        url: str = "http://localhost:8080",
        *,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        acknowledgements: AcknowledgementFile | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Make a client of the node at `url`; it connects when it is first used.

        It connects there and nowhere else: it follows no redirect, and takes no proxy from the
        environment. `tls` is for `https://`, where the certificates that the system knows are not
        the right ones. `acknowledgements` has every record written down that was appended, before
        `append` returns; whoever opened that file closes it. The other arguments are for tests.
        """
        self.address = parse_node_url(url)
        self.config = config or ClientConfig()
        self._around = ClientContext(self.address, self.config, clock or SystemClock(), chance)
        self._pause = pause
        self._connections = AsyncConnectionPool(
            self.address, self.config, clock=self._around.clock, tls=tls
        )
        noting = None if acknowledgements is None else AcknowledgementRecorder(acknowledgements)
        self._appending = Appender(self._around, noting)
        self._placing = asyncio.Lock()
        self._deliveries = AsyncAppendSender(self._appending, self.config, self.run)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections. What is under way in other tasks fails, and may have been done."""
        await self._deliveries.close()
        await self._connections.close()

    # Topics.

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        durability: str | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        retention_records: int | None = None,
        discard: str | None = None,
        cleanup: str | None = None,
        schema: Mapping[str, str] | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> AsyncTopic:
        """Make sure that there is a topic, and that it is set so; return it.

        What is left out stays as it is, or is the default of the node where the topic is new. So
        asking twice is as asking once. In `configs` stands any config of a topic by the name that
        Kafka has for it, and `None` has it be the default again.
        """
        settings = {
            "partitions": partitions,
            "durability": durability,
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "retention_records": retention_records,
            "discard": discard,
            "cleanup": cleanup,
            "schema": schema,
            "configs": configs,
        }
        await self.run(calls.put_topic(self._around, name, settings))
        self._appending.forget(name)
        return self.topic(name)

    def topic(self, name: str) -> AsyncTopic:
        """Return a topic to ask about; the node is not asked yet."""
        return AsyncTopic(self, name)

    async def topics(self) -> list[TopicInfo]:
        """List all topics, by rising name."""
        return await self.run(calls.list_topics(self._around))

    # Records.

    async def append(
        self,
        topic: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Placed:
        """Append a record, and return where it went, once it is as safe as its topic promises.

        Bytes go as they are, anything else as JSON. It is appended once, however often it had to
        be sent. Raises `NodeUnreachable` with `may_be_done` where that cannot be told.
        """
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        return (await self._append(topic, [record]))[0]

    async def append_many(self, topic: str, records: Iterable[Any]) -> list[Placed]:
        """Append records in their order, and return where each of them went.

        A `NewRecord` brings key, headers, partition and time; anything else is the value of one.
        Those that go to one partition are appended all or none. Where one partition fails, others
        may have been written; a note of the error says how many.
        """
        return await self._append(topic, checked_records(records))

    async def _append(self, topic: str, records: Sequence[NewRecord]) -> list[Placed]:
        rows = await self._place(topic, records)
        if rows is None:
            placed = await self.run(self._appending.append_unplaced(topic, records))
            if self._appending.is_noting:
                await asyncio.to_thread(self._appending.note_unplaced, topic, records, placed)
            return placed
        return await self._deliveries.deliver(topic, rows, len(records))

    async def _place(self, topic: str, records: Sequence[NewRecord]) -> Rows | None:
        """Find out where records go; where the node has to be asked, one task asks for all."""
        placing = self._appending.place(topic, records)
        if self._appending.known_count(topic) is not None and not self._placing.locked():
            return await self.run(placing)
        async with self._placing:
            return await self.run(placing)

    def read(
        self,
        topic: str,
        *,
        from_: int | str = 0,
        partition: int | None = None,
        limit: int = 1_000,
        bytes_max: int = 1024 * 1024,
        exclude_node: str | None = None,
    ) -> AsyncReader:
        """Read from an offset, or from the cursor of a reading, until the head.

        Gives records, and a `TopicGap` for what retention took before it was read. Without a
        `partition` all are read, one after the other. `limit` and `bytes_max` are for one page.
        """
        which = PageOptions(limit, bytes_max, exclude_node)
        starting = calls.start_reading(
            self._appending, topic, partition=partition, from_=from_, which=which
        )
        return AsyncReader(self, starting)

    def follow(
        self, *topics: str, from_: str = "latest", exclude_node: str | None = None
    ) -> AsyncFollower:
        """Follow topics live, from `earliest`, `latest` or a cursor on.

        Gives records and gaps as `read` does, and waits for more; a lost connection is made anew
        and goes on where it was. Raises `UnknownTopic` where a topic is deleted, and what was
        wrong where no connection came about for as long as `timeout_s`.
        """
        return AsyncFollower(self, topics, from_=from_, exclude_node=exclude_node)

    async def delete_records(
        self,
        topic: str,
        *,
        key: Key = None,
        key_prefix: Key = None,
        before: int | None = None,
        partition: int | None = None,
    ) -> int:
        """Delete records for good: of a key, whose key begins so, or before an offset.

        Returns how many went. Where an attempt was lost and repeated, that may be fewer than went
        by both.
        """
        return await self.run(
            calls.delete_records(
                self._around,
                topic,
                key=key,
                key_prefix=key_prefix,
                before=before,
                partition=partition,
            )
        )

    # Queues.

    async def create_queue(
        self,
        name: str,
        *,
        lease_ms: int | None = None,
        deliveries_max: int | None = None,
        dead_letter: str | None = None,
        claim_window_ms: int | None = None,
    ) -> AsyncQueue:
        """Make sure that there is a queue, and that it is set so; return it.

        What is left out stays as it is, or is the default of the node.
        """
        settings = {
            "lease_ms": lease_ms,
            "deliveries_max": deliveries_max,
            "dead_letter": dead_letter,
            "claim_window_ms": claim_window_ms,
        }
        await self.run(calls.put_queue(self._around, name, settings))
        return self.queue(name)

    def queue(self, name: str) -> AsyncQueue:
        """Return a queue to work with; the node is not asked yet."""
        return AsyncQueue(self, name)

    async def queues(self) -> list[QueueState]:
        """List all queues."""
        return await self.run(calls.list_queues(self._around))

    # What the parts of a client share.

    @property
    def around(self) -> ClientContext:
        """What calls know of the world."""
        return self._around

    @property
    def connections(self) -> AsyncConnectionPool:
        """The connections to the node."""
        return self._connections

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await self._pause(seconds)

    async def run(self, steps: Steps[T]) -> T:
        """Do what a call says, step by step, and return its result."""
        try:
            step = next(steps)
            while True:
                try:
                    done = await self._do(step)
                except MillstreamError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def _do(self, step: Any) -> Any:
        if isinstance(step, SendRequest):
            return await self._connections.ask(step.request, step.timeout_s)
        return await self._pause(step.seconds)
