"""A node with damaged files, and what applications see: clients of Kafka, HTTP and ours."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from millstream import Client, TopicGap
from millstream.errors import DamagedRecords, MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponsePartition,
)
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from millstream.records.batch import split
from tests.crash.broker_process import BrokerProcess
from tests.servers.kafka.client import RawClient

TIMEOUT_S = 60
TOPIC = "t"
ISOLATIONS = ("read_uncommitted", "read_committed")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path)
    start(broker)
    yield broker
    broker.close()


def start(node: BrokerProcess) -> None:
    node.start()
    node.wait_until_ready()


def client(node: BrokerProcess) -> Client:
    return Client(f"http://{node.http}")


def append(node: BrokerProcess, count: int) -> None:
    """Append records, each in its own batch."""
    with client(node) as http:
        for number in range(count):
            http.append(TOPIC, number)


def flip(directory: Path, offset: int) -> None:
    """Flip a bit in the value of the record at `offset`, which is alone in its batch."""
    logs = sorted((directory / "data" / "topics" / TOPIC / "0").glob("*.log"))
    path = next(path for path in reversed(logs) if int(path.stem) <= offset)
    data = bytearray(path.read_bytes())
    position = 0
    for header, batch in split(memoryview(bytes(data))):
        if header.base_offset == offset:
            break
        position += len(batch)
    data[position + 65] ^= 1
    path.write_bytes(data)


def get(node: BrokerProcess, path: str, **headers: str) -> tuple[int, Any]:
    """Return status and body of a response, decoded if it is JSON."""
    request = urllib.request.Request(f"http://{node.http}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            body = response.read().decode()
            is_json = response.headers["content-type"].startswith("application/json")
            return response.status, json.loads(body) if is_json else body
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def offsets(answer: tuple[int, Any]) -> list[int]:
    status, body = answer
    assert status == 200, body
    return [record["offset"] for record in body["records"]]


def records(node: BrokerProcess, query: str) -> tuple[int, Any]:
    return get(node, f"/v1/topics/{TOPIC}/records?{query}")


def fetch(node: BrokerProcess, offset: int, isolation: int) -> FetchResponsePartition:
    part = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=(FetchRequestTopic(topic=TOPIC, partitions=(part,)),),
    )
    with RawClient(node.bootstrap) as raw:
        [topic] = raw.call(request, 12).responses
    [result] = topic.partitions
    assert isinstance(result, FetchResponsePartition)
    return result


def latest(node: BrokerProcess, isolation: int) -> int:
    part = ListOffsetsRequestPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        isolation_level=isolation,
        topics=(ListOffsetsRequestTopic(name=TOPIC, partitions=(part,)),),
    )
    with RawClient(node.bootstrap) as raw:
        [topic] = raw.call(request, 7).topics
    [result] = topic.partitions
    assert result.error_code == 0
    return int(result.offset)


def consumer(node: BrokerProcess, **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **config,
        }
    )


def consume(reader: Consumer) -> tuple[list[int], KafkaError]:
    """Return the offsets that an application gets up to the first error, and that error."""
    found: list[int] = []
    while True:
        message = reader.poll(TIMEOUT_S)
        assert message is not None, f"neither a record nor an error after {found}"
        if (error := message.error()) is not None:
            return found, error
        found.append(message.offset())


def problems(node: BrokerProcess) -> list[str]:
    _, body = get(node, "/health/ready")
    return [p["message"] for p in body["problems"] if p["code"] == "log_damaged"]


def test_a_damaged_last_batch_is_an_error_and_not_an_empty_success(
    node: BrokerProcess, tmp_path: Path
) -> None:
    append(node, 5)
    node.stop()
    flip(tmp_path, 4)
    start(node)
    assert len(problems(node)) == 1, "before anybody reads"
    assert get(node, "/v1/node")[1]["opened"]["damaged_logs"] == 1
    assert offsets(records(node, "from=0")) == [0, 1, 2, 3]
    for query in ("from=4", "from=4&wait_ms=30000", "from=4&limit=1"):
        status, body = records(node, query)
        assert (status, body["error"]["code"]) == (500, "damaged_records"), body
        assert body["error"]["detail"] == {"from": 4, "to": 4}
        assert "/" not in body["error"]["message"], "paths are in the log of the node"
    for isolation in (0, 1):
        assert latest(node, isolation) == 5
        found = fetch(node, 0, isolation)
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 5, 5)
        assert [header.base_offset for header, _ in split(found.records)] == [0, 1, 2, 3]
        assert fetch(node, 4, isolation).error_code == ErrorCode.CORRUPT_MESSAGE
        found = fetch(node, 5, isolation)
        assert (found.error_code, bytes(found.records)) == (0, b""), "nothing is after it"
    [problem] = problems(node)
    assert problem.startswith(f"{TOPIC}/0: ")
    assert "00000000000000000000.log: byte " in problem
    assert problem.endswith("offset 4 is lost")
    assert "millstream_store_damaged_logs 1" in get(node, "/metrics")[1]
    assert get(node, "/v1/node")[1]["opened"]["damaged_logs"] == 1


def test_damage_in_the_middle_costs_what_is_damaged(node: BrokerProcess, tmp_path: Path) -> None:
    append(node, 120)
    node.stop()
    flip(tmp_path, 47)
    start(node)
    assert offsets(records(node, "limit=10")) == list(range(10))
    assert offsets(records(node, "limit=1000")) == list(range(47))
    assert records(node, "from=47")[0] == 500
    assert offsets(records(node, "from=48&limit=1000")) == list(range(48, 120))
    for isolation in ISOLATIONS:
        reader = consumer(node, **{"isolation.level": isolation, "group.id": isolation})
        reader.subscribe([TOPIC])
        found, error = consume(reader)
        assert found == list(range(47))
        assert error.code() == ErrorCode.CORRUPT_MESSAGE
        assert "at offset 47" in error.str(), "the application is told where"
        reader.seek(TopicPartition(TOPIC, 0, 48))
        behind = []
        while len(behind) < 72:
            message = reader.poll(TIMEOUT_S)
            assert message is not None
            if message.error() is None:
                behind.append(message.offset())
        assert behind == list(range(48, 120))
        reader.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_other_clients_are_told_too(node: BrokerProcess, tmp_path: Path) -> None:
    from kafka import KafkaConsumer  # noqa: PLC0415 - warns when it is imported.
    from kafka.errors import CorruptRecordError  # noqa: PLC0415

    append(node, 6)
    node.stop()
    flip(tmp_path, 3)
    start(node)
    reader = KafkaConsumer(
        TOPIC, bootstrap_servers=node.bootstrap, auto_offset_reset="earliest", group_id=None
    )
    found = []

    def read() -> None:
        for message in reader:
            found.append(message.offset)

    with pytest.raises(CorruptRecordError):
        read()
    assert found == [0, 1, 2]
    reader.close()
    with client(node) as http:
        found, damage = _until_damage(http.read(TOPIC))
        assert found == [0, 1, 2]
        assert (damage.from_offset, damage.to_offset) == (3, 3)
        assert [item.offset for item in http.read(TOPIC, from_=4)] == [4, 5]


def _until_damage(items: Iterable[Any]) -> tuple[list[int], DamagedRecords]:
    found: list[int] = []
    with pytest.raises(DamagedRecords) as raised:
        found.extend(item.offset for item in items)
    return found, raised.value


def test_a_stream_of_events_reports_the_gap_and_goes_on(
    node: BrokerProcess, tmp_path: Path
) -> None:
    append(node, 6)
    node.stop()
    flip(tmp_path, 3)
    start(node)
    with client(node) as http, http.follow(TOPIC, from_="earliest") as follower:
        found = [next(follower) for _ in range(6)]
    assert [item.offset for item in found[:3] + found[4:]] == [0, 1, 2, 4, 5]
    gap = found[3]
    assert isinstance(gap, TopicGap)
    assert (gap.from_offset, gap.to_offset, gap.reason) == (3, 3, "damaged")


def test_damage_after_a_kill_does_not_make_a_log_shorter(
    node: BrokerProcess, tmp_path: Path
) -> None:
    append(node, 60)
    reader = consumer(node)
    reader.commit(offsets=[TopicPartition(TOPIC, 0, 40)], asynchronous=False)
    reader.close()
    node.kill()
    flip(tmp_path, 20)
    start(node)
    for isolation in (0, 1):
        assert latest(node, isolation) == 60
        found = fetch(node, 0, isolation)
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 60, 60)
        assert [header.base_offset for header, _ in split(found.records)] == list(range(20))
        assert fetch(node, 20, isolation).error_code == ErrorCode.CORRUPT_MESSAGE
        assert fetch(node, 60, isolation).error_code == 0
    assert offsets(records(node, "from=0&limit=1000")) == list(range(20))
    assert offsets(records(node, "from=21&limit=1000")) == list(range(21, 60))
    assert any("offset 20 is lost" in problem for problem in problems(node))
    group = consumer(node)
    group.subscribe([TOPIC])
    message = group.poll(TIMEOUT_S)
    assert message is not None
    assert (message.error(), message.offset()) == (None, 40), "not reset to the start"
    group.close()
    with client(node) as http, pytest.raises(MillstreamError):
        http.append(TOPIC, "more")


def test_damage_at_the_end_after_a_kill_is_an_error_for_those_behind_it(
    node: BrokerProcess, tmp_path: Path
) -> None:
    append(node, 10)
    reader = consumer(node)
    reader.commit(offsets=[TopicPartition(TOPIC, 0, 9)], asynchronous=False)
    reader.close()
    node.kill()
    flip(tmp_path, 9)
    start(node)
    assert [latest(node, isolation) for isolation in (0, 1)] == [10, 10]
    assert offsets(records(node, "from=0")) == list(range(9))
    assert records(node, "from=9")[0] == 500
    group = consumer(node)
    group.subscribe([TOPIC])
    found, error = consume(group)
    assert (found, error.code()) == ([], ErrorCode.CORRUPT_MESSAGE), "and not reset to the start"
    group.close()


def test_jobs_around_damage_are_delivered_and_the_lost_ones_are_a_dead_letter(
    node: BrokerProcess, tmp_path: Path
) -> None:
    with client(node) as http:
        http.create_queue(TOPIC)
    append(node, 5)
    node.stop()
    flip(tmp_path, 3)
    start(node)
    with client(node) as http:
        queue = http.queue(TOPIC)
        values: list[int] = []
        while len(values) < 4:
            values += [job.value for job in queue.claim(10, wait_ms=30_000)]
        assert values == [0, 1, 2, 4]
        assert queue.counts().damaged == 1
    letters: list[dict[str, Any]] = []
    while not letters:
        status, answer = get(node, f"/v1/topics/{TOPIC}-dead/records?from=0&wait_ms=1000")
        letters = answer["records"] if status == 200 else []
    assert letters[0]["headers"]["millstream-offset"] == "3"
