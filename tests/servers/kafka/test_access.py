"""Rights at the Kafka server, over real connections."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import ANONYMOUS, user
from millstream.broker.access.resources import CLUSTER_NAME, Operation, Resource
from millstream.broker.access.resources import ResourceType as Kind
from millstream.config.schema import AccessConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.acls import DescribeAclsRequest
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.protocols.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
)
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest
from millstream.testing.broker import running_broker

from .client import RawClient, batch_of, produce_request

ROOT = Caller(user("root"), "127.0.0.1")
TOPIC = "orders"


@pytest.fixture
def broker(tmp_path):
    access = AccessConfig(enabled=True, super_users=("root",))
    with running_broker(tmp_path, access=access) as running:
        running.run(running.server.broker.topics.create(TOPIC, partitions=1))
        yield running


def rule(operation, kind=Kind.TOPIC, name=TOPIC, principal=ANONYMOUS):
    return Acl(ResourcePattern(kind, name), principal, "*", operation, Permission.ALLOW)


def allow(broker, *acls):
    for acl in acls:
        broker.run(broker.server.broker.access.create_acl(acl, by=ROOT))


def deny(broker, acl):
    broker.run(broker.server.broker.access.delete_acl(acl, by=ROOT))


def produced(client, topic=TOPIC):
    answer = client.call(produce_request(topic, batch_of(b"v")), 9)
    return answer.responses[0].partition_responses[0]


def fetch_request(wait_ms=0):
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topics = (FetchRequestTopic(topic=TOPIC, partitions=(part,)),)
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=topics)


def fetched(client):
    return client.call(fetch_request(), 11).responses[0].partitions[0]


def test_a_client_without_a_login_may_do_nothing_but_ask_for_versions(broker):
    with RawClient(broker.bootstrap) as client:
        assert client.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        for topic in (TOPIC, "absent"):
            result = produced(client, topic)
            assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert result.base_offset == -1
        assert fetched(client).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    allow(broker, rule(Operation.WRITE))
    with RawClient(broker.bootstrap) as client:
        assert produced(client).base_offset == 0, "nothing was written before"


def test_a_right_that_is_given_and_taken_holds_at_once_on_an_open_connection(broker):
    with RawClient(broker.bootstrap) as client:
        assert produced(client).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        allow(broker, rule(Operation.WRITE))
        assert [produced(client).base_offset for _ in range(3)] == [0, 1, 2]
        assert fetched(client).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        deny(broker, rule(Operation.WRITE))
        assert produced(client).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        allow(broker, rule(Operation.READ))
        assert produced(client).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert bytes(fetched(client).records)
    assert broker.server.broker.topics.partition(TOPIC, 0).high_watermark == 3


def test_a_fetch_that_waits_is_refused_when_its_right_is_taken(broker):
    allow(broker, rule(Operation.READ))
    with RawClient(broker.bootstrap) as client:
        client.send(fetch_request(wait_ms=60_000), 11)
        sessions = broker.server._kafka.fetch_sessions
        while not sessions.waiting:
            threading.Event().wait(0.005)
        deny(broker, rule(Operation.READ))
        result = client.receive().responses[0].partitions[0]
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not result.records


def test_a_connection_is_closed_when_its_login_ends(broker):
    access = broker.server.broker.access
    token, _ = broker.run(access.create_token(user("alice"), by=ROOT))
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as other:
        client.call(ApiVersionsRequest(), 0)
        other.call(ApiVersionsRequest(), 0)
        port = client.socket.getsockname()[1]
        (connection,) = [
            connection
            for connection in broker.server._kafka.connections
            if connection._transport.get_extra_info("peername")[1] == port
        ]
        connection.caller = access.caller_of_token(token, "127.0.0.1")
        broker.run(access.revoke_token(token.id, by=ROOT))
        assert client.is_closed_by_peer()
        assert other.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
    assert access.counters.cut_off == 1


def test_kafkas_admin_client_creates_lists_and_deletes_acls(broker):
    allow(broker, rule(Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = AclBinding(
        ResourceType.TOPIC, "team-", ResourcePatternType.PREFIXED, "User:alice", "*",
        AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip
    (created,) = admin.create_acls([wanted]).values()
    assert created.result(20) is None
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:alice", None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(everything).result(20) == [wanted]
    alice = Caller(user("alice"), "10.0.0.1")
    access = broker.server.broker.access
    resource = Resource(Kind.TOPIC, "team-a")
    assert access.check(alice, Operation.READ, resource)
    (deleted,) = admin.delete_acls([everything]).values()
    assert deleted.result(20) == [wanted]
    assert not access.check(alice, Operation.READ, resource)


def test_acls_are_for_those_who_may_alter_the_cluster(broker):
    everything = DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    with RawClient(broker.bootstrap) as client:
        refused = client.call(everything)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert not refused.resources


def test_a_metadata_request_creates_only_topics_that_the_caller_may_create(broker):
    allow(broker, rule(Operation.DESCRIBE, name="*"))
    request = MetadataRequest(topics=(MetadataRequestTopic(name="new"),))
    with RawClient(broker.bootstrap) as client:
        answer = client.call(request, 9).topics[0]
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert broker.server.broker.topics.find("new") is None
        allow(broker, rule(Operation.CREATE, name="new"))
        assert client.call(request, 9).topics[0].error_code == ErrorCode.NONE
    assert broker.server.broker.topics.find("new") is not None


def begin_transaction(client, name):
    made = client.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000))
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=(AddPartitionsToTxnRequestTopic(name=TOPIC, partitions=(0,)),),
    )
    client.call(add, 3)
    return made


def test_nobody_writes_into_the_transaction_of_another_with_an_id_of_its_own(broker):
    for name in ("alice", "mallory"):
        allow(broker, rule(Operation.WRITE, Kind.TRANSACTIONAL_ID, name))
    allow(broker, rule(Operation.WRITE))
    with RawClient(broker.bootstrap) as client:
        made = begin_transaction(client, "alice")
        begin_transaction(client, "mallory")
        for number, (name, is_let_in) in enumerate([("alice", True), ("mallory", False)]):
            batch = batch_of(
                name.encode(), producer_id=made.producer_id, producer_epoch=made.producer_epoch,
                base_sequence=number, is_transactional=True,
            )  # fmt: skip
            for version in (9, 11, 12):
                request = produce_request(TOPIC, batch, transactional_id=name)
                result = client.call(request, version).responses[0].partition_responses[0]
                assert (result.error_code == ErrorCode.NONE) == is_let_in
    assert broker.server.broker.topics.partition(TOPIC, 0).high_watermark == 1
