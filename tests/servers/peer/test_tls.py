"""Mutual TLS between peers: both sides show a certificate of the cluster's authority."""

from __future__ import annotations

import pytest

from millstream.errors import OutcomeUnknown, PeerUnavailable
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.forward import ForwardRequest, ForwardResponse
from millstream.protocols.peer.messages.ping import PingRequest
from tests.in_loop import in_loop
from tests.servers.peer.certificates import Authority
from tests.servers.peer.peer_nodes import SECONDS, PeerServer, raw_peer, running_peer, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "other")


@pytest.fixture(scope="module")
def node_1(authority):
    return authority.server_context(authority.issue("node-1"))


@pytest.fixture(scope="module")
def node_2(authority):
    return authority.client_context(authority.issue("node-2"))


@in_loop
async def test_peers_with_certificates_of_the_cluster_talk(node_1, node_2):
    async with running_peer(ssl_context=node_1) as server:

        async def forward(request, _context):
            yield ForwardResponse(status=200, body=bytes(request.body))
            yield ForwardResponse(body=bytes(3_000_000))

        server.listener.serve(ForwardRequest, forward)
        pool = server.pool(ssl_context=node_2)
        body = bytes(range(256)) * 8000
        request = ForwardRequest(method="PUT", target=b"/", body=body)
        stream = await pool.stream(
            1, Purpose.FORWARDING, request, timeout_s=SECONDS, idle_s=SECONDS
        )
        items = [bytes(item.body) async for item in stream]
        assert items == [body, bytes(3_000_000)]
        assert server.seen[0].certificate_names == ("node-2", "127.0.0.1", "node-2")
        pool.close()


@in_loop
async def test_the_cluster_checks_whether_a_certificate_is_that_of_the_node(node_1, node_2):
    async with running_peer(ssl_context=node_1) as server:
        server.refusals[2] = PeerErrorCode.UNTRUSTED
        with pytest.raises(PeerUnavailable, match="UNTRUSTED"):
            await server.connect(ssl_context=node_2)


async def refused(server, context):
    """Connect in vain: with TLS 1.3 a client learns of it only when it reads."""
    with pytest.raises((PeerUnavailable, OutcomeUnknown)):
        await server.connect(ssl_context=context)
    await until(lambda: server.counters.refused["tls"] == 1)
    assert server.counters.handshakes == 0


@in_loop
async def test_a_peer_without_a_certificate_is_refused(authority, node_1):
    async with running_peer(ssl_context=node_1) as server:
        await refused(server, authority.client_context(None))


@in_loop
async def test_a_certificate_of_another_authority_is_refused(authority, stranger, node_1):
    async with running_peer(ssl_context=node_1) as server:
        context = authority.client_context(stranger.issue("node-2"))
        await refused(server, context)


@in_loop
async def test_a_certificate_for_servers_only_is_refused(authority, node_1):
    async with running_peer(ssl_context=node_1) as server:
        certificate = authority.issue("node-3", usage="serverAuth")
        await refused(server, authority.client_context(certificate))


@in_loop
async def test_an_expired_certificate_is_refused(authority, node_1):
    async with running_peer(ssl_context=node_1) as server:
        await refused(server, authority.client_context(authority.issue("node-4", days=-1)))


@in_loop
async def test_a_node_of_another_authority_is_not_trusted(stranger, node_2):
    context = stranger.server_context(stranger.issue("node-1"))
    async with running_peer(ssl_context=context) as server:
        with pytest.raises(PeerUnavailable, match="cannot connect"):
            await server.connect(ssl_context=node_2)


@in_loop
async def test_a_peer_that_speaks_no_tls_is_refused(node_1):
    async with running_peer(ssl_context=node_1) as server, raw_peer(server.port) as raw:
        await raw.send(b"\0\0\0\x0aMILL\0\x01abcd")
        await raw.is_closed()
        await until(lambda: server.counters.refused["tls"] == 1)


@in_loop
async def test_with_mutual_tls_other_machines_may_connect(node_1, node_2):
    server = PeerServer(ssl_context=node_1)
    server.port = await server.listener.listen("0.0.0.0", 0)
    connection = await server.connect(ssl_context=node_2)
    await connection.call(PingRequest(), timeout_s=SECONDS)
    connection.close()
    await server.listener.drain()
