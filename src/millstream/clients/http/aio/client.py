"""`millstream.AsyncClient`: the asyncio client of a node.

    async with millstream.AsyncClient("http://localhost:8080") as client:
        await client.create_topic("orders", partitions=3)
        await client.append("orders", {"n": 1}, key="k1")
        async for record in client.read("orders"):
            print(record.value)

Any number of tasks may share one client. Concurrent appends to one partition share requests.
An iterator (`read`, `follow`, `AsyncQueue.work`) is for one task.

The blocking client in `millstream.clients.http.sync` is generated from this package by
`tools/generate_sync_client.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from millstream.clients.http.aio.append_sender import AsyncAppendSender
from millstream.clients.http.aio.queue import AsyncQueue
from millstream.clients.http.aio.readers import AsyncFollower, AsyncReader
from millstream.clients.http.aio.step_runner import AsyncStepRunner
from millstream.clients.http.aio.topic import AsyncTopic
from millstream.clients.http.core import operations
from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.append.appender import Appender, checked_records
from millstream.clients.http.core.append.new_record import NewRecord
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.node_addresses import parse_node_urls
from millstream.clients.http.core.read_state import PageOptions
from millstream.clients.http.core.steps import ClientContext, Steps
from millstream.clients.http.core.values import Headers, Key, Placed, QueueState, TopicInfo
from millstream.clients.http.transport.async_connection_pool import AsyncConnectionPool
from millstream.clock import Clock, SystemClock

if TYPE_CHECKING:
    import ssl

    from millstream.audit.acknowledgements.file import AcknowledgementFile
    from millstream.clients.http.core.append.acknowledgement_recorder import AcknowledgementRecorder

T = TypeVar("T")


class AsyncClient:
    """Client of a node, or of a cluster: every node takes every request."""

    def __init__(
        self,
        url: str | Sequence[str] = "http://localhost:8080",
        *,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        acknowledgements: AcknowledgementFile | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Create a client for the node at `url`. It connects on first use.

        `url` may be several addresses of one cluster, as a sequence or with commas between them. If
        a node fails or is not available, the client goes on with the next one.

        The client does not follow redirects and does not read proxy settings from the environment.
        For `https://`, `config.tls` names the files of certificates, which a context `tls`
        replaces. With `acknowledgements`, every
        appended record is written to that file before `append` returns; the caller closes the file.
        The remaining arguments are for tests.
        """
        addresses = parse_node_urls(url)
        self.config = config or ClientConfig()
        self._context = ClientContext(addresses, self.config, clock or SystemClock(), jitter)
        self._connections = {
            address: AsyncConnectionPool(address, self.config, clock=self._context.clock, tls=tls)
            for address in addresses.all
        }
        self._runner = AsyncStepRunner(self._connections, pause)
        self._appender = Appender(self._context, _recorder(acknowledgements))
        self._sender = AsyncAppendSender(self._appender, self.run)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Requests in flight fail; they may have taken effect."""
        await self._sender.close()
        for connections in self._connections.values():
            await connections.close()

    # Topics.

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        durability: str | None = None,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        retention_records: int | None = None,
        discard: str | None = None,
        cleanup: str | None = None,
        schema: Mapping[str, str] | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> AsyncTopic:
        """Create a topic, or change the given settings of an existing one.

        Settings that are not given keep their value, or take the node's default in a new topic, so
        the call can be repeated. `configs` takes any topic config by its Kafka name; `None` resets
        one to its default. `replicas` is for new topics of a cluster.
        """
        settings = {
            "partitions": partitions,
            "replicas": replicas,
            "durability": durability,
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "retention_records": retention_records,
            "discard": discard,
            "cleanup": cleanup,
            "schema": schema,
            "configs": configs,
        }
        await self.run(operations.put_topic(self._context, name, settings))
        self._appender.forget(name)
        return self.topic(name)

    def topic(self, name: str) -> AsyncTopic:
        """Return a handle of a topic. Sends no request."""
        return AsyncTopic(self, name)

    async def topics(self) -> list[TopicInfo]:
        """List all topics, sorted by name."""
        return await self.run(operations.list_topics(self._context))

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
        """Append one record and return its partition and offset, once it is durable.

        Bytes are stored as they are, any other value as JSON. The record is appended exactly once,
        however often the request is retried. Raises `NodeUnreachable` with `may_be_done` set if the
        outcome is unknown.
        """
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        placed = await self._sender.append(topic, [record])
        return placed[0]

    async def append_many(self, topic: str, records: Iterable[Any]) -> list[Placed]:
        """Append records in order and return where each of them was stored.

        A `NewRecord` carries key, headers, partition and time; anything else is taken as a value.
        The records of one partition are appended all or none. If one partition fails, others may
        have been written; a note on the error says how many.
        """
        return await self._sender.append(topic, checked_records(records))

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
        """Read from an offset, or from the cursor of an earlier reader, up to the end of the log.

        Yields records, and a `TopicGap` for records that retention deleted. Without `partition`,
        all partitions are read one after another. `limit` and `bytes_max` apply to one page.
        """
        page = PageOptions(limit, bytes_max, exclude_node)
        start = operations.start_reading(
            self._appender, topic, partition=partition, from_=from_, options=page
        )
        return AsyncReader(self, start)

    def follow(
        self, *topics: str, from_: str = "latest", exclude_node: str | None = None
    ) -> AsyncFollower:
        """Follow topics live, from `earliest`, `latest` or a cursor.

        Yields records and gaps as `read` does and waits for more. A lost connection is reopened and
        continues at the same position. Raises `UnknownTopic` if a topic is deleted, and the last
        error if no connection could be made for `timeout_s`.
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
        """Delete records permanently: by key, by key prefix, or before an offset.

        Returns the number of deleted records. If a request was lost and retried, the number may be
        too small.
        """
        return await self.run(
            operations.delete_records(
                self._context,
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
        """Create a queue, or change the given settings of an existing one.

        Settings that are not given keep their value, or take the node's default.
        """
        settings = {
            "lease_ms": lease_ms,
            "deliveries_max": deliveries_max,
            "dead_letter": dead_letter,
            "claim_window_ms": claim_window_ms,
        }
        await self.run(operations.put_queue(self._context, name, settings))
        return self.queue(name)

    def queue(self, name: str) -> AsyncQueue:
        """Return a handle of a queue. Sends no request."""
        return AsyncQueue(self, name)

    async def queues(self) -> list[QueueState]:
        """List all queues."""
        return await self.run(operations.list_queues(self._context))

    # For the other modules of this package.

    @property
    def context(self) -> ClientContext:
        return self._context

    @property
    def address(self) -> NodeUrl:
        """The address of the node that is used now."""
        return self._context.address

    def connections(self, address: NodeUrl) -> AsyncConnectionPool:
        """Return the connections to a node."""
        return self._connections[address]

    async def pause(self, seconds: float) -> None:
        await self._runner.pause(seconds)

    async def run(self, steps: Steps[T]) -> T:
        """Execute the steps of an operation and return its result."""
        return await self._runner.run(steps)


def _recorder(file: AcknowledgementFile | None) -> AcknowledgementRecorder | None:
    """Return what writes acknowledgements to `file`; it is imported only if there is one."""
    if file is None:
        return None
    from millstream.clients.http.core.append.acknowledgement_recorder import (  # noqa: PLC0415
        AcknowledgementRecorder,
    )

    return AcknowledgementRecorder(file)
