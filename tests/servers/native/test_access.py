"""Rights at the native server: every operation, from the table of needs."""

from __future__ import annotations

import pytest

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import CLUSTER_NAME, ResourceType
from millstream.broker.access.resources import Operation as Right
from millstream.config.schema import AccessConfig, BrokerConfig, NativeConfig, ReadAccess
from millstream.protocols.native import operations as ops
from millstream.protocols.native.error_codes import NativeErrorCode
from millstream.protocols.native.frame import control_frame, ingest_frame, keepalive_frame
from millstream.protocols.native.operations import NativeOperation
from millstream.protocols.native.record_set import RAW, typed_record
from millstream.servers.native.access_table import NEEDS
from millstream.servers.native.operations import HANDLERS
from millstream.testing.broker import running_broker

from .client import NativeClient, Refused

ROOT = Caller(user("root"), "127.0.0.1")
TOPIC, GROUP, CONSUMER = "orders", "native-0000000000000001", 1
TYPES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.CLUSTER: CLUSTER_NAME,
}


def needed(operation):
    """The rights that an operation needs, by type of resource."""
    row = NEEDS[operation]
    rights = {
        ResourceType.TOPIC: row.topic,
        ResourceType.GROUP: row.group,
        ResourceType.CLUSTER: None if row.is_cluster_enough else row.cluster,
    }
    return {kind: right for kind, right in rights.items() if right is not None}


def sample(operation, number):
    """A frame that names the topic, or the consumer, or the cluster."""
    bodies = {
        NativeOperation.CREATE_TOPIC: ops.create_topic_body(ops.CreateTopic("payments")),
        NativeOperation.CREATE_TOPIC_WITH_RETENTION: ops.create_topic_body(
            ops.CreateTopic("payments-kept", ops.Retention(60, 0))
        ),
        NativeOperation.DELETE_TOPIC: ops.topic_id_body(number),
        NativeOperation.GET_TOPIC: ops.topic_id_body(number),
        NativeOperation.SET_RETENTION: ops.set_retention_body(ops.SetRetention(number, 60, 0)),
        NativeOperation.LIST_TOPICS: b"",
        NativeOperation.GET_CLUSTER_STATUS: b"",
        NativeOperation.AUTHENTICATE: b"a token",
        NativeOperation.FETCH: ops.fetch_body(ops.Fetch(number, 0, 1000)),
        NativeOperation.SUBSCRIBE: ops.subscribe_body(ops.Subscribe(number, 0, 1000, CONSUMER)),
        NativeOperation.UNSUBSCRIBE: ops.unsubscribe_body(ops.Unsubscribe(number, CONSUMER)),
        NativeOperation.COMMIT_OFFSET: ops.commit_offset_body(
            ops.CommitOffset(number, CONSUMER, 0)
        ),
    }
    if operation is NativeOperation.KEEPALIVE:
        return keepalive_frame()
    if operation is NativeOperation.INGEST:
        payload = typed_record(RAW, b"v")
        return ingest_frame(1, payload, record_count=1, topic_id=number)
    return control_frame(operation, bodies[operation])


class Gate:
    """A node with logins, a topic, and callers with rights of their own."""

    def __init__(self, broker):
        self.broker = broker
        self.access = broker.server.broker.access
        broker.run(broker.server.broker.topics.create(TOPIC, partitions=1))
        with self.client("root") as root:
            self.number = root.topics()[TOPIC]
        self._count = 0

    def client(self, name):
        _, token = self.broker.run(self.access.create_token(user(name), by=ROOT))
        client = NativeClient(self.broker.native)
        assert client.authenticate(token) == (True, f"logged in as User:{name}")
        return client

    def client_with(self, rights):
        """A client of a new user who may do this."""
        self._count += 1
        name = f"user-{self._count}"
        for kind, right in rights.items():
            names = ("payments", "payments-kept") if right is Right.CREATE else (None,)
            for resource in names:
                self.allow(user(name), right, kind, resource)
        return self.client(name)

    def allow(self, principal, right, kind, name=None):
        pattern = ResourcePattern(kind, name or TYPES[kind])
        acl = Acl(pattern, principal, "*", right, Permission.ALLOW)
        self.broker.run(self.access.create_acl(acl, by=ROOT))


@pytest.fixture
def gate(tmp_path):
    access = AccessConfig(enabled=True, super_users=("root",))
    with running_broker(tmp_path, access=access, native_server=NativeConfig()) as broker:
        yield Gate(broker)


def outcome(client, frame):
    """The code of the error; `None` without one."""
    client.send(frame)
    try:
        client.answer()
    except Refused as refused:
        return refused.code
    return None


def test_every_operation_has_a_row_and_no_row_is_left_over():
    assert set(NEEDS) == set(HANDLERS) == set(NativeOperation)


def test_a_row_names_a_right_or_says_that_there_is_none():
    for operation, row in NEEDS.items():
        assert needed(operation) or row.is_open or row.is_filtered, operation.label
    opened = {operation for operation, row in NEEDS.items() if row.is_open}
    assert opened == {NativeOperation.KEEPALIVE, NativeOperation.AUTHENTICATE}


def test_each_operation_needs_exactly_its_rights(gate):
    checked = 0
    for operation in NativeOperation:
        rights = needed(operation)
        if not rights or NEEDS[operation].is_filtered:
            continue
        with gate.client_with(rights) as client:
            if operation is NativeOperation.DELETE_TOPIC:  # It would be missing below.
                gate.broker.run(gate.broker.server.broker.topics.create("other"))
            else:
                assert outcome(client, sample(operation, gate.number)) is None, operation.label
        for left_out in rights:
            fewer = {kind: right for kind, right in rights.items() if kind is not left_out}
            with gate.client_with(fewer) as client:
                code = outcome(client, sample(operation, gate.number))
                assert code in {NativeErrorCode.DENIED, NativeErrorCode.TOPIC_DELETED}, (
                    operation.label
                )
                checked += 1
    assert checked == 14
    with gate.client_with({ResourceType.TOPIC: Right.DELETE}) as client:
        assert outcome(client, sample(NativeOperation.DELETE_TOPIC, gate.number)) is None


def test_without_a_login_everything_else_is_refused_in_the_same_words(gate):
    messages = set()
    for operation in NativeOperation:
        if NEEDS[operation].is_open or NEEDS[operation].is_filtered:
            continue
        for number in (gate.number, 77):
            with NativeClient(gate.broker.native) as client:
                client.send(sample(operation, number))
                with pytest.raises(Refused) as refused:
                    client.answer()
                assert refused.value.code == NativeErrorCode.LOGIN_NEEDED, operation.label
                messages.add(refused.value.message)
                client.send(keepalive_frame())
                client.answer()
    assert len(messages) == 1


def test_the_default_topic_needs_rights_as_others_do(gate):
    with gate.client_with({}) as client:
        assert outcome(client, sample(NativeOperation.INGEST, 0)) == NativeErrorCode.UNKNOWN_TOPIC
    with gate.client_with({}) as client:
        gate.allow(user(f"user-{gate._count}"), Right.WRITE, ResourceType.TOPIC, "default")
        assert outcome(client, sample(NativeOperation.INGEST, 0)) == NativeErrorCode.DENIED
        gate.allow(user(f"user-{gate._count}"), Right.CREATE, ResourceType.TOPIC, "default")
        assert outcome(client, sample(NativeOperation.INGEST, 0)) is None


def test_hidden_topics_are_not_told_from_deleted_ones(gate):
    with gate.client_with({}) as client:
        assert client.topics() == {}
        with pytest.raises(Refused) as hidden:
            client.fetch(gate.number, 0)
        with gate.client("root") as root:
            deleted = root.create("short-lived")["id"]
            root.call(NativeOperation.DELETE_TOPIC, ops.topic_id_body(deleted))
        with pytest.raises(Refused) as gone:
            client.fetch(deleted, 0)
        assert gone.value.code == hidden.value.code == NativeErrorCode.TOPIC_DELETED
        assert TOPIC not in hidden.value.message
        assert outcome(client, control_frame(NativeOperation.CREATE_TOPIC, TOPIC.encode())) == (
            NativeErrorCode.DENIED
        )


def test_a_caller_who_may_create_a_hidden_topic_is_not_told_its_number(gate):
    with gate.client_with({}) as client:
        gate.allow(user(f"user-{gate._count}"), Right.CREATE, ResourceType.TOPIC)
        with pytest.raises(Refused) as refused:
            client.create(TOPIC)
        assert refused.value.code == NativeErrorCode.TOPIC_EXISTS


def test_a_wrong_token_is_answered_and_ends_the_connection(gate):
    failed = gate.access.counters.failed_logins
    before = failed["token"]
    with NativeClient(gate.broker.native) as client:
        is_in, message = client.authenticate("mst_nobody")
        assert not is_in
        assert "the token is not valid" in message
        assert client.is_closed()
    assert failed["token"] == before + 1


def test_a_login_beyond_the_connections_of_a_user_is_answered_and_ends_the_connection(tmp_path):
    access = AccessConfig(enabled=True, super_users=("root",))
    caps = BrokerConfig(limit_connections_per_user=1)
    with running_broker(
        tmp_path, access=access, broker=caps, native_server=NativeConfig()
    ) as broker:
        _, token = broker.run(broker.server.broker.access.create_token(user("root"), by=ROOT))
        with NativeClient(broker.native) as first, NativeClient(broker.native) as second:
            assert first.authenticate(token) == (True, "logged in as User:root")
            is_in, message = second.authenticate(token)
            assert not is_in
            assert "connections" in message
            assert second.is_closed()
            assert first.authenticate(token) == (True, "logged in as User:root")


def test_a_revoked_token_ends_its_connections(gate):
    client = gate.client_with({ResourceType.TOPIC: Right.READ})
    [token] = [
        token for token in gate.access.tokens() if token.principal == user(f"user-{gate._count}")
    ]
    gate.broker.run(gate.access.revoke_token(token.id, by=ROOT))
    assert client.is_closed()
    client.socket.close()


def test_large_frames_need_a_login(gate):
    frame = ingest_frame(1, typed_record(RAW, bytes(100_000)), record_count=1, topic_id=gate.number)
    with NativeClient(gate.broker.native) as client:
        client.socket.sendall(frame.to_bytes()[:44])
        assert client.is_closed()
    with gate.client("root") as root:
        assert outcome(root, frame) is None


def test_without_logins_every_token_is_accepted_and_the_answer_says_so(tmp_path):
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
    ):
        is_in, message = client.authenticate("anything")
        assert is_in
        assert message == "this node has no logins: everyone may do everything"


def test_reads_are_open_where_the_operator_says_so(tmp_path):
    access = AccessConfig(enabled=True, super_users=("root",), reads=ReadAccess.OPEN)
    with running_broker(tmp_path, access=access, native_server=NativeConfig()) as broker:
        gate = Gate(broker)
        with NativeClient(broker.native) as client:
            assert client.topics() == {TOPIC: gate.number}
            assert outcome(client, sample(NativeOperation.FETCH, gate.number)) is None
            assert (
                outcome(client, sample(NativeOperation.INGEST, gate.number))
                == NativeErrorCode.LOGIN_NEEDED
            )
