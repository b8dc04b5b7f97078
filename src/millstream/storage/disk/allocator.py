"""Settings of the C library's allocator for a node, which needs large buffers again and again.

By default, glibc gives memory of this size back to the kernel as soon as it is freed, and each
buffer then costs a page fault for each 4 KiB: a leader that sent records to its followers had
80,000 to 160,000 faults per GB, and half a second of CPU.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

HEAP_BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""Larger ones are mapped, and given back when they are freed. It is glibc's own upper limit."""

FREE_BYTES_MAX = 64 * 1024 * 1024
"""Free memory at the end of the heap that is kept: a few times what is needed at once."""


def keep_freed_memory() -> bool:
    """Keep some freed memory for the next buffers; return whether the allocator does.

    Settings of the operator (`MALLOC_TRIM_THRESHOLD_` and others) take precedence. C libraries
    without `mallopt`, or that ignore it, stay as they are.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, HEAP_BUFFER_BYTES_MAX)
        and mallopt(_M_TRIM_THRESHOLD, FREE_BYTES_MAX)
    )
