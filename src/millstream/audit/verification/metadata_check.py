"""Check of the metadata of a node, and that it fits the logs. Nothing is changed.

A node may be running. So the checkpoint of the metadata is read before and after the database,
until it stays the same; and a log that does not fit the metadata is looked at twice.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from millstream.audit.verification.topics_on_disk import topics_on_disk
from millstream.broker.topics.topic import TopicRow
from millstream.cluster.control.node_identity import (
    CLUSTER_FILE,
    is_cluster_directory,
    read_identity,
)
from millstream.errors import CorruptFile, MillstreamError
from millstream.metadata.metadata_checkpoint import (
    CHECKPOINT_SUFFIX,
    RevisionRecord,
    check_digest,
    read_records,
)
from millstream.metadata.sqlite_copy import copied
from millstream.metadata.sqlite_schema import read_revision, translate
from millstream.metadata.sqlite_wal import check_wal_of
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.names import METADATA_FILE, STATE_DIRECTORY
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.storage.inspect.catalog import (
    Finding,
    log_directory,
    log_names,
    unusable_file_finding,
)

_TRIES_MAX = 100
"""How often the metadata may change while it is checked: far more than happens."""


class _Checkpoint(NamedTuple):
    """The content of the checkpoint file; without records if there is none."""

    records: list[RevisionRecord]
    findings: list[Finding]

    @property
    def newest(self) -> RevisionRecord | None:
        return self.records[-1] if self.records else None


def verify_metadata(filesystem: Filesystem, data: str) -> Iterator[Finding]:
    """Yield the damage in the metadata of a data directory, and the logs that do not fit it.

    That of a node in a cluster is in etcd, and not checked here.
    """
    if is_cluster_directory(filesystem, data):
        try:
            read_identity(filesystem, data)
        except (MillstreamError, OSError) as error:
            yield unusable_file_finding(join(data, CLUSTER_FILE), error)
        return
    owners = _owners(filesystem, data)
    findings: list[Finding] = []
    for _ in range(_TRIES_MAX):
        checkpoint = _read_checkpoint(filesystem, data)
        findings = [*checkpoint.findings, *_check_database(filesystem, data, checkpoint.newest)]
        if _read_checkpoint(filesystem, data).records == checkpoint.records:
            break
    yield from findings
    if not findings:
        yield from _check_owners(filesystem, data, owners)


def _read_checkpoint(filesystem: Filesystem, data: str) -> _Checkpoint:
    path = join(data, METADATA_FILE + CHECKPOINT_SUFFIX)
    try:
        records, damage = read_records(filesystem, path)
    except FileNotFoundError:
        return _Checkpoint([], [])
    except (MillstreamError, OSError) as error:
        return _Checkpoint([], [unusable_file_finding(path, error)])
    return _Checkpoint(records, [Finding(path, position, str(error)) for position, error in damage])


def _check_database(
    filesystem: Filesystem, data: str, recorded: RevisionRecord | None
) -> Iterator[Finding]:
    path = join(data, METADATA_FILE)
    try:
        if (size := filesystem.size(path)) > 0:
            check_wal_of(filesystem, path)
            with copied(path) as copy:
                revision = _read_revision(copy, path)
    except FileNotFoundError:
        size = 0
    except (MillstreamError, OSError) as error:
        yield _finding(path, error)
        return
    if size == 0:
        if recorded is not None or log_names(filesystem, join(data, STATE_DIRECTORY)):
            yield Finding(path, None, "is missing or empty, but the node has had metadata")
        return
    if recorded is None:
        return
    if revision < recorded.revision:
        message = f"has revision {revision}, but revision {recorded.revision} was committed"
        yield Finding(path, None, message)
    elif recorded.closed is not None:
        try:
            check_digest(filesystem, path, recorded.closed)
        except CorruptFile as error:
            yield _finding(path, error)


def _read_revision(copy: str, path: str) -> int:
    try:
        return read_revision(copy)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except CorruptFile as error:
        raise CorruptFile(str(error).replace(copy, path)) from error


def _finding(path: str, error: Exception) -> Finding:
    """Return a finding for the file that an error names: the database, or one beside it."""
    named, colon, _ = str(error).partition(": ")
    is_beside = bool(colon) and named.startswith(path)
    return unusable_file_finding(named if is_beside else path, error)


# Logs and their topics.


def _owners(filesystem: Filesystem, data: str) -> dict[str, tuple[str, uuid.UUID]]:
    """Return topic and topic id of each log that a broker created, by directory."""
    owners = {}
    for name in log_names(filesystem, data):
        directory = log_directory(data, name)
        # A file that cannot be read is reported with its partition.
        with contextlib.suppress(MillstreamError, OSError):
            topic_id = read_partition_metadata(filesystem, directory).topic_id
            if topic_id is not None:
                owners[directory] = (name.topic, topic_id)
    return owners


def _check_owners(
    filesystem: Filesystem, data: str, owners: Mapping[str, tuple[str, uuid.UUID]]
) -> Iterator[Finding]:
    """Report logs whose topic the metadata does not have."""
    try:
        suspects = _unknown(data, owners)
        # A topic may have been created or deleted meanwhile.
        again = _unknown(data, _owners(filesystem, data)) if suspects else {}
    except MillstreamError as error:  # A row that cannot be understood.
        yield _finding(join(data, METADATA_FILE), error)
        return
    for directory, (topic, topic_id) in again.items():
        if directory in suspects:
            message = f"belongs to topic {topic} with id {topic_id}, which is not in the metadata"
            yield Finding(directory, None, message)


def _unknown(
    data: str, owners: Mapping[str, tuple[str, uuid.UUID]]
) -> dict[str, tuple[str, uuid.UUID]]:
    if not owners:
        return {}
    rows: Mapping[str, TopicRow] = topics_on_disk(data) or {}
    return {
        directory: (topic, topic_id)
        for directory, (topic, topic_id) in owners.items()
        if topic not in rows or rows[topic].id != topic_id
    }
