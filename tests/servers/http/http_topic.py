"""A topic of a running node, as an HTTP client sees it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlencode

from millstream.broker.broker import Broker
from millstream.broker.partition.partition import Partition
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.cursor import cursor_prefix
from millstream.records.record import Record
from millstream.testing.broker import RunningBroker
from tests.broker.partitions import append

from .calls import Answer, ask

T = TypeVar("T")


class HttpTopic:
    """A topic of the running node that no other test uses."""

    def __init__(self, running: RunningBroker, **fields: Any) -> None:
        self.running = running
        self.name = f"t-{uuid.uuid4()}"
        self.path = f"/v1/topics/{self.name}"
        assert self.ask("PUT", "", fields).status == 201

    @property
    def broker(self) -> Broker:
        return self.running.server.broker

    def partition(self, index: int = 0) -> Partition:
        return self.broker.topics.partition(self.name, index)

    def cursor(self, offset: int, index: int = 0) -> str:
        """Return the cursor of a position in the present topic."""
        prefix = cursor_prefix(self.name, index, self.broker.topics.get(self.name).id)
        return f"{prefix}{offset}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's event loop."""
        return self.running.run(work)

    def ask(self, method: str, rest: str, body: Any = None, **query: Any) -> Answer:
        words = urlencode({name.rstrip("_"): value for name, value in query.items()})
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return ask(self.running.url, method, f"{self.path}{rest}?{words}".rstrip("?"), data)

    def post(self, *records: Any, **fields: Any) -> Answer:
        return self.ask("POST", "/records", {"records": records, **fields})

    def append(self, *records: Any, **fields: Any) -> Any:
        answer = self.post(*records, **fields)
        assert answer.status == 201, answer.body
        return answer.json

    def append_values(self, *values: Any, **fields: Any) -> list[int]:
        found: list[int] = self.append(*({"value": one} for one in values), **fields)["offsets"]
        return found

    def get(self, **query: Any) -> Answer:
        return self.ask("GET", "/records", **query)

    def read(self, **query: Any) -> Any:
        answer = self.get(**query)
        assert answer.status == 200, answer.body
        return answer.json

    def values(self, **query: Any) -> list[Any]:
        return [one["value"] for one in self.read(**query)["records"]]

    def follow(self, from_: int = 0, **query: Any) -> tuple[list[tuple[int, Any]], list[Any]]:
        """Return the records and gaps that a reader sees that follows `next` to the head."""
        records: list[tuple[int, Any]] = []
        gaps: list[Any] = []
        while True:
            found = self.read(from_=from_, **query)
            records += [(one["offset"], one["value"]) for one in found["records"]]
            gaps += found["gaps"]
            if found["next"] == from_:
                return records, gaps
            from_ = found["next"]

    def append_batch(self, *records: Record, codec: Codec = Codec.NONE, **stamp: Any) -> None:
        """Append one batch, as the Kafka server does."""

        async def go() -> None:
            partition = self.partition()
            await partition.open()
            batch = build_batch(records, now_ms=1_700_000_000_000, codec=codec, **stamp)
            await append(partition, batch)

        self.run(go())

    def recreate(self, **fields: Any) -> None:
        """Delete the topic, and create another one of its name."""
        assert self.ask("DELETE", "").status == 204
        assert self.ask("PUT", "", fields).status == 201

    def evict_before(self, offset: int, reason: str = "retention") -> None:
        """Have retention delete everything before an offset."""

        async def go() -> None:
            await self.broker.store.get(self.name).evict_before(offset, reason)

        self.run(go())

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, for half a minute at most."""

        async def go() -> None:
            async with asyncio.timeout(30):
                while not holds():  # noqa: ASYNC110 - nobody tells.
                    await asyncio.sleep(0)

        self.run(go())

    def waiting(self, count: int, index: int = 0) -> None:
        """Wait until so many clients wait for records of a partition."""
        partition = self.partition(index)
        self.until(lambda: len(partition._watchers) == count)


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run a function in a thread."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work)
    finally:
        pool.shutdown(wait=False)
