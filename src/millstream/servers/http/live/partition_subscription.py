"""A seat: one subscriber in one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.partition.partition import Partition
from millstream.errors import MillstreamError
from millstream.servers.http.live.encoded_batch import EncodedBatch
from millstream.servers.http.live.partition_feed import PartitionFeed
from millstream.servers.http.live.subscription_progress import SubscriptionProgress

if TYPE_CHECKING:
    from millstream.servers.http.live.subscriber import LiveSubscriber


class PartitionSubscription:
    """Ties a place to its subscriber and to its partition, whose feed it joins once it is open."""

    __slots__ = ("_label", "_subscriber", "excluded", "feed", "is_listed", "partition", "place")

    def __init__(
        self,
        subscriber: LiveSubscriber,
        partition: Partition,
        next_offset: int,
        excluded: bytes | None,
    ) -> None:
        self._subscriber = subscriber
        self._label = f"{partition.topic}:{partition.index}:".encode()
        self.partition = partition
        self.place = SubscriptionProgress(next_offset)
        self.excluded = excluded
        self.feed: PartitionFeed | None = None
        self.is_listed = False
        """Whether it stands in the row of those that have something to do."""

    @property
    def cursor(self) -> bytes:
        """Its part of the subscriber's cursor."""
        return b"%s%d" % (self._label, self.place.next_offset)

    # What a feed asks of who watches.

    @property
    def is_at_tail(self) -> bool:
        """Whether it wants bursts."""
        return self.place.is_at_tail

    def offer(self, burst: EncodedBatch) -> None:
        """Take a burst, if the subscriber has room for it."""
        place, subscriber = self.place, self._subscriber
        queued_bytes = place.queued_bytes
        place.offer(burst, room=subscriber.room)
        subscriber.queued_bytes += place.queued_bytes - queued_bytes
        if place.has_work:
            subscriber.list_seat(self)

    def fall_behind(self) -> None:
        """Drop what waits, and read it again from the log."""
        place, subscriber = self.place, self._subscriber
        subscriber.queued_bytes -= place.queued_bytes
        place.fall_behind()
        subscriber.list_seat(self)

    def end(self, error: MillstreamError) -> None:
        """Have the subscriber told that the topic is over."""
        self._subscriber.note_failure(self, error)

    # What its subscriber asks.

    def take(self) -> list[EncodedBatch]:
        """Return the bursts to send next, as one event."""
        queued_bytes = self.place.queued_bytes
        taken = self.place.take()
        self._subscriber.queued_bytes += self.place.queued_bytes - queued_bytes
        return taken
