"""Snapshots of a queue: the complete state as one event."""

from __future__ import annotations

from millstream.broker.queues.events import QueueStateSnapshot
from millstream.broker.queues.jobs import (
    DEAD_LETTERING,
    DELAYED,
    EXPIRED,
    LEASED,
    RETURNED,
    PartitionJobs,
    UnfinishedJob,
)
from millstream.broker.queues.state import QueueStateMachine
from millstream.errors import CorruptData

_STORED_KINDS = {
    LEASED: LEASED,
    EXPIRED: LEASED,
    DELAYED: DELAYED,
    RETURNED: DELAYED,
    DEAD_LETTERING: DEAD_LETTERING,
}
"""The kind stored for a job: whether its deadline has passed is not stored."""


def snapshot_of(state: QueueStateMachine) -> QueueStateSnapshot:
    """Return the durable state as one event."""
    partitions = []
    released: list[int] = []
    for partition, partition_jobs in state.partitions.items():
        numbers: list[int] = []
        for offset, job in partition_jobs.jobs.items():
            kind = _STORED_KINDS[job.kind]
            numbers += (offset, job.number, kind, job.due_ms, job.length_ms)
            if job.number > job.deliveries:
                released += (partition, offset, job.number - job.deliveries)
        partitions.append((partition, partition_jobs.frontier, partition_jobs.forgotten, numbers))
    counters = [state.acked, state.dead, state.delivered, state.removed]
    if state.damaged:
        counters.append(state.damaged)
    return QueueStateSnapshot(
        boot_id=state.boot_id,
        generation=state.generation,
        counters=counters,
        partitions=partitions,
        ended=[
            number for position, delivery in state.ended.items() for number in (*position, delivery)
        ],
        intent=state.intent,
        released=released,
    )


def restore_state(snapshot: QueueStateSnapshot, *, ended_max: int) -> QueueStateMachine:
    """Return the state that a snapshot was made of; raises `CorruptData` if it is invalid."""
    try:
        return _restored(snapshot, ended_max)
    except (ValueError, IndexError, KeyError) as error:
        raise CorruptData(f"invalid snapshot of a queue: {error}") from error


def _restored(snapshot: QueueStateSnapshot, ended_max: int) -> QueueStateMachine:
    state = QueueStateMachine(ended_max=ended_max)
    state.boot_id, state.generation = snapshot.boot_id, snapshot.generation
    state.acked, state.dead, state.delivered, state.removed, *damaged = snapshot.counters
    state.damaged = sum(damaged)
    for partition, frontier, forgotten, numbers in snapshot.partitions:
        partition_jobs = state.partitions[partition] = PartitionJobs(frontier, forgotten)
        for offset, *job in zip(*[iter(numbers)] * 5, strict=True):
            number, kind, due_ms, length_ms = job
            partition_jobs.jobs[offset] = UnfinishedJob(number, kind, due_ms, length_ms)
            state.kinds[kind] += 1
    for partition, offset, releases in zip(*[iter(snapshot.released)] * 3, strict=True):
        state.partitions[partition].jobs[offset].deliveries -= releases
    rows = zip(*[iter(snapshot.ended)] * 3, strict=True)
    state.ended = {(partition, offset): delivery for partition, offset, delivery in rows}
    state.intent = snapshot.intent
    state.sort_deadlines()
    return state
