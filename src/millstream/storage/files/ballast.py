"""Ballast file: disk space that is kept so that data can be deleted on a full disk.

Before a segment is removed, `partition.json` has to record that durably, and that takes space for
one more small file. On a completely full disk there is none, and the log would stay as it is
forever. So a store keeps a file with blocks of its own: the new metadata is written over them,
which takes no space, and the file is then renamed to the name of the metadata. The space is never
released in between, when another process could take it.

    <data>/spare  ── written over, synced ──► renamed to <data>/topics/<topic>/<partition>/...

One is enough: it is only used for changes that free more space than they take, and then restored.
"""

from __future__ import annotations

import contextlib
import threading

from millstream.storage.disk.filesystem import Filesystem, join, parent, write_all

BALLAST_SIZE = 64 * 1024
"""Hundreds of times the size of a `partition.json`; one with many deletions may be larger."""


class BallastFile:
    """The ballast file of a store. Blocks; threads may share it."""

    def __init__(self, filesystem: Filesystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._lock = threading.Lock()

    def ensure(self) -> None:
        """Create the file if it does not exist. Raises `OSError` if there is no space for it."""
        with self._lock:
            if not self._is_whole():
                self._make()

    def has_disk_space(self) -> bool:
        """Return whether the disk has space for a second one.

        The space for the test is released.
        """
        path = f"{self._path}.tmp"
        with self._lock:
            try:
                with contextlib.suppress(FileNotFoundError):  # Left by a crash.
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
            # Written, not only reserved: overwriting it later then needs no space.
            write_all(file, 0, [bytes(BALLAST_SIZE)])
            file.sync()
        except OSError:
            with contextlib.suppress(OSError):
                self._filesystem.remove(self._path)
            raise
        finally:
            file.close()

    def replace_file(self, directory: str, name: str, data: bytes) -> bool:
        """Replace an existing file with `data`, in the blocks of the ballast file.

        Durable once `directory` is synced. Returns False if there is no ballast file, or it is too
        small. After an `OSError` the name may refer to the old or the new content.
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
