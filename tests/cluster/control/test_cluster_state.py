"""What the parts of a node hear of changes of the cluster."""

from __future__ import annotations

import uuid
from typing import NoReturn

from millstream.cluster.control.cluster_state import ClusterState, PartitionId, partition_key
from millstream.cluster.control.node_row import NodeRow, encode_node, node_key
from millstream.cluster.replication_state import encode_state
from millstream.testing.memory_metadata import MemoryMetadata
from tests.cluster.machines import state_of
from tests.in_loop import in_loop

PARTITION = PartitionId(uuid.UUID(int=1), 0)
ROW = NodeRow(
    directory="a",
    release="0",
    kafka=("127.0.0.1", 1),
    http=("127.0.0.1", 2),
    peer=("127.0.0.1", 3),
)


def fail(*_: object) -> NoReturn:
    raise KeyError("a bug of one who is told")


@in_loop
async def test_one_who_fails_keeps_no_other_from_hearing_of_a_change():
    metadata = MemoryMetadata()
    state = ClusterState(metadata)
    await state.open()
    heard: list[object] = []
    state.on_partition += [fail, lambda key, _: heard.append(key)]
    state.on_node += [fail, lambda node_id, row: heard.append((node_id, row is not None))]
    state.on_life_ended += [fail, lambda node_id, epoch: heard.append((node_id, epoch))]
    state.on_controller += [fail, lambda: heard.append("controller")]
    await metadata.transact(puts={partition_key(PARTITION): encode_state(state_of())})
    life = await metadata.transact(puts={node_key(1): encode_node(ROW)})
    await metadata.transact(puts={"controller": b"1"})
    await metadata.transact(deletes=[node_key(1)])
    assert heard == [PARTITION, (1, True), "controller", (1, False), (1, life)]
    assert state.failed_callbacks == 5
    state.close()


@in_loop
async def test_one_who_fails_keeps_no_change_of_this_node_from_being_applied():
    metadata = MemoryMetadata()
    state = ClusterState(metadata)
    await state.open()
    heard: list[object] = []
    state.on_partition += [fail, lambda _, partition: heard.append(partition)]
    state.apply_partition(PARTITION, state_of(revision=7))
    assert heard == [state_of(revision=7)]
    state.close()


@in_loop
async def test_one_who_stops_listening_while_it_is_told_keeps_no_other_from_hearing():
    metadata = MemoryMetadata()
    state = ClusterState(metadata)
    await state.open()
    heard: list[str] = []

    def once(*_: object) -> None:
        state.on_partition.remove(once)
        heard.append("once")

    state.on_partition += [once, lambda *_: heard.append("always")]
    for revision in (7, 8):
        state.apply_partition(PARTITION, state_of(revision=revision))
    assert heard == ["once", "always", "always"]
    state.close()


@in_loop
async def test_the_end_of_a_life_is_told_with_its_broker_epoch():
    metadata = MemoryMetadata()
    state = ClusterState(metadata)
    await state.open()
    ended: list[tuple[int, int]] = []
    state.on_life_ended.append(lambda node_id, epoch: ended.append((node_id, epoch)))
    first = await metadata.transact(puts={node_key(1): encode_node(ROW)})
    metadata.delay_watches()
    await metadata.transact(deletes=[node_key(1)])
    second = await metadata.transact(puts={node_key(1): encode_node(ROW)})
    metadata.stop_delaying()
    assert ended == [(1, first)]
    assert state.nodes[1].broker_epoch == second
    state.close()
