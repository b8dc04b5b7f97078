"""All operations of both HTTP clients, against a real node."""

from __future__ import annotations

import pytest

import millstream
from millstream.errors import (
    InvalidName,
    InvalidPartitions,
    InvalidRecord,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopic,
)
from millstream.records.murmur2 import murmur2
from tests.servers.http.calls import ask

NewRecord = millstream.NewRecord


def values(items):
    return [item.value for item in items]


# Topics.


def test_a_topic_is_made_with_what_it_is_set_to(client, name):
    made = client.create_topic(
        name,
        partitions=3,
        durability="memory",
        retention_ms=60_000,
        configs={"max.message.bytes": 5_000},
    )
    state = made.describe()
    assert (state.name, state.partition_count, state.durability) == (name, 3, "memory")
    assert state.configs["retention.ms"] == "60000"
    assert state.configs["max.message.bytes"] == "5000"
    assert [one.head for one in state.partitions] == [0, 0, 0]


def test_making_a_topic_twice_changes_what_is_named_and_leaves_the_rest(client, name):
    client.create_topic(name, partitions=2, durability="memory", retention_ms=1_000)
    client.create_topic(name, partitions=4, configs={"retention.ms": None})
    state = client.topic(name).describe()
    assert (state.partition_count, state.durability) == (4, "memory")
    assert "retention.ms" not in state.configs


def test_a_topic_does_not_shrink(client, name):
    client.create_topic(name, partitions=2)
    with pytest.raises(InvalidPartitions, match="can only increase"):
        client.create_topic(name, partitions=1)


def test_all_topics_are_listed_by_name(client, name):
    for suffix in ("b", "a", "c"):
        client.create_topic(f"{name}-{suffix}")
    found = [one.name for one in client.topics() if one.name.startswith(f"{name}-")]
    assert found == [f"{name}-a", f"{name}-b", f"{name}-c"]


def test_a_deleted_topic_is_unknown(client, topic):
    client.topic(topic).delete()
    with pytest.raises(UnknownTopic, match=topic):
        client.topic(topic).describe()
    with pytest.raises(UnknownTopic):
        client.topic(topic).delete()


@pytest.mark.parametrize("wrong", ["", ".", "..", "a\ud800", "a/b", "orders/records"])
def test_a_name_that_would_be_another_path_is_not_sent(client, wrong):
    with pytest.raises(InvalidName):
        client.topic(wrong).describe()


@pytest.mark.parametrize("strange", ["a b", "ü", "a\r\nb", "a?b", "%2e%2e", "a#b"])
def test_a_strange_name_stays_one_name(client, strange):
    with pytest.raises((InvalidName, UnknownTopic)):
        client.topic(strange).describe()


# Appending and reading.


VALUES = [
    {"n": 1, "text": "ü", "list": [1, 2.5, None, True]},
    [],
    "text",
    "",
    7,
    -1.5,
    True,
    False,
    None,
    b"\x00\xff",
    b"",
    b"plain",
    {"base64": "not bytes"},
    {"base64": "AAE=", "more": 1},
    "null",
    2**70,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_went(client, topic, value):
    client.append(topic, value)
    [record] = client.read(topic)
    assert record.value == value
    assert type(record.value) is type(value)


def test_bytes_that_are_json_read_as_json_and_raw_has_them_as_they_are(client, topic):
    client.append_many(topic, [b'{"n":1}', b"12", b"null"])
    records = list(client.read(topic))
    assert values(records) == [{"n": 1}, 12, b"null"]
    assert [record.raw for record in records] == [b'{"n":1}', b"12", b"null"]


def test_what_goes_with_a_value_comes_back(client, topic):
    headers = {"a": "b", "bytes": b"\xff", "none": None, "several": ["x", b"\xfe", None]}
    placed = client.append(topic, 1, key="k", headers=headers, timestamp_ms=1_700_000_000_000)
    [record] = client.read(topic)
    assert (record.topic, record.partition, record.offset) == (topic, 0, placed.offset)
    assert record.key == "k"
    assert record.headers == headers
    assert record.timestamp_ms == 1_700_000_000_000


@pytest.mark.parametrize(("key", "found"), [("k", "k"), (b"k", "k"), (b"\xff", b"\xff"), ("", "")])
def test_a_key_that_is_text_comes_as_text(client, topic, key, found):
    client.append(topic, 1, key=key)
    [record] = client.read(topic)
    assert record.key == found


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"value": float("nan")}, "value cannot be encoded as JSON"),
        ({"value": {1, 2}}, "value cannot be encoded as JSON"),
        ({"value": "\ud800"}, "value cannot be encoded as JSON"),
        ({"value": 1, "key": 7}, "key must be str or bytes, got int"),
        ({"value": 1, "key": "\ud800"}, "unpaired surrogate"),
        ({"value": 1, "headers": {"a": 1}}, "header must be str or bytes, got int"),
        ({"value": 1, "headers": {"a": "\ud800"}}, "headers cannot be encoded"),
        ({"value": 1, "headers": ["a"]}, "headers must be a mapping, got list"),
        ({"value": 1, "timestamp_ms": -1}, "timestamp_ms must be between 0 and .*, got -1"),
    ],
    ids=repr,
)
def test_what_cannot_be_a_record_is_refused_before_it_is_sent(client, topic, wrong, says):
    with pytest.raises(InvalidRecord, match=says):
        client.append(**{"topic": topic} | wrong)
    assert list(client.read(topic)) == []


def test_records_go_where_their_keys_belong_as_the_node_has_it(client, name):
    client.create_topic(name, partitions=5)
    placed = [client.append(name, n, key=f"key-{n}") for n in range(20)]
    assert [one.partition for one in placed] == [
        (murmur2(f"key-{n}".encode()) & 0x7FFFFFFF) % 5 for n in range(20)
    ]
    found = {record.key: record.partition for record in client.read(name)}
    assert found == {f"key-{n}": one.partition for n, one in enumerate(placed)}


def test_records_without_a_key_take_partitions_in_turn(client, name):
    client.create_topic(name, partitions=3)
    assert {client.append(name, n).partition for n in range(3)} == {0, 1, 2}


def test_many_records_get_their_places_in_the_order_in_which_they_came(client, name):
    client.create_topic(name, partitions=3)
    sent = [NewRecord(n, key=str(n)) for n in range(100)] + [NewRecord("there", partition=1)]
    placed = client.append_many(name, sent)
    found = {(one.partition, one.offset): one.value for one in client.read(name)}
    assert [found[one.partition, one.offset] for one in placed] == [*range(100), "there"]
    assert placed[-1].partition == 1


def test_a_partition_that_is_not_there_is_refused(client, topic):
    with pytest.raises(UnknownTopic, match="partition must be between 0 and 0, got 7"):
        client.append(topic, 1, partition=7)


@pytest.mark.parametrize("count", [0, 10_001])
def test_no_records_and_too_many_are_refused(client, topic, count):
    with pytest.raises(InvalidRequest, match=f"must be between 1 and 10000, got {count}"):
        client.append_many(topic, [1] * count)


def test_a_topic_that_is_not_there_is_made_by_appending_where_the_node_does_that(client, name):
    assert client.append(name, "first", key="k").offset == 0
    assert client.append(name, "second", key="k").offset == 1
    assert values(client.read(name)) == ["first", "second"]


def test_a_topic_that_was_made_anew_is_appended_to_from_its_start(client, topic):
    client.append_many(topic, [1, 2, 3])
    client.topic(topic).delete()
    client.create_topic(topic)
    assert client.append(topic, "new").offset == 0
    assert client.append(topic, "newer").offset == 1
    assert values(client.read(topic)) == ["new", "newer"]


def test_a_topic_that_grew_is_known_to_have_grown(client, topic):
    client.append(topic, 1)
    client.create_topic(topic, partitions=2)
    assert {client.append(topic, n).partition for n in range(2)} == {0, 1}


def test_reading_goes_page_by_page_and_comes_to_its_end(client, topic):
    client.append_many(topic, list(range(25)))
    assert values(client.read(topic, limit=10)) == list(range(25))
    assert values(client.read(topic, from_=20)) == list(range(20, 25))
    assert values(client.read(topic, bytes_max=1)) == list(range(25))
    assert values(client.read(topic, from_=25)) == []


def test_a_reading_ends_at_the_head_that_it_found_though_others_append(client, topic):
    client.append_many(topic, list(range(20)))
    found = []
    for record in client.read(topic, limit=10):
        found.append(record.value)
        client.append(topic, "more")
    assert found[:20] == list(range(20))
    assert len(found) <= 30


def test_a_reading_that_was_left_goes_on_from_its_cursor(client, name):
    client.create_topic(name, partitions=3)
    client.append_many(name, [NewRecord(n, key=str(n)) for n in range(50)])
    whole = values(client.read(name))
    reader = client.read(name, limit=7)
    first = [next(reader).value for _ in range(23)]
    rest = values(client.read(name, from_=reader.cursor))
    assert first + rest == whole
    assert sorted(whole) == list(range(50))


def test_an_offset_of_several_partitions_is_refused(client, name):
    client.create_topic(name, partitions=2)
    with pytest.raises(InvalidRequest, match="has 2 partitions"):
        list(client.read(name, from_=1))


@pytest.mark.parametrize("wrong", ["nonsense", "a:b:c", -1])
def test_what_is_no_cursor_is_refused(client, topic, wrong):
    with pytest.raises(InvalidRequest, match="from_"):
        list(client.read(topic, from_=wrong))


def test_an_offset_past_the_head_says_what_there_is(client, topic):
    client.append_many(topic, [1, 2])
    with pytest.raises(OffsetOutOfRange) as caught:
        list(client.read(topic, from_=7))
    assert (caught.value.offset, caught.value.start, caught.value.end) == (7, 0, 2)


def test_what_retention_took_is_told_as_a_gap(broker, client, name):
    client.create_topic(name, configs={"segment.bytes": 1_024, "retention.bytes": 1_024})
    for n in range(30):
        client.append(name, "x" * 200, key=str(n))
    broker.run(broker.server.broker.store.maintenance.run_once(is_forced=True))
    [gap, *records] = client.read(name)
    assert (gap.topic, gap.partition, gap.from_offset, gap.reason) == (name, 0, 0, "bytes")
    assert [record.offset for record in records] == list(range(gap.to_offset + 1, 30))


def test_deleted_records_are_gone_and_no_gap(client, topic):
    client.append_many(topic, [NewRecord(n, key=f"k{n % 2}") for n in range(6)])
    assert client.delete_records(topic, key="k0") == 3
    assert values(client.read(topic)) == [1, 3, 5]
    assert client.delete_records(topic, key_prefix=b"k") == 3
    assert list(client.read(topic)) == []


def test_a_reader_is_spared_what_a_node_wrote(client, broker, topic):
    body = b'{"records":[{"value":1,"node":"a"},{"value":2,"node":"b"},{"value":3}]}'
    assert ask(broker.url, "POST", f"/v1/topics/{topic}/records", body).status == 201
    assert [(one.value, one.node) for one in client.read(topic)] == [(1, "a"), (2, "b"), (3, None)]
    assert values(client.read(topic, exclude_node="a")) == [2, 3]


def test_a_closed_client_says_so(connect, broker, topic):
    client = connect(broker.url)
    client.append(topic, 1)
    if hasattr(client, "wait"):
        client.wait(client._thing.close)
    else:
        client.close()
    with pytest.raises(InvalidRequest, match="the client was closed"):
        client.append(topic, 2)
