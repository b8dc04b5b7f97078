"""One connection: requests one after the other, within limits, up to a clean end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from millstream.broker.loop_timers import LoopTimers
from millstream.clock import SystemClock
from millstream.config.schema import HttpConfig
from millstream.servers.connection_set import ConnectionSet
from millstream.servers.http.server.listener import HttpListener
from millstream.servers.http.server.request_framer import CHUNKS_MAX, RequestFramer, RequestPart
from millstream.servers.http.server.request_head import FIELDS_MAX, TARGET_SIZE_MAX
from millstream.servers.http.server.server_state import HttpServerState
from millstream.testing.broker import RunningBroker, running_broker
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.in_loop import in_loop
from tests.servers.http.calls import app_with
from tests.servers.http.raw_client import RawClient, answers_in, raw_client

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


def get(path: bytes, *lines: bytes) -> bytes:
    first = b"GET " + path + b" HTTP/1.1"
    return b"".join(line + b"\r\n" for line in (first, b"Host: localhost", *lines)) + b"\r\n"


# Where requests begin and end.


@pytest.mark.parametrize("size", [1, 7, 64, 1_000])
def test_requests_are_the_same_however_their_bytes_arrive(size: int) -> None:
    post = b"POST /a HTTP/1.1\r\nHost: a\r\n"
    requests = [
        GET,
        post + b"Content-Length: 50\r\n\r\n" + b"x" * 50,
        post + b"Transfer-Encoding: chunked\r\n\r\n1a\r\n" + b"y" * 26 + b"\r\n0\r\n\r\n",
        GET,
    ]
    sent = b"".join(requests)
    framing, found = RequestFramer(head_size_max=1024), [b""]
    for at in range(0, len(sent), size):
        framing.receive(sent[at : at + size])
        while True:
            while (piece := framing.take()) is not None:
                found[-1] += piece
            if framing.part is not RequestPart.NOTHING:
                break
            framing.finish()
            found.append(b"")
    assert found == [*requests, b""]
    assert framing.held_size == 0


def test_what_follows_a_request_stays_until_it_is_answered() -> None:
    framing = RequestFramer(head_size_max=1024)
    framing.receive(GET * 3)
    assert framing.take() == GET
    assert framing.take() is None
    assert framing.held_size == len(GET) * 2
    framing.finish()
    assert framing.take() == GET


# Sizes.


def test_requests_that_come_at_once_are_answered_in_their_order(broker: RunningBroker) -> None:
    with raw_client(broker.url) as client:
        client.send(GET * 100 + get(b"/nowhere") + LAST + GET)
        statuses = [answer.status for answer in client.answers()]
    assert statuses == [200] * 100 + [404, 200]


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (get(b"/" + b"a" * TARGET_SIZE_MAX), 414, "request_uri_too_long"),
        (b"GET /" + b"a" * (TARGET_SIZE_MAX + 100), 414, "request_uri_too_long"),
        (get(b"/", b"X: " + b"a" * 65_536), 431, "request_header_fields_too_large"),
        (get(b"/", *[b"X: y"] * FIELDS_MAX), 431, "request_header_fields_too_large"),
        (get(b"/", *[b"X: y"] * FIELDS_MAX)[:-2], 431, "request_header_fields_too_large"),
    ],
)
def test_a_head_has_its_limits(
    broker: RunningBroker, request_bytes: bytes, status: int, code: str
) -> None:
    with raw_client(broker.url) as client:
        client.send(request_bytes)
        (answer,) = client.answers()
    assert (answer.status, answer.error["code"]) == (status, code)


def test_a_head_within_its_limits_is_served(broker: RunningBroker) -> None:
    long = b"/health/live?" + b"a" * (TARGET_SIZE_MAX - 13)
    with raw_client(broker.url) as client:
        client.send(get(long, *[b"X: " + b"y" * 400] * (FIELDS_MAX - 1)))
        assert client.answer().status == 200


def test_a_body_of_too_many_chunks_is_refused(broker: RunningBroker) -> None:
    broker.run(broker.server.broker.topics.create("chunks", partitions=1))
    head = b"POST /v1/topics/chunks/records HTTP/1.1\r\nHost: localhost\r\n"
    with raw_client(broker.url) as client:
        client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        client.try_to_send(b"1\r\n \r\n" * (CHUNKS_MAX + 1))
        (answer,) = client.answers()
    assert answer.status == 413
    assert "chunks" in answer.error["message"]


def test_who_answers_before_the_body_came_closes_behind_the_answer(broker: RunningBroker) -> None:
    """The remaining body is neither waited for nor taken for a request."""
    with raw_client(broker.url) as client:
        client.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        (answer,) = client.answers()
        client.try_to_send(GET)
    assert answer.status == 404
    assert answer.headers["connection"] == "close"


def test_ten_gigabytes_that_are_claimed_are_refused_at_the_head(broker: RunningBroker) -> None:
    broker.run(broker.server.broker.topics.create("claims", partitions=1))
    head = b"POST /v1/topics/claims/records HTTP/1.1\r\nHost: localhost\r\n"
    with raw_client(broker.url) as client:
        client.send(head + b"Content-Length: 10000000000\r\n\r\n")
        (answer,) = client.answers()
    assert answer.status == 413


def test_requests_of_all_together_have_a_limit(tmp_path: Path) -> None:
    web = HttpConfig(receive_bytes_max=65_536)
    with running_broker(tmp_path, http_server=web) as broker:
        broker.run(broker.server.broker.topics.create("t", partitions=1))
        with raw_client(broker.url) as client:
            client.send(b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\n")
            client.send(b"Content-Length: 100000\r\n\r\n")
            client.try_to_send(b" " * 100_000)
            (answer,) = client.answers()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        with raw_client(broker.url) as client:
            client.send(GET)
            assert client.answer().status == 200


# Many requests that nobody reads the answers of.

NODE = """
import sys
from millstream.testing.broker import running_broker
with running_broker(sys.argv[1]) as broker:
    print(broker.url, flush=True)
    sys.stdin.read()
"""


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_two_hundred_clients_that_read_nothing_cost_bounded_memory(tmp_path: Path) -> None:
    """Each sends ten thousand requests, as far as they are read."""
    command = [sys.executable, "-c", NODE, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        url = node.stdout.readline().strip()
        before = rss_bytes(node.pid)
        clients = [RawClient(url) for _ in range(200)]
        for client in clients:
            client.socket.setblocking(False)
            sent = 0
            while sent < len(GET) * 10_000:
                try:
                    sent += client.socket.send(GET * 1_000)
                except BlockingIOError:
                    break
        with raw_client(url) as client:
            client.send(GET)
            assert client.answer().status == 200
        # 256 KiB that were read at once, and 64 KiB that were written. Where each request is begun
        # as soon as it is read, as the protocol beneath does it, this takes 4,700 MiB.
        assert rss_bytes(node.pid) - before < 100 * 1024 * 1024
        for client in clients:
            client.socket.close()
        node.communicate("")
    assert node.returncode == 0


# One request at a time.


class ControlledServer:
    """A listener with an application that a test controls."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.state = HttpServerState(HttpConfig(), SystemClock(), LoopTimers())
        self.listener = HttpListener(app_with(wait=self.wait, poll=self.poll), self.state)

    async def wait(self, _: Request) -> Response:
        self.entered.set()
        await self.may_answer.wait()
        return PlainTextResponse("done")

    async def poll(self, _: Request) -> Response:
        self.entered.set()
        told = asyncio.Event()
        self.state.shutdown.watch(told.set)
        await told.wait()
        return PlainTextResponse("told")


async def connect(server: ControlledServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = await server.listener.listen("127.0.0.1", 0)
    return await asyncio.open_connection("127.0.0.1", port)


def test_nothing_is_read_while_a_request_waits_for_the_one_before() -> None:
    async def run() -> list[bool]:
        server = ControlledServer()
        reader, writer = await connect(server)
        writer.write(get(b"/wait") * 2)
        await server.entered.wait()
        (connection,) = server.state.connections
        # The application may read on as it likes; that is not its to say.
        connection.resume_reading()
        paused = [not connection._is_reading]
        server.may_answer.set()
        for _ in range(2):
            await reader.readuntil(b"done")
        paused.append(not connection._is_reading)
        writer.close()
        await server.listener.stop()
        return paused

    assert asyncio.run(run()) == [True, False]


# How it ends.


def test_a_stop_answers_what_is_under_way_and_then_closes() -> None:
    async def run() -> bytes:
        server = ControlledServer()
        reader, writer = await connect(server)
        writer.write(get(b"/wait") + get(b"/wait"))
        await server.entered.wait()
        stopping = asyncio.ensure_future(server.listener.stop(60))
        closing = asyncio.Event()
        server.state.shutdown.watch(closing.set)
        await closing.wait()
        server.may_answer.set()
        came = await reader.read()
        await stopping
        writer.close()
        return came

    came = asyncio.run(run())
    assert came.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in came


def test_a_stop_wakes_who_waits() -> None:
    async def run() -> bytes:
        server = ControlledServer()
        reader, writer = await connect(server)
        writer.write(get(b"/poll"))
        await server.entered.wait()
        await server.listener.stop(60)
        came = await reader.read()
        writer.close()
        return came

    assert asyncio.run(run()).endswith(b"told")


@pytest.mark.parametrize("begun", [b"", b"GET /wa"])
def test_a_stop_closes_who_asks_for_nothing_at_once(begun: bytes) -> None:
    async def run() -> list[bytes]:
        server = ControlledServer()
        reader, writer = await connect(server)
        writer.write(get(b"/nowhere"))
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(begun)
        await server.listener.stop(60)
        try:
            return [head, await reader.read()]
        except ConnectionResetError:  # What was begun had not been read.
            return [head, b""]
        finally:
            writer.close()

    head, rest = asyncio.run(run())
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"HTTP/1.1" not in rest


def test_a_stop_cuts_off_what_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> bytes:
        server = ControlledServer()
        reader, writer = await connect(server)
        writer.write(get(b"/wait"))
        await server.entered.wait()
        await server.listener.stop(0.01)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    assert asyncio.run(run()) == b""
    assert "cut off 1 connections, 1 requests" in caplog.text


def test_a_client_that_is_gone_gives_back_what_it_held(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        listener = broker.server._http
        assert listener is not None
        with raw_client(broker.url) as client:
            client.send(GET)
            assert client.answer().status == 200
            client.send(b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\n")
            client.send(b"Content-Length: 9\r\n\r\n1234")
        broker.run(listener.state.connections.wait_until_none())
        assert listener.state.counters.received_bytes > len(GET)
        assert listener.state.counters.held_bytes == 0


# Counting connections.


def test_connections_are_counted_by_address_and_stay_so_when_they_change_their_protocol() -> None:
    connections: ConnectionSet[object] = ConnectionSet()
    first, second, upgraded = object(), object(), object()
    connections.add(first, "a")
    connections.add(second, "b")
    assert (len(connections), connections.count_of("a"), connections.count_of("c")) == (2, 1, 0)
    connections.discard(first)
    connections.add(upgraded, "a")
    assert (len(connections), connections.count_of("a")) == (2, 1)
    connections.discard(upgraded)
    connections.discard(second)
    assert (len(connections), connections.count_of("a"), connections.count_of("")) == (0, 0, 0)


# Becoming a WebSocket.

HANDSHAKE = get(
    b"/ws",
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text((await socket.receive_bytes()).decode())
    await socket.close()


def socket_server() -> ControlledServer:
    server = ControlledServer()
    server.listener = HttpListener(Starlette(routes=[WebSocketRoute("/ws", echo)]), server.state)
    return server


@in_loop
async def test_a_websocket_stays_counted_and_has_no_deadline_of_a_request() -> None:
    server = socket_server()
    clock = ManualClock()
    timers = ManualTimers(clock)
    server.state.clock, server.state.timers = clock, timers
    reader, writer = await connect(server)
    writer.write(HANDSHAKE)
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    connections = server.state.connections
    assert (len(connections), connections.count_of("127.0.0.1")) == (1, 1)
    timers.advance(12)  # Past the deadline of a head, and before the first ping.
    writer.write(b"\x81\x85\x00\x00\x00\x00hello")
    assert await reader.readexactly(7) == b"\x81\x05hello"
    writer.write(b"\x88\x82\x00\x00\x00\x00\x03\xe8")
    await reader.read()
    writer.close()
    await connections.wait_until_none()
    assert connections.count_of("127.0.0.1") == 0
    assert (server.state.counters.held_bytes, server.state.counters.ended) == (0, {})
    await server.listener.stop()


def test_what_follows_the_wish_for_a_websocket_too_early_is_refused() -> None:
    async def run() -> bytes:
        server = socket_server()
        reader, writer = await connect(server)
        writer.write(HANDSHAKE + GET)
        came = await reader.read()
        writer.close()
        await server.listener.stop()
        return came

    (answer,) = answers_in(asyncio.run(run()))
    assert answer.status == 400


def test_a_stop_closes_websockets_too() -> None:
    async def run() -> bytes:
        server = ControlledServer()

        async def close_on_stop(socket: WebSocket) -> None:
            await socket.accept()
            told = asyncio.Event()
            server.state.shutdown.watch(told.set)
            await told.wait()
            await socket.close()

        routes = [WebSocketRoute("/ws", close_on_stop)]
        server.listener = HttpListener(Starlette(routes=routes), server.state)
        reader, writer = await connect(server)
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        await server.listener.stop(60)
        came = await reader.read()
        writer.close()
        return came

    assert asyncio.run(run())[:1] == b"\x88"
