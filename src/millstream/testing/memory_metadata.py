"""Metadata in memory, which the nodes of a test share: the conduct of etcd, under control.

    timers = ManualTimers(ManualClock())
    server = MetadataServer(timers)
    first, second = server.connect(), server.connect()
    lease = await first.grant(4)
    await first.transact(puts={"nodes/1": b"..."}, lease=lease)
    timers.advance(5)  # The lease expires: `nodes/1` is deleted, and watches of both are told.

Each node has a connection of its own, and each connection can be disturbed: `disconnect` makes
calls fail and stops its watches until `reconnect`; `delay_watches` holds changes back until
`deliver` or `stop_delaying`; `lose_response` makes the outcome of the next change unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from millstream.clock import Timer, Timers
from millstream.errors import (
    InvalidRequest,
    LeaseExpired,
    OutcomeUnknown,
    StorageFailed,
    Unavailable,
)
from millstream.metadata.counters import MetadataCounters
from millstream.metadata.interface import (
    Condition,
    Lease,
    MetadataChange,
    MetadataEntry,
    MetadataList,
    Watch,
    check_transaction,
)
from millstream.metadata.watches import Watches
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers


class _Transaction(NamedTuple):
    compares: Sequence[Condition]
    puts: Mapping[str, bytes]
    deletes: Collection[str]
    lease: Lease | None
    unbound: Collection[str] = ()


class MetadataServer:
    """Keys, values and leases; nodes use them through `connect`.

    Leases expire by `timers`: with those of a `ManualClock` time passes on command only. Without
    any, no lease expires.
    """

    def __init__(
        self,
        timers: Timers | None = None,
        *,
        entries: Mapping[str, MetadataEntry] | None = None,
        revision: int = 0,
    ) -> None:
        self.entries = dict(entries or {})
        self.revision = revision
        self.on_change: Callable[[], None] = lambda: None
        """Called after each transaction that was applied, before anyone is told."""
        self._timers = timers or ManualTimers(ManualClock())
        self._leases: dict[int, _GrantedLease] = {}
        self._next_lease = 1
        self._bound: dict[str, int] = {}
        self._connections: list[MemoryMetadata] = []

    def connect(self) -> MemoryMetadata:
        """Return a connection for one node."""
        return MemoryMetadata(self)

    @property
    def leases(self) -> Mapping[int, frozenset[str]]:
        """The keys of each lease that is not gone."""
        return {
            lease: frozenset(key for key, bound in self._bound.items() if bound == lease)
            for lease in self._leases
        }

    def expire(self, lease: int) -> None:
        """End a lease, and delete its keys. Has no effect if it is gone."""
        granted = self._leases.pop(lease, None)
        if granted is None:
            return
        granted.timer.cancel()
        if keys := [key for key, bound in self._bound.items() if bound == lease]:
            self._apply(_Transaction((), {}, keys, None))

    # Called by the connections.

    def attach(self, connection: MemoryMetadata) -> None:
        self._connections.append(connection)

    def detach(self, connection: MemoryMetadata) -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def grant(self, ttl_seconds: int) -> int:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = _GrantedLease(ttl_seconds, self._expiry(lease, ttl_seconds))
        return lease

    def renew(self, lease: int) -> None:
        granted = self._leases.get(lease)
        if granted is None:
            raise LeaseExpired(f"lease {lease} has expired or was revoked")
        granted.timer.cancel()
        self._leases[lease] = granted._replace(timer=self._expiry(lease, granted.ttl_seconds))

    def commit(self, transaction: _Transaction) -> int | None:
        if not all(
            compare.holds(self.entries.get(compare.key)) for compare in transaction.compares
        ):
            return None
        if transaction.lease is not None and transaction.lease.id not in self._leases:
            raise LeaseExpired(f"lease {transaction.lease.id} has expired or was revoked")
        return self._apply(transaction)

    def _expiry(self, lease: int, ttl_seconds: int) -> Timer:
        return self._timers.call_later(ttl_seconds, lambda: self.expire(lease))

    def _apply(self, transaction: _Transaction) -> int:
        self.revision += 1
        values: dict[str, bytes | None] = {
            **dict.fromkeys(self.entries.keys() & set(transaction.deletes)),
            **transaction.puts,
        }
        for key, value in values.items():
            self._bound.pop(key, None)
            old = self.entries.pop(key, None)
            if value is not None:
                created = old.created if old else self.revision
                self.entries[key] = MetadataEntry(key, value, self.revision, created)
                if transaction.lease is not None and key not in transaction.unbound:
                    self._bound[key] = transaction.lease.id
        self.on_change()
        changes = [
            MetadataChange(key, value, self.revision) for key, value in sorted(values.items())
        ]
        for connection in list(self._connections):
            connection.notify(changes)
        return self.revision


class _GrantedLease(NamedTuple):
    ttl_seconds: int
    timer: Timer


class MemoryMetadata:
    """The metadata as one node sees it. Without a server it has one of its own."""

    def __init__(self, server: MetadataServer | None = None) -> None:
        self.server = server or MetadataServer()
        self.failure: StorageFailed | None = None
        self.counters = MetadataCounters()
        self._revision = self.server.revision
        self._watches = Watches()
        self._undelivered: deque[Sequence[MetadataChange]] = deque()
        self._is_delaying = False
        self._is_disconnected = False
        self._lost_responses: deque[bool] = deque()
        self._is_closed = False
        self.server.attach(self)

    @property
    def entries(self) -> dict[str, MetadataEntry]:
        """All entries of the server, whether or not this node has been told of them."""
        return self.server.entries

    @property
    def revision(self) -> int:
        """The highest revision that this node has seen."""
        return self._revision

    def reopened(self) -> MemoryMetadata:
        """Return a new connection to the same server."""
        return self.server.connect()

    # Disturbances.

    def disconnect(self) -> None:
        """Make all calls raise `Unavailable`, and hold changes back, until `reconnect`."""
        self._is_disconnected = True

    def reconnect(self) -> None:
        """Undo `disconnect`: watches are told of all changes since then, in order."""
        self._is_disconnected = False
        self._flush()

    def delay_watches(self) -> None:
        """Hold changes back from watches until `deliver` or `stop_delaying`."""
        self._is_delaying = True

    def stop_delaying(self) -> None:
        """Deliver all changes held back, and all later ones at once."""
        self._is_delaying = False
        self._flush()

    def deliver(self, transactions: int = 1) -> None:
        """Deliver the changes of the oldest transactions held back."""
        for _ in range(min(transactions, len(self._undelivered))):
            self._notify(self._undelivered.popleft())

    @property
    def undelivered(self) -> int:
        """The number of transactions whose changes are held back."""
        return len(self._undelivered)

    def lose_response(self, *, is_made: bool) -> None:
        """Make the next transaction raise `OutcomeUnknown`, and apply it only if `is_made`."""
        self._lost_responses.append(is_made)

    # Metadata.

    async def get(self, key: str) -> MetadataEntry | None:
        """Return the entry of `key`; `None` if there is none."""
        await self._turn()
        return self.server.entries.get(key)

    async def list(self, prefix: str) -> MetadataList:
        """Return all entries whose keys start with `prefix`, sorted by key."""
        await self._turn()
        entries = self.server.entries
        listed = [entries[key] for key in sorted(entries) if key.startswith(prefix)]
        return MetadataList(listed, self.server.revision)

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
        lease: Lease | None = None,
        unbound: Collection[str] = (),
    ) -> int | None:
        """Put and delete all of these, or none; `None` if one of `compares` does not hold."""
        transaction = _Transaction(
            tuple(compares), dict(puts or {}), frozenset(deletes), lease, frozenset(unbound)
        )
        check_transaction(transaction.puts, transaction.deletes)
        # A task of its own, so that cancelling the caller does not cancel the change.
        return await asyncio.shield(asyncio.ensure_future(self._transact(transaction)))

    async def _transact(self, transaction: _Transaction) -> int | None:
        await self._turn()
        is_made = self._lost_responses.popleft() if self._lost_responses else None
        if is_made is False:
            raise OutcomeUnknown("the response was lost on purpose; the change was not made")
        revision = self.server.commit(transaction)
        if is_made is True:
            raise OutcomeUnknown("the response was lost on purpose; the change was made")
        self._revision = self.server.revision
        return revision

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        """Call back on the loop for each later change whose key starts with `prefix`."""
        return self._watches.add(prefix, callback, since=self._revision)

    async def grant(self, ttl_seconds: int) -> MemoryLease:
        """Return a new lease."""
        if ttl_seconds < 1:
            raise InvalidRequest(f"the TTL of a lease must be at least 1 s, got {ttl_seconds}")
        await self._turn()
        return MemoryLease(self, self.server.grant(ttl_seconds), ttl_seconds)

    async def close(self) -> None:
        """Close the connection. Its leases expire unless they are revoked."""
        self._is_closed = True
        self._watches.clear()
        self.server.detach(self)

    async def renew(self, lease: int) -> None:
        """Renew a lease: see `MemoryLease.renew`."""
        await self._turn()
        self.server.renew(lease)

    async def revoke(self, lease: int) -> None:
        """Revoke a lease: see `MemoryLease.revoke`."""
        await self._turn()
        self.server.expire(lease)

    def notify(self, changes: Sequence[MetadataChange]) -> None:
        """Take the changes of one transaction from the server."""
        if self._is_delaying or self._is_disconnected or self._undelivered:
            self._undelivered.append(changes)
        else:
            self._notify(changes)

    def _flush(self) -> None:
        if not self._is_delaying and not self._is_disconnected:
            self.deliver(len(self._undelivered))

    def _notify(self, changes: Sequence[MetadataChange]) -> None:
        for change in changes:
            self._revision = max(self._revision, change.revision)
            self._watches.notify([change])

    async def _turn(self) -> None:
        self._check()
        await asyncio.sleep(0)
        self._check()
        self._revision = self.server.revision

    def _check(self) -> None:
        if self._is_closed:
            raise StorageFailed("the metadata in memory is closed")
        if self._is_disconnected:
            raise Unavailable("the metadata in memory was disconnected on purpose")


class MemoryLease:
    """A lease of a `MemoryMetadata`."""

    def __init__(self, metadata: MemoryMetadata, number: int, ttl_seconds: int) -> None:
        self.id = number
        self.ttl_seconds = ttl_seconds
        self._metadata = metadata

    async def renew(self) -> None:
        """Extend the lease to `ttl_seconds` from now."""
        await self._metadata.renew(self.id)

    async def revoke(self) -> None:
        """End the lease now, and delete its keys."""
        await self._metadata.revoke(self.id)
