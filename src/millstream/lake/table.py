"""A lake table: the records of one topic as a Delta table.

A commit adds Parquet files and moves the positions of their partitions in one step. The position of
a partition is an application transaction of Delta, with the id `millstream/<topic id>/<partition>`
and the next offset as its version:

    commit 7   add p0-100-199.parquet   add p1-40-79.parquet   txn .../0 = 200   txn .../1 = 80

So each version of the table says itself which offsets it has. Of two writers that began at the same
position, Delta refuses the second one.

Positions survive compaction, checkpoints and vacuum. A table belongs to one topic, by its id, which
is among the properties of the table: a topic that was deleted and created again needs a new table.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs

from millstream.errors import InvalidConfig, LakeConflict, LakeError

if TYPE_CHECKING:
    from deltalake import DeltaTable

TOPIC_ID = "millstream.topic.id"
TOPIC_NAME = "millstream.topic.name"
"""Properties of a table."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

RECORD_COLUMNS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
"""Columns that every table has. Typed columns follow."""


class LakeFile(NamedTuple):
    """A Parquet file that was written and is not committed yet."""

    path: str
    """Relative to the table."""
    size: int
    statistics: Mapping[str, Any]
    """Row count, and smallest and largest values, in the form of Delta."""


class LakeTable:
    """One version of a table, and commits on top of it."""

    def __init__(self, delta: DeltaTable, uri: str) -> None:
        self._delta = delta
        self.uri = uri
        properties = delta.metadata().configuration
        try:
            self.topic_id = uuid.UUID(properties[TOPIC_ID])
            self.topic = properties[TOPIC_NAME]
        except (KeyError, ValueError):
            raise LakeError(
                f"{uri} is a Delta table of something else: its property {TOPIC_ID} must be the id"
                f" of a topic, got {properties.get(TOPIC_ID)!r}"
            ) from None

    # Opening.

    @classmethod
    def open(cls, uri: str, *, version: int | None = None) -> Self:
        """Open the newest version of a table, or a certain one."""
        delta_lake = _delta_lake()
        try:
            return cls(delta_lake.DeltaTable(uri, version=version), uri)
        except delta_lake.exceptions.TableNotFoundError:
            raise LakeError(f"there is no Delta table at {uri}") from None
        except (delta_lake.exceptions.DeltaError, OSError) as error:
            raise LakeError(f"the table {uri} cannot be read: {error}") from error

    @classmethod
    def create(
        cls, uri: str, *, topic: str, topic_id: uuid.UUID, typed: Sequence[pa.Field] = ()
    ) -> Self:
        """Create a table; return the one that exists, if it belongs to the same topic."""
        delta_lake = _delta_lake()
        try:
            delta = delta_lake.DeltaTable.create(
                uri,
                pa.schema([*RECORD_COLUMNS, *typed]),
                mode="ignore",
                name=topic,
                configuration={TOPIC_ID: str(topic_id), TOPIC_NAME: topic},
                # Delta refuses properties that it does not know, unless told not to.
                raise_if_key_not_exists=False,
            )
        except (delta_lake.exceptions.DeltaError, OSError) as error:
            raise LakeError(f"the table {uri} cannot be created: {error}") from error
        table = cls(delta, uri)
        table.check_topic(topic, topic_id)
        return table

    def check_topic(self, topic: str, topic_id: uuid.UUID | None) -> None:
        """Raise `LakeError` if the table has the records of another topic."""
        if topic_id is None:
            raise LakeError(f"topic {topic!r} has no id: its node is older than topic ids")
        if self.topic_id != topic_id:
            raise LakeError(
                f"{self.uri} has the records of topic {self.topic!r} with the id {self.topic_id},"
                f" and topic {topic!r} has the id {topic_id}: it was deleted and created again, or"
                " is another one, and needs a table of its own"
            )

    # Reading.

    @property
    def version(self) -> int:
        return int(self._delta.version())

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table, in Arrow's types."""
        return pa.schema(self._delta.schema().to_arrow())

    def position(self, partition: int) -> int | None:
        """Return the next offset of a partition; `None` if none of it was ever written."""
        version = self._delta.transaction_version(self._application(partition))
        return None if version is None else int(version)

    def start(self, partition: int) -> int | None:
        """Return where the table began to have a partition; `None` if that was not recorded."""
        version = self._delta.transaction_version(f"{self._application(partition)}/start")
        return None if version is None else int(version)

    def deletions_position(self) -> int:
        """Return the next offset in the topic of deletions; see `deletions.py`."""
        version = self._delta.transaction_version(self._deletions)
        return 0 if version is None else int(version)

    def positions(self, partitions: int) -> dict[int, int]:
        """Return the positions of the partitions that have one."""
        positions = {number: self.position(number) for number in range(partitions)}
        return {number: offset for number, offset in positions.items() if offset is not None}

    def file_uris(self) -> list[str]:
        """Return the addresses of the files of this version."""
        return list(self._delta.file_uris())

    def file_actions(self) -> pa.Table:
        """Return a row for each file of this version, with size and statistics.

        Raises `LakeError` for a table whose files do not have all that says which rows it has.
        """
        protocol = self._delta.protocol()
        features = set(protocol.reader_features or ()) - {"timestampNtz", "vacuumProtocolCheck"}
        if features or 1 < protocol.min_reader_version < 3:
            raise LakeError(
                f"{self.uri} must have no reader features, got {sorted(features)} and the reader"
                f" version {protocol.min_reader_version}"
            )
        return pa.table(self._delta.get_add_actions(flatten=True))

    def dataset(self) -> pa.dataset.Dataset:
        """Return the rows of this version, with statistics that skip files."""
        return self._delta.to_pyarrow_dataset()

    # Writing.

    def filesystem(self) -> pa.fs.FileSystem:
        """Return the file system of the table, with paths relative to it."""
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

        handler = DeltaStorageHandler.from_table(self._delta._table)  # noqa: SLF001 - it has no public name.
        return pa.fs.PyFileSystem(handler)

    def commit(
        self,
        files: Sequence[LakeFile],
        positions: Mapping[int, int],
        *,
        starts: Mapping[int, int] | None = None,
        deletions_position: int | None = None,
    ) -> None:
        """Add files and move positions, in one step.

        `starts` are the first offsets of partitions that the table did not have before. Raises
        `LakeConflict` if another writer has moved one of them since this version; with a
        `deletions_position`, also if a delete job has moved that.
        """
        delta_lake = _delta_lake()
        from deltalake.transaction import AddAction, CommitProperties, Transaction  # noqa: PLC0415

        now_ms = time.time_ns() // 1_000_000
        actions: list[Any] = [
            AddAction(file.path, file.size, {}, now_ms, True, json.dumps(file.statistics))  # noqa: FBT003
            for file in files
        ]
        moves = [
            Transaction(self._application(partition), offset, now_ms)
            for partition, offset in sorted(positions.items())
        ]
        moves += [
            Transaction(f"{self._application(partition)}/start", offset, now_ms)
            for partition, offset in sorted((starts or {}).items())
        ]
        if deletions_position is not None:
            moves.append(Transaction(self._deletions, deletions_position, now_ms))
        self._sync([file.path for file in files])
        try:
            self._delta.create_write_transaction(
                actions,
                "append",
                self._delta.schema(),
                commit_properties=CommitProperties(app_transactions=moves),
            )
            self._delta.update_incremental()
            self._sync([f"_delta_log/{self.version:020}.json"])
        except delta_lake.exceptions.CommitFailedError as error:
            raise LakeConflict(
                f"another writer has changed {self.uri} since version {self.version}: {error}"
            ) from error
        except (delta_lake.exceptions.DeltaError, OSError) as error:
            raise LakeError(f"a commit to {self.uri} failed: {error}") from error

    def add_columns(self, typed: Sequence[pa.Field]) -> None:
        """Add the typed columns that the table does not have; refuse those of another type."""
        known = self.schema
        for field in typed:
            if field.name in known.names and not _is_same(known.field(field.name).type, field.type):
                raise InvalidConfig(
                    f"column {field.name} of {self.uri} has the type"
                    f" {known.field(field.name).type}, and the topic declares {field.type}:"
                    " a column cannot change its type"
                )
        if new := [field for field in typed if field.name not in known.names]:
            delta_lake = _delta_lake()
            fields = delta_lake.Schema.from_arrow(pa.schema(new)).fields
            try:
                self._delta.alter.add_columns(fields)
                self._delta.update_incremental()
            except (delta_lake.exceptions.DeltaError, OSError) as error:
                raise LakeError(f"columns cannot be added to {self.uri}: {error}") from error

    def delete(self, condition: str, *, deletions_position: int) -> int:
        """Rewrite the files with rows that meet a condition, without them; return their number.

        Moves the position in the topic of deletions in the same commit. Raises `LakeConflict` if
        another writer has changed the same files since this version.
        """
        delta_lake = _delta_lake()
        from deltalake import CommitProperties, Transaction, WriterProperties  # noqa: PLC0415

        now_ms = time.time_ns() // 1_000_000
        move = Transaction(self._deletions, deletions_position, now_ms)
        before, files = self.version, set(self.file_uris())
        try:
            counts = self._delta.delete(
                condition,
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=CommitProperties(app_transactions=[move]),
            )
            self._delta.update_incremental()
        except delta_lake.exceptions.CommitFailedError as error:
            raise LakeConflict(
                f"another writer has changed {self.uri} since version {before}: {error}"
            ) from error
        except (delta_lake.exceptions.DeltaError, OSError) as error:
            raise LakeError(f"rows of {self.uri} cannot be deleted: {error}") from error
        self._sync_since(before, files)
        if self.deletions_position() != deletions_position:  # Nothing met the condition.
            self.commit([], {}, deletions_position=deletions_position)
        return int(counts["num_deleted_rows"])

    def vacuum(self, *, keep_hours: int) -> int:
        """Remove files that no version of the last hours needs; return their number."""
        delta_lake = _delta_lake()
        try:
            removed = self._delta.vacuum(
                retention_hours=keep_hours, dry_run=False, enforce_retention_duration=False
            )
        except (delta_lake.exceptions.DeltaError, OSError) as error:
            raise LakeError(f"{self.uri} cannot be vacuumed: {error}") from error
        return len(removed)

    def compact(self, *, file_bytes: int) -> Mapping[str, Any]:
        """Merge small files; return the counts of Delta. Positions stay as they are."""
        delta_lake = _delta_lake()
        before, files = self.version, set(self.file_uris())
        try:
            counts: Mapping[str, Any] = self._delta.optimize.compact(target_size=file_bytes)
            self._delta.update_incremental()
            self._sync_since(before, files)
        except (delta_lake.exceptions.DeltaError, OSError) as error:
            raise LakeError(f"{self.uri} cannot be compacted: {error}") from error
        return counts

    def _sync_since(self, version: int, files: AbstractSet[str]) -> None:
        """Make durable what delta-rs has written itself after a version with these files."""
        if self.version > version and (root := _local_root(self.uri)) is not None:
            new = [Path(uri) for uri in set(self.file_uris()) - files]
            self._sync([str(path.relative_to(root)) for path in new])
            self._sync([f"_delta_log/{self.version:020}.json"])

    def _sync(self, paths: Sequence[str]) -> None:
        """Make files of a table in a local directory durable; object stores do so themselves."""
        if (root := _local_root(self.uri)) is None:
            return
        for path in {*(root / path for path in paths), *((root / path).parent for path in paths)}:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @property
    def _deletions(self) -> str:
        return f"millstream/{self.topic_id}/deletions"

    def _application(self, partition: int) -> str:
        return f"millstream/{self.topic_id}/{partition}"


def open_filesystem(uri: str) -> pa.fs.FileSystem:
    """Return the file system of a table, with paths relative to it, without reading the table."""
    if (root := _local_root(uri)) is not None:
        return pa.fs.SubTreeFileSystem(str(root), pa.fs.LocalFileSystem())
    _delta_lake()
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

    return pa.fs.PyFileSystem(DeltaStorageHandler(uri))


def absolute_uri(uri: str) -> str:
    """Return the address of a table so that it means the same in every directory."""
    root = _local_root(uri)
    return uri if root is None else str(root)


def _local_root(uri: str) -> Path | None:
    """Return the directory of a table; `None` if it is in an object store."""
    if "://" in uri and not uri.startswith("file://"):
        return None
    return Path(uri.removeprefix("file://")).absolute()


def _is_same(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether a type survives the way through Delta, which has fewer types than Arrow."""
    delta_lake = _delta_lake()
    schema = delta_lake.Schema.from_arrow(pa.schema([("x", declared)]))
    return bool(pa.schema(schema.to_arrow()).field("x").type == stored)


def _delta_lake() -> Any:
    try:
        import deltalake  # noqa: PLC0415 - takes a while, and comes with an extra.
        import deltalake.exceptions  # noqa: PLC0415
    except ImportError as error:
        raise InvalidConfig(
            f"tables in a lake need {error.name}, which is not installed:"
            " install 'millstream[lake]'"
        ) from error
    return deltalake
