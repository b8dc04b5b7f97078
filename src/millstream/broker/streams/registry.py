"""The existing streams, in memory and in the state log.

Forks are counted from the rows themselves, so no counter can be wrong. While a stream has forks,
its row stays after its deletion, and its path stays in use; when the last fork is deleted, so is
the row, and so on up the chain, all in one put.
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
    """All streams by path. Changes are visible in memory before they are durable: see `settled`."""

    def __init__(self, state: StateLog, *, clock: Clock, retention_clock: ExpiryClock) -> None:
        self.state = state
        self.streams: dict[str, DurableStream] = {}
        self.lifetimes: dict[str, StreamLifetime] = {}
        self.deleted: dict[str, StreamRow] = {}
        """Deleted streams that have forks."""
        self._forks: dict[str, set[str]] = {}
        self._by_topic: dict[str, str] = {}
        self._clock = clock
        self._retention_clock = retention_clock
        self._last_put: asyncio.Future[None] | None = None

    def add(self, stream: DurableStream) -> StreamLifetime:
        self.streams[stream.path] = stream
        self._by_topic[stream.row.topic] = stream.path
        lifetime = self.lifetimes[stream.path] = StreamLifetime(
            stream.row, self._clock, self._retention_clock
        )
        return lifetime

    def of_topic(self, name: str) -> DurableStream | None:
        """Return the stream whose records a topic stores, if there is one."""
        path = self._by_topic.get(name)
        return None if path is None else self.streams.get(path)

    def has_forks(self, path: str) -> bool:
        """Return whether the stream has forks that still have a row."""
        return bool(self._forks.get(path))

    def add_fork(self, path: str, row: StreamRow) -> None:
        """Count a fork for its source."""
        if row.fork is not None:
            self._forks.setdefault(row.fork.source, set()).add(path)

    def remove(self, path: str, row: StreamRow | None, producers: Sequence[str]) -> None:
        """Remove a stream, and the rows of its sources that were kept only for it."""
        if (stream := self.streams.pop(path, None)) is not None:
            producers = [*producers, *stream.writers.producers]
            del self.lifetimes[path]
            del self._by_topic[stream.row.topic]
            stream.mark_deleted()
        entries: list[StateEntry] = [(writers_key(path), None)]
        entries += [(producer_key(path, producer), None) for producer in dict.fromkeys(producers)]
        if row is not None and self.has_forks(path) and row.state != "making":
            row = self.deleted[path] = msgspec.structs.replace(row, state="deleted")
            entries.append((row_key(path), encode(row)))
        else:
            entries += self._remove_chain(path, row)
        self.put(entries)

    def _remove_chain(self, path: str, row: StreamRow | None) -> list[StateEntry]:
        """Remove a row, and those of deleted sources that have no other fork."""
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
        """Store entries; `settled` waits for them."""
        self._last_put = self.state.put(entries)
        self._last_put.add_done_callback(_report)

    async def settled(self) -> None:
        """Return once all entries that were put are durable; puts take effect in their order."""
        if self._last_put is not None:
            await asyncio.shield(self._last_put)


def _report(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.error("a change of a stream was not stored: %s", error)
