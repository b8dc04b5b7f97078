"""Helpers for tests that use files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millstream.storage.disk.filesystem import Filesystem


@contextmanager
def fails_with(code: int) -> Iterator[None]:
    """Expect an `OSError` of that number."""
    with pytest.raises(OSError, match=rf"\[Errno {code}\]"):
        yield


def make_file(filesystem: Filesystem, path: str, content: bytes = b"") -> str:
    """Create a file that holds `content`, and return its path."""
    file = filesystem.create(path)
    assert file.write_at(0, [content]) == len(content)
    file.close()
    return path


def read_file(filesystem: Filesystem, path: str) -> bytes:
    """Return what a file holds."""
    file = filesystem.open_readonly(path)
    content = file.read_at(0, file.size())
    file.close()
    return content
