"""`GET /v1/ws`: the operations and events of a client."""

from __future__ import annotations

import json
import select
import socket
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosedError

from millstream.broker.queues.values import QueueChanges
from millstream.config.schema import HttpConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask

from .live_topic import LiveTopic
from .websockets_client import talking

SIZE_MAX = 64 * 1024


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    web = HttpConfig(append_size_max=SIZE_MAX)
    with running_broker(tmp_path_factory.mktemp("node"), http_server=web) as running:
        yield running


def test_who_subscribes_is_answered_and_then_told_of_what_comes(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append("before")
    with talking(node.url) as talk:
        result = talk.result(op="subscribe", topics=[topic.name])
        assert result == {"cursor": topic.cursor(1)}
        topic.append({"n": 1}, {"n": 2})
        told = talk.next()
    assert told["type"] == "records"
    assert told["cursor"] == topic.cursor(3)
    assert [record["value"] for record in told["records"]] == [{"n": 1}, {"n": 2}]
    assert (told["topic"], told["partition"], told["next"], told["head"]) == (topic.name, 0, 3, 3)


def test_the_cursor_of_a_message_is_where_to_go_on(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with talking(node.url) as talk:
        talk.result(op="subscribe", topics=[topic.name], from_="earliest")
        topic.append(1)
        cursor = talk.next()["cursor"]
    topic.append(2)
    with talking(node.url) as talk:
        talk.result(op="subscribe", topics=[topic.name], from_=cursor)
        topic.append(3)
        assert talk.values(2) == [2, 3]


def test_records_are_appended_as_by_post(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with talking(node.url) as talk:
        records = [{"key": "k", "value": 1}, {"value": {"base64": "AA=="}}]
        result = talk.result(op="append", topic=topic.name, records=records, node="n1")
    assert (result["offsets"], result["partition"], result["head"]) == ([0, 1], 0, 2)
    assert result["cost"].keys() == {"commit_ms", "fsync_ms", "throttle_ms"}
    found = ask(node.url, "GET", f"/v1/topics/{topic.name}/records").json["records"]
    assert [(one["key"], one["value"], one["node"]) for one in found] == [
        ("k", 1, "n1"),
        (None, {"base64": "AA=="}, "n1"),
    ]


def test_appends_of_one_connection_keep_their_order(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with talking(node.url) as talk:
        sent = [
            talk.send(op="append", topic=topic.name, records=[{"value": number}])
            for number in range(100)
        ]
        answered = {found["id"]: found for found in (talk.next() for _ in sent)}
    assert [answered[one]["result"]["offsets"] for one in sent] == [[n] for n in range(100)]


def test_who_unsubscribes_is_told_nothing_more(node: RunningBroker) -> None:
    topic, other = LiveTopic(node), LiveTopic(node)
    with talking(node.url) as talk:
        talk.result(op="subscribe", topics=[topic.name, other.name])
        result = talk.result(op="unsubscribe", topics=[topic.name, "unheard-of"])
        assert result == {"topics": [topic.name]}
        topic.append("unwanted")
        other.append("wanted")
        told = talk.next()
        assert (told["topic"], told["cursor"]) == (other.name, other.cursor(1))


def test_who_subscribes_again_begins_anew(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append(1)
    with talking(node.url) as talk:
        for _ in range(2):
            talk.result(op="subscribe", topics=[topic.name], from_="earliest")
            assert talk.values(1) == [1]


def test_a_topic_that_is_deleted_ends_and_the_connection_goes_on(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with talking(node.url) as talk:
        talk.result(op="subscribe", topics=[topic.name])
        topic.delete()
        assert talk.next() == {"type": "end", "topic": topic.name, "reason": "deleted"}
        topic.create()
        assert talk.result(op="subscribe", topics=[topic.name])["cursor"] == topic.cursor(0)


@pytest.mark.parametrize(
    ("message", "message_id", "words"),
    [
        (b"{", None, "message is not JSON in UTF-8: it ends too early"),
        (b'{"id":7}', 7, "got nothing"),
        (b'{"op":"dance","id":7}', 7, "got 'dance'"),
        (b'{"op":"subscribe","id":7}', 7, "topics"),
        (b'{"op":"subscribe","id":7,"topics":[]}', 7, "topics"),
        (b'{"op":"subscribe","id":7,"topics":["a"],"more":1}', 7, "unknown field 'more'"),
        (b'{"op":"subscribe","op":"append","id":7,"topics":["a"]}', 7, "twice"),
        (b'{"op":"subscribe","id":-1,"topics":["a"]}', None, "id"),
        (b'{"op":"subscribe","id":7,"topics":["a"],"from":"x"}', 7, "topic:partition:offset"),
        (b"[]", None, "object"),
        (b'{"op":"ack","id":7,"queue":"q","receipts":["\xff"]}', 7, "UTF-8"),
        (b"[" * 30_000, None, ""),
    ],
)
def test_a_message_that_means_nothing_is_answered_with_what_is_wrong(
    node: RunningBroker, message: bytes, message_id: int | None, words: str
) -> None:
    with talking(node.url) as talk:
        talk.connection.send(message, text=True)
        found = talk.next()
        assert (found["type"], found["id"]) == ("error", message_id)
        assert found["error"]["code"] == "malformed_request"
        assert words in found["error"]["message"]
        assert talk.result(op="unsubscribe", topics=["a"]) == {"topics": []}


def test_errors_of_the_broker_come_with_their_code_and_detail(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with talking(node.url) as talk:
        unknown = talk.ask(op="subscribe", topics=["unheard-of"])["error"]
        assert (unknown["code"], unknown["detail"]) == ("unknown_topic", None)
        past = talk.ask(op="subscribe", topics=[topic.name], from_=f"{topic.name}:0:9")["error"]
        assert past["code"] == "offset_out_of_range"
        assert past["detail"] == {"offset": 9, "start": 0, "end": 0}
        records = [{"value": 1, "partition": 5}]
        code = talk.ask(op="append", topic=topic.name, records=records)["error"]["code"]
        assert code == "unknown_topic"
        queue = talk.ask(op="ack", queue="unheard-of", receipts=["r"])["error"]
        assert queue["code"] == "unknown_queue"


def test_a_client_that_sends_nothing_but_nonsense_is_sent_away(node: RunningBroker) -> None:
    with talking(node.url) as talk:
        for _ in range(10):
            talk.connection.send("nonsense")
        assert [talk.next()["type"] for _ in range(10)] == ["error"] * 10
        with pytest.raises(ConnectionClosedError) as closed:
            talk.next()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_a_message_that_is_too_large_ends_the_connection(node: RunningBroker) -> None:
    with talking(node.url) as talk:
        talk.connection.send("x" * (SIZE_MAX + 1))
        with pytest.raises(ConnectionClosedError) as closed:
            talk.next()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_messages_may_come_as_bytes_and_in_fragments(node: RunningBroker) -> None:
    message = json.dumps({"op": "unsubscribe", "id": 7, "topics": ["a"]})
    with talking(node.url) as talk:
        talk.connection.send(message.encode())
        assert talk.next()["id"] == 7
        talk.connection.send(iter([message[:10], message[10:]]))
        assert talk.next()["id"] == 7


def test_a_plain_request_is_told_what_the_route_is_for(node: RunningBroker) -> None:
    found = ask(node.url, "GET", "/v1/ws")
    assert (found.status, found.code) == (426, "upgrade_required")
    assert found.headers["upgrade"] == "websocket"


def test_jobs_are_acknowledged_as_by_post(node: RunningBroker) -> None:
    queues = node.server.broker.queues
    name = f"q-{uuid.uuid4()}"
    queue, _ = node.run(queues.put(name, QueueChanges()))
    with talking(node.url) as talk:
        talk.result(op="append", topic=name, records=[{"value": 1}, {"value": 2}])
        claimed = node.run(queue.claim(max_jobs=2))
        receipts = [job.receipt for job in claimed.jobs]
        result = talk.result(op="ack", queue=name, receipts=receipts)
        assert result["acked"] == 2
        assert result["cost"].keys() == {"commit_ms", "fsync_ms", "throttle_ms"}
        stale = talk.ask(op="ack", queue=name, receipts=["made-up"])["error"]
        assert (stale["code"], stale["detail"]["stale"]) == ("stale_receipt", ["made-up"])
    assert queue.counts().acked == 2


# Who may talk to a node.


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "evil.example"}, 421, "misdirected_request"),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403, "forbidden"),
        ({"Host": "localhost:8080", "Origin": "http://localhost:9999"}, 403, "forbidden"),
        ({"Host": "localhost", "Origin": "null"}, 403, "forbidden"),
    ],
)
def test_a_page_of_another_site_gets_no_socket(
    node: RunningBroker, headers: dict[str, str], status: int, code: str
) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    found = ask(node.url, "GET", "/v1/ws", headers={**upgrade, **headers})
    assert (found.status, found.code) == (status, code)


def test_a_page_of_the_same_site_gets_one(node: RunningBroker) -> None:
    with talking(node.url, origin=node.url) as talk:
        assert talk.result(op="unsubscribe", topics=["a"]) == {"topics": []}


def test_what_waits_for_a_client_that_only_sends_stays_bounded(node: RunningBroker) -> None:
    """Pings are answered below the application; a client that reads nothing is not read either."""
    progress = urlsplit(node.url)
    with socket.create_connection((progress.hostname, progress.port)) as rude:
        rude.settimeout(30)
        rude.sendall(
            b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b"101" in rude.recv(4096)
        pings = (b"\x89\xfd" + bytes(4) + b"x" * 125) * 500
        rude.setblocking(False)
        sent = 0
        while sent < 64 * 1024 * 1024:
            try:
                sent += rude.send(pings[sent % len(pings) :])
            except BlockingIOError:
                _, writable, _ = select.select([], [rude], [], 0.3)
                if not writable:
                    break
        assert sent < 32 * 1024 * 1024
