"""Deleting the directory of a topic so that a crash leaves it whole or gone.

    topics/<topic>  --rename, then sync of both directories-->  trash/<uuid>  --removed in its time

The rename is the deletion: from then on no one finds the topic, and its name is free. What lies in
the trash is of no use to anyone, so removing it may take long, fail or be cut short; opening the
store empties the trash. All of this blocks, so it is work for a thread.
"""

from __future__ import annotations

import logging
import uuid

from millstream.storage.disk.filesystem import Filesystem, join, parent
from millstream.storage.files.names import TRASH_DIRECTORY

logger = logging.getLogger(__name__)


def move_to_trash(filesystem: Filesystem, path: str, directory: str) -> str | None:
    """Move a directory of the store at `path` to its trash, durably, and return where it is now.

    One that is not there may have been moved before without becoming durable, so that is seen to.
    """
    trash = join(path, TRASH_DIRECTORY)
    filesystem.make_directory(trash)
    filesystem.sync_directory(path)
    moved = join(trash, str(uuid.uuid4()))
    try:
        filesystem.rename(directory, moved)
    except FileNotFoundError:
        is_there = False
    else:
        is_there = True
    filesystem.sync_directory(parent(directory))
    filesystem.sync_directory(trash)
    return moved if is_there else None


def empty_trash(filesystem: Filesystem, path: str) -> None:
    """Remove all that lies in the trash of the store at `path`, as far as that is possible."""
    trash = join(path, TRASH_DIRECTORY)
    for name in filesystem.list(trash):
        remove_trash(filesystem, join(trash, name))


def remove_trash(filesystem: Filesystem, path: str) -> None:
    """Remove one thing that lies in the trash. Where that fails, the next start tries again."""
    try:
        filesystem.remove_tree(path)
    except OSError as error:
        logger.warning("%s was deleted, but is still there: %s", path, error)
