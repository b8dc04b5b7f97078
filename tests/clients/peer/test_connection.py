"""A connection to a peer: what is known of a request when something breaks."""

from __future__ import annotations

import asyncio

import pytest

from millstream.clients.peer.counters import PeerClientCounters
from millstream.config.schema import Endpoint, PeerConfig
from millstream.errors import OutcomeUnknown, PeerUnavailable
from millstream.protocols.peer.apis import ANNOUNCED
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.frame import (
    STREAM_WINDOW_BYTES,
    FrameHeader,
    FrameKind,
    encode_frame,
)
from millstream.protocols.peer.handshake import HandshakeApi
from millstream.protocols.peer.messages.forward import ForwardRequest, ForwardResponse
from millstream.protocols.peer.messages.ping import PingRequest, PingResponse
from tests.clients.peer.scripted_peer import connection_to, scripted_peer, welcome
from tests.in_loop import in_loop
from tests.servers.peer.peer_nodes import HOST, SECONDS, until

PING = PingRequest(nonce=1)
FORWARD = ForwardRequest(method="GET", target=b"/")


# Certainly nothing was done.


@in_loop
async def test_a_node_that_is_not_there_is_unavailable():
    async with scripted_peer(lambda _: asyncio.sleep(0)) as endpoint:
        pass
    with pytest.raises(PeerUnavailable, match=f"{HOST}:{endpoint.port}: cannot connect"):
        await connection_to(endpoint)


@in_loop
async def test_a_name_without_an_address_is_unavailable():
    with pytest.raises(PeerUnavailable, match="cannot connect"):
        await connection_to(Endpoint("no-such-host.invalid", 1))


@in_loop
async def test_a_handshake_that_does_not_come_ends_in_time():
    async def silent(peer):
        await peer.hello()
        await peer.reader.read()

    async with scripted_peer(silent) as endpoint:
        with pytest.raises(PeerUnavailable, match=r"no connection within 0\.02 s"):
            await connection_to(endpoint, timeout_s=0.02)


@pytest.mark.parametrize("changes", [{"node_id": 3}, {"cluster_id": "other"}])
@in_loop
async def test_another_node_than_the_expected_one_is_not_talked_to(changes):
    async def other(peer):
        await peer.welcome(**changes)
        await peer.reader.read()

    async with scripted_peer(other) as endpoint:
        with pytest.raises(PeerUnavailable, match="expected node 1 of cluster 'cluster-1'"):
            await connection_to(endpoint)


@in_loop
async def test_a_request_on_a_closed_connection_was_not_sent():
    async def serve(peer):
        await peer.welcome()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        await until(lambda: not connection.is_usable)
        with pytest.raises(PeerUnavailable, match="connection is closed"):
            await connection.call(PING, timeout_s=SECONDS)


@in_loop
async def test_an_api_that_the_peer_does_not_know_is_not_sent():
    older = (HandshakeApi(key=1, first=0, last=0),)

    async def serve(peer):
        await peer.welcome(apis=older)
        header, _ = await peer.next_frame()
        await peer.answer(header, PingResponse(nonce=1))

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(PeerUnavailable, match="does not know a version of Forward"):
            await connection.call(FORWARD, timeout_s=SECONDS)
        assert await connection.call(PING, timeout_s=SECONDS) == PingResponse(nonce=1)


@in_loop
async def test_a_request_that_waits_for_the_socket_until_its_deadline_was_not_sent():
    async def serve(peer):
        await peer.welcome()
        peer.writer.transport.pause_reading()
        await asyncio.get_running_loop().create_future()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        large = ForwardRequest(method="PUT", target=b"/", body=bytes(20_000_000))
        first = asyncio.create_task(connection.call(large, timeout_s=SECONDS))
        await until(lambda: connection.in_flight == 1)
        with pytest.raises(PeerUnavailable, match="does not read; the request was not sent"):
            await connection.call(PING, timeout_s=0.02)
        assert connection.in_flight == 1
        connection.close()
        with pytest.raises(OutcomeUnknown):
            await first


@in_loop
async def test_a_deadline_that_has_passed_sends_nothing():
    async def serve(peer):
        await peer.welcome()
        assert not await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(PeerUnavailable, match="deadline of Ping has passed"):
            await connection.call(PING, timeout_s=0)
        connection.close()


@pytest.mark.parametrize(
    "code", [PeerErrorCode.STOPPING, PeerErrorCode.BUSY, PeerErrorCode.EXPIRED]
)
@in_loop
async def test_a_refusal_says_that_nothing_was_done(code):
    async def serve(peer):
        await peer.welcome()
        header, _ = await peer.next_frame()
        reply = FrameHeader(
            FrameKind.RESPONSE, header.correlation_id, 1, 0, error_code=code, is_last=True
        )
        await peer.send(b"".join(encode_frame(reply, (b"why",))))
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(PeerUnavailable, match=f"{code.name}: node 1 at .* on Ping: why"):
            await connection.call(PING, timeout_s=SECONDS)
        assert connection.is_usable


# It is not known what was done.


@in_loop
async def test_a_request_whose_connection_breaks_has_an_unknown_outcome():
    async def serve(peer):
        await peer.welcome()
        await peer.next_frame()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(OutcomeUnknown, match="Ping may have been executed"):
            await connection.call(PING, timeout_s=SECONDS)


@in_loop
async def test_half_a_response_has_an_unknown_outcome():
    async def serve(peer):
        await peer.welcome()
        await peer.next_frame()
        await peer.send(b"\0\0\0\x50half of it")

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(OutcomeUnknown):
            await connection.call(PING, timeout_s=SECONDS)


@in_loop
async def test_a_request_without_a_response_in_time_has_an_unknown_outcome_and_is_cancelled():
    frames = []

    async def serve(peer):
        await peer.welcome()
        header, _ = await peer.next_frame()
        frames.append((await peer.next_frame())[0])
        # The response comes too late, and is not taken for that of another request.
        await peer.answer(header, PingResponse(nonce=99))
        header, _ = await peer.next_frame()
        await peer.answer(header, PingResponse(nonce=2))
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(OutcomeUnknown, match=r"no response to Ping within 0\.0"):
            await connection.call(PING, timeout_s=0.02)
        response = await connection.call(PingRequest(nonce=2), timeout_s=SECONDS)
        assert response == PingResponse(nonce=2)
        assert frames[0].kind is FrameKind.CANCEL
        assert connection.in_flight == 0


@in_loop
async def test_a_connection_that_stays_silent_after_a_request_was_given_up_is_closed():
    """The peer is gone without a word: nothing that is sent to it comes back."""

    async def serve(peer):
        await peer.welcome()
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint, config=PeerConfig(silence_ms_max=10))
        with pytest.raises(OutcomeUnknown):
            await connection.call(PING, timeout_s=0.01)
        await until(lambda: not connection.is_usable)


@in_loop
async def test_a_peer_that_is_slow_with_one_request_keeps_its_connection():
    async def serve(peer):
        await peer.welcome()
        await peer.next_frame()
        assert (await peer.next_frame())[0].kind is FrameKind.CANCEL
        while True:
            header, _ = await peer.next_frame()
            await peer.answer(header, PingResponse(nonce=1))

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint, config=PeerConfig(silence_ms_max=10))
        with pytest.raises(OutcomeUnknown):
            await connection.call(FORWARD, timeout_s=0.01)
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.05
        while loop.time() < end:
            await connection.call(PING, timeout_s=SECONDS)
        assert connection.is_usable


@in_loop
async def test_all_requests_in_flight_share_the_fate_of_their_connection():
    async def serve(peer):
        await peer.welcome()
        for _ in range(5):
            await peer.next_frame()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        calls = [connection.call(PING, timeout_s=SECONDS) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [OutcomeUnknown] * 5
        assert connection.in_flight == 0


# Nonsense.

NONSENSE = {
    "a response without a request": lambda header: header._replace(correlation_id=77),
    "a response of another API": lambda header: header._replace(api_key=2),
    "a response of another version": lambda header: header._replace(version=3),
    "a request": lambda header: header._replace(kind=FrameKind.REQUEST),
    "a credit": lambda header: header._replace(kind=FrameKind.CREDIT),
    "an error that is not the last frame": lambda header: header._replace(
        error_code=5, is_last=False
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
@in_loop
async def test_nonsense_closes_the_connection(name):
    async def serve(peer):
        await peer.welcome()
        header, _ = await peer.next_frame()
        reply = header._replace(kind=FrameKind.RESPONSE, is_last=True, deadline_ms=0)
        await peer.send(b"".join(encode_frame(NONSENSE[name](reply), (bytes(9),))))
        assert await peer.is_closed()

    counters = PeerClientCounters()
    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint, counters=counters)
        with pytest.raises(OutcomeUnknown):
            await connection.call(PING, timeout_s=SECONDS)
        assert not connection.is_usable
        assert counters.nonsense == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x05hello",
        welcome()[:-3] + b"\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["below zero", "nothing", "too large", "too short", "damaged", "http"],
)
@in_loop
async def test_a_malformed_handshake_closes_the_connection(data):
    async def serve(peer):
        await peer.hello()
        await peer.send(data)
        assert await peer.is_closed()

    counters = PeerClientCounters()
    async with scripted_peer(serve) as endpoint:
        with pytest.raises(PeerUnavailable):
            await connection_to(endpoint, counters=counters)
        assert counters.nonsense == 1


@in_loop
async def test_a_response_above_the_limit_is_not_read():
    async def serve(peer):
        await peer.welcome()
        await peer.next_frame()
        await peer.send((64 * 1024 + 1).to_bytes(4, "big"))
        assert await peer.is_closed()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint, config=PeerConfig(response_size_max=64 * 1024))
        with pytest.raises(OutcomeUnknown, match="must be between 1 and 65536, got 65537"):
            await connection.call(PING, timeout_s=SECONDS)


@in_loop
async def test_a_stream_that_exceeds_its_window_is_nonsense():
    async def serve(peer):
        await peer.welcome()
        header, _ = await peer.next_frame()
        item = ForwardResponse(status=200, body=bytes(STREAM_WINDOW_BYTES))
        await peer.answer(header, item, is_last=False)
        await peer.answer(header, item, is_last=False)
        assert await peer.is_closed()

    counters = PeerClientCounters()
    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint, counters=counters)
        deadline = asyncio.get_running_loop().time() + SECONDS
        stream = connection.stream(FORWARD, deadline, idle_s=SECONDS, settled=lambda _: None)
        await until(lambda: counters.nonsense == 1)
        await anext(stream)
        with pytest.raises(OutcomeUnknown, match="sends more than it was allowed to"):
            await anext(stream)


@in_loop
async def test_a_stream_where_a_response_was_expected_is_not_a_success():
    async def serve(peer):
        await peer.welcome()
        header, _ = await peer.next_frame()
        await peer.answer(header, ForwardResponse(status=200), is_last=False)
        assert (await peer.next_frame())[0].kind is FrameKind.CANCEL
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(OutcomeUnknown, match="answered with a stream"):
            await connection.call(FORWARD, timeout_s=SECONDS)


@in_loop
async def test_an_empty_stream_where_a_response_was_expected_is_not_a_success():
    async def serve(peer):
        await peer.welcome()
        header, _ = await peer.next_frame()
        end = header._replace(kind=FrameKind.RESPONSE, is_last=True, deadline_ms=0)
        await peer.send(b"".join(encode_frame(end)))
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        with pytest.raises(OutcomeUnknown, match="answered with nothing"):
            await connection.call(FORWARD, timeout_s=SECONDS)


@in_loop
async def test_a_stream_that_falls_silent_ends_with_an_error():
    async def serve(peer):
        await peer.welcome()
        header, _ = await peer.next_frame()
        await peer.answer(header, ForwardResponse(status=200), is_last=False)
        assert (await peer.next_frame())[0].kind is FrameKind.CANCEL
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        deadline = asyncio.get_running_loop().time() + SECONDS
        stream = connection.stream(FORWARD, deadline, idle_s=0.02, settled=lambda _: None)
        await anext(stream)
        with pytest.raises(OutcomeUnknown, match=r"nothing of Forward within 0\.02 s"):
            await anext(stream)


# Details.


@in_loop
async def test_the_handshake_names_everything_that_the_peer_checks():
    hellos = []

    async def serve(peer):
        hellos.append(await peer.hello())
        await peer.send(welcome())
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        (hello,) = hellos
        assert (hello.cluster_id, hello.node_id, hello.target_node_id) == ("cluster-1", 2, 1)
        assert hello.apis == ANNOUNCED
        assert hello.hlc > 0
        connection.close()


@in_loop
async def test_the_records_of_a_response_stay_valid_as_long_as_someone_has_them():
    async def serve(peer):
        await peer.welcome()
        for number in range(20):
            header, _ = await peer.next_frame()
            body = bytes([number]) * (1000 * number)
            await peer.answer(header, ForwardResponse(status=200, body=body))
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        bodies = [(await connection.call(FORWARD, timeout_s=SECONDS)).body for _ in range(20)]
        assert bodies == [bytes([number]) * (1000 * number) for number in range(20)]


@in_loop
async def test_the_clock_of_a_peer_is_compared_with_ours():
    async def serve(peer):
        await peer.welcome(hlc=(1_700_000_000_250) << 20)
        await peer.reader.read()

    async with scripted_peer(serve) as endpoint:
        connection = await connection_to(endpoint)
        expected = 1_700_000_000_250 - connection._clock.wall_ms()
        assert connection.drift_ms == expected
        connection.close()
