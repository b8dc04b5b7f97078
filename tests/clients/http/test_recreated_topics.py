"""A topic that is deleted and created again: readers and followers of the old one are told."""

from __future__ import annotations

import itertools

import pytest

from millstream.clients.http.core.values import TopicGap
from millstream.errors import UnknownTopic


def recreate(client, name, *values, partitions=1):
    client.topic(name).delete()
    client.create_topic(name, partitions=partitions)
    if values:
        client.append_many(name, list(values))


def values(items):
    return [item.value for item in items]


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_saved_cursor_of_a_reader_starts_over_after_a_gap(client, topic, count):
    client.append_many(topic, ["old"] * 3)
    reader = client.read(topic)
    assert values(reader) == ["old"] * 3
    recreate(client, topic, *range(count))
    again = client.read(topic, from_=reader.cursor)
    [gap, *records] = again
    assert gap == TopicGap(topic, 0, 3, 3, "recreated")
    assert values(records) == list(range(count))
    assert list(client.read(topic, from_=again.cursor)) == []


def test_a_reader_whose_topic_is_created_again_between_two_pages_is_told(client, topic):
    client.append_many(topic, ["old"] * 4)
    reader = client.read(topic, limit=2)
    found = list(itertools.islice(reader, 2))
    recreate(client, topic, "a", "b", "c")
    found += list(reader)
    assert [getattr(item, "value", item) for item in found] == [
        *["old"] * 2,
        TopicGap(topic, 0, 2, 2, "recreated"),
        *"abc",
    ]


def test_a_reader_that_stops_at_the_gap_continues_after_it(client, topic):
    client.append_many(topic, ["old"] * 2)
    reader = client.read(topic)
    list(reader)
    recreate(client, topic, "a", "b")
    again = client.read(topic, from_=reader.cursor)
    assert next(again).reason == "recreated"
    assert values(client.read(topic, from_=again.cursor)) == ["a", "b"]


def test_every_partition_is_read_from_its_start(client, name):
    client.create_topic(name, partitions=1)
    client.append(name, "old")
    reader = client.read(name)
    list(reader)
    client.topic(name).delete()
    client.create_topic(name, partitions=2)
    for partition in (0, 1):
        client.append(name, partition, partition=partition)
    found = list(client.read(name, from_=reader.cursor))
    assert found[0] == TopicGap(name, 0, 1, 1, "recreated")
    assert found[2] == TopicGap(name, 1, 0, 0, "recreated")
    assert values([found[1], found[3]]) == [0, 1]


@pytest.mark.parametrize("count", [1, 5])
def test_the_cursor_of_a_follower_starts_over_after_a_gap(client, topic, count):
    client.append_many(topic, ["old"] * 3)
    with client.follow(topic, from_="earliest") as follower:
        assert values(itertools.islice(follower, 3)) == ["old"] * 3
        recreate(client, topic, *range(count))
        with pytest.raises(UnknownTopic, match="ended: deleted"):
            next(follower)
    with client.follow(topic, from_=follower.cursor) as again:
        assert next(again) == TopicGap(topic, 0, 3, 3, "recreated")
        assert values(itertools.islice(again, count)) == list(range(count))
    with client.follow(topic, from_=again.cursor) as last:
        client.append(topic, "new")
        assert next(last).value == "new"


def test_a_follower_that_loses_its_connection_meanwhile_is_told(connect, client, proxy, topic):
    away = connect(f"http://{proxy.bootstrap}")
    client.append(topic, "old")
    with away.follow(topic, from_="earliest") as follower:
        assert next(follower).value == "old"
        proxy.cut_all()
        recreate(client, topic, "a", "b")
        gap, *records = itertools.islice(follower, 3)
    assert gap == TopicGap(topic, 0, 1, 1, "recreated")
    assert values(records) == ["a", "b"]


def test_a_follower_that_began_at_latest_knows_its_topic(client, topic):
    client.append(topic, "old")
    with client.follow(topic) as follower:
        cursor = follower.cursor
    recreate(client, topic, "a", "b")
    with client.follow(topic, from_=cursor) as again:
        assert next(again) == TopicGap(topic, 0, 1, 1, "recreated")
        assert next(again).value == "a"


def test_a_position_without_an_id_is_one_of_the_present_topic(client, topic):
    client.append(topic, "old")
    recreate(client, topic, "a", "b")
    assert values(client.read(topic, from_=f"{topic}:0:1")) == ["b"]
    assert values(client.read(topic, from_=1)) == ["b"]
