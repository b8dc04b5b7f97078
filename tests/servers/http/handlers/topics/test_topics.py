"""Topics over HTTP: their offsets, and deletions from them."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from millstream.broker.broker import Broker
from millstream.config.schema import BrokerConfig, HttpConfig
from millstream.records.build import build_batch
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.testing.broker import RunningBroker, running_broker
from tests.broker.partitions import append
from tests.servers.http.calls import Answer, ask

T = TypeVar("T")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    path: Path = tmp_path_factory.mktemp("node")
    with running_broker(path, broker=BrokerConfig(num_partitions=1)) as broker:
        yield broker


class Topic:
    """A topic of the running node that no other test uses."""

    def __init__(self, running: RunningBroker, *, partitions: int = 1) -> None:
        self._running = running
        self.name = f"t-{uuid.uuid4()}"
        self.run(self._broker.topics.create(self.name, partitions=partitions))

    @property
    def _broker(self) -> Broker:
        return self._running.server.broker

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's event loop."""
        return self._running.run(work)

    def append(self, *keys: bytes | None, partition: int = 0) -> None:
        """Append one record for each key, in one batch."""
        batch = build_batch([Record(b"v", key=key) for key in keys], now_ms=0)

        async def go() -> None:
            found = self._broker.topics.partition(self.name, partition)
            await found.open()
            await append(found, batch)

        self.run(go())

    def keys(self, partition: int = 0) -> list[bytes | None]:
        """Return the keys that a consumer reads from the first offset on."""

        async def go() -> list[bytes | None]:
            found = self._broker.topics.partition(self.name, partition)
            await found.open()
            position, keys = found.log_start_offset, []
            while position < found.high_watermark:
                fetched = found.reader.read(position, size_max=1 << 20)
                for part in fetched.parts:
                    keys += [record.key for record in read_all(part) if record.offset >= position]
                position = fetched.next_offset
            return keys

        return self.run(go())

    def describe(self) -> Any:
        answer = ask(self._running.url, "GET", f"/v1/topics/{self.name}")
        assert answer.status == 200
        return answer.json

    def delete(self, body: Any = None, **fields: Any) -> Answer:
        """Request a deletion with these fields, or with a raw body."""
        data = json.dumps(fields).encode() if body is None else body
        return ask(self._running.url, "DELETE", f"/v1/topics/{self.name}/records", data)

    def deleted(self, **fields: Any) -> int:
        answer = self.delete(**fields)
        assert answer.status == 200, answer.body
        assert answer.json.keys() == {"deleted"}
        return answer.json["deleted"]


@pytest.fixture
def topic(running: RunningBroker) -> Topic:
    return Topic(running)


@pytest.fixture
def wide(running: RunningBroker) -> Topic:
    """A topic with three partitions."""
    return Topic(running, partitions=3)


# Looking.


def test_a_topic_that_was_never_used_is_empty(topic: Topic) -> None:
    found = topic.describe()
    assert found["name"] == topic.name
    assert uuid.UUID(found["id"])
    assert (found["partition_count"], found["durability"], found["configs"]) == (1, "fsync", {})
    assert found["partitions"] == [
        {
            "partition": 0,
            "first_live_offset": 0,
            "eviction_floor": 0,
            "head": 0,
            "count": 0,
            "bytes": 0,
            "epoch": 0,
            "segments": 0,
            "deleted": 0,
            "reclaimable_bytes": 0,
            "gaps": [],
            "leader": 1,
            "isr": [1],
            "replicas": [1],
            "stale": False,
        }
    ]


def test_each_partition_says_how_far_it_reaches(wide: Topic) -> None:
    wide.append(b"a", b"b", partition=1)
    wide.append(b"c", partition=2)
    found = wide.describe()
    partitions = found["partitions"]
    assert [one["partition"] for one in partitions] == [0, 1, 2]
    assert [one["head"] for one in partitions] == [0, 2, 1]
    assert [one["count"] for one in partitions] == [0, 2, 1]
    assert found["count"] == 3
    assert found["bytes"] == sum(one["bytes"] for one in partitions) > 0


def test_what_was_deleted_and_waits_to_be_reclaimed_is_told(topic: Topic) -> None:
    topic.append(b"a", b"b", b"a")
    assert topic.deleted(key="a") == 2
    found = topic.describe()
    assert found["deleted"] == 2
    assert found["reclaimable_bytes"] > 0
    assert found["partitions"][0]["head"] == 3


def test_a_gap_is_told_where_retention_took_records_and_not_where_someone_deleted(
    topic: Topic,
) -> None:
    topic.append(b"a", b"b")
    topic.append(b"c", b"d")
    assert topic.deleted(before=1) == 1
    (found,) = topic.describe()["partitions"]
    assert (found["first_live_offset"], found["eviction_floor"], found["gaps"]) == (1, 0, [])

    async def evict() -> None:
        await topic._broker.store.get(topic.name).evict_before(2)

    topic.run(evict())
    (found,) = topic.describe()["partitions"]
    assert (found["first_live_offset"], found["eviction_floor"]) == (2, 2)
    assert found["gaps"] == [{"from": 0, "to": 1, "reason": "retention"}]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", ["nothing", "..", "%2e%2e", "a%00b", "%F0%9F%9A%80", "x" * 5000])
def test_a_topic_that_is_not_there_is_not_found(
    running: RunningBroker, method: str, name: str
) -> None:
    path = f"/v1/topics/{name}" + ("/records" if method == "DELETE" else "")
    answer = ask(running.url, method, path, b'{"key": "a"}' if method == "DELETE" else None)
    assert answer.status == 404
    assert answer.code in ("unknown_topic", "not_found")
    assert len(answer.body) < 1000


# Deleting.


def test_a_key_goes_in_all_partitions(wide: Topic) -> None:
    for partition in range(3):
        wide.append(b"a", b"b", partition=partition)
    assert wide.deleted(key="a") == 3
    assert [wide.keys(partition) for partition in range(3)] == [[b"b"]] * 3
    assert wide.deleted(key="a") == 0


def test_a_key_goes_in_the_partition_that_was_named(wide: Topic) -> None:
    for partition in range(3):
        wide.append(b"a", partition=partition)
    assert wide.deleted(key="a", partition=1) == 1
    assert [wide.keys(partition) for partition in range(3)] == [[b"a"], [], [b"a"]]


def test_all_keys_go_that_begin_so(topic: Topic) -> None:
    topic.append(b"customer-7", b"customer-71", b"customer-8", None)
    assert topic.deleted(key_prefix="customer-7") == 2
    assert topic.keys() == [b"customer-8", None]


def test_a_key_goes_before_an_offset_only(topic: Topic) -> None:
    topic.append(b"a", b"a", b"a")
    assert topic.deleted(key="a", before=2) == 2
    assert topic.keys() == [b"a"]


def test_what_comes_after_a_deletion_stays(topic: Topic) -> None:
    topic.append(b"a")
    assert topic.deleted(key="a") == 1
    topic.append(b"a")
    assert topic.keys() == [b"a"]


def test_all_before_an_offset_goes(topic: Topic) -> None:
    topic.append(b"a", b"b", b"c")
    assert topic.deleted(before=2) == 2
    assert topic.keys() == [b"c"]
    assert topic.deleted(before=1) == 0
    assert topic.describe()["partitions"][0]["first_live_offset"] == 2


def test_an_offset_needs_a_partition_where_there_are_several(wide: Topic) -> None:
    wide.append(b"a", b"b", partition=1)
    answer = wide.delete(before=1)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "3 partitions" in answer.message
    assert wide.delete(before=1, key="a").status == 400
    assert wide.deleted(before=1, partition=1) == 1
    assert wide.keys(1) == [b"b"]


def test_an_offset_past_the_end_is_refused_with_where_the_end_is(topic: Topic) -> None:
    topic.append(b"a")
    answer = topic.delete(before=2)
    assert (answer.status, answer.code) == (416, "offset_out_of_range")
    assert answer.json["error"]["detail"] == {"offset": 2, "start": 0, "end": 1}
    assert topic.keys() == [b"a"]


def test_a_key_is_the_utf_8_of_a_text(topic: Topic) -> None:
    topic.append("müller".encode(), "müller".encode("latin-1"), b"")
    assert topic.deleted(key="müller") == 1
    assert topic.deleted(key="") == 1
    assert topic.keys() == ["müller".encode("latin-1")]


def test_bytes_that_are_no_text_go_as_base64(topic: Topic) -> None:
    topic.append(b"\xff\x00", b"\xff\x01", b"\xfe")
    assert topic.deleted(key={"base64": base64.b64encode(b"\xff\x00").decode()}) == 1
    assert topic.deleted(key_prefix={"base64": base64.b64encode(b"\xff").decode()}) == 1
    assert topic.keys() == [b"\xfe"]


def test_a_partition_that_is_not_there_is_not_found(topic: Topic) -> None:
    answer = topic.delete(key="a", partition=1)
    assert (answer.status, answer.code) == (404, "unknown_topic")


def test_an_empty_prefix_does_not_delete_everything(topic: Topic) -> None:
    topic.append(b"a")
    assert topic.delete(key_prefix="").status == 400
    assert topic.keys() == [b"a"]


# What is refused, and deletes nothing.

WRONG = {
    "nothing": b"",
    "no object": b"[]",
    "no field": b"{}",
    "a partition alone": b'{"partition": 0}',
    "text": b"a",
    "a null key": b'{"key": null}',
    "a number for a key": b'{"key": 7}',
    "a key and a prefix": b'{"key": "a", "key_prefix": "a"}',
    "a negative offset": b'{"before": -1}',
    "half an offset": b'{"before": 1.5}',
    "true for an offset": b'{"before": true}',
    "an offset that is no 64-bit number": b'{"before": 9223372036854775808}',
    "an offset in words": b'{"before": "1"}',
    "a number of many digits": b'{"before": ' + b"9" * 100_000 + b"}",
    "infinity": b'{"before": Infinity}',
    "not a number": b'{"before": NaN}',
    "a field twice": b'{"key": "a", "key": "b"}',
    "half a pair of surrogates": b'{"key": "\\ud800"}',
    "a mark of the byte order": b'\xef\xbb\xbf{"key": "a"}',
    "another encoding": '{"key": "ä"}'.encode("latin-1"),
    "utf-16": '{"key": "a"}'.encode("utf-16"),
    "no base64": b'{"key": {"base64": "*"}}',
    "a number for base64": b'{"key": {"base64": 7}}',
    "another object": b'{"key": {"base64": "YQ==", "more": 1}}',
    "deep lists": b'{"key": ' + b"[" * 100_000,
    "deep lists that end": b'{"key": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep lists where a number goes": b'{"before": ' + b"[" * 900 + b"]" * 900 + b"}",
    "more behind it": b'{"key": "a"} {}',
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
def test_a_body_that_says_nothing_clear_is_refused(topic: Topic, body: bytes) -> None:
    topic.append(b"a")
    answer = topic.delete(body)
    assert answer.status == 400, answer.body
    assert answer.code in ("malformed_request", "invalid_request")
    assert len(answer.body) < 1000
    assert topic.keys() == [b"a"]


def test_unknown_fields_are_refused_by_name(topic: Topic) -> None:
    topic.append(b"a")
    answer = topic.delete(key="a", dry_run=True, befor=3)
    assert answer.status == 400
    assert "'dry_run', 'befor'" in answer.message
    assert "'key', 'key_prefix', 'before', 'partition'" in answer.message
    assert topic.keys() == [b"a"]


@pytest.mark.parametrize("size", [256 * 1024 + 1, 10_000_000_000])
def test_a_body_that_claims_too_much_is_not_waited_for(topic: Topic, size: int) -> None:
    answer = ask(
        topic._running.url,
        "DELETE",
        f"/v1/topics/{topic.name}/records",
        b"{",
        {"Content-Length": str(size)},
    )
    assert answer.status == 413
    assert answer.message == f"body must have at most 262144 bytes, got {size}"


def test_a_body_in_chunks_is_counted_while_it_arrives(topic: Topic) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 65_536

    try:
        answer = ask(topic._running.url, "DELETE", f"/v1/topics/{topic.name}/records", chunks())
    except OSError:  # It hung up on a client that would not stop, whose answer was lost with it.
        pass
    else:
        assert answer.status == 413
    assert 4 < sent < 2000


def test_a_large_key_fits(topic: Topic) -> None:
    key = b"\xff" * 65_536
    topic.append(key)
    assert topic.deleted(key={"base64": base64.b64encode(key).decode()}) == 1


def test_a_packed_body_is_refused(topic: Topic) -> None:
    answer = ask(
        topic._running.url,
        "DELETE",
        f"/v1/topics/{topic.name}/records",
        b'{"key": "a"}',
        {"Content-Encoding": "gzip"},
    )
    assert (answer.status, answer.code) == (415, "unsupported_media_type")


def test_a_body_that_trickles_in_is_given_up(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(body_ms_max=100)) as running:
        answer = ask(running.url, "PUT", "/v1/topics/a", b'{"partit', {"Content-Length": "12"})
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert "100 ms" in answer.message
    assert answer.headers["connection"] == "close"
