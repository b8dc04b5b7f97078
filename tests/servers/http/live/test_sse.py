"""`GET /v1/events`: the events of a watcher."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask

from .event_streams import Stream, Told, watching
from .live_topic import LiveTopic, wait_until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as running:
        yield running


def test_a_watcher_is_told_of_what_comes(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append("before")
    with watching(node.url, topic.name) as stream:
        topic.append({"n": 1}, {"n": 2})
        told = stream.next()
    assert told.kind == "records"
    assert told.id == topic.cursor(3)
    assert [record["value"] for record in told.data["records"]] == [{"n": 1}, {"n": 2}]
    assert told.data["records"][0].keys() == {"offset", "timestamp", "key", "value", "headers"}
    assert {name: told.data[name] for name in ("topic", "partition", "next", "head")} == {
        "topic": topic.name,
        "partition": 0,
        "next": 3,
        "head": 3,
    }


def test_the_answer_is_one_that_nobody_keeps_or_holds_back(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with watching(node.url, topic.name) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        assert stream.retry_ms == 1_000


def test_from_earliest_all_there_is_comes_first(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append(*range(2_500))
    with watching(node.url, topic.name, from_="earliest") as stream:
        assert stream.values(2_500) == list(range(2_500))
        topic.append("new")
        assert stream.values(1) == ["new"]


def test_a_watcher_that_comes_back_misses_nothing_and_gets_nothing_twice(
    node: RunningBroker,
) -> None:
    topic = LiveTopic(node)
    with watching(node.url, topic.name) as stream:
        topic.append(1, 2)
        assert stream.values(2) == [1, 2]
        last_id = stream.last_id
    topic.append(3)
    with watching(node.url, topic.name, last_id=last_id, from_="latest") as stream:
        topic.append(4)
        assert stream.values(2) == [3, 4]
    with watching(node.url, topic.name, from_=last_id or "") as stream:
        assert stream.values(2) == [3, 4]


# Several topics and partitions.


def test_several_topics_and_all_their_partitions_come_by_one_connection(
    node: RunningBroker,
) -> None:
    one, two = LiveTopic(node, partitions=2), LiveTopic(node)
    with watching(node.url, one.name, two.name, one.name) as stream:
        one.append("a", partition=1)
        two.append("b")
        told = {(event.data["topic"], event.data["partition"]): event for event in next_(stream, 2)}
        last_id = stream.last_id or ""
    assert told.keys() == {(one.name, 1), (two.name, 0)}
    assert sorted(last_id.split(",")) == sorted([one.cursor(0), one.cursor(1, 1), two.cursor(1)])
    one.append("c", partition=0)
    two.append("d")
    with watching(node.url, one.name, two.name, last_id=last_id) as stream:
        assert sorted(stream.values(2)) == ["c", "d"]


def test_a_partition_that_is_added_later_joins_from_its_start(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with watching(node.url, topic.name) as stream:
        topic.grow(2)
        topic.append("new", partition=1)
        assert stream.values(1) == ["new"]
        assert stream.last_id == f"{topic.cursor(0)},{topic.cursor(1, 1)}"


def test_a_partition_that_was_added_while_a_watcher_was_away_is_read_from_its_start(
    node: RunningBroker,
) -> None:
    topic = LiveTopic(node)
    topic.append(1)
    topic.grow(2)
    topic.append(2, partition=1)
    with watching(node.url, topic.name, last_id=f"{topic.name}:0:1") as stream:
        assert stream.values(1) == [2]


def test_a_topic_that_the_cursor_does_not_know_begins_as_if_there_were_none(
    node: RunningBroker,
) -> None:
    one, two = LiveTopic(node), LiveTopic(node)
    one.append(1)
    two.append("old")
    with watching(node.url, one.name, two.name, last_id=f"{one.name}:0:0") as stream:
        two.append("new")
        assert sorted(stream.values(2), key=str) == [1, "new"]
    with watching(
        node.url, one.name, two.name, last_id=f"{one.name}:0:0", from_="earliest"
    ) as stream:
        assert sorted(stream.values(3), key=str) == [1, "new", "old"]


def test_a_topic_that_is_deleted_ends_and_so_does_the_stream_with_its_last_topic(
    node: RunningBroker,
) -> None:
    one, two = LiveTopic(node), LiveTopic(node)
    with watching(node.url, one.name, two.name) as stream:
        one.delete()
        told = stream.next()
        assert (told.kind, told.data) == ("end", {"topic": one.name, "reason": "deleted"})
        one.create()
        one.append("of another topic")
        two.append("b")
        assert stream.values(1) == ["b"]
        assert stream.last_id == two.cursor(1)
        two.delete()
        rest = stream.rest()
    assert [told.data for told in rest] == [{"topic": two.name, "reason": "deleted"}]


# What a watcher does not want to see, and what it cannot.


def test_a_watcher_may_leave_out_what_a_node_wrote(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append("mine", node="n1")
    topic.append("theirs", node="n2")
    with watching(node.url, topic.name, from_="earliest", exclude_node="n1") as stream:
        assert stream.values(1) == ["theirs"]
        topic.append("mine again", node="n1")
        topic.append("nobody's")
        assert stream.values(1) == ["nobody's"]
        assert stream.last_id == topic.cursor(4)


def test_what_retention_took_is_told_as_a_gap(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append(1, 2, 3, 4)
    topic.evict(3)
    with watching(node.url, topic.name, last_id=f"{topic.name}:0:1") as stream:
        told = stream.next()
        assert (told.kind, told.id) == ("gap", topic.cursor(3))
        assert told.data == {
            "topic": topic.name,
            "partition": 0,
            "from": 1,
            "to": 2,
            "reason": "retention",
        }
        assert stream.values(1) == [4]


def test_from_earliest_is_from_what_there_is(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append(1, 2, 3, 4)
    topic.evict(3)
    with watching(node.url, topic.name, from_="earliest") as stream:
        assert stream.values(1) == [4]


def test_what_was_deleted_is_passed_over_in_silence(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    topic.append(1, 2, 3, 4)
    path = f"/v1/topics/{topic.name}/records"
    assert ask(node.url, "DELETE", path, b'{"before":2}').json == {"deleted": 2}
    with watching(node.url, topic.name, last_id=f"{topic.name}:0:0") as stream:
        assert stream.values(2) == [3, 4]


def test_values_of_any_kind_stay_on_the_line_of_their_event(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    with watching(node.url, topic.name) as stream:
        topic.append_bytes([b'{"a":\r\n\n1}', b"\n\nevent: end\n\n", b"\xff"])
        assert stream.values(3) == [
            {"a": 1},
            {"base64": "CgpldmVudDogZW5kCgo="},
            {"base64": "/w=="},
        ]


# What is refused before the stream begins.


@pytest.mark.parametrize(
    ("query", "status", "code", "words"),
    [
        ("", 400, "malformed_request", "topic"),
        ("topic=", 400, "malformed_request", "topic"),
        ("topic=unheard-of", 404, "unknown_topic", "'unheard-of'"),
        ("topic=unheard-of&from=%C3%A9", 400, "malformed_request", "topic:partition:offset"),
        ("topic=unheard-of&from=a:0", 400, "malformed_request", "topic:partition:offset"),
        ("topic=unheard-of&from=a:0:1,a:0:2", 400, "malformed_request", "twice"),
        ("topic=unheard-of&color=red", 400, "malformed_request", "'color'"),
        ("&".join(["topic=t"] * 101), 400, "malformed_request", "100"),
        ("topic=TOPIC&from=TOPIC:0:1", 416, "offset_out_of_range", "1"),
        ("topic=TOPIC&from=TOPIC:1:0", 404, "unknown_topic", "must be between 0 and 0, got 1"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    node: RunningBroker, query: str, status: int, code: str, words: str
) -> None:
    topic = LiveTopic(node)
    found = ask(node.url, "GET", "/v1/events?" + query.replace("TOPIC", topic.name))
    assert (found.status, found.code) == (status, code)
    assert words in found.message


def test_a_cursor_that_is_too_long_is_refused(node: RunningBroker) -> None:
    headers = {"Last-Event-ID": "a" * 40_961}
    found = ask(node.url, "GET", "/v1/events?topic=t", headers=headers)
    assert (found.status, found.code) == (400, "malformed_request")
    assert "at most 40960 characters, got 40961" in found.message


def test_partitions_of_one_connection_are_bounded(node: RunningBroker) -> None:
    topic = LiveTopic(node, partitions=257)
    found = ask(node.url, "GET", f"/v1/events?topic={topic.name}")
    assert (found.status, found.code) == (400, "invalid_request")
    assert "257 partitions, limit is 256" in found.message


def test_a_topic_that_grows_beyond_what_a_connection_can_watch_ends_for_it(
    node: RunningBroker,
) -> None:
    topic = LiveTopic(node, partitions=2)
    with watching(node.url, topic.name) as stream:
        topic.grow(257)
        assert [told.data for told in stream.rest()] == [{"topic": topic.name, "reason": "limit"}]


def test_a_head_request_gets_the_headers_and_no_stream(node: RunningBroker) -> None:
    topic = LiveTopic(node)
    found = ask(node.url, "HEAD", f"/v1/events?topic={topic.name}")
    assert (found.status, found.body) == (200, b"")
    assert found.headers["content-type"] == "text/event-stream"
    wait_until(node, lambda: not node.server.live.subscribers)


def next_(stream: Stream, count: int) -> list[Told]:
    """Return the next events."""
    return [stream.next() for _ in range(count)]
