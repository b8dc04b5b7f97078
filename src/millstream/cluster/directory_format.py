"""Formats of the files that a node of a cluster has in its data directory, beside its logs."""

from __future__ import annotations

import contextlib

from millstream.cluster.control.node_identity import read_identity
from millstream.cluster.replication.high_watermarks import read_high_watermarks
from millstream.errors import CorruptData
from millstream.metadata.etcd.etcd_metadata import ETCD_CHECKPOINT_FILE
from millstream.metadata.metadata_checkpoint import read_records
from millstream.storage.disk.filesystem import Filesystem, join


def check_cluster_formats(filesystem: Filesystem, directory: str) -> None:
    """Raise `UnknownFormat` if a later release has written one of the files.

    Nothing is changed. Damage is reported when the files are used.
    """
    for read in (read_identity, read_high_watermarks, _read_etcd_checkpoint):
        with contextlib.suppress(OSError, CorruptData):
            read(filesystem, directory)


def _read_etcd_checkpoint(filesystem: Filesystem, directory: str) -> None:
    read_records(filesystem, join(directory, ETCD_CHECKPOINT_FILE))
