"""Caps of what a user has in use: refusals name the limit, and every way out gives slots back."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.principal import user
from millstream.broker.access.resources import Operation, ResourceType
from millstream.broker.access.sasl.scram import make_credential, make_salt
from millstream.broker.access.user_slots import UserSlots
from millstream.broker.queues.values import QueueChanges
from millstream.config.schema import AccessConfig, BrokerConfig, ClientAuth, TlsConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.metadata import MetadataRequest
from millstream.protocols.kafka.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from millstream.servers.kafka.logins import KafkaLogins
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.live.websockets_client import talking
from tests.servers.kafka.client import RawClient, batch_of, produce_request
from tests.servers.peer.certificates import Authority

ROOT = Caller(user("root"), "127.0.0.1")
TOPIC = "orders"
PASSWORD = "correct horse"
ACCESS = AccessConfig(
    enabled=True, super_users=("root",), scram_iterations=4096, plain_without_tls=True
)
LONG_MS = 600_000
"""Longer than any test waits."""


def opened(path: Path, **limits: int) -> Any:
    limits = {f"limit_{name}_per_user": value for name, value in limits.items()}
    return running_broker(path, access=ACCESS, broker=BrokerConfig(**limits))


def prepared(node: RunningBroker) -> dict[str, dict[str, str]]:
    """Make the topic, a queue, and users with passwords and tokens; return their headers."""
    broker = node.server.broker
    access = broker.access
    assert access is not None
    node.run(broker.topics.create(TOPIC, partitions=1))
    node.run(broker.queues.put(TOPIC, QueueChanges()))
    salt = make_salt(bytes(32))
    credential = make_credential(ScramMechanism.SHA_256, PASSWORD, salt=salt, iterations=4096)
    headers = {}
    for name in ("alice", "bob"):
        node.run(access.put_scram(name, ScramMechanism.SHA_256, credential, by=ROOT))
        for kind in (ResourceType.TOPIC, ResourceType.GROUP):
            for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE):
                pattern = ResourcePattern(kind, TOPIC)
                acl = Acl(pattern, user(name), "*", operation, Permission.ALLOW)
                if kind is ResourceType.TOPIC or operation is not Operation.WRITE:
                    node.run(access.create_acl(acl, by=ROOT))
        _, text = node.run(access.create_token(user(name), by=ROOT))
        headers[name] = {"Authorization": f"Bearer {text}"}
    return headers


def log_in(client: RawClient, name: str) -> Any:
    assert client.call(SaslHandshakeRequest(mechanism="PLAIN")).error_code == 0
    return client.call(SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{PASSWORD}".encode()))


def long_fetch(node: RunningBroker) -> FetchRequest:
    topic_id = node.server.broker.topics.get(TOPIC).id
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchRequestTopic(topic=TOPIC, topic_id=topic_id, partitions=(part,))
    return FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1000, topics=(topic,))


def until(condition: Callable[[], bool]) -> None:
    """Wait until something has happened on the node's thread."""
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen within a minute")


class OpenRequest:
    """A request whose response lasts, on a socket of its own."""

    def __init__(self, node: RunningBroker, path: str, headers: dict[str, str]) -> None:
        host, port = urlsplit(node.url).netloc.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())

    def status(self) -> int:
        head = self.socket.recv(20)
        while len(head) < 12:
            head += self.socket.recv(20)
        return int(head[9:12])

    def close(self) -> None:
        self.socket.close()


LIVE_PATHS = {
    "events": f"/v1/events?topic={TOPIC}",
    "jobs": f"/v1/queues/{TOPIC}/work",
    "stream": "/v1/streams/orders-stream?offset=-1&live=sse",
}


class LiveNode:
    """A node on which each user may have two live connections."""

    def __init__(self, node: RunningBroker, headers: dict[str, dict[str, str]]) -> None:
        self.node = node
        self.headers = headers
        slots = node.server.broker.caps.live
        assert slots is not None
        self.slots: UserSlots = slots

    def open(self, kind: str, name: str = "alice") -> OpenRequest:
        return OpenRequest(self.node, LIVE_PATHS[kind], self.headers[name])

    def until_unused(self) -> None:
        until(lambda: self.slots.is_unused)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with opened(tmp_path_factory.mktemp("live"), live_connections=2) as node:
        yield LiveNode(node, prepared(node))


def words(name: str, noun: str, setting: str, limit: int) -> str:
    return f"User:{name} has {limit} {noun}, limits.{setting}_per_user is {limit}"


# Live connections.


@pytest.mark.parametrize("kind", ["events", "jobs"])
def test_a_user_has_as_many_event_streams_as_the_limit_says(live: LiveNode, kind: str) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            request = live.open(kind)
            stack.callback(request.close)
            assert request.status() == 200
        path, alice = LIVE_PATHS[kind], live.headers["alice"]
        refused = ask(live.node.url, "GET", path, headers=alice)
        assert (refused.status, refused.code) == (429, "cap_exceeded")
        said = refused.message
        assert said == words("alice", "live connections", "live_connections", 2)
        with (
            pytest.raises(InvalidStatus, match="429"),
            talking(live.node.url, additional_headers=alice),
        ):
            pass
        other = live.open(kind, "bob")
        stack.callback(other.close)
        assert other.status() == 200
        assert ask(live.node.url, "GET", f"/v1/topics/{TOPIC}", headers=alice).status == 200
    live.until_unused()


def test_a_websocket_takes_a_slot_and_gives_it_back_however_it_ends(live: LiveNode) -> None:
    alice = live.headers["alice"]
    with talking(live.node.url, additional_headers=alice) as talk:
        talk.result(op="subscribe", topics=[TOPIC])
        assert live.slots.count_of("User:alice") == 1
    live.until_unused()
    for _ in range(3):  # Without a close frame.
        with talking(live.node.url, additional_headers=alice) as talk:
            talk.result(op="subscribe", topics=[TOPIC])
            talk.connection.socket.shutdown(socket.SHUT_RDWR)
        live.until_unused()
    with talking(live.node.url, additional_headers=alice) as talk:  # Cut off for nonsense.
        for _ in range(10):
            talk.connection.send("nonsense")
        with pytest.raises(ConnectionClosed):
            deque(iter(talk.next, None))
    live.until_unused()


def test_a_websocket_that_was_refused_or_never_opened_takes_none(live: LiveNode) -> None:
    bad = {"Authorization": "Bearer ms_000000000000_" + "A" * 32}
    with pytest.raises(InvalidStatus, match="401"), talking(live.node.url, additional_headers=bad):
        pass
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    for key in ({}, {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}):
        request = OpenRequest(live.node, "/v1/ws", {**live.headers["alice"], **upgrade, **key})
        request.close()
    live.until_unused()


@pytest.mark.parametrize("kind", ["events", "jobs"])
def test_a_login_that_is_revoked_gives_its_slots_back(live: LiveNode, kind: str) -> None:
    node, access = live.node, live.node.server.broker.access
    assert access is not None
    token, text = node.run(access.create_token(user("alice"), by=ROOT))
    headers = {"Authorization": f"Bearer {text}"}
    request = OpenRequest(node, LIVE_PATHS[kind], headers)
    assert request.status() == 200
    with talking(node.url, additional_headers=headers) as talk:
        talk.result(op="subscribe", topics=[TOPIC])
        assert live.slots.count_of("User:alice") == 2
        node.run(access.revoke_token(token.id, by=ROOT))
        with pytest.raises(ConnectionClosed):
            deque(iter(talk.next, None))
    live.until_unused()
    request.close()


def test_many_at_once_get_as_many_as_the_limit_says_and_leave_nothing_behind(
    live: LiveNode,
) -> None:
    """Thirty clients at a time: they open, look at the answer and go away as they like."""
    kinds, granted = ("events", "jobs"), []

    def come_and_go(number: int) -> int:
        request = live.open(kinds[number % 2], ("alice", "bob")[number // 2 % 2])
        if number % 5 == 0:  # Gone before there is an answer.
            request.close()
            return 0
        status = request.status()
        granted.append(live.slots.count_of("User:alice"))
        request.close()
        return status

    with ThreadPoolExecutor(30) as pool:
        statuses = list(pool.map(come_and_go, range(300)))
    assert set(statuses) <= {0, 200, 429}
    assert statuses.count(200) >= 4
    assert max(granted) <= 2
    live.until_unused()
    assert live.node.server.live.subscribers == ()


def test_a_stream_of_events_of_a_durable_stream_counts_too(live: LiveNode) -> None:
    node, root = live.node, live.node.server.broker.access
    assert root is not None
    _, text = node.run(root.create_token(user("root"), by=ROOT))
    headers = {"Authorization": f"Bearer {text}"}
    made = ask(
        node.url,
        "PUT",
        "/v1/streams/orders-stream",
        headers=headers | {"Content-Type": "text/plain"},
    )
    assert made.status in (200, 201), made
    with ExitStack() as stack:
        for _ in range(2):
            request = OpenRequest(node, LIVE_PATHS["stream"], headers)
            stack.callback(request.close)
            assert request.status() == 200
        refused = ask(node.url, "GET", LIVE_PATHS["stream"], headers=headers)
        assert refused.status == 429
    live.until_unused()


# Requests in flight.


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[LiveNode]:
    with opened(tmp_path, requests=3, live_connections=2) as node:
        yield LiveNode(node, prepared(node))


def slots_of(node: RunningBroker) -> UserSlots:
    slots = node.server.broker.caps.requests
    assert slots is not None
    return slots


def test_requests_over_http_beyond_the_limit_are_refused(busy: LiveNode) -> None:
    node, alice = busy.node, busy.headers["alice"]
    path = f"/v1/topics/{TOPIC}/records?from=0&wait_ms=30000"
    polls = [OpenRequest(node, path, alice) for _ in range(3)]
    until(lambda: slots_of(node).count_of("User:alice") == 3)
    refused = ask(node.url, "GET", f"/v1/topics/{TOPIC}", headers=alice)
    assert (refused.status, refused.code) == (429, "cap_exceeded")
    assert refused.message == words("alice", "requests in flight", "requests", 3)
    assert ask(node.url, "GET", f"/v1/topics/{TOPIC}", headers=busy.headers["bob"]).status == 200
    assert ask(node.url, "GET", "/health/live").status == 200
    polls[0].close()  # Before the others are answered.
    until(lambda: slots_of(node).count_of("User:alice") == 2)
    appended = ask(
        node.url,
        "POST",
        f"/v1/topics/{TOPIC}/records",
        b'{"records": [{"value": 1}]}',
        headers=alice,
    )
    assert appended.status == 201
    for poll in polls[1:]:
        assert poll.status() == 200
        poll.close()
    until(lambda: slots_of(node).is_unused)


def test_requests_over_kafka_beyond_the_limit_wait_and_all_are_answered(busy: LiveNode) -> None:
    """Over two connections, with fetches that end only when a third one writes."""
    node = busy.node
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(node.bootstrap, timeout=60)) for _ in range(3)]
        for client, name in zip(clients, ("alice", "alice", "bob"), strict=True):
            assert log_in(client, name).error_code == 0
        for client in clients[:2]:
            for _ in range(4):
                client.send(long_fetch(node))
        until(lambda: slots_of(node).count_of("User:alice") == 3)
        for client in clients[:2]:
            client.send(MetadataRequest(topics=None))
        assert clients[2].call(MetadataRequest(topics=None)).topics
        assert slots_of(node).count_of("User:alice") == 3
        answer = clients[2].call(produce_request(TOPIC, batch_of(b"x")), 8)
        assert answer.responses[0].partition_responses[0].error_code == 0
        for client in clients[:2]:
            for _ in range(4):
                assert client.receive().error_code == 0
            assert client.receive().topics
    until(lambda: slots_of(node).is_unused)


@pytest.mark.parametrize("how", ["disconnect", "reset", "revoked"])
def test_a_kafka_connection_that_ends_gives_back_what_its_requests_held(
    busy: LiveNode, how: str
) -> None:
    node, access = busy.node, busy.node.server.broker.access
    assert access is not None
    with (
        RawClient(node.bootstrap, timeout=60) as first,
        RawClient(node.bootstrap, timeout=60) as second,
    ):
        for client in (first, second):
            assert log_in(client, "alice").error_code == 0
        for _ in range(5):
            first.send(long_fetch(node))
        until(lambda: slots_of(node).count_of("User:alice") == 3)
        second.send(MetadataRequest(topics=None))
        if how == "reset":
            linger = b"\1\0\0\0\0\0\0\0"
            first.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if how == "revoked":
            node.run(access.delete_scram("alice", ScramMechanism.SHA_256, by=ROOT))
            assert first.is_closed_by_peer()
            assert second.is_closed_by_peer()
        else:
            first.socket.close()
            assert second.receive().topics
    until(lambda: slots_of(node).is_unused)


def test_many_clients_at_once_are_all_answered_and_leave_no_slot_taken(busy: LiveNode) -> None:
    """Forty connections of one user with twenty requests ahead each; some break off midway.

    Twenty at a time: a node refuses logins while more than 32 passwords wait to be hashed.
    """
    node = busy.node

    def talk(number: int) -> int:
        with RawClient(node.bootstrap, timeout=120) as client:
            assert log_in(client, "alice").error_code == 0
            for _ in range(10):
                client.send(produce_request(TOPIC, batch_of(b"x")), 8)
                client.send(MetadataRequest(topics=None))
            if number % 4 == 0:
                return 0
            return sum(client.receive() is not None for _ in range(20))

    with ThreadPoolExecutor(20) as pool:
        counts = list(pool.map(talk, range(40)))
    assert counts == [0 if number % 4 == 0 else 20 for number in range(40)]
    until(lambda: slots_of(node).is_unused)


def test_a_node_stops_while_requests_wait_for_a_slot(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with opened(tmp_path, requests=1, live_connections=1, connections=5) as node:
            headers = prepared(node)
            caps = node.server.broker.caps
            assert caps.live is not None
            assert caps.connections is not None
            assert caps.requests is not None
            client = stack.enter_context(RawClient(node.bootstrap, timeout=60))
            assert log_in(client, "alice").error_code == 0
            for _ in range(3):
                client.send(long_fetch(node))
            stream = OpenRequest(node, LIVE_PATHS["events"], headers["bob"])
            stack.callback(stream.close)
            assert stream.status() == 200
            alice = {"additional_headers": headers["alice"]}
            talk = stack.enter_context(talking(node.url, **alice))
            talk.result(op="subscribe", topics=[TOPIC])
            assert caps.live.count_of("User:alice") == caps.live.count_of("User:bob") == 1
            assert caps.connections.count_of("User:alice") == 1
        assert caps.live.is_unused
        assert caps.connections.is_unused
        assert caps.requests.is_unused


def test_requests_that_come_before_a_login_are_not_counted(busy: LiveNode) -> None:
    """Else failed logins, which take seconds, would keep others of their address from theirs."""
    node = busy.node
    with RawClient(node.bootstrap, timeout=60) as client:
        for _ in range(5):
            client.send(MetadataRequest(topics=None))
        assert slots_of(node).is_unused
        for _ in range(5):
            client.receive()
        assert log_in(client, "alice").error_code == 0
        client.send(long_fetch(node))
        until(lambda: slots_of(node).count_of("User:alice") == 1)
    until(lambda: slots_of(node).is_unused)


# Connections.


def test_logins_beyond_the_limit_are_refused_by_name_and_a_connection_that_ends_makes_room(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, connections=2) as node, ExitStack() as stack:
        prepared(node)
        connections = node.server.broker.caps.connections
        assert connections is not None

        def connected() -> RawClient:
            return stack.enter_context(RawClient(node.bootstrap, timeout=60))

        clients = [connected() for _ in range(2)]
        for client in clients:
            assert log_in(client, "alice").error_code == 0
        assert log_in(clients[0], "alice").error_code == 0, "logging in again takes none"
        refused = connected()
        answer = log_in(refused, "alice")
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert answer.error_message == words("alice", "connections", "connections", 2)
        assert refused.is_closed_by_peer()
        assert log_in(connected(), "bob").error_code == 0
        clients[0].socket.close()
        until(lambda: connections.count_of("User:alice") == 1)
        assert log_in(connected(), "alice").error_code == 0
    assert connections.is_unused


def test_a_wrong_password_takes_no_slot(tmp_path: Path) -> None:
    with opened(tmp_path, connections=1) as node:
        prepared(node)
        connections = node.server.broker.caps.connections
        assert connections is not None
        with RawClient(node.bootstrap, timeout=60) as client:
            client.call(SaslHandshakeRequest(mechanism="PLAIN"))
            answer = client.call(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"))
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert connections.is_unused


def test_a_login_that_is_complete_when_its_client_has_gone_takes_no_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, connections=1, requests=5) as node:
        prepared(node)
        listener = node.server._kafka
        real, done = KafkaLogins.check_password, threading.Event()

        async def check_late(logins: KafkaLogins, login: Any) -> Any:
            credential = await real(logins, login)
            await listener._connections.wait_until_none()
            asyncio.get_running_loop().call_later(0.1, done.set)
            return credential

        monkeypatch.setattr(KafkaLogins, "check_password", check_late)
        with RawClient(node.bootstrap, timeout=60) as client:
            client.call(SaslHandshakeRequest(mechanism="PLAIN"))
            client.send(SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode()))
        assert done.wait(60)
        assert node.server.broker.caps.connections.is_unused
        assert slots_of(node).is_unused


def test_connections_by_certificate_count_for_its_user(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate = authority.issue("node")
    tls = TlsConfig(
        cert_file=certificate,
        key_file=certificate,
        ca_file=authority.certificate,
        client_auth=ClientAuth.REQUIRE,
    )
    limits = BrokerConfig(limit_connections_per_user=1)
    with (
        running_broker(tmp_path, access=ACCESS, broker=limits, tls=tls) as node,
        ExitStack() as stack,
    ):
        context = authority.client_context(authority.issue("client"))
        first = stack.enter_context(RawClient(node.bootstrap, tls=context, timeout=60))
        first.call(MetadataRequest(topics=None))
        second = stack.enter_context(RawClient(node.bootstrap, tls=context, timeout=60))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            second.call(MetadataRequest(topics=None))
        first.socket.close()
        connections = node.server.broker.caps.connections
        assert connections is not None
        until(lambda: connections.is_unused)
