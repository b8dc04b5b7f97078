"""Upload of a sealed segment, and the check of what the store then returns. Blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from xxhash import xxh3_128_digest

from millstream.errors import DamagedRecords, TierUnavailable
from millstream.storage.disk.page_cache import drop_from_page_cache
from millstream.storage.files.cold_marker import PIECE_BYTES, ColdMarker
from millstream.storage.files.index import encode_index
from millstream.storage.files.seal import encode_seal
from millstream.storage.segment.segment import SealedSegment
from millstream.storage.segment.segment_check import check_segment
from millstream.storage.tier.cold_store import ColdStore

OnRead = Callable[[int], None]
"""Called with a number of bytes that were moved; may wait, or raise to end the work."""


def upload_segment(
    store: ColdStore,
    segment: SealedSegment,
    key: str,
    *,
    on_read: OnRead,
    piece_bytes: int = PIECE_BYTES,
) -> ColdMarker:
    """Copy a segment into the store, read it back, and return its marker, which is not written.

    Raises `DamagedRecords` if the local file is not what was sealed, and `TierUnavailable` if the
    store fails or does not return what it was given.
    """
    local = check_segment(segment, on_read=on_read)
    if local.damage:
        raise local.damage[0]
    place = f"{store.uri}/{key}"
    index = encode_index(segment.index(), base_offset=segment.base_offset, log_size=segment.size)
    marker = ColdMarker(
        store=store.uri,
        key=key,
        etag="",
        generation=segment.generation,
        seal=segment.seal,
        piece_bytes=piece_bytes,
        piece_digests=(),
        index_size=len(index),
        index_digest=xxh3_128_digest(index),
    )
    try:
        store.put(marker.index_key, [index])
        store.put(marker.seal_key, [encode_seal(segment.seal)])
        etag = store.put(key, _pieces(segment, on_read))
        digests = _verified(store, segment, marker, on_read)
        if store.read(marker.index_key, 0, len(index) + 1) != index:
            raise TierUnavailable(f"{place}.index: is not what was stored")
    except DamagedRecords as damage:
        raise TierUnavailable(f"{place}: is not what was stored: {damage}") from damage
    except OSError as error:
        raise TierUnavailable(f"{place}: cannot be stored: {error}") from error
    return ColdMarker(
        store=store.uri,
        key=key,
        etag=etag,
        generation=segment.generation,
        seal=segment.seal,
        piece_bytes=piece_bytes,
        piece_digests=digests,
        index_size=len(index),
        index_digest=marker.index_digest,
    )


def delete_objects(store: ColdStore, marker: ColdMarker) -> None:
    """Delete the objects of a segment. Blocks."""
    place = f"{store.uri}/{marker.key}"
    try:
        for key in (marker.key, marker.index_key, marker.seal_key):
            store.delete(key)
    except OSError as error:
        raise TierUnavailable(f"{place}: cannot be deleted: {error}") from error


def _pieces(segment: SealedSegment, on_read: OnRead) -> Iterator[bytes]:
    file = segment.log_directory.filesystem.open_readonly(segment.path)
    try:
        position = 0
        while position < segment.size:
            piece = file.read_at(position, min(PIECE_BYTES, segment.size - position))
            if not piece:
                raise OSError(f"{segment.path} ends at byte {position} of {segment.size}")
            on_read(len(piece))
            yield piece
            drop_from_page_cache(file, position, len(piece))
            position += len(piece)
    finally:
        with contextlib.suppress(OSError):  # Nothing was written to it.
            file.close()


def _verified(
    store: ColdStore, segment: SealedSegment, marker: ColdMarker, on_read: OnRead
) -> tuple[bytes, ...]:
    """Read an object back, and return the digests of its pieces; raise if it is another segment.

    The digests are of what was read, and that is checked batch by batch and against the seal.
    """
    if (size := store.size(marker.key)) != segment.size:
        raise TierUnavailable(
            f"{store.uri}/{marker.key}: has {size} bytes, {segment.size} were stored"
        )
    file = _ObjectBytes(store, marker, on_read)
    checked = check_segment(segment, on_read=lambda _: None, file=file)
    if checked.damage:
        raise checked.damage[0]
    return file.digests()


class _ObjectBytes:
    """The bytes of an object, which is read once, from its beginning to its end."""

    def __init__(self, store: ColdStore, marker: ColdMarker, on_read: OnRead) -> None:
        self._store = store
        self._marker = marker
        self._on_read = on_read
        self._pieces: dict[int, bytes] = {}
        self._digests: dict[int, bytes] = {}

    def digests(self) -> tuple[bytes, ...]:
        count = -(-self.size() // self._marker.piece_bytes)
        return tuple(self._digests[number] for number in range(count))

    def size(self) -> int:
        return self._marker.seal.size

    def read_at(self, position: int, size: int) -> bytes:
        piece_bytes = self._marker.piece_bytes
        end = min(position + size, self.size())
        first, last = position // piece_bytes, (max(end, position + 1) - 1) // piece_bytes
        for number in [number for number in self._pieces if number < first]:
            del self._pieces[number]
        data = b"".join(self._piece(number) for number in range(first, last + 1))
        return data[position - first * piece_bytes : end - first * piece_bytes]

    def _piece(self, number: int) -> bytes:
        if number not in self._pieces:
            start = number * self._marker.piece_bytes
            size = min(self._marker.piece_bytes, self.size() - start)
            piece = self._store.read(self._marker.key, start, size)
            self._on_read(len(piece))
            digest = xxh3_128_digest(piece)
            if len(piece) != size or self._digests.setdefault(number, digest) != digest:
                raise TierUnavailable(
                    f"{self._store.uri}/{self._marker.key}: returned {len(piece)} bytes from byte"
                    f" {start} on, expected {size}, and the same each time"
                )
            self._pieces[number] = piece
        return self._pieces[number]
