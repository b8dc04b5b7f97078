"""Kafka's internal topics for groups and transactions do not exist and cannot be created."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.topics import CreateTopicsRequest, CreateTopicsRequestTopic

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
