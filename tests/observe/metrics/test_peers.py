"""Metrics of the connections between nodes."""

from __future__ import annotations

import asyncio

import pytest

from millstream.errors import PeerUnavailable
from millstream.observe.metrics.node_metrics import CLUSTER_SECTIONS
from millstream.observe.metrics.peers import (
    FORWARDS,
    PEER_CALLS,
    PEER_CLIENT,
    PEER_REQUESTS,
    PEER_SERVER,
    PEERS,
    listed_peer_calls,
    listed_peer_requests,
    listed_peers,
)
from millstream.observe.metrics.replication import LED_PARTITIONS, REPLICA_LAGS, REPLICATION
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.forward import ForwardRequest
from millstream.protocols.peer.messages.ping import PingRequest
from tests.in_loop import in_loop
from tests.servers.peer.peer_nodes import SECONDS, identity, running_peer

from .test_metric import parsed


def told(server, pool):
    listed = (
        (PEER_SERVER, [((), server.listener)]),
        (PEER_REQUESTS, listed_peer_requests(server.listener)),
        (PEER_CLIENT, [((), pool)]),
        (PEER_CALLS, listed_peer_calls(pool)),
        (PEERS, listed_peers(pool)),
    )
    others = (FORWARDS, REPLICATION, LED_PARTITIONS, REPLICA_LAGS)
    peers = tuple(section for section in CLUSTER_SECTIONS if section not in others)
    assert tuple(section for section, _ in listed) == peers
    return parsed("".join(text for section, sources in listed for text in section.text(sources)))


@in_loop
async def test_requests_calls_bytes_breakers_and_drift_are_told():
    async with running_peer() as server:
        server.clock.jump_wall(250)
        pool = server.pool()
        for _ in range(3):
            await pool.call(1, Purpose.ADMIN, PingRequest(), timeout_s=SECONDS)
        request = ForwardRequest(method="GET", target=b"/")
        with pytest.raises(PeerUnavailable):
            await pool.call(1, Purpose.FORWARDING, request, timeout_s=SECONDS)
        with pytest.raises(PeerUnavailable):
            await pool.call(9, Purpose.ADMIN, PingRequest(), timeout_s=SECONDS)
        pool.trip(9)
        found = told(server, pool)
        assert found["millstream_peer_connections",] == 2
        assert found["millstream_peer_handshakes_total", "accepted"] == 2
        assert found["millstream_peer_handshakes_total", "wrong_node"] == 1
        assert found["millstream_peer_requests_total", "Ping", "answered"] == 3
        assert found["millstream_peer_requests_total", "Forward", "refused"] == 1
        assert found["millstream_peer_client_connects_total", "connected"] == 2
        assert found["millstream_peer_client_connects_total", "failed"] == 1
        assert found["millstream_peer_calls_total", "Ping", "answered"] == 3
        assert found["millstream_peer_calls_total", "Ping", "unsent"] == 1
        assert found["millstream_peer_calls_total", "Forward", "refused"] == 1
        assert found["millstream_peer_breaker_flag", "1", "closed"] == 1
        assert found["millstream_peer_breaker_flag", "9", "tripped"] == 1
        assert found["millstream_peer_breaker_flag", "9", "open"] == 0
        assert found["millstream_peer_breaker_openings_total", "9"] == 1
        assert found["millstream_peer_breaker_openings_total", "1"] == 0
        assert found["millstream_peer_breaker_flag", "9", "closed"] == 0
        assert found["millstream_peer_clock_drift_seconds", "1"] == 0.25
        sent = found["millstream_peer_client_sent_bytes_total",]
        assert found["millstream_peer_received_bytes_total",] == sent
        pool.close()


@in_loop
async def test_refused_handshakes_and_nonsense_are_told():
    async with running_peer() as server:
        server.refusals[2] = PeerErrorCode.UNKNOWN_NODE
        with pytest.raises(PeerUnavailable):
            await server.connect()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        connection = await server.connect(local=identity(3))
        await connection.call(PingRequest(), timeout_s=SECONDS)
        writer.transport.abort()
        found = told(server, server.pool())
        assert found["millstream_peer_handshakes_total", "unknown_node"] == 1
        assert found["millstream_peer_nonsense_connections_total",] == 1
