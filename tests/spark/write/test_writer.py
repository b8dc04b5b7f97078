"""The sink without Spark: tasks and driver in any order that Spark may choose."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

from millstream.broker.transactions.coordinator import TransactionCoordinator
from millstream.errors import DataLost, InvalidConfig, MillstreamError
from millstream.spark.options import parse_write_options
from millstream.spark.write.writer import (
    QUERY_ID,
    RUN_ID,
    TASKS_MAX,
    BatchWriter,
    StreamWriter,
)
from tests.spark.topics import consume, create, values

SCHEMA = StructType([StructField("value", StringType())])


@contextlib.contextmanager
def task(partition, attempt=0, query="query", run="run"):
    """Pretend to be a Spark task within the block."""
    context = TaskContext()
    context._partitionId, context._attemptNumber = partition, attempt
    context._localProperties = {QUERY_ID: query, RUN_ID: run}
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


@pytest.fixture
def options(node, topic):
    create(node, topic)
    return parse_write_options({"bootstrap.servers": node.bootstrap, "topic": topic})


@pytest.fixture
def write(options):
    """Write values as a task of the query `query`; return its message to the driver."""

    def write(*found, partition=0, attempt=0, query="query", run="run"):
        writer = StreamWriter(options, SCHEMA, overwrite=False)
        with task(partition, attempt, f"{options.topic}-{query}", run):
            return writer.write(iter([pa.record_batch({"value": list(found)})]))

    return write


@pytest.fixture
def commit(options):
    """Commit a micro-batch as the driver."""

    def commit(number, *written):
        StreamWriter(options, SCHEMA, overwrite=False).commit(list(written), number)

    return commit


def test_nothing_is_seen_before_the_driver_has_published(node, topic, write, commit):
    written = [write("a", partition=0), write("b", partition=1)]
    assert values(node, topic) == []
    assert len(values(node, topic, isolation="read_uncommitted")) == 2
    commit(0, *written)
    assert values(node, topic) == [b"a", b"b"]


def test_of_two_attempts_the_one_that_spark_counts_is_seen(node, topic, write, commit):
    first = write("a", "b", attempt=0)
    second = write("a", "b", attempt=1)
    assert first.transaction.transactional_id != second.transaction.transactional_id
    commit(0, second)
    assert values(node, topic) == [b"a", b"b"]
    commit(1, write("c"))
    assert values(node, topic) == [b"a", b"b", b"c"]


def test_an_attempt_that_was_left_behind_holds_nobody_up(node, topic, write, commit):
    write("lost", attempt=0)
    commit(0, write("kept", attempt=1))
    assert values(node, topic) == [b"kept"]


def test_a_micro_batch_that_is_run_again_after_it_was_published_is_not_seen_twice(
    node, topic, write, commit
):
    commit(0, write("a"))
    commit(0, write("a"))
    assert values(node, topic) == [b"a"]
    commit(1, write("b"))
    assert values(node, topic) == [b"a", b"b"]


def test_a_micro_batch_of_a_checkpoint_that_was_rewound_fails(node, topic, write, commit):
    for number in range(3):
        commit(number, write(str(number)))
    with pytest.raises(DataLost, match=r"write 1 of .* was not done: 2 was written before"):
        commit(1, write("other"))
    assert values(node, topic) == [b"0", b"1", b"2"]
    commit(3, write("3"))
    assert values(node, topic) == [b"0", b"1", b"2", b"3"]


def test_a_driver_that_starts_anew_takes_over_what_the_former_left(node, topic, write, commit):
    write("a", partition=0, run="killed")
    write("b", partition=1, run="killed")
    commit(0, write("a", partition=0), write("b", partition=1))
    assert values(node, topic) == [b"a", b"b"]


def test_a_task_of_a_killed_driver_that_works_on_does_not_fence_those_of_the_next(
    node, topic, options, write, commit
):
    written = write("a")
    write("a", run="killed")
    commit(0, written)
    assert values(node, topic) == [b"a"]
    assert open_ids(node, options) == []


def test_a_killed_driver_that_gives_up_does_not_end_the_tasks_of_the_next(
    node, topic, write, commit, options
):
    of_the_killed, written = write("a", run="killed"), write("a")
    StreamWriter(options, SCHEMA, overwrite=False).abort([of_the_killed, None], 0)
    commit(0, written)
    assert values(node, topic) == [b"a"]


@pytest.mark.parametrize("sequence", [None, 0])
def test_two_runs_of_a_job_at_once_are_written_once(node, topic, options, sequence):
    named = replace(options, job_id=f"{topic}/job", job_sequence=sequence)
    killed, running = (BatchWriter(named, SCHEMA, overwrite=False) for _ in range(2))
    rows = pa.record_batch({"value": ["a"]})
    with task(0, query=None):
        written = running.write(iter([rows]))
        of_the_killed = killed.write(iter([rows]))
    killed.abort([of_the_killed, None])
    running.commit([written])
    assert values(node, topic) == [b"a"]

    with task(0, query=None):
        of_the_killed = killed.write(iter([rows]))
    killed.commit([of_the_killed])
    assert values(node, topic) == [b"a"]
    names = {one.transactional_id for one in node.server.broker.transactions.all()}
    assert not any(topic in name for name in names), "they are not used again"


def test_the_batches_of_a_query_use_the_same_ids_again(node, topic, options):
    for sequence in range(3):
        named = replace(options, job_id=f"{topic}-job", job_sequence=sequence)
        writer = BatchWriter(named, SCHEMA, overwrite=False)
        with task(0):
            writer.commit([writer.write(iter([pa.record_batch({"value": ["a"]})]))])
    names = {one.transactional_id for one in node.server.broker.transactions.all()}
    assert len([name for name in names if topic in name]) == 1


def test_a_task_that_seemed_dead_cannot_be_published_by_anyone(node, topic, write, commit):
    dead = write("dead")
    commit(0, write("alive"))
    with pytest.raises(MillstreamError):
        commit(1, dead)
    assert values(node, topic) == [b"alive"]


def test_all_tasks_are_published_or_none(node, topic, write, commit):
    overtaken = write("a", partition=0)
    others = [write("b", partition=1), write("c", partition=2)]
    write("a again", partition=0)
    with pytest.raises(MillstreamError, match=r"query/\d+/0/0"):
        commit(0, overtaken, *others)
    assert values(node, topic) == []


def test_queries_do_not_get_into_each_others_way(node, topic, write, commit):
    other = write("x", query="other")
    commit(0, write("a"))
    commit(0, other)
    assert values(node, topic) == [b"a", b"x"]


def test_what_is_given_up_is_not_seen_and_holds_nobody_up(node, topic, write, commit, options):
    written = write("a")
    StreamWriter(options, SCHEMA, overwrite=False).abort([written, None], 0)
    assert values(node, topic) == []
    commit(0, write("b"))
    assert values(node, topic) == [b"b"]


def open_ids(node, options):
    """Transactional ids with an open transaction in the topic of a test."""
    return [
        each.transactional_id
        for each in node.server.broker.transactions.all()
        if each.is_ongoing and any(at.topic == options.topic for at in each.partitions)
    ]


def test_a_task_that_fails_in_the_middle_holds_nobody_up(node, topic, options, write, commit):
    def rows():
        yield pa.record_batch({"value": ["a" * 1024] * 17 * 1024})
        assert open_ids(node, options), "the first rows are sent"
        raise ZeroDivisionError

    writer = StreamWriter(options, SCHEMA, overwrite=False)
    with task(0, 0, f"{topic}-query"), pytest.raises(ZeroDivisionError):
        writer.write(rows())
    assert open_ids(node, options) == []
    writer.abort([None], 0)
    commit(0, write("b", query="other"))
    assert values(node, topic) == [b"b"]


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_the_driver_ends_the_transactions_of_killed_tasks_by_the_id_in_the_checkpoint(
    node, topic, options, write, tmp_path, prefix
):
    query = f"{topic}-query"
    (tmp_path / "metadata").write_text(json.dumps({"id": query}))
    write("a", partition=0)
    write("b", partition=1)
    assert len(open_ids(node, options)) == 2
    told = replace(options, checkpoint=f"{prefix}{tmp_path}")
    StreamWriter(told, SCHEMA, overwrite=False).abort([None, None], 0)
    assert open_ids(node, options) == []


@pytest.mark.parametrize("checkpoint", [None, "hdfs://host/somewhere", "/does/not/exist"])
def test_the_driver_leaves_a_checkpoint_that_it_cannot_read_to_the_lease(
    node, options, write, checkpoint
):
    write("a")
    told = replace(options, checkpoint=checkpoint)
    StreamWriter(told, SCHEMA, overwrite=False).abort([None], 0)
    (name,) = open_ids(node, options)
    described = node.server.broker.transactions.of(name).describe(name)
    assert described.timeout_ms == options.transaction_lease_ms == 60_000


def test_a_running_task_renews_the_transactions_of_all_tasks(node, options, write):
    write("a", partition=0)
    coordinators = node.server.broker.transactions
    (name,) = open_ids(node, options)
    renewed = threading.Event()
    renew = TransactionCoordinator.renew

    def noticed(self, *given):
        count = renew(self, *given)
        renewed.set()
        return count

    def rows():
        yield pa.record_batch({"value": ["b"]})
        assert renewed.wait(30)

    timer = coordinators.of(name)._store.slots[name].timer
    short = replace(options, transaction_lease_ms=2_000)
    with pytest.MonkeyPatch.context() as patch, task(1, 0, f"{options.topic}-query"):
        patch.setattr(TransactionCoordinator, "renew", noticed)
        StreamWriter(short, SCHEMA, overwrite=False).write(rows())
    assert coordinators.of(name)._store.slots[name].timer is not timer


def test_tasks_without_rows_write_nothing_and_ask_nothing(node, topic, write, commit):
    published = sum(each.published for each in node.server.broker.transactions.publications())
    empty = write()
    assert empty.transaction is None
    commit(0, empty)
    assert (
        sum(each.published for each in node.server.broker.transactions.publications()) == published
    )


def test_a_batch_write_leaves_no_transactional_ids_behind(node, options):
    writer = BatchWriter(options, SCHEMA, overwrite=False)
    with task(0):
        written = writer.write(iter([pa.record_batch({"value": ["a"]})]))
    names = {one.transactional_id for one in node.server.broker.transactions.all()}
    assert written.transaction.transactional_id in names
    writer.commit([written])
    names = {one.transactional_id for one in node.server.broker.transactions.all()}
    assert written.transaction.transactional_id not in names


def test_numbered_writes_of_a_job_are_done_once_each(node, topic):
    create(node, topic)

    def save(sequence, value):
        given = {"jobId": f"{topic}/job", "jobSequence": str(sequence)}
        options = {"bootstrap.servers": node.bootstrap, "topic": topic, **given}
        writer = BatchWriter(parse_write_options(options), SCHEMA, overwrite=False)
        with task(0):
            writer.commit([writer.write(iter([pa.record_batch({"value": [value]})]))])

    publishers = len(node.server.broker.transactions.publishers())
    save(0, "a")
    save(0, "a again")
    save(1, "b")
    with pytest.raises(DataLost, match=r"write 0 of .* was not done: 1 was written before"):
        save(0, "a late")
    assert values(node, topic) == [b"a", b"b"]
    assert len(node.server.broker.transactions.publishers()) == publishers + 1


def test_more_tasks_than_can_be_published_are_refused_before_they_write(write):
    with pytest.raises(InvalidConfig, match=f"at most {TASKS_MAX} tasks"):
        write("a", partition=TASKS_MAX)


def test_rows_are_gathered_to_large_batches(node, options):
    writer = BatchWriter(options, SCHEMA, overwrite=False)
    with task(0):
        parts = [pa.record_batch({"value": [str(number)] * 10}) for number in range(100)]
        written = writer.write(iter(parts))
    assert written.transaction.records == 1_000
    partition = node.server.broker.topics.partition(options.topic, 0)
    assert partition.high_watermark == 1_000
    writer.commit([written])
    assert len(values(node, options.topic)) == 1_000


def partitions_of_single_rows(node, topic, count, writes):
    """Write single rows without keys; return how many are in each partition."""
    options = parse_write_options({"bootstrap.servers": node.bootstrap, "topic": topic})
    for number in range(writes):
        writer = StreamWriter(options, SCHEMA, overwrite=False)
        with task(0, 0, f"{topic}-query"):
            written = writer.write(iter([pa.record_batch({"value": [str(number)]})]))
        writer.commit([written], number)
    found = consume(node, topic, partitions=count)
    return [sum(each.partition() == index for each in found) for index in range(count)]


def test_small_writes_without_keys_are_spread_over_all_partitions(node, topic):
    create(node, topic, partitions=3)
    counts = partitions_of_single_rows(node, topic, 3, 6)
    assert sum(counts) == 6
    assert min(counts) > 0


def test_a_task_writes_to_partitions_that_were_added_before_it(node, topic):
    create(node, topic, partitions=1)
    assert partitions_of_single_rows(node, topic, 1, 1) == [1]
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    options = parse_write_options({"bootstrap.servers": node.bootstrap, "topic": topic})
    writer = StreamWriter(options, SCHEMA, overwrite=False)
    with task(0, 0, f"{topic}-query"):
        written = writer.write(iter([pa.record_batch({"value": ["a", "b"]})]))
    writer.commit([written], 1)
    assert {each.partition() for each in consume(node, topic, partitions=2)} == {0, 1}
