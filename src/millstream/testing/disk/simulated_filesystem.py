"""Simulated disk in memory that loses power, fills up and decays on command."""

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
"""Larger than any test: a disk is unbounded unless a test sets a limit."""


class SimulatedFilesystem(RecordingFilesystem):
    """A disk in memory that records a trace of all its changes.

    It starts with `contents`, which are durable, and may hold `bytes_max`. `crash_states` takes its
    trace. Returned paths are absolute; relative ones start at `/`.
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
        """All events since the disk was created. It grows with further ones."""
        return self._recorder.trace

    def note(self, event: object) -> None:
        """Add an event of the test to the trace, such as "offset 7 acknowledged"."""
        self._recorder.note(event)

    # Power.

    def crash(self, seed: int | None = None) -> SimulatedFilesystem:
        """Cut the power now, and return the disk as the machine finds it afterwards.

        Only durable changes survive; with a seed, any of the others may. Locks are released. The
        old object and the files that it opened raise `EBADF` from now on.
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
        """Capacity of the disk in bytes. It may be set at any time."""
        return self._memory.bytes_max

    @bytes_max.setter
    def bytes_max(self, value: int) -> None:
        self._memory.bytes_max = value

    @property
    def bytes_used(self) -> int:
        """Number of bytes that the files contain or have reserved."""
        return self._memory.bytes_used

    def free(self, size: int) -> None:
        """Increase the capacity by `size` bytes."""
        self.bytes_max = max(self.bytes_max, self.bytes_used) + size

    # Content, past every file that is open.

    def paths(self) -> Sequence[str]:
        """Return the paths of all files, directory by directory."""
        return [path for path, content in self.contents().items() if content is not None]

    def content(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._recorder:
            file = self._memory.open_readonly(path)
            try:
                return file.read_at(0, file.size())
            finally:
                file.close()

    def contents(self) -> Contents:
        """Return the whole content of the disk, synced or not."""
        with self._recorder:
            return {
                path: None if inode.is_directory else self.content(path)
                for path, inode in self._names.walk()
            }

    def copy(self) -> SimulatedFilesystem:
        """Return another disk with the same content, all of it durable."""
        return SimulatedFilesystem(self.contents(), bytes_max=self.bytes_max)

    def replace_content(self, path: str, content: bytes) -> None:
        """Change the content of a file as a defect of the medium would, durably.

        Open files see that; earlier maps of the file may not.
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
        """Flip one bit of a file; bit 8 is the lowest of its second byte."""
        content = bytearray(self.content(path))
        content[bit // 8] ^= 1 << bit % 8
        self.replace_content(path, bytes(content))

    def cut(self, path: str, size: int) -> None:
        """Keep only the first `size` bytes of a file."""
        self.replace_content(path, self.content(path)[:size])


def _load(contents: Contents, memory: MemoryFilesystem, names: Names) -> Image:
    """Write `contents` to an empty disk, and return its image."""
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
