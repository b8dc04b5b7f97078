"""Which failures of the disk pass by themselves, and which do not."""

from __future__ import annotations

import errno

from millstream.errors import DiskFull, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_disk_full(error: OSError) -> bool:
    """Whether the disk has no room, for anyone or for this user."""
    return error.errno in _FULL


def transient_error(name: str, error: OSError) -> Unavailable | None:
    """Return what to tell those who use log `name`, if trying again later can help."""
    if is_disk_full(error):
        return DiskFull(f"{name}: the disk is full: {error}")
    if error.errno in _TRANSIENT:
        return Unavailable(f"{name}: {error}")
    return None
