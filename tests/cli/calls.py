"""Single Kafka requests for tests of an entire node."""

from __future__ import annotations

from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.servers.kafka.client import RawClient, batch_of, produce_request


def create_topic(client: RawClient, name: str) -> None:
    wanted = MetadataRequestTopic(name=name)
    client.call(MetadataRequest(topics=(wanted,), allow_auto_topic_creation=True))


def topic_id(client: RawClient, name: str) -> object:
    answer = client.call(MetadataRequest(topics=(MetadataRequestTopic(name=name),)))
    assert answer.topics[0].error_code == 0
    return answer.topics[0].topic_id


def produce(client: RawClient, topic: str, *values: bytes) -> int:
    answer = client.call(produce_request(topic, batch_of(*values)), 9)
    result = answer.responses[0].partition_responses[0]
    assert result.error_code == 0, result.error_message
    return int(result.base_offset)


def fetch(client: RawClient, topic: str) -> bytes:
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=(FetchRequestTopic(topic=topic, partitions=(part,)),),
    )
    result = client.call(request, 12).responses[0].partitions[0]
    assert result.error_code == 0
    return bytes(result.records)


def commit(client: RawClient, group: str, topic: str, offset: int) -> None:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    wanted = OffsetCommitRequestTopic(name=topic, partitions=(part,))
    answer = client.call(OffsetCommitRequest(group_id=group, member_id="", topics=(wanted,)), 8)
    assert answer.topics[0].partitions[0].error_code == 0


def committed(client: RawClient, group: str, topic: str) -> int:
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=(0,))
    group_wanted = OffsetFetchRequestGroup(group_id=group, topics=(wanted,))
    answer = client.call(OffsetFetchRequest(groups=(group_wanted,)), 8)
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)
