"""The subscription of one subscriber to one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.errors import MillstreamError
from millstream.records.cursor import cursor_prefix, encode_cursor
from millstream.servers.http.live.encoded_batch import EncodedBatch
from millstream.servers.http.live.partition_feed import PartitionFeed
from millstream.servers.http.live.start_position import PartitionStart
from millstream.servers.http.live.subscription_progress import SubscriptionProgress

if TYPE_CHECKING:
    from millstream.servers.http.live.subscriber import LiveSubscriber


class PartitionSubscription:
    """Connects the progress in a partition with its subscriber and with the partition's feed."""

    __slots__ = ("_prefix", "_subscriber", "excluded", "feed", "is_queued", "partition", "progress")

    def __init__(
        self,
        subscriber: LiveSubscriber,
        partition: ReadablePartition,
        start: PartitionStart,
        excluded: bytes | None,
    ) -> None:
        self._subscriber = subscriber
        prefix = cursor_prefix(partition.topic, partition.index, partition.topic_id)
        self._prefix = prefix.encode()
        self.partition = partition
        self.progress = SubscriptionProgress(start.offset, start.deleted)
        self.excluded = excluded
        self.feed: PartitionFeed | None = None
        self.is_queued = False
        """Whether it is in the subscriber's queue of subscriptions with work."""

    @property
    def cursor(self) -> bytes:
        """Return its part of the subscriber's cursor.

        Until the watcher is told that its topic was deleted, that is the position in that topic: a
        connection that breaks before must not lose the gap.
        """
        if (deleted := self.progress.deleted) is not None:
            partition = self.partition
            return encode_cursor({(partition.topic, partition.index): deleted}).encode()
        return b"%s%d" % (self._prefix, self.progress.next_offset)

    # Called by the feed.

    @property
    def is_at_tail(self) -> bool:
        """Return whether it takes batches."""
        return self.progress.is_at_tail

    def offer(self, batch: EncodedBatch) -> None:
        """Queue a batch, if the subscriber has room for it."""
        progress, subscriber = self.progress, self._subscriber
        queued_bytes = progress.queued_bytes
        progress.offer(batch, room=subscriber.room)
        subscriber.queued_bytes += progress.queued_bytes - queued_bytes
        if progress.has_work:
            subscriber.enqueue(self)

    def fall_behind(self) -> None:
        """Drop the queue, and read it again from the log."""
        progress, subscriber = self.progress, self._subscriber
        subscriber.queued_bytes -= progress.queued_bytes
        progress.fall_behind()
        subscriber.enqueue(self)

    def end(self, error: MillstreamError) -> None:
        """Tell the subscriber that the topic has ended."""
        self._subscriber.note_failure(self, error)

    # Called by the subscriber.

    def take(self) -> list[EncodedBatch]:
        """Return the batches to send next, as one event."""
        queued_bytes = self.progress.queued_bytes
        taken = self.progress.take()
        self._subscriber.queued_bytes += self.progress.queued_bytes - queued_bytes
        return taken
