"""A cursor names its topic: a reader of a topic that was created again is told, and starts over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.http_topic import HttpTopic, in_background

LONG_MS = 60_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def topic(running: RunningBroker) -> HttpTopic:
    return HttpTopic(running)


def recreated(offset: int) -> dict[str, object]:
    return {"from": offset, "to": offset, "reason": "recreated"}


def test_the_cursor_of_a_response_is_where_to_go_on(topic: HttpTopic) -> None:
    topic.append_values(*range(5))
    found = topic.read(limit=2)
    assert (found["next"], found["cursor"]) == (2, topic.cursor(2))
    rest = topic.read(from_=found["cursor"])
    assert [one["value"] for one in rest["records"]] == [2, 3, 4]
    assert rest["gaps"] == []


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_a_topic_that_was_created_again_is_read_from_its_start_after_a_gap(
    topic: HttpTopic, count: int
) -> None:
    topic.append_values("old", "old", "old")
    cursor = topic.read()["cursor"]
    topic.recreate()
    if count:
        topic.append_values(*range(count))
    found = topic.read(from_=cursor)
    assert found["gaps"] == [recreated(3)]
    assert [one["value"] for one in found["records"]] == list(range(count))
    assert found["cursor"] == topic.cursor(count)
    assert topic.read(from_=found["cursor"])["gaps"] == []


def test_a_cursor_at_the_start_of_a_deleted_topic_is_told_too(topic: HttpTopic) -> None:
    cursor = topic.read()["cursor"]
    topic.recreate()
    assert topic.read(from_=cursor)["gaps"] == [recreated(0)]


def test_what_the_new_topic_lost_is_a_gap_of_its_own(topic: HttpTopic) -> None:
    topic.append_values("old")
    cursor = topic.read()["cursor"]
    topic.recreate()
    for n in range(3):
        topic.append_values(n)
    topic.evict_before(2, "bytes")
    found = topic.read(from_=cursor)
    assert found["gaps"] == [recreated(1), {"from": 0, "to": 1, "reason": "bytes"}]
    assert [one["value"] for one in found["records"]] == [2]


def test_a_reader_that_would_wait_is_told_at_once(topic: HttpTopic) -> None:
    cursor = topic.read()["cursor"]
    topic.recreate()
    assert topic.read(from_=cursor, wait_ms=LONG_MS)["gaps"] == [recreated(0)]


def test_a_reader_that_waits_while_its_topic_is_created_again_is_told(topic: HttpTopic) -> None:
    cursor = topic.read()["cursor"]
    polling = in_background(lambda: topic.get(from_=cursor, wait_ms=LONG_MS))
    topic.waiting(1)
    topic.recreate()
    topic.append_values("new")
    assert polling.result(60).status == 404
    found = topic.read(from_=cursor)
    assert found["gaps"] == [recreated(0)]
    assert [one["value"] for one in found["records"]] == ["new"]


def test_a_plain_offset_is_one_of_the_present_topic(topic: HttpTopic) -> None:
    topic.append_values("old")
    topic.recreate()
    topic.append_values("a", "b")
    found = topic.read(from_=1)
    assert ([one["value"] for one in found["records"]], found["gaps"]) == (["b"], [])
    found = topic.read(from_=f"{topic.name}:0:1")
    assert ([one["value"] for one in found["records"]], found["gaps"]) == (["b"], [])


def test_an_ephemeral_topic_is_another_one_after_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running, durability="ephemeral")
        topic.append_values("old", "old")
        cursor = topic.read()["cursor"]
    with running_broker(tmp_path) as running:
        topic.running = running
        topic.append_values("a", "b", "c")
        found = topic.read(from_=cursor)
    assert found["gaps"] == [recreated(2)]
    assert [one["value"] for one in found["records"]] == ["a", "b", "c"]


def test_a_restart_changes_nothing_for_a_topic_that_stays(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        topic.append_values("a", "b")
        cursor = topic.read(limit=1)["cursor"]
    with running_broker(tmp_path) as running:
        topic.running = running
        found = topic.read(from_=cursor)
    assert ([one["value"] for one in found["records"]], found["gaps"]) == (["b"], [])


# Partitions.


def test_a_cursor_names_its_partition(running: RunningBroker) -> None:
    topic = HttpTopic(running, partitions=2)
    topic.append_values("a", "b", partition=1)
    cursor = topic.read(partition=1, limit=1)["cursor"]
    assert topic.values(from_=cursor) == ["b"]
    assert topic.values(from_=cursor, partition=1) == ["b"]


@pytest.mark.parametrize(
    ("start", "partition", "words"),
    [
        ("x", 0, "expected topic@id:partition:offset"),
        ("TOPIC@short:0:1", 0, "expected topic@id:partition:offset"),
        ("other:0:1", 0, "from must be a cursor of topic TOPIC, partition 0, got 'other:0:1'"),
        ("TOPIC:1:0", 0, "from must be a cursor of topic TOPIC, partition 0, got 'TOPIC:1:0'"),
        ("TOPIC:0:0,TOPIC:1:0", None, "partition must be set"),
        ("1.5", 0, "expected topic@id:partition:offset"),
        ("-1", 0, "from must be an integer between 0 and"),
    ],
)
def test_what_is_no_cursor_of_the_topic_is_refused_with_what_is_expected(
    running: RunningBroker, start: str, partition: int | None, words: str
) -> None:
    topic = HttpTopic(running, partitions=2)
    query = {} if partition is None else {"partition": partition}
    answer = topic.get(from_=start.replace("TOPIC", topic.name), **query)
    assert answer.status == 400
    assert words.replace("TOPIC", topic.name) in answer.message


def test_a_cursor_past_the_head_of_its_own_topic_is_out_of_range(topic: HttpTopic) -> None:
    assert topic.get(from_=topic.cursor(9)).status == 416


# Reasons.


@pytest.mark.parametrize("reason", ["age", "bytes", "records"])
def test_a_gap_and_the_description_of_the_topic_say_why(topic: HttpTopic, reason: str) -> None:
    topic.append_values(1)
    topic.append_values(2)
    topic.evict_before(1, reason)
    gap = {"from": 0, "to": 0, "reason": reason}
    assert topic.read()["gaps"] == [gap]
    assert topic.ask("GET", "").json["partitions"][0]["gaps"] == [gap]
