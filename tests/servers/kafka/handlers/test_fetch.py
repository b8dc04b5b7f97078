"""Fetch, as clients see it: sizes, waits, and partitions that a session leaves out."""

from __future__ import annotations

import dataclasses
import time

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from millstream.records.batch import split
from millstream.records.iterate import read_all
from tests.servers.kafka.client import RawClient, batch_of, produce_request

from .test_produce import produce, topic_id_of


def part(index=0, offset=0, size_max=1_000_000, **fields):
    return FetchRequestPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=size_max, **fields
    )


def request_for(topic, *parts, wait_ms=0, size_min=0, **fields):
    topics = (FetchRequestTopic(topic=topic, partitions=parts),) if parts else ()
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=size_min, topics=topics, **fields)


def fetch(client, topic, *parts, version=11, **fields):
    answer = client.call(request_for(topic, *parts, **fields), version)
    return answer.responses[0].partitions[0]


def values(found):
    return [record.value for record in read_all(found.records)]


@pytest.mark.parametrize("version", range(4, 13))
def test_records_come_back_from_the_batch_that_holds_the_offset(client, topic, version):
    produce(client, topic, batch_of(b"a", b"b"))
    produce(client, topic, batch_of(b"c"))
    found = fetch(client, topic, part(offset=1), version=version)
    assert values(found) == [b"a", b"b", b"c"]
    assert (found.high_watermark, found.last_stable_offset) == (3, 3)


@pytest.mark.parametrize("version", range(13, 19))
def test_from_version_13_on_topics_are_named_by_id(client, topic, version):
    produce(client, topic, batch_of(b"a"))
    topic_id = topic_id_of(client, topic)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=(FetchRequestTopic(topic_id=topic_id, partitions=(part(),)),),
    )
    answer = client.call(request, version)
    assert answer.responses[0].topic_id == topic_id
    assert values(answer.responses[0].partitions[0]) == [b"a"]


@pytest.mark.parametrize("version", range(13, 19))
def test_the_id_of_a_deleted_topic_gets_no_record_of_another_of_its_name(
    broker, client, topic, version
):
    produce(client, topic, batch_of(b"old"))
    old = FetchRequestTopic(topic_id=topic_id_of(client, topic), partitions=(part(),))
    session = client.call(
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=(old,), session_epoch=0), version
    ).session_id
    topics = broker.server.broker.topics
    broker.run(topics.delete(topic))
    broker.run(topics.create(topic, partitions=2))
    produce(client, topic, batch_of(b"new"))
    again = request_for(topic, session_id=session, session_epoch=1)
    for request in (FetchRequest(max_wait_ms=0, min_bytes=0, topics=(old,)), again):
        (found,) = client.call(request, version).responses[0].partitions
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert not found.records


def test_the_first_batch_comes_though_it_is_larger_than_every_limit(client, topic):
    produce(client, topic, batch_of(b"x" * 5000))
    produce(client, topic, batch_of(b"y"))
    found = fetch(client, topic, part(size_max=10), max_bytes=10)
    assert values(found) == [b"x" * 5000]


def test_no_more_comes_than_the_limits_allow(client, topic):
    for _ in range(10):
        produce(client, topic, batch_of(b"x" * 1000))
    assert len(values(fetch(client, topic, part(size_max=3500)))) == 3
    assert len(values(fetch(client, topic, part(), max_bytes=5500))) == 5


def test_what_one_partition_took_is_not_there_for_the_next(client, topic):
    for index in (0, 1):
        produce(client, topic, batch_of(b"x" * 3000), partition=index)
    answer = client.call(request_for(topic, part(0), part(1), max_bytes=4000), 11)
    sizes = [len(found.records) for found in answer.responses[0].partitions]
    assert sizes[0] > 3000
    assert sizes[1] == 0


@pytest.mark.parametrize("offset", [-1, 2, 2**63 - 1])
def test_an_offset_outside_the_log_is_out_of_range(client, topic, offset):
    produce(client, topic, batch_of(b"a"))
    found = fetch(client, topic, part(offset=offset))
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert found.log_start_offset == 0


def test_an_unknown_partition_has_an_error_of_its_own(client, topic):
    answer = client.call(request_for(topic, part(0), part(5), part(-1)), 11)
    codes = [found.error_code for found in answer.responses[0].partitions]
    assert codes == [0, 3, 3]


def test_a_newer_leader_than_there_is_is_unknown(client, topic):
    produce(client, topic, batch_of(b"a"))
    assert fetch(client, topic, part(current_leader_epoch=0)).error_code == 0
    found = fetch(client, topic, part(current_leader_epoch=7))
    assert found.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_fetch_at_the_end_waits_until_something_is_produced(broker, client, topic):
    produce(client, topic, batch_of(b"a"))
    with RawClient(broker.bootstrap) as reader:
        reader.send(request_for(topic, part(offset=1), wait_ms=20_000, size_min=1), 11)
        produce(client, topic, batch_of(b"b"))
        assert values(reader.receive().responses[0].partitions[0]) == [b"b"]


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(broker, client, topic):
    produce(client, topic, batch_of(b"x" * 100))
    with RawClient(broker.bootstrap) as reader:
        reader.send(request_for(topic, part(0), part(1), wait_ms=20_000, size_min=3000), 11)
        produce(client, topic, batch_of(b"y" * 1000), partition=1)
        produce(client, topic, batch_of(b"z" * 2000), partition=0)
        first, second = reader.receive().responses[0].partitions
    assert values(first) == [b"x" * 100, b"z" * 2000]
    assert values(second) == [b"y" * 1000]


def test_a_fetch_does_not_wait_longer_than_it_asks_for(client, topic):
    produce(client, topic, batch_of(b"a"))
    started = time.monotonic()
    assert values(fetch(client, topic, part(offset=1), wait_ms=200, size_min=1)) == []
    assert time.monotonic() - started >= 0.15


def test_an_error_is_told_at_once_though_there_is_nothing_to_read(client, topic):
    answer = client.call(request_for(topic, part(9), wait_ms=60_000, size_min=1), 11)
    assert answer.responses[0].partitions[0].error_code == 3


def test_requests_behind_a_waiting_fetch_take_effect_and_are_answered_after_it(client, topic):
    produce(client, topic, batch_of(b"a"))
    client.send(request_for(topic, part(offset=1), wait_ms=20_000, size_min=1), 11)
    client.send(produce_request(topic, batch_of(b"b")), 9)
    assert values(client.receive().responses[0].partitions[0]) == [b"b"]
    assert client.receive().responses[0].partition_responses[0].base_offset == 1


def test_a_follower_is_refused_as_there_are_none(client, topic):
    answer = client.call(request_for(topic, part(), replica_id=1), 11)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.responses == ()


@pytest.mark.parametrize("replica_id", [-1, -2])
@pytest.mark.parametrize("version", [11, 15, 18])
def test_a_tool_that_verifies_replicas_reads_as_a_consumer(client, topic, version, replica_id):
    produce(client, topic, batch_of(b"a"))
    fields = {"replica_id": replica_id}
    if version >= 15:
        fields = {"replica_state": FetchRequestReplicaState(replica_id=replica_id)}
    request = request_for(topic, part(), **fields)
    if version >= 13:
        [named] = request.topics
        named = dataclasses.replace(named, topic="", topic_id=topic_id_of(client, topic))
        request = dataclasses.replace(request, topics=(named,))
    answer = client.call(request, version)
    assert answer.error_code == 0
    assert values(answer.responses[0].partitions[0]) == [b"a"]


# Sessions.


def test_a_session_answers_only_what_is_new(client, topic):
    produce(client, topic, batch_of(b"a"))
    opening = request_for(topic, part(0), part(1), session_epoch=0)
    first = client.call(opening, 11)
    assert first.session_id > 0
    assert len(first.responses[0].partitions) == 2
    go_on = request_for(topic, part(0, offset=1), session_id=first.session_id, session_epoch=1)
    assert client.call(go_on, 11).responses == ()
    produce(client, topic, batch_of(b"b"), partition=1)
    again = request_for(topic, session_id=first.session_id, session_epoch=2)
    (found,) = client.call(again, 11).responses[0].partitions
    assert found.partition_index == 1
    assert values(found) == [b"b"]


def test_a_session_forgets_what_it_is_told_to(client, topic):
    first = client.call(request_for(topic, part(0), part(1), session_epoch=0), 11)
    produce(client, topic, batch_of(b"a"), partition=0)
    forgotten = FetchRequestForgottenTopic(topic=topic, partitions=(0,))
    request = request_for(
        topic,
        session_id=first.session_id,
        session_epoch=1,
        forgotten_topics_data=(forgotten,),
    )
    assert client.call(request, 11).responses == ()


def test_a_session_goes_on_only_from_where_it_is(client, topic):
    session = client.call(request_for(topic, part(0), session_epoch=0), 11).session_id
    wrong = request_for(topic, session_id=session, session_epoch=7)
    assert client.call(wrong, 11).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = request_for(topic, session_id=session ^ 1, session_epoch=1)
    assert client.call(unknown, 11).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_final_epoch_ends_a_session(client, topic):
    session = client.call(request_for(topic, part(0), session_epoch=0), 11).session_id
    assert client.call(request_for(topic, session_id=session, session_epoch=-1), 11).session_id == 0
    go_on = request_for(topic, session_id=session, session_epoch=1)
    assert client.call(go_on, 11).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_who_had_records_in_a_session_goes_last_next_time(client, topic):
    """Else the first partition of a busy topic would starve the others."""
    for index in (0, 1):
        for _ in range(3):
            produce(client, topic, batch_of(b"x" * 1000), partition=index)
    opening = request_for(topic, part(0), part(1), session_epoch=0, max_bytes=1200)
    first = client.call(opening, 11)
    assert [len(p.records) > 0 for p in first.responses[0].partitions] == [True, False]
    go_on = request_for(
        topic,
        part(0, offset=1),
        session_id=first.session_id,
        session_epoch=1,
        max_bytes=1200,
    )
    (found,) = client.call(go_on, 11).responses[0].partitions
    assert found.partition_index == 1


def test_batches_come_as_they_lie(client, topic):
    for number in range(5):
        produce(client, topic, batch_of(b"%d" % number, b"x"))
    found = fetch(client, topic, part(offset=4))
    assert [header.base_offset for header, _ in split(found.records)] == [4, 6, 8]


def test_what_was_acknowledged_early_counts_for_whoever_asks_where_the_partition_ends(
    client, topic
):
    for number in range(50):
        assert produce(client, topic, batch_of(b"x"), acks=1).base_offset == number
        asked = ListOffsetsRequestPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, topics=(ListOffsetsRequestTopic(name=topic, partitions=(asked,)),)
        )
        assert client.call(request).topics[0].partitions[0].offset == number + 1


def test_an_offset_that_a_producer_knows_already_is_not_out_of_range(client, topic):
    for number in range(50):
        offset = produce(client, topic, batch_of(b"%d" % number), acks=1).base_offset
        assert fetch(client, topic, part(offset=offset + 1)).error_code == 0
