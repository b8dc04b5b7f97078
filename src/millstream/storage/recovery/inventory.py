"""Inventory of the files of a partition when its log is opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from millstream.errors import CorruptFile
from millstream.storage.disk.file_cache import map_file
from millstream.storage.disk.filesystem import join
from millstream.storage.files.cold_marker import ColdMarker, read_cold_marker
from millstream.storage.files.names import (
    SEGMENT_SUFFIXES,
    TEMPORARY_SUFFIX,
    SegmentId,
    cold_file,
    parse_cold_file,
    parse_segment_file,
    segment_file,
)
from millstream.storage.files.seal import Seal
from millstream.storage.recovery.generations import GenerationCandidate
from millstream.storage.segment.scan import SegmentScan, scan
from millstream.storage.segment.segment import LogDirectory, read_seal


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    """A segment that was scanned, because it has no seal or its seal is in doubt."""

    id: SegmentId
    file_size: int
    scan: SegmentScan

    @property
    def base_offset(self) -> int:
        """The base offset in its name."""
        return self.id.base_offset


class LogInventory:
    """The files of one log, which nobody else changes meanwhile.

    `leader_epoch_at` returns the epoch of the segment with a base offset, if it is known. `now_ms`
    dates segments that have no date.
    """

    def __init__(
        self,
        log_directory: LogDirectory,
        *,
        leader_epoch_at: Callable[[int], int | None],
        now_ms: Callable[[], int],
    ) -> None:
        self._log_directory = log_directory
        self._leader_epoch_at = leader_epoch_at
        self._now_ms = now_ms
        self._scans: dict[SegmentId, ScannedSegment] = {}
        self.scanned_bytes = 0
        self.actions: list[str] = []
        """What was removed, as messages."""
        listed = log_directory.filesystem.list(log_directory.directory)
        self.names = set(listed)
        self.leftovers = [name for name in listed if name.endswith(TEMPORARY_SUFFIX)]
        """Files that belong to no segment."""
        self.bad_seals: dict[SegmentId, CorruptFile] = {}
        self.cold: dict[SegmentId, ColdMarker] = {}
        """Segments whose log is in a cold store only."""
        self.relocated: dict[SegmentId, ColdMarker] = {}
        """Segments whose log is here, although they have a marker: a crash came in between."""
        self.unwanted: list[ColdMarker] = []
        """Markers of segments that were removed: their objects have to be deleted."""
        self.bad_markers: dict[SegmentId, CorruptFile] = {}
        self.candidates: dict[SegmentId, GenerationCandidate] = {}
        """All segments that have a log or a seal."""
        self._list_files(listed)

    @property
    def has_logs(self) -> bool:
        """Whether any segment has a log."""
        return any(candidate.log_size is not None for candidate in self.candidates.values())

    def path(self, segment: SegmentId, suffix: str) -> str:
        return self._log_directory.path(segment.base_offset, suffix, segment.generation)

    def size(self, segment: SegmentId) -> int:
        """Return the size of the log of a segment."""
        return self.candidates[segment].log_size or 0

    def read(self, segment: SegmentId) -> ScannedSegment:
        """Scan the log of a segment, once."""
        if segment not in self._scans:
            view = map_file(self._log_directory.filesystem, self.path(segment, "log"))
            result = scan(
                view,
                base_offset=segment.base_offset,
                created_ms=self._now_ms(),
                index_interval_bytes=self._log_directory.index_interval_bytes,
                leader_epoch=self._leader_epoch_at(segment.base_offset),
            )
            self.scanned_bytes += len(view)
            self._scans[segment] = ScannedSegment(segment, len(view), result)
        return self._scans[segment]

    def read_end(self, segment: SegmentId) -> int:
        """Scan the log of a segment, and return the offset after its last valid batch."""
        return self.read(segment).scan.stats.next_offset

    def remove(self, name: str) -> None:
        """Remove a file, if it still exists: a later write may have renamed a temporary file."""
        path = join(self._log_directory.directory, name)
        self.names.discard(name)
        with contextlib.suppress(FileNotFoundError):
            self._log_directory.filesystem.remove(path)
            self.actions.append(f"removed: {path}")

    def drop(self, segments: Sequence[SegmentId]) -> None:
        """Remove segments, durably, the last first: what remains is a valid log at every moment."""
        for segment in sorted(segments, reverse=True):
            for name in _files(segment, SEGMENT_SUFFIXES):
                if name in self.names:
                    self.remove(name)
            if marker := self.cold.pop(segment, None) or self.relocated.pop(segment, None):
                self.unwanted.append(marker)
        if segments:
            self._log_directory.filesystem.sync_directory(self._log_directory.directory)

    def _list_files(self, names: Sequence[str]) -> None:
        suffixes_by_id: dict[SegmentId, set[str]] = {}
        for name in filter(None, map(parse_segment_file, names)):
            suffixes_by_id.setdefault(name.id, set()).add(name.suffix)
        for segment in filter(None, map(parse_cold_file, names)):
            self._read_marker(segment, suffixes_by_id.setdefault(segment, set()))
        for segment, suffixes in suffixes_by_id.items():
            if suffixes & {"log", "seal"} or segment in self.cold:
                self.candidates[segment] = self._candidate(segment, suffixes)
            elif segment not in self.bad_markers:
                self.leftovers += _files(segment, sorted(suffixes))

    def _read_marker(self, segment: SegmentId, suffixes: set[str]) -> None:
        filesystem, directory = self._log_directory.filesystem, self._log_directory.directory
        try:
            marker = read_cold_marker(filesystem, directory, segment)
        except CorruptFile as error:
            self.bad_markers[segment] = error
            if "log" in suffixes:  # The local log counts whatever the marker says.
                self.leftovers.append(cold_file(segment))
        else:
            (self.relocated if "log" in suffixes else self.cold)[segment] = marker

    def _candidate(self, segment: SegmentId, suffixes: set[str]) -> GenerationCandidate:
        filesystem = self._log_directory.filesystem
        if (marker := self.cold.get(segment)) is not None:
            return GenerationCandidate(
                id=segment, log_size=marker.seal.size, has_seal=True, seal=marker.seal
            )
        return GenerationCandidate(
            id=segment,
            log_size=filesystem.size(self.path(segment, "log")) if "log" in suffixes else None,
            has_seal="seal" in suffixes,
            seal=self._read_seal(segment) if "seal" in suffixes else None,
        )

    def _read_seal(self, segment: SegmentId) -> Seal | None:
        try:
            return read_seal(self._log_directory, *segment)
        except CorruptFile as error:
            self.bad_seals[segment] = error
            return None


def _files(segment: SegmentId, suffixes: Iterable[str]) -> list[str]:
    return [segment_file(segment.base_offset, suffix, segment.generation) for suffix in suffixes]
