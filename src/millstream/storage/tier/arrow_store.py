"""Object stores through `pyarrow.fs`: S3, Google Cloud Storage, Azure and HDFS.

`pyarrow` is loaded here and nowhere else in the storage, and only by a node whose `tier.store` is
such a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from millstream.errors import InvalidConfig


class ArrowStore:
    """Objects below a URI."""

    def __init__(self, uri: str) -> None:
        try:
            from pyarrow import fs  # noqa: PLC0415
        except ImportError:
            raise InvalidConfig(
                f"tier.store {uri!r} needs pyarrow: install millstream[tier]"
            ) from None
        try:
            self._filesystem, base = fs.FileSystem.from_uri(uri)
        except (ValueError, OSError) as error:
            raise InvalidConfig(f"tier.store {uri!r} cannot be opened: {error}") from error
        self._base = base.rstrip("/")
        self._selector = fs.FileSelector
        self._file_type = fs.FileType
        address = urlsplit(uri)
        # A URI may have credentials before the host and options behind the path.
        self._uri = f"{address.scheme}://{address.hostname or ''}{address.path}".rstrip("/")

    @property
    def uri(self) -> str:
        return self._uri

    def put(self, key: str, pieces: Iterable[bytes]) -> str:
        path = self._path(key)
        if self._filesystem.type_name in ("hdfs", "local"):
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with self._filesystem.open_output_stream(path) as stream:
            for piece in pieces:
                stream.write(piece)
        info: Any = self._filesystem.get_file_info(path)
        return "" if info.mtime_ns is None else str(info.mtime_ns)

    def read(self, key: str, start: int, size: int) -> bytes:
        with self._filesystem.open_input_file(self._path(key)) as file:
            length = max(0, min(size, file.size() - start))
            data: bytes = file.read_at(length, start)
            return data

    def size(self, key: str) -> int:
        info: Any = self._filesystem.get_file_info(self._path(key))
        if info.type != self._file_type.File:
            raise FileNotFoundError(f"{self._path(key)} does not exist")
        return int(info.size)

    def delete(self, key: str) -> None:
        info: Any = self._filesystem.get_file_info(self._path(key))
        if info.type != self._file_type.NotFound:
            self._filesystem.delete_file(self._path(key))

    def list(self, prefix: str) -> Iterator[str]:
        selector = self._selector(
            self._path(prefix.rstrip("/")), allow_not_found=True, recursive=True
        )
        for info in self._filesystem.get_file_info(selector):
            if info.type == self._file_type.File:
                yield info.path.removeprefix(f"{self._base}/")

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}"
