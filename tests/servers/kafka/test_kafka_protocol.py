"""One connection: requests and responses are in order, and nothing grows unbounded."""

from __future__ import annotations

import asyncio
import struct

from millstream.broker.access.user_slots import NO_USER_CAPS
from millstream.config.schema import KafkaConfig
from millstream.errors import MalformedRequest
from millstream.servers.backlogs import (
    ARRIVAL_REQUESTS_MAX,
    SHORT_SLICE_REQUESTS_MAX,
    SHORT_SLICES,
    SLICE_REQUESTS_MAX,
    TURN_REQUESTS_MAX,
    Backlogs,
)
from millstream.servers.block_pool import BLOCK_SIZE, BlockPool
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.kafka.counters import KafkaCounters
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.kafka_protocol import KafkaProtocol
from millstream.servers.kafka.pending_request import PendingRequest
from millstream.servers.response_memory import ResponseMemory

MIB = 1024 * 1024


class FakeTransport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.sent: list[bytes] = []
        self.is_reading = True
        self.is_aborted = self.is_closed = False
        self.unread = 0
        self.on_write = lambda: None

    def get_extra_info(self, name, default=None):
        return ("10.0.0.1", 4242) if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        self.high, self.low = high, low

    def get_write_buffer_size(self):
        return self.unread

    def write(self, data):
        self.sent.append(bytes(data))
        self.on_write()

    def writelines(self, parts):
        self.sent.append(b"".join(parts))

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def abort(self):
        self.is_aborted = True

    def close(self):
        self.is_closed = True


class FakeListener:
    """Keeps every request; the test answers it later."""

    access = None

    def __init__(self, config: KafkaConfig | None = None, *, is_full=False):
        self.config = config or KafkaConfig()
        self.blocks = BlockPool(bytes_max=self.config.receive_bytes_max)
        self.backlogs = Backlogs()
        self.fetch_sessions = FetchSessions(10)
        self.response_memory = ResponseMemory(
            bytes_max=self.config.responses_bytes_max, waiting=self.fetch_sessions.waiting
        )
        self.counters = KafkaCounters()
        self.dispatcher = self
        self.caps = NO_USER_CAPS
        self.access = self.logins = None
        self.principal_rules = "DEFAULT"
        self.is_draining = False
        self.is_full = is_full
        self.begun = []
        self.gone = []

    def begin(self, session, frame, block):
        if frame[0] == ord("!"):
            raise MalformedRequest("nonsense")
        if frame[0] == ord("h"):
            session.pause()
        exchange = PendingRequest(session, block, None, 0, None, None, 0.0)
        self.begun.append((bytes(frame), exchange))
        return exchange

    def admit(self, session):
        return not self.is_full

    def forget(self, session):
        self.gone.append(session)


def finish(exchange: PendingRequest, session: KafkaProtocol, answer: bytes) -> None:
    """Answer like `PendingRequest.answer`, with an encoded response."""
    exchange.release()
    exchange.parts = [answer]
    session.answered(len(answer))


class Connection:
    def __init__(self, config=None, **options):
        self.listener = FakeListener(config, **options)
        self.transport = FakeTransport()
        self.session = KafkaProtocol(self.listener)
        self.session.connection_made(self.transport)

    def receive(self, *bodies: bytes, raw: bytes = b"") -> None:
        data = b"".join(struct.pack(">i", len(b)) + b for b in bodies) + raw
        while data:
            space = self.session.get_buffer(65536)
            count = min(len(space), len(data))
            space[:count] = data[:count]
            data = data[count:]
            self.session.buffer_updated(count)

    def answer(self, number: int, answer: bytes) -> None:
        finish(self.listener.begun[number][1], self.session, answer)

    @property
    def begun(self) -> list[bytes]:
        return [frame for frame, _ in self.listener.begun]


def on_loop(test):
    """Run a test on an event loop."""

    def run():
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def turn():
    await asyncio.sleep(0)


@on_loop
async def test_answers_go_out_in_the_order_of_the_requests():
    connection = Connection()
    connection.receive(b"request1", b"request2", b"request3")
    connection.answer(2, b"three")
    connection.answer(1, b"two")
    await turn()
    assert connection.transport.sent == []
    connection.answer(0, b"one")
    await turn()
    assert connection.transport.sent == [b"onetwothree"]


@on_loop
async def test_answers_of_one_turn_go_out_in_one_write():
    connection = Connection()
    connection.receive(b"request1", b"request2")
    connection.answer(0, b"one")
    connection.answer(1, b"two")
    await turn()
    assert connection.transport.sent == [b"onetwo"]


@on_loop
async def test_a_request_that_holds_up_others_lets_them_begin_when_it_is_done():
    connection = Connection()
    connection.receive(b"hold me up", b"request2")
    assert connection.begun == [b"hold me up"]
    assert not connection.transport.is_reading
    connection.session.resume()
    assert connection.begun == [b"hold me up", b"request2"]
    assert connection.transport.is_reading


@on_loop
async def test_only_so_many_requests_are_under_way():
    connection = Connection(KafkaConfig(requests_in_flight_max=2))
    connection.receive(b"request1", b"request2", b"request3", b"request4")
    assert connection.begun == [b"request1", b"request2"]
    assert not connection.transport.is_reading
    connection.answer(0, b"x")
    connection.answer(1, b"x")
    await turn()
    assert connection.begun[2:] == [b"request3", b"request4"]
    assert connection.transport.is_reading


@on_loop
async def test_a_client_that_does_not_read_its_answers_is_not_read_from():
    connection = Connection()
    connection.session.pause_writing()
    connection.receive(b"request1", b"request2")
    assert connection.begun == []
    assert not connection.transport.is_reading
    connection.session.resume_writing()
    assert connection.begun == [b"request1", b"request2"]
    assert connection.transport.is_reading


@on_loop
async def test_a_client_that_does_not_read_for_long_is_dropped():
    connection = Connection(KafkaConfig(output_ms_max=1000))
    connection.transport.unread = 5000
    connection.session.pause_writing()
    now = asyncio.get_running_loop().time()
    connection.session.check_deadlines(now + 0.9)
    connection.transport.unread = 4000  # It read a little: that is progress.
    connection.session.check_deadlines(now + 1.5)
    connection.session.check_deadlines(now + 2.4)
    assert not connection.transport.is_aborted
    connection.session.check_deadlines(now + 2.6)
    assert connection.transport.is_aborted


@on_loop
async def test_a_muted_client_has_no_request_begun_until_its_time_is_over():
    connection = Connection()
    connection.session.throttle(0.01)
    connection.receive(b"request1")
    assert connection.begun == []
    assert not connection.transport.is_reading
    await asyncio.sleep(0.02)  # As long as it takes: this is about time that has passed.
    assert connection.begun == [b"request1"]
    assert connection.transport.is_reading


@on_loop
async def test_a_malformed_request_ends_its_connection():
    connection = Connection()
    connection.receive(b"!!!!!!!!", b"request2")
    assert connection.transport.is_aborted
    assert connection.begun == []


@on_loop
async def test_a_frame_of_a_size_that_is_not_allowed_ends_its_connection():
    connection = Connection()
    connection.receive(raw=struct.pack(">i", 2**31 - 1))
    assert connection.transport.is_aborted
    assert connection.listener.counters.closed_by_us == 1


@on_loop
async def test_one_connection_too_many_is_closed_at_once():
    connection = Connection(is_full=True)
    assert connection.transport.is_aborted


@on_loop
async def test_all_memory_comes_back_when_a_connection_ends():
    connection = Connection(KafkaConfig(requests_in_flight_max=1))
    connection.receive(b"request1", b"request2", raw=struct.pack(">i", 100) + b"begun")
    waiting = DeferredResponse(lambda: None)
    connection.listener.begun[0][1].defer(waiting)
    connection.session.connection_lost(None)
    assert waiting.is_done
    assert connection.listener.gone == [connection.session]
    assert connection.listener.blocks.used_bytes == BLOCK_SIZE
    assert connection.listener.blocks.reading.users == 1


@on_loop
async def test_an_append_under_way_keeps_its_bytes_after_its_connection_ended():
    connection = Connection()
    connection.receive(b"request1")
    exchange = connection.listener.begun[0][1]
    appending = DeferredResponse()
    exchange.defer(appending)
    appending.then(lambda answer: finish(exchange, connection.session, answer))
    connection.session.connection_lost(None)
    assert connection.listener.blocks.reading.users == 2
    appending.finish(b"written")
    await turn()
    assert connection.listener.blocks.reading.users == 1
    assert connection.transport.sent == []


@on_loop
async def test_answers_that_are_not_sent_yet_count_as_if_they_were():
    """Otherwise one read of many small requests with large responses would take all memory."""
    connection = Connection(KafkaConfig(output_bytes_max=64 * 1024))
    connection.receive(*[b"request%d" % number for number in range(10)])
    for number in range(1, 10):
        connection.answer(number, bytes(60_000))
    await turn()
    connection.receive(b"one more")
    assert len(connection.begun) == 10
    assert not connection.transport.is_reading
    connection.answer(0, b"x")
    await turn()
    assert connection.begun[10:] == [b"one more"]


@on_loop
async def test_a_client_with_many_requests_leaves_others_their_turn():
    connection = Connection()
    connection.receive(*[b"request!" for _ in range(100)])
    assert len(connection.begun) == TURN_REQUESTS_MAX
    await turn()
    assert len(connection.begun) == 100


@on_loop
async def test_a_mute_ends_with_its_timer_though_the_clock_stands_a_hair_before():
    connection = Connection()
    connection.session.throttle(5.0)
    connection.receive(b"request1")
    until = connection.session._throttled_until
    connection.session._end_throttle(until - 1.0)  # An earlier mute, which this one has outlasted.
    assert connection.begun == []
    connection.session._end_throttle(until)
    assert connection.begun == [b"request1"]
    assert connection.transport.is_reading


DEADLINES = KafkaConfig(handshake_ms_max=1000, request_ms_max=2000, idle_ms_max=5000)


@on_loop
async def test_a_client_that_says_nothing_at_first_is_closed_by_the_handshake_deadline():
    connection = Connection(DEADLINES)
    now = asyncio.get_running_loop().time()
    connection.session.check_deadlines(now + 0.9)
    assert not connection.transport.is_aborted
    connection.receive(raw=b"\0\0")  # A byte now and then does not help.
    connection.session.check_deadlines(now + 1.1)
    assert connection.transport.is_aborted


@on_loop
async def test_a_request_that_does_not_become_whole_is_closed_by_its_deadline():
    connection = Connection(DEADLINES)
    connection.receive(b"request1")
    connection.receive(raw=struct.pack(">i", 100) + b"begun")
    now = asyncio.get_running_loop().time()
    connection.session.check_deadlines(now + 1.9)
    assert not connection.transport.is_aborted
    connection.receive(raw=b"a little more")
    connection.session.check_deadlines(now + 2.1)
    assert connection.transport.is_aborted


@on_loop
async def test_an_idle_connection_is_closed_but_one_that_waits_for_its_answer_is_not():
    connection = Connection(DEADLINES)
    connection.receive(b"request1")
    now = asyncio.get_running_loop().time()
    connection.session.check_deadlines(now + 6)
    assert not connection.transport.is_aborted
    connection.answer(0, b"x")
    await turn()
    connection.session.check_deadlines(now + 6)
    assert connection.transport.is_aborted


@on_loop
async def test_draining_answers_what_is_under_way_and_then_closes():
    connection = Connection()
    connection.receive(b"hold it!", b"request2")
    connection.listener.is_draining = True
    connection.session.drain()
    assert not connection.transport.is_reading
    assert not connection.transport.is_closed
    connection.answer(0, b"one")
    connection.session.resume()
    await turn()
    assert connection.begun == [b"hold it!"]
    assert connection.transport.sent == [b"one"]
    assert connection.transport.is_closed


# Memory of all connections together.


@on_loop
async def test_many_small_requests_are_cut_when_their_turn_comes():
    connection = Connection(KafkaConfig(requests_in_flight_max=1))
    connection.receive(*[b"request!" for _ in range(5000)])
    assert connection.begun == [b"request!"]
    blocks = connection.listener.blocks
    connection.listener.begun[0][1].release()
    assert blocks.reading.users == 1, "a backlog that waits keeps no block that others share"
    assert blocks.used_bytes == BLOCK_SIZE + 64 * 1024
    connection.session.connection_lost(None)
    assert blocks.used_bytes == BLOCK_SIZE


def connected(count: int, listener: FakeListener) -> list[Connection]:
    """Return several connections to one listener."""
    connections = [Connection(listener.config) for _ in range(count)]
    for connection in connections:
        connection.session._listener = connection.listener = listener
    return connections


@on_loop
async def test_connections_with_a_backlog_share_one_turn_and_a_lone_request_waits_for_none():
    listener = FakeListener(KafkaConfig(output_bytes_max=64 * MIB))
    *connections, other = connected(20, listener)
    for connection in connections:
        connection.receive(*[b"request!" for _ in range(200)])
    assert len(listener.begun) == TURN_REQUESTS_MAX, "the others wait for their turns"
    await turn()
    assert len(listener.begun) == TURN_REQUESTS_MAX + SLICE_REQUESTS_MAX
    other.receive(b"lone one")
    assert listener.begun[-1][0] == b"lone one"
    for _ in range(10):
        before = len(listener.begun)
        await turn()
        assert len(listener.begun) - before == SHORT_SLICE_REQUESTS_MAX
    for _ in range(2 * 19 * 200 // SHORT_SLICE_REQUESTS_MAX):
        await turn()
    assert len(listener.begun) == 19 * 200 + 1


@on_loop
async def test_turns_are_long_again_when_no_other_connection_has_sent_requests_for_a_while():
    listener = FakeListener(KafkaConfig(output_bytes_max=64 * MIB, requests_in_flight_max=5000))
    busy, also_busy, other = connected(3, listener)
    for connection in (busy, also_busy):
        connection.receive(*[b"request!" for _ in range(1500)])
    other.receive(b"lone one")
    for _ in range(SHORT_SLICES):
        await turn()
    before = len(listener.begun)
    await turn()
    assert len(listener.begun) - before == SLICE_REQUESTS_MAX


@on_loop
async def test_a_few_requests_start_at_once_beside_a_backlog_and_more_wait_for_their_turn():
    listener = FakeListener()
    busy, few, many = connected(3, listener)
    busy.receive(*[b"request!" for _ in range(200)])
    before = len(listener.begun)
    few.receive(*[b"few few!" for _ in range(ARRIVAL_REQUESTS_MAX)])
    assert len(listener.begun) == before + ARRIVAL_REQUESTS_MAX
    many.receive(*[b"manymany" for _ in range(ARRIVAL_REQUESTS_MAX + 1)])
    assert len(listener.begun) == before + ARRIVAL_REQUESTS_MAX
    for _ in range(8):
        await turn()
    assert [frame for frame, _ in listener.begun].count(b"manymany") == ARRIVAL_REQUESTS_MAX + 1


@on_loop
async def test_syncs_in_flight_get_the_processor_in_each_turn_of_a_backlog():
    listener, yields = FakeListener(), []
    listener.backlogs = Backlogs(lambda: yields.append(len(listener.begun)))
    [busy] = connected(1, listener)
    busy.receive(*[b"request!" for _ in range(3 * TURN_REQUESTS_MAX)])
    for _ in range(5):
        await turn()
    assert yields == [TURN_REQUESTS_MAX, 2 * TURN_REQUESTS_MAX]


@on_loop
async def test_requests_in_flight_count_with_what_they_take():
    connection = Connection(KafkaConfig(output_bytes_max=64 * 1024))
    connection.receive(*[b"request!" for _ in range(30)])
    assert len(connection.begun) == 16, "64 KiB, at 4 KiB each"
    memory = connection.listener.response_memory
    assert memory.used_bytes == 16 * 4096
    for number in range(16):
        connection.answer(number, b"x")
    await turn()
    assert len(connection.begun) == 30
    connection.session.connection_lost(None)
    assert memory.used_bytes == 0
    connection.answer(20, b"too late")
    assert memory.used_bytes == 0


@on_loop
async def test_a_response_counts_until_its_last_byte_is_sent():
    """A view of its last byte keeps all of it in memory."""
    connection = Connection()
    assert (connection.transport.high, connection.transport.low) == (0, 0)
    memory = connection.listener.response_memory
    connection.receive(b"request1")
    connection.answer(0, bytes(MIB))
    connection.transport.on_write = connection.session.pause_writing
    await turn()
    assert memory.used_bytes == MIB
    connection.session.resume_writing()
    assert memory.used_bytes == 0


@on_loop
async def test_a_response_gets_a_share_of_the_memory_that_is_left():
    memory = Connection(KafkaConfig(responses_bytes_max=8 * MIB)).listener.response_memory
    assert memory.share() == 768 * 1024, "an eighth of three quarters"
    memory.hold(2 * MIB)
    assert memory.share() == MIB // 2
    memory.hold(4 * MIB)
    assert memory.share() == 64 * 1024


@on_loop
async def test_without_memory_waiting_fetches_are_answered_and_stalled_clients_are_closed():
    connections = [Connection(KafkaConfig(responses_bytes_max=MIB)) for _ in range(3)]
    for connection in connections[1:]:
        connection.session._listener = connection.listener = connections[0].listener
    memory, waiting = (
        connections[0].listener.response_memory,
        connections[0].listener.fetch_sessions,
    )
    answered = []
    waiting.waiting[1] = lambda: answered.append(waiting.waiting.pop(1))
    for number, connection in enumerate(connections):
        connection.transport.unread = 1000
        connection.session._unread_bytes = 300_000
        connection.session.pause_writing()
        connection.session.stalled_since += number
        connection.session.note_progress(0.0)
        connection.transport.unread = 1000 - 500 * (number == 0)  # The first one reads, slowly.
    await turn()
    assert len(answered) == 1
    assert [connection.transport.is_aborted for connection in connections] == [False, True, False]
    assert memory.used_bytes == 600_000
