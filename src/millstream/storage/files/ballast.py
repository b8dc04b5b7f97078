"""A spare file: room on the disk that is kept so that data can be deleted when there is none.

Before a segment goes, `partition.json` has to say so durably, and that takes room for one more
small file. On a disk that is full to the last block there is none, and the log would stay as it is
for ever. So a store keeps a file whose blocks are its own: the new description is written over
them, which takes no more, and the file is then renamed to where the description belongs. The room
is never given back in between, when somebody else could take it.

    <data>/spare  ── written over, synced ──► renamed to <data>/topics/<topic>/<partition>/...

One is enough: it is only used for what sets more room free than it takes, and made again from that.
"""

from __future__ import annotations

import contextlib
import threading

from millstream.storage.disk.filesystem import Filesystem, join, parent, write_all

BALLAST_SIZE = 64 * 1024
"""Hundreds of times what the description of a log takes; one with many deletions may be larger."""


class BallastFile:
    """The spare file of a store. Blocks; threads may share it."""

    def __init__(self, filesystem: Filesystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Make sure that there is one. Raises `OSError` where there is no room for it."""
        with self._lock:
            if not self._is_whole():
                self._make()

    def has_disk_space(self) -> bool:
        """Whether the disk has room for as much again. What was taken to see that is given back."""
        path = f"{self._path}.tmp"
        with self._lock:
            try:
                with contextlib.suppress(FileNotFoundError):  # A crash may have left it.
                    self._filesystem.remove(path)
                file = self._filesystem.create(path)
                try:
                    write_all(file, 0, [bytes(BALLAST_SIZE)])
                finally:
                    file.close()
                    self._filesystem.remove(path)
            except OSError:
                return False
            return True

    def _is_whole(self) -> bool:
        try:
            return self._filesystem.size(self._path) == BALLAST_SIZE
        except FileNotFoundError:
            return False

    def _make(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.remove(self._path)
        file = self._filesystem.create(self._path)
        try:
            # Written, not only reserved: what is written over later needs no room then.
            write_all(file, 0, [bytes(BALLAST_SIZE)])
            file.sync()
        except OSError:
            with contextlib.suppress(OSError):
                self._filesystem.remove(self._path)
            raise
        finally:
            file.close()

    def replace_file(self, directory: str, name: str, data: bytes) -> bool:
        """Put `data` at a name that exists, out of the spare; durable once `directory` is synced.

        Returns whether it could: there may be no spare, or it is too small. After an `OSError` the
        name may stand for the one or the other.
        """
        with self._lock:
            if len(data) > BALLAST_SIZE or not self._is_whole():
                return False
            file = self._filesystem.open(self._path)
            try:
                write_all(file, 0, [data])
                file.truncate(len(data))
                file.sync()
            finally:
                file.close()
            self._filesystem.rename(self._path, join(directory, name))
            self._filesystem.sync_directory(parent(self._path))
            return True
