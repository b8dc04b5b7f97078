"""Names on a simulated disk: which file or directory a path leads to, while it has power."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from millstream.storage.disk.memory_filesystem import path_parts
from millstream.testing.disk.changes import ROOT, Inode, Link, Move, Rename, Unlink


class Names:
    """The names on a disk. Each method that changes some returns the change, to be recorded.

    The caller has just made the same call succeed, so changes are not checked here.
    """

    def __init__(self) -> None:
        self._directories: dict[Inode, dict[str, Inode]] = {ROOT: {}}
        self._numbers = itertools.count(ROOT.number + 1)

    def find(self, path: str) -> Inode | None:
        """Return the inode of `path`, if it exists."""
        try:
            return self.inode(path)
        except KeyError:
            return None

    def inode(self, path: str) -> Inode:
        """Return the inode of `path`, which must exist."""
        return self._follow(path_parts(path))

    def add(self, path: str, *, is_directory: bool) -> Link:
        """Create a file or a directory."""
        parent, name = self._locate(path)
        inode = Inode(next(self._numbers), is_directory)
        self._directories[parent][name] = inode
        if is_directory:
            self._directories[inode] = {}
        return Link(parent, name, inode)

    def rename(self, source: str, target: str) -> Rename | Move:
        """Rename a file or a directory, in its directory or to another."""
        parent, old = self._locate(source)
        into, new = self._locate(target)
        inode = self._directories[parent].pop(old)
        self._directories[into][new] = inode
        if into == parent:
            return Rename(parent, old, new, inode)
        return Move(parent, into, parent, old, into, new, inode)

    def remove(self, path: str) -> Unlink:
        """Remove a name."""
        parent, name = self._locate(path)
        self._directories.pop(self._directories[parent].pop(name), None)
        return Unlink(parent, name)

    def remove_tree(self, path: str) -> Iterator[Unlink]:
        """Remove a name and everything below it, the deepest first."""
        inode = self.inode(path)
        below = list(self.walk(inode, path)) if inode.is_directory else []
        for child, _ in reversed(below):
            yield self.remove(child)
        yield self.remove(path)

    def walk(self, directory: Inode = ROOT, path: str = "") -> Iterator[tuple[str, Inode]]:
        """Yield every path below a directory, sorted, a parent before its children."""
        for name, inode in sorted(self._directories[directory].items()):
            yield (child := f"{path}/{name}"), inode
            if inode.is_directory:
                yield from self.walk(inode, child)

    def _locate(self, path: str) -> tuple[Inode, str]:
        *parents, name = path_parts(path)
        return self._follow(parents), name

    def _follow(self, parts: Sequence[str]) -> Inode:
        inode = ROOT
        for part in parts:
            inode = self._directories[inode][part]
        return inode
