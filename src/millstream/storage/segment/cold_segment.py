"""Segments whose `.log` is in a cold store.

Seal, index and key index are local files, as those of any sealed segment. The bytes of the `.log`
come in pieces through a bounded cache. `view` never waits: if a piece is not in the cache, it is
requested, and `ColdMiss` is raised, with what the caller can wait for before it tries again. So a
store that hangs delays those who read from it and nobody else, whichever thread they are in.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from millstream.errors import TierUnavailable
from millstream.storage.files.cold_marker import ColdMarker
from millstream.storage.files.index import SegmentIndex, decode_index
from millstream.storage.files.seal import Seal
from millstream.storage.segment.segment import LogDirectory, SealedSegment

COLD_READ_BYTES_MAX = 1024 * 1024
"""Bytes that one read of a cold segment returns at most, unless a batch is larger: a reader must
not need more pieces at once than the cache holds."""


class ColdMiss(TierUnavailable):
    """Bytes of a cold segment are not in the cache, and were requested."""

    def __init__(self, message: str, fetches: Sequence[Future[bytes]] = ()) -> None:
        super().__init__(message)
        self.fetches = tuple(fetches)
        """The fetches that have to end before the same bytes are asked for again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return TierUnavailable, (str(self),)


class ColdBytes(Protocol):
    """The cold store, as segments see it. Any thread may use it, and no method waits."""

    def view(self, marker: ColdMarker, start: int, end: int) -> memoryview:
        """Return bytes of the `.log` of a segment; raise `TierUnavailable` or `ColdMiss`."""
        ...

    def index(self, marker: ColdMarker) -> memoryview:
        """Return the bytes of its `.index`, of which the local file is lost."""
        ...

    def discard(self, log_directory: LogDirectory, marker: ColdMarker) -> None:
        """Delete the objects of a segment that is not part of the log any more, then its marker."""
        ...


class ColdSegment(SealedSegment):
    """A sealed segment whose `.log` is in a cold store."""

    def __init__(self, log_directory: LogDirectory, marker: ColdMarker) -> None:
        super().__init__(log_directory, marker.seal, marker.generation)
        self.marker = marker

    def view(self, start: int, end: int) -> memoryview:
        """Return bytes of the `.log`, all of them; raise `ColdMiss` if they are not in memory."""
        end = min(end, self.size)
        if start >= end:
            return memoryview(b"")
        return self._store.view(self.marker, start, end)

    def discard(self) -> None:
        """Delete its objects, once its local files are gone. The next start does it otherwise."""
        if (store := self.log_directory.cold) is not None:
            store.discard(self.log_directory, self.marker)

    @property
    def _store(self) -> ColdBytes:
        store = self.log_directory.cold
        if store is None:
            raise TierUnavailable(
                f"{self.path}: its records are in {self.marker.store}, and tier.store is not set"
            )
        return store

    def _derive_index(self) -> SegmentIndex:
        data = self._store.index(self.marker)
        index = decode_index(data, base_offset=self.base_offset, log_size=self.size)
        self._keep_index(index)
        return index


def is_same_content(marker: ColdMarker, seal: Seal) -> bool:
    """Return whether an object has the bytes that were sealed."""
    stored = marker.seal
    return (stored.size, stored.next_offset, stored.digest) == (
        seal.size,
        seal.next_offset,
        seal.digest,
    )
