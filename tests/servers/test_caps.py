"""Caps at both servers: what clients are told, however they create a topic."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import ANONYMOUS, user
from millstream.broker.access.resources import CLUSTER_NAME, Operation, ResourceType
from millstream.config.schema import AccessConfig, BrokerConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.testing.broker import RunningBroker, running_broker

ROOT = Caller(user("root"), "127.0.0.1")
TIMEOUT_S = 30


@pytest.fixture
def node(tmp_path: Any) -> Iterator[RunningBroker]:
    limits = BrokerConfig(limit_topics_per_user=2, limit_partitions_per_user=4)
    access = AccessConfig(enabled=True, super_users=("root",))
    with running_broker(tmp_path, broker=limits, access=access) as node:
        gate = node.server.broker.access
        assert gate is not None
        for name in ("ANONYMOUS", "alice"):
            for kind, resource in (
                (ResourceType.TOPIC, "*"),
                (ResourceType.GROUP, "*"),
                (ResourceType.CLUSTER, CLUSTER_NAME),
            ):
                pattern = ResourcePattern(kind, resource)
                acl = Acl(pattern, user(name), "*", Operation.ALL, Permission.ALLOW)
                node.run(gate.create_acl(acl, by=ROOT))
        yield node


def ask(node: RunningBroker, token: str, method: str, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(node.url + path, data=json.dumps(body).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def test_over_http_every_way_to_create_a_topic_is_refused_with_429_beyond_the_cap(
    node: RunningBroker,
):
    gate = node.server.broker.access
    assert gate is not None
    _, token = node.run(gate.create_token(user("alice"), by=ROOT))
    for name in ("a", "b"):
        assert ask(node, token, "PUT", f"/v1/topics/{name}", {})[0] == 201
    for method, path, body in (
        ("PUT", "/v1/topics/c", {}),
        ("POST", "/v1/topics/c/records", {"records": [{"value": 1}]}),
        ("PUT", "/v1/queues/c", {}),
        ("PUT", "/v1/streams/c", []),
        ("PUT", "/v1/topics/a", {"partitions": 4}),
    ):
        status, error = ask(node, token, method, path, body)
        assert (status, error["code"]) == (429, "cap_exceeded"), path
        assert "of User:alice, limits." in error["message"]
    names = {topic.name for topic in node.server.broker.topics.all()}
    assert names == {"a", "b"}
    assert ask(node, token, "PUT", "/v1/topics/a", {"partitions": 3})[0] == 200
    assert ask(node, token, "DELETE", "/v1/topics/b", None)[0] in (200, 204)
    assert ask(node, token, "PUT", "/v1/streams/c", [])[0] == 201


def test_over_kafka_a_cap_is_a_violation_of_a_policy(node: RunningBroker):
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for name in ("a", "b"):
        admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    refusals = [
        admin.create_topics([NewTopic("c", 1)])["c"],
        admin.create_topics([NewTopic("c", 1)], validate_only=True)["c"],
        admin.create_partitions([NewPartitions("a", 4)])["a"],
    ]
    for refused in refusals:
        with pytest.raises(KafkaException) as caught:
            refused.result(TIMEOUT_S)
        error = caught.value.args[0]
        assert error.code() == ErrorCode.POLICY_VIOLATION
        assert f"of {ANONYMOUS}, limits." in error.str()
    admin.delete_topics(["b"])["b"].result(TIMEOUT_S)
    admin.create_topics([NewTopic("c", 1)])["c"].result(TIMEOUT_S)
