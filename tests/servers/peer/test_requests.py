"""Requests of peers: in any order, within deadlines and limits."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import uuid

import pytest

from millstream.config.schema import PeerConfig
from millstream.errors import (
    DiskFull,
    OutcomeUnknown,
    PeerUnavailable,
    ProducerFenced,
    StorageFailed,
)
from millstream.protocols.kafka.codec.message import encode_parts
from millstream.protocols.peer.apis import API_OF_REQUEST
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.frame import (
    STREAM_WINDOW_BYTES,
    FrameHeader,
    FrameKind,
    decode_frame,
    encode_frame,
)
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.forward import ForwardRequest, ForwardResponse
from millstream.protocols.peer.messages.peer_fetch import (
    PeerFetchRequest,
    PeerFetchResponse,
    PeerFetchResponsePartition,
)
from millstream.protocols.peer.messages.ping import PingRequest, PingResponse
from millstream.protocols.peer.messages.segments import (
    SegmentManifestRequest,
    SegmentManifestResponse,
)
from millstream.servers.deferred_response import DeferredResponse
from tests.in_loop import in_loop
from tests.servers.peer.peer_nodes import SECONDS, raw_peer, running_peer, until
from tests.servers.peer.test_handshake import hello

FETCH = PeerFetchRequest(broker_epoch=1, wait_ms_max=500, bytes_max=1)
TOPIC_ID = uuid.UUID(int=5)
FORWARD = ForwardRequest(method="GET", target=b"/")


def request_frame(request, number, *, deadline_ms=30_000):
    api = API_OF_REQUEST[type(request)]
    header = FrameHeader(FrameKind.REQUEST, number, api.key, 0, deadline_ms)
    return b"".join(encode_frame(header, encode_parts(request, 0)))


async def shake_hands(raw, purpose=Purpose.FORWARDING):
    await raw.send(hello(purpose=purpose))
    await raw.frame()


async def next_frame(raw):
    return decode_frame(memoryview(await raw.frame()))


# Order.


@in_loop
async def test_a_long_poll_delays_no_other_request_of_its_connection():
    async with running_peer() as server:
        polls = []

        def fetch(_request, _context):
            polls.append(DeferredResponse())
            return polls[-1]

        server.listener.serve(PeerFetchRequest, fetch)
        connection = await server.connect(purpose=Purpose.REPLICATION)
        poll = asyncio.create_task(connection.call(FETCH, timeout_s=SECONDS))
        await until(lambda: bool(polls))
        assert await connection.call(PingRequest(nonce=5), timeout_s=SECONDS) == PingResponse(
            nonce=5
        )
        assert not poll.done()
        polls[0].finish(PeerFetchResponse(session_id=8))
        assert (await poll).session_id == 8


@in_loop
async def test_responses_come_in_the_order_in_which_they_are_ready():
    async with running_peer() as server:
        gates = {number: asyncio.Event() for number in range(10)}
        started = []

        async def forward(request, _context):
            number = int(request.target)
            started.append(number)
            await gates[number].wait()
            return ForwardResponse(status=200 + number)

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        ended = []

        async def ask(number):
            request = ForwardRequest(method="GET", target=b"%d" % number)
            response = await connection.call(request, timeout_s=SECONDS)
            ended.append(number)
            return response.status

        tasks = [asyncio.create_task(ask(number)) for number in range(10)]
        await until(lambda: len(started) == 10)
        assert started == list(range(10)), "requests start as they arrive"
        for number in reversed(range(10)):
            gates[number].set()
            await until(lambda count=10 - number: len(ended) == count)
        assert ended == list(reversed(range(10)))
        assert await asyncio.gather(*tasks) == [200 + number for number in range(10)]


# Deadlines.


@pytest.mark.parametrize("kind", ["coroutine", "deferred", "stream"])
@in_loop
async def test_work_is_cancelled_when_its_deadline_has_passed(kind):
    async with running_peer() as server, raw_peer(server.port) as raw:
        cancelled = []

        async def wait():
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(kind)
                raise

        async def stream():
            await wait()
            yield ForwardResponse()

        def forward(_request, _context):
            if kind == "deferred":
                return DeferredResponse(cancel=lambda: cancelled.append(kind))
            return wait() if kind == "coroutine" else stream()

        server.listener.serve(ForwardRequest, forward)
        await shake_hands(raw)
        await raw.send(request_frame(FORWARD, 1, deadline_ms=1))
        header, text = await next_frame(raw)
        assert header.error_code == PeerErrorCode.DEADLINE_EXCEEDED
        assert header.is_last
        assert bytes(text) == b"not done within 1 ms"
        await until(lambda: cancelled == [kind])
        assert server.counters.requests["Forward"].outcomes == {"late": 1}
        await until(lambda: server.listener.tasks.is_idle)


@in_loop
async def test_a_request_that_is_late_when_it_arrives_is_not_started():
    async with running_peer() as server, raw_peer(server.port) as raw:
        await shake_hands(raw)
        await raw.send(request_frame(PingRequest(), 1, deadline_ms=0))
        header, _ = await next_frame(raw)
        assert header.error_code == PeerErrorCode.EXPIRED


@in_loop
async def test_the_caller_does_not_wait_longer_than_its_deadline():
    async with running_peer() as server:

        def forward(_request, _context):
            return DeferredResponse()

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        with pytest.raises(OutcomeUnknown):
            await connection.call(FORWARD, timeout_s=0.01)
        assert connection.is_usable
        await connection.call(PingRequest(), timeout_s=SECONDS)


@in_loop
async def test_the_context_of_a_request_says_who_asks_and_until_when():
    async with running_peer() as server:
        contexts = []

        def forward(_request, context):
            contexts.append(context)
            return ForwardResponse(status=200)

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await connection.call(FORWARD, timeout_s=SECONDS, traceparent=trace)
        (context,) = contexts
        assert context.node_id == 2
        assert context.peer.purpose is Purpose.FORWARDING
        assert context.traceparent == trace
        left = context.deadline - asyncio.get_running_loop().time()
        assert 0 < left <= SECONDS
        assert context.hlc > 0


# Errors.


@pytest.mark.parametrize(
    ("error", "arrives_as"),
    [
        (DiskFull("full"), PeerUnavailable),
        (ProducerFenced("fenced"), ProducerFenced),
        (StorageFailed("failed"), OutcomeUnknown),
        (ZeroDivisionError("a bug"), OutcomeUnknown),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("is_async", [False, True])
@in_loop
async def test_an_error_of_a_handler_ends_one_request(error, arrives_as, is_async):
    async with running_peer() as server:

        def fail(_request, _context):
            raise error

        async def fail_later(_request, _context):
            raise error

        server.listener.serve(ForwardRequest, fail_later if is_async else fail)
        connection = await server.connect()
        logging.getLogger("millstream.servers.peer.pending_call").disabled = True
        try:
            with pytest.raises(arrives_as):
                await connection.call(FORWARD, timeout_s=SECONDS)
        finally:
            logging.getLogger("millstream.servers.peer.pending_call").disabled = False
        await connection.call(PingRequest(), timeout_s=SECONDS)


@in_loop
async def test_an_internal_error_is_logged_and_not_told(caplog):
    async with running_peer() as server:

        def fail(_request, _context):
            raise ZeroDivisionError("secret")

        server.listener.serve(ForwardRequest, fail)
        connection = await server.connect()
        with pytest.raises(OutcomeUnknown) as caught:
            await connection.call(FORWARD, timeout_s=SECONDS)
        assert "secret" not in str(caught.value)
        assert "internal error in Forward" in str(caught.value)
        assert "Forward of a peer failed" in caplog.text


@in_loop
async def test_a_response_of_the_wrong_class_is_an_internal_error(caplog):
    async with running_peer() as server:
        server.listener.serve(ForwardRequest, lambda _request, _context: "hello")
        connection = await server.connect()
        with pytest.raises(OutcomeUnknown, match="internal error"):
            await connection.call(FORWARD, timeout_s=SECONDS)
        assert "Forward of a peer failed" in caplog.text


@in_loop
async def test_an_api_without_a_handler_is_refused():
    async with running_peer() as server:
        connection = await server.connect()
        with pytest.raises(PeerUnavailable, match="Forward is not served") as caught:
            await connection.call(FORWARD, timeout_s=SECONDS)
        assert caught.value.code == PeerErrorCode.NOT_SERVED


@in_loop
async def test_a_connection_is_used_for_its_purpose_only():
    async with running_peer() as server:
        found = SegmentManifestResponse(log_start=7)
        server.listener.serve(SegmentManifestRequest, lambda _request, _context: found)
        request = SegmentManifestRequest(topic_id=uuid.UUID(int=1), index=0, leader_epoch=0)
        replication = await server.connect(purpose=Purpose.REPLICATION)
        assert await replication.call(request, timeout_s=SECONDS) == found
        forwarding = await server.connect()
        with pytest.raises(PeerUnavailable, match="on connections for forwarding"):
            await forwarding.call(request, timeout_s=SECONDS)


def test_only_requests_between_peers_have_handlers():
    async def serve():
        async with running_peer() as server:
            with pytest.raises(TypeError, match="PingResponse is not a request between peers"):
                server.listener.serve(PingResponse, lambda _request, _context: None)

    asyncio.run(serve())


# Cancellation.


@in_loop
async def test_work_is_cancelled_when_its_caller_is_cancelled():
    async with running_peer() as server:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def forward(_request, _context):
            started.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cancelled.set()

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        task = asyncio.create_task(connection.call(FORWARD, timeout_s=SECONDS))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await cancelled.wait()
        assert server.counters.requests["Forward"].outcomes == {"cancelled": 1}
        await until(lambda: not connection.in_flight)
        await connection.call(PingRequest(), timeout_s=SECONDS)


@in_loop
async def test_work_that_is_cancelled_before_it_begins_leaves_nothing():
    async with running_peer() as server:
        works = []

        async def forward():
            raise AssertionError("it was cancelled before")

        def begin(_request, _context):
            works.append(forward())
            return works[-1]

        server.listener.serve(ForwardRequest, begin)
        async with raw_peer(server.port) as raw:
            await shake_hands(raw)
            cancel = b"".join(encode_frame(FrameHeader(FrameKind.CANCEL, 7)))
            await raw.send(request_frame(FORWARD, 7) + cancel)  # They arrive together.
            header, _ = await next_frame(raw)
            assert (header.correlation_id, header.error_code) == (7, PeerErrorCode.CANCELLED)
        for _ in range(5):
            await asyncio.sleep(0)
        assert inspect.getcoroutinestate(works[0]) == inspect.CORO_CLOSED


@in_loop
async def test_work_is_cancelled_when_the_connection_is_lost():
    async with running_peer() as server:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def forward(_request, _context):
            started.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cancelled.set()

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        task = asyncio.create_task(connection.call(FORWARD, timeout_s=SECONDS))
        await started.wait()
        connection.close()
        with pytest.raises(OutcomeUnknown, match="Forward may have been executed"):
            await task
        await cancelled.wait()


@in_loop
async def test_a_cancellation_that_comes_too_late_is_ignored():
    async with running_peer() as server, raw_peer(server.port) as raw:
        await shake_hands(raw)
        await raw.send(b"".join(encode_frame(FrameHeader(FrameKind.CANCEL, 77))))
        await raw.send(request_frame(PingRequest(), 1))
        header, _ = await next_frame(raw)
        assert header.correlation_id == 1


@in_loop
async def test_work_that_cannot_be_cancelled_keeps_the_memory_of_its_request_until_it_ends():
    async with running_peer() as server:
        works = []

        def forward(request, _context):
            works.append((DeferredResponse(), request.body))
            return works[-1][0]

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        used = server.listener.blocks.used_bytes
        body = bytes(1_000_000)
        request = ForwardRequest(method="PUT", target=b"/", body=body)
        task = asyncio.create_task(connection.call(request, timeout_s=SECONDS))
        await until(lambda: bool(works))
        task.cancel()
        await until(lambda: server.counters.requests["Forward"].outcomes.total() == 1)
        assert server.listener.blocks.used_bytes > used
        work, view = works.pop()
        assert view == body
        work.finish(ForwardResponse(status=200))
        assert server.listener.blocks.used_bytes <= used


# Streams.


@in_loop
async def test_a_stream_ends_after_its_last_item():
    async with running_peer() as server:

        async def forward(_request, _context):
            yield ForwardResponse(status=200, body=b"a")
            yield ForwardResponse(body=b"b")

        server.listener.serve(ForwardRequest, forward)
        pool = server.pool()
        stream = await pool.stream(
            1, Purpose.FORWARDING, FORWARD, timeout_s=SECONDS, idle_s=SECONDS
        )
        async with stream:
            items = [(item.status, bytes(item.body)) async for item in stream]
        assert items == [(200, b"a"), (0, b"b")]
        assert server.counters.requests["Forward"].outcomes == {"answered": 1}
        pool.close()


@in_loop
async def test_a_coroutine_may_decide_to_stream():
    async with running_peer() as server:

        async def items():
            yield ForwardResponse(status=200)

        async def forward(_request, _context):
            return items()

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        deadline = asyncio.get_running_loop().time() + SECONDS
        stream = connection.stream(FORWARD, deadline, idle_s=SECONDS, settled=lambda _: None)
        assert [item.status async for item in stream] == [200]


@in_loop
async def test_a_single_response_is_a_stream_of_one():
    async with running_peer() as server:
        server.listener.serve(ForwardRequest, lambda *_: ForwardResponse(status=204))
        pool = server.pool()
        stream = await pool.stream(
            1, Purpose.FORWARDING, FORWARD, timeout_s=SECONDS, idle_s=SECONDS
        )
        assert [item.status async for item in stream] == [204]
        pool.close()


@in_loop
async def test_a_stream_that_fails_is_not_taken_for_a_complete_one():
    async with running_peer() as server:

        async def forward(_request, _context):
            yield ForwardResponse(status=200)
            raise StorageFailed("the disk is gone")

        server.listener.serve(ForwardRequest, forward)
        pool = server.pool()
        stream = await pool.stream(
            1, Purpose.FORWARDING, FORWARD, timeout_s=SECONDS, idle_s=SECONDS
        )
        assert (await anext(stream)).status == 200
        with pytest.raises(OutcomeUnknown, match="the disk is gone"):
            await anext(stream)
        pool.close()


@in_loop
async def test_a_stream_whose_connection_is_lost_is_not_taken_for_a_complete_one():
    async with running_peer() as server:

        async def forward(_request, _context):
            yield ForwardResponse(status=200)
            await asyncio.get_running_loop().create_future()

        server.listener.serve(ForwardRequest, forward)
        pool = server.pool()
        stream = await pool.stream(
            1, Purpose.FORWARDING, FORWARD, timeout_s=SECONDS, idle_s=SECONDS
        )
        await anext(stream)
        server.listener.abort()
        with pytest.raises(OutcomeUnknown, match="connection lost"):
            await anext(stream)
        pool.close()


@in_loop
async def test_a_stream_goes_no_further_ahead_of_its_reader_than_its_window():
    async with running_peer() as server:
        item_bytes = 100_000
        sent = []

        async def forward(_request, _context):
            for number in range(100):
                sent.append(number)
                yield ForwardResponse(status=200, body=bytes(item_bytes))

        server.listener.serve(ForwardRequest, forward)
        pool = server.pool()
        stream = await pool.stream(
            1, Purpose.FORWARDING, FORWARD, timeout_s=SECONDS, idle_s=SECONDS
        )
        window = STREAM_WINDOW_BYTES // item_bytes + 2
        await until(lambda: len(sent) >= window - 1)
        # Other requests of the connection are answered while the stream waits.
        await pool.call(1, Purpose.FORWARDING, PingRequest(), timeout_s=SECONDS)
        assert len(sent) <= window
        read = 0
        async for item in stream:
            read += len(item.body)
            assert len(sent) <= window + read // item_bytes + 1
        assert read == 100 * item_bytes
        pool.close()


@in_loop
async def test_streams_wait_for_a_peer_that_does_not_read():
    """However many streams a connection has, their windows do not add up in memory."""
    async with running_peer() as server, raw_peer(server.port) as raw:
        sent = []

        async def forward(_request, _context):
            for _ in range(10):
                sent.append(1)
                yield ForwardResponse(status=200, body=bytes(100_000))

        server.listener.serve(ForwardRequest, forward)
        await shake_hands(raw)
        raw.writer.transport.pause_reading()
        await raw.send(b"".join(request_frame(FORWARD, number) for number in range(60)))
        await until(lambda: bool(server.listener.slow))
        (protocol,) = server.listener.connections
        for _ in range(1000):
            await asyncio.sleep(0)
        # One item of each stream that has started may wait behind what is unsent.
        assert protocol.unsent_bytes < 2_000_000 + 60 * 100_000 / 2
        assert len(sent) < 300
        raw.writer.transport.resume_reading()
        ended = 0
        while ended < 60:
            ended += (await next_frame(raw))[0].is_last
            if len(sent) == 600:
                break
        await until(lambda: len(sent) == 600)


@in_loop
async def test_a_stream_that_its_reader_closes_ends_at_the_node():
    async with running_peer() as server:
        ended = asyncio.Event()

        async def forward(_request, _context):
            try:
                while True:
                    yield ForwardResponse(status=200, body=bytes(100_000))
            finally:
                ended.set()

        server.listener.serve(ForwardRequest, forward)
        pool = server.pool()
        stream = await pool.stream(
            1, Purpose.FORWARDING, FORWARD, timeout_s=SECONDS, idle_s=SECONDS
        )
        await anext(stream)
        stream.close()
        await ended.wait()
        await pool.call(1, Purpose.FORWARDING, PingRequest(), timeout_s=SECONDS)
        assert pool.connection_count == 1
        pool.close()


@in_loop
async def test_a_stream_has_no_deadline_after_its_first_item():
    async with running_peer() as server, raw_peer(server.port) as raw:
        goes_on = asyncio.Event()
        timers = []

        async def forward(_request, context):
            yield ForwardResponse(status=200)
            timers.append(context.deadline)
            await goes_on.wait()
            yield ForwardResponse()

        server.listener.serve(ForwardRequest, forward)
        await shake_hands(raw)
        await raw.send(request_frame(FORWARD, 1, deadline_ms=20))
        assert not (await next_frame(raw))[0].is_last
        await until(lambda: asyncio.get_running_loop().time() > timers[0] + 0.01)
        goes_on.set()
        header, _ = await next_frame(raw)
        assert (header.error_code, header.is_last) == (0, False)


# Limits.


@in_loop
async def test_requests_beyond_the_limit_are_refused_and_nothing_is_done():
    config = PeerConfig(requests_in_flight_max=2)
    async with running_peer(config=config) as server:
        started = []

        def forward(_request, _context):
            started.append(DeferredResponse())
            return started[-1]

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        waiting = [
            asyncio.create_task(connection.call(FORWARD, timeout_s=SECONDS)) for _ in range(2)
        ]
        await until(lambda: len(started) == 2)
        with pytest.raises(PeerUnavailable, match="2 requests are in flight") as caught:
            await connection.call(FORWARD, timeout_s=SECONDS)
        assert caught.value.code == PeerErrorCode.BUSY
        assert len(started) == 2
        for deferred in started:
            deferred.finish(ForwardResponse(status=200))
        await asyncio.gather(*waiting)
        third = asyncio.create_task(connection.call(FORWARD, timeout_s=SECONDS))
        await until(lambda: len(started) == 3)
        started[2].finish(ForwardResponse(status=200))
        assert (await third).status == 200


@in_loop
async def test_connections_beyond_the_limit_are_closed():
    config = PeerConfig(connections_max=2)
    async with running_peer(config=config) as server:
        first, second = await server.connect(), await server.connect()
        with pytest.raises(PeerUnavailable):
            await server.connect()
        assert server.counters.refused == {"connections": 1}
        await first.call(PingRequest(), timeout_s=SECONDS)
        await second.call(PingRequest(), timeout_s=SECONDS)


@in_loop
async def test_a_peer_that_does_not_read_is_not_read_from_and_then_disconnected():
    config = PeerConfig(output_ms_max=100)
    async with running_peer(config=config) as server, raw_peer(server.port) as raw:
        batches = memoryview(bytes(4_000_000))
        partition = PeerFetchResponsePartition(topic_id=TOPIC_ID, index=0, batches=batches)
        served = []

        def fetch(_request, _context):
            served.append(1)
            return PeerFetchResponse(partitions=(partition,))

        server.listener.serve(PeerFetchRequest, fetch)
        await shake_hands(raw, Purpose.REPLICATION)
        raw.writer.transport.pause_reading()
        raw.writer.write(b"".join(request_frame(FETCH, number) for number in range(200)))
        await until(lambda: server.counters.closed_by_us == 1)
        # What the sockets take, and the limit of one turn.
        assert len(served) < 20
        other = await server.connect()
        await other.call(PingRequest(), timeout_s=SECONDS)


@in_loop
async def test_requests_are_refused_while_too_much_waits_to_be_read():
    config = PeerConfig(output_bytes_max=1024 * 1024)
    async with running_peer(config=config) as server, raw_peer(server.port) as raw:
        batches = memoryview(bytes(16_000_000))
        partition = PeerFetchResponsePartition(topic_id=TOPIC_ID, index=0, batches=batches)
        server.listener.serve(
            PeerFetchRequest, lambda *_: PeerFetchResponse(partitions=(partition,))
        )
        await shake_hands(raw, Purpose.REPLICATION)
        raw.writer.transport.pause_reading()
        await raw.send(request_frame(FETCH, 1))
        await until(lambda: server.listener.unsent_bytes() > 1024 * 1024)
        other = await server.connect(purpose=Purpose.REPLICATION)
        with pytest.raises(PeerUnavailable, match="bytes wait to be read") as caught:
            await other.call(FETCH, timeout_s=SECONDS)
        assert caught.value.code == PeerErrorCode.BUSY


# Stopping.


@in_loop
async def test_a_node_that_stops_answers_what_it_has_started():
    async with running_peer() as server:
        started = []

        def forward(_request, _context):
            started.append(DeferredResponse())
            return started[-1]

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        call = asyncio.create_task(connection.call(FORWARD, timeout_s=SECONDS))
        await until(lambda: bool(started))
        draining = asyncio.create_task(server.listener.drain())
        await until(lambda: not connection.is_usable)
        with pytest.raises(PeerUnavailable, match="is going away"):
            await connection.call(FORWARD, timeout_s=SECONDS)
        assert not draining.done()
        started[0].finish(ForwardResponse(status=200))
        assert (await call).status == 200
        await draining
        assert not server.listener.connection_count


@in_loop
async def test_a_request_that_crosses_with_the_end_is_refused_and_nothing_is_done():
    async with running_peer() as server, raw_peer(server.port) as raw:
        await shake_hands(raw)
        draining = asyncio.create_task(server.listener.drain())
        header, _ = await next_frame(raw)
        assert header.kind is FrameKind.GOING_AWAY
        await raw.send(request_frame(PingRequest(), 1))
        header, _ = await next_frame(raw)
        assert header.error_code == PeerErrorCode.STOPPING
        raw.close()
        await draining


@in_loop
async def test_idle_connections_are_closed():
    config = PeerConfig(idle_ms_max=100)
    async with running_peer(config=config) as server:
        connection = await server.connect()
        await until(lambda: not connection.is_usable)
        assert server.counters.closed_by_us == 1


@in_loop
async def test_no_request_stays_in_memory_after_it_ended():
    async with running_peer() as server:

        async def forward(request, _context):
            return ForwardResponse(status=200, body=bytes(request.body))

        server.listener.serve(ForwardRequest, forward)
        connection = await server.connect()
        request = ForwardRequest(method="PUT", target=b"/", body=bytes(300_000))
        before = server.listener.blocks.used_bytes
        gc.disable()
        try:
            for _ in range(20):
                await connection.call(request, timeout_s=SECONDS)
            assert server.listener.blocks.used_bytes <= before
            (protocol,) = server.listener.connections
            assert protocol.request_count == 0
        finally:
            gc.enable()
