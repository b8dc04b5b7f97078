"""Topics of a running node, for tests of live delivery."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from millstream.broker.broker import Broker
from millstream.broker.partition.partition import Partition
from millstream.records.cursor import cursor_prefix
from millstream.records.record import Record
from millstream.testing.broker import RunningBroker
from tests.servers.http.calls import ask


class LiveTopic:
    """A topic of a running node that no other test uses."""

    def __init__(
        self, node: RunningBroker, *, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> None:
        self.node = node
        self.name = f"t-{uuid.uuid4()}"
        self.create(partitions=partitions, configs=configs)

    @property
    def broker(self) -> Broker:
        return self.node.server.broker

    def create(self, *, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        """Create the topic, also after it was deleted."""
        work = self.broker.topics.create(self.name, partitions=partitions, configs=configs)
        self.node.run(work)

    def delete(self) -> None:
        self.node.run(self.broker.topics.delete(self.name))

    def grow(self, count: int) -> None:
        self.node.run(self.broker.topics.add_partitions(self.name, count))

    def recreate(self, *, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        """Delete the topic, and create another one of its name."""
        self.delete()
        self.create(partitions=partitions, configs=configs)

    def evict(self, offset: int, *, partition: int = 0, reason: str = "retention") -> None:
        """Have retention delete everything before an offset."""
        self.node.run(self.broker.store.get(self.name, partition).evict_before(offset, reason))

    def partition(self, index: int = 0) -> Partition:
        return self.broker.topics.partition(self.name, index)

    def cursor(self, offset: int, index: int = 0) -> str:
        """Return the cursor of a position in the present topic."""
        prefix = cursor_prefix(self.name, index, self.broker.topics.get(self.name).id)
        return f"{prefix}{offset}"

    def append(self, *values: Any, partition: int = 0, node: str | None = None) -> list[int]:
        """Append records with one HTTP request; return their offsets."""
        records = [{"value": value, "partition": partition} for value in values]
        body: dict[str, Any] = {"records": records}
        if node is not None:
            body["node"] = node
        path = f"/v1/topics/{self.name}/records"
        found = ask(self.node.url, "POST", path, json.dumps(body).encode())
        assert found.status == 201, found.body
        offsets: list[int] = found.json["offsets"]
        return offsets

    def append_keyed(self, key: str, value: Any) -> None:
        """Append one record with a key."""
        body = {"records": [{"key": key, "value": value, "partition": 0}]}
        path = f"/v1/topics/{self.name}/records"
        assert ask(self.node.url, "POST", path, json.dumps(body).encode()).status == 201

    def append_bytes(self, values: Sequence[bytes], *, partition: int = 0) -> None:
        """Append records in one batch, without HTTP."""
        topic = self.broker.topics.get(self.name)
        records = [Record(value) for value in values]
        places = [partition] * len(records)
        self.node.run(self.broker.appends.append(topic, records, partitions=places))


def wait_until(node: RunningBroker, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; it is checked in every turn of the node's event loop."""

    async def wait() -> None:
        while not holds():  # noqa: ASYNC110 - what it waits for is no event of anybody.
            await asyncio.sleep(0)

    node.run(asyncio.wait_for(wait(), 30))
