"""Who may send what to the peer server: every message, from the table of needs.

A message of anyone but a registered peer never reaches its handler. A message on behalf of a client
is refused if the client that it names has not the right that its row asks for.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import Operation, ResourceType
from millstream.broker.broker import Broker
from millstream.config.schema import AccessConfig
from millstream.errors import (
    NotAuthenticated,
    PeerUnavailable,
    TopicAccessDenied,
    UnknownTopic,
)
from millstream.protocols.http.errors import code_of
from millstream.protocols.kafka.codec.message import encode_parts
from millstream.protocols.peer.apis import API_OF_REQUEST, PEER_APIS
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.frame import FrameHeader, FrameKind, encode_frame
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.identity import PeerIdentity
from millstream.protocols.peer.messages.append_batch import AppendBatchRequest
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.peer import listener as listener_module
from millstream.servers.peer.access_table import PEER_NEEDS
from millstream.servers.peer.append_handler import AppendHandler
from millstream.servers.peer.listener import PeerListener
from millstream.servers.peer.peer_context import ConnectingPeer, PeerContext
from millstream.servers.peer.peer_gate import PeerGate
from tests.in_loop import in_loop
from tests.protocols.kafka.samples import sample
from tests.servers.peer.peer_nodes import CLUSTER, SECONDS, raw_peer, running_peer, until

from .test_handshake import hello

TOPIC = "orders"
every_api = pytest.mark.parametrize(
    "key", [pytest.param(key, id=api.name) for key, api in PEER_APIS.items()]
)
CLIENT_KEYS = [key for key, row in PEER_NEEDS.items() if row.topic is not None]


def test_every_message_has_a_row_and_no_row_is_left_over():
    assert set(PEER_NEEDS) == set(PEER_APIS)


def test_a_row_names_a_right_of_a_client_or_says_why_there_is_none():
    for key, row in PEER_NEEDS.items():
        said = [row.topic is not None, row.is_http, bool(row.why_no_client)]
        assert said.count(True) == 1, PEER_APIS[key].name


def test_what_a_message_does_for_a_client_it_says_who_the_client_is():
    for key, row in PEER_NEEDS.items():
        fields = inspect.signature(PEER_APIS[key].request).parameters
        names = {"principal", "token_id", "client_address"}
        is_named = row.topic is not None or row.is_http
        assert (names <= set(fields)) is is_named, PEER_APIS[key].name


def test_a_message_without_a_row_cannot_be_served(monkeypatch: pytest.MonkeyPatch):
    rows = {key: row for key, row in PEER_NEEDS.items() if key != 11}
    monkeypatch.setattr(listener_module, "PEER_NEEDS", rows)
    served = PeerListener.serve
    with pytest.raises(TypeError, match="AppendBatchRequest has no row"):
        served(object.__new__(PeerListener), AppendBatchRequest, lambda *_: None)


# Senders.


def frame_of(key: int) -> bytes:
    request = sample(PEER_APIS[key].request, 0, 0)
    header = FrameHeader(FrameKind.REQUEST, 1, key, 0, 30_000)
    return b"".join(encode_frame(header, encode_parts(request, 0)))


def serve_all(server: Any) -> list[type[Any]]:
    """Let a recorder handle every message; return what it has seen."""
    seen: list[type[Any]] = []

    def handler(request: Any, _context: object) -> Any:
        seen.append(type(request))
        return sample(API_OF_REQUEST[type(request)].response, 0, 0)

    for api in PEER_APIS.values():
        server.listener.serve(api.request, handler)
    return seen


@every_api
@in_loop
async def test_nothing_is_handled_before_the_handshake(key: int):
    async with running_peer() as server:
        seen = serve_all(server)
        async with raw_peer(server.port) as raw:
            await raw.send(frame_of(key))
            await until(lambda: not server.listener.connection_count)
            assert seen == []


STRANGERS = {
    "another cluster": {"cluster_id": "cluster-2"},
    "this very node": {"node_id": 1},
    "a node that is not registered": {"node_id": 9},
    "another directory of a node": {"incarnation": uuid.UUID(int=77)},
    "a node that looks for another one": {"target_node_id": 3},
}


@pytest.mark.parametrize("stranger", STRANGERS)
@every_api
@in_loop
async def test_nothing_of_a_stranger_is_handled(key: int, stranger: str):
    async with running_peer() as server:
        seen = serve_all(server)
        server.refusals[9] = PeerErrorCode.UNKNOWN_NODE
        if stranger == "another directory of a node":
            server.refusals[2] = PeerErrorCode.DUPLICATE_NODE
        purpose = min(PEER_APIS[key].purposes)
        async with raw_peer(server.port) as raw:
            await raw.send(hello(purpose=purpose, **STRANGERS[stranger]) + frame_of(key))
            await until(lambda: not server.listener.connection_count)
            assert seen == []
            assert sum(server.counters.refused_handshakes.values()) == 1


@every_api
@in_loop
async def test_a_registered_peer_is_served_for_the_purposes_of_the_message_only(key: int):
    api = PEER_APIS[key]
    async with running_peer() as server:
        seen = serve_all(server)
        for purpose in Purpose:
            connection = await server.connect(purpose=purpose)
            request = sample(api.request, 0, 0)
            if purpose in api.purposes:
                await connection.call(request, timeout_s=SECONDS)
                assert seen.pop() is api.request
            else:
                with pytest.raises(PeerUnavailable, match="NOT_SERVED"):
                    await connection.call(request, timeout_s=SECONDS)
            assert seen == []


@every_api
@in_loop
async def test_a_peer_whose_registration_has_ended_is_cut_off(key: int):
    async with running_peer() as server:
        seen = serve_all(server)
        connection = await server.connect(purpose=min(PEER_APIS[key].purposes))
        server.refusals[2] = PeerErrorCode.UNKNOWN_NODE
        server.listener.recheck()
        with pytest.raises(Exception):  # noqa: B017, PT011 - how it ends depends on the socket.
            await connection.call(sample(PEER_APIS[key].request, 0, 0), timeout_s=SECONDS)
        assert seen == []


# Clients.


class Leader:
    """A node with logins that leads a topic, and the handlers of messages for clients."""

    def __init__(self, path: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.broker: Broker = self.run(
            Broker.open(str(path), access_config=AccessConfig(enabled=True, super_users=("root",)))
        )
        self.root = Caller(user("root"), "10.0.0.1")
        self.topic = self.run(self.broker.topics.create(TOPIC, partitions=1))
        self.run(self.topic.partition(0).open())
        assert self.broker.access is not None
        self.access = self.broker.access
        gate = PeerGate(self.access)
        self.handlers = {11: AppendHandler(self.broker.topics, self.broker.clock, gate)}
        self.count = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.broker.close())
        self.loop.close()

    def user_with(self, *operations: Operation, name: str = TOPIC) -> str:
        self.count += 1
        principal = user(f"user-{self.count}")
        for operation in operations:
            pattern = ResourcePattern(ResourceType.TOPIC, name)
            acl = Acl(pattern, principal, "10.0.0.2", operation, Permission.ALLOW)
            self.run(self.access.create_acl(acl, by=self.root))
        return str(principal)

    def ask(
        self, key: int, principal: str, *, token_id: str = "", address: str = "10.0.0.2"
    ) -> str:
        """Return the code of the error with which a message is refused; empty if it is not."""
        request = {
            11: AppendBatchRequest(
                topic_id=self.topic.id,
                index=0,
                principal=principal,
                token_id=token_id,
                client_address=address,
                batch=build_batch([Record(b"v")], now_ms=1),
            )
        }[key]
        return self.run(self._answer(key, request))

    async def _answer(self, key: int, request: Any) -> str:
        peer = ConnectingPeer(PeerIdentity(CLUSTER, 2, uuid.UUID(int=2), ""), Purpose.ADMIN, "")
        deadline = asyncio.get_running_loop().time() + SECONDS
        answer = self.handlers[key](request, PeerContext(peer, 0, deadline, 0, None))
        if isinstance(answer, DeferredResponse):
            done = asyncio.get_running_loop().create_future()
            answer.then(done.set_result)
            answer = await done
        assert bool(answer.error_code) is bool(answer.error_name)
        return str(answer.error_name)

    @property
    def end(self) -> int:
        return int(self.topic.partition(0).high_watermark)


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leader]:
    leader = Leader(tmp_path_factory.mktemp("leader"))
    yield leader
    leader.close()


client_messages = pytest.mark.parametrize("key", CLIENT_KEYS)
DENIED, HIDDEN, NO_LOGIN = "topic_access_denied", "unknown_topic", "not_authenticated"


def test_every_message_for_clients_has_a_cell(leader: Leader):
    assert sorted(leader.handlers) == sorted(CLIENT_KEYS)


@client_messages
def test_a_client_without_the_right_is_refused(leader: Leader, key: int):
    end, needed = leader.end, PEER_NEEDS[key].topic
    assert needed is not None
    cells = {
        HIDDEN: [
            ("User:ANONYMOUS", "10.0.0.2"),
            (leader.user_with(), "10.0.0.2"),
            (leader.user_with(needed, name="another"), "10.0.0.2"),
            (leader.user_with(needed), "10.0.0.3"),
        ],
        DENIED: [
            (leader.user_with(operation), "10.0.0.2")
            for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
            if operation is not needed
        ],
    }
    for code, callers in cells.items():
        for principal, address in callers:
            assert leader.ask(key, principal, address=address) == code, principal
    assert leader.end == end


@client_messages
def test_a_client_with_exactly_the_right_and_super_users_are_let_in(leader: Leader, key: int):
    needed = PEER_NEEDS[key].topic
    assert needed is not None
    assert leader.ask(key, leader.user_with(needed)) == ""
    assert leader.ask(key, "User:root") == ""


@client_messages
def test_what_the_node_does_itself_needs_no_right(leader: Leader, key: int):
    assert leader.ask(key, "") == ""


@client_messages
def test_a_client_cannot_be_a_node(leader: Leader, key: int):
    end = leader.end
    for principal in ("Node:2", "root", "User:", "Group:admins"):
        assert leader.ask(key, principal) != "", principal
    assert leader.end == end


@client_messages
def test_a_right_that_is_taken_or_denied_is_gone_for_the_next_message(leader: Leader, key: int):
    needed = PEER_NEEDS[key].topic
    assert needed is not None
    name = leader.user_with(needed)
    assert leader.ask(key, name) == ""
    acl = Acl(
        ResourcePattern(ResourceType.TOPIC, TOPIC),
        user(name.removeprefix("User:")),
        "10.0.0.2",
        needed,
        Permission.ALLOW,
    )
    leader.run(leader.access.delete_acl(acl, by=leader.root))
    assert leader.ask(key, name) == HIDDEN


@client_messages
def test_a_token_narrows_the_right_and_ends_it_when_it_is_revoked(leader: Leader, key: int):
    needed = PEER_NEEDS[key].topic
    assert needed is not None
    name = leader.user_with(needed)
    principal = user(name.removeprefix("User:"))
    whole, _ = leader.run(leader.access.create_token(principal, by=leader.root))
    narrow, _ = leader.run(
        leader.access.create_token(principal, by=leader.root, prefixes=("another",))
    )
    assert leader.ask(key, name, token_id=whole.id) == ""
    assert leader.ask(key, name, token_id=narrow.id) == HIDDEN
    leader.run(leader.access.revoke_token(whole.id, by=leader.root))
    assert leader.ask(key, name, token_id=whole.id) == NO_LOGIN


def test_the_codes_of_refusals_are_those_of_http():
    assert [code_of(kind) for kind in (TopicAccessDenied, UnknownTopic, NotAuthenticated)] == [
        DENIED,
        HIDDEN,
        NO_LOGIN,
    ]
