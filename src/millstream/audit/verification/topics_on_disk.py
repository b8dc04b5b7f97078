"""Topics in the metadata of a data directory, read while a node may be running."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from millstream.broker.topics.topic import TOPICS_PREFIX, TopicRow, decode_row
from millstream.metadata.sqlite_copy import copied
from millstream.metadata.sqlite_schema import (
    check_format,
    check_integrity,
    read_entries,
    translate,
)
from millstream.storage.files.names import METADATA_FILE


def topics_on_disk(data: str) -> dict[str, TopicRow] | None:
    """Return the topics by name, also those that are being deleted.

    Returns `None` if there is no metadata: only an embedded store has written the directory.
    """
    path = os.path.join(data, METADATA_FILE)
    if not os.path.exists(path):
        return None
    with copied(path) as copy:
        try:
            return _read(copy)
        except sqlite3.Error as error:
            raise translate(error, path) from error


def _read(path: str) -> dict[str, TopicRow]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        if check_format(connection, path):
            return {}
        check_integrity(connection, path)
        return dict(
            decode_row(entry.key, entry.value)
            for entry in read_entries(connection, path)
            if entry.key.startswith(TOPICS_PREFIX)
        )
