"""Topics are created, changed, listed and deleted over HTTP."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from millstream.broker.topics.configs.topic_config import AlterConfigOperation, ConfigChange
from millstream.config.schema import BrokerConfig
from millstream.errors import TopicExists
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    path: Path = tmp_path_factory.mktemp("node")
    with running_broker(path, broker=BrokerConfig(num_partitions=2, partitions_max=200)) as broker:
        yield broker


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4()}"


def put(running: RunningBroker, name: str, /, **fields: Any) -> Answer:
    return ask(running.url, "PUT", f"/v1/topics/{name}", json.dumps(fields).encode())


def get(running: RunningBroker, name: str) -> Any:
    answer = ask(running.url, "GET", f"/v1/topics/{name}")
    assert answer.status == 200
    return answer.json


# Creating.


def test_a_topic_is_created_with_what_is_asked_for_and_the_defaults_of_the_node(
    running: RunningBroker, name: str
) -> None:
    answer = put(running, name, retention_ms=-1)
    assert answer.status == 201
    found = answer.json
    assert uuid.UUID(found.pop("id"))
    assert found == {
        "name": name,
        "partition_count": 2,
        "durability": "fsync",
        "configs": {"retention.ms": "-1"},
    }


@pytest.mark.parametrize("body", [None, b"", b"{}"], ids=["none", "empty", "no field"])
def test_a_topic_needs_no_more_than_its_name(
    running: RunningBroker, name: str, body: bytes | None
) -> None:
    answer = ask(running.url, "PUT", f"/v1/topics/{name}", body)
    assert answer.status == 201
    assert (answer.json["partition_count"], answer.json["configs"]) == (2, {})


EVERY_FIELD = {
    "durability": ("memory", {"millstream.durability": "memory"}),
    "retention_ms": (60_000, {"retention.ms": "60000"}),
    "retention_bytes": (1_000_000, {"retention.bytes": "1000000"}),
    "retention_records": (-1, {"millstream.retention.records": "-1"}),
    "discard": ("reject", {"millstream.discard": "reject"}),
    "cleanup": ("compact,delete", {"cleanup.policy": "compact,delete"}),
    "schema": (
        {"format": "json", "schema": "n INT"},
        {"millstream.value.format": "json", "millstream.value.schema": "n INT"},
    ),
    "configs": (
        {"segment.bytes": 2048, "min.cleanable.dirty.ratio": 0.25, "preallocate": True},
        {"segment.bytes": "2048", "min.cleanable.dirty.ratio": "0.25", "preallocate": "true"},
    ),
}


@pytest.mark.parametrize("field", EVERY_FIELD)
def test_every_field_becomes_a_config_and_null_undoes_it(
    running: RunningBroker, name: str, field: str
) -> None:
    value, configs = EVERY_FIELD[field]
    assert put(running, name, **{field: value}).json["configs"] == configs
    nothing = dict.fromkeys(value) if field == "configs" else None
    answer = put(running, name, **{field: nothing})
    assert (answer.status, answer.json["configs"]) == (200, {})


def test_an_empty_cleanup_keeps_everything(running: RunningBroker, name: str) -> None:
    assert put(running, name, cleanup="").json["configs"] == {"cleanup.policy": ""}


def test_durability_is_what_holds_and_not_only_what_was_said(
    running: RunningBroker, name: str
) -> None:
    answer = put(running, name, durability="memory", configs={"flush.messages": 1})
    assert answer.json["durability"] == "fsync"


# Changing.


def test_what_is_not_named_stays_as_it_is(running: RunningBroker, name: str) -> None:
    made = put(running, name, partitions=3, retention_ms=1000, discard="reject").json
    answer = put(running, name, retention_ms=2000)
    assert answer.status == 200
    assert answer.json == {
        **made,
        "configs": {"retention.ms": "2000", "millstream.discard": "reject"},
    }
    assert get(running, name)["configs"] == answer.json["configs"]


def test_asking_for_the_same_twice_changes_nothing(running: RunningBroker, name: str) -> None:
    first = put(running, name, partitions=3, cleanup="compact")
    topic = running.server.broker.topics.get(name)
    revision = topic.revision
    second = put(running, name, partitions=3, cleanup="compact")
    assert (first.status, second.status) == (201, 200)
    assert first.json == second.json
    assert topic.revision == revision


def test_a_topic_grows_and_is_set_in_one_step(running: RunningBroker, name: str) -> None:
    put(running, name, partitions=1)
    topic = running.server.broker.topics.get(name)
    revision = topic.revision
    answer = put(running, name, partitions=4, retention_ms=5)
    assert (answer.status, answer.json["partition_count"]) == (200, 4)
    assert topic.revision == revision + 1
    assert len(get(running, name)["partitions"]) == 4
    assert [one.config.retention_ms for one in topic.partitions] == [5] * 4


REFUSED = {
    "fewer partitions": ({"partitions": 1}, "invalid_partitions", "partitions, got 1"),
    "more than a node has room for": ({"partitions": 1000}, "invalid_partitions", "limit is 200"),
    "more than any node has": ({"partitions": 100_001}, "malformed_request", "100000"),
    "no partitions": ({"partitions": 0}, "malformed_request", "between 1"),
    "null partitions": ({"partitions": None}, "malformed_request", "int"),
    "half a partition": ({"partitions": 1.5}, "malformed_request", "partitions"),
    "another durability": ({"durability": "tape"}, "malformed_request", '"fsync"'),
    "a durability that cannot be changed": (
        {"durability": "ephemeral"},
        "invalid_config",
        "become or cease to be ephemeral",
    ),
    "a retention below -1": ({"retention_ms": -2}, "malformed_request", "between -1"),
    "a retention in words": ({"retention_bytes": "1"}, "malformed_request", "retention_bytes"),
    "another way to clean up": (
        {"cleanup": "delete,compact"},
        "malformed_request",
        '"compact,delete"',
    ),
    "another format": ({"schema": {"format": "xml"}}, "malformed_request", '"avro"'),
    "a schema without a format": ({"schema": {"schema": "n INT"}}, "malformed_request", "format"),
    "a format without a schema": (
        {"schema": {"format": "json"}},
        "invalid_config",
        "need a schema",
    ),
    "a config that is none": ({"configs": {"no.such": "1"}}, "invalid_config", "no.such"),
    "a config that cannot be so": (
        {"configs": {"segment.bytes": "7"}},
        "invalid_config",
        "between 1024 and",
    ),
    "a config in a list": ({"configs": {"segment.bytes": []}}, "malformed_request", "configs"),
    "one thing twice": (
        {"retention_ms": 5, "configs": {"retention.ms": "6"}},
        "invalid_request",
        "retention.ms",
    ),
    "a priority, which is not there yet": ({"priority": 1}, "malformed_request", "'priority'"),
    "an unknown field": ({"retention": 1}, "malformed_request", "'retention_ms'"),
}


@pytest.mark.parametrize(("fields", "code", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_changes_nothing_and_says_what_is_allowed(
    running: RunningBroker, name: str, fields: Any, code: str, said: str
) -> None:
    made = put(running, name, partitions=2, retention_ms=77).json
    answer = put(running, name, **{"discard": "reject", **fields})
    assert (answer.status, answer.code) == (400, code), answer.body
    assert said in answer.message
    found = get(running, name)
    assert {key: found[key] for key in made} == made


BAD_NAMES = ["..", "a b", "a/b", "ä", "x" * 250, "__consumer_offsets", "a\0b"]


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_a_name_that_cannot_be_one_creates_nothing(running: RunningBroker, bad: str) -> None:
    answer = ask(running.url, "PUT", f"/v1/topics/{quote(bad, safe='')}", b"{}")
    assert answer.status in (400, 404)
    assert answer.code in ("invalid_name", "not_found")


def test_names_that_differ_in_dots_and_underscores_only_are_refused(
    running: RunningBroker, name: str
) -> None:
    assert put(running, f"{name}.a").status == 201
    answer = put(running, f"{name}_a")
    assert (answer.status, answer.code) == (400, "invalid_name")


def test_changes_that_come_at_the_same_time_do_not_mix(running: RunningBroker, name: str) -> None:
    topics = running.server.broker.topics

    def change(number: int) -> list[ConfigChange]:
        return [
            ConfigChange("retention.ms", AlterConfigOperation.SET, str(number)),
            ConfigChange("segment.ms", AlterConfigOperation.SET, str(number + 1)),
        ]

    async def go() -> list[bool]:
        done = await asyncio.gather(
            *(topics.put(name, partitions=2 + n, changes=change(n)) for n in range(20))
        )
        return [is_new for _, is_new in done]

    assert running.run(go()) == [True] + [False] * 19
    found = get(running, name)
    assert found["configs"] == {"retention.ms": "19", "segment.ms": "20"}
    assert found["partition_count"] == len(found["partitions"]) == 21


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        put(running, "a", partitions=3, retention_ms=5)
        put(running, "b")
        assert ask(running.url, "DELETE", "/v1/topics/b").status == 204
        before = get(running, "a")
    with running_broker(tmp_path) as running:
        assert get(running, "a") == before
        assert ask(running.url, "GET", "/v1/topics/b").status == 404


# Listing.


def test_topics_are_listed_by_name_a_page_at_a_time_and_no_partition_is_opened(
    tmp_path: Path,
) -> None:
    names = sorted(["b", "a", "a-1", "A", "z", "m.x"])
    with running_broker(tmp_path) as running:
        for one in names:
            put(running, one)
        found, pages, after = [], 0, ""
        while after is not None:
            answer = ask(running.url, "GET", f"/v1/topics?limit=2&after={after}")
            found += [topic["name"] for topic in answer.json["topics"]]
            after = answer.json["next"]
            pages += 1
        assert (found, pages) == (names, 3)
        everything = ask(running.url, "GET", "/v1/topics").json
        assert [topic["name"] for topic in everything["topics"]] == names
        assert everything["next"] is None
        topics = running.server.broker.topics.all()
        assert not any(one.is_open for topic in topics for one in topic.partitions)
        assert ask(running.url, "DELETE", "/v1/topics/m.x").status == 204
        left = ask(running.url, "GET", "/v1/topics?after=m").json["topics"]
        assert [topic["name"] for topic in left] == ["z"]


def test_a_name_that_is_no_topic_is_a_good_place_to_go_on_from(running: RunningBroker) -> None:
    answer = ask(running.url, "GET", "/v1/topics?after=%7E")
    assert answer.json == {"topics": [], "next": None}


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "befor=a"]
)
def test_a_page_that_cannot_be_is_refused(running: RunningBroker, query: str) -> None:
    assert ask(running.url, "GET", f"/v1/topics?{query}").status == 400


# Deleting.


def test_a_topic_that_was_deleted_is_gone_and_its_name_is_free(
    running: RunningBroker, name: str
) -> None:
    old = put(running, name).json["id"]
    answer = ask(running.url, "DELETE", f"/v1/topics/{name}")
    assert (answer.status, answer.body) == (204, b"")
    assert ask(running.url, "GET", f"/v1/topics/{name}").code == "unknown_topic"
    again = ask(running.url, "DELETE", f"/v1/topics/{name}")
    assert (again.status, again.code) == (404, "unknown_topic")
    made = put(running, name)
    assert made.status == 201
    assert made.json["id"] != old


def test_a_topic_that_must_be_new_is_created_once_and_not_changed(
    running: RunningBroker, name: str
) -> None:
    path = f"/v1/topics/{name}?create_only=true"
    assert ask(running.url, "PUT", path, b'{"retention_ms": 5000}').status == HTTPStatus.CREATED
    again = ask(running.url, "PUT", path, b'{"retention_ms": 9000}')
    assert (again.status, again.code) == (HTTPStatus.CONFLICT, "topic_exists")
    kept = ask(running.url, "GET", f"/v1/topics/{name}").json
    assert kept["configs"] == {"retention.ms": "5000"}


def test_of_two_that_create_a_topic_at_once_one_is_refused(
    running: RunningBroker, name: str
) -> None:
    async def create_twice() -> list[object]:
        topics = running.server.broker.topics
        both = (topics.put(name, is_create_only=True) for _ in range(2))
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = running.run(create_twice())
    assert isinstance(first, tuple)
    assert isinstance(second, TopicExists)
