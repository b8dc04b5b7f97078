"""What a node that starts does about records that its logs had and do not have any more.

Before it registers, and when its former life is gone, it says in the metadata store which of its
replicas are not what they were. So none of them is elected: the controller knows before the node
counts as alive. As long as the former life is registered, the leader may put that one into the ISR
again: it does not know that its records are lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.repair import FoundLog, disown_step, lost_records
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.errors import MillstreamError, UnknownTopicId
from millstream.storage.files.names import LogName
from millstream.storage.inspect.damaged_segments import is_end_damaged
from millstream.storage.store import Store

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5


async def disown_lost_replicas(context: ReplicaContext, topics: Topics, store: Store) -> None:
    """Disown the replicas of this node that lack records. Waits until the store can be reached.

    The node is not registered, not even by its former life.
    """
    await _until_done("states of partitions", context.state.refresh_partitions)
    for key, state in list(context.state.partitions.items()):
        if not state.is_counted(context.node_id):
            continue
        try:
            topic = topics.by_id(key.topic_id)
        except UnknownTopicId:
            continue
        reason = lost_records(
            _found_log(store, topic, key.partition),
            context.high_watermarks.get(key),
            has_others=len(state.replicas) > 1,
        )
        if reason is not None:
            logger.error("%s/%d lacks records: %s", topic.name, key.partition, reason)
            await _until_done(str(key), partial(_disown, context, key))


async def _until_done(name: str, attempt: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await attempt()
        except MillstreamError as error:
            logger.warning("%s: %s; trying again", name, error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def _disown(context: ReplicaContext, key: PartitionId) -> None:
    state = context.state.partitions.get(key)
    if state is None:
        return
    step = disown_step(state, context.node_id, is_registered=False)
    if step.proposal is not None:
        await context.proposer.carry_out(key, step.proposal)


def _found_log(store: Store, topic: Topic, index: int) -> FoundLog:
    """Return what is on the disk of a partition."""
    name = LogName(topic.name, index)
    if store.is_failed(name):
        return FoundLog(None, "its log cannot be opened")
    recovered = store.recovered_log(name)
    if recovered is None or recovered.is_new:
        return FoundLog(None)
    if recovered.partition.topic_id not in (None, topic.id):
        return FoundLog(None)
    if recovered.offline is not None:
        return FoundLog(None, f"its end is damaged: {recovered.offline}")
    if is_end_damaged(recovered):
        return FoundLog(None, f"its last segment is damaged: {recovered.damage[0]}")
    segments, start = recovered.segments, recovered.partition.start_offset
    return FoundLog(
        max(start, segments[-1].next_offset) if segments else start,
        start_offset=start,
        epochs=tuple((epoch.number, epoch.start_offset) for epoch in recovered.partition.epochs),
    )
