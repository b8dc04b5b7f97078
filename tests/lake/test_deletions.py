"""Deletion by key reaches the lake: at once for its readers, and then its files."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.config.schema import MIB
from millstream.errors import CorruptData, LakeConflict
from millstream.lake.deletions import PendingDeletion, TopicDeletions, finished
from millstream.lake.scan import scan
from millstream.lake.table import LakeTable
from millstream.lake.topic_table import enable_lake
from millstream.lake.writer import LakeWriter
from millstream.protocols.http.lake_deletions import decode_lake_deletion
from tests.spark.topics import create, evict, produce

KEYS = [b"ada", b"bob", b"ada", None, b"adam"]


@pytest.fixture
def written(node, client, topic, uri):
    """A topic whose first five records are in its table."""
    create(node, topic)
    enable_lake(client, topic, uri)
    write(node, topic)
    LakeWriter(client, topic, uri).run()
    return topic


def write(node, topic):
    produce(node, topic, [b"%d" % number for number in range(len(KEYS))], keys=KEYS)


def delete(node, topic, **body):
    """Delete by key over HTTP; return the count."""
    request = urllib.request.Request(
        f"{node.url}/v1/topics/{topic}/records", data=json.dumps(body).encode(), method="DELETE"
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["deleted"]


def keys_read(node, topic):
    """Return offsets and keys that readers see, which must all see the same."""
    with scan(topic, bootstrap=node.bootstrap) as found:
        streamed = [
            row
            for batch in found.reader(["offset", "key"])
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
        table = found.dataset().to_table()
        assert sorted(streamed) == sorted(
            zip(*map(table_column(table), ("offset", "key")), strict=True)
        )
        assert found.duckdb().sql(f'SELECT count(*) FROM "{topic}"').fetchall() == [
            (len(streamed),)
        ]
        assert found.polars().collect().height == len(streamed)
    return sorted(streamed)


def table_column(table):
    return lambda name: table.column(name).to_pylist()


def keys_stored(uri):
    """Return the keys in all files of the newest version."""
    files = LakeTable.open(uri).file_uris()
    return sorted(
        (key for file in files for key in pq.read_table(file).column("key").to_pylist()),
        key=lambda key: key or b"",
    )


def test_a_deletion_is_seen_by_readers_at_once_and_then_in_the_files(node, client, written, uri):
    evict(node, written)
    assert delete(node, written, key="ada") == 0, "the log has them no more"
    remaining = [(1, b"bob"), (3, None), (4, b"adam")]
    assert keys_read(node, written) == remaining
    assert b"ada" in keys_stored(uri)
    write(node, written)
    assert [key for _, key in keys_read(node, written)].count(b"ada") == 2, "of later records"
    done = LakeWriter(client, written, uri).run()
    assert (done.deleted, done.offsets) == (2, 5)
    assert keys_stored(uri).count(b"ada") == 2
    assert TopicDeletions(client, written).pending(LakeTable.open(uri)) == []
    assert LakeWriter(client, written, uri).run().commits == 0, "it is finished"
    assert keys_read(node, written)[:3] == remaining


def test_prefixes_and_offsets_limit_what_a_deletion_removes(node, client, written, uri):
    assert delete(node, written, key_prefix="ada", before=3) == 2
    assert keys_read(node, written) == [(1, b"bob"), (3, None), (4, b"adam")]
    assert delete(node, written, key_prefix="ada") == 1
    assert keys_read(node, written) == [(1, b"bob"), (3, None)]
    assert LakeWriter(client, written, uri).run().deleted == 3
    assert keys_stored(uri) == [None, b"bob"]
    assert keys_read(node, written) == [(1, b"bob"), (3, None)]


def test_what_was_deleted_is_not_written_even_if_the_log_still_has_it(
    node, client, topic, uri, monkeypatch
):
    create(node, topic)
    enable_lake(client, topic, uri)
    write(node, topic)
    partition = node.server.broker.topics.partition(topic, 0)

    async def not_yet(**_):
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(type(partition), "delete_keys", lambda self, **options: not_yet(**options))
        delete(node, topic, key="ada")
    LakeWriter(client, topic, uri).run()
    files = list(Path(uri).glob("*.parquet"))
    assert files
    for file in files:  # Also those that a rewrite has replaced.
        assert b"ada" not in pq.read_table(file).column("key").to_pylist()


def test_a_deletion_that_comes_while_rows_are_written_is_done_by_the_next_run(
    node, client, topic, uri, monkeypatch
):
    create(node, topic)
    enable_lake(client, topic, uri)
    write(node, topic)
    commit = LakeTable.commit

    def delete_then_commit(table, *arguments, **options):
        monkeypatch.setattr(LakeTable, "commit", commit)
        delete(node, topic, key="ada")
        commit(table, *arguments, **options)

    monkeypatch.setattr(LakeTable, "commit", delete_then_commit)
    LakeWriter(client, topic, uri).run()
    assert [key for _, key in keys_read(node, topic)].count(b"ada") == 0
    assert LakeWriter(client, topic, uri).run().deleted == 2
    assert b"ada" not in keys_stored(uri)


def test_rows_that_were_read_before_a_delete_job_are_not_committed_after_it(
    node, client, topic, uri, monkeypatch
):
    """Otherwise they would come back, and no deletion would be pending any more.

    The job rewrites nothing, as the table has no such rows yet.
    """
    create(node, topic)
    enable_lake(client, topic, uri)
    write(node, topic)
    commit = LakeTable.commit

    def delete_then_commit(table, *arguments, **options):
        monkeypatch.setattr(LakeTable, "commit", commit)
        delete(node, topic, key="ada", before=5)
        other = LakeTable.open(uri)
        [pending] = TopicDeletions(client, topic).pending(other)
        other.delete(pending.sql(), deletions_position=pending.offset + 1)
        commit(table, *arguments, **options)

    monkeypatch.setattr(LakeTable, "commit", delete_then_commit)
    with pytest.raises(LakeConflict):
        LakeWriter(client, topic, uri).run()
    LakeWriter(client, topic, uri).run()
    assert keys_stored(uri) == [None, b"adam", b"bob"]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_delete_job_that_is_killed_is_done_again(
    node, client, written, uri, monkeypatch, is_committed
):
    class Killed(BaseException):
        """The process ends here."""

    job = LakeTable.delete

    def job_or_die(table, *arguments, **options):
        if is_committed:
            job(table, *arguments, **options)
        raise Killed

    delete(node, written, key="ada")
    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "delete", job_or_die)
        with pytest.raises(Killed):
            LakeWriter(client, written, uri).run()
    assert keys_read(node, written) == [(1, b"bob"), (3, None), (4, b"adam")]
    LakeWriter(client, written, uri).run()
    assert b"ada" not in keys_stored(uri)


def test_deletions_apply_to_files_that_were_compacted_and_vacuum_removes_the_old_ones(
    node, client, written, uri
):
    write(node, written)
    LakeWriter(client, written, uri).run()
    LakeTable.open(uri).compact(file_bytes=128 * MIB)
    delete(node, written, key="ada")
    assert [key for _, key in keys_read(node, written)].count(b"ada") == 0
    assert LakeWriter(client, written, uri).run().deleted == 4
    table = LakeTable.open(uri)
    assert table.vacuum(keep_hours=0) == 3
    assert [str(path) for path in Path(uri).glob("*.parquet")] == table.file_uris()
    assert keys_read(node, written)[0] == (1, b"bob")


def test_a_topic_without_its_topic_of_deletions_refuses_to_delete(node, client, topic, uri):
    create(node, topic)
    write(node, topic)
    client.alter_topic_configs(topic, {"millstream.lake.deletions": "nowhere"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        delete(node, topic, key="ada")
    assert refused.value.code == 404
    assert "nothing was deleted" in refused.value.read().decode()
    with KafkaClient(node.bootstrap) as other:
        other.alter_topic_configs(topic, {"millstream.lake.deletions": None})
    assert delete(node, topic, key="ada") == 2


def test_a_deletion_is_pending_until_the_table_has_all_records_before_its_offset():
    pending = [PendingDeletion(at, 0, before, b"k", False) for at, before in ((3, 5), (4, 9))]
    assert finished(pending, {0: 4}) is None
    assert finished(pending, {}) is None
    assert finished(pending, {0: 5}) == 4
    assert finished(pending, {0: 9}) == 5


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[1", b'{"key": ""}'])
def test_what_is_no_deletion_is_refused(value):
    with pytest.raises(CorruptData, match="deletion from a lake"):
        decode_lake_deletion(value)
