"""Groups over HTTP: described, reset and deleted."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from millstream.broker.groups.consumer.member import ConsumerHeartbeat
from millstream.broker.groups.values import (
    GroupJoinRequest,
    GroupSyncRequest,
    LeavingMember,
    OffsetAndMetadata,
    OffsetCommitter,
)
from millstream.config.schema import BrokerConfig
from millstream.errors import MillstreamError
from millstream.records.topic_partition import TopicPartition
from millstream.servers.http.handlers.groups import offset_resets as group_resets
from millstream.servers.http.handlers.groups.groups import state_name
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask
from tests.servers.http.http_topic import HttpTopic

CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node"), broker=CONFIG) as broker:
        yield broker


class Group:
    """A group of the running node that no other test uses."""

    def __init__(self, running: RunningBroker, name: str | None = None) -> None:
        self.running = running
        self.name = name or f"g-{uuid.uuid4()}"
        self.path = f"/v1/groups/{quote(self.name, safe='')}"

    def ask(self, method: str, rest: str = "", body: Any = None) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        return ask(self.running.url, method, self.path + rest, data)

    def reset(self, topic: str, to: Any, **fields: Any) -> Answer:
        return self.ask("PUT", "/offsets", {"topic": topic, "to": to, **fields})

    def offsets(self, topic: str) -> dict[int, int]:
        """Return the committed offsets, as a consumer gets them."""

        async def go() -> dict[TopicPartition, Any]:
            return dict(self.running.server.broker.groups.of(self.name).fetch(self.name))

        found = self.running.run(go())
        return {where.partition: one.offset for where, one in found.items() if where.topic == topic}

    def join(self, assignment: bytes) -> str:
        """Join with a consumer of the classic protocol and this assignment; return its id."""

        async def go() -> str:
            groups = self.running.server.broker.groups
            join = GroupJoinRequest(
                client_id="billing-1",
                host="/127.0.0.1",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols={"range": b""},
                needs_known_id=False,
            )
            joined = await groups.of(self.name).join(self.name, join)
            sync = GroupSyncRequest(
                member_id=joined.member_id,
                generation=joined.generation,
                assignments={joined.member_id: assignment},
            )
            await groups.of(self.name).sync(self.name, sync)
            return joined.member_id

        return self.running.run(go())

    def leave(self, member: str) -> None:
        async def go() -> None:
            await self.running.server.broker.groups.of(self.name).leave(
                self.name, [LeavingMember(member)]
            )

        self.running.run(go())

    def join_as_consumer(self, topic: str) -> None:
        """Join with a consumer of the new protocol and the id `me`."""

        async def go() -> None:
            beat = ConsumerHeartbeat(
                member_id="me",
                member_epoch=0,
                rebalance_timeout_ms=30_000,
                topic_names=frozenset({topic}),
                owned={},
                client_id="new",
                client_host="/127.0.0.1",
            )
            await self.running.server.broker.groups.of(self.name).consumers.heartbeat(
                self.name, beat
            )

        self.running.run(go())


def share(topic: str, *partitions: int) -> bytes:
    text = topic.encode()
    count = len(partitions)
    head = struct.pack(">hih", 0, 1, len(text)) + text
    return head + struct.pack(f">i{count}i", count, *partitions)


@pytest.fixture
def group(running: RunningBroker) -> Group:
    return Group(running)


@pytest.fixture
def topic(running: RunningBroker) -> HttpTopic:
    return HttpTopic(running, partitions=2)


# Looking.


def test_a_group_is_listed_with_what_it_has_committed_and_how_far_it_is_behind(
    group: Group, topic: HttpTopic
) -> None:
    topic.append_values(*range(5), partition=0)
    topic.append_values(*range(3), partition=1)
    group.reset(topic.name, 1)
    (found,) = listed(group.running, group.name)
    assert found == {
        "group": group.name,
        "kind": "classic",
        "state": "empty",
        "members": 0,
        "partitions": 2,
        "lag": 6,
    }


def listed(running: RunningBroker, prefix: str, limit: int = 100) -> list[dict[str, Any]]:
    """Return groups with this prefix, page by page."""
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": limit}
    while True:
        answer = ask(running.url, "GET", f"/v1/groups?{urlencode(query)}").json
        assert len(answer["groups"]) <= limit
        found += answer["groups"]
        if answer["next"] is None:
            return [one for one in found if one["group"].startswith(prefix)]
        query["after"] = answer["next"]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_groups_are_listed_by_name_whatever_the_size_of_a_page(
    running: RunningBroker, topic: HttpTopic, limit: int
) -> None:
    prefix = f"p-{uuid.uuid4()}-"
    for end in ("c", "a", "ä/b", "b"):
        Group(running, prefix + end).reset(topic.name, "latest")
    names = [one["group"] for one in listed(running, prefix, limit)]
    assert names == [prefix + end for end in ("a", "b", "c", "ä/b")]


def test_a_group_without_a_name_is_listed_once_and_paging_goes_on(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        Group(running, "other").reset(topic.name, "latest")

        async def commit() -> None:
            where = TopicPartition(topic.name, 0)
            await running.server.broker.groups.of("").commit(
                "", OffsetCommitter(), {where: OffsetAndMetadata(offset=0)}
            )

        running.run(commit())
        assert [one["group"] for one in listed(running, "", 1)] == ["", "other"]
        assert ask(running.url, "GET", "/v1/groups/").json["group"] == ""


def test_groups_are_found_by_name_after_a_restart_and_after_they_went(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running).name
        for name in ("c", "a", "b"):
            assert Group(running, name).reset(topic, "earliest").status == 200
    with running_broker(tmp_path) as running:
        assert [one["group"] for one in listed(running, "")] == ["a", "b", "c"]
        assert Group(running, "b").ask("DELETE").status == 204
        Group(running, "aa").reset(topic, "earliest")
        assert [one["group"] for one in listed(running, "")] == ["a", "aa", "c"]


def test_a_classic_group_tells_its_members_and_who_has_what(group: Group, topic: HttpTopic) -> None:
    topic.append_values(*range(5), partition=0)
    group.reset(topic.name, 2, partition=0)
    member = group.join(share(topic.name, 0, 1))
    found = group.ask("GET").json
    assert (found["kind"], found["state"], found["lag"]) == ("classic", "stable", 3)
    assert found["members"] == [
        {
            "id": member,
            "instance_id": None,
            "client_id": "billing-1",
            "host": "127.0.0.1",
            "partitions": [
                {"topic": topic.name, "partition": 0},
                {"topic": topic.name, "partition": 1},
            ],
        }
    ]
    assert found["partitions"] == 2
    assert found["offsets"] == [
        {
            "topic": topic.name,
            "partition": 0,
            "committed": 2,
            "end": 5,
            "lag": 3,
            "member": member,
        },
        {
            "topic": topic.name,
            "partition": 1,
            "committed": None,
            "end": 0,
            "lag": None,
            "member": member,
        },
    ]


def test_a_consumer_group_tells_its_members_too(group: Group, topic: HttpTopic) -> None:
    group.join_as_consumer(topic.name)
    found = group.ask("GET").json
    assert (found["kind"], found["state"]) == ("consumer", "stable")
    (member,) = found["members"]
    assert (member["id"], member["client_id"], member["host"]) == ("me", "new", "127.0.0.1")
    assert [one["partition"] for one in member["partitions"]] == [0, 1]
    assert [(one["partition"], one["member"]) for one in found["offsets"]] == [(0, "me"), (1, "me")]
    (shown,) = listed(group.running, group.name)
    assert (shown["kind"], shown["members"]) == ("consumer", 1)


def test_a_share_that_cannot_be_read_is_shown_as_none(group: Group) -> None:
    group.join(b"\x00\x00\x7f\xff\xff\xff")
    (member,) = group.ask("GET").json["members"]
    assert member["partitions"] == []


def test_looking_opens_no_partition_and_tells_the_end_of_those_that_are_closed(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        topic.append_values(*range(7))
        Group(running, "g").reset(topic.name, 3)
    with running_broker(tmp_path) as running:
        (offset,) = Group(running, "g").ask("GET").json["offsets"]
        assert (offset["committed"], offset["end"], offset["lag"]) == (3, 7, 4)
        assert [one["lag"] for one in listed(running, "g")] == [4]
        partition = running.server.broker.topics.partition(topic.name, 0)
        assert not partition.is_open


def test_the_offsets_of_a_topic_that_is_gone_have_no_end(group: Group, topic: HttpTopic) -> None:
    topic.append_values(1, partition=0)
    group.reset(topic.name, "earliest")
    broker = group.running.server.broker
    kept = broker.topics._topics.pop(topic.name)  # As in the moment before its offsets go, too.
    try:
        found = group.ask("GET").json
        assert found["lag"] == 0
        assert {(one["end"], one["lag"]) for one in found["offsets"]} == {(None, None)}
    finally:
        broker.topics._topics[topic.name] = kept


def test_a_group_that_is_not_there_is_unknown(group: Group) -> None:
    for method in ("GET", "DELETE"):
        answer = group.ask(method)
        assert (answer.status, answer.code) == (404, "unknown_group")


@pytest.mark.parametrize(
    ("state", "word"),
    [("Stable", "stable"), ("PreparingRebalance", "preparing_rebalance"), ("Empty", "empty")],
)
def test_a_state_is_kafkas_word_in_small_letters(state: str, word: str) -> None:
    assert state_name(state) == word


# Deleting.


def test_a_group_without_members_can_be_deleted(group: Group, topic: HttpTopic) -> None:
    group.reset(topic.name, "latest")
    assert group.ask("DELETE").status == 204
    assert group.ask("GET").status == 404
    assert listed(group.running, group.name) == []


def test_a_group_with_members_is_not_deleted(group: Group, topic: HttpTopic) -> None:
    member = group.join(share(topic.name, 0))
    answer = group.ask("DELETE")
    assert (answer.status, answer.code) == (409, "group_not_empty")
    group.leave(member)
    assert group.ask("DELETE").status == 204


# Resetting offsets.


def test_a_group_is_set_to_the_start_the_end_or_an_offset(group: Group, topic: HttpTopic) -> None:
    topic.append_values(*range(4), partition=0)
    topic.append_values(*range(9), partition=1)
    for to, offsets in (("latest", [4, 9]), ("earliest", [0, 0]), (3, [3, 3])):
        answer = group.reset(topic.name, to)
        assert answer.status == 200
        assert [one["committed"] for one in answer.json["offsets"]] == offsets
        assert [one["end"] for one in answer.json["offsets"]] == [4, 9]
        assert [one["lag"] for one in answer.json["offsets"]] == [4 - offsets[0], 9 - offsets[1]]
        assert group.offsets(topic.name) == dict(enumerate(offsets))


def test_one_partition_can_be_set_and_the_others_stay(group: Group, topic: HttpTopic) -> None:
    topic.append_values(*range(4), partition=0)
    topic.append_values(*range(4), partition=1)
    group.reset(topic.name, "latest")
    assert len(group.reset(topic.name, 1, partition=1).json["offsets"]) == 1
    assert group.offsets(topic.name) == {0: 4, 1: 1}


def test_a_moment_is_the_first_record_that_is_as_late_and_else_the_end(
    group: Group, running: RunningBroker
) -> None:
    topic = HttpTopic(running)
    topic.append(*({"value": n, "timestamp": 1_000 * n} for n in range(1, 5)))
    for moment, offset in ((0, 0), (2_000, 1), (2_001, 2), (9_000, 4)):
        answer = group.reset(topic.name, {"timestamp": moment})
        assert [one["committed"] for one in answer.json["offsets"]] == [offset], moment


def test_an_offset_outside_of_the_log_is_refused_and_nothing_is_set(
    group: Group, running: RunningBroker
) -> None:
    topic = HttpTopic(running, partitions=2)
    topic.append_values(*range(9), partition=0)
    topic.append_values(*range(4), partition=1)
    group.reset(topic.name, "earliest")
    answer = group.reset(topic.name, 7)
    assert (answer.status, answer.code) == (416, "offset_out_of_range")
    assert answer.json["error"]["detail"] == {"offset": 7, "start": 0, "end": 4}
    assert group.offsets(topic.name) == {0: 0, 1: 0}


def test_an_offset_before_what_was_deleted_is_refused(group: Group, running: RunningBroker) -> None:
    topic = HttpTopic(running)
    topic.append_values(*range(9))
    topic.ask("DELETE", "/records", {"before": 5})
    assert group.reset(topic.name, 4).json["error"]["detail"]["start"] == 5
    assert group.reset(topic.name, "earliest").json["offsets"][0]["committed"] == 5


@pytest.mark.parametrize("is_new", [False, True])
def test_a_group_with_members_is_not_set_and_what_it_had_stays(
    group: Group, topic: HttpTopic, is_new: bool
) -> None:
    topic.append_values(*range(4), partition=0)
    group.reset(topic.name, 1, partition=0)
    if is_new:
        group.join_as_consumer(topic.name)
    else:
        group.join(share(topic.name, 0))
    answer = group.reset(topic.name, "latest", partition=0)
    assert (answer.status, answer.code) == (409, "group_not_empty")
    assert group.offsets(topic.name) == {0: 1}


def test_members_that_come_while_offsets_are_looked_up_win(
    group: Group, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = group_resets._target

    async def look_up_slowly(*given: Any) -> Any:
        groups = group.running.server.broker.groups
        if groups.find(group.name) is None:
            beat = ConsumerHeartbeat(
                member_id="me",
                member_epoch=0,
                rebalance_timeout_ms=30_000,
                topic_names=frozenset({topic.name}),
                owned={},
            )
            await groups.of(group.name).consumers.heartbeat(group.name, beat)
        return await look_up(*given)

    monkeypatch.setattr(group_resets, "_target", look_up_slowly)
    assert group.reset(topic.name, "earliest").code == "group_not_empty"
    assert group.offsets(topic.name) == {}


def test_what_was_set_is_there_after_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        topic = HttpTopic(running)
        topic.append_values(*range(4))
        group = Group(running, "g")
        assert group.reset(topic.name, 3).status == 200
    with running_broker(tmp_path) as running:
        assert Group(running, "g").offsets(topic.name) == {0: 3}


def test_a_topic_or_partition_that_is_not_there_is_unknown_and_no_group_is_made(
    group: Group, topic: HttpTopic
) -> None:
    assert group.reset("nowhere", "latest").code == "unknown_topic"
    assert group.reset(topic.name, "latest", partition=2).code == "unknown_topic"
    assert group.ask("GET").status == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topic": "t"},
        {"topic": "t", "to": "middle"},
        {"topic": "t", "to": -1},
        {"topic": "t", "to": None},
        {"topic": "t", "to": {"timestamp": -1}},
        {"topic": "t", "to": {"time": 1}},
        {"topic": "t", "to": "latest", "offset": 1},
    ],
)
def test_what_does_not_say_where_to_is_malformed(group: Group, body: dict[str, Any]) -> None:
    answer = group.ask("PUT", "/offsets", body)
    assert (answer.status, answer.code) == (400, "malformed_request")


def test_a_group_needs_a_name_to_be_set(running: RunningBroker, topic: HttpTopic) -> None:
    body = json.dumps({"topic": topic.name, "to": "latest"}).encode()
    answer = ask(running.url, "PUT", "/v1/groups//offsets", body)
    assert (answer.status, answer.code) == (400, "invalid_group")
    assert Group(running, "x" * 1025).reset(topic.name, "latest").code == "invalid_group"


def test_more_partitions_than_one_reset_may_have_are_refused(
    group: Group, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_resets, "PARTITIONS_MAX", 1)
    answer = group.reset(topic.name, "latest")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "partition" in answer.message
    assert group.reset(topic.name, "latest", partition=1).status == 200


def test_what_cannot_be_stored_is_not_answered_as_done(
    group: Group, topic: HttpTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise MillstreamError("the disk is gone")

    monkeypatch.setattr(group.running.server.broker.groups.of(group.name), "commit", refuse)
    assert group.reset(topic.name, "latest").status == 500
    assert group.offsets(topic.name) == {}
