"""Many watchers, slow ones and disconnected ones: none affects another."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millstream.config.schema import HttpConfig
from millstream.protocols.http.records import record_json
from millstream.records.record import StoredRecord
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask

from .event_streams import watching
from .live_topic import LiveTopic, wait_until
from .websockets_client import talking

BYTES_MAX = 256 * 1024
VALUE = "x" * 20_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    web = HttpConfig(live_bytes_max=BYTES_MAX)
    with running_broker(tmp_path_factory.mktemp("node"), http_server=web) as running:
        yield running


@contextmanager
def connecting(node: RunningBroker) -> Iterator[socket.socket]:
    """Return a socket with a small receive buffer."""
    progress = urlsplit(node.url)
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        found.settimeout(30)
        found.connect((progress.hostname, progress.port))
        yield found


@contextmanager
def connected(node: RunningBroker, topic: str) -> Iterator[socket.socket]:
    """Return a watcher that reads only when the test does."""
    with connecting(node) as found:
        found.sendall(f"GET /v1/events?topic={topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield found


def read_until(found: socket.socket, words: bytes) -> bytes:
    """Read up to the end of the event with these words."""
    data = b""
    while words not in data or not data.endswith(b"\n\n\r\n"):
        piece = found.recv(1 << 20)
        assert piece, data[-200:]
        data += piece
    return data


def events_of(data: bytes) -> list[tuple[str, dict[str, object]]]:
    """Return the events in raw output with its head and chunks."""
    _, _, body = data.partition(b"\r\n\r\n")
    text = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        text += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    found = []
    for event in text.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        found.append((fields["event"], json.loads(fields["data"])))
    return found


def is_lagging(node: RunningBroker) -> bool:
    """Return whether a watcher was too slow and was not told yet."""
    return any(
        subscription.progress.lag is not None
        for one in node.server.live.subscribers
        for subscription in one.subscriptions
    )


def fill(topic: LiveTopic) -> int:
    """Append until the only watcher takes no more and a batch is queued; return the number of
    records."""
    [subscriber] = topic.node.server.live.subscribers
    count = 0
    while subscriber.queued_bytes < 2 * len(VALUE):  # One alone may be about to be sent.
        topic.append(VALUE)
        count += 1
    return count


def test_a_thousand_watchers_cost_one_encoding(
    node: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = LiveTopic(node)
    encoded: list[int] = []

    def encode(record: StoredRecord) -> bytes:
        encoded.append(record.offset)
        return record_json(record)

    monkeypatch.setattr("millstream.servers.http.live.encoded_batch.record_json", encode)
    counters = node.server.live.counters
    with ExitStack() as stack:
        watchers = [stack.enter_context(connected(node, topic.name)) for _ in range(1_000)]
        for one in watchers:
            read_until(one, b"heartbeat")
        assert counters.event_streams == 1_000
        assert counters.feeds == 1
        before = counters.encodings, counters.catch_ups
        topic.append({"told": "all"})
        for one in watchers:
            assert b'"told":"all"' in read_until(one, b'"head":1}').replace(b" ", b"")
        assert encoded == [0]
        assert (counters.encodings, counters.catch_ups) == (before[0] + 1, before[1])
    wait_until(node, lambda: not node.server.live.subscribers)


def test_a_slow_watcher_is_told_that_it_lags_and_misses_nothing_and_nobody_else_notices(
    node: RunningBroker,
) -> None:
    topic = LiveTopic(node)
    live = node.server.live
    lags, catch_ups = live.counters.lags, live.counters.catch_ups
    with connected(node, topic.name) as slow, watching(node.url, topic.name) as other:
        head = read_until(slow, b"heartbeat")
        count = 0
        while not is_lagging(node):
            topic.append(*[VALUE] * 10)
            assert other.values(10) == [VALUE] * 10
            count += 10
        assert all(one.queued_bytes <= BYTES_MAX for one in live.subscribers)
        topic.append("last")
        assert other.values(1) == ["last"]
        assert live.counters.catch_ups == catch_ups, "the other one never fell behind"
        events = events_of(head + read_until(slow, b'"last"'))
    offsets = [
        record["offset"]
        for kind, data in events
        if kind == "records"
        for record in data["records"]  # type: ignore[attr-defined]
    ]
    assert offsets == list(range(count + 1))
    [lagged] = [data for kind, data in events if kind == "lagged"]
    at = [kind for kind, _ in events].index("lagged")
    assert events[at + 1][1]["records"][0]["offset"] == lagged["from"]  # type: ignore[index]
    assert live.counters.lags == lags + 1


def test_bursts_that_wait_go_out_as_one_event(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with connected(node, topic.name) as slow:
        head = read_until(slow, b"heartbeat")
        count = fill(topic)
        for number in range(50):
            topic.append(number)
        topic.append("last")
        data = head + read_until(slow, b'"last"')
    *_, (_, last) = events_of(data)
    records: list[dict[str, object]] = last["records"]  # type: ignore[assignment]
    assert [record["value"] for record in records[-51:]] == [*range(50), "last"]
    assert last["next"] == count + 51


def test_what_was_deleted_while_it_waited_is_not_sent(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with connected(node, topic.name) as slow:
        head = read_until(slow, b"heartbeat")
        fill(topic)
        topic.append_keyed("secret", "gone")
        topic.append("last")
        path = f"/v1/topics/{topic.name}/records"
        assert ask(node.url, "DELETE", path, b'{"key":"secret"}').json == {"deleted": 1}
        data = head + read_until(slow, b'"last"')
    assert b"gone" not in data
    assert b"lagged" not in data


def test_who_leaves_leaves_nothing_behind(node: RunningBroker) -> None:
    topic = LiveTopic(node, partitions=3)
    live = node.server.live
    with (
        watching(node.url, topic.name),
        connected(node, topic.name) as rude,
        talking(node.url) as talk,
    ):
        read_until(rude, b"heartbeat")
        talk.result(op="subscribe", topics=[topic.name])
        assert len(live.feeds) == 3
        # Gone without a word: the system resets the connection.
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(node, lambda: not live.subscribers)
    assert len(live.feeds) == 0
    assert (live.counters.feeds, live.counters.event_streams, live.counters.sockets) == (0, 0, 0)
    assert not any(topic.partition(index)._watchers for index in range(3))


def test_a_feed_goes_on_until_its_last_watcher_leaves(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    live = node.server.live
    with watching(node.url, topic.name) as stays:
        with watching(node.url, topic.name):
            assert live.counters.feeds == 1
        wait_until(node, lambda: len(live.subscribers) == 1)
        topic.append(1)
        assert stays.values(1) == [1]


def test_a_client_that_does_not_read_is_dropped_in_the_end(tmp_path: Path) -> None:
    web = HttpConfig(live_bytes_max=BYTES_MAX, output_ms_max=100)
    with running_broker(tmp_path, http_server=web) as node:
        topic = LiveTopic(node)
        with connected(node, topic.name) as slow:
            read_until(slow, b"heartbeat")
            while node.server.live.subscribers:
                topic.append(*[VALUE] * 10)
        with (
            connecting(node) as slow,
            talking(node.url, sock=slow, max_queue=1, close_timeout=0.1) as talk,
        ):
            talk.result(op="subscribe", topics=[topic.name])
            while node.server.live.subscribers:
                topic.append(*[VALUE] * 10)


# When the node stops.


def test_a_node_that_stops_says_so_and_ends_every_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        with running_broker(tmp_path, http_server=HttpConfig(live_bytes_max=BYTES_MAX)) as node:
            topic = LiveTopic(node)
            stream = stack.enter_context(watching(node.url, topic.name))
            talk = stack.enter_context(talking(node.url))
            talk.result(op="subscribe", topics=[topic.name])
            slow = stack.enter_context(connected(node, topic.name))
            read_until(slow, b"heartbeat")
            while not is_lagging(node):
                topic.append(*[VALUE] * 10)
                stream.records(10)
                talk.values(10)
        # Nobody was waited for until the time to drain was over.
        assert "cut off" not in caplog.text
        ends = [(told.kind, told.data) for told in stream.rest()]
        assert ends == [("end", {"topic": topic.name, "reason": "stopping"})]
        assert talk.next() == {"type": "end", "topic": topic.name, "reason": "stopping"}
