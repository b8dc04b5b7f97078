"""Kafka's internal topics for groups and transactions do not exist and cannot be created."""

from __future__ import annotations

import json

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.topics import CreateTopicsRequest, CreateTopicsRequestTopic
from tests.servers.http.calls import ask

RECORDS = json.dumps({"records": [{"value": 1}]}).encode()
NAMES = ["__consumer_offsets", "__transaction_state", "__share_group_state"]


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_of_kafkas_own_is_unknown_and_not_made_by_asking(client, name):
    request = MetadataRequest(topics=(MetadataRequestTopic(name=name),))
    for _ in range(2):
        (topic,) = client.call(request, 12).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_of_kafkas_own_cannot_be_created(client, name):
    wanted = CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1)
    (topic,) = client.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=1000)).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "reserved for Kafka's internal use" in topic.error_message


def test_other_names_with_two_underscores_are_names_like_any(client, broker):
    """Programs such as Faust and Debezium create topics with such names."""
    wanted = CreateTopicsRequestTopic(name="__mine", num_partitions=1, replication_factor=1)
    (topic,) = client.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=1000)).topics
    assert topic.error_code == ErrorCode.NONE
    assert ask(broker.url, "POST", "/v1/topics/__yours/records", RECORDS).status == 201


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_of_kafkas_own_is_refused_over_http_too(broker, name):
    put = ask(broker.url, "PUT", f"/v1/topics/{name}")
    assert (put.status, put.code) == (400, "invalid_name")
    post = ask(broker.url, "POST", f"/v1/topics/{name}/records", RECORDS)
    assert (post.status, post.code) == (404, "unknown_topic")
