"""Which failures of the disk pass by themselves, and which do not."""

from __future__ import annotations

import errno

from millstream.errors import DiskFull, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def passing_error(name: str, error: OSError) -> Unavailable | None:
    """Return what to tell those who use log `name`, if trying again later can help."""
    if error.errno in _FULL:
        return DiskFull(f"{name}: the disk is full: {error}")
    if error.errno in _PASSING:
        return Unavailable(f"{name}: {error}")
    return None
