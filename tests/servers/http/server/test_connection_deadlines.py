"""A slow client is closed at a fixed time, however its bytes trickle in."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from millstream.config.schema import HttpConfig
from millstream.servers.http.server.connection_deadlines import (
    OUTPUT_PROGRESS_MIN,
    ConnectionDeadlines,
    has_read_enough,
)
from millstream.testing.broker import RunningBroker, running_broker
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.observe.metrics.test_metric import parsed
from tests.servers.http.calls import ask
from tests.servers.http.raw_client import RawClient, raw_client

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Machine:
    """Deadlines on a clock that a test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.late: list[str] = []
        self.deadlines = ConnectionDeadlines(
            self.clock,
            self.timers,
            on_input_late=lambda: self.late.append("input"),
            on_output_late=lambda: self.late.append("output"),
        )


def test_a_deadline_is_told_once_when_it_has_passed() -> None:
    machine = Machine()
    machine.deadlines.set_input(1000)
    machine.timers.advance(0.999)
    assert machine.late == []
    machine.timers.advance(0.001)
    machine.timers.advance(100)
    assert machine.late == ["input"]


def test_a_deadline_that_moves_away_costs_no_timer_and_holds() -> None:
    machine = Machine()
    for _ in range(100):
        machine.deadlines.set_input(1000)
        machine.timers.advance(0.009)
        assert machine.timers.pending == 1
    assert machine.late == []
    machine.timers.advance(0.991)
    assert machine.late == ["input"]


def test_a_deadline_that_comes_nearer_is_kept() -> None:
    machine = Machine()
    machine.deadlines.set_input(600_000)
    machine.deadlines.set_input(1000)
    assert machine.timers.pending == 1
    machine.timers.advance(1)
    assert machine.late == ["input"]


def test_reading_and_sending_have_each_its_deadline() -> None:
    machine = Machine()
    machine.deadlines.set_input(3000)
    machine.deadlines.set_output(1000)
    machine.timers.advance(1)
    assert machine.late == ["output"]
    machine.timers.advance(2)
    assert machine.late == ["output", "input"]


def test_no_deadline_is_for_ever() -> None:
    machine = Machine()
    machine.deadlines.set_input(1000)
    machine.deadlines.set_output(1000)
    machine.deadlines.set_input(None)
    machine.deadlines.cancel()
    machine.timers.advance(10_000)
    assert machine.late == []
    assert machine.timers.pending == 0


# Real connections: what is waited for is the end that the node brings about. Only the limit that a
# test is about is short, so that no other can be met on a busy machine.


def ended(broker: RunningBroker) -> dict[str, int]:
    listener = broker.server._http
    assert listener is not None
    return dict(listener.state.counters.ended)


def trickle(client: RawClient, piece: bytes) -> bytes:
    """Send a piece again and again, as fast as possible, until the other side has closed."""
    client.socket.settimeout(0.005)
    came = b""
    for _ in range(2_000):
        client.try_to_send(piece)
        try:
            if not (some := client.read_some()):
                return came
            came += some
        except TimeoutError:
            continue
    raise AssertionError("the connection is still open")


def test_a_client_that_says_nothing_is_left(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(head_ms_max=100)) as broker:
        with raw_client(broker.url) as client:
            assert client.read_all() == b""
        assert ended(broker) == {"idle": 1}


def test_a_head_that_trickles_in_is_given_up(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(head_ms_max=500)) as broker:
        with raw_client(broker.url) as client:
            client.send(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: ")
            came = trickle(client, b"x")
        assert came.startswith(b"HTTP/1.1 408 ")
        assert b"head took longer than 500 ms" in came
        assert ended(broker) == {"head": 1}


def test_a_second_head_has_its_own_deadline(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(head_ms_max=500)) as broker:
        with raw_client(broker.url) as client:
            client.send(GET)
            assert client.answer().status == 200
            client.send(GET[:10])
            (answer,) = client.answers()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert ended(broker) == {"head": 1}


@pytest.mark.parametrize(
    ("how", "piece"),
    [(b"Content-Length: 1000000", b" "), (b"Transfer-Encoding: chunked", b"1\r\n \r\n")],
)
def test_a_body_that_trickles_in_is_given_up(tmp_path: Path, how: bytes, piece: bytes) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(body_ms_max=100)) as broker:
        broker.run(broker.server.broker.topics.create("t", partitions=1))
        with raw_client(broker.url) as client:
            head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\n" + how
            client.send(head + b"\r\n\r\n")
            came = trickle(client, piece)
        assert came.startswith(b"HTTP/1.1 408 ")
        assert b"body took longer than 100 ms" in came
        assert came.count(b"HTTP/1.1 ") == 1
        assert ended(broker) == {"body": 1}


def test_an_idle_connection_is_closed_without_a_word(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(idle_ms_max=100)) as broker:
        with raw_client(broker.url) as client:
            client.send(GET)
            assert client.answer().status == 200
            assert client.read_all() == b""
        assert ended(broker) == {"idle": 1}


def test_a_client_that_reads_nothing_is_dropped(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(output_ms_max=100)) as broker:
        with raw_client(broker.url) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with pytest.raises(ConnectionError):
                send_for_ever(client, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ended(broker) == {"output": 1}


def send_for_ever(client: RawClient, data: bytes) -> None:
    while True:
        client.send(data)


@pytest.mark.parametrize(
    ("before", "now", "is_enough"),
    [
        (8_000_000, 7_000_000, True),
        (8_000_000, 8_000_000 - OUTPUT_PROGRESS_MIN, True),
        (8_000_000, 8_000_001 - OUTPUT_PROGRESS_MIN, False),
        (8_000_000, 8_000_000, False),
        (8_000_000, 9_000_000, False),
        (50_000, 10_000, False),
        (50_000, 0, False),
    ],
)
def test_who_reads_a_large_answer_slowly_has_more_time(
    before: int, now: int, is_enough: bool
) -> None:
    assert has_read_enough(before, now) is is_enough


def test_two_hundred_slow_clients_do_not_keep_others_from_being_served(tmp_path: Path) -> None:
    """Heads that do not end, and bodies that do not arrive; with the default limits."""
    with running_broker(tmp_path) as broker:
        slow = [RawClient(broker.url) for _ in range(200)]
        for at, client in enumerate(slow):
            whole = GET if at % 2 else GET[:-2] + b"Content-Length: 9\r\n\r\n"
            client.send(whole[: -1 if at % 2 else None])
        assert ask(broker.url, "GET", "/health/live").status == 200
        found = parsed(ask(broker.url, "GET", "/metrics").body.decode())
        assert found["millstream_http_connections",] > 100
        for client in slow:
            client.socket.close()
