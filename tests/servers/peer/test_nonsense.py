"""Nonsense closes its connection, with one line in the log, and harms nothing else (S24)."""

from __future__ import annotations

import asyncio
import logging
import random
import struct

import pytest

from millstream.config.schema import MIB, PeerConfig
from millstream.protocols.kafka.codec.message import encode
from millstream.protocols.peer.apis import PEER_APIS
from millstream.protocols.peer.frame import FrameHeader, FrameKind, encode_frame
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.forward import ForwardRequest, ForwardResponse
from millstream.protocols.peer.messages.ping import PingRequest, PingResponse
from millstream.servers.deferred_response import DeferredResponse
from tests.in_loop import in_loop
from tests.protocols.kafka.samples import sample
from tests.servers.peer.peer_nodes import SECONDS, identity, raw_peer, running_peer, until
from tests.servers.peer.test_handshake import hello
from tests.servers.peer.test_requests import request_frame, shake_hands

LOGGER = "millstream.servers.peer.peer_protocol"
PURPOSES = {api.key: min(api.purposes) for api in PEER_APIS.values()}

NONSENSE = {
    "a size below zero": struct.pack(">i", -5),
    "a size above the limit": struct.pack(">i", 2**31 - 1),
    "a frame that is too short": struct.pack(">i", 10) + bytes(10),
    "an unknown kind": b"\0\0\0\x19" + b"\x09" + bytes(24),
    "a response": b"".join(encode_frame(FrameHeader(FrameKind.RESPONSE, 1), (b"x",))),
    "a notice that the peer stops": b"".join(encode_frame(FrameHeader(FrameKind.GOING_AWAY, 0))),
    "an unknown API": b"".join(encode_frame(FrameHeader(FrameKind.REQUEST, 1, 99, 0, 1000))),
    "an unknown version": b"".join(
        encode_frame(FrameHeader(FrameKind.REQUEST, 1, 1, 7, 1000), (bytes(9),))
    ),
    "a request that cannot be decoded": b"".join(
        encode_frame(FrameHeader(FrameKind.REQUEST, 1, 6, 0, 1000), (b"\x01\xff\xff",))
    ),
    "a request with bytes behind it": b"".join(
        encode_frame(FrameHeader(FrameKind.REQUEST, 1, 1, 0, 1000), (bytes(10),))
    ),
    "a credit of nothing": b"".join(encode_frame(FrameHeader(FrameKind.CREDIT, 1), (bytes(4),))),
    "plain HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", NONSENSE)
@in_loop
async def test_nonsense_closes_its_connection_with_one_line(name, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    async with running_peer() as server:
        other = await server.connect(local=identity(3))
        async with raw_peer(server.port) as raw:
            await shake_hands(raw)
            await raw.send(NONSENSE[name])
            assert await raw.is_closed()
        assert server.counters.nonsense == 1
        (line,) = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        assert line.startswith("node 2 at 127.0.0.1: closed: ")
        await other.call(PingRequest(), timeout_s=SECONDS)


@in_loop
async def test_a_correlation_id_that_is_in_use_is_nonsense():
    async with running_peer() as server, raw_peer(server.port) as raw:
        server.listener.serve(ForwardRequest, lambda *_: DeferredResponse())
        await shake_hands(raw)
        request = request_frame(ForwardRequest(method="GET", target=b"/"), 1)
        await raw.send(request + request)
        assert await raw.is_closed()
        assert server.counters.nonsense == 1


def mutated(rng, frame):
    """Return the frame with some damage: flipped bits, cut, or with bytes in between."""
    data = bytearray(frame)
    for _ in range(rng.randrange(1, 5)):
        match rng.randrange(4):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                position = rng.randrange(len(data))
                data[position : position + 4] = rng.choice(
                    [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0"]
                )
            case 2:
                del data[rng.randrange(4, len(data) + 1) :]
            case _:
                position = rng.randrange(len(data))
                data[position:position] = rng.randbytes(rng.randrange(1, 40))
        if len(data) < 5:
            return bytes(data) + bytes(8)
    return bytes(data)


def sound_frame(rng):
    """Return a sound frame of a peer, and the purpose of its connection."""
    kind = rng.choices(list(FrameKind), weights=[20, 1, 2, 2, 1])[0]
    number = rng.randrange(4)
    if kind is not FrameKind.REQUEST:
        header = FrameHeader(kind, number)
        return b"".join(encode_frame(header, (rng.randbytes(4),))), Purpose.FORWARDING
    api = rng.choice(list(PEER_APIS.values()))
    body = encode(sample(api.request, 0, rng.random()), 0)
    header = FrameHeader(
        kind, number, api.key, 0, rng.randrange(100_000), rng.randrange(2**40), traceparent="00-x"
    )
    return b"".join(encode_frame(header, (body,))), PURPOSES[api.key]


@pytest.mark.parametrize("seed", range(8))
@in_loop
async def test_mutated_frames_harm_no_other_connection(seed):
    """A sound peer is served all the time, and in the end nothing of the nonsense is left."""
    rng = random.Random(seed)
    config = PeerConfig(request_size_max=MIB, receive_bytes_max=4 * MIB, idle_ms_max=600_000)
    async with running_peer(config=config) as server:
        listener = server.listener

        async def forward(request, _context):
            return ForwardResponse(status=200, body=bytes(request.body or b""))

        for api in PEER_APIS.values():
            if api.request is not PingRequest:
                listener.serve(api.request, lambda *_, api=api: sample(api.response, 0, 1))
        listener.serve(ForwardRequest, forward)
        sound = await server.connect(local=identity(3))
        at_rest = listener.blocks.used_bytes
        for number in range(40):
            async with raw_peer(server.port) as raw:
                frame, purpose = sound_frame(rng)
                if rng.random() < 0.2:
                    await raw.send(mutated(rng, hello(purpose=purpose)))
                else:
                    await shake_hands(raw, purpose)
                    sound_first = rng.random() < 0.5
                    await raw.send((frame if sound_first else b"") + mutated(rng, frame))
                raw.writer.write_eof()
                await raw.is_closed()
            answer = await sound.call(PingRequest(nonce=number), timeout_s=SECONDS)
            assert answer == PingResponse(nonce=number)
            assert listener.blocks.used_bytes <= at_rest + 4 * MIB
        await until(lambda: listener.connection_count == 1)
        await until(lambda: listener.tasks.is_idle)
        assert listener.blocks.used_bytes == at_rest
        assert server.counters.nonsense > 5
        assert not listener.slow


@in_loop
async def test_announced_sizes_cost_no_memory():
    """Every connection announces 100 MiB and sends a little of it."""
    async with running_peer() as server:
        listener = server.listener
        connections = []
        for _ in range(50):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(hello() + struct.pack(">i", 100 * MIB) + bytes(1000))
            connections.append((reader, writer))
        await until(lambda: server.counters.handshakes == 50)
        await until(lambda: server.counters.received_bytes >= 50 * 1000)
        assert listener.blocks.used_bytes < 8 * MIB
        for _, writer in connections:
            writer.transport.abort()
        await until(lambda: not listener.connection_count)
        assert listener.blocks.used_bytes < MIB


@in_loop
async def test_a_request_that_does_not_arrive_in_time_is_closed():
    config = PeerConfig(request_ms_max=100)
    async with running_peer(config=config) as server, raw_peer(server.port) as raw:
        await shake_hands(raw)
        await raw.send(struct.pack(">i", 1000) + bytes(10))
        assert await raw.is_closed()
        assert server.counters.closed_by_us == 1
