"""What a partition asks about its own replica, in a cluster. A lone node asks nothing."""

from __future__ import annotations

from typing import Protocol

from millstream.errors import MillstreamError
from millstream.storage.append.pending_append import Appended, AppendWaiter
from millstream.storage.log import Log


class PartitionReplica(Protocol):
    """The replica of one partition on this node; implemented by `cluster`.

    The checks raise `NotLeader`, which says who leads. They are called for every batch and every
    read, so they must be cheap.
    """

    def check_present(self) -> None:
        """Raise unless this node has a replica that may be read: one that lacks records may not."""
        ...

    def check_leader(self) -> None:
        """Raise unless this node leads the partition, and may still believe so."""
        ...

    def check_in_sync(self, leader_epoch: int) -> None:
        """Raise unless this node follows the partition and is in sync: consumers may read here.

        `leader_epoch` is the one that the caller knows, -1 if none.
        """
        ...

    @property
    def is_present(self) -> bool:
        """Whether this node has a replica of the partition."""
        ...

    @property
    def is_in_sync(self) -> bool:
        """Whether the replica of this node is one that readers should be shown."""
        ...

    def check_end(self) -> None:
        """Raise unless this node leads, and shows readers everything that was committed.

        The high watermark of a new leader may be lower at first than what its predecessor showed.
        """
        ...

    @property
    def is_following(self) -> bool:
        """Whether another node leads: readers see what this replica knows to be committed."""
        ...

    def check_append(self, *, is_all: bool) -> None:
        """Raise unless this node leads the partition.

        With `is_all`, the append waits for the replicas, and enough of them must be in sync.
        """
        ...

    def awaits_repair(self) -> bool:
        """Return whether damaged records are going to be copied from another replica soon.

        Called when a reader has met damage. False once that has taken too long: then readers are
        told that the records are damaged.
        """
        ...

    async def prepare(self, log: Log) -> None:
        """Take over a log that was just opened, before anyone can use it."""
        ...


class EarlyWaiter:
    """Answers a batch that is acknowledged before it is replicated, if the node leads even then.

    A node whose lease has run out may have been replaced: what it writes is going to be truncated.
    """

    __slots__ = ("_replica", "_waiter")

    def __init__(self, replica: PartitionReplica, waiter: AppendWaiter) -> None:
        self._replica = replica
        self._waiter = waiter

    def done(self) -> bool:
        return self._waiter.done()

    def set_result(self, result: Appended, /) -> None:
        try:
            self._replica.check_leader()
        except MillstreamError as error:
            self._waiter.set_exception(error)
        else:
            self._waiter.set_result(result)

    def set_exception(self, exception: Exception, /) -> None:
        self._waiter.set_exception(exception)
