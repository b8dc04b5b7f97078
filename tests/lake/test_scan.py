"""Union reads: history from the table and the rest from the log, without gap or duplicate."""

from __future__ import annotations

import threading

import duckdb
import polars as pl
import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.config.schema import MIB
from millstream.errors import DataLost, InvalidRequest, LakeError
from millstream.lake.scan import LakeScan, scan
from millstream.lake.table import LakeTable
from millstream.lake.writer import LakeWriter
from millstream.testing.broker import RunningBroker
from tests.cli.nodes import wait_until
from tests.spark.topics import create, evict, produce

from .test_writer import expected, values


def read_now(node: RunningBroker, topic: str, uri: str) -> list[tuple[int, int, bytes]]:
    with scan(topic, table=uri, bootstrap=node.bootstrap) as found:
        return read(found)


def read(found: LakeScan) -> list[tuple[int, int, bytes]]:
    table = found.reader(["partition", "offset", "value"]).read_all()
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_a_scan_has_the_table_and_what_came_after_it(node, client, topic, uri):
    create(node, topic, partitions=2)
    produce(node, topic, values(20), partition=0)
    LakeWriter(client, topic, uri).run()
    produce(node, topic, values(7, first=20), partition=0)
    produce(node, topic, values(3), partition=1)
    with scan(topic, table=uri, bootstrap=node.bootstrap) as found:
        assert found.positions == {0: 20}
        assert read(found) == expected(values(27), values(3))
        assert read(found) == expected(values(27), values(3)), "a scan can be read again"


def test_polars_and_duckdb_see_the_same_rows(node, client, topic, uri):
    create(node, topic)
    produce(node, topic, values(20))
    LakeWriter(client, topic, uri).run()
    produce(node, topic, values(5, first=20))
    with scan(topic, table=uri, bootstrap=node.bootstrap) as found:
        frame = found.polars().filter(pl.col("offset") >= 18).select("offset").collect()
        assert sorted(frame["offset"].to_list()) == list(range(18, 25))
        connection = found.duckdb("orders")
        query = 'SELECT count(*), min("offset"), max("offset") FROM orders'
        assert connection.sql(query).fetchall() == [(25, 0, 24)]
        assert connection.sql(query).fetchall() == [(25, 0, 24)]
        rows = duckdb.from_arrow(found.reader(["offset"])).aggregate("count(*)").fetchall()
        assert rows == [(25,)]


def test_a_scan_stays_what_it_was_while_the_table_and_the_log_go_on(node, client, topic, uri):
    create(node, topic)
    produce(node, topic, values(10))
    writer = LakeWriter(client, topic, uri)
    writer.run()
    produce(node, topic, values(5, first=10))
    with scan(topic, table=uri, bootstrap=node.bootstrap) as found:
        produce(node, topic, values(5, first=15))
        writer.run()
        LakeTable.open(uri).compact(file_bytes=128 * MIB)
        assert read(found) == expected(values(15))
    assert read_now(node, topic, uri) == expected(values(20))


def test_scans_during_writes_and_compaction_have_no_gap_and_no_duplicate(node, topic, uri):
    create(node, topic)
    produce(node, topic, values(10))
    with KafkaClient(node.bootstrap) as client:
        LakeWriter(client, topic, uri).run()
    is_done = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with KafkaClient(node.bootstrap) as own:
                for number in range(1, 12):
                    produce(node, topic, values(10, first=10 * number))
                    LakeWriter(own, topic, uri).run()
                    if number % 4 == 0:
                        LakeTable.open(uri).compact(file_bytes=128 * MIB)
        except BaseException as error:  # noqa: BLE001 - of a thread.
            failures.append(error)
        finally:
            is_done.set()

    thread = threading.Thread(target=write)
    thread.start()
    counts = []
    while not is_done.is_set():
        rows = read_now(node, topic, uri)
        assert [offset for _, offset, _ in rows] == list(range(len(rows)))
        counts.append(len(rows))
    thread.join()
    assert not failures
    assert counts == sorted(counts)
    assert len(read_now(node, topic, uri)) == 120


def test_retention_of_what_the_table_has_is_no_loss_and_of_what_it_has_not_is_one(
    node, client, topic, uri
):
    create(node, topic)
    produce(node, topic, values(10))
    writer = LakeWriter(client, topic, uri)
    writer.run()
    evict(node, topic)
    wait_until(lambda: writer.lag()[0].log.start >= 10)
    produce(node, topic, values(2, first=10))
    assert read_now(node, topic, uri) == expected(values(12))
    evict(node, topic)
    wait_until(lambda: writer.lag()[0].log.start >= 12)
    with pytest.raises(DataLost, match=r"offsets 10 to 11 .* were deleted by retention"):
        scan(topic, table=uri, bootstrap=node.bootstrap)


def test_a_log_that_is_too_large_for_memory_is_refused_and_can_be_streamed(
    node, client, topic, uri
):
    create(node, topic)
    LakeWriter(client, topic, uri).run()
    produce(node, topic, [bytes(1000)] * 500)
    table = LakeTable.open(uri)
    found = LakeScan(client, topic, table, tail_bytes_max=1000)
    with pytest.raises(InvalidRequest, match="write the lake first, or use reader"):
        found.dataset()
    assert len(read(found)) == 500


def test_a_table_of_another_topic_and_unknown_columns_are_refused(node, client, topic, uri):
    create(node, topic)
    create(node, f"{topic}-other")
    LakeWriter(client, topic, uri).run()
    with pytest.raises(LakeError, match="needs a table of its own"):
        scan(f"{topic}-other", table=uri, bootstrap=node.bootstrap)
    with (
        scan(topic, table=uri, bootstrap=node.bootstrap) as found,
        pytest.raises(InvalidRequest, match="columns must be some of"),
    ):
        found.reader(["nothing"])
