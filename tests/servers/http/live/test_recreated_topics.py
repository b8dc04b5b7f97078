"""A watcher whose topic was created again is told so, and starts over, by SSE and by WebSocket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing.broker import RunningBroker, running_broker

from .event_streams import watching
from .live_topic import LiveTopic
from .websockets_client import talking


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as running:
        yield running


def gap(topic: LiveTopic, offset: int, partition: int = 0) -> dict[str, object]:
    return {
        "topic": topic.name,
        "partition": partition,
        "from": offset,
        "to": offset,
        "reason": "recreated",
    }


@pytest.mark.parametrize("count", [0, 2, 5])
def test_an_event_source_that_reconnects_is_told_and_starts_over(
    node: RunningBroker, count: int
) -> None:
    topic = LiveTopic(node)
    topic.append("old", "old")
    with watching(node.url, topic.name, from_="earliest") as stream:
        assert stream.values(2) == ["old", "old"]
        last_id = stream.last_id
    topic.recreate()
    if count:
        topic.append(*range(count))
    with watching(node.url, topic.name, last_id=last_id) as stream:
        told = stream.next()
        assert (told.kind, told.data, told.id) == ("gap", gap(topic, 2), topic.cursor(0))
        topic.append("later")
        assert stream.values(count + 1) == [*range(count), "later"]
        assert stream.last_id == topic.cursor(count + 1)


def test_a_connection_that_breaks_before_the_gap_does_not_lose_it(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    cursor = topic.cursor(0)
    topic.recreate()
    with talking(node.url) as talk:
        # The answer has a cursor too, and is sent before the gap.
        assert talk.result(op="subscribe", topics=[topic.name], from_=cursor)["cursor"] == cursor
        told = talk.next()
    assert (told["type"], told["reason"], told["cursor"]) == ("gap", "recreated", topic.cursor(0))


def test_a_websocket_that_subscribes_again_is_told_and_starts_over(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with talking(node.url) as talk:
        talk.result(op="subscribe", topics=[topic.name])
        topic.append("old")
        cursor = talk.next()["cursor"]
        topic.delete()
        assert talk.next()["reason"] == "deleted"
        topic.create()
        topic.append("a", "b")
        talk.result(op="subscribe", topics=[topic.name], from_=cursor)
        told = talk.next()
        assert (told["type"], told["from"], told["reason"]) == ("gap", 1, "recreated")
        assert talk.values(2) == ["a", "b"]


def test_every_partition_of_the_new_topic_starts_with_a_gap(node: RunningBroker) -> None:
    topic = LiveTopic(node, partitions=3)
    topic.append("old", partition=2)
    last_id = f"{topic.cursor(0)},{topic.cursor(0, 1)},{topic.cursor(1, 2)}"
    topic.recreate(partitions=2)
    with watching(node.url, topic.name, last_id=last_id) as stream:
        told = sorted((stream.next() for _ in range(2)), key=lambda one: one.data["partition"])
        assert [one.data for one in told] == [gap(topic, 0), gap(topic, 0, 1)]


def test_a_cursor_without_any_present_partition_is_told_too(node: RunningBroker) -> None:
    topic = LiveTopic(node, partitions=2)
    last_id = topic.cursor(0, 1)
    topic.recreate()
    topic.append("new")
    with watching(node.url, topic.name, last_id=last_id) as stream:
        assert stream.next().data == gap(topic, 0)
        assert stream.values(1) == ["new"]


def test_another_topic_of_the_connection_goes_on_where_it_was(node: RunningBroker) -> None:
    one, two = LiveTopic(node), LiveTopic(node)
    one.append("old")
    two.append("a", "b")
    last_id = f"{one.cursor(1)},{two.cursor(1)}"
    one.recreate()
    with watching(node.url, one.name, two.name, last_id=last_id) as stream:
        told = [stream.next() for _ in range(2)]
    by_topic = {one.data["topic"]: one for one in told}
    assert by_topic[one.name].data == gap(one, 1)
    assert [record["value"] for record in by_topic[two.name].data["records"]] == ["b"]


def test_a_gap_by_retention_says_which_policy_it_was(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append(1)
    topic.append(2)
    topic.evict(1, reason="records")
    with watching(node.url, topic.name, from_="earliest", last_id=topic.cursor(0)) as stream:
        assert stream.next().data["reason"] == "records"
