"""Whatever happens to a partition and to its watcher, every live record comes once, and in order.

The model is a log of numbers, a feed over it, and one watcher that is sometimes slow and sometimes
reconnects. Sometimes the topic is deleted and created again. Only `SubscriptionProgress` is real.
"""

from __future__ import annotations

import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.broker.partition.record_page import RecordPage
from millstream.records.cursor import CursorPosition
from millstream.records.record import Gap, StoredRecord
from millstream.servers.http.live.encoded_batch import EncodedBatch, event_prefix
from millstream.servers.http.live.subscription_progress import SubscriptionProgress

OPENING = event_prefix("t", 0)
OLD = uuid.UUID(int=7)
ROOM = 600
"""Bytes that may be queued: a few batches of this model."""


class Watcher(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.head = 0
        self.floor = 0
        self.deleted: set[int] = set()
        self.is_deletion_noted = True
        self.feed_offset = 0
        self.progress = SubscriptionProgress(0)
        self.seen: list[int] = []
        self.missed: set[int] = set()
        """What the watcher was told that it will never see."""
        self.lags: list[tuple[int, int]] = []

    # What happens to the log.

    @rule(count=st.integers(1, 8))
    def append(self, count: int) -> None:
        self.head += count

    @precondition(lambda self: self.head)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.deleted.add(data.draw(st.integers(0, self.head - 1)))
        self.is_deletion_noted = False

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self.floor = data.draw(st.integers(self.floor, self.head))

    @rule(count=st.integers(0, 8))
    def recreate(self, count: int) -> None:
        """Another topic takes the name, and the watcher reconnects with its old cursor."""
        self.head, self.floor, self.feed_offset = count, 0, count
        self.deleted, self.is_deletion_noted = set(), True
        self.seen, self.missed = [], set()
        old = self.progress.deleted or CursorPosition(self.progress.next_offset, OLD)
        self.progress = SubscriptionProgress(0, old)
        self.progress.join(self.feed_offset)

    def read(self, offset: int, count: int) -> RecordPage:
        """Return the page that a real partition would return."""
        gap = Gap(offset, self.floor - 1, "retention") if offset < self.floor else None
        first = max(offset, self.floor)
        end = min(self.head, first + count)
        records = [
            StoredRecord(at, 0, None, b"1") for at in range(first, end) if at not in self.deleted
        ]
        return RecordPage(tuple(records), end, self.head, gap)

    # What the feed does.

    @rule(count=st.integers(1, 20))
    def feed(self, count: int) -> None:
        if not self.is_deletion_noted:
            self.is_deletion_noted = True
            self.progress.fall_behind()
        if not self.progress.is_at_tail:
            self.feed_offset = self.head
        elif self.feed_offset < self.head:
            found = self.read(self.feed_offset, count)
            if found.gap is not None:
                self.progress.fall_behind()
            else:
                batch = EncodedBatch(
                    OPENING, self.feed_offset, found.next_offset, found.head, found.records
                )
                queued = self.progress.queued_bytes
                self.progress.offer(batch, room=ROOM - queued if queued else None)
                assert self.progress.queued_bytes <= ROOM or not queued
            self.feed_offset = found.next_offset

    # What the watcher does.

    @rule(count=st.integers(1, 20))
    def serve(self, count: int) -> None:
        progress = self.progress
        if progress.deleted is not None:
            assert progress.has_work
            at = progress.deleted.offset
            assert progress.take_recreated() == Gap(at, at, "recreated")
            assert progress.take_recreated() is None
        elif progress.lag is not None:
            self.lags.append(progress.lag)
            assert progress.lag.from_offset == progress.next_offset
            progress.lag = None
        elif batches := progress.take():
            for batch in batches:
                self.tell(batch)
        elif not progress.is_at_tail and not progress.join(self.feed_offset):
            first = progress.next_offset
            found = progress.advance(self.read(first, count), self.feed_offset)
            if found.gap is not None:
                assert found.gap.from_offset == first
                self.missed |= set(range(found.gap.from_offset, found.gap.to_offset + 1))
            batch = EncodedBatch(OPENING, first, found.next_offset, found.head, found.records)
            self.tell(batch)

    def tell(self, batch: EncodedBatch) -> None:
        text = batch.records.decode()
        offsets = [int(part.split(",")[0]) for part in text.split('"offset":')[1:]]
        if self.is_deletion_noted:
            assert not self.deleted & set(offsets)
        self.seen += offsets

    @rule()
    def connect_again(self) -> None:
        self.progress = SubscriptionProgress(self.progress.next_offset, self.progress.deleted)

    # What holds at every moment.

    @invariant()
    def nothing_comes_before_the_watcher_knows_that_its_topic_was_deleted(self) -> None:
        assert self.progress.deleted is None or not self.seen

    @invariant()
    def nothing_comes_twice_and_offsets_rise(self) -> None:
        assert self.seen == sorted(set(self.seen))

    @invariant()
    def everything_before_the_cursor_was_seen_or_is_gone(self) -> None:
        told = set(self.seen) | self.missed | self.deleted
        assert set(range(self.progress.next_offset)) <= told
        assert not any(offset >= self.progress.next_offset for offset in self.seen)

    def teardown(self) -> None:
        """In the end the watcher has reached the head."""
        for _ in range(4 * self.head + 11):
            self.feed(20)
            self.serve(20)
        assert self.progress.is_at_tail
        assert self.progress.deleted is None
        assert self.progress.next_offset == self.head
        self.nothing_comes_twice_and_offsets_rise()
        self.everything_before_the_cursor_was_seen_or_is_gone()


TestWatcher = Watcher.TestCase
TestWatcher.settings = settings(max_examples=100, stateful_step_count=40)
