"""`millstream.Client`: a node from Python that blocks.

    with millstream.Client("http://localhost:8080") as client:
        client.create_topic("orders", partitions=3)
        client.append("orders", {"n": 1}, key="k1")
        for record in client.read("orders"):
            print(record.value)

Any number of threads may share one client. Appends of several threads to the same partition share
requests. An iterator (`read`, `follow`, `ClientQueue.work`) is for one thread.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from millstream.audit.acknowledgements.file import AcknowledgementFile
from millstream.clients.http.core import operations as calls
from millstream.clients.http.core.address import parse_node_url
from millstream.clients.http.core.append.acknowledgement_recorder import AcknowledgementRecorder
from millstream.clients.http.core.append.appender import Appender, checked_records
from millstream.clients.http.core.append.new_record import NewRecord
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.read_state import PageOptions
from millstream.clients.http.core.steps import ClientContext, SendRequest, Steps
from millstream.clients.http.core.values import Headers, Key, Placed, QueueState, TopicInfo
from millstream.clients.http.sync.append_sender import AppendSender
from millstream.clients.http.sync.queue import ClientQueue
from millstream.clients.http.sync.readers import Follower, Reader
from millstream.clients.http.sync.topic import ClientTopic
from millstream.clients.http.transport.connection_pool import ConnectionPool
from millstream.clock import Clock, SystemClock
from millstream.errors import MillstreamError

T = TypeVar("T")


class Client:
    """A client of one node."""

    def __init__(
        self,
        url: str = "http://localhost:8080",
        *,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        acknowledgements: AcknowledgementFile | None = None,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
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
        self._connections = ConnectionPool(
            self.address, self.config, clock=self._around.clock, tls=tls
        )
        noting = None if acknowledgements is None else AcknowledgementRecorder(acknowledgements)
        self._appending = Appender(self._around, noting)
        self._deliveries = AppendSender(self._appending, self.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections. What is under way in other threads fails, and may have been done."""
        self._connections.close()

    # Topics.

    def create_topic(
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
    ) -> ClientTopic:
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
        self.run(calls.put_topic(self._around, name, settings))
        self._appending.forget(name)
        return self.topic(name)

    def topic(self, name: str) -> ClientTopic:
        """Return a topic to ask about; the node is not asked yet."""
        return ClientTopic(self, name)

    def topics(self) -> list[TopicInfo]:
        """List all topics, by rising name."""
        return self.run(calls.list_topics(self._around))

    # Records.

    def append(
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
        return self._append(topic, [record])[0]

    def append_many(self, topic: str, records: Iterable[Any]) -> list[Placed]:
        """Append records in their order, and return where each of them went.

        A `NewRecord` brings key, headers, partition and time; anything else is the value of one.
        Those that go to one partition are appended all or none. Where one partition fails, others
        may have been written; a note of the error says how many.
        """
        return self._append(topic, checked_records(records))

    def _append(self, topic: str, records: Sequence[NewRecord]) -> list[Placed]:
        rows = self.run(self._appending.place(topic, records))
        if rows is None:
            placed = self.run(self._appending.append_unplaced(topic, records))
            self._appending.note_unplaced(topic, records, placed)
            return placed
        return self._deliveries.deliver(topic, rows, len(records))

    def read(
        self,
        topic: str,
        *,
        from_: int | str = 0,
        partition: int | None = None,
        limit: int = 1_000,
        bytes_max: int = 1024 * 1024,
        exclude_node: str | None = None,
    ) -> Reader:
        """Read from an offset, or from the cursor of a reading, until the head.

        Gives records, and a `TopicGap` for what retention took before it was read. Without a
        `partition` all are read, one after the other. `limit` and `bytes_max` are for one page.
        """
        which = PageOptions(limit, bytes_max, exclude_node)
        started = self.run(
            calls.start_reading(
                self._appending, topic, partition=partition, from_=from_, which=which
            )
        )
        return Reader(self, started)

    def follow(
        self, *topics: str, from_: str = "latest", exclude_node: str | None = None
    ) -> Follower:
        """Follow topics live, from `earliest`, `latest` or a cursor on.

        Gives records and gaps as `read` does, and waits for more; a lost connection is made anew
        and goes on where it was. Raises `UnknownTopic` where a topic is deleted, and what was
        wrong where no connection came about for as long as `timeout_s`.
        """
        return Follower(self, topics, from_=from_, exclude_node=exclude_node)

    def delete_records(
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
        return self.run(
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

    def create_queue(
        self,
        name: str,
        *,
        lease_ms: int | None = None,
        deliveries_max: int | None = None,
        dead_letter: str | None = None,
        claim_window_ms: int | None = None,
    ) -> ClientQueue:
        """Make sure that there is a queue, and that it is set so; return it.

        What is left out stays as it is, or is the default of the node.
        """
        settings = {
            "lease_ms": lease_ms,
            "deliveries_max": deliveries_max,
            "dead_letter": dead_letter,
            "claim_window_ms": claim_window_ms,
        }
        self.run(calls.put_queue(self._around, name, settings))
        return self.queue(name)

    def queue(self, name: str) -> ClientQueue:
        """Return a queue to work with; the node is not asked yet."""
        return ClientQueue(self, name)

    def queues(self) -> list[QueueState]:
        """List all queues."""
        return self.run(calls.list_queues(self._around))

    # What the parts of a client share.

    @property
    def around(self) -> ClientContext:
        """What calls know of the world."""
        return self._around

    @property
    def connections(self) -> ConnectionPool:
        """The connections to the node."""
        return self._connections

    def pause(self, seconds: float) -> None:
        """Wait."""
        self._pause(seconds)

    def run(self, steps: Steps[T]) -> T:
        """Do what a call says, step by step, and return its result."""
        try:
            step = next(steps)
            while True:
                try:
                    done = self._do(step)
                except MillstreamError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    def _do(self, step: Any) -> Any:
        if isinstance(step, SendRequest):
            return self._connections.ask(step.request, step.timeout_s)
        return self._pause(step.seconds)
