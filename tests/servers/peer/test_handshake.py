"""The handshake comes first: who is refused, and what a refused peer learns."""

from __future__ import annotations

import uuid

import pytest

from millstream.config.schema import PeerConfig
from millstream.errors import InvalidConfig, PeerUnavailable
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import HANDSHAKE_REFUSALS
from millstream.protocols.peer.frame import FrameHeader, FrameKind, encode_frame
from millstream.protocols.peer.handshake import (
    HANDSHAKE_SIZE_MAX,
    HandshakeRequest,
    HandshakeResponse,
    Purpose,
    decode_handshake_response,
    encode_handshake,
)
from millstream.protocols.peer.identity import PeerIdentity
from millstream.protocols.peer.messages.ping import PingRequest
from tests.in_loop import in_loop
from tests.servers.peer.peer_nodes import (
    CLUSTER,
    SECONDS,
    identity,
    raw_peer,
    running_peer,
    until,
)


def hello(**changes):
    values = {
        "cluster_id": CLUSTER,
        "node_id": 2,
        "incarnation": uuid.UUID(int=2),
        "target_node_id": 1,
        "software_version": "0.1.0",
        "purpose": Purpose.ADMIN,
        "hlc": 0,
        "apis": (),
    }
    return encode_handshake(HandshakeRequest(**values | changes))


@in_loop
async def test_a_peer_learns_whom_it_has_reached_and_the_node_who_connected():
    async with running_peer() as server:
        connection = await server.connect(purpose=Purpose.REPLICATION)
        assert connection.remote == identity(1)
        (peer,) = server.seen
        assert peer.identity == identity(2)
        assert peer.purpose is Purpose.REPLICATION
        assert peer.address == "127.0.0.1"
        assert server.counters.handshakes == 1


async def refused(server, code, **options):
    with pytest.raises(PeerUnavailable, match=f"handshake refused: {code.name}") as caught:
        await server.connect(**options)
    assert caught.value.code == code
    assert server.counters.refused_handshakes == {code: 1}
    await until(lambda: not server.listener.connection_count)


@in_loop
async def test_a_node_of_another_cluster_is_refused():
    async with running_peer() as server:
        await refused(
            server, PeerErrorCode.WRONG_CLUSTER, local=identity(2, cluster_id="cluster-2")
        )
        assert not server.seen


@in_loop
async def test_a_node_that_wanted_to_reach_another_one_is_refused():
    async with running_peer() as server:
        await refused(server, PeerErrorCode.WRONG_NODE, target=3)


@in_loop
async def test_a_node_with_the_same_id_is_refused():
    async with running_peer() as server:
        other = PeerIdentity(CLUSTER, 1, uuid.UUID(int=99), "0.1.0")
        await refused(server, PeerErrorCode.DUPLICATE_NODE, local=other)


@pytest.mark.parametrize(
    "code", [PeerErrorCode.UNKNOWN_NODE, PeerErrorCode.DUPLICATE_NODE, PeerErrorCode.UNTRUSTED]
)
@in_loop
async def test_the_cluster_decides_who_is_registered(code):
    async with running_peer() as server:
        server.refusals[2] = code
        await refused(server, code)
        connection = await server.connect(local=identity(3))
        assert connection.is_usable


@in_loop
async def test_a_refusal_reveals_nothing_of_the_cluster():
    async with running_peer() as server:
        for changes in ({"cluster_id": "x"}, {"target_node_id": 5}, {"purpose": 9}):
            async with raw_peer(server.port) as raw:
                await raw.send(hello(**changes))
                response = decode_handshake_response(memoryview(await raw.frame()))
                assert response.error_code in HANDSHAKE_REFUSALS
                assert response == HandshakeResponse(
                    error_code=response.error_code, error_message=response.error_message
                )
                assert CLUSTER not in response.error_message
                assert await raw.is_closed()


@in_loop
async def test_a_protocol_version_of_another_release_is_refused_with_words():
    async with running_peer() as server, raw_peer(server.port) as raw:
        await raw.send(b"\0\0\0\x0aMILL\0\x07abcd")
        response = decode_handshake_response(memoryview(await raw.frame()))
        assert response.error_code == PeerErrorCode.UNSUPPORTED_VERSION
        assert "must be between 1 and 1, got 7" in response.error_message
        assert await raw.is_closed()


@in_loop
async def test_nothing_is_served_before_the_handshake():
    async with running_peer() as server, raw_peer(server.port) as raw:
        header = FrameHeader(FrameKind.REQUEST, 1, 1, 0, 1000)
        await raw.send(b"".join(encode_frame(header, (b"\0" * 9,))))
        assert await raw.is_closed()
        assert server.counters.nonsense == 1
        assert server.counters.requests["Ping"].outcomes.total() == 0


@in_loop
async def test_a_first_frame_may_not_be_larger_than_a_handshake():
    async with running_peer() as server, raw_peer(server.port) as raw:
        await raw.send((HANDSHAKE_SIZE_MAX + 1).to_bytes(4, "big"))
        assert await raw.is_closed()
        assert server.counters.nonsense == 1


@in_loop
async def test_a_second_handshake_is_nonsense():
    async with running_peer() as server, raw_peer(server.port) as raw:
        await raw.send(hello())
        assert not decode_handshake_response(memoryview(await raw.frame())).error_code
        await raw.send(hello())
        assert await raw.is_closed()
        assert server.counters.nonsense == 1


@in_loop
async def test_a_connection_without_a_handshake_is_closed_in_time():
    config = PeerConfig(handshake_ms_max=100)
    async with running_peer(config=config) as server, raw_peer(server.port) as raw:
        await raw.send(b"\0\0")
        assert await raw.is_closed()
        assert server.counters.closed_by_us == 1


@in_loop
async def test_members_that_left_are_disconnected():
    async with running_peer() as server:
        leaving, staying = await server.connect(), await server.connect(local=identity(3))
        server.refusals[2] = PeerErrorCode.UNKNOWN_NODE
        server.listener.recheck()
        await until(lambda: not leaving.is_usable)
        await staying.call(PingRequest(), timeout_s=SECONDS)


@in_loop
async def test_other_machines_need_tls_or_permission():
    async with running_peer() as server:
        with pytest.raises(InvalidConfig, match="needs mutual TLS"):
            await server.listener.listen("0.0.0.0", 0)
        with pytest.raises(InvalidConfig, match=r"node-1\.example"):
            await server.listener.listen("node-1.example", 0)
