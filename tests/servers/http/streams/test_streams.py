"""Streams over HTTP together with Kafka clients: visibility, errors and limits."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.broker.streams.paths import topic_of_path
from millstream.broker.topics.configs.topic_config import AlterConfigOperation, ConfigChange
from millstream.config.schema import HttpConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
WEB = HttpConfig(append_size_max=64 * 1024, stream_wait_ms=60_000, heartbeat_ms=50)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node"), http_server=WEB) as running:
        yield running


class Stream:
    """A stream that no other test uses."""

    def __init__(self, node: RunningBroker, path: str | None = None) -> None:
        self.node = node
        self.path = path or f"s-{uuid.uuid4()}"

    def ask(
        self,
        method: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        query: str = "",
    ) -> Answer:
        return ask(self.node.url, method, f"/v1/streams/{self.path}{query}", body, headers)

    def create(self, body: bytes | None = None, **headers: str) -> Stream:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.ask("PUT", body, TEXT | named)
        assert answer.status == 201, answer
        return self

    def read(self, query: str = "") -> bytes:
        answer = self.ask("GET", query=query)
        assert answer.status == 200, answer
        return answer.body


@pytest.fixture
def stream(node: RunningBroker) -> Stream:
    return Stream(node)


# Kafka clients.


def kafka_values(node: RunningBroker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [consumer.poll(30) for _ in range(count)]
    consumer.close()
    return [one.value() for one in found]


def kafka_append(node: RunningBroker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_a_kafka_client_reads_each_message_as_a_record(stream: Stream) -> None:
    stream.create(b'[{"n":1},2]', Content_Type="application/json")
    stream.ask(
        "POST", b"[[3]]", JSON | {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
    )
    assert kafka_values(stream.node, stream.path, 3) == [b'{"n":1}', b"2", b"[3]"]


def test_the_records_of_a_stream_are_those_of_its_topic(node: RunningBroker) -> None:
    stream = Stream(node, "rooms/7").create(b'[{"n":1}]', Content_Type="application/json")
    topic = topic_of_path("rooms/7")
    answer = ask(node.url, "GET", f"/v1/topics/{topic}/records")
    assert [one["value"] for one in answer.json["records"]] == [{"n": 1}]
    ask(node.url, "POST", f"/v1/topics/{topic}/records", b'{"records":[{"value":{"n":2}}]}')
    assert json.loads(stream.read()) == [{"n": 1}, {"n": 2}]


def test_what_kafka_appends_is_part_of_the_stream(stream: Stream) -> None:
    stream.create(b"a")
    kafka_append(stream.node, stream.path, b"b", b"c")
    assert stream.read() == b"abc"
    assert stream.ask("HEAD").headers["stream-next-offset"].startswith("0000000000000003")


def test_what_is_appended_elsewhere_after_the_end_is_not_part_of_it(stream: Stream) -> None:
    stream.create(b"a", Stream_Closed="true")
    kafka_append(stream.node, stream.path, b"late")
    answer = stream.ask("GET")
    assert answer.body == b"a"
    assert answer.headers["stream-closed"] == "true"


def test_a_stream_whose_topic_a_kafka_client_deletes_is_gone(stream: Stream) -> None:
    stream.create(b"a")
    node = stream.node
    node.run(node.server.broker.topics.delete(stream.path))
    assert stream.ask("GET").code == "unknown_stream"
    assert stream.ask("PUT", b"b", TEXT).status == 201
    assert stream.read() == b"b"


def test_a_topic_that_is_no_stream_cannot_be_read_or_replaced_as_one(node: RunningBroker) -> None:
    name = f"t-{uuid.uuid4()}"
    node.run(node.server.broker.topics.create(name))
    stream = Stream(node, name)
    assert stream.ask("GET").status == 404
    assert stream.ask("PUT", None, TEXT).code == "stream_exists"
    assert stream.ask("DELETE").status == 404
    assert node.server.broker.topics.find(name) is not None


def test_a_reader_behind_what_retention_took_is_told_so(stream: Stream) -> None:
    stream.create(b"a")
    broker = stream.node.server.broker

    async def configure(**configs: str) -> None:
        changes = [
            ConfigChange(name.replace("_", "."), AlterConfigOperation.SET, value)
            for name, value in configs.items()
        ]
        await broker.topics.change_configs(stream.path, changes)

    async def evict() -> None:
        await configure(segment_ms="1", retention_ms="0")
        while not broker.store.get(stream.path, 0).eviction_floor:
            await broker.store.maintenance.run_once(is_forced=True)
        await configure(retention_ms="-1")

    stream.node.run(evict())
    stream.ask("POST", b"b", TEXT)
    assert stream.read("?offset=-1") == b"b"
    first = "0" * 16 + "_" + "0" * 16
    assert stream.ask("GET", query=f"?offset={first}").code == "stream_gone"
    fork = Stream(stream.node)
    assert fork.ask("PUT", None, {"Stream-Forked-From": stream.path}).status == 201
    assert fork.read() == b"b"
    assert fork.ask("GET", query=f"?offset={first}").status == 410
    end = stream.ask("HEAD").headers["stream-next-offset"]
    assert fork.ask("HEAD").headers["stream-next-offset"] == end
    refused = Stream(stream.node).ask(
        "PUT",
        None,
        {"Stream-Forked-From": f"/v1/streams/{stream.path}", "Stream-Fork-Offset": first},
    )
    assert refused.status == 410


def test_deleted_records_are_passed_over(stream: Stream) -> None:
    stream.create(b"a")
    stream.ask("POST", b"b", TEXT)
    partition = stream.node.server.broker.topics.partition(stream.path, 0)
    stream.node.run(partition.delete_before(1))
    assert stream.read() == b"b"
    assert stream.read("?offset=" + "0" * 16 + "_" + "0" * 16) == b"b"


# Refused, and limited.


def test_a_body_is_limited_while_it_arrives(stream: Stream) -> None:
    stream.create()
    size = WEB.append_size_max
    assert stream.ask("POST", b"x" * size, TEXT).status == 204
    assert stream.ask("POST", b"x" * (size + 1), TEXT).status == 413
    pieces = (b"x" * 1024 for _ in range(size // 1024 + 1))
    answer = ask(stream.node.url, "POST", f"/v1/streams/{stream.path}", pieces, TEXT)
    assert answer.status == 413
    assert stream.read() == b"x" * size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Producer-Id", "p" * 257),
        ("Producer-Epoch", "01"),
        ("Producer-Epoch", str(2**53)),
        ("Producer-Seq", "9" * 100),
        ("Producer-Seq", "1e1"),
        ("Stream-Seq", "s" * 257),
    ],
)
def test_headers_are_checked_before_anything_is_appended(
    stream: Stream, name: str, value: str
) -> None:
    stream.create()
    headers = TEXT | {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0", name: value}
    answer = stream.ask("POST", b"x", headers)
    assert answer.status == 400
    assert name in answer.message
    assert stream.read() == b""


@pytest.mark.parametrize(
    "value", ["2026-01-31", "2026-13-31T00:00:00Z", "now", "2026-01-31T00:00:00", "9" * 300]
)
def test_a_date_that_is_none_is_refused(stream: Stream, value: str) -> None:
    answer = stream.ask("PUT", None, TEXT | {"Stream-Expires-At": value})
    assert answer.status == 400
    assert "2026-01-31T12:00:00Z" in answer.message


@pytest.mark.parametrize("query", ["?live=often&offset=-1", "?offset=1", "?offset=0&offset=1"])
def test_a_query_that_makes_no_sense_is_refused(stream: Stream, query: str) -> None:
    stream.create()
    assert stream.ask("GET", query=query).code == "malformed_request"


def test_who_wants_to_be_sent_what_is_new_has_to_say_from_where_on(stream: Stream) -> None:
    stream.create()
    answer = stream.ask("GET", query="?live=sse")
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_an_error_has_the_one_shape_and_says_nothing_of_the_node(stream: Stream) -> None:
    answer = stream.ask("GET")
    assert answer.json == {
        "error": {
            "code": "unknown_stream",
            "message": f"stream '{stream.path}' does not exist",
            "detail": None,
        }
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_pages_of_other_origins_are_told_nothing_that_lets_them_in(stream: Stream) -> None:
    stream.create(b"<script>", Content_Type="text/html")
    for method in ("OPTIONS", "GET"):
        answer = stream.ask(method, headers={"Origin": "https://example.com"})
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.status == (204 if method == "OPTIONS" else 403)
    assert "sandbox" in stream.ask("GET").headers["content-security-policy"]


def test_a_piece_that_others_follow_may_be_cached_and_the_last_may_not(stream: Stream) -> None:
    stream.create()
    for _ in range(20):
        stream.ask("POST", b"x" * 60_000, TEXT)
    first = stream.ask("GET")
    assert "max-age" in first.headers["cache-control"]
    assert "stream-up-to-date" not in first.headers
    offset = first.headers["stream-next-offset"]
    last = stream.ask("GET", query=f"?offset={offset}")
    assert "no-cache" in last.headers["cache-control"]
    assert last.headers["stream-up-to-date"] == "true"
    assert len(first.body) + len(last.body) == 20 * 60_000
    known = stream.ask(
        "GET", query=f"?offset={offset}", headers={"If-None-Match": last.headers["etag"]}
    )
    assert known.status == 304
    stream.ask("POST", None, {"Stream-Closed": "true"})
    closed = stream.ask(
        "GET", query=f"?offset={offset}", headers={"If-None-Match": last.headers["etag"]}
    )
    assert closed.status == 200


# Live.


def events(
    stream: Stream, query: str
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(stream.node.url).netloc, timeout=30)
    connection.request("GET", f"/v1/streams/{stream.path}{query}")
    return connection, connection.getresponse()


def next_event(response: http.client.HTTPResponse) -> list[bytes]:
    """Return the lines of the next event, without comments."""
    lines: list[bytes] = []
    while line := response.readline().rstrip(b"\n"):
        lines.append(line)
    return next_event(response) if lines and lines[0].startswith(b":") else lines


def test_events_come_as_records_are_appended_by_whomever(stream: Stream) -> None:
    stream.create(b"a\n b")
    connection, response = events(stream, "?offset=-1&live=sse")
    assert next_event(response) == [b"event: data", b"data:a", b"data:  b"]
    assert b"upToDate" in next_event(response)[1]
    kafka_append(stream.node, stream.path, b"c")
    assert next_event(response) == [b"event: data", b"data:c"]
    assert next_event(response)[0] == b"event: control"
    stream.ask("POST", b"d", TEXT | {"Stream-Closed": "true"})
    assert next_event(response) == [b"event: data", b"data:d"]
    assert b"streamClosed" in next_event(response)[1]
    assert response.read() == b""
    connection.close()


def test_who_waits_is_answered_when_the_stream_is_closed_or_deleted(node: RunningBroker) -> None:
    for method, headers, status in (
        ("POST", {"Stream-Closed": "true"}, 204),
        ("DELETE", {}, 404),
    ):
        stream = Stream(node).create()
        found: list[Answer] = []
        waiting = threading.Thread(
            target=lambda: found.append(stream.ask("GET", query="?offset=now&live=long-poll"))  # noqa: B023
        )
        waiting.start()
        wait_for_readers(stream, 1)
        stream.ask(method, None, headers)
        waiting.join(30)
        assert [one.status for one in found] == [status]


def wait_for_readers(stream: Stream, count: int) -> None:
    """Wait until a stream has so many live readers."""

    async def readers() -> int:
        life = stream.node.server.broker.streams.of(stream.path)._registry.lifetimes[stream.path]
        return life.readers

    while stream.node.run(readers()) != count:
        pass


def test_a_reader_that_hangs_up_is_forgotten(stream: Stream) -> None:
    stream.create()
    connection, response = events(stream, "?offset=-1&live=sse")
    next_event(response)
    wait_for_readers(stream, 1)
    response.close()
    connection.close()
    wait_for_readers(stream, 0)


def test_a_reader_that_takes_nothing_is_dropped(tmp_path: Path) -> None:
    web = HttpConfig(output_ms_max=100, heartbeat_ms=50)
    with running_broker(tmp_path, http_server=web) as node:
        stream = Stream(node).create()
        for _ in range(12):
            assert stream.ask("POST", b"x" * 2**20, TEXT).status == 204
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect(("127.0.0.1", urlsplit(node.url).port))
            target = f"/v1/streams/{stream.path}?offset=-1&live=sse"
            idle.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            begun = b""
            while b"event: data" not in begun:
                begun += idle.recv(4096)
            wait_for_readers(stream, 0)
        assert stream.ask("HEAD").status == 200


def test_what_an_append_cost_is_told(stream: Stream) -> None:
    stream.create()
    assert "commit;dur=" in stream.ask("POST", b"x", TEXT).headers["server-timing"]


def test_a_node_that_stops_ends_live_readers_at_once(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=WEB) as node:
        stream = Stream(node).create()
        connection, response = events(stream, "?offset=-1&live=sse")
        next_event(response)
        found: list[Answer] = []
        waiting = threading.Thread(
            target=lambda: found.append(stream.ask("GET", query="?offset=now&live=long-poll"))
        )
        waiting.start()
        wait_for_readers(stream, 2)
    while next_event(response):
        pass
    connection.close()
    waiting.join(30)
    assert [one.status for one in found] == [204]


# Streams that are created again.


def next_offset(stream: Stream) -> str:
    return stream.ask("HEAD").headers["stream-next-offset"]


@pytest.mark.parametrize("query", ["", "&live=long-poll", "&live=sse"])
@pytest.mark.parametrize("body", [b"n", b"new and longer"])
def test_an_offset_of_a_deleted_stream_is_gone_when_its_path_is_used_again(
    stream: Stream, query: str, body: bytes
) -> None:
    stream.create(b"old")
    old = next_offset(stream)
    assert stream.ask("DELETE").status == 204
    stream.create(body)
    for _ in range(3):
        assert stream.ask("POST", body, TEXT).status == 204
    answer = stream.ask("GET", query=f"?offset={old}{query}")
    assert (answer.status, answer.code) == (410, "stream_gone")
    assert "is one of a stream that was deleted" in answer.message
    assert "start at -1" in answer.message
    assert stream.read("?offset=-1") == body * 4


def test_an_offset_of_an_earlier_release_is_one_of_the_present_stream(stream: Stream) -> None:
    stream.create(b"a")
    stream.ask("POST", b"b", TEXT)
    assert stream.read("?offset=" + "1".rjust(16, "0") + "_" + "0" * 16) == b"b"


def test_an_offset_of_the_source_is_one_of_its_fork_up_to_the_fork(stream: Stream) -> None:
    stream.create(b"a")
    first = next_offset(stream)
    stream.ask("POST", b"b", TEXT)
    second = next_offset(stream)
    forked = {"Stream-Forked-From": stream.path, "Stream-Fork-Offset": first}
    fork = Stream(stream.node)
    assert fork.ask("PUT", None, forked).status == 201
    assert next_offset(fork) == first
    fork.ask("POST", b"c", TEXT)
    assert fork.read(f"?offset={first}") == b"c"
    assert fork.ask("GET", query=f"?offset={second}").status == 410
    # Another fork of the same source at the same path does not answer for the first.
    own = next_offset(fork)
    assert fork.ask("DELETE").status == 204
    assert fork.ask("PUT", None, forked).status == 201
    fork.ask("POST", b"d", TEXT)
    assert fork.ask("GET", query=f"?offset={own}").status == 410
    assert fork.read(f"?offset={first}") == b"d"


def test_a_stream_is_not_forked_at_an_offset_of_a_deleted_one(stream: Stream) -> None:
    stream.create(b"old")
    old = next_offset(stream)
    assert stream.ask("DELETE").status == 204
    stream.create(b"new")
    forked = {"Stream-Forked-From": stream.path, "Stream-Fork-Offset": old}
    assert Stream(stream.node).ask("PUT", None, forked).status == 410


def test_offsets_last_over_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=WEB) as node:
        stream = Stream(node).create(b"a")
        first = next_offset(stream)
        stream.ask("POST", b"b", TEXT)
        fork = Stream(node)
        assert fork.ask("PUT", None, {"Stream-Forked-From": stream.path}).status == 201
    with running_broker(tmp_path, http_server=WEB) as node:
        stream.node = fork.node = node
        assert stream.read(f"?offset={first}") == b"b"
        assert fork.read(f"?offset={first}") == b"b"
        assert next_offset(fork) == next_offset(stream)
