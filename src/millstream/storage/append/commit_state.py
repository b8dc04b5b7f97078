"""What of one log is written and not yet on the disk, and its part in a commit.

A batch counts only when all before it is durable, so a commit syncs every segment with unsynced
bytes, and the directory if a name in it is new. While one is under way, what is written gathers
for the next. The checkpoint is written after a commit, so it is true whenever it reaches the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millstream.clock import Clock
from millstream.storage.append.group_committer import GroupCommitter
from millstream.storage.disk.filesystem import File
from millstream.storage.files.checkpoint import Checkpoint, SyncPoint
from millstream.storage.segment.counters import LogCounters
from millstream.storage.segment.lifecycle import open_checkpoint
from millstream.storage.segment.log_state import LogPosition
from millstream.storage.segment.segment import GrowingSegment, LogDirectory

logger = logging.getLogger(__name__)


class CommitState:
    """The unsynced part of one log of class `fsync`.

    `mark` says how far the log is written; `on_end` is told how far a commit came, or why it
    failed, and after that nothing more may be asked of it.
    """

    def __init__(
        self,
        *,
        name: str,
        place: LogDirectory,
        clock: Clock,
        committer: GroupCommitter,
        counters: LogCounters,
        mark: Callable[[], LogPosition],
        on_end: Callable[[LogPosition, Exception | None], None],
    ) -> None:
        self._name = name
        self._place = place
        self._clock = clock
        self._committer = committer
        self._counters = counters
        self._mark = mark
        self._on_end = on_end
        self._segments: list[GrowingSegment] = []
        self._is_stopped = False
        self.is_directory_dirty = False
        self.checkpoint: Checkpoint | None = None
        self._is_more_synced = False
        """Whether something was synced otherwise that no commit has covered."""

        # The commit that is under way.
        self._syncing: LogPosition | None = None
        self._started = 0.0
        self._count = 0

        # When the first was written of what waits for the next commit, and of this one.
        self._waiting_since = 0.0
        self._written_at = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether a commit was asked for that has not ended."""
        return self._syncing is not None

    def add(self, segment: GrowingSegment) -> None:
        """Have a segment synced that was written, now or with the next commit."""
        if not self._segments:
            self._waiting_since = self._clock.monotonic()
        if segment not in self._segments:
            self._segments.append(segment)
        self._request()

    def discard(self, segment: GrowingSegment) -> None:
        """Take note that a segment was synced otherwise, by sealing it.

        If it waited for a commit, another one is under way, at whose end that is told.
        """
        if segment in self._segments:
            self._segments.remove(segment)
            self._is_more_synced = True

    def stop(self) -> None:
        """Begin no other commit, and tell no one of the one that is under way."""
        self._is_stopped = True

    def _request(self) -> None:
        if self._syncing is None and not self._is_stopped:
            self._syncing = self._mark()
            self._committer.request(self)

    # What the committer asks for.

    @property
    def is_plain(self) -> bool:
        """Whether the next commit only has to sync files."""
        return not self.is_directory_dirty and self.checkpoint is not None

    def begin_plain_sync(self) -> list[File]:
        """Begin a commit of what was written up to now, and return the files to sync."""
        self._syncing = self._mark()
        self._is_more_synced = False
        self._started = self._clock.monotonic()
        self._written_at = self._waiting_since if self._segments else self._started
        files = [segment.open() for segment in self._segments]
        self._segments = []
        self._count = len(files)
        return files

    def begin_sync(self) -> Callable[[], None]:
        """Begin a commit of what was written up to now, and return all of its blocking work."""
        files = self.begin_plain_sync()
        is_directory_dirty, self.is_directory_dirty = self.is_directory_dirty, False

        def work() -> None:
            for file in files:
                file.sync()
            if self._ensure_checkpoint() or is_directory_dirty:
                self._place.filesystem.sync_directory(self._place.directory)

        return work

    def end_sync(self, error: Exception | None) -> None:
        """Take note that a commit has ended, and begin the next where there is one to make."""
        mark, self._syncing = self._syncing, None
        assert mark is not None, "a commit that ended was begun"
        if error is None and not self._is_stopped:
            self._counters.syncs += self._count
            now = self._clock.monotonic()
            took = now - self._started
            self._counters.sync_seconds += took
            self._counters.last_sync_seconds = took
            self._committer.totals.syncs.note(took)
            self._committer.totals.commits.note(now - self._written_at)
            self._note_synced(mark)
        self._on_end(mark, error)
        if self._segments:
            self._request()
        elif self._is_more_synced and not self._is_stopped:
            self._is_more_synced = False
            self._on_end(self._mark(), None)

    # The checkpoint.

    def _ensure_checkpoint(self) -> bool:
        """Have a checkpoint file; returns whether its name is new, and has to be made durable."""
        is_new = False
        try:
            if self.checkpoint is None:
                self.checkpoint, is_new = open_checkpoint(self._place)
        except OSError as error:
            logger.warning("%s: no checkpoint: %s", self._name, error)
        return is_new

    def _note_synced(self, mark: LogPosition) -> None:
        """Write the checkpoint. It only sharpens what recovery can tell, so it may fail."""
        if self.checkpoint is None or mark.position == 0:
            return  # An empty segment may go again; nothing must rest on it.
        try:
            self.checkpoint.write(SyncPoint(mark.segment, mark.position))
        except OSError as error:
            logger.warning("%s: checkpoint not written: %s", self._name, error)
            self.checkpoint = None
