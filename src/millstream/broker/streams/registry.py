"""Which streams there are, in memory and in the state log.

Who has forks is counted from the rows themselves, so no counter can be wrong. While a stream has
forks, its row stays when it goes, and with it its path stays taken; when the last of them goes, so
does the row, and so on up the chain, all in one put.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from millstream.broker.state.state_log import StateEntry, StateLog
from millstream.broker.streams.expiry import ExpiryClock, StreamLifetime
from millstream.broker.streams.row import (
    StreamRow,
    encode,
    producer_key,
    row_key,
    writers_key,
)
from millstream.broker.streams.stream import DurableStream
from millstream.clock import Clock

logger = logging.getLogger(__name__)


class StreamRegistry:
    """All streams, by path. What is in memory is there before it is durable: see `settled`."""

    def __init__(self, state: StateLog, *, clock: Clock, steady: ExpiryClock) -> None:
        self.state = state
        self.streams: dict[str, DurableStream] = {}
        self.lives: dict[str, StreamLifetime] = {}
        self.deleted: dict[str, StreamRow] = {}
        """What is gone and has forks."""
        self._forks: dict[str, set[str]] = {}
        self._by_topic: dict[str, str] = {}
        self._clock = clock
        self._steady = steady
        self._last_put: asyncio.Future[None] | None = None

    def add(self, stream: DurableStream) -> StreamLifetime:
        """Have a stream be there."""
        self.streams[stream.path] = stream
        self._by_topic[stream.row.topic] = stream.path
        life = self.lives[stream.path] = StreamLifetime(stream.row, self._clock, self._steady)
        return life

    def of_topic(self, name: str) -> DurableStream | None:
        """Return the stream whose records a topic keeps, if it keeps those of one."""
        path = self._by_topic.get(name)
        return None if path is None else self.streams.get(path)

    def has_forks(self, path: str) -> bool:
        """Whether anything was forked from it, and is not gone for good."""
        return bool(self._forks.get(path))

    def refer(self, path: str, row: StreamRow) -> None:
        """Count a fork for its source."""
        if row.fork is not None:
            self._forks.setdefault(row.fork.source, set()).add(path)

    def forget(self, path: str, row: StreamRow | None, producers: Sequence[str]) -> None:
        """Have a stream be gone, and all that only waited for that."""
        if (stream := self.streams.pop(path, None)) is not None:
            producers = [*producers, *stream.writers.producers]
            del self.lives[path]
            del self._by_topic[stream.row.topic]
            stream.end()
        entries: list[StateEntry] = [(writers_key(path), None)]
        entries += [(producer_key(path, one), None) for one in dict.fromkeys(producers)]
        if row is not None and self.has_forks(path) and row.state != "making":
            row = self.deleted[path] = msgspec.structs.replace(row, state="deleted")
            entries.append((row_key(path), encode(row)))
        else:
            entries += self._forget_chain(path, row)
        self.put(entries)

    def _forget_chain(self, path: str, row: StreamRow | None) -> list[StateEntry]:
        """Forget a row, and those of sources that only waited for it to go."""
        entries: list[StateEntry] = []
        while True:
            entries.append((row_key(path), None))
            self.deleted.pop(path, None)
            if row is None or row.fork is None:
                return entries
            source = row.fork.source
            forks = self._forks.get(source, set())
            forks.discard(path)
            if forks:
                return entries
            self._forks.pop(source, None)
            if source not in self.deleted:
                return entries
            path, row = source, self.deleted[source]

    def put(self, entries: Sequence[StateEntry]) -> None:
        """Put entries; `settled` waits for them."""
        self._last_put = self.state.put(entries)
        self._last_put.add_done_callback(_report)

    async def settled(self) -> None:
        """Return once all that was put is durable; puts take effect in their order."""
        if self._last_put is not None:
            await asyncio.shield(self._last_put)


def _report(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.error("what changed of a stream was not written down: %s", error)
