"""The pool: bounded connections by purpose, and a breaker for each peer."""

from __future__ import annotations

import asyncio

import pytest

from millstream.cluster.circuit_breaker import BreakerState
from millstream.config.schema import PeerConfig
from millstream.errors import OutcomeUnknown, PeerUnavailable, ProducerFenced
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.forward import ForwardRequest, ForwardResponse
from millstream.protocols.peer.messages.ping import PingRequest, PingResponse
from millstream.servers.deferred_response import DeferredResponse
from tests.clients.peer.scripted_peer import scripted_peer
from tests.in_loop import in_loop
from tests.servers.peer.peer_nodes import SECONDS, running_peer, until

PING = PingRequest(nonce=1)
FORWARD = ForwardRequest(method="GET", target=b"/")


def config(**changes):
    return PeerConfig(**{"backoff_ms_min": 0, "backoff_ms_max": 0} | changes)


async def ping(pool, node_id=1, purpose=Purpose.ADMIN, timeout_s=SECONDS):
    return await pool.call(node_id, purpose, PING, timeout_s=timeout_s)


class Gate:
    """A handler of forwarded requests that answers when it is told to."""

    def __init__(self, server):
        self.waiting = []
        server.listener.serve(ForwardRequest, self._forward)

    def _forward(self, _request, _context):
        self.waiting.append(DeferredResponse())
        return self.waiting[-1]

    async def arrived(self, count):
        await until(lambda: len(self.waiting) == count)

    def open(self):
        for deferred in self.waiting:
            deferred.finish(ForwardResponse(status=200))


def forward(pool):
    return asyncio.create_task(pool.call(1, Purpose.FORWARDING, FORWARD, timeout_s=SECONDS))


# Connections.


@in_loop
async def test_many_calls_share_a_connection():
    async with running_peer() as server:
        pool = server.pool()
        results = await asyncio.gather(*(ping(pool) for _ in range(50)))
        assert results == [PingResponse(nonce=1)] * 50
        assert pool.counters.connects == 1
        assert pool.counters.calls["Ping"] == {"answered": 50}
        pool.close()


@in_loop
async def test_each_purpose_has_connections_of_its_own():
    async with running_peer() as server:
        pool = server.pool()
        for purpose in Purpose:
            await ping(pool, purpose=purpose)
        assert sorted(peer.purpose for peer in server.seen) == list(Purpose)
        assert pool.connection_count == 3
        pool.close()


@in_loop
async def test_a_full_purpose_delays_no_other_and_fails_at_once():
    async with running_peer() as server:
        limits = config(forwarding_connections_max=2, calls_in_flight_max=20)
        gate, pool = Gate(server), server.pool(config=limits)
        calls = []
        for count in range(1, 41):
            calls.append(forward(pool))
            await gate.arrived(count)
            if count == 17:
                await until(lambda: pool.connection_count == 2)
        with pytest.raises(PeerUnavailable, match="20 requests for forwarding are in flight on"):
            await forward(pool)
        assert await ping(pool, purpose=Purpose.REPLICATION) == PingResponse(nonce=1)
        assert await ping(pool) == PingResponse(nonce=1)
        gate.open()
        await asyncio.gather(*calls)
        assert pool.counters.calls["Forward"] == {"answered": 40, "unsent": 1}
        pool.close()


@in_loop
async def test_a_lost_connection_is_replaced():
    async with running_peer() as server:
        pool = server.pool()
        await ping(pool)
        for connection in list(server.listener.connections):
            connection.close("test")
        await until(lambda: not pool.connection_count)
        assert await ping(pool) == PingResponse(nonce=1)
        assert pool.counters.connects == 2
        pool.close()


@in_loop
async def test_a_peer_that_stops_gets_no_more_requests_on_its_old_connection():
    async with running_peer() as server:
        pool = server.pool()
        await ping(pool)
        await server.listener.drain()
        assert not pool.connection_count
        with pytest.raises(PeerUnavailable, match="cannot connect"):
            await ping(pool)
        pool.close()


@in_loop
async def test_a_node_without_an_address_is_unavailable():
    async with running_peer() as server:
        pool = server.pool(address_of=lambda _: None)
        with pytest.raises(PeerUnavailable, match="node 9: its address is not known"):
            await ping(pool, node_id=9)
        pool.close()


@in_loop
async def test_a_node_that_left_has_no_connections():
    async with running_peer() as server:
        pool = server.pool()
        await ping(pool)
        pool.forget(1)
        assert not pool.connection_count
        await until(lambda: not server.listener.connection_count)
        pool.close()


@in_loop
async def test_a_node_that_leaves_before_an_attempt_to_connect_has_begun_cancels_no_caller():
    async with running_peer() as server:
        pool = server.pool()
        waiting = asyncio.create_task(ping(pool))
        await asyncio.sleep(0)  # The attempt is made, and has not begun.
        pool.forget(1)
        with pytest.raises(PeerUnavailable, match="node 1: its connections were closed"):
            await waiting
        pool.close()


@in_loop
async def test_a_call_waits_for_the_next_attempt_only_as_long_as_its_deadline_allows():
    async with scripted_peer(lambda _: asyncio.sleep(0)) as endpoint:
        pass
    limits = config(backoff_ms_min=60_000, backoff_ms_max=60_000)
    async with running_peer() as server:
        pool = server.pool(config=limits, address_of=lambda _: endpoint)
        with pytest.raises(PeerUnavailable, match="cannot connect:"):
            await ping(pool)
        with pytest.raises(PeerUnavailable, match=r"next attempt in (29|30|44|45)\.\d+ s"):
            await ping(pool)
        assert pool.counters.failed_connects == 1
        pool.close()


@in_loop
async def test_a_closed_pool_sends_nothing_and_releases_those_who_wait():
    hellos = []

    async def silent(peer):
        hellos.append(await peer.hello())
        await peer.reader.read()

    async with scripted_peer(silent) as endpoint, running_peer() as server:
        pool = server.pool(address_of=lambda _: endpoint)
        waiting = asyncio.create_task(ping(pool))
        await until(lambda: bool(hellos))
        pool.close()
        with pytest.raises(PeerUnavailable, match="its connections were closed"):
            await waiting
        with pytest.raises(PeerUnavailable, match="this node stops"):
            await ping(pool)


# The breaker.


@in_loop
async def test_a_peer_that_fails_is_left_alone():
    async with scripted_peer(lambda _: asyncio.sleep(0)) as endpoint:
        pass
    async with running_peer() as server:
        pool = server.pool(address_of=lambda _: endpoint)
        for _ in range(5):
            with pytest.raises(PeerUnavailable, match="cannot connect"):
                await ping(pool)
        with pytest.raises(PeerUnavailable, match="node 1: its circuit breaker is open"):
            await ping(pool)
        assert pool.counters.failed_connects == 5
        assert pool.breaker_states() == {1: BreakerState.OPEN}
        pool.close()


@in_loop
async def test_requests_without_a_response_open_the_breaker():
    async def serve(peer):
        await peer.welcome()
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint, running_peer() as server:
        pool = server.pool(config=config(breaker_failures_max=3), address_of=lambda _: endpoint)
        waiting = asyncio.create_task(ping(pool))
        await until(lambda: pool.connection_count == 1)  # Connecting may take longer than this:
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                await ping(pool, timeout_s=0.01)
        assert pool.breaker_states() == {1: BreakerState.OPEN}
        assert pool.counters.calls["Ping"] == {"unknown": 3}
        waiting.cancel()
        pool.close()


@in_loop
async def test_a_peer_that_refuses_is_there():
    async with running_peer() as server:

        def fenced(_request, _context):
            raise ProducerFenced("no")

        server.listener.serve(ForwardRequest, fenced)
        pool = server.pool(config=config(breaker_failures_max=1))
        for _ in range(3):
            with pytest.raises(ProducerFenced):
                await forward(pool)
        assert pool.breaker_states() == {1: BreakerState.CLOSED}
        assert pool.counters.calls["Forward"] == {"refused": 3}
        pool.close()


@in_loop
async def test_a_peer_that_works_again_is_used_again():
    async with scripted_peer(lambda _: asyncio.sleep(0)) as gone:
        pass
    async with running_peer() as server:
        addresses = [gone]
        limits = config(breaker_failures_max=1, breaker_open_ms=1)
        pool = server.pool(config=limits, address_of=lambda _: addresses[0])
        with pytest.raises(PeerUnavailable):
            await ping(pool)
        addresses[0] = server.endpoint
        await until(lambda: pool.breaker_states() == {1: BreakerState.HALF_OPEN})
        for _ in range(3):
            await ping(pool)
        assert pool.breaker_states() == {1: BreakerState.CLOSED}
        pool.close()


@in_loop
async def test_half_open_one_call_at_a_time_is_allowed():
    async with running_peer() as server:
        gate = Gate(server)
        pool = server.pool(config=config(breaker_failures_max=1, breaker_open_ms=1))
        pool._peer(1).breaker.fail(asyncio.get_running_loop().time())
        await until(lambda: pool.breaker_states() == {1: BreakerState.HALF_OPEN})
        probe = forward(pool)
        await gate.arrived(1)
        with pytest.raises(PeerUnavailable, match="breaker is open"):
            await ping(pool)
        gate.open()
        await probe
        await ping(pool)
        pool.close()


@in_loop
async def test_a_probe_that_is_cancelled_lets_the_next_one_follow():
    async with running_peer() as server:
        gate = Gate(server)
        pool = server.pool(config=config(breaker_failures_max=1, breaker_open_ms=1))
        pool._peer(1).breaker.fail(asyncio.get_running_loop().time())
        await until(lambda: pool.breaker_states() == {1: BreakerState.HALF_OPEN})
        probe = forward(pool)
        await gate.arrived(1)
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        await ping(pool)
        pool.close()


@in_loop
async def test_an_operator_can_trip_and_reset_a_breaker():
    async with running_peer() as server:
        pool = server.pool()
        pool.trip(1)
        with pytest.raises(PeerUnavailable, match="its circuit breaker was tripped"):
            await ping(pool)
        pool.reset(1)
        await ping(pool)
        pool.close()


@in_loop
async def test_a_tripped_breaker_finishes_what_is_in_flight_and_outlives_a_restart_of_the_peer():
    async with running_peer() as server:
        gate = Gate(server)
        pool = server.pool()
        sent = forward(pool)
        await gate.arrived(1)
        pool.trip(1)
        gate.open()
        await sent
        pool.forget(1)  # The node was started again.
        with pytest.raises(PeerUnavailable, match="its circuit breaker was tripped"):
            await ping(pool)
        assert pool.breaker_states() == {1: BreakerState.TRIPPED}
        pool.reset(1)
        await ping(pool)
        pool.close()


@in_loop
async def test_a_reset_breaker_does_not_wait_for_the_next_attempt_to_connect():
    async with scripted_peer(lambda _: asyncio.sleep(0)) as gone:
        pass
    async with running_peer() as server:
        addresses = [gone]
        limits = config(breaker_failures_max=1, backoff_ms_min=60_000, backoff_ms_max=60_000)
        pool = server.pool(config=limits, address_of=lambda _: addresses[0])
        with pytest.raises(PeerUnavailable, match="cannot connect"):
            await ping(pool)
        addresses[0] = server.endpoint
        pool.reset(1)
        await ping(pool)
        pool.close()


@in_loop
async def test_a_refused_handshake_counts_as_a_failure():
    async with running_peer() as server:
        server.refusals[2] = PeerErrorCode.UNKNOWN_NODE
        pool = server.pool(config=config(breaker_failures_max=2))
        for _ in range(2):
            with pytest.raises(PeerUnavailable, match="UNKNOWN_NODE"):
                await ping(pool)
        assert pool.breaker_states() == {1: BreakerState.OPEN}
        pool.close()


@in_loop
async def test_one_peer_that_hangs_delays_no_other():
    async def silent(peer):
        await peer.hello()
        await peer.reader.read()

    async with scripted_peer(silent) as hanging, running_peer() as server:
        addresses = {1: server.endpoint, 3: hanging}
        pool = server.pool(address_of=addresses.get)
        stuck = asyncio.create_task(ping(pool, node_id=3))
        assert await ping(pool) == PingResponse(nonce=1)
        assert not stuck.done()
        pool.close()
        with pytest.raises(PeerUnavailable):
            await stuck


@in_loop
async def test_drift_is_known_by_peer():
    async with running_peer() as server:
        pool = server.pool()
        await ping(pool)
        assert pool.drifts_ms() == {1: server.clock.wall_ms() - pool.clock.wall_ms()}
        pool.close()
