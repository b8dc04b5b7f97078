"""A follower of one partition: what to fetch, what to accept, where to cut.

Rules. The explorer and the simulator check that they suffice; `tests/planted` breaks each of them.

1.  A fetch tells what is synced. While there are written bytes that are not synced, none is sent.
2.  An answer counts only if it answers the newest fetch, in the leader epoch that the follower is
    in. Everything else is dropped: it is late.
3.  Records are accepted at the own end only, at the position in the segment at which the leader
    has them. A segment is begun when the leader says so, and never otherwise. Another position is a
    mismatch: nothing is written, and the replica is resynced.
4.  If the leader says that the logs diverge at the end of an epoch, the log is cut there, or at the
    own end of the greatest epoch up to that one, whichever comes first. Never at the high
    watermark, which may be older than what was committed.
5.  A cut below the own high watermark would take back committed records. It is not made: the
    replica stops and an operator is told. Only after an unclean election, which loses records on
    purpose, the followers have to lose the same ones.
6.  The high watermark is the least of the leader's and the own synced end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from millstream.cluster.epochs import NO_EPOCH, EpochHistory
from millstream.cluster.replica_fetch import ReplicaFetch
from millstream.cluster.replication_state import ReplicationState

NO_SEGMENT = -1


class OfferedSlice(NamedTuple):
    """Records of one segment, as the leader has them."""

    base_offset: int
    end_offset: int
    epoch: int
    """Epoch of the segment: a segment has one."""
    segment_base: int
    position: int
    """Position in the file of the segment at which they start."""
    size: int


class SliceDecision(IntEnum):
    """What to do with records from the leader."""

    WRITE = 0
    ROLL_AND_WRITE = 1
    """Begin the segment that the leader names, then write."""
    DROP = 2
    """The answer is late."""
    MISMATCH = 3
    """The log is not what the leader takes it for: resync."""


class Cut(NamedTuple):
    """A log has to be cut: the records from `offset` on are not those of the leader."""

    offset: int


class ReplicaStopped(NamedTuple):
    """A replica was stopped, because going on would take back committed records."""

    offset: int
    """Where the leader wants the log to be cut."""
    high_watermark: int
    reason: str


class FollowerReplica:
    """A follower of one partition, in one life of its node."""

    __slots__ = (
        "_asked",
        "_leader_high_watermark",
        "_unclean_epoch",
        "broker_epoch",
        "epochs",
        "high_watermark",
        "last_epoch",
        "leader",
        "leader_epoch",
        "log_start",
        "node",
        "position",
        "revision",
        "segment_base",
        "stopped",
        "synced_end",
        "written_end",
    )

    def __init__(
        self,
        *,
        node: int,
        broker_epoch: int,
        state: ReplicationState,
        epochs: EpochHistory,
        log_start: int,
        log_end: int,
        high_watermark: int,
        segment_base: int = NO_SEGMENT,
        position: int = 0,
        synced_end: int | None = None,
    ) -> None:
        """Begin to follow. `segment_base` and `position` are the end of the active segment.

        `synced_end` is the end of the log unless it is given; a log that was opened is synced.
        """
        self.node = node
        self.broker_epoch = broker_epoch
        # If this node led an epoch and wrote nothing, records of older epochs may follow.
        epochs.cut(log_end)
        self.epochs = epochs
        self.log_start = log_start
        self.written_end = log_end
        self.synced_end = log_end if synced_end is None else synced_end
        self.high_watermark = high_watermark
        self.segment_base = segment_base
        self.position = position
        self.last_epoch = epochs.last_epoch(log_start, log_end)
        self.stopped: ReplicaStopped | None = None
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.revision = state.revision
        self._unclean_epoch = max(state.unclean_epochs, default=NO_EPOCH)
        self._leader_high_watermark = high_watermark
        self._asked: ReplicaFetch | None = None

    def state_changed(self, state: ReplicationState) -> bool:
        """Take the state that the store has; return whether there is another leader to fetch from.

        Older states than the known one have no effect.
        """
        if state.revision <= self.revision:
            return False
        self.revision = state.revision
        self._unclean_epoch = max(state.unclean_epochs, default=NO_EPOCH)
        if state.leader_epoch == self.leader_epoch:
            return False
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self._leader_high_watermark = self.high_watermark
        self._asked = None
        return True

    # Fetching

    def next_fetch(self) -> ReplicaFetch | None:
        """Return the next fetch to send, or None while it has to wait for a sync.

        Pass the same object back with its answer. Answers to earlier ones have no effect.
        """
        if self.synced_end != self.written_end or self.stopped is not None:
            return None
        self._asked = ReplicaFetch(
            self.node,
            self.broker_epoch,
            self.leader_epoch,
            self.synced_end,
            self.last_epoch,
            self.revision,
        )
        return self._asked

    def is_asked(self, fetch: ReplicaFetch) -> bool:
        """Return whether `next_fetch` would ask the same as `fetch`, which was not answered yet.

        Then it need not be called: the answer may be one to either of them.
        """
        return (
            fetch is self._asked
            and fetch.offset == self.synced_end == self.written_end
            and fetch.revision == self.revision
            and fetch.last_epoch == self.last_epoch
            and self.stopped is None
        )

    def answered(self, fetch: ReplicaFetch, high_watermark: int) -> bool:
        """Take the leader's high watermark from an answer; return whether the own one moved."""
        if fetch is not self._asked:
            return False
        self._leader_high_watermark = max(self._leader_high_watermark, high_watermark)
        return self._advance()

    def accept(self, fetch: ReplicaFetch, records: OfferedSlice) -> SliceDecision:
        """Return what to do with the records of an answer. After writing, call `written`."""
        if fetch is not self._asked or self.stopped is not None:
            return SliceDecision.DROP
        self._asked = None
        if records.base_offset != self.written_end or records.end_offset <= records.base_offset:
            return SliceDecision.MISMATCH
        if not self.last_epoch <= records.epoch <= self.leader_epoch:
            return SliceDecision.MISMATCH
        if records.segment_base == self.segment_base:
            is_same_epoch = self.last_epoch in (records.epoch, NO_EPOCH)
            is_next = records.position == self.position and is_same_epoch
            return SliceDecision.WRITE if is_next else SliceDecision.MISMATCH
        is_begun = records.segment_base == self.written_end and records.position == 0
        return SliceDecision.ROLL_AND_WRITE if is_begun else SliceDecision.MISMATCH

    def written(self, records: OfferedSlice) -> None:
        """Note that accepted records were written."""
        self.written_end = records.end_offset
        self.segment_base = records.segment_base
        self.position = records.position + records.size
        if records.epoch != self.last_epoch:
            self.last_epoch = records.epoch
            if records.epoch != self.epochs.latest:
                self.epochs.begin(records.epoch, records.base_offset)

    def synced(self, end: int) -> bool:
        """Note that the log is durable up to `end`; return whether the high watermark moved."""
        self.synced_end = end
        return self._advance()

    def started_at(self, log_start: int) -> None:
        """Note that records before `log_start` were deleted, because the leader says so."""
        self.log_start = log_start
        self.epochs.drop_before(log_start)
        self.last_epoch = self.epochs.last_epoch(log_start, self.written_end)

    # Truncation

    def diverging(self, fetch: ReplicaFetch, epoch: int, end: int) -> Cut | ReplicaStopped | None:
        """Return where to cut the log, given the leader's answer; None if the answer is late.

        After the cut, which is durable then, call `cut_to`.
        """
        if fetch is not self._asked or self.stopped is not None:
            return None
        self._asked = None
        own_end = self.epochs.end_of(epoch, self.written_end).end_offset
        offset = end if epoch == NO_EPOCH else min(end, own_end)
        offset = max(offset, self.log_start)
        if offset < self.high_watermark and not self._is_lost(offset):
            self.stopped = ReplicaStopped(
                offset,
                self.high_watermark,
                f"the leader has epoch {epoch} up to offset {end}; this replica would be cut to"
                f" {offset}, below its high watermark {self.high_watermark}",
            )
            return self.stopped
        return Cut(offset)

    def cut_to(self, end: int, *, segment_base: int = NO_SEGMENT, position: int = 0) -> None:
        """Note that the log was cut, durably, and where its active segment ends now."""
        self.written_end = end
        self.synced_end = end
        self.segment_base = segment_base
        self.position = position
        self.epochs.cut(end)
        self.last_epoch = self.epochs.last_epoch(self.log_start, end)
        # Only after an unclean election.
        self.high_watermark = min(self.high_watermark, end)
        self._leader_high_watermark = min(self._leader_high_watermark, end)

    def _is_lost(self, offset: int) -> bool:
        """Whether an unclean election gave up the records from `offset` on."""
        return self._unclean_epoch > self.epochs.epoch_at(offset)

    def _advance(self) -> bool:
        end = min(self._leader_high_watermark, self.synced_end)
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True
