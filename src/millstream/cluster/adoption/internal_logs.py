"""State logs of a lone node, distributed over the internal partitions of a cluster.

    __state of the lone node        internal topic    partitions
    groups                          __groups          16, by hash of the group id
    transactions                    __transactions    16, by hash of the transactional id
    streams                         __streams         1
    queue-TOPIC-ID                  __queue-...       1, event by event

What is written here is what the coordinators of the partitions find when they are elected.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.broker.groups.classic import record as classic_record
from millstream.broker.groups.consumer import records as consumer_records
from millstream.broker.groups.group import decode_key
from millstream.broker.groups.offsets import record as offsets_record
from millstream.broker.state.internal_partitions import (
    GROUPS,
    QUEUE_PREFIX,
    STREAMS,
    TRANSACTIONS,
    InternalPartition,
)
from millstream.broker.state.routing import index_of_group, index_of_transactional_id
from millstream.broker.state.state_clock import CLOCK_KEY, clock_entry
from millstream.broker.state.state_log import StateLog, state_log_config
from millstream.broker.state.state_writer import BATCH_BYTES_MAX, stored_records
from millstream.broker.streams.row import ROW_KEY
from millstream.broker.transactions.publication_record import is_publication_key, publisher_of
from millstream.clock import Clock
from millstream.cluster.coordination.internal_topics import (
    PARTITIONS,
    partition_count,
    topic_of,
)
from millstream.errors import CorruptData, UnknownFormat
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.storage.files.names import LogName
from millstream.storage.store import Store

RECORDS_MAX = 2_000
"""Records of one batch."""

StateRecords = dict[InternalPartition, list[Record]]


class StateCounts(NamedTuple):
    """What the state logs of a lone node have."""

    groups: int
    """Groups, with members or with committed offsets only."""
    transactional_ids: int
    streams: int
    queues: int


async def read_state(state: Store, clock: Clock, now_ms: int) -> StateRecords:
    """Read all state of a lone node, and return what each internal partition gets.

    `now_ms` is the time of its retention clock, which dates publications and the last uses of
    streams: their ages go on from there. Raises if something is damaged, missing or unknown.
    """
    records: StateRecords = {}
    for name in state.names():
        log = await state.log(name.topic, name.partition)
        if name.topic in PARTITIONS and name.partition == 0:
            entries = StateLog.read(log, clock)
            index_of = _INDEX_OF[name.topic]
            count = partition_count(name.topic)
            for key, value in entries.items():
                if key != CLOCK_KEY:
                    partition = InternalPartition(name.topic, index_of(key, count))
                    records.setdefault(partition, []).append(Record(value, key))
        elif name.topic.startswith(QUEUE_PREFIX) and name.partition == 0:
            events = [Record(record.value, record.key) for record in stored_records(log)]
            records[InternalPartition(name.topic)] = events
        else:
            raise UnknownFormat(f"{state.path} has a log {name}, which this release does not know")
    key, value = clock_entry(now_ms)
    for partition, found in records.items():
        if partition.name in (TRANSACTIONS, STREAMS):
            found.append(Record(value, key))
    return records


def count_state(records: StateRecords) -> StateCounts:
    """Return how much there is, for people."""
    keys = {
        name: [
            record.key
            for partition, found in records.items()
            if partition.name == name
            for record in found
            if record.key is not None and record.key != CLOCK_KEY
        ]
        for name in PARTITIONS
    }
    return StateCounts(
        groups=len({group_of(key) for key in keys[GROUPS]}),
        transactional_ids=sum(not is_publication_key(key) for key in keys[TRANSACTIONS]),
        streams=sum(key.startswith(ROW_KEY) for key in keys[STREAMS]),
        queues=sum(partition.name.startswith(QUEUE_PREFIX) for partition in records),
    )


async def write_state(
    staging: Store, records: StateRecords, topic_ids: Mapping[str, uuid.UUID]
) -> dict[LogName, int]:
    """Write what `read_state` returned to logs of a store; return their ends.

    All of it is durable once the store is closed.
    """
    config = state_log_config(staging.log_config)
    ends = {}
    for partition, found in records.items():
        name = LogName(topic_of(partition.name), partition.number)
        log = await staging.log(*name, config=config, topic_id=topic_ids[name.topic])
        for chunk in _chunks(found):
            await log.append(build_batch(chunk, now_ms=staging.now_ms()))
        ends[name] = log.end_offset
    return ends


def group_of(key: bytes) -> str:
    """Return the group that an entry of the state log belongs to."""
    family, *names = parts = decode_key(key)
    at = 1 if family == offsets_record.PENDING else 0
    known = (classic_record.FAMILY, consumer_records.FAMILY, *offsets_record.FAMILIES)
    if family not in known:
        raise UnknownFormat(f"groups: unknown kind of entry {parts}")
    group_id = names[at] if len(names) > at else None
    if not isinstance(group_id, str):
        raise CorruptData(f"groups: entry {parts} belongs to no group")
    return group_id


def transactional_id_of(key: bytes) -> str:
    """Return the transactional id or the publisher of an entry of the state log."""
    if is_publication_key(key):
        return publisher_of(key)
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"transactions: key {key[:80]!r}: {error}") from error


_INDEX_OF: Mapping[str, Callable[[bytes, int], int]] = {
    GROUPS: lambda key, count: index_of_group(group_of(key), count),
    TRANSACTIONS: lambda key, count: index_of_transactional_id(transactional_id_of(key), count),
    STREAMS: lambda _key, _count: 0,
}


def _chunks(records: Iterable[Record]) -> Iterator[Sequence[Record]]:
    """Divide records into batches; one that is larger than a batch has its own."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        length = len(record.key or b"") + len(record.value or b"")
        if chunk and (size + length > BATCH_BYTES_MAX or len(chunk) >= RECORDS_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += length
    if chunk:
        yield chunk
