"""The checker finds each kind of wrong history, and nothing in right ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from millstream.testing.cluster.checker import check_history
from millstream.testing.cluster.history import (
    CopyHistory,
    GroupHistory,
    History,
    JobCounts,
    JobDelivery,
    ObservedCommit,
    Outcome,
    QueueHistory,
    SeenBatch,
    SeenRecord,
    SentRecord,
    StreamHistory,
    TopicContent,
    TransactionHistory,
    WatchHistory,
    WriteHistory,
)


def records(*values: str, partition: int = 0, first: int = 0) -> list[SeenRecord]:
    return [SeenRecord(partition, first + at, value.encode()) for at, value in enumerate(values)]


def content(seen: Sequence[SeenRecord], *batches: tuple[int, ...]) -> TopicContent:
    """Records with one batch each, or with batches of (partition, first, last[, is_control])."""
    default = [SeenBatch(record.partition, record.offset, record.offset, False) for record in seen]
    made = [SeenBatch(*batch[:3], is_control=bool(batch[3:])) for batch in batches]
    return TopicContent(seen, made or default)


STORED = records("a", "b", "c")
WRITES = WriteHistory(
    topic="t",
    sent=[SentRecord(0, value) for value in (b"a", b"b", b"c", b"d")],
    acknowledged=STORED[:2],
    content=content(STORED),
)


def control(at: int) -> tuple[int, int, int, int]:
    return (0, at, at, 1)


TRANSACTIONS = TransactionHistory(
    topic="t",
    partitions=2,
    outcomes={b"1": Outcome.COMMITTED, b"2": Outcome.ABORTED, b"3": Outcome.UNKNOWN},
    content=content(
        [SeenRecord(0, 0, b"1"), SeenRecord(1, 0, b"1")],
        *[(0, 0, 0), (0, 1, 1, 1), (0, 2, 2), (0, 3, 3, 1)],
        *[(1, 0, 0), (1, 1, 1, 1), (1, 2, 2), (1, 3, 3, 1)],
    ),
)
GROUP = GroupHistory(
    group="g",
    seen=[*STORED, STORED[2]],
    committed=[ObservedCommit(0, 1), ObservedCommit(0, 3), ObservedCommit(0, 3)],
    content=content(STORED),
)
QUEUE = QueueHistory(
    queue="q",
    sent=["a", "b", "c"],
    put=["a", "b"],
    deliveries=[JobDelivery("a", 1), JobDelivery("b", 1), JobDelivery("b", 2)],
    completed=[JobDelivery("a", 1)],
    unanswered=[JobDelivery("b", 2)],
    counts=JobCounts(enqueued=2, acked=2, ready=0, leased=0, dead=0),
)
STREAM = StreamHistory(stream="s", sent=4, acknowledged=2, content=[0, 1, 2])
WATCH = WatchHistory(topic="t", seen=records("", ""), content=content(STORED))
COPY = CopyHistory(topic="t", source=records("c", "a", "b"), content=content(STORED))


@pytest.mark.parametrize("history", [WRITES, TRANSACTIONS, GROUP, QUEUE, STREAM, WATCH, COPY])
def test_a_right_history_breaks_no_rule(history: History):
    assert check_history(history) == []


def wrong(history: Any, rule: str, **changes: Any) -> Any:
    return pytest.param(replace(history, **changes), rule, id=rule.replace(" ", "-"))


def two(*places: tuple[int, int]) -> TopicContent:
    """Transaction 1, visible at these partitions and offsets."""
    return TopicContent([SeenRecord(*place, b"1") for place in places], ())


WRONG = [
    wrong(WRITES, "acknowledged records are missing", content=content(STORED[:1])),
    wrong(
        WRITES,
        "not at the offset that was acknowledged",
        acknowledged=[SeenRecord(0, 1, b"a")],
    ),
    wrong(WRITES, "stored twice", content=content(records("a", "b", "a"))),
    wrong(WRITES, "stored that were not sent", content=content(records("a", "b", "x"))),
    wrong(
        WRITES,
        "not in the order in which they were sent",
        acknowledged=records("b", "a"),
        content=content(records("b", "a")),
    ),
    wrong(
        WRITES,
        "do not follow the one before",
        content=content([*STORED[:2], SeenRecord(0, 3, b"c")]),
    ),
    wrong(WRITES, "have no visible record", content=content(STORED[:2], (0, 0, 2))),
    wrong(
        WRITES,
        "visible where no batch has one",
        content=content(STORED, (0, 0, 1), control(2)),
    ),
    wrong(WRITES, "visible where no batch", content=content(STORED, (0, 0, 1))),
    wrong(
        WRITES,
        "given records out of order",
        content=content([STORED[1], STORED[0], STORED[2]], (0, 0, 2)),
    ),
    wrong(TRANSACTIONS, "visible in part or twice", content=two((0, 0))),
    wrong(TRANSACTIONS, "in part or twice", content=two((0, 0), (0, 2), (1, 0))),
    wrong(TRANSACTIONS, "committed transactions are missing", content=two()),
    wrong(TRANSACTIONS, "aborted transactions are visible", outcomes={b"1": Outcome.ABORTED}),
    wrong(TRANSACTIONS, "visible that never were", outcomes={}),
    wrong(GROUP, "consumed are gone or changed", seen=[*STORED, SeenRecord(0, 3, b"d")]),
    wrong(GROUP, "gone or changed", seen=[*STORED, SeenRecord(0, 1, b"x")]),
    wrong(
        GROUP,
        "committed offsets fell",
        committed=[ObservedCommit(0, 3), ObservedCommit(0, 2)],
    ),
    wrong(GROUP, "but these records were not read", seen=[STORED[0], STORED[2]]),
    wrong(QUEUE, "jobs were lost", unanswered=[]),
    wrong(
        QUEUE,
        "completed jobs were delivered again",
        deliveries=[*QUEUE.deliveries, JobDelivery("a", 2)],
    ),
    wrong(QUEUE, "completed twice", completed=[JobDelivery("a", 1), JobDelivery("a", 1)]),
    wrong(
        QUEUE,
        "jobs were delivered again",
        deliveries=[*QUEUE.deliveries, JobDelivery("a", 2)],
        completed=[JobDelivery("a", 1), JobDelivery("a", 2)],
    ),
    wrong(QUEUE, "that nobody put", deliveries=[*QUEUE.deliveries, JobDelivery("x", 1)]),
    wrong(QUEUE, "jobs are left", counts=QUEUE.counts._replace(acked=1, ready=1)),
    wrong(QUEUE, "jobs are left or dead", counts=QUEUE.counts._replace(dead=1)),
    wrong(QUEUE, "jobs were sent", counts=QUEUE.counts._replace(enqueued=1, acked=1)),
    wrong(QUEUE, "but the counts are", counts=QUEUE.counts._replace(enqueued=4, acked=4)),
    wrong(STREAM, "appends were acknowledged", content=[0]),
    wrong(STREAM, "appends were sent", content=[0, 1, 2, 3, 4]),
    wrong(STREAM, "missing, doubled or out of order", content=[0, 1, 1]),
    wrong(WATCH, "missed, repeated or are gone", seen=records("", "", first=1)),
    wrong(WATCH, "repeated or are gone", seen=records("", "", "", "")),
    wrong(COPY, "were not copied", source=records("a", "b", "c", "d")),
    wrong(COPY, "copied twice", content=content(records("a", "b", "c", "a"))),
    wrong(COPY, "copied that never were", source=records("a", "b")),
    wrong(COPY, "do not follow the one before", content=content(STORED, (0, 0, 1), (0, 3, 3))),
]


@pytest.mark.parametrize(("history", "rule"), WRONG)
def test_a_wrong_history_is_told_by_the_rule_that_it_breaks(history: History, rule: str):
    assert any(rule in sentence for sentence in check_history(history)), check_history(history)


def test_a_message_names_the_topic_the_number_and_some_examples():
    lost = replace(WRITES, acknowledged=records(*map(str, range(9))))
    message = next(line for line in check_history(lost) if "are missing" in line)
    assert message.startswith("t: acknowledged records are missing: 9, such as SeenRecord(")
    assert message.count("SeenRecord(") == 5
