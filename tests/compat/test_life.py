"""Real clients read topics with records removed by retention, compaction and deletion.

All but the tests that ask for `ours` can also run against Apache Kafka.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from confluent_kafka import TopicPartition

from .conftest import TIMEOUT_S
from .librdkafka import producer, send
from .life import CLIENTS, Life, Reading, Seen

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

TINY = 1
WHOLE = 1024 * 1024
BEGIN_MS = 1_700_000_000_000
SEGMENT_PER_BATCH = {"segment.ms": "1"}
COMPACTED = SEGMENT_PER_BATCH | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"}

Pair = tuple[str, str | None]


@pytest.fixture
def life(node, admin, bootstrap):
    return Life(node, admin, bootstrap)


@pytest.fixture
def ours(life):
    """Only with our broker."""
    if not life.is_ours:
        pytest.skip("Kafka deletes no records by key")


@pytest.fixture
def write(bootstrap):
    """Write batches of keys and values: `write(topic, [("a", "1"), ("b", None)], ...)`."""
    times = itertools.count(BEGIN_MS, 1000)
    writer = producer(bootstrap, {"linger.ms": 50, "enable.idempotence": True})

    def batches(topic: str, *pairs: Sequence[Pair], writer=writer) -> None:
        for batch in pairs:
            # Kafka closes a segment by the time that records bear.
            now_ms = next(times)
            for key, value in batch:
                writer.produce(topic, value, key, partition=0, timestamp=now_ms)
            assert writer.flush(TIMEOUT_S) == 0

    return batches


every_client = pytest.mark.parametrize("client", CLIENTS)
every_limit = pytest.mark.parametrize("bytes_max", [TINY, WHOLE], ids=["tiny", "whole"])


def check_from(client: str, reading: Reading, expected: Sequence[Seen]) -> None:
    """Read from an offset on, and compare with the expected records."""
    wanted = [seen for seen in expected if seen.offset >= reading.offset]
    assert CLIENTS[client](reading._replace(count=len(wanted))) == wanted


# Retention.


@pytest.fixture
def evicted(life, bootstrap, new_topic):
    """A topic with the remaining offsets 10 to 14."""
    topic = new_topic()
    writer = producer(bootstrap)
    send(writer, topic, [b"%d" % number for number in range(10)], partition=0)
    assert life.evict(topic) == 10
    send(writer, topic, [b"%d" % number for number in range(10, 15)], partition=0)
    return topic


@every_client
def test_who_comes_too_late_goes_on_at_the_first_that_is_left(client, bootstrap, evicted):
    found = CLIENTS[client](Reading(bootstrap, evicted, 3, count=5, reset="earliest"))
    assert found == [Seen(number, None, str(number)) for number in range(10, 15)]


@every_client
def test_who_comes_too_late_goes_on_at_the_end_if_it_wants_to(client, bootstrap, evicted):
    assert CLIENTS[client](Reading(bootstrap, evicted, 3, reset="latest")) == []


@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "kafkajs"])
def test_who_comes_too_late_is_told_so_if_it_wants_to_know(client, bootstrap, evicted):
    with pytest.raises(Exception, match=r"(?i)out.?of.?range"):
        CLIENTS[client](Reading(bootstrap, evicted, 3))


# Compaction.


@pytest.fixture
def compacted(life, bootstrap, new_topic, write):
    """A topic with holes at its start, between batches and in one; returns the other records."""
    topic = new_topic(configs=COMPACTED)
    write(
        topic,
        [("a", "1"), ("b", "1"), ("c", "1")],
        [("a", "2")],
        [("b", "2"), ("a", "3")],
        [("c", "2")],
        [("d", "1"), ("a", "4")],
        [("end", "")],
    )
    left = [
        Seen(4, "b", "2"),
        Seen(6, "c", "2"),
        Seen(7, "d", "1"),
        Seen(8, "a", "4"),
        Seen(9, "end", ""),
    ]
    life.compact(topic, lambda: CLIENTS["confluent"](Reading(bootstrap, topic, 0)) == left)
    return topic, left


@every_limit
@every_client
def test_a_compacted_topic_is_read_from_any_place(client, bytes_max, bootstrap, compacted):
    topic, left = compacted
    for offset in (0, 5) if client == "kafkajs" else (0, 1, 3, 5, 7):
        check_from(client, Reading(bootstrap, topic, offset, bytes_max=bytes_max), left)


@every_client
def test_a_deleted_key_is_told_and_then_forgotten(client, life, bootstrap, new_topic, write):
    topic = new_topic(configs=COMPACTED | {"delete.retention.ms": "86400000"})
    write(topic, [("a", "1")], [("b", "1")], [("a", None)], [("end", "")])
    told = [Seen(1, "b", "1"), Seen(2, "a", None), Seen(3, "end", "")]
    whole = Reading(bootstrap, topic, 0)
    life.compact(topic, lambda: CLIENTS["confluent"](whole) == told)
    check_from(client, whole, told)


@every_client
def test_the_mark_of_a_deleted_key_goes_in_its_time(client, life, bootstrap, new_topic, write):
    topic = new_topic(configs=COMPACTED | {"delete.retention.ms": "0"})
    write(topic, [("a", "1")], [("b", "1")], [("a", None)])
    whole = Reading(bootstrap, topic, 0)

    def is_forgotten() -> bool:
        write(topic, [("more", "")])  # Kafka looks at a topic again when there is more.
        return "a" not in [seen.key for seen in CLIENTS["confluent"](whole)]

    life.compact(topic, is_forgotten)
    (first, *_) = CLIENTS[client](whole._replace(count=2))
    assert first == Seen(1, "b", "1")


@pytest.fixture
def transacted(life, name, bootstrap, new_topic, write):
    """A compacted topic in which one transaction of three was aborted."""
    topic = new_topic(configs=COMPACTED)
    writer = producer(bootstrap, {"transactional.id": name, "linger.ms": 50})
    writer.init_transactions(TIMEOUT_S)
    for pairs, is_commit in (
        ([("a", "1"), ("b", "1")], True),
        ([("a", "aborted"), ("z", "aborted")], False),
        ([("b", "2")], True),
    ):
        writer.begin_transaction()
        write(topic, pairs, writer=writer)
        (writer.commit_transaction if is_commit else writer.abort_transaction)(TIMEOUT_S)
    write(topic, [("c", "1")], [("end", "")])
    left = [Seen(0, "a", "1"), Seen(6, "b", "2"), Seen(8, "c", "1"), Seen(9, "end", "")]
    life.compact(topic, lambda: CLIENTS["confluent"](Reading(bootstrap, topic, 0)) == left)
    return topic, left


@every_limit
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "everything"])
@every_client
def test_an_aborted_transaction_is_compacted_away(
    client, is_committed, bytes_max, bootstrap, transacted
):
    topic, left = transacted
    for offset in (0,) if client == "kafkajs" else (0, 1, 4, 7):
        reading = Reading(bootstrap, topic, offset, bytes_max=bytes_max, is_committed=is_committed)
        check_from(client, reading, left)


# Deletion by key.


@pytest.fixture(params=[False, True], ids=["hidden", "reclaimed"])
def deleted(request, ours, life, new_topic, write):
    """A topic without records at its beginning, in its middle and at its end."""
    topic = new_topic(configs=SEGMENT_PER_BATCH)
    gone = [("gone", "x")]
    write(
        topic,
        gone * 3,
        gone,
        [("stay", "4"), ("gone", "x"), ("stay", "6")],
        gone,
        gone * 2,
        [("stay", "10")],
        [("gone", "x"), ("stay", "12")],
        gone * 2,
        gone,
    )
    assert life.delete_key(topic, "gone") == 12
    if request.param:
        life.reclaim()
    return topic, [Seen(offset, "stay", str(offset)) for offset in (4, 6, 10, 12)]


@every_limit
@every_client
def test_deleted_records_are_passed_over(client, bytes_max, bootstrap, deleted):
    topic, left = deleted
    for offset in (0, 6) if client == "kafkajs" else (0, 2, 5, 6, 8, 11, 13, 15):
        check_from(client, Reading(bootstrap, topic, offset, bytes_max=bytes_max), left)


@every_client
def test_who_waits_behind_deleted_records_gets_what_comes_next(client, bootstrap, deleted, write):
    topic, left = deleted
    write(topic, [("stay", "16")])
    check_from(client, Reading(bootstrap, topic, 13), [*left, Seen(16, "stay", "16")])


@pytest.mark.parametrize("before", [3, 5])
@every_client
def test_records_that_were_deleted_before_an_offset_are_not_missed(
    client, before, ours, admin, bootstrap, new_topic, write
):
    """Kafka reports OFFSET_OUT_OF_RANGE here, as it does after retention."""
    topic = new_topic()
    write(topic, [("k", str(number)) for number in range(5)])
    place = TopicPartition(topic, 0, before)
    admin.delete_records([place])[place].result(TIMEOUT_S)
    left = [Seen(offset, "k", str(offset)) for offset in range(before, 5)]
    check_from(client, Reading(bootstrap, topic, 1), left)
