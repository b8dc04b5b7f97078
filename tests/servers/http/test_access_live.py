"""Connections that last are cut off as soon as their caller loses a right."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections import deque
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import Operation, ResourceType
from millstream.broker.queues.values import QueueChanges
from millstream.config.schema import AccessConfig
from millstream.records.cursor import cursor_prefix
from millstream.servers.http.live.start_position import StartPosition
from millstream.testing.broker import running_broker

from .calls import ask
from .live.event_streams import Stream
from .live.websockets_client import talking

ROOT = Caller(user("root"), "127.0.0.1")
TOPIC = "orders"


@pytest.fixture
def node(tmp_path):
    access = AccessConfig(enabled=True, super_users=("root",))
    with running_broker(tmp_path, access=access) as running:
        running.run(running.server.broker.topics.create(TOPIC, partitions=1))
        yield running


class Alice:
    """A user with a token and rights that can be given and taken."""

    def __init__(self, node, *rights):
        self.node = node
        self.access = node.server.broker.access
        for right in rights:
            self.give(*right)
        self.token, self.text = node.run(self.access.create_token(user("alice"), by=ROOT))

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.text}"}

    def acl(self, operation, kind=ResourceType.TOPIC):
        pattern = ResourcePattern(kind, TOPIC)
        return Acl(pattern, user("alice"), "*", operation, Permission.ALLOW)

    def give(self, *right):
        self.node.run(self.access.create_acl(self.acl(*right), by=ROOT))

    def take(self, *right):
        self.node.run(self.access.delete_acl(self.acl(*right), by=ROOT))

    def revoke(self):
        self.node.run(self.access.revoke_token(self.token.id, by=ROOT))

    @contextmanager
    def get(self, path):
        connection = http.client.HTTPConnection(urlsplit(self.node.url).netloc, timeout=60)
        with closing(connection):
            connection.request("GET", path, headers=self.headers)
            yield connection

    def status(self, path):
        with self.get(path) as connection, connection.getresponse() as response:
            return response.status


LOSSES = ["right", "token"]


def lose(alice, loss):
    if loss == "right":
        alice.take(Operation.READ)
    else:
        alice.revoke()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_stream_of_events_ends(node, loss):
    alice = Alice(node, (Operation.READ,))
    path = f"/v1/events?topic={TOPIC}"
    with alice.get(path) as connection, connection.getresponse() as response:
        stream = Stream(response)
        assert stream.next().kind == "heartbeat"
        lose(alice, loss)
        with pytest.raises(EOFError):
            stream.next()
    assert alice.status(path) == (401 if loss == "token" else 404)
    assert node.server.broker.access.counters.cut_off == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_a_long_poll_is_refused(node, loss):
    alice = Alice(node, (Operation.READ,))
    with alice.get(f"/v1/topics/{TOPIC}/records?from=0&wait_ms=30000") as connection:
        running = node.server._http.state.app._running._requests
        while not running:  # Another thread puts it there.
            threading.Event().wait(0.005)
        lose(alice, loss)
        with connection.getresponse() as answer:
            assert answer.status == (401 if loss == "token" else 404)
            error = json.loads(answer.read())["error"]
    assert error["code"] == ("not_authenticated" if loss == "token" else "unknown_topic")


@pytest.mark.parametrize("loss", LOSSES)
def test_jobs_are_not_pushed_any_more(node, loss):
    queue = (Operation.READ, ResourceType.GROUP)
    alice = Alice(node, (Operation.READ,), queue)
    node.run(node.server.broker.queues.put(TOPIC, QueueChanges()))
    path = f"/v1/queues/{TOPIC}/work"
    with alice.get(path) as connection, connection.getresponse() as response:
        assert response.status == 200
        if loss == "right":
            alice.take(*queue)
        else:
            alice.revoke()
        while response.readline():
            pass
    assert alice.status(path) == (401 if loss == "token" else 403)


def test_a_websocket_needs_rights_for_each_message(node):
    alice = Alice(node, (Operation.READ,))
    with talking(node.url, additional_headers=alice.headers) as talk:
        talk.result(op="subscribe", topics=[TOPIC])
        record = [{"value": 1}]
        refused = talk.ask(op="append", topic=TOPIC, records=record)
        assert refused["error"]["code"] == "topic_access_denied"
        alice.give(Operation.WRITE)
        assert talk.ask(op="append", topic=TOPIC, records=record)["type"] == "answer"
        refused = talk.ask(op="ack", queue=TOPIC, receipts=["x"])
        assert refused["error"]["code"] == "group_access_denied"
        refused = talk.ask(op="subscribe", topics=["payroll"])
        assert refused["error"]["code"] == "unknown_topic"


def test_a_subscription_of_a_websocket_ends_with_its_right_and_the_socket_stays(node):
    alice = Alice(node, (Operation.READ,), (Operation.DESCRIBE,))
    with talking(node.url, additional_headers=alice.headers) as talk:
        talk.result(op="subscribe", topics=[TOPIC])
        alice.take(Operation.READ)
        told = talk.next()
        assert (told["type"], told["reason"]) == ("end", "denied")
        refused = talk.ask(op="subscribe", topics=[TOPIC])
        assert refused["error"]["code"] == "topic_access_denied"


def test_a_right_that_is_taken_while_a_subscription_begins_ends_it(node, monkeypatch):
    alice = Alice(node, (Operation.READ,), (Operation.DESCRIBE,))
    real = StartPosition.starts

    async def starts(position, topics):
        await alice.access.delete_acl(alice.acl(Operation.READ), by=ROOT)
        return await real(position, topics)

    monkeypatch.setattr(StartPosition, "starts", starts)
    with talking(node.url, additional_headers=alice.headers) as talk:
        refused = talk.ask(op="subscribe", topics=[TOPIC])
        assert refused["error"]["code"] == "topic_access_denied"
        (subscriber,) = node.server.live.subscribers
        assert not subscriber.topics


def test_a_websocket_is_closed_when_its_token_is_revoked(node):
    alice = Alice(node, (Operation.READ,))
    with talking(node.url, additional_headers=alice.headers) as talk:
        talk.result(op="subscribe", topics=[TOPIC])
        alice.revoke()
        events = iter(talk.next, None)
        with pytest.raises(ConnectionClosed):
            deque(events)


def test_a_websocket_with_a_bad_token_or_of_another_site_is_refused(node):
    bad = {"Authorization": "Bearer ms_000000000000_" + "A" * 32}
    with pytest.raises(InvalidStatus, match="401"), talking(node.url, additional_headers=bad):
        pass
    alice = Alice(node, (Operation.READ,))
    with (
        pytest.raises(InvalidStatus, match="403"),
        talking(node.url, additional_headers=alice.headers, origin="https://evil.example"),
    ):
        pass


def test_a_page_sends_its_token_among_the_subprotocols_and_the_node_does_not_repeat_it(node):
    alice = Alice(node, (Operation.READ,))
    offers = ["millstream", f"millstream.token.{alice.text}"]
    with talking(node.url, subprotocols=offers) as talk:
        assert talk.connection.subprotocol == "millstream"
        assert alice.text not in str(talk.connection.response.headers)
        talk.result(op="subscribe", topics=[TOPIC])
        alice.revoke()
        with pytest.raises(ConnectionClosed):
            deque(iter(talk.next, None))


@pytest.mark.parametrize("offers", [["wrong"], ["valid", "valid"], ["valid", "header"]])
def test_a_websocket_with_a_bad_offer_or_two_tokens_is_refused(node, offers):
    alice = Alice(node, (Operation.READ,))
    texts = {"wrong": "ms_000000000000_" + "A" * 32, "valid": alice.text}
    headers = alice.headers if "header" in offers else {}
    tokens = [f"millstream.token.{texts[name]}" for name in offers if name != "header"]
    with (
        pytest.raises(InvalidStatus, match="401"),
        talking(node.url, additional_headers=headers, subprotocols=["millstream", *tokens]),
    ):
        pass


def test_a_websocket_of_another_site_is_refused_whatever_it_offers(node):
    alice = Alice(node, (Operation.READ,))
    offers = ["millstream", f"millstream.token.{alice.text}"]
    with (
        pytest.raises(InvalidStatus, match="403"),
        talking(node.url, subprotocols=offers, origin="https://evil.example"),
    ):
        pass


def test_a_token_among_subprotocols_counts_for_websockets_only(node):
    alice = Alice(node, (Operation.READ,))
    offers = {"Sec-WebSocket-Protocol": f"millstream.token.{alice.text}"}
    answer = ask(node.url, "GET", f"/v1/topics/{TOPIC}", headers=offers)
    assert answer.status == 401


def test_a_websocket_without_a_login_may_connect_and_do_nothing(node):
    with talking(node.url) as talk:
        refused = talk.ask(op="append", topic=TOPIC, records=[{"value": 1}])
        assert refused["error"]["code"] == "not_authenticated"
        refused = talk.ask(op="subscribe", topics=[TOPIC])
        assert refused["error"]["code"] == "not_authenticated"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Basic cm9vdDpyb290",
        "Bearer  ",
        "bearer ms_x",
        "Bearer ms_000000000000_" + "A" * 31,
        "ms_000000000000_" + "A" * 32,
    ],
)
def test_other_authorizations_are_refused(node, value):
    answer = ask(node.url, "GET", "/v1/topics", headers={"Authorization": value})
    assert (answer.status, answer.code) == (401, "not_authenticated")


def test_two_authorizations_are_refused(node):
    alice = Alice(node, (Operation.READ,))
    host, port = urlsplit(node.url).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        line = f"Authorization: Bearer {alice.text}\r\n"
        head = (
            f"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n{line}{line}Connection: close\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


def test_a_cursor_of_another_topic_gives_no_records_of_it(node):
    alice = Alice(node, (Operation.READ,))
    node.run(node.server.broker.topics.create("payroll", partitions=1))
    topic = node.server.broker.topics.get("payroll")
    cursor = cursor_prefix("payroll", 0, topic.id) + "0"
    assert alice.status(f"/v1/topics/{TOPIC}/records?from={cursor}") == 400
