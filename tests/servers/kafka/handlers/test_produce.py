"""Produce, as clients see it: acknowledgements, refusals and their codes."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.iterate import read_all
from millstream.records.record import Record
from tests.servers.kafka.client import NOW_MS, RawClient, batch_of, produce_request
from tests.servers.kafka.conftest import make_topic


def result_of(answer, index=0):
    return answer.responses[0].partition_responses[index]


def produce(client, topic, batch, version=9, **fields):
    return result_of(client.call(produce_request(topic, batch, **fields), version))


def values_in(client, topic, partition=0, offset=0):
    part = FetchRequestPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1_000_000
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=(FetchRequestTopic(topic=topic, partitions=(part,)),),
    )
    found = client.call(request, 11).responses[0].partitions[0]
    assert found.error_code == 0
    return [record.value for record in read_all(found.records)]


def topic_id_of(client, topic):
    request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
    return client.call(request, 12).topics[0].topic_id


@pytest.mark.parametrize("version", range(3, 13))
def test_a_batch_is_acknowledged_with_its_first_offset(client, topic, version):
    assert produce(client, topic, batch_of(b"a", b"b"), version).base_offset == 0
    second = produce(client, topic, batch_of(b"c"), version)
    assert (second.error_code, second.base_offset) == (0, 2)
    assert values_in(client, topic) == [b"a", b"b", b"c"]


def test_from_version_13_on_topics_are_named_by_id(client, topic):
    part = ProduceRequestPartition(index=1, records=batch_of(b"x"))
    topic_id = topic_id_of(client, topic)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=(ProduceRequestTopic(topic_id=topic_id, partition_data=(part,)),),
    )
    answer = client.call(request, 13)
    assert answer.responses[0].topic_id == topic_id
    assert result_of(answer).error_code == 0
    assert values_in(client, topic, partition=1) == [b"x"]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_stored_as_it_came(client, topic, acks, codec):
    batch = batch_of(b"one" * 100, b"two" * 100, codec=codec)
    assert produce(client, topic, batch, acks=acks).error_code == 0
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    request = FetchRequest(
        max_wait_ms=10_000,
        min_bytes=1,
        topics=(FetchRequestTopic(topic=topic, partitions=(part,)),),
    )
    stored = client.call(request, 11).responses[0].partitions[0].records
    assert bytes(stored[16:]) == batch[16:]


def test_acks_0_is_never_answered_and_still_stored(client, topic):
    client.send(produce_request(topic, batch_of(b"quiet"), acks=0), 9, is_answered=False)
    assert produce(client, topic, batch_of(b"loud")).base_offset == 1
    assert values_in(client, topic) == [b"quiet", b"loud"]


def test_pipelined_batches_keep_their_order(client, topic):
    for number in range(200):
        client.send(produce_request(topic, batch_of(b"%d" % number)), 9)
    assert [result_of(client.receive()).base_offset for _ in range(200)] == list(range(200))


def test_each_partition_of_a_request_has_its_own_answer(client, topic):
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=(
            ProduceRequestTopic(
                name=topic,
                partition_data=tuple(
                    ProduceRequestPartition(index=index, records=batch_of(b"x"))
                    for index in (0, 7, 1)
                ),
            ),
            ProduceRequestTopic(
                name="nowhere",
                partition_data=(ProduceRequestPartition(index=0, records=batch_of(b"x")),),
            ),
        ),
    )
    answer = client.call(request, 9)
    codes = [[p.error_code for p in t.partition_responses] for t in answer.responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[0, unknown, 0], [unknown]]


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def of_format(batch: bytes, magic: int) -> bytes:
    return batch[:16] + bytes([magic]) + batch[17:]


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch_of(b"x")[:60], ErrorCode.INVALID_RECORD),
        (batch_of(b"x") * 2, ErrorCode.INVALID_RECORD),
        (of_format(batch_of(b"x"), 1), ErrorCode.INVALID_RECORD),
        (damaged(batch_of(b"x")), ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"x")[:-1], ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_is_no_sound_batch_is_refused_and_nothing_is_written(client, topic, batch, code):
    refused = produce(client, topic, batch)
    assert (refused.error_code, refused.base_offset) == (code, -1)
    assert refused.error_message
    assert values_in(client, topic) == []


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_of_another_number_is_refused(client, topic, acks):
    assert produce(client, topic, batch_of(b"x"), acks=acks).error_code == 21
    assert values_in(client, topic) == []


@pytest.mark.parametrize("partition", [-1, 2, 2**31 - 1])
def test_a_partition_that_is_not_there_is_unknown(client, topic, partition):
    assert produce(client, topic, batch_of(b"x"), partition=partition).error_code == 3


def test_a_batch_larger_than_the_topic_takes_is_refused(client):
    small = make_topic(client, max_message_bytes="1000")
    assert produce(client, small, batch_of(b"x" * 2000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(client, small, batch_of(b"x" * 500)).error_code == 0


def test_a_keyless_record_of_a_compacted_topic_is_named_in_the_answer(client):
    compacted = make_topic(client, cleanup_policy="compact")
    refused = produce(client, compacted, batch_of(b"a", b"b"))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [0, 1]
    assert produce(client, compacted, batch_of(b"a", key=b"k")).error_code == 0


@pytest.mark.parametrize("version", [8, 9])
def test_every_keyless_record_of_a_compacted_topic_is_named_in_the_answer(client, version):
    compacted = make_topic(client, cleanup_policy="compact")
    keyless = {2, 5, 7}
    records = [Record(b"v", key=None if n in keyless else b"k") for n in range(9)]
    refused = produce(client, compacted, build_batch(records, now_ms=NOW_MS), version)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    reason = "record {} has no key, which a compacted topic requires"
    assert [(e.batch_index, e.batch_index_error_message) for e in refused.record_errors] == [
        (index, reason.format(index)) for index in sorted(keyless)
    ]
    assert refused.error_message == f"{reason.format(2)}; nor have records 5, 7"
    assert values_in(client, compacted) == []


def test_of_very_many_keyless_records_the_first_thousand_are_named(client):
    compacted = make_topic(client, cleanup_policy="compact")
    refused = produce(client, compacted, batch_of(*[b"v"] * 3_000))
    assert [error.batch_index for error in refused.record_errors] == list(range(1_000))
    assert refused.error_message.endswith("; nor have records 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...")


def test_a_topic_can_date_records_itself(client):
    dated = make_topic(client, message_timestamp_type="LogAppendTime")
    answer = produce(client, dated, batch_of(b"a"))
    assert answer.log_append_time_ms > 1_700_000_000_000
    plain = make_topic(client)
    assert produce(client, plain, batch_of(b"a")).log_append_time_ms == -1


def test_zstd_is_refused_in_versions_whose_consumers_cannot_read_it(client, topic):
    packed = batch_of(b"x" * 100, codec=Codec.ZSTD)
    assert produce(client, topic, packed, 6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(client, topic, packed, 7).error_code == 0


def idempotent(*values, sequence, epoch=0, producer_id=4711):
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_that_comes_twice_is_stored_once_and_acknowledged_twice(client, topic):
    batch = idempotent(b"a", b"b", sequence=0)
    assert produce(client, topic, batch).base_offset == 0
    assert produce(client, topic, idempotent(b"c", sequence=2)).base_offset == 2
    again = produce(client, topic, batch)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert values_in(client, topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("partitions", [1, 2])
def test_other_records_with_the_same_sequence_are_refused(client, topic, acks, partitions):
    """One partition takes the fast path, two take the general one."""

    def send(*values):
        batch = idempotent(*values, sequence=0)
        parts = tuple(
            ProduceRequestPartition(index=index, records=batch) for index in range(partitions)
        )
        named = ProduceRequestTopic(name=topic, partition_data=parts)
        request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=(named,))
        return client.call(request, 9).responses[0].partition_responses

    assert [part.error_code for part in send(b"a")] == [0] * partitions
    refused = send(b"b")
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [part.error_code for part in refused] == [code] * partitions
    told = "producer 4711 sent sequence 0 again with other records, expected 1"
    assert {part.error_message for part in refused} == {told}
    assert [(part.error_code, part.base_offset) for part in send(b"a")] == [(0, 0)] * partitions
    for index in range(partitions):
        assert values_in(client, topic, partition=index) == [b"a"]


def test_a_gap_in_the_sequence_is_refused(client, topic):
    produce(client, topic, idempotent(b"a", sequence=0))
    refused = produce(client, topic, idempotent(b"c", sequence=2))
    assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert values_in(client, topic) == [b"a"]


def test_an_older_epoch_is_refused(client, topic):
    produce(client, topic, idempotent(b"a", sequence=0, epoch=1))
    refused = produce(client, topic, idempotent(b"b", sequence=0, epoch=0))
    assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_two_connections_do_not_disturb_each_other(broker, client, topic):
    with RawClient(broker.bootstrap) as other:
        for number in range(50):
            client.send(produce_request(topic, batch_of(b"a%d" % number)), 9)
            other.send(produce_request(topic, batch_of(b"b%d" % number)), 9)
        offsets = [result_of(c.receive()).base_offset for _ in range(50) for c in (client, other)]
    assert sorted(offsets) == list(range(100))
