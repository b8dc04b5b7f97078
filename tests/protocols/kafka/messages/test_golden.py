"""Bytes written by hand from the protocol guide, field by field."""

from __future__ import annotations

import uuid

import pytest

from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.kafka.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.groups import HeartbeatRequest, HeartbeatResponse
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponseLeader,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from millstream.protocols.kafka.messages.publications import (
    PublishTransactionsRequest,
    PublishTransactionsRequestTransaction,
    PublishTransactionsResponse,
)
from millstream.protocols.kafka.messages.quotas import (
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntity,
    DescribeClientQuotasResponseEntry,
    DescribeClientQuotasResponseValue,
)
from millstream.protocols.kafka.messages.versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApi,
    ApiVersionsResponseFinalizedFeature,
)

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ID_HEX = "00112233445566778899aabbccddeeff"

PRODUCE = ProduceRequest(
    transactional_id=None,
    acks=-1,
    timeout_ms=1500,
    topic_data=(
        ProduceRequestTopic(
            name="t", partition_data=(ProduceRequestPartition(index=7, records=b"abc"),)
        ),
    ),
)

GOLDEN = {
    "nothing at all": (ApiVersionsRequest(), 0, ""),
    "two compact strings and no tags": (
        ApiVersionsRequest(client_software_name="me", client_software_version="1.2"),
        3,
        "03 6d65"  # size 2 + 1, "me"
        "04 312e32"  # size 3 + 1, "1.2"
        "00",  # no tagged fields
    ),
    "a field that came later is left out": (
        HeartbeatRequest(group_id="g", generation_id=5, member_id="m"),
        0,
        "0001 67  00000005  0001 6d",
    ),
    "a null classic string": (
        HeartbeatRequest(group_id="g", generation_id=5, member_id="m"),
        3,
        "0001 67  00000005  0001 6d  ffff",
    ),
    "a null compact string": (
        HeartbeatRequest(group_id="g", generation_id=5, member_id="m"),
        4,
        "02 67  00000005  02 6d  00  00",
    ),
    "a publication of one transaction": (
        PublishTransactionsRequest(
            publisher="q",
            sequence=7,
            prefix="q/",
            transactions=(
                PublishTransactionsRequestTransaction(
                    transactional_id="q/0", producer_id=5, producer_epoch=1
                ),
            ),
            is_final=True,
        ),
        0,
        "02 71  0000000000000007  03 712f"  # publisher, sequence, prefix
        "02  04 712f30  0000000000000005 0001 00"  # one transaction + 1, its fields, its tags
        "01 01 00",  # committed, final, no tags
    ),
    "what became of a publication": (
        PublishTransactionsResponse(error_code=47, error_message="no", last_sequence=3),
        0,
        "00000000 002f  03 6e6f  00  0000000000000003  00",
    ),
    "numbers alone": (HeartbeatResponse(throttle_time_ms=9, error_code=27), 1, "00000009 001b"),
    "a null classic array": (MetadataRequest(topics=None), 1, "ffffffff"),
    "a classic array of structs": (
        MetadataRequest(topics=(MetadataRequestTopic(name="ab"), MetadataRequestTopic(name=""))),
        0,
        "00000002  0002 6162  0000",
    ),
    "a null that is allowed from version 10 on": (
        MetadataRequest(topics=(MetadataRequestTopic(topic_id=ID, name=None),)),
        12,
        "02"  # one topic + 1
        f"{ID_HEX} 00  00"  # id, no name, no tags
        "01 00"  # may create topics, without authorized operations
        "00",
    ),
    "a classic produce": (
        PRODUCE,
        3,
        "ffff ffff 000005dc"  # no transaction, acks, timeout
        "00000001 0001 74"  # one topic, "t"
        "00000001 00000007"  # one partition, number 7
        "00000003 616263",  # records
    ),
    "a flexible produce": (
        PRODUCE,
        9,
        "00 ffff 000005dc"
        "02 02 74"
        "02 00000007"
        "04 616263 00"  # records, tags of the partition
        "00 00",  # tags of the topic, of the request
    ),
    "a tagged struct": (
        ProduceResponse(
            responses=(
                ProduceResponseTopic(
                    name="t",
                    partition_responses=(
                        ProduceResponsePartition(
                            index=7,
                            error_code=6,
                            current_leader=ProduceResponseLeader(leader_id=2, leader_epoch=3),
                        ),
                    ),
                ),
            )
        ),
        10,
        "02 02 74"
        "02 00000007 0006 ffffffffffffffff ffffffffffffffff ffffffffffffffff"
        "01 00"  # no record errors, no message
        "01  00 09  00000002 00000003 00"  # one tag: 0, nine bytes, leader and epoch, its tags
        "00  00000000 00",  # tags of the topic, throttle time, tags of the response
    ),
    "tags in order, of all but defaults": (
        FetchRequest(
            cluster_id="c",
            max_wait_ms=500,
            min_bytes=1,
            session_epoch=0,
            topics=(
                FetchRequestTopic(
                    topic_id=ID,
                    partitions=(
                        FetchRequestPartition(
                            partition=1, fetch_offset=2, partition_max_bytes=3, high_watermark=4
                        ),
                    ),
                ),
            ),
        ),
        18,
        "000001f4 00000001 7fffffff 00"  # wait, bytes at least and at most, isolation
        "00000000 00000000"  # session and its epoch
        f"02 {ID_HEX}"
        "02 00000001 ffffffff 0000000000000002"  # partition, leader epoch, offset
        "ffffffff ffffffffffffffff 00000003"  # last epoch, log start, bytes at most
        "01  01 08 0000000000000004"  # tag 1: high watermark; the directory is the default
        "00"
        "01 01"  # nothing forgotten, no rack
        "01  00 02 02 63",  # tag 0: cluster id; who reads is the default
    ),
    "a nullable struct that is there": (
        ConsumerGroupHeartbeatResponse(
            member_id="m",
            member_epoch=1,
            heartbeat_interval_ms=5000,
            assignment=ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=(
                    ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=ID, partitions=(0, 2)),
                )
            ),
        ),
        0,
        "00000000 0000 00 02 6d 00000001 00001388"
        "01"  # the struct is there
        f"02 {ID_HEX} 03 00000000 00000002 00"
        "00 00",
    ),
    "a nullable struct that is null": (
        ConsumerGroupHeartbeatResponse(error_code=25),
        1,
        "00000000 0019 00 00 00000000 00000000 ff 00",
    ),
    "several tags of different kinds": (
        ApiVersionsResponse(
            api_keys=(ApiVersionsResponseApi(api_key=18, min_version=0, max_version=4),),
            finalized_features_epoch=1,
            finalized_features=(
                ApiVersionsResponseFinalizedFeature(
                    name="f", max_version_level=2, min_version_level=1
                ),
            ),
            zk_migration_ready=True,
        ),
        3,
        "0000 02 0012 0000 0004 00 00000000"
        "03  01 08 0000000000000001"
        "    02 08 02 02 66 0002 0001 00"
        "    03 01 01",
    ),
    "a float": (
        DescribeClientQuotasResponse(
            entries=(
                DescribeClientQuotasResponseEntry(
                    entity=(DescribeClientQuotasResponseEntity(entity_type="u", entity_name=None),),
                    values=(DescribeClientQuotasResponseValue(key="k", value=1.5),),
                ),
            )
        ),
        0,
        "00000000 0000 ffff 00000001 00000001 0001 75 ffff 00000001 0001 6b 3ff8000000000000",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_messages_match_the_bytes_worked_out_by_hand(name):
    value, version, golden = GOLDEN[name]
    data = bytes.fromhex(golden)
    assert encode(value, version) == data
    assert decode(type(value), data, version) == value
