"""Deleted topics of a cluster whose records some nodes still have.

Nodes delete the records of a topic when they learn of it, and a node that is down learns of it when
it starts. Until then, one row names the nodes that have not deleted them yet: those with replicas,
and all that are down, because replicas that were moved away from them meanwhile may still be there:

    deleted/TOPIC-ID        {"version": 1, "name": "orders", "nodes": [1, 3]}

The row is put in the transaction that deletes the topic, so the name is free at once, and no node
can take the records of a deleted topic for those of a topic that metadata has lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

import msgspec

from millstream.errors import Busy, CorruptFile, UnknownFormat
from millstream.metadata.interface import Compare, Metadata, MetadataEntry

DELETED_PREFIX = "deleted/"
ROW_VERSION = 1

_ATTEMPTS_MAX = 20
"""How often concurrent changes of a row, by other nodes, are retried."""


class DeletedTopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of a deleted topic."""

    version: int = ROW_VERSION
    name: str
    nodes: tuple[int, ...]
    """The nodes that may still have records of the topic."""


def deleted_key(topic_id: uuid.UUID) -> str:
    """Return the key of the row of a deleted topic."""
    return f"{DELETED_PREFIX}{topic_id}"


def deletion_puts(topic_id: uuid.UUID, name: str, nodes: Collection[int]) -> Mapping[str, bytes]:
    """Return what the transaction that deletes a topic has to put."""
    row = DeletedTopicRow(name=name, nodes=tuple(sorted(nodes)))
    return {deleted_key(topic_id): msgspec.json.encode(row)} if nodes else {}


class DeletedTopics:
    """The rows of deleted topics, as far as they concern one node."""

    def __init__(self, metadata: Metadata, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id

    async def pending(self) -> dict[uuid.UUID, str]:
        """Return the topics that this node has to delete: names by id."""
        pending = {}
        for entry in await self._metadata.list(DELETED_PREFIX):
            row = _decode(entry)
            if self._node_id in row.nodes:
                pending[uuid.UUID(entry.key.removeprefix(DELETED_PREFIX))] = row.name
        return pending

    async def confirm(self, topic_id: uuid.UUID) -> None:
        """Note, durably, that this node has no record of the topic any more."""
        key = deleted_key(topic_id)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._metadata.get(key)
            if entry is None or self._node_id not in (row := _decode(entry)).nodes:
                return
            nodes = tuple(node for node in row.nodes if node != self._node_id)
            value = msgspec.json.encode(msgspec.structs.replace(row, nodes=nodes))
            revision = await self._metadata.transact(
                compares=[Compare(key, entry.revision)],
                puts={key: value} if nodes else {},
                deletes=() if nodes else (key,),
            )
            if revision is not None:
                return
        raise Busy(f"{key} was changed {_ATTEMPTS_MAX} times while this node confirmed it")


def _decode(entry: MetadataEntry) -> DeletedTopicRow:
    try:
        row = msgspec.json.decode(entry.value, type=DeletedTopicRow)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{entry.key} is not a valid deleted topic: {error}") from error
    if row.version != ROW_VERSION:
        raise UnknownFormat(f"{entry.key} has version {row.version}, expected {ROW_VERSION}")
    return row
