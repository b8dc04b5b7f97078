"""Classification of disk errors as transient or permanent."""

from __future__ import annotations

import errno

from millstream.errors import DiskFull, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_disk_full(error: OSError) -> bool:
    """Return whether the disk, or the quota of the user, is full."""
    return error.errno in _FULL


def transient_error(name: str, error: OSError) -> Unavailable | None:
    """Return the error for users of log `name`, if a later retry can help; else None."""
    if is_disk_full(error):
        return DiskFull(f"{name}: the disk is full: {error}")
    if error.errno in _TRANSIENT:
        return Unavailable(f"{name}: {error}")
    return None
