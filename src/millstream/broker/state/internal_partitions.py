"""Internal partitions: where the broker keeps its own state, and who may change it.

An internal partition is a log with a leader, replicated like any other partition. Its leader is the
*coordinator* of what is stored there:

    name             partitions             the coordinator of
    groups           by hash of the id      groups, their members and committed offsets
    transactions     by hash of the id      transactional ids, and publishers
    queue-TOPIC-ID   one                    one queue
    streams          one                    all streams

A lone node has one partition of each in its store `__state`, and leads all of them forever.
`cluster` implements the interface for several nodes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from millstream.config.schema import LogConfig
from millstream.storage.log import Log
from millstream.storage.store import Store

GROUPS = "groups"
TRANSACTIONS = "transactions"
STREAMS = "streams"
QUEUE_PREFIX = "queue-"

LONE_EPOCH = 0
"""The leader epoch of all internal partitions of a lone node."""


class InternalPartition(NamedTuple):
    """The name of an internal partition; also that of its log."""

    name: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"


class LeadershipListener(Protocol):
    """Follows which internal partitions this node leads. Its methods must not raise or block."""

    def elected(self, partition: InternalPartition, epoch: int) -> None:
        """Take over: this node leads the partition in `epoch`.

        If it led the partition before, in an earlier epoch, that has ended, as by `deposed`.
        """
        ...

    def deposed(self, partition: InternalPartition) -> None:
        """Give up: this node does not lead the partition any more."""
        ...


class InternalPartitions(Protocol):
    """The internal partitions, as this node sees them. Used on the event loop only."""

    def count(self, name: str) -> int:
        """Return the number of partitions of a name. It never changes."""
        ...

    def follow(self, name: str, listener: LeadershipListener) -> None:
        """Call the listener for partitions of a name, until `unfollow`.

        It is called now for each partition that this node leads, and for each change from now on,
        in order. It is called at the latest when the node loses its lease.
        """
        ...

    def unfollow(self, name: str) -> None:
        """Stop calling the listener of a name. Does nothing if there is none."""
        ...

    def leader_of(self, partition: InternalPartition) -> int:
        """Return the node that leads a partition, as far as this one knows; -1 if none does."""
        ...

    def check_lease(self) -> None:
        """Raise `NotCoordinator` if this node cannot be sure that it still leads anything.

        Called before each answer from memory. Appends need no check: they fail by their epoch.
        """
        ...

    def check_leading(self, partition: InternalPartition) -> None:
        """Raise `NotLeader` unless this node leads a partition, and nobody can have replaced it.

        A node that hands its leadership over does not lead from when it proposes its successor.
        """
        ...

    async def open_log(self, partition: InternalPartition, config: LogConfig) -> Log:
        """Return the log of a partition that this node leads, or create it.

        Everything that an earlier leader may have acknowledged can be read when this returns: the
        high watermark has reached the start of this leader's epoch. From then on, an append that is
        acknowledged is on enough replicas. `NotLeader` means that the node leads the partition no
        more and nothing was appended, `NotLeaderAnymore` that nobody knows whether it was.
        """
        ...

    async def create(self, name: str) -> None:
        """Create the only partition of a name; return when it has a leader. Idempotent."""
        ...

    async def delete(self, name: str) -> None:
        """Delete the partitions of a name with all that is stored there. Idempotent."""
        ...

    def names(self, prefix: str) -> Collection[str]:
        """Return the names, of those that start with `prefix`, that have a log on this node."""
        ...


class LonePartitions:
    """The internal partitions of a node without a cluster: one of each name, in a store."""

    def __init__(self, store: Store, node_id: int) -> None:
        self._store = store
        self._node_id = node_id

    def count(self, name: str) -> int:  # noqa: ARG002
        return 1

    def follow(self, name: str, listener: LeadershipListener) -> None:
        listener.elected(InternalPartition(name), LONE_EPOCH)

    def unfollow(self, name: str) -> None:
        """Do nothing: there are no changes to follow."""

    def leader_of(self, partition: InternalPartition) -> int:  # noqa: ARG002
        return self._node_id

    def check_lease(self) -> None:
        """Do nothing: nobody else can lead."""

    def check_leading(self, partition: InternalPartition) -> None:
        """Do nothing: nobody else can lead."""

    async def open_log(self, partition: InternalPartition, config: LogConfig) -> Log:
        return await self._store.log(partition.name, partition.number, config=config)

    async def create(self, name: str) -> None:
        """Do nothing: a log is created when it is first used."""

    async def delete(self, name: str) -> None:
        await self._store.delete(name)

    def names(self, prefix: str) -> Collection[str]:
        return {name.topic for name in self._store.names() if name.topic.startswith(prefix)}
