"""Reads of cold segments: a bounded cache of pieces, and the fetches that fill it.

    view ──► in the cache? ──► bytes
                  │ no
                  ├── fetched already? ──► ColdMiss, with the fetch in flight
                  ├── failed just now? ──► TierUnavailable, with the reason
                  └── a thread of the tier fetches the piece, and checks its size and digest

A piece is fetched once however many wait for it. It comes into the cache only if it has the digest
that the marker says: what is wrong or short is never seen by a reader.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial

from xxhash import xxh3_128_digest

from millstream.errors import TierUnavailable
from millstream.storage.files.cold_marker import ColdMarker
from millstream.storage.segment.cold_segment import ColdMiss
from millstream.storage.segment.segment import LogDirectory
from millstream.storage.tier.cold_store import ColdStore
from millstream.storage.tier.tier_threads import TierThreads

RETRY_SECONDS = 1.0
"""How long a failure is told to others before the store is asked again."""

REPORT_SECONDS = 300.0
"""How long a failure is a problem of the node if nobody reads the same bytes again."""

FAILED_MAX = 1000
"""Number of failures that are remembered."""

_INDEX = -1
"""The piece that is the whole `.index`."""

PieceKey = tuple[str, int]
"""Key of an object, and the number of a piece."""


@dataclass(slots=True)
class ColdCounters:
    """Running totals since the store was opened."""

    reads: int = 0
    """Pieces that were fetched."""
    bytes: int = 0
    """Bytes of these."""
    seconds: float = 0.0
    """Time that fetching took, of all threads together."""
    failures: int = 0
    """Fetches that failed, or returned something else than was stored."""
    hits: int = 0
    """Views that found their bytes in the cache."""
    misses: int = 0
    """Views that did not."""


class ColdReader:
    """Fetches and keeps pieces of objects; see `ColdBytes` in `segment`."""

    def __init__(
        self,
        store: ColdStore,
        threads: TierThreads,
        *,
        cache_bytes_max: int,
        monotonic: Callable[[], float],
        on_discard: Callable[[LogDirectory, ColdMarker], None] = lambda _d, _m: None,
    ) -> None:
        self._store = store
        self._threads = threads
        self._cache_bytes_max = cache_bytes_max
        self._monotonic = monotonic
        self._on_discard = on_discard
        self._lock = threading.RLock()  # A fetch that is over at once is kept by who started it.
        self._pieces: OrderedDict[PieceKey, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._fetches: dict[PieceKey, Future[bytes]] = {}
        self._failed: OrderedDict[PieceKey, tuple[TierUnavailable, float]] = OrderedDict()
        self.counters = ColdCounters()

    @property
    def cached_bytes(self) -> int:
        """Bytes in the cache."""
        return self._cached_bytes

    def problem(self) -> str | None:
        """Return why a fetch failed lately and was not repeated with success; `None` if none."""
        since = self._monotonic() - REPORT_SECONDS
        with self._lock:
            latest = next(reversed(self._failed.values()), None)
        return None if latest is None or latest[1] < since else str(latest[0])

    def view(self, marker: ColdMarker, start: int, end: int) -> memoryview:
        size = marker.piece_bytes
        first, last = start // size, (end - 1) // size
        pieces = self._get(marker, list(range(first, last + 1)))
        parts = [
            memoryview(piece)[max(0, start - number * size) : end - number * size]
            for number, piece in enumerate(pieces, first)
        ]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def index(self, marker: ColdMarker) -> memoryview:
        return memoryview(self._get(marker, [_INDEX])[0])

    def discard(self, log_directory: LogDirectory, marker: ColdMarker) -> None:
        with self._lock:
            for number in range(_INDEX, len(marker.piece_digests)):
                self._failed.pop((marker.key, number), None)
                if (piece := self._pieces.pop((marker.key, number), None)) is not None:
                    self._cached_bytes -= len(piece)
        self._on_discard(log_directory, marker)

    def _get(self, marker: ColdMarker, numbers: list[int]) -> list[bytes]:
        with self._lock:
            found = [self._pieces.get((marker.key, number)) for number in numbers]
            for number, piece in zip(numbers, found, strict=True):
                if piece is not None:
                    self._pieces.move_to_end((marker.key, number))
            pieces = [piece for piece in found if piece is not None]
            if len(pieces) == len(numbers):
                self.counters.hits += 1
                return pieces
            self.counters.misses += 1
            missing = [
                number for number, piece in zip(numbers, found, strict=True) if piece is None
            ]
            fetches = [self._fetch(marker, number) for number in missing]
        raise ColdMiss(f"{self._store.uri}/{marker.key}: is being fetched; try again", fetches)

    def _fetch(self, marker: ColdMarker, number: int) -> Future[bytes]:
        """Return the fetch of a piece that is in flight, or start one. The lock is held."""
        key = marker.key, number
        if (fetch := self._fetches.get(key)) is not None:
            return fetch
        if (failed := self._failed.get(key)) is not None and failed[1] > self._monotonic():
            raise failed[0].with_traceback(None)
        if marker.store != self._store.uri:
            raise TierUnavailable(
                f"{marker.key} is in the cold store {marker.store}, tier.store is {self._store.uri}"
            )
        fetch = self._threads.submit(partial(self._load, marker, number))
        self._fetches[key] = fetch
        fetch.add_done_callback(partial(self._keep, key))
        return fetch

    def _load(self, marker: ColdMarker, number: int) -> bytes:
        """Fetch a piece and check it. Blocks."""
        key, began = marker.key, self._monotonic()
        if number == _INDEX:
            key, start, size = marker.index_key, 0, marker.index_size
            digest = marker.index_digest
        else:
            start = number * marker.piece_bytes
            size = min(marker.piece_bytes, marker.seal.size - start)
            digest = marker.piece_digests[number]
        place = f"{self._store.uri}/{key}"
        try:
            data = self._store.read(key, start, size)
        except FileNotFoundError as error:
            raise TierUnavailable(f"{place}: is missing in the cold store") from error
        except Exception as error:  # Whatever a library of a store raises.
            raise TierUnavailable(f"{place}: cannot be read: {error}") from error
        finally:
            self.counters.seconds += self._monotonic() - began
        if len(data) != size:
            raise TierUnavailable(
                f"{place}: has {len(data)} bytes from byte {start} on, expected {size}"
            )
        if xxh3_128_digest(data) != digest:
            raise TierUnavailable(f"{place}: {size} bytes from byte {start} on are not as stored")
        return data

    def _keep(self, key: PieceKey, fetch: Future[bytes]) -> None:
        """Put the result of a fetch into the cache, or remember why there is none."""
        with self._lock:
            self._fetches.pop(key, None)
            self._failed.pop(key, None)
            try:
                piece = fetch.result()
            except CancelledError:
                return
            except TierUnavailable as error:
                self.counters.failures += 1
                self._failed[key] = error, self._monotonic() + RETRY_SECONDS
                if len(self._failed) > FAILED_MAX:
                    self._failed.popitem(last=False)
                return
            self.counters.reads += 1
            self.counters.bytes += len(piece)
            self._pieces[key] = piece
            self._cached_bytes += len(piece)
            while self._cached_bytes > self._cache_bytes_max and len(self._pieces) > 1:
                _, dropped = self._pieces.popitem(last=False)
                self._cached_bytes -= len(dropped)
