"""Small JSON files that are replaced as a whole: `node.json`, `partition.json`.

    {"format": "millstream-partition", "version": 1, "content": {...}, "crc32c": "0a1b2c3d"}

The checksum covers everything before it, written with sorted keys and without spaces. A file is
replaced by writing another beside it, syncing that, renaming it and syncing the directory, so a
crash leaves the old or the new one and never a mix.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from millstream.errors import CorruptFile, UnknownFormat
from millstream.records.batch import Bytes
from millstream.storage.disk.errors import is_disk_full
from millstream.storage.disk.filesystem import Filesystem, join, write_all
from millstream.storage.files.names import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from millstream.storage.files.ballast import BallastFile

DOCUMENT_SIZE_MAX = 16 * 1024 * 1024
"""Thousands of times the usual size; keeps a damaged file from filling the memory."""


def encode_document(kind: str, version: int, content: Mapping[str, Any]) -> bytes:
    body = {"format": kind, "version": version, "content": content}
    return _dump({**body, "crc32c": f"{crc32c(_dump(body)):08x}"}) + b"\n"


def decode_document(data: bytes, kind: str, version: int) -> dict[str, Any]:
    """Check checksum, kind and version of a document, and return its content.

    All versions up to `version` are accepted.
    """
    try:
        document = json.loads(data)
        checksum = document.pop("crc32c")
        content, written_as = document["content"], (document["format"], document["version"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"not a {kind} document: {error!r}") from error
    expected = f"{crc32c(_dump(document)):08x}"
    if checksum != expected:
        raise CorruptFile(f"{kind} has checksum {expected}, the file says {checksum!r}")
    if encode_document(*written_as, content) != data:
        raise CorruptFile(f"{kind} is not in canonical form")
    if written_as[0] != kind or written_as[1] not in range(1, version + 1):
        known = version if version == 1 else f"1-{version}"
        raise UnknownFormat(
            f"expected {kind} version {known}, got {written_as[0]} version {written_as[1]}"
        )
    if not isinstance(content, dict):
        raise CorruptFile(f"content of {kind} is not an object")
    return content


def read_document(filesystem: Filesystem, path: str, kind: str, version: int) -> dict[str, Any]:
    """Read a document; raise `FileNotFoundError` if it does not exist."""
    file = filesystem.open_readonly(path)
    try:
        if (size := file.size()) > DOCUMENT_SIZE_MAX:
            raise CorruptFile(f"{path} has {size} bytes, limit is {DOCUMENT_SIZE_MAX}")
        return decode_document(file.read_at(0, size), kind, version)
    except CorruptFile as error:
        raise CorruptFile(f"{path}: {error}") from error
    except UnknownFormat as error:
        raise UnknownFormat(f"{path}: {error}") from error
    finally:
        file.close()


def write_document(
    filesystem: Filesystem,
    directory: str,
    name: str,
    content: Mapping[str, Any],
    *,
    kind: str,
    version: int,
    ballast: BallastFile | None = None,
) -> None:
    """Replace a document; durable when this returns.

    On a full disk, an existing document is replaced through the `ballast` file.
    """
    data = encode_document(kind, version, content)
    try:
        replace_file(filesystem, directory, name, [data])
    except OSError as error:
        if (
            ballast is None
            or not is_disk_full(error)
            or not ballast.replace_file(directory, name, data)
        ):
            raise
    filesystem.sync_directory(directory)


def replace_file(
    filesystem: Filesystem, directory: str, name: str, pieces: Sequence[Bytes]
) -> None:
    """Write a file and sync its bytes; the name is durable after `sync_directory`."""
    temporary = join(directory, name + TEMPORARY_SUFFIX)
    with contextlib.suppress(FileNotFoundError):
        filesystem.remove(temporary)
    file = filesystem.create(temporary)
    try:
        write_all(file, 0, pieces)
        file.sync()
    finally:
        file.close()
    filesystem.rename(temporary, join(directory, name))


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
