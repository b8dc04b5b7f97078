"""The whole state of a queue as one event, and back."""

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

_KEPT = {
    LEASED: LEASED,
    EXPIRED: LEASED,
    DELAYED: DELAYED,
    RETURNED: DELAYED,
    DEAD_LETTERING: DEAD_LETTERING,
}
"""What a snapshot says of a job: whether its time has come is not for it to say."""


def snapshot_of(state: QueueStateMachine) -> QueueStateSnapshot:
    """Return all that is durable, as one event."""
    lanes = []
    for partition, lane in state.lanes.items():
        numbers: list[int] = []
        for offset, job in lane.jobs.items():
            kind = _KEPT[job.kind]
            numbers += (offset, job.deliveries, kind, job.due_ms, job.length_ms)
        lanes.append((partition, lane.frontier, lane.forgotten, numbers))
    return QueueStateSnapshot(
        boot_id=state.boot_id,
        generation=state.generation,
        counters=[state.acked, state.dead, state.delivered, state.removed],
        lanes=lanes,
        ended=[number for place, by in state.ended.items() for number in (*place, by)],
        intent=state.intent,
    )


def restore_state(snapshot: QueueStateSnapshot, *, ended_max: int) -> QueueStateMachine:
    """Return the state that a snapshot was made of; raises `CorruptData` if it is invalid."""
    try:
        return _restored(snapshot, ended_max)
    except (ValueError, IndexError) as error:
        raise CorruptData(f"invalid snapshot of a queue: {error}") from error


def _restored(snapshot: QueueStateSnapshot, ended_max: int) -> QueueStateMachine:
    state = QueueStateMachine(ended_max=ended_max)
    state.boot_id, state.generation = snapshot.boot_id, snapshot.generation
    state.acked, state.dead, state.delivered, state.removed = snapshot.counters
    for partition, frontier, forgotten, numbers in snapshot.lanes:
        lane = state.lanes[partition] = PartitionJobs(frontier, forgotten)
        for offset, *job in zip(*[iter(numbers)] * 5, strict=True):
            deliveries, kind, due_ms, length_ms = job
            lane.jobs[offset] = UnfinishedJob(deliveries, kind, due_ms, length_ms)
            state.kinds[kind] += 1
    rows = zip(*[iter(snapshot.ended)] * 3, strict=True)
    state.ended = {(partition, offset): by for partition, offset, by in rows}
    state.intent = snapshot.intent
    state.sort_deadlines()
    return state
