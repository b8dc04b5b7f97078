"""`<base>.<generation>.cold`: the marker of a segment whose `.log` is in a cold store.

The marker is the commit point of a relocation: while it is not there, the local `.log` is the
segment; with the marker and without the `.log`, the object is. So it has all that is needed to read
the object, and to know that it is the right one: the seal of the segment, and a checksum of each
piece that is fetched.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import CorruptFile, UnknownFormat
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import read_document, write_document
from millstream.storage.files.names import SegmentId, cold_file
from millstream.storage.files.seal import Seal, decode_seal, encode_seal

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of a `.log` that are fetched and checked at once."""

DIGEST_SIZE = 16

_KIND = "millstream-cold"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdMarker:
    """What is known of a segment in a cold store."""

    store: str
    """URI of the store."""
    key: str
    """Name of the object with the bytes of the `.log`."""
    etag: str
    """Version of the object as the store names it; empty if it does not."""
    generation: int
    seal: Seal
    piece_bytes: int
    """Size of the pieces; the last one may be smaller."""
    piece_digests: tuple[bytes, ...]
    """XXH3-128 of each piece."""
    index_size: int
    """Size of the object with the `.index`."""
    index_digest: bytes

    @property
    def id(self) -> SegmentId:
        """Base offset and generation of the segment."""
        return SegmentId(self.seal.base_offset, self.generation)

    @property
    def index_key(self) -> str:
        """Name of the object with the `.index`."""
        return f"{self.key}.index"

    @property
    def seal_key(self) -> str:
        """Name of the object with the `.seal`."""
        return f"{self.key}.seal"


def read_cold_marker(filesystem: Filesystem, directory: str, segment: SegmentId) -> ColdMarker:
    """Read the marker of a segment; raise `FileNotFoundError`, `CorruptFile` or `UnknownFormat`."""
    path = join(directory, cold_file(segment))
    content = read_document(filesystem, path, _KIND, _VERSION)
    try:
        digests = bytes.fromhex(content["piece_digests"])
        marker = ColdMarker(
            store=str(content["store"]),
            key=str(content["key"]),
            etag=str(content["etag"]),
            generation=segment.generation,
            seal=decode_seal(bytes.fromhex(content["seal"])),
            piece_bytes=int(content["piece_bytes"]),
            piece_digests=tuple(
                digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)
            ),
            index_size=int(content["index_size"]),
            index_digest=bytes.fromhex(content["index_digest"]),
        )
    except (KeyError, TypeError, ValueError, CorruptFile) as error:
        raise CorruptFile(f"{path}: {error!r}") from error
    except UnknownFormat as error:
        raise UnknownFormat(f"{path}: {error}") from error
    if marker.seal.base_offset != segment.base_offset:
        raise CorruptFile(
            f"{path}: describes the segment at offset {marker.seal.base_offset}, expected"
            f" {segment.base_offset}"
        )
    if marker.piece_bytes <= 0 or len(marker.piece_digests) != -(
        -marker.seal.size // marker.piece_bytes
    ):
        raise CorruptFile(
            f"{path}: {len(marker.piece_digests)} pieces of {marker.piece_bytes} bytes are not"
            f" the {marker.seal.size} bytes of the segment"
        )
    return marker


def write_cold_marker(filesystem: Filesystem, directory: str, marker: ColdMarker) -> None:
    """Write the marker of a segment; durable when this returns."""
    content = {
        "store": marker.store,
        "key": marker.key,
        "etag": marker.etag,
        "size": marker.seal.size,
        "digest": marker.seal.digest.hex(),
        "seal": encode_seal(marker.seal).hex(),
        "piece_bytes": marker.piece_bytes,
        "piece_digests": b"".join(marker.piece_digests).hex(),
        "index_size": marker.index_size,
        "index_digest": marker.index_digest.hex(),
    }
    write_document(
        filesystem, directory, cold_file(marker.id), content, kind=_KIND, version=_VERSION
    )
