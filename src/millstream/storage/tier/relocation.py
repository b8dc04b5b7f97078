"""The last steps of a relocation: from when on the object in the cold store is the segment.

    1. the objects are in the store, were read back completely, and are what was sealed
    2. `partition.json` says durably that there are segments in a cold store
    3. the marker is written and durable: the commit point
    4. readers see the segment in the cold store
    5. the local `.log` is removed

A crash before 5 leaves the local `.log`, which then counts: the objects are deleted, and the
segment is relocated again. A crash after it leaves the marker, and the object counts.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from dataclasses import replace
from functools import partial

from millstream.errors import StorageFailed
from millstream.storage.disk.errors import transient_error
from millstream.storage.files.cold_marker import ColdMarker, write_cold_marker
from millstream.storage.segment.cold_segment import ColdSegment, is_same_content
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.segment import SealedSegment

logger = logging.getLogger(__name__)


class SegmentRelocation:
    """Puts segments in a cold store in the place of local ones. Belongs to the loop of one log."""

    def __init__(self, context: LogContext) -> None:
        self._context = context

    async def switch(self, segment: SealedSegment, marker: ColdMarker) -> bool:
        """Make the object of a segment its only copy; return whether that was possible.

        It is not if the segment was deleted, rewritten or reopened meanwhile, or records of it were
        deleted by key. The cleaner must not run.
        """
        return await self._context.metadata_file.run_exclusive(self._switch(segment, marker))

    async def _switch(self, segment: SealedSegment, marker: ColdMarker) -> bool:
        context, metadata_file = self._context, self._context.metadata_file
        if not is_same_content(marker, segment.seal) or not self._is_movable(segment):
            return False
        try:
            if not metadata_file.partition.is_tiered:
                await metadata_file.write(replace(metadata_file.partition, is_tiered=True))
            filesystem, directory = (
                context.log_directory.filesystem,
                context.log_directory.directory,
            )
            await context.background.run(partial(write_cold_marker, filesystem, directory, marker))
        except OSError as error:
            # The marker may be there or not. The local file counts in both cases.
            failed = StorageFailed(f"{context.name}: the marker was not written: {error}")
            raise transient_error(context.name, error) or failed from error
        if not self._is_movable(segment):  # Retention has removed it, and does not know the marker.
            ColdSegment(context.log_directory, marker).discard()
            return True
        context.state.replace_segment_run(
            (segment,), ColdSegment(context.log_directory, marker), array("q")
        )
        context.counters.relocated_segments += 1
        context.counters.relocated_bytes += segment.size
        context.tasks.start(self._remove_local(segment))
        context.on_change()
        return True

    def _is_movable(self, segment: SealedSegment) -> bool:
        snapshot = self._context.state.snapshot
        return (
            segment in snapshot.segments
            and segment is not snapshot.segments[-1]
            and segment.next_offset <= snapshot.committed.offset
            and segment.base_offset not in snapshot.masks
        )

    async def _remove_local(self, segment: SealedSegment) -> None:
        """Remove the local `.log`. If that fails, the next start finds it and begins again."""
        context = self._context
        try:
            await context.background.run(partial(_remove_log, segment))
        except OSError as error:
            logger.warning("%s: %s was not removed: %s", context.name, segment.path, error)


def _remove_log(segment: SealedSegment) -> None:
    with contextlib.suppress(FileNotFoundError):
        segment.log_directory.filesystem.remove(segment.path)
    segment.log_directory.map_cache.forget(segment.path)
