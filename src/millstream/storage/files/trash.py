"""Deletion of the directory of a topic, so that a crash leaves all of it or nothing.

    topics/<topic>  --rename, then sync of both directories-->  trash/<uuid>  --removed later

The rename is the deletion: from then on nobody finds the topic, and its name can be used again.
Nothing in the trash is needed, so its removal may take long, fail or be interrupted; opening the
store empties the trash. All of this blocks, so it is work for a thread.
"""

from __future__ import annotations

import logging
import uuid

from millstream.storage.disk.filesystem import Filesystem, join, parent
from millstream.storage.files.names import TRASH_DIRECTORY

logger = logging.getLogger(__name__)


def move_to_trash(filesystem: Filesystem, path: str, directory: str) -> str | None:
    """Move a directory of the store at `path` to its trash, durably, and return its new path.

    If it does not exist, an earlier move may not be durable, so the directories are synced all the
    same.
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
    """Remove everything in the trash of the store at `path`, as far as that is possible."""
    trash = join(path, TRASH_DIRECTORY)
    for name in filesystem.list(trash):
        remove_trash(filesystem, join(trash, name))


def remove_trash(filesystem: Filesystem, path: str) -> None:
    """Remove one entry of the trash. If that fails, the next start tries again."""
    try:
        filesystem.remove_tree(path)
    except OSError as error:
        logger.warning("%s was deleted, but its files cannot be removed: %s", path, error)
