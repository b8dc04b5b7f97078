"""The lake writer: every committed record is in the table once, whatever happens to the writer."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from millstream.config.schema import MIB
from millstream.errors import DataLost, InvalidConfig, LakeConflict, LakeError, UnknownTopic
from millstream.lake import writer as writer_module
from millstream.lake.files import LakeFileWriter
from millstream.lake.table import LakeTable
from millstream.lake.writer import LakeWriter
from tests.cli.nodes import wait_until
from tests.spark.topics import create, evict, produce, transaction


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


def rows_of(uri: str) -> list[tuple[int, int, bytes]]:
    """Return partition, offset and value of all rows, sorted."""
    table = deltalake.DeltaTable(uri).to_pyarrow_dataset().to_table()
    columns = ("partition", "offset", "value")
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def expected(*partitions: list[bytes]) -> list[tuple[int, int, bytes]]:
    return [
        (number, offset, value)
        for number, written in enumerate(partitions)
        for offset, value in enumerate(written)
    ]


def test_all_partitions_are_in_the_table_after_a_run(node, client, topic, uri):
    create(node, topic, partitions=3)
    for number in range(3):
        produce(node, topic, values(100 * number), partition=number)
    done = LakeWriter(client, topic, uri).run()
    assert rows_of(uri) == expected(values(0), values(100), values(200))
    assert (done.offsets, done.commits) == (300, 1)
    assert LakeTable.open(uri).positions(3) == {1: 100, 2: 200}


def test_a_second_run_writes_what_came_since_and_nothing_twice(node, client, topic, uri):
    create(node, topic)
    produce(node, topic, values(10))
    writer = LakeWriter(client, topic, uri)
    writer.run()
    assert writer.run().commits == 0, "nothing came"
    produce(node, topic, values(5, first=10))
    assert [lag.offsets for lag in writer.lag()] == [5]
    assert writer.run().offsets == 5
    assert rows_of(uri) == expected(values(15))
    assert [lag.offsets for lag in writer.lag()] == [0]


def test_every_column_of_a_record_is_in_the_table(node, client, topic, uri):
    create(node, topic)
    headers = [("a", b"1"), ("a", None)]
    produce(node, topic, [b"v", None], keys=[b"k", b"gone"])
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(topic, b"w", headers=headers, timestamp=1_700_000_000_123)
    producer.flush()
    LakeWriter(client, topic, uri).run()
    table = deltalake.DeltaTable(uri).to_pyarrow_dataset().to_table().sort_by("offset")
    rows = table.to_pylist()
    assert [row["key"] for row in rows] == [b"k", b"gone", None]
    assert [row["value"] for row in rows] == [b"v", None, b"w"]
    assert rows[2]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert rows[2]["timestamp"].timestamp() == 1_700_000_000.123
    assert {row["timestampType"] for row in rows} == {0}


def test_records_of_open_and_aborted_transactions_are_left_out(node, client, topic, uri):
    create(node, topic)
    transaction(node, topic, [b"no"], is_committed=False, transactional_id=f"{topic}-1")
    transaction(node, topic, [b"yes"], is_committed=True, transactional_id=f"{topic}-2")
    LakeWriter(client, topic, uri).run()
    assert [value for _, _, value in rows_of(uri)] == [b"yes"]
    assert LakeTable.open(uri).position(0) == 4, "markers have offsets too"


def test_a_topic_with_a_schema_gives_typed_columns_and_bad_values_say_why(node, client, topic, uri):
    configs = {
        "millstream.value.format": "json",
        "millstream.value.schema": "id BIGINT, key STRING",
    }
    client.create_topic(topic, partitions=1, configs=configs)
    produce(node, topic, [b'{"id": 7, "key": "x"}', b"no JSON"])
    LakeWriter(client, topic, uri).run()
    rows = deltalake.DeltaTable(uri).to_pyarrow_dataset().to_table().sort_by("offset").to_pylist()
    # `key` is a column of the records, so all typed columns have a prefix.
    assert [row["value_id"] for row in rows] == [7, None]
    assert [row["value_key"] for row in rows] == ["x", None]
    assert rows[0]["_error"] is None
    assert "JSON" in rows[1]["_error"]


def test_columns_that_a_schema_gets_are_added_and_a_changed_type_is_refused(uri):
    topic_id = uuid.uuid4()
    fields = [pa.field("id", pa.int64())]
    table = LakeTable.create(uri, topic="t", topic_id=topic_id, typed=fields)
    table.add_columns([*fields, pa.field("name", pa.string())])
    assert LakeTable.open(uri).schema.field("name").type == pa.string()
    with pytest.raises(InvalidConfig, match=r"column id of .* has the type int64"):
        table.add_columns([pa.field("id", pa.string())])


# Several writers, and crashes.


def test_of_two_writers_at_the_same_position_one_is_refused_and_leaves_no_file(
    node, client, topic, uri, monkeypatch
):
    create(node, topic)
    produce(node, topic, values(10))
    other = LakeWriter(client, topic, uri)
    commit = LakeTable.commit

    def commit_after_the_other(table, files, positions, **options):
        monkeypatch.setattr(LakeTable, "commit", commit)
        other.run()
        commit(table, files, positions, **options)

    monkeypatch.setattr(LakeTable, "commit", commit_after_the_other)
    with pytest.raises(LakeConflict, match="another writer has changed"):
        LakeWriter(client, topic, uri).run()
    assert rows_of(uri) == expected(values(10))
    files = {Path(file).name for file in LakeTable.open(uri).file_uris()}
    assert {path.name for path in Path(uri).glob("*.parquet")} == files


def test_a_writer_of_another_partition_does_not_disturb(node, client, topic, uri, monkeypatch):
    """Both moved the positions of partitions that the other one did not touch."""
    create(node, topic, partitions=2)
    produce(node, topic, values(3), partition=0)
    first = LakeWriter(client, topic, uri)
    commit = LakeTable.commit

    def commit_after_another(table, files, positions, **options):
        monkeypatch.setattr(LakeTable, "commit", commit)
        other = LakeTable.open(uri)
        other.commit([], {1: 0})
        commit(table, files, positions, **options)

    monkeypatch.setattr(LakeTable, "commit", commit_after_another)
    first.run()
    assert rows_of(uri) == expected(values(3))
    assert LakeTable.open(uri).positions(2) == {0: 3, 1: 0}


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", ["first file", "second file", "before", "after"])
def test_a_writer_that_is_killed_at_any_step_is_continued_without_gap_or_duplicate(
    node, client, topic, uri, monkeypatch, moment
):
    create(node, topic, partitions=2)
    for number in range(2):
        produce(node, topic, values(50), partition=number)
    write_files, commit = writer_module.write_files, LakeTable.commit
    calls = 0

    def write_or_die(*arguments, **options):
        nonlocal calls
        files = write_files(*arguments, **options)
        calls += 1
        if (moment, calls) in (("first file", 1), ("second file", 2)):
            raise Killed
        return files

    def commit_or_die(table, files, positions, **options):
        if moment == "before":
            raise Killed
        commit(table, files, positions, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(writer_module, "write_files", write_or_die)
        patched.setattr(LakeTable, "commit", commit_or_die)
        with pytest.raises(Killed):
            LakeWriter(client, topic, uri).run()
    produce(node, topic, values(5, first=50), partition=0)
    LakeWriter(client, topic, uri).run()
    assert rows_of(uri) == expected(values(55), values(50))


@pytest.mark.parametrize("step", ["write", "close", "commit"])
def test_a_store_that_fails_is_an_error_and_the_next_run_writes_everything_once(
    node, client, topic, uri, monkeypatch, step
):
    create(node, topic)
    produce(node, topic, values(5))
    LakeWriter(client, topic, uri).run()
    produce(node, topic, values(5, first=5))

    def fail(*_, **__):
        raise OSError("no answer from the store")

    with monkeypatch.context() as patched:
        if step == "commit":
            patched.setattr(deltalake.DeltaTable, "create_write_transaction", fail)
        else:
            patched.setattr(LakeFileWriter, step, fail)
        with pytest.raises(LakeError, match="no answer from the store"):
            LakeWriter(client, topic, uri).run()
    assert rows_of(uri) == expected(values(5))
    assert LakeWriter(client, topic, uri).run().offsets == 5
    assert rows_of(uri) == expected(values(10))


def test_large_topics_are_written_in_several_commits_and_files(node, client, topic, uri):
    create(node, topic)
    written = [bytes([number % 251]) * 1000 for number in range(3000)]
    produce(node, topic, written)
    done = LakeWriter(client, topic, uri, commit_offsets_max=1000).run()
    assert (done.commits, done.offsets) == (3, 3000)
    assert rows_of(uri) == expected(written)


def test_a_file_is_closed_when_it_is_large_enough(node, client, topic, uri, monkeypatch):
    monkeypatch.setattr("millstream.lake.files.ROW_GROUP_BYTES", 256 * 1024)
    create(node, topic)
    written = [os.urandom(10_000) for _ in range(400)]
    produce(node, topic, written)
    done = LakeWriter(client, topic, uri, file_bytes=MIB).run()
    assert 3 <= done.files <= 4
    assert rows_of(uri) == expected(written)


# What a table has, and what it belongs to.


def test_positions_survive_compaction_checkpoints_and_vacuum(node, client, topic, uri):
    create(node, topic)
    writer = LakeWriter(client, topic, uri)
    for number in range(5):
        produce(node, topic, values(10, first=10 * number))
        writer.run()
    table = LakeTable.open(uri)
    counts = table.compact(file_bytes=128 * MIB)
    assert (counts["numFilesAdded"], counts["numFilesRemoved"]) == (1, 5)
    delta = deltalake.DeltaTable(uri)
    delta.create_checkpoint()
    delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
    produce(node, topic, values(10, first=50))
    assert writer.run().offsets == 10
    assert rows_of(uri) == expected(values(60))


def test_files_are_skipped_by_offset_and_time(node, client, topic, uri):
    create(node, topic)
    writer = LakeWriter(client, topic, uri)
    for number in range(3):
        produce(node, topic, values(10, first=10 * number))
        writer.run()
    added = pa.table(deltalake.DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
    ranges = sorted((file["min.offset"], file["max.offset"]) for file in added)
    assert ranges == [(0, 9), (10, 19), (20, 29)]
    assert all(file["min.timestamp"] <= file["max.timestamp"] for file in added)
    assert all(file["num_records"] == 10 for file in added)


def test_a_topic_that_was_created_again_is_refused_by_the_table_of_the_old_one(
    node, client, topic, uri
):
    create(node, topic)
    produce(node, topic, values(3))
    LakeWriter(client, topic, uri).run()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.delete_topics([topic])[topic].result()
    create(node, topic)
    produce(node, topic, values(9))
    with pytest.raises(LakeError, match="it was deleted and created again"):
        LakeWriter(client, topic, uri).run()
    assert rows_of(uri) == expected(values(3))


def test_records_that_retention_took_before_they_were_written_are_a_loss(node, client, topic, uri):
    create(node, topic)
    produce(node, topic, values(3))
    writer = LakeWriter(client, topic, uri)
    writer.run()
    produce(node, topic, values(4, first=3))
    evict(node, topic)
    wait_until(lambda: writer.lag()[0].log.start > 3)
    with pytest.raises(DataLost, match=r"offsets 3 to .* were deleted by retention before"):
        writer.run()
    assert rows_of(uri) == expected(values(3))


def test_a_table_of_something_else_and_a_missing_topic_are_refused(client, topic, uri):
    with pytest.raises(UnknownTopic):
        LakeWriter(client, topic, uri).run()
    deltalake.DeltaTable.create(uri, pa.schema([("x", pa.int64())]))
    with pytest.raises(LakeError, match="is a Delta table of something else"):
        LakeTable.open(uri)
    with pytest.raises(LakeError, match="there is no Delta table"):
        LakeTable.open(f"{uri}-missing")
    with pytest.raises(InvalidConfig, match="file_bytes must be between 1048576 and"):
        LakeWriter(client, topic, uri, file_bytes=1)
