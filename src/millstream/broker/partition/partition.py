"""One partition: a log with Kafka's rules on top.

    Partition ── appender   batches and transaction markers, into the log
              ├─ reader     batches out of the log, up to the high watermark
              └─ offsets    lookup by position, timestamp or leader epoch

The high watermark is the committed end of the log: a batch is readable once nothing can take it
back. It is defined in one place, `PartitionReader.high_watermark`; with one node the log decides
it. Readers of committed transactions see nothing past the last stable offset, which never exceeds
it.

One event loop owns a partition; only the work passed to `Executor` runs elsewhere.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from millstream.broker.loop_threads import LoopThreads
from millstream.broker.partition.appender import PartitionAppender
from millstream.broker.partition.batch_opener import BatchOpener
from millstream.broker.partition.batch_validator import BatchValidator, PartitionConfig
from millstream.broker.partition.offset_lookup import NO_EPOCH, OffsetLookup
from millstream.broker.partition.producers.recovery import recover_producers
from millstream.broker.partition.producers.snapshot_saver import ProducerSnapshotSaver
from millstream.broker.partition.producers.states import ProducerStates
from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.reader import PartitionReader
from millstream.broker.partition.removal_hooks import PartitionRemovalHooks, RetentionHold
from millstream.broker.partition.replica import PartitionReplica
from millstream.broker.partition.replica_producers import ReplicaProducers
from millstream.broker.partition.value_check import ValueChecks
from millstream.clock import Clock
from millstream.config.schema import DAY_MS
from millstream.errors import (
    LogClosed,
    MillstreamError,
    OffsetNotAvailable,
    OffsetOutOfRange,
    Stopping,
    UnknownTopic,
    again,
)
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log
from millstream.storage.store import Store

__all__ = ["Partition", "PartitionConfig"]

BEHIND_SECONDS_MAX = 1.0
"""How long a replica waits for records that a client knows of. A follower is behind by the time of
a fetch, as long as it is in sync.
"""

HIGH_WATERMARK = -1
"""As the offset to delete before: delete everything that can be deleted."""


class _OpenPartition(NamedTuple):
    """The parts of a partition that exist once it is open."""

    log: Log
    states: ProducerStates
    appender: PartitionAppender
    reader: PartitionReader
    offsets: OffsetLookup
    saver: ProducerSnapshotSaver
    producers: ReplicaProducers
    was_damaged: bool


class Partition:
    """One partition of a topic.

    It is opened when it is first used: until then it costs no file and hardly any memory. The
    parts (`appender`, `reader`, `offsets`) exist once it is open. Callers take them from the
    partition for each operation, so that they get its error once it is closed or deleted.
    """

    def __init__(
        self,
        topic: str,
        index: int,
        *,
        topic_id: uuid.UUID,
        store: Store,
        config: PartitionConfig,
        clock: Clock,
        producer_id_expiration_ms: int = DAY_MS,
        background: Executor | None = None,
        opener: BatchOpener | None = None,
        value_checks: ValueChecks | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.config = config
        self._store = store
        self._clock = clock
        self._expiration_ms = producer_id_expiration_ms
        self._background = background or LoopThreads()
        self.opener = opener or BatchOpener(executor=self._background)
        """Decompresses batches for all who read records of the partition."""
        self._value_checks = value_checks or ValueChecks()
        self._watchers: dict[Callable[[], None], None] = {}
        self._is_queue = False
        self.retention_hold: RetentionHold | None = None
        """Keeps records that are still needed from being deleted by retention."""
        self.on_rewind: Callable[[int], None] | None = None
        """Called with the first offset that the log has taken back, before the next append."""
        self.before_removal: Callable[[], Awaitable[None]] | None = None
        """Awaited before records are removed, to save the state that was derived from them."""
        self._replica: PartitionReplica | None = None
        self.anywhere: ReadablePartition = self
        """The partition for readers that do not care where it is: in a cluster, the replica of this
        node if it has one, or else the leader."""
        self._opened: _OpenPartition | None = None
        self._opening: asyncio.Task[None] | None = None
        self._refusal: MillstreamError | None = None
        """The reason why the partition cannot be used any more, once it cannot."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.index}"

    # Parts.

    @property
    def appender(self) -> PartitionAppender:
        """The append side. A closed partition has one too: it rejects all appends."""
        if (opened := self._opened) is None:
            raise again(self._refusal or LogClosed(f"{self} is not open"))
        return opened.appender

    @property
    def reader(self) -> PartitionReader:
        return self._usable().reader

    @property
    def offsets(self) -> OffsetLookup:
        return self._usable().offsets

    def _awaits_repair(self) -> bool:
        return self._replica is not None and self._replica.awaits_repair()

    def _usable(self) -> _OpenPartition:
        """Return the parts for clients, or raise the reason why they cannot be used."""
        if self._replica is not None and self._refusal is None:
            self._replica.check_present()  # It may have been moved to another node.
        return self._working()

    def _working(self) -> _OpenPartition:
        """Return the parts for the replica, whether clients may use them or not."""
        if self._refusal is not None:
            raise again(self._refusal)
        return self._known()

    def _known(self) -> _OpenPartition:
        """Return the parts, even after the partition was closed."""
        if self._opened is None:
            raise again(self._refusal or LogClosed(f"{self} is not open"))
        return self._opened

    # These keep their last value when the partition is closed.

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._known().reader.log_start_offset

    @property
    def high_watermark(self) -> int:
        """The end of the committed records."""
        return self._known().reader.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that readers of committed transactions may see."""
        return self._known().reader.last_stable_offset

    # Replication.

    @property
    def replica(self) -> PartitionReplica | None:
        """This node's replica of the partition; None on a lone node."""
        return self._replica

    @replica.setter
    def replica(self, replica: PartitionReplica | None) -> None:
        self._replica = replica
        if self._opened is not None:
            self._opened.appender.replica = replica

    @property
    def is_following(self) -> bool:
        """Whether another node leads the partition, so that this replica may be behind."""
        return self._replica is not None and self._replica.is_following

    @property
    def log(self) -> Log:
        """The log of an open partition, for its replica."""
        return self._working().log

    @property
    def producers(self) -> ReplicaProducers:
        """What the batches of a replica tell about producers, once they are committed."""
        return self._working().producers

    def forget_uncommitted(self) -> None:
        """Take back what is known of records that are not committed: this node no longer leads."""
        self._rewind(self.high_watermark)

    def check_leader(self, leader_epoch: int = NO_EPOCH) -> None:
        """Raise unless this node leads the partition, in the epoch that the caller knows.

        -1 means that the caller knows none.
        """
        if self._replica is not None:
            self._replica.check_leader()
        self.offsets.check_leader_epoch(leader_epoch)

    def check_reader(self, leader_epoch: int, *, may_follow: bool) -> None:
        """Raise unless a consumer may read here: this node leads the partition.

        With `may_follow`, a replica that follows and is in sync will do.
        """
        if may_follow and self._replica is not None and self._replica.is_following:
            self._replica.check_in_sync(leader_epoch)
        else:
            self.check_leader(leader_epoch)

    # Opening and closing.

    @property
    def is_open(self) -> bool:
        if self._opened is None or self._refusal is not None:
            return False
        return self._replica is None or self._replica.is_present

    async def open(self) -> None:
        """Open the log and recover its producers; return at once if the partition is open.

        Concurrent callers wait for the same opening. An opening that failed can be tried again.
        """
        if self._refusal is not None:
            raise again(self._refusal)
        if self._replica is not None:
            self._replica.check_present()
        await self.open_log()

    async def open_log(self) -> None:
        """Open the log for its replica, whether clients may read it or not."""
        if self._refusal is not None:
            raise again(self._refusal)
        if self._opened is not None:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._end_opening)
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        config = self.config.log_config()
        log = await self._store.log(
            self.topic, self.index, config=config, topic_id=self.topic_id, is_managed=True
        )
        if log.config != config and log.offline is None:
            await log.reconfigure(config)
        if self._replica is not None:
            await self._replica.prepare(log)
        log_directory = log.log_directory
        recovered = await self._background.run(
            partial(
                recover_producers,
                log,
                log_directory.filesystem,
                log_directory.directory,
                expiration_ms=self._expiration_ms,
                now_ms=int(self._clock.monotonic() * 1000),
            )
        )
        if self._refusal is not None:
            raise again(self._refusal)
        states, damage = recovered.states, recovered.damage
        reader = PartitionReader(
            log,
            states,
            undecided=recovered.undecided,
            prefetcher=self._store.prefetcher,
            opener=self.opener,
            awaits_repair=self._awaits_repair,
        )
        self._opened = _OpenPartition(
            log,
            states,
            PartitionAppender(
                log,
                states,
                self._validator(),
                clock=self._clock,
                opener=self.opener,
                refusal=damage,
            ),
            reader,
            OffsetLookup(log, reader, self.opener),
            ProducerSnapshotSaver(
                log,
                states,
                filesystem=log_directory.filesystem,
                directory=log_directory.directory,
                saved_offset=recovered.snapshot_offset,
                is_known=damage is None,
                clock=self._clock,
                background=self._background,
            ),
            ReplicaProducers(states),
            was_damaged=damage is not None,
        )
        self._opened.appender.replica = self._replica
        log.removal_hooks = PartitionRemovalHooks(
            reader,
            states,
            save=self._save_before_removal,
            retention_hold=lambda: self.retention_hold,
            lake_position=lambda: self.config.lake_position(self.index),
        )
        await log.begin_retention()
        log.on_rewind = self._rewind
        log.watch(self._note_change)

    def _end_opening(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # Callers of `open` get it; without any, it need not be logged.

    @property
    def was_damaged(self) -> bool:
        """Whether damage was met when the partition was opened: it does not know all producers."""
        return self._known().was_damaged

    async def reopen(self, *, removes_damaged_end: bool = False) -> None:
        """Check and open the log again: the way back from offline.

        `removes_damaged_end` gives up what is damaged at its end, if other replicas have it.
        """
        self._detach(Stopping(f"{self} is being opened again"))
        self._opened = None
        await self._store.reopen(self.topic, self.index, removes_damaged_end=removes_damaged_end)
        await self.open_log()
        self._wake_watchers()

    async def remove_log(self) -> None:
        """Remove the log of this node's replica, durably; its files go in the background.

        The partition can be opened again, and is empty then.
        """
        self._detach(Stopping(f"{self}: the replica is being removed"))
        if self._opening is not None:
            await asyncio.wait([self._opening])
            self._detach(Stopping(f"{self}: the replica is being removed"))
        self._opened = None
        await self._store.delete_partition(self.topic, self.index)
        self._wake_watchers()

    async def close(self) -> None:
        """Reject further requests, and write the snapshot. The store closes the log itself."""
        if self._refusal is not None:
            return
        self._retire(Stopping(f"{self} is closed"))
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._opened is not None:
            await self._opened.saver.save()

    def delete(self) -> None:
        """Reject further requests and wake the watchers: the topic was deleted."""
        self._retire(UnknownTopic(f"{self} was deleted"))

    def _retire(self, refusal: MillstreamError) -> None:
        self._refusal = refusal
        self._detach(refusal)
        self._wake_watchers()

    def _detach(self, refusal: MillstreamError) -> None:
        if self._opened is not None:
            self._opened.appender.close(refusal)
            self._opened.log.on_rewind = None
            self._opened.log.unwatch(self._note_change)

    @property
    def is_waiting_for_lake(self) -> bool:
        """Whether retention would delete records now that the lake does not have yet."""
        if self._opened is None or (position := self.config.lake_position(self.index)) is None:
            return False
        return self._opened.log.would_evict(position)

    async def reconfigure(self, config: PartitionConfig) -> None:
        """Apply other settings from now on. The partition need not be open.

        Raises if the log cannot apply them now; it gets them the next time that it is opened.
        """
        self.config = config
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._opened is not None and self._refusal is None:
            self._opened.appender.validator = self._validator()
            await self._opened.log.reconfigure(config.log_config())
            self._opened.log.apply_caps()  # They may have waited for the lake.

    @property
    def is_queue(self) -> bool:
        """Whether a queue delivers its records one by one, so that each must be decodable."""
        return self._is_queue

    @is_queue.setter
    def is_queue(self, is_queue: bool) -> None:
        self._is_queue = is_queue
        if self._opened is not None:
            self._opened.appender.validator = self._validator()

    def _validator(self) -> BatchValidator:
        check = self._value_checks.check_of(self.config.checked_values)
        return BatchValidator(self.config, is_queue=self._is_queue, value_check=check)

    # Watching.

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever more or less can be read, and when the partition is closed.

        It runs in the middle of a commit, so it should only take note and return. The partition
        need not be open.
        """
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`, if it was being called."""
        self._watchers.pop(callback, None)

    async def settle(self, offset: int | None = None) -> None:
        """Wait until readers see every record that has its offset by now, or never will.

        With `is_early`, a producer may know of its records before readers see them. A client that
        asks for the end of the partition has to wait for those, or it would miss what it wrote.
        With `offset`, only the records before it are waited for: a client that names an offset may
        know it from such a record. Everything that compares an offset from a client with the high
        watermark calls this first.

        On a replica that follows, the client may know an offset from the leader or from another
        replica. That is waited for too, for a moment; then `OffsetNotAvailable` is raised. Without
        an offset, the leader is asked for its end.
        """
        appender = self._usable().appender
        if self.is_following:
            if offset is None:
                await self.anywhere.catch_up()
            else:
                await self._wait_as_follower(offset)
            return
        end_offset = appender.next_offset
        if offset is not None:
            if offset > end_offset:  # Nobody was told of it, so nothing to wait for.
                if self._replica is not None:
                    self._replica.check_leader()  # Unless another node leads, and has told it.
                return
            end_offset = offset
        while (
            self.high_watermark < min(end_offset, appender.next_offset) and appender.offline is None
        ):
            changed = asyncio.Event()
            self.watch(changed.set)
            try:
                await changed.wait()
            finally:
                self.unwatch(changed.set)

    async def catch_up(self) -> None:
        """Do nothing: readers of a lone node see everything that was acknowledged."""

    async def find_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the first offset of a record that is not older than a time; None if none is."""
        found = await self.offsets.at_timestamp(timestamp_ms)
        return None if found is None else found.offset

    def note_moved(self) -> None:
        """Wake the watchers: this node has the partition now, or no longer has it."""
        self._wake_watchers()

    async def _wait_as_follower(self, offset: int) -> None:
        """Wait until the high watermark has reached an offset, or raise `OffsetNotAvailable`."""
        changed = asyncio.Event()
        self.watch(changed.set)
        try:
            async with asyncio.timeout(BEHIND_SECONDS_MAX):
                while self.high_watermark < offset:
                    await changed.wait()
                    changed.clear()
                    self._usable()
        except TimeoutError:
            end = self.high_watermark
            raise OffsetNotAvailable(
                f"{self}: this replica has records up to offset {end}, and is behind offset"
                f" {offset}; ask again, or ask another node",
                end=end,
            ) from None
        finally:
            self.unwatch(changed.set)

    def _rewind(self, offset: int) -> None:
        if self._opened is not None:
            self._opened.appender.rewind(offset)
        if self.on_rewind is not None:
            self.on_rewind(offset)

    def _note_change(self) -> None:
        """React to a commit, a new start offset or the end of the log."""
        if self._opened is not None:
            log, states, appender, saver = (
                self._opened.log,
                self._opened.states,
                self._opened.appender,
                self._opened.saver,
            )
            appender.note_commit()
            if len(states.aborted):
                states.trim(log.start_offset)
            saver.note_commit()
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for callback in tuple(self._watchers):
            callback()

    # Deleting.

    async def delete_before(self, offset: int) -> int:
        """Delete the records before `offset`, or all with -1; return the new start offset.

        The deletion is durable when this returns. Records that have their offset are waited for. An
        offset before the start is no error, one past the high watermark is.
        """
        if self._replica is not None:
            self._replica.check_leader()
        await self.settle(None if offset == HIGH_WATERMARK else offset)
        opened = self._usable()
        log, saver = opened.log, opened.saver
        if offset == HIGH_WATERMARK:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset, start=log.start_offset, end=self.high_watermark)
        if offset > max(log.start_offset, saver.saved_offset):
            # These records may be the only ones in the log that tell the state of a producer.
            await self._save_before_removal()
        await log.delete_before(offset)
        return log.start_offset

    async def delete_keys(
        self, *, key: bytes | None = None, prefix: bytes | None = None, before: int | None = None
    ) -> int:
        """Delete the records with this key, or with this key prefix; return how many.

        Exactly one of the two is required. Only records before the offset `before` are deleted, if
        it is given, and never records that are appended later. The deletion is final when this
        returns, and no reader of this node sees the records, nor one of another node once that has
        caught up; their bytes are removed from the disk when the log
        is cleaned.
        """
        if self._replica is not None:
            self._replica.check_append(is_all=True)
            if before is not None:
                await self.settle(before)
        return await self._usable().log.delete_keys(key=key, prefix=prefix, before=before)

    async def _save_before_removal(self) -> None:
        """Save the producer state that may be lost with the records about to be removed."""
        await self._known().saver.save()
        if self.before_removal is not None:
            await self.before_removal()
