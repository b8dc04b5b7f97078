"""Sizes and segments of topics, without opening a partition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.config.schema import LogConfig
from millstream.servers.http.handlers.topics import segments as topic_sizes
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic

SMALL = LogConfig(segment_records_max=10)
"""Segments of ten records, so that a topic has several."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node"), log=SMALL) as broker:
        yield broker


def fill(topic: HttpTopic, count: int, **fields: Any) -> None:
    for number in range(count):
        topic.append_values(number, **fields)


def segments(topic: HttpTopic, **query: Any) -> list[dict[str, Any]]:
    """Return all segments, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        answer = topic.ask("GET", "/segments", **query).json
        found += answer["segments"]
        if answer["next"] is None:
            return found
        query["after"] = answer["next"]


def listed(running: RunningBroker, name: str, query: str = "sizes=true") -> dict[str, Any]:
    answer = ask(running.url, "GET", f"/v1/topics?limit=1000&{query}").json
    return next(one for one in answer["topics"] if one["name"] == name)


# Segments.


def test_segments_tell_what_their_files_hold(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    topic.append(*({"value": n, "timestamp": 1_000 + n} for n in range(10)))
    topic.append({"value": 10, "timestamp": 2_000})
    log = running.server.broker.store.get(topic.name)
    topic.until(lambda: len(log.sealed) == 1)
    first, last = segments(topic)
    assert first == {
        "partition": 0,
        "base_offset": 0,
        "end_offset": 10,
        "bytes": log.segments[0].size,
        "records": 10,
        "first_timestamp": 1_000,
        "last_timestamp": 1_009,
        "state": "sealed",
        "deleted": 0,
        "reclaimable_bytes": 0,
    }
    assert (last["base_offset"], last["end_offset"], last["state"]) == (10, 11, "active")


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_segments_of_all_partitions_come_page_by_page_each_once(
    running: RunningBroker, limit: int
) -> None:
    topic = HttpTopic(running, partitions=3)
    fill(topic, 25, partition=0)
    fill(topic, 11, partition=2)
    places = [(one["partition"], one["base_offset"]) for one in segments(topic, limit=limit)]
    assert places == [(0, 0), (0, 10), (0, 20), (2, 0), (2, 10)]
    only = [one["base_offset"] for one in segments(topic, limit=limit, partition=0)]
    assert only == [0, 10, 20]


def test_a_page_can_begin_behind_any_offset_of_a_partition(running: RunningBroker) -> None:
    topic = HttpTopic(running, partitions=2)
    fill(topic, 25, partition=1)
    for after, bases in (("0", [10, 20]), ("5", [10, 20]), ("1:10", [20]), ("20", []), ("0:99", 3)):
        found = [one["base_offset"] for one in segments(topic, partition=1, after=after)]
        assert found == ([0, 10, 20] if bases == 3 else bases), after


def test_what_was_deleted_by_key_and_is_still_in_a_file_is_told(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    topic.append(*({"key": f"k{n % 2}", "value": n} for n in range(10)))
    topic.append_values(1)
    topic.ask("DELETE", "/records", {"key": "k1"})
    first, last = segments(topic)
    assert (first["records"], first["deleted"]) == (10, 5)
    assert first["reclaimable_bytes"] > 0
    assert last["deleted"] == 0
    assert listed(running, topic.name)["sizes"]["records"] == 6


def test_a_topic_that_nobody_used_has_no_segment(running: RunningBroker) -> None:
    topic = HttpTopic(running, partitions=2)
    assert segments(topic) == []
    assert not topic.partition(0).is_open


@pytest.mark.parametrize("after", ["x", "1:", ":1", "-1", "0:1:2", "1" * 20])
def test_a_place_that_is_none_is_malformed(running: RunningBroker, after: str) -> None:
    answer = HttpTopic(running).ask("GET", "/segments", after=after)
    assert (answer.status, answer.code) == (400, "malformed_request")


def test_a_topic_or_partition_that_is_not_there_is_unknown(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    assert topic.ask("GET", "/segments", partition=1).code == "unknown_topic"
    assert ask(running.url, "GET", "/v1/topics/nowhere/segments").code == "unknown_topic"


# Sizes.


def test_sizes_are_told_where_they_are_asked_for(running: RunningBroker) -> None:
    topic = HttpTopic(running, partitions=2)
    fill(topic, 12, partition=0)
    fill(topic, 1, partition=1)
    logs = [running.server.broker.store.get(topic.name, index) for index in (0, 1)]
    found = listed(running, topic.name)["sizes"]
    size = sum(log.size_bytes for log in logs)
    assert found == {
        "records": 13,
        "bytes": size,
        "segments": 3,
        "appended_records": 13,
        "appended_bytes": size,
    }
    assert "sizes" not in listed(running, topic.name, "sizes=false")
    assert "sizes" not in listed(running, topic.name, "")


def test_what_was_appended_only_grows_though_records_go(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    fill(topic, 25)
    topic.ask("DELETE", "/records", {"before": 25})
    topic.evict_before(25)
    before = listed(running, topic.name)["sizes"]
    assert before["appended_records"] == 25
    assert before["segments"] < 3
    fill(topic, 2)
    assert listed(running, topic.name)["sizes"]["appended_records"] == 27


def test_a_topic_is_told_after_a_restart_and_stays_closed(tmp_path: Path) -> None:
    with running_broker(tmp_path, log=SMALL) as running:
        topic = HttpTopic(running)
        fill(topic, 25)
        name, before = topic.name, listed(running, topic.name)["sizes"]
        shapes = segments(topic)
    with running_broker(tmp_path, log=SMALL) as running:
        found = listed(running, name)["sizes"]
        assert found == {**before, "appended_records": 0, "appended_bytes": 0}
        answer = ask(running.url, "GET", f"/v1/topics/{name}/segments").json["segments"]
        assert [{**one, "state": ""} for one in answer] == [{**one, "state": ""} for one in shapes]
        assert not running.server.broker.topics.partition(name, 0).is_open


def test_what_was_deleted_by_key_is_not_known_before_the_topic_is_opened(tmp_path: Path) -> None:
    with running_broker(tmp_path, log=SMALL) as running:
        topic = HttpTopic(running)
        topic.append(*({"key": f"k{n % 2}", "value": n} for n in range(10)))
        topic.ask("DELETE", "/records", {"key": "k1"})
        name = topic.name
    with running_broker(tmp_path, log=SMALL) as running:
        assert listed(running, name)["sizes"] is None
        path = f"/v1/topics/{name}/segments"
        (first, *_) = ask(running.url, "GET", path).json["segments"]
        assert (first["records"], first["deleted"], first["reclaimable_bytes"]) == (10, None, None)
        assert ask(running.url, "GET", f"/v1/topics/{name}").status == 200  # Which opens it.
        assert listed(running, name)["sizes"]["records"] == 5
        assert ask(running.url, "GET", path).json["segments"][0]["deleted"] == 5


def test_a_topic_whose_files_cannot_be_read_has_no_sizes(tmp_path: Path) -> None:
    with running_broker(tmp_path, log=SMALL) as running:
        topic = HttpTopic(running)
        fill(topic, 3)
    (file,) = tmp_path.glob(f"topics/{topic.name}/0/partition.json")
    file.write_text("{")
    with running_broker(tmp_path, log=SMALL) as running:
        assert listed(running, topic.name)["sizes"] is None
        path = f"/v1/topics/{topic.name}/segments"
        (found,) = ask(running.url, "GET", path).json["segments"]
        assert (found["records"], found["deleted"]) == (3, None)


@pytest.mark.parametrize("text", ["1", "yes", "", "null", "True"])
def test_a_truth_is_true_or_false(running: RunningBroker, text: str) -> None:
    answer = ask(running.url, "GET", f"/v1/topics?sizes={text}")
    assert (answer.status, answer.code) == (400, "malformed_request")
    assert "true or false" in answer.message


def test_others_have_their_turn_while_many_segments_are_looked_at(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = HttpTopic(running, partitions=4)
    monkeypatch.setattr(topic_sizes, "SEGMENTS_PER_TURN", 1)
    seen: list[str] = []

    async def go() -> None:
        loop = asyncio.get_running_loop()
        store, found = running.server.broker.store, running.server.broker.topics.get(topic.name)
        async for _, __ in topic_sizes.summaries_of(store, found):
            seen.append("look")
            loop.call_soon(seen.append, "turn")

    running.run(go())
    assert seen[:4] == ["look", "turn", "look", "turn"]


def test_the_example_of_a_page_is_one(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    fill(topic, 11)
    found = topic.ask("GET", "/segments", limit=1)
    assert json.loads(found.body)["next"] == "0:0"
