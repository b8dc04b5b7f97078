"""Probe of the page cache: whether bytes of a map are in memory, without touching them.

Touching a page that is not in memory would block the thread until the disk has read it, and with it
the event loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from typing import Protocol

from millstream.storage.disk.filesystem import OsFile

_SIMPLE = 0
"""Buffer flags: no shape or format, only address and length."""


class PageCacheProbe(Protocol):
    """Tells whether bytes are in memory."""

    def is_resident(self, view: memoryview) -> bool:
        """Return whether all of `view` can be read without waiting for a disk, as far as known."""
        ...


class _Buffer(ctypes.Structure):
    """The `Py_buffer` struct of CPython."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.py_object),
        ("size", ctypes.c_ssize_t),
        ("item_size", ctypes.c_ssize_t),
        ("is_readonly", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class MincoreProbe:
    """Asks the kernel (`mincore`), page by page. Belongs to one thread.

    It keeps the interpreter lock during the call: that takes less time than to release it.
    """

    def __init__(self) -> None:
        self._mincore = ctypes.PyDLL(None).mincore
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._get = ctypes.pythonapi.PyObject_GetBuffer
        self._get.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
        self._release = ctypes.pythonapi.PyBuffer_Release
        self._release.argtypes = (ctypes.POINTER(_Buffer),)
        self._release.restype = None
        self._pages = ctypes.create_string_buffer(256)

    def is_resident(self, view: memoryview) -> bool:
        """Return whether every page of `view` is in memory; assume so if it is not known."""
        if not len(view):
            return True
        buffer = _Buffer()
        self._get(view, buffer, _SIMPLE)
        try:
            start = buffer.address - buffer.address % mmap.PAGESIZE
            size = buffer.address + buffer.size - start
            count = -(-size // mmap.PAGESIZE)
            if count > len(self._pages):
                self._pages = ctypes.create_string_buffer(count)
            if self._mincore(start, size, self._pages) != 0:
                return True
            return self._pages.raw.find(b"\0", 0, count) < 0
        finally:
            self._release(buffer)


def detect_page_cache_probe() -> PageCacheProbe | None:
    """Return a probe that works on this system, or None."""
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        return None
    try:
        return MincoreProbe()
    except AttributeError:
        return None


def drop_from_page_cache(file: object, position: int, size: int) -> None:
    """Ask the kernel to forget bytes of a file that were read once, and will not be soon.

    So a pass over all data does not push out what readers need, and the next pass reads the disk.
    Pages that a reader has mapped and uses stay. Only a hint: a failure is no error.
    """
    if isinstance(file, OsFile) and hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(file.descriptor, position, size, os.POSIX_FADV_DONTNEED)
