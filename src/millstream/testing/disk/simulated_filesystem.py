"""A disk in memory that loses power, fills up and decays on command."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.storage.disk.filesystem import write_all
from millstream.storage.disk.memory_filesystem import MemoryFilesystem
from millstream.testing.disk.changes import Inode
from millstream.testing.disk.disk_state import DiskState
from millstream.testing.disk.image import Contents, Image
from millstream.testing.disk.names import Names
from millstream.testing.disk.recorder import Recorder
from millstream.testing.disk.recording_filesystem import RecordingFilesystem
from millstream.testing.disk.trace import MediumDamage, Trace
from millstream.testing.disk.variants import NOTHING, RandomVariant

BYTES_MAX_DEFAULT = 1 << 40
"""Larger than any test: a disk is unbounded unless a test bounds it."""


class SimulatedFilesystem(RecordingFilesystem):
    """A disk in memory that keeps a trace of all that happened to it.

    It starts with `contents`, which are durable, and may hold `bytes_max`. Its trace is what
    `crash_states` takes. Paths come back absolute; relative ones are taken from `/`.
    """

    def __init__(
        self, contents: Contents | None = None, *, bytes_max: int = BYTES_MAX_DEFAULT
    ) -> None:
        memory, names = MemoryFilesystem(BYTES_MAX_DEFAULT), Names()
        start = _load(contents or {}, memory, names)
        memory.bytes_max = bytes_max
        super().__init__(memory, names, Recorder(start))

    @property
    def trace(self) -> Trace:
        """What has happened since the disk was made. It grows as more does."""
        return self._recorder.trace

    def note(self, event: object) -> None:
        """Put an event of the test's own into the trace, such as "offset 7 acknowledged"."""
        self._recorder.note(event)

    # Power.

    def crash(self, seed: int | None = None) -> SimulatedFilesystem:
        """Cut the power now, and return the disk as the machine finds it afterwards.

        Only what is durable survives; with a seed, any of the rest may. Locks are gone. The old
        object and the files that it opened raise `EBADF` from now on.
        """
        self._recorder.cut_power()
        disk = DiskState(self.trace.start)
        for event in self.trace.events:
            disk.take(event)
        outcome = NOTHING if seed is None else RandomVariant("random", str(seed))
        image = disk.certain.after(outcome.survivors(disk.pending))
        return SimulatedFilesystem(image.contents(), bytes_max=self.bytes_max)

    # Space.

    @property
    def bytes_max(self) -> int:
        """How many bytes the disk takes. It may be set at any time."""
        return self._memory.bytes_max

    @bytes_max.setter
    def bytes_max(self, value: int) -> None:
        self._memory.bytes_max = value

    @property
    def bytes_used(self) -> int:
        """How many bytes the files hold or have reserved."""
        return self._memory.bytes_used

    def free(self, size: int) -> None:
        """Make room for `size` more bytes than the disk has room for now."""
        self.bytes_max = max(self.bytes_max, self.bytes_used) + size

    # Content, past every file that is open.

    def paths(self) -> Sequence[str]:
        """Return the paths of all files, directory by directory."""
        return [path for path, content in self.contents().items() if content is not None]

    def content(self, path: str) -> bytes:
        """Return what a file holds."""
        with self._recorder:
            file = self._memory.open_readonly(path)
            try:
                return file.read_at(0, file.size())
            finally:
                file.close()

    def contents(self) -> Contents:
        """Return all that the disk holds, synced or not."""
        with self._recorder:
            return {
                path: None if inode.is_directory else self.content(path)
                for path, inode in self._names.walk()
            }

    def copy(self) -> SimulatedFilesystem:
        """Return another disk that holds the same, all of it durable."""
        return SimulatedFilesystem(self.contents(), bytes_max=self.bytes_max)

    def replace_content(self, path: str, content: bytes) -> None:
        """Let the medium change what a file holds, durably.

        Who has the file open sees that; who has mapped it before may not.
        """
        with self._recorder:
            file = self._memory.open(path)
            try:
                file.truncate(len(content))
                write_all(file, 0, [content])
            finally:
                file.close()
            self._recorder.record(MediumDamage(self._names.inode(path), content))

    def flip_bit(self, path: str, bit: int) -> None:
        """Turn one bit of a file over; bit 8 is the lowest of its second byte."""
        content = bytearray(self.content(path))
        content[bit // 8] ^= 1 << bit % 8
        self.replace_content(path, bytes(content))

    def cut(self, path: str, size: int) -> None:
        """Leave only the first `size` bytes of a file."""
        self.replace_content(path, self.content(path)[:size])


def _load(contents: Contents, memory: MemoryFilesystem, names: Names) -> Image:
    """Put `contents` onto an empty disk, and return what it then holds."""
    files: dict[Inode, bytes] = {}
    links = []
    for path, content in contents.items():
        link = names.add(path, is_directory=content is None)
        links.append(link)
        if content is None:
            memory.make_directory(path)
        else:
            memory.put(path, content)
            files[link.target] = content
    return Image(files).after(links)
