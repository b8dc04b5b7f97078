"""Rules that the histories of loads must keep: pure functions that return what is broken.

| rule | of |
|---|---|
| acknowledged records are stored, at the offset that was told, in the order sent | writes |
| nothing is stored twice, and nothing that was not sent | writes, streams |
| offsets are dense; those without a record are control batches, or were aborted | topics |
| what was consumed stays as it was | groups, watchers |
| committed offsets never fall, and cover nothing that was not read | groups |
| a transaction is visible in all of its partitions or in none | transactions |
| every job is completed once, and the counts agree | queues |
| every record is copied once | queries of Spark |

Replicas are compared by `millstream.testing.replica_files`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from millstream.testing.cluster.history import (
    CopyHistory,
    GroupHistory,
    History,
    Outcome,
    QueueHistory,
    SeenRecord,
    SentRecord,
    StreamHistory,
    TopicContent,
    TransactionHistory,
    WatchHistory,
    WriteHistory,
)

EXAMPLES_MAX = 5
"""How many offsets, values or jobs a message names."""


def check_history(history: History) -> list[str]:
    """Return the rules that a history breaks, one sentence for each; none if it is right."""
    match history:
        case WriteHistory():
            name, broken = history.topic, check_writes(history)
        case TransactionHistory():
            name, broken = history.topic, check_transactions(history)
        case GroupHistory():
            name, broken = history.group, check_group(history)
        case QueueHistory():
            name, broken = history.queue, check_queue(history)
        case StreamHistory():
            name, broken = history.stream, check_stream(history)
        case WatchHistory():
            name, broken = f"watcher of {history.topic}", check_watch(history)
        case CopyHistory():
            name, broken = history.topic, check_copy(history)
    return [f"{name}: {sentence}" for sentence in broken]


def check_writes(history: WriteHistory) -> Iterator[str]:
    """Check a topic that one client wrote to without transactions."""
    content = history.content
    sent = set(history.sent)
    stored = {(record.partition, record.value): record.offset for record in content.records}
    yield from _report(
        "acknowledged records are missing",
        [ack for ack in history.acknowledged if (ack.partition, ack.value) not in stored],
    )
    yield from _report(
        "records are not at the offset that was acknowledged",
        [
            ack
            for ack in history.acknowledged
            if stored.get((ack.partition, ack.value), ack.offset) != ack.offset
        ],
    )
    counts = Counter(record.value for record in content.records)
    yield from _report(
        "records are stored twice", [value for value, count in counts.items() if count > 1]
    )
    yield from _report(
        "records are stored that were not sent there",
        [record for record in content.records if (record.partition, record.value) not in sent],
    )
    yield from _report("records are not in the order in which they were sent", _swapped(history))
    yield from check_offsets(content)
    data = {
        (batch.partition, offset)
        for batch in content.batches
        if not batch.is_control
        for offset in range(batch.first, batch.last + 1)
    }
    yield from _report(
        "offsets have no visible record",
        sorted(data - {(record.partition, record.offset) for record in content.records}),
    )


def _swapped(history: WriteHistory) -> list[SeenRecord]:
    """Return acknowledged records whose offset is below that of one that was sent before."""
    places = {record: number for number, record in enumerate(history.sent)}
    by_partition: defaultdict[int, list[tuple[int, SeenRecord]]] = defaultdict(list)
    for ack in history.acknowledged:
        place = places.get(SentRecord(ack.partition, ack.value))
        if place is not None:
            by_partition[ack.partition].append((place, ack))
    return [
        later
        for acks in by_partition.values()
        for (_, earlier), (_, later) in pairwise(sorted(acks))
        if later.offset <= earlier.offset
    ]


def check_offsets(content: TopicContent) -> Iterator[str]:
    """Check that batches follow each other from offset 0 on, and contain all visible records."""
    ends: defaultdict[int, int] = defaultdict(int)
    gaps = []
    for batch in content.batches:
        if batch.first != ends[batch.partition] or batch.last < batch.first:
            gaps.append(batch)
        ends[batch.partition] = batch.last + 1
    yield from _report("batches do not follow the one before", gaps)
    hidden = {
        (batch.partition, offset)
        for batch in content.batches
        if batch.is_control
        for offset in range(batch.first, batch.last + 1)
    }
    yield from _report(
        "records are visible where no batch has one",
        [
            record
            for record in content.records
            if (record.partition, record.offset) in hidden
            or record.offset >= ends[record.partition]
        ],
    )
    yield from _report(
        "a consumer was given records out of order",
        [
            later
            for earlier, later in pairwise(content.records)
            if (earlier.partition, earlier.offset) >= (later.partition, later.offset)
        ],
    )


def check_transactions(history: TransactionHistory) -> Iterator[str]:
    """Check a topic that transactions wrote to."""
    visible: defaultdict[bytes, list[int]] = defaultdict(list)
    for record in history.content.records:
        visible[record.value].append(record.partition)
    everywhere = list(range(history.partitions))
    yield from _report(
        "transactions are visible in part or twice",
        [value for value, partitions in visible.items() if sorted(partitions) != everywhere],
    )
    outcomes = history.outcomes
    yield from _report(
        "committed transactions are missing",
        [
            value
            for value, outcome in outcomes.items()
            if outcome is Outcome.COMMITTED and value not in visible
        ],
    )
    yield from _report(
        "aborted transactions are visible",
        [value for value in visible if outcomes.get(value) is Outcome.ABORTED],
    )
    yield from _report(
        "transactions are visible that never were", sorted(visible.keys() - outcomes)
    )
    yield from check_offsets(history.content)


def check_group(history: GroupHistory) -> Iterator[str]:
    """Check what a consumer of a group was given, and its committed offsets."""
    yield from _check_consumed(history.seen, history.content)
    greatest: defaultdict[int, int] = defaultdict(int)
    fallen = []
    for commit in history.committed:
        if commit.offset < greatest[commit.partition]:
            fallen.append((commit, greatest[commit.partition]))
        greatest[commit.partition] = max(greatest[commit.partition], commit.offset)
    yield from _report("committed offsets fell", fallen)
    seen = {(record.partition, record.offset) for record in history.seen}
    yield from _report(
        "offsets were committed, but these records were not read",
        [
            record
            for record in history.content.records
            if record.offset < greatest[record.partition]
            and (record.partition, record.offset) not in seen
        ],
    )


def _check_consumed(seen: Sequence[SeenRecord], content: TopicContent) -> Iterator[str]:
    stored = {(record.partition, record.offset): record.value for record in content.records}
    yield from _report(
        "records that were consumed are gone or changed",
        [
            record
            for record in seen
            if stored.get((record.partition, record.offset)) != record.value
        ],
    )


def check_queue(history: QueueHistory) -> Iterator[str]:
    """Check that every job was completed once, and that nothing is left."""
    # Of a job that was completed twice, the first completion counts.
    completed = {delivery.job: delivery.number for delivery in reversed(history.completed)}
    settled = completed.keys() | {delivery.job for delivery in history.unanswered}
    yield from _report("jobs were lost", [job for job in history.put if job not in settled])
    yield from _report(
        "completed jobs were delivered again",
        [
            delivery
            for delivery in history.deliveries
            if delivery.number > completed.get(delivery.job, delivery.number)
        ],
    )
    acknowledgements = Counter(delivery.job for delivery in history.completed)
    yield from _report(
        "jobs were completed twice", [job for job, count in acknowledgements.items() if count > 1]
    )
    known = set(history.sent)
    yield from _report(
        "jobs were delivered that nobody put",
        [delivery for delivery in history.deliveries if delivery.job not in known],
    )
    counts = history.counts
    if (counts.ready, counts.leased, counts.dead) != (0, 0, 0) or counts.acked != counts.enqueued:
        yield f"jobs are left or dead after all were completed: {counts}"
    if not len(history.put) <= counts.enqueued <= len(history.sent):
        sent, put = len(history.sent), len(history.put)
        yield f"{sent} jobs were sent and {put} acknowledged, but the counts are {counts}"


def check_stream(history: StreamHistory) -> Iterator[str]:
    """Check that a stream has the numbers from 0 on, each once."""
    content = history.content
    if len(content) < history.acknowledged:
        yield f"{history.acknowledged} appends were acknowledged, {len(content)} are stored"
    if len(content) > history.sent:
        yield f"{history.sent} appends were sent, {len(content)} are stored"
    yield from _report(
        "appends are missing, doubled or out of order",
        [(index, number) for index, number in enumerate(content) if index != number],
    )


def check_copy(history: CopyHistory) -> Iterator[str]:
    """Check that a copy has every record of its source once, and nothing else."""
    copied = Counter(record.value for record in history.content.records)
    expected = {record.value for record in history.source}
    yield from _report("records were not copied", sorted(expected - copied.keys()))
    yield from _report(
        "records were copied twice", [value for value, count in copied.items() if count > 1]
    )
    yield from _report("records were copied that never were", sorted(copied.keys() - expected))
    yield from check_offsets(history.content)


def check_watch(history: WatchHistory) -> Iterator[str]:
    """Check that a watcher was sent every record once, in order, and nothing that is gone."""
    offsets: defaultdict[int, list[int]] = defaultdict(list)
    for record in history.content.records:
        offsets[record.partition].append(record.offset)
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for record in history.seen:
        seen[record.partition].append(record.offset)
    for partition, sent in seen.items():
        expected = offsets[partition][: len(sent)]
        if sent != expected:
            first = next(
                (
                    index
                    for index, pair in enumerate(zip(sent, expected, strict=False))
                    if pair[0] != pair[1]
                ),
                len(expected),
            )
            yield (
                f"partition {partition}: records were missed, repeated or are gone:"
                f" sent {sent[first : first + EXAMPLES_MAX]},"
                f" stored {expected[first : first + EXAMPLES_MAX]}"
            )


def _report(sentence: str, examples: Iterable[object]) -> Iterator[str]:
    found = list(examples)
    if found:
        named = ", ".join(str(example) for example in found[:EXAMPLES_MAX])
        yield f"{sentence}: {len(found)}, such as {named}"
