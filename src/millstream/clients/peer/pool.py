"""Connections to all peers: a bounded pool for each peer and purpose, and a breaker for each peer.

                  ┌ breaker open ─► PeerUnavailable
    call ─► peer ─┤                ┌ replication   1 connection  ─► requests in flight, bounded
                  └ closed ─► pool ┼ forwarding    up to 4
                                   └ admin         1

A full pool of one purpose never delays another purpose or another peer. A connection that cannot be
made is tried again after a while, which grows; a call waits for that only as long as its deadline
allows.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from millstream.clients.peer.back_off import back_off_seconds
from millstream.clients.peer.connection import PeerConnection, connect
from millstream.clients.peer.counters import PeerClientCounters
from millstream.clients.peer.sent_request import PeerStream, SentRequest, Settled
from millstream.clock import Clock
from millstream.cluster.circuit_breaker import BreakerLimits, BreakerState, CircuitBreaker
from millstream.cluster.hlc import HybridClock
from millstream.config.schema import Endpoint, PeerConfig
from millstream.errors import PeerUnavailable
from millstream.protocols.peer.apis import API_OF_REQUEST, PEER_APIS
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.identity import PeerIdentity
from millstream.tracing import Span, Tracer, current_traceparent, untraced

T = TypeVar("T")

SPREAD_CALLS = 16
"""Requests in flight on a connection from which on another one is opened, if that is allowed."""


class PeerPool:
    """All connections of a node to its peers. Belongs to an event loop.

    `address_of` returns where the peer server of a node is; `None` if it is not known. `random`
    returns a number from 0 to 1.
    """

    def __init__(
        self,
        local: PeerIdentity,
        *,
        address_of: Callable[[int], Endpoint | None],
        clock: Clock,
        hlc: HybridClock,
        random: Callable[[], float],
        config: PeerConfig | None = None,
        ssl_context: ssl.SSLContext | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.local = local
        self.config = config or PeerConfig()
        self.counters = PeerClientCounters()
        for api in PEER_APIS.values():
            self.counters.calls[api.name] = Counter()  # A scrape shows all of them from the start.
        self.address_of = address_of
        self.clock = clock
        self.hlc = hlc
        self.random = random
        self.ssl_context = ssl_context
        self._tracer = tracer
        self._limits = BreakerLimits(
            failures_max=self.config.breaker_failures_max,
            successes_min=self.config.breaker_successes_min,
            open_seconds=self.config.breaker_open_ms / 1000,
        )
        self._peers: dict[int, _Peer] = {}
        self._is_closed = False

    # Requests.

    async def call(
        self,
        node_id: int,
        purpose: Purpose,
        request: Any,
        *,
        timeout_s: float,
    ) -> Any:
        """Send a request to a node and return its response, all within `timeout_s`.

        It is part of the trace of the caller. Raises `PeerUnavailable` if nothing was done,
        `OutcomeUnknown` if that is not known, or the error that the peer answered with.
        """
        sent = await self.send(node_id, purpose, request, timeout_s=timeout_s)
        return await sent.response()

    async def send(
        self,
        node_id: int,
        purpose: Purpose,
        request: Any,
        *,
        timeout_s: float,
        order_key: Hashable | None = None,
    ) -> SentRequest:
        """Send a request to a node; return when it was sent, with where its response will be.

        Requests with the same `order_key` are started by the node in the order in which they were
        sent, if each is sent after `send` has returned for the one before: as long as any of them
        is in flight, they use one connection. Raises `PeerUnavailable` if it was not sent.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection, settled, traceparent = await self._prepare(
            node_id, purpose, request, deadline, order_key
        )
        return _send(
            lambda: connection.send(request, deadline, settled=settled, traceparent=traceparent),
            settled,
        )

    async def stream(
        self,
        node_id: int,
        purpose: Purpose,
        request: Any,
        *,
        timeout_s: float,
        idle_s: float,
    ) -> PeerStream:
        """Send a request to a node; return the stream of its responses, which the caller closes.

        The first item has to arrive within `timeout_s`, each further one within `idle_s`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection, settled, traceparent = await self._prepare(node_id, purpose, request, deadline)
        return _send(
            lambda: connection.stream(
                request, deadline, idle_s=idle_s, settled=settled, traceparent=traceparent
            ),
            settled,
        )

    async def _prepare(
        self,
        node_id: int,
        purpose: Purpose,
        request: Any,
        deadline: float,
        order_key: Hashable | None = None,
    ) -> tuple[PeerConnection, Settled, str | None]:
        """Return a connection that takes a request now, what to call at its end, and its trace."""
        name = API_OF_REQUEST[type(request)].name
        counter = self.counters.calls[name]
        peer = self._peer(node_id)
        breaker, loop = peer.breaker, asyncio.get_running_loop()
        if not breaker.allow(loop.time()):
            counter["unsent"] += 1
            reason = "was tripped" if breaker.is_tripped else "is open"
            raise PeerUnavailable(f"node {node_id}: its circuit breaker {reason}")

        traceparent = current_traceparent()
        span: Span | None = None
        # Replication works for no client's request, so its traces begin here. Of all others, the
        # node that has the client decided whether they are traced.
        if self._tracer is not None and (traceparent or purpose is Purpose.REPLICATION):
            span = self._tracer.begin(f"Peer {name}", traceparent, is_outgoing=True)
        if span is not None:
            span.set_attribute("millstream.peer.node", node_id)
            traceparent = span.traceparent
        pool = peer.pools[purpose]
        ordered: PeerConnection | None = None

        def settled(outcome: str) -> None:
            if ordered is not None:
                pool.end_ordered(order_key)
            counter["unknown" if outcome == "broken" else outcome] += 1
            if outcome == "broken":
                breaker.fail(loop.time())
            elif outcome in ("cancelled", "unsent"):
                breaker.abandon()
            else:
                breaker.succeed(loop.time())
            if span is not None:
                span.end(None if outcome in ("answered", "refused", "cancelled") else outcome)

        try:
            connection = pool.ordered_connection(order_key) or await pool.connection(deadline)
            if order_key is not None:
                ordered = connection
                pool.begin_ordered(order_key, connection)
            await connection.wait_until_writable(deadline)
        except BaseException:
            settled("unsent")  # A failed attempt to connect has counted for the breaker already.
            raise
        return connection, settled, traceparent

    # Peers.

    def trip(self, node_id: int) -> None:
        """Send no more requests to a node until `reset`, even if it is started again.

        Those in flight are finished: closing their connections would leave outcomes unknown.
        """
        self._peer(node_id).breaker.trip()

    def reset(self, node_id: int) -> None:
        """Close the breaker of a node; it is called again at once, whatever happened before."""
        self._peer(node_id).forget_failures()

    def forgive(self) -> None:
        """Close the breakers that failures have opened, and connect again without a pause.

        For a node that was cut off and is back: it was this node that could not be reached.
        """
        for peer in self._peers.values():
            if not peer.breaker.is_tripped:
                peer.forget_failures()

    def breaker_states(self) -> Mapping[int, BreakerState]:
        """Return the state of the breaker of each peer, by node id."""
        now = asyncio.get_running_loop().time()
        return {node_id: peer.breaker.state(now) for node_id, peer in self._peers.items()}

    def openings(self) -> Mapping[int, int]:
        """Return how often the breaker of each peer has opened, by node id."""
        return {node_id: peer.breaker.opened_count for node_id, peer in self._peers.items()}

    def drifts_ms(self) -> Mapping[int, int]:
        """Return how far the clocks of the connected peers are ahead, by node id."""
        return {
            connection.node_id: connection.drift_ms
            for peer in self._peers.values()
            for connection in peer.connections()
        }

    @property
    def connection_count(self) -> int:
        return sum(1 for peer in self._peers.values() for _ in peer.connections())

    def forget(self, node_id: int) -> None:
        """Close the connections to a node that left the cluster, or was started again.

        Its breaker is closed again, unless an operator tripped it: that ends with `reset` only.
        """
        peer = self._peers.pop(node_id, None)
        if peer is None:
            return
        peer.close()
        if peer.breaker.is_tripped and not self._is_closed:
            self._peers[node_id] = _Peer(self, node_id, peer.breaker)

    def close(self) -> None:
        """Close all connections. The outcome of requests in flight is unknown."""
        self._is_closed = True
        for peer in self._peers.values():
            peer.close()

    def _peer(self, node_id: int) -> _Peer:
        if self._is_closed:
            raise PeerUnavailable(f"node {node_id}: this node stops")
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = _Peer(self, node_id, CircuitBreaker(self._limits))
        return peer


class _Peer:
    """One peer: its breaker, and a pool of connections for each purpose."""

    def __init__(self, pool: PeerPool, node_id: int, breaker: CircuitBreaker) -> None:
        config = pool.config
        counts = {
            Purpose.REPLICATION: config.replication_connections_max,
            Purpose.FORWARDING: config.forwarding_connections_max,
            Purpose.ADMIN: config.admin_connections_max,
        }
        self.breaker = breaker
        self.pools = {
            purpose: _PurposePool(pool, node_id, purpose, breaker, connections_max=count)
            for purpose, count in counts.items()
        }

    def connections(self) -> Iterator[PeerConnection]:
        for purpose_pool in self.pools.values():
            yield from purpose_pool.connections

    def forget_failures(self) -> None:
        """Close the breaker, and let the next attempts to connect begin at once."""
        self.breaker.reset()
        for purpose_pool in self.pools.values():
            purpose_pool.forget_failures()

    def close(self) -> None:
        for purpose_pool in self.pools.values():
            purpose_pool.close()


class _PurposePool:
    """The connections to one peer for one purpose."""

    def __init__(
        self,
        pool: PeerPool,
        node_id: int,
        purpose: Purpose,
        breaker: CircuitBreaker,
        *,
        connections_max: int,
    ) -> None:
        self._pool = pool
        self._node_id = node_id
        self._purpose = purpose
        self._breaker = breaker
        self._connections_max = connections_max
        self._loop = asyncio.get_running_loop()
        self._connecting: asyncio.Task[PeerConnection] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self.connections: list[PeerConnection] = []
        self._ordered: dict[Hashable, tuple[PeerConnection, int]] = {}
        """The connection of each key whose requests keep their order, and their number."""

    # Order.

    def ordered_connection(self, key: Hashable | None) -> PeerConnection | None:
        """Return the connection that requests with a key have to use, if any is in flight."""
        if key is None or (known := self._ordered.get(key)) is None:
            return None
        connection, _ = known
        if not connection.is_usable:
            raise PeerUnavailable(
                f"node {self._node_id}: requests are in flight on a connection that ends"
            )
        if connection.in_flight >= self._pool.config.calls_in_flight_max:
            raise PeerUnavailable(
                f"node {self._node_id}: {connection.in_flight} requests are in flight on the"
                " connection that keeps their order"
            )
        return connection

    def begin_ordered(self, key: Hashable, connection: PeerConnection) -> None:
        _, count = self._ordered.get(key, (connection, 0))
        self._ordered[key] = connection, count + 1

    def end_ordered(self, key: Hashable) -> None:
        connection, count = self._ordered.pop(key)
        if count > 1:
            self._ordered[key] = connection, count - 1

    # Connections.

    async def connection(self, deadline: float) -> PeerConnection:
        """Return the connection with the fewest requests, or a new one."""
        while True:
            usable = [connection for connection in self.connections if connection.is_usable]
            if not usable:
                await self._connect(deadline)
                continue
            best = min(usable, key=lambda connection: connection.in_flight)
            is_last = len(usable) >= self._connections_max
            if best.in_flight >= SPREAD_CALLS and not is_last and self._may_attempt():
                self._start_attempt()  # Meanwhile, this connection is good enough.
            if best.in_flight < self._pool.config.calls_in_flight_max:
                return best
            if self._connecting is None:
                raise PeerUnavailable(
                    f"node {self._node_id}: {best.in_flight} requests for"
                    f" {self._purpose.name.lower()} are in flight on each of"
                    f" {len(usable)} connections"
                )
            await self._connect(deadline)

    def forget_failures(self) -> None:
        """Let the next attempt to connect begin at once."""
        self._failures, self._retry_at = 0, 0.0

    def _may_attempt(self) -> bool:
        return self._connecting is None and self._retry_at <= self._loop.time()

    def _start_attempt(self) -> None:
        # The connection serves many requests: its events belong to the trace of none.
        self._connecting = self._loop.create_task(self._attempt(), context=untraced())
        self._connecting.add_done_callback(self._attempted)

    async def _connect(self, deadline: float) -> None:
        """Wait until there is one more connection. All callers wait for the same attempt."""
        if self._connecting is None:
            if self._retry_at > deadline:
                seconds = self._retry_at - self._loop.time()
                raise PeerUnavailable(
                    f"node {self._node_id}: cannot connect; next attempt in {seconds:.3f} s"
                )
            self._start_attempt()
        attempt = self._connecting
        assert attempt is not None
        seconds = max(0.0, deadline - self._loop.time())
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait([attempt])  # It is not cancelled with one of its callers.
        except TimeoutError:
            raise PeerUnavailable(
                f"node {self._node_id}: no connection before the deadline"
            ) from None
        if attempt.cancelled():
            # The callers are not. For a task that took it to be cancelled, its work would be over.
            raise PeerUnavailable(f"node {self._node_id}: its connections were closed")
        attempt.result()

    async def _attempt(self) -> PeerConnection:
        pool, config = self._pool, self._pool.config
        try:
            await asyncio.sleep(max(0.0, self._retry_at - self._loop.time()))
            endpoint = pool.address_of(self._node_id)
            if endpoint is None:
                raise PeerUnavailable(f"node {self._node_id}: its address is not known")
            connection = await connect(
                lambda: self._make(endpoint),
                endpoint,
                timeout_s=config.handshake_ms_max / 1000,
                ssl_context=pool.ssl_context,
            )
        except PeerUnavailable:
            self._failures += 1
            self._retry_at = self._loop.time() + back_off_seconds(
                self._failures,
                seconds_min=config.backoff_ms_min / 1000,
                seconds_max=config.backoff_ms_max / 1000,
                chance=pool.random(),
            )
            pool.counters.failed_connects += 1
            self._breaker.fail(self._loop.time())
            raise
        self._failures, self._retry_at = 0, 0.0
        pool.counters.connects += 1
        self.connections.append(connection)
        return connection

    def _make(self, endpoint: Endpoint) -> PeerConnection:
        pool = self._pool
        return PeerConnection(
            pool.local,
            self._node_id,
            endpoint,
            self._purpose,
            clock=pool.clock,
            hlc=pool.hlc,
            config=pool.config,
            counters=pool.counters,
            on_closed=self._closed,
        )

    def _attempted(self, task: asyncio.Task[PeerConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # The callers may have given up.

    def _closed(self, connection: PeerConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in list(self.connections):
            connection.close()


def _send(start: Callable[[], T], settled: Settled) -> T:
    """Send a request; one that cannot be sent counts as such."""
    try:
        return start()
    except BaseException:
        settled("unsent")
        raise
