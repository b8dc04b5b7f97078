"""`access.reads = open` at both servers: everyone reads, and only those with a login write."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from websockets.sync.client import connect

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import Operation, ResourceType
from millstream.config.schema import AccessConfig, ReadAccess
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.acls import DescribeAclsRequest
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.protocols.kafka.messages.scram_credentials import (
    DescribeUserScramCredentialsRequest,
)
from millstream.testing.broker import RunningBroker, running_broker

from .kafka.client import RawClient

ROOT = Caller(user("root"), "127.0.0.1")
TIMEOUT_S = 30


class Site:
    def __init__(self, node: RunningBroker) -> None:
        self.node = node
        self.access = node.server.broker.access
        assert self.access is not None
        self.rule("alice", Operation.WRITE, Permission.ALLOW)
        _, self.alice = node.run(self.access.create_token(user("alice"), by=ROOT))
        _, self.bob = node.run(self.access.create_token(user("bob"), by=ROOT))
        for name in ("orders", "payroll"):
            node.run(node.server.broker.topics.create(name, partitions=1))
        # Not even readers who have not logged in see what is denied to them.
        self.rule("ANONYMOUS", Operation.ALL, Permission.DENY, "payroll")

    def rule(
        self, name: str, operation: Operation, permission: Permission, topic: str = "orders"
    ) -> None:
        pattern = ResourcePattern(ResourceType.TOPIC, topic)
        acl = Acl(pattern, user(name), "*", operation, permission)
        self.node.run(self.access.create_acl(acl, by=ROOT))

    def http(self, method: str, path: str, body: Any = None, token: str | None = None) -> int:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.node.url + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.read()
            return error.code

    def kafka(self, **settings: Any) -> dict[str, Any]:
        quiet = {"logger": logging.getLogger("quiet"), "log_level": 0}
        return {"bootstrap.servers": self.node.bootstrap, **quiet, **settings}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    access = AccessConfig(enabled=True, super_users=("root",), reads=ReadAccess.OPEN)
    with running_broker(tmp_path_factory.mktemp("data"), access=access) as node:
        site = Site(node)
        body = {"records": [{"value": 1}, {"value": 2}]}
        assert site.http("POST", "/v1/topics/orders/records", body, site.alice) == 201
        yield site


READS = (
    "/v1/topics",
    "/v1/topics/orders",
    "/v1/topics/orders/records",
    "/v1/topics/orders/configs",
    "/v1/groups",
    "/v1/queues",
    "/v1/access/whoami",
    "/health/ready",
)
WRITES = (
    ("POST", "/v1/topics/orders/records", {"records": [{"value": 1}]}),
    ("PUT", "/v1/topics/new", {}),
    ("PUT", "/v1/topics/orders", {"partitions": 2}),
    ("DELETE", "/v1/topics/orders", None),
    ("DELETE", "/v1/topics/orders/records", {"before": 1, "partition": 0}),
    ("PUT", "/v1/queues/orders", {}),
    ("PUT", "/v1/streams/new", None),
    ("DELETE", "/v1/groups/g", None),
)
SECRETS = (
    "/v1/access/acls",
    "/v1/access/tokens",
    "/v1/access/users",
    "/metrics",
    "/v1/quotas",
)


@pytest.mark.parametrize("path", READS)
def test_everyone_reads_over_http_without_a_login(site: Site, path: str):
    assert site.http("GET", path) == 200


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_nobody_writes_over_http_without_a_login(site: Site, method: str, path: str, body: Any):
    assert site.http(method, path, body) == 401


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_login_without_the_right_is_not_enough_to_write(
    site: Site, method: str, path: str, body: Any
):
    assert site.http(method, path, body, site.bob) == 403


def test_a_login_with_the_right_writes_and_another_one_reads(site: Site):
    body = {"records": [{"value": 1}]}
    assert site.http("POST", "/v1/topics/orders/records", body, site.alice) == 201
    assert site.http("GET", "/v1/topics/orders/records", token=site.bob) == 200


@pytest.mark.parametrize("path", SECRETS)
def test_what_belongs_to_the_cluster_stays_closed(site: Site, path: str):
    assert site.http("GET", path) == 401
    assert site.http("GET", path, token=site.bob) == 403


def test_a_rule_that_denies_precedes_open_reads(site: Site):
    for path in ("/v1/topics/payroll", "/v1/topics/payroll/records"):
        assert site.http("GET", path) == 401
        assert site.http("GET", path, token=site.bob) == 200
    with urllib.request.urlopen(site.node.url + "/v1/topics", timeout=TIMEOUT_S) as answer:
        names = [topic["name"] for topic in json.loads(answer.read())["topics"]]
    assert names == ["orders"]


def test_a_token_that_is_not_valid_does_not_read_although_nobody_needs_one(site: Site):
    wrong = "ms_000000000000_" + "A" * 32
    assert site.http("GET", "/v1/topics/orders/records", token=wrong) == 401


def test_a_websocket_without_a_login_watches_and_does_not_append(site: Site):
    with connect(site.node.url.replace("http://", "ws://") + "/v1/ws") as socket:

        def ask(**message: Any) -> Any:
            socket.send(json.dumps({"id": 1, **message}))
            while True:
                answer = json.loads(socket.recv(timeout=TIMEOUT_S))
                if answer["type"] in ("answer", "error"):
                    return answer

        assert ask(op="subscribe", topics=["orders"])["type"] == "answer"
        refused = ask(op="append", topic="orders", records=[{"value": 1}])
        assert refused["error"]["code"] == "not_authenticated"


# Kafka clients that have not logged in.


def test_a_kafka_consumer_without_a_login_reads(site: Site):
    settings = {"group.id": "any", "enable.auto.commit": False}
    consumer = Consumer(site.kafka(**settings))
    consumer.assign([TopicPartition("orders", 0, 0)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"1")
    with pytest.raises(KafkaException) as refused:
        consumer.commit(message, asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()


def test_a_kafka_consumer_without_a_login_joins_no_group(site: Site):
    consumer = Consumer(site.kafka(**{"group.id": "workers"}))
    consumer.subscribe(["orders"])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()


def test_a_kafka_producer_without_a_login_writes_nothing(site: Site):
    producer = Producer(site.kafka())
    errors: list[Any] = []
    producer.produce("orders", b"x", callback=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)
    [error] = errors
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_an_idempotent_producer_without_a_login_gets_no_id(site: Site):
    with RawClient(site.node.bootstrap) as client:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        assert client.call(request).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_kafka_admin_without_a_login_sees_topics_and_changes_nothing(site: Site):
    admin = AdminClient(site.kafka())
    assert set(admin.list_topics(timeout=TIMEOUT_S).topics) == {"orders"}
    changes = {
        **admin.create_topics([NewTopic("new", 1)]),
        **admin.delete_topics(["orders"]),
    }
    for future in changes.values():
        with pytest.raises(KafkaException) as refused:
            future.result(TIMEOUT_S)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_acls_and_users_are_not_listed_without_a_login(site: Site):
    with RawClient(site.node.bootstrap) as client:
        for request in (
            DescribeAclsRequest(
                resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
            ),
            DescribeUserScramCredentialsRequest(users=None),
        ):
            code = client.call(request).error_code
            assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, request
