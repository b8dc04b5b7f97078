"""Records over HTTP: appended records are read again by all clients, in order, with their gaps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.config.schema import BrokerConfig, HttpConfig
from millstream.records.compression import Codec
from millstream.records.record import Record
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def topic(running: RunningBroker) -> HttpTopic:
    return HttpTopic(running)


@pytest.fixture
def wide(running: RunningBroker) -> HttpTopic:
    return HttpTopic(running, partitions=3)


# Appending.


def test_an_append_says_where_its_records_went_and_what_that_cost(topic: HttpTopic) -> None:
    topic.append_values("a")
    answer = topic.post({"key": "k1", "value": {"n": 1}, "headers": {"a": "b"}}, {"value": 2})
    assert answer.status == 201
    found = answer.json
    cost = found.pop("cost")
    assert found == {"offsets": [1, 2], "partition": 0, "head": 3}
    assert cost.keys() == {"commit_ms", "fsync_ms", "throttle_ms"}
    assert cost["commit_ms"] >= cost["fsync_ms"] > 0
    words = answer.headers["server-timing"]
    assert [word.partition(";")[0].strip() for word in words.split(",")] == [
        "commit",
        "fsync",
        "throttle",
        "total",
    ]


def test_a_topic_that_does_not_wait_for_the_disk_costs_none(running: RunningBroker) -> None:
    topic = HttpTopic(running, durability="memory")
    assert topic.append({"value": 1})["cost"]["fsync_ms"] == 0


def test_what_is_appended_is_read_as_it_was_written(topic: HttpTopic) -> None:
    sent = [
        {"key": "k1", "value": {"n": 1, "u": "äöü\u2028"}, "headers": {"a": "b", "c": None}},
        {"key": None, "value": "text"},
        {"key": "", "value": ""},
        {"key": {"base64": "/wA="}, "value": {"base64": "/wA="}},
        {"key": "gone", "value": None},
        {"value": [1, 2.5, -0.0, 1e300, True, None, {}]},
        {"value": 0, "headers": {"h": ["1", None, {"base64": "/w=="}], "": ""}},
        {"value": {"base64": 7}},
        {"value": {"base64": "QQ==", "more": 1}},
        {"value": 12345678901234567890, "timestamp": 1_700_000_000_123, "node": "n1"},
    ]
    topic.append(*sent)
    found = topic.read()
    assert (found["next"], found["head"], found["gaps"]) == (10, 10, [])
    for offset, (record, one) in enumerate(zip(sent, found["records"], strict=True)):
        assert one["offset"] == offset
        assert one["key"] == record.get("key")
        assert one["value"] == record["value"]
        assert one["headers"] == record.get("headers", {})
        assert one.get("node") == record.get("node")
    assert found["records"][9]["timestamp"] == 1_700_000_000_123
    assert abs(found["records"][0]["timestamp"] - topic.broker.clock.wall_ms()) < 600_000


def test_a_kafka_consumer_reads_the_text_of_the_json_and_the_bytes(
    running: RunningBroker, topic: HttpTopic
) -> None:
    body = (
        b'{"records": [{"key": "k", "value": { "n" :1.50}, "headers": {"h": "x"}}, {"value": %s}]}'
    )
    assert topic.ask("POST", "/records", body % b'{"base64": "/wA="}').status == 201
    topic.append({"value": None, "node": "n1", "headers": {"a": ["1", "2"]}})
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "g"})
    try:
        consumer.assign([TopicPartition(topic.name, 0, 0)])
        got = consumer.consume(3, timeout=60)
    finally:
        consumer.close()
    assert [one.value() for one in got] == [b'{ "n" :1.50}', b"\xff\0", None]
    assert [one.key() for one in got] == [b"k", None, None]
    assert got[0].headers() == [("h", b"x")]
    assert got[2].headers() == [("a", b"1"), ("a", b"2"), ("millstream-node", b"n1")]


def test_what_kafka_wrote_is_read_whatever_it_is(topic: HttpTopic) -> None:
    node = "millstream-node"
    topic.append_batch(
        Record(b"\xff", b"\xfe"),
        Record(b"null"),
        Record(b'{"base64": "x"}'),
        Record(b'{\n "a":\r\n 1}'),
        Record(b'{"a": 1} x'),
        Record(b"[" * 129 + b"]" * 129),
        Record(b"[" * 128 + b"]" * 128),
        Record(b"1e999"),
        Record(b""),
        Record(b"7", headers=((node, b"\xff"), (node, b"n2"), (node, b"n3"))),
        Record(b"8", headers=((node, None),)),
    )
    found = topic.read()["records"]
    packed = [{"base64": data} for data in ("/w==", "bnVsbA==", "eyJiYXNlNjQiOiAieCJ9")]
    assert [one["value"] for one in found[:4]] == [*packed, {"a": 1}]
    assert found[0]["key"] == {"base64": "/g=="}
    assert [list(one["value"]) == ["base64"] for one in found[4:9]] == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert found[9]["headers"] == {node: [{"base64": "/w=="}, "n3"]}
    assert (found[9]["node"], "node" in found[10]) == ("n2", False)
    assert found[10]["headers"] == {node: None}


def test_a_topic_is_made_by_its_first_append_unless_the_node_does_not(
    running: RunningBroker, tmp_path: Any
) -> None:
    body = b'{"records": [{"value": 1}]}'
    assert ask(running.url, "POST", "/v1/topics/made-by-append/records", body).status == 201
    assert ask(running.url, "POST", "/v1/topics/no%20name/records", body).code == "invalid_name"
    with running_broker(tmp_path, broker=BrokerConfig(auto_create_topics=False)) as strict:
        answer = ask(strict.url, "POST", "/v1/topics/a/records", body)
        assert (answer.status, answer.code) == (404, "unknown_topic")


def test_records_go_where_they_say_or_where_their_key_belongs(wide: HttpTopic) -> None:
    found = wide.append(
        {"value": 0, "partition": 2}, {"value": 1}, {"value": 2, "partition": 0}, partition=1
    )
    assert (found["partition"], found["head"]) == (None, None)
    assert (found["partitions"], found["offsets"]) == ([2, 1, 0], [0, 0, 0])
    keyed = wide.append(*({"key": f"k{n}", "value": n} for n in range(20)))
    again = wide.append(*({"key": f"k{n}", "value": n} for n in range(20)))
    assert keyed["partitions"] == again["partitions"]
    assert set(keyed["partitions"]) == {0, 1, 2}
    for partition in range(3):
        offsets = [one["offset"] for one in wide.read(partition=partition)["records"]]
        assert offsets == list(range(len(offsets)))


def test_keys_go_where_kafkas_own_clients_put_them(running: RunningBroker, wide: HttpTopic) -> None:
    placed: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": running.bootstrap, "partitioner": "murmur2_random"})
    for n in range(30):
        producer.produce(
            wide.name,
            key=f"k{n}",
            value="1",
            on_delivery=lambda error, one: placed.__setitem__(one.key(), one.partition()),
        )
    producer.flush()
    found = wide.append(*({"key": f"k{n}", "value": n} for n in range(30)))
    assert found["partitions"] == [placed[b"k%d" % n] for n in range(30)]


def test_records_without_a_key_share_a_partition_and_the_next_call_takes_another(
    wide: HttpTopic,
) -> None:
    used = [wide.append({"value": 1}, {"value": 2})["partition"] for _ in range(3)]
    assert sorted(used) == [0, 1, 2]


REFUSED = {
    "no records": ({"records": []}, "malformed_request", "a list of 1 to 10000 items"),
    "an unknown field deep inside": (
        {"records": [{"value": 1}, {"vlaue": 2}]},
        "malformed_request",
        "'vlaue' in records[1], allowed: 'value', 'key'",
    ),
    "a partition in words": (
        {"records": [{"value": 1}, {"partition": "1"}]},
        "malformed_request",
        "records[1].partition must be an integer",
    ),
    "a key that is a number": (
        {"records": [{"key": 7}]},
        "malformed_request",
        "records[0].key must",
    ),
    "no base64": ({"records": [{"value": {"base64": "*"}}]}, "malformed_request", "RFC 4648"),
    "an empty list of headers": (
        {"records": [{"headers": {"a": []}}]},
        "malformed_request",
        "records[0].headers.a must be a list of at least 1 items",
    ),
    "the header that says the node": (
        {"records": [{"headers": {"millstream-node": "n1"}}]},
        "malformed_request",
        "use the field node",
    ),
    "an empty node": ({"records": [{"value": 1}], "node": ""}, "malformed_request", "node must"),
    "a time before 1970": ({"records": [{"timestamp": -1}]}, "malformed_request", "between 0"),
    "a time far ahead": (
        {"records": [{"value": 1, "timestamp": 2**52}]},
        "invalid_timestamp",
        "not be more than 3600000 ms in the future",
    ),
    "too deep": (
        {"records": [{"value": json.loads("[" * 129 + "]" * 129)}]},
        "malformed_request",
        "deeper than 128",
    ),
}


@pytest.mark.parametrize(("body", "code", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_said_and_nothing_is_appended(
    topic: HttpTopic, body: Any, code: str, said: str
) -> None:
    answer = topic.ask("POST", "/records", body)
    assert (answer.status, answer.code) == (400, code), answer.body
    assert said in answer.message
    assert topic.read()["head"] == 0


def test_too_many_records_and_too_large_ones_are_refused(topic: HttpTopic) -> None:
    many = b'{"records":[' + b",".join([b"{}"] * 10_001) + b"]}"
    assert topic.ask("POST", "/records", many).status == 400
    assert topic.ask("POST", "/records", many.replace(b"{},", b"", 1)).status == 201
    answer = topic.post({"value": "x" * 1_100_000})
    assert (answer.status, answer.code) == (413, "batch_too_large")
    assert "limit is 1048588" in answer.message


def test_a_body_may_have_as_many_bytes_as_the_node_is_set_to(tmp_path: Any) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(append_size_max=2048)) as running:
        topic = HttpTopic(running)
        fits = b'{"records":[{"value":1}]}'
        assert topic.ask("POST", "/records", fits.ljust(2048)).status == 201
        answer = topic.ask("POST", "/records", fits.ljust(2049))
        assert (answer.status, answer.code) == (413, "request_entity_too_large")
        assert "at most 2048 bytes, got 2049" in answer.message


def test_a_compacted_topic_wants_keys(running: RunningBroker) -> None:
    topic = HttpTopic(running, cleanup="compact")
    answer = topic.post({"key": "a", "value": 1}, {"value": 2})
    assert (answer.status, answer.code) == (400, "invalid_record")
    assert "record 1 has no key" in answer.message
    assert topic.read()["head"] == 0


def test_every_record_without_a_key_is_named_by_its_position_in_the_request(
    running: RunningBroker,
) -> None:
    topic = HttpTopic(running, partitions=3, cleanup="compact")
    records = [{"key": f"k{n}", "value": n} for n in range(9)]
    for n in (2, 5, 7):
        records[n] = {"value": n, "partition": n % 3}
    answer = topic.post(*records)
    assert (answer.status, answer.code) == (400, "invalid_record")
    assert "record 2 has no key" in answer.message
    assert "nor have records 5, 7" in answer.message
    assert answer.json["error"]["detail"] == {"records": [2, 5, 7]}


def test_a_topic_that_dates_records_itself_does_so(running: RunningBroker) -> None:
    topic = HttpTopic(running, configs={"message.timestamp.type": "LogAppendTime"})
    topic.append({"value": 1, "timestamp": 5})
    assert topic.read()["records"][0]["timestamp"] > 1_600_000_000_000


def test_a_full_topic_refuses_and_says_so(running: RunningBroker) -> None:
    topic = HttpTopic(running, retention_records=2, discard="reject")
    topic.append_values(1, 2)
    answer = topic.post({"value": 3})
    assert (answer.status, answer.code) == (409, "log_full")


def test_what_goes_to_several_partitions_is_all_or_none_in_each_alone(
    running: RunningBroker,
) -> None:
    topic = HttpTopic(running, partitions=2, retention_records=2, discard="reject")
    topic.append_values(1, partition=0)
    both = [{"value": n, "partition": n % 2} for n in range(4)]
    assert topic.post(*both).code == "log_full"
    assert [topic.values(partition=n) for n in range(2)] == [[1], [1, 3]]


# Reading.


def test_limits_hold_and_next_goes_on_where_the_answer_ended(topic: HttpTopic) -> None:
    topic.append_values(*range(10))
    assert topic.values(limit=3) == [0, 1, 2]
    found = topic.read(from_=3, limit=1)
    assert ([one["offset"] for one in found["records"]], found["next"]) == ([3], 4)
    assert topic.follow(limit=4)[0] == [(n, n) for n in range(10)]
    at_head = topic.read(from_=10)
    assert (at_head["records"], at_head["next"], at_head["head"]) == ([], 10, 10)


def test_bytes_are_limited_save_for_one_record(topic: HttpTopic) -> None:
    topic.append_values("x" * 100, "y" * 100, "z" * 1000)
    assert len(topic.values(max_bytes=203)) == 1
    assert len(topic.values(max_bytes=204)) == 2
    assert topic.values(from_=2, max_bytes=1) == ["z" * 1000]
    assert [offset for offset, _ in topic.follow(max_bytes=1)[0]] == [0, 1, 2]


def test_headers_count_as_bytes_too(topic: HttpTopic) -> None:
    topic.append(*({"value": 1, "headers": {"h": "x" * 1000}} for _ in range(5)))
    assert len(topic.values(max_bytes=2500)) == 2


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_a_cursor_may_stand_in_the_middle_of_a_batch(topic: HttpTopic, codec: Codec) -> None:
    topic.append_batch(*(Record(b"%d" % n) for n in range(7)), codec=codec)
    topic.append_batch(*(Record(b"%d" % n) for n in range(7, 9)), codec=codec)
    for cursor in range(10):
        assert topic.values(from_=cursor) == list(range(cursor, 9))
        assert topic.values(from_=cursor, limit=2) == list(range(cursor, 9))[:2]


def test_a_cursor_past_the_head_is_out_of_range(topic: HttpTopic) -> None:
    topic.append_values(1)
    answer = topic.get(from_=2)
    assert (answer.status, answer.code) == (416, "offset_out_of_range")
    assert answer.json["error"]["detail"] == {"offset": 2, "start": 0, "end": 1}
    assert topic.get(from_=2**63 - 1, wait_ms=1000).status == 416


WRONG_QUERIES = [
    "from=-1",
    "from=9223372036854775808",
    "from=x",
    "from=",
    "from=1.5",
    "from=%31%00",
    "limit=0",
    "limit=10001",
    "max_bytes=0",
    "max_bytes=16777217",
    "wait_ms=60001",
    "wait_ms=-1",
    "exclude_node=",
    "partition=-1",
    "partition=2147483648",
    "from=1&from=1",
    "form=1",
]


@pytest.mark.parametrize("query", WRONG_QUERIES)
def test_a_query_that_says_nothing_clear_is_refused(topic: HttpTopic, query: str) -> None:
    answer = ask(topic.running.url, "GET", f"{topic.path}/records?{query}")
    assert (answer.status, answer.code) == (400, "malformed_request")
    assert query.partition("=")[0] in answer.message


def test_several_partitions_are_read_one_at_a_time(wide: HttpTopic) -> None:
    wide.append({"value": 1, "partition": 2})
    answer = wide.get()
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "partition must be set" in answer.message
    assert wide.values(partition=2) == [1]
    assert wide.get(partition=3).code == "unknown_topic"


def test_what_a_node_wrote_itself_is_spared_it_and_its_cursor_moves(topic: HttpTopic) -> None:
    topic.append({"value": 1}, {"value": 2, "node": "n2"}, {"value": 3}, node="n1")
    topic.append({"value": 4})
    assert topic.values(exclude_node="n1") == [2, 4]
    assert topic.values(exclude_node="n2") == [1, 3, 4]
    assert topic.values(exclude_node="n3") == [1, 2, 3, 4]
    found = topic.read(exclude_node="n1", limit=1)
    assert (found["records"], found["next"]) == ([], 1)


# What nobody is to see.


def test_transactions_show_what_was_committed_and_only_then(
    running: RunningBroker, topic: HttpTopic
) -> None:
    producer = Producer(
        {"bootstrap.servers": running.bootstrap, "transactional.id": topic.name, "linger.ms": 0}
    )
    producer.init_transactions(60)

    def transact(value: str, *, is_commit: bool | None) -> None:
        producer.begin_transaction()
        producer.produce(topic.name, value=value)
        producer.flush()
        if is_commit:
            producer.commit_transaction(60)
        elif is_commit is not None:
            producer.abort_transaction(60)

    topic.append_values("before")
    transact('"kept"', is_commit=True)
    transact('"dropped"', is_commit=False)
    topic.append_values("between")
    transact('"open"', is_commit=None)
    topic.append_values("after")
    found = topic.read()
    assert [one["value"] for one in found["records"]] == ["before", "kept", "between"]
    assert found["head"] == 8
    assert found["next"] == 6  # Where the open transaction begins.
    assert topic.values(from_=3) == ["between"]  # From the middle of what was aborted on.
    producer.commit_transaction(60)
    assert topic.values(from_=found["next"]) == ["open", "after"]
    records, gaps = topic.follow(limit=1)
    assert [value for _, value in records] == ["before", "kept", "between", "open", "after"]
    assert gaps == []


def test_deleted_keys_and_ranges_are_passed_over_in_silence(topic: HttpTopic) -> None:
    topic.append(*({"key": f"k{n % 3}", "value": n} for n in range(9)))
    assert topic.ask("DELETE", "/records", {"key": "k1"}).json == {"deleted": 3}
    assert topic.ask("DELETE", "/records", {"before": 3}).json == {"deleted": 3}
    assert topic.follow(limit=2) == ([(3, 3), (5, 5), (6, 6), (8, 8)], [])
    assert topic.ask("DELETE", "/records", {"before": 9}).json == {"deleted": 6}
    assert topic.follow() == ([], [])
    assert topic.read()["next"] == 9


def test_what_retention_took_is_told_once(topic: HttpTopic) -> None:
    for n in range(6):
        topic.append_values(n)
    topic.evict_before(4)
    found = topic.read(from_=1)
    assert found["gaps"] == [{"from": 1, "to": 3, "reason": "retention"}]
    assert [one["offset"] for one in found["records"]] == [4, 5]
    assert topic.read(from_=4)["gaps"] == []
    assert topic.read(from_=0, limit=1)["next"] == 5


def test_a_gap_alone_is_an_answer_and_not_waited_with(topic: HttpTopic) -> None:
    topic.append_values(1, 2)
    topic.evict_before(2)
    found = topic.read(wait_ms=60_000)
    assert found == {
        "records": [],
        "next": 2,
        "cursor": topic.cursor(2),
        "head": 2,
        "gaps": [{"from": 0, "to": 1, "reason": "retention"}],
    }


def test_a_compacted_topic_reads_as_the_latest_of_each_key(running: RunningBroker) -> None:
    topic = HttpTopic(
        running, cleanup="compact", configs={"segment.bytes": 1024, "min.cleanable.dirty.ratio": 0}
    )
    for n in range(60):
        topic.append({"key": f"k{n % 4}", "value": {"n": n, "pad": "x" * 50}})

    async def compact() -> None:
        await topic.broker.store.get(topic.name).roll()
        await topic.broker.store.maintenance.run_once(is_forced=True)

    topic.run(compact())
    records, gaps = topic.follow(limit=1)
    assert [value["n"] for _, value in records] == [56, 57, 58, 59]
    assert [offset for offset, _ in records] == [56, 57, 58, 59]
    assert gaps == []
