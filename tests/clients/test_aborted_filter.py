"""Which batches are hidden from an application."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.clients.aborted_filter import AbortedFilter
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.records.batch import decode_header, stamp
from millstream.records.build import build_batch
from millstream.records.control import build_marker
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition
from tests.clients.kafka.samples import COMMITTED, NOW_MS, UNCOMMITTED, confluent_read, read, write

_names = itertools.count()


def data(offset, producer, *, count=1, is_transactional=True):
    batch = build_batch(
        [Record(b"x")] * count,
        now_ms=NOW_MS,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )
    return decode_header(stamp(batch, base_offset=offset, leader_epoch=0))


def marker(offset, producer, *, is_commit=False):
    batch = build_marker(producer, 0, is_commit=is_commit, coordinator_epoch=0, now_ms=NOW_MS)
    return decode_header(stamp(batch, base_offset=offset, leader_epoch=0))


def void(aborted_filter, *headers):
    return [aborted_filter.is_filtered(header) for header in headers]


def test_an_aborted_transaction_is_void_up_to_its_marker():
    found = void(AbortedFilter({1: [10]}), data(10, 1), data(11, 1), marker(12, 1), data(13, 1))
    assert found == [True, True, True, False]


def test_markers_are_void_whatever_they_say():
    assert void(AbortedFilter(), marker(0, 1, is_commit=True), marker(1, 2)) == [True, True]


def test_others_between_are_seen():
    headers = [data(10, 1), data(11, 2), data(12, 1), marker(13, 2, is_commit=True), data(14, 1)]
    assert void(AbortedFilter({1: [10]}), *headers) == [True, False, True, True, True]


def test_what_a_producer_committed_before_is_seen():
    headers = [data(5, 1), marker(6, 1, is_commit=True), data(7, 1), marker(8, 1), data(9, 1)]
    assert void(AbortedFilter({1: [7]}), *headers) == [False, True, True, True, False]


def test_several_aborted_transactions_of_one_producer_end_one_by_one():
    headers = [data(0, 1), marker(1, 1), data(2, 1), marker(3, 1, is_commit=True), data(4, 1)]
    assert void(AbortedFilter({1: [0, 4]}), *headers) == [True, True, False, True, True]


def test_a_batch_outside_of_any_transaction_is_seen_though_its_producer_has_one_aborted():
    assert void(AbortedFilter({1: [0]}), data(3, 1, is_transactional=False)) == [False]


def test_reading_may_begin_within_a_transaction():
    assert void(AbortedFilter({1: [3]}), data(50, 1), marker(51, 1), data(52, 1)) == [
        True,
        True,
        False,
    ]


def test_what_is_open_at_the_end_of_a_stretch_goes_on_in_the_next():
    aborted_filter = AbortedFilter({1: [10]})
    assert void(aborted_filter, data(10, 1)) == [True]
    aborted_filter.add({})
    assert void(aborted_filter, data(11, 1), marker(12, 1), data(13, 1)) == [True, True, False]


def test_a_transaction_that_is_named_again_counts_once():
    aborted_filter = AbortedFilter({1: [10]})
    assert void(aborted_filter, data(10, 1)) == [True]
    aborted_filter.add({1: [10, 20]})
    assert void(aborted_filter, data(11, 1), marker(12, 1)) == [True, True]
    aborted_filter.add({1: [10, 20]})
    assert void(aborted_filter, data(13, 1), marker(14, 1, is_commit=True)) == [False, True]
    assert void(aborted_filter, data(20, 1), marker(21, 1), data(22, 1)) == [True, True, False]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which producer
        st.sampled_from(["write", "write", "commit", "abort"]),
        st.integers(1, 3),  # how many records
    ),
    max_size=20,
)


def history(steps):
    """Return headers in log order, the aborted transactions, and which batches are visible."""
    open_from, aborted, headers, seen = {}, {}, [], []
    offset = 0
    for producer, what, count in [*steps, *((number, "abort", 1) for number in range(3))]:
        if what == "write":
            open_from.setdefault(producer, (offset, []))[1].append(len(headers))
            headers.append(data(offset, producer, count=count))
            seen.append(True)
            offset += count
        elif producer in open_from:
            first, written = open_from.pop(producer)
            if what == "abort":
                aborted.setdefault(producer, []).append(first)
                for at in written:
                    seen[at] = False
            headers.append(marker(offset, producer, is_commit=what == "commit"))
            seen.append(False)
            offset += 1
    return headers, aborted, seen


@given(STEPS, st.data())
def test_any_history_read_in_any_stretches_shows_what_was_committed(steps, draw):
    headers, aborted, seen = history(steps)
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(headers)))))
    aborted_filter = AbortedFilter()
    found = []
    for start, stop in itertools.pairwise([0, *cuts, len(headers)]):
        chunk = headers[start:stop]
        if chunk:
            # A node lists transactions that start before the end of its response, maybe repeatedly.
            end = chunk[-1].next_offset
            aborted_filter.add(
                {who: [at for at in firsts if at < end] for who, firsts in aborted.items()}
            )
        found += [not aborted_filter.is_filtered(header) for header in chunk]
    assert found == seen


@settings(max_examples=12, deadline=None)
@given(steps=STEPS, fetch_size=st.sampled_from([1, 300, 2**20]))
def test_librdkafka_sees_the_same_of_the_same_partition(broker, steps, fetch_size):
    with KafkaClient(broker.bootstrap, fetch_size_max=fetch_size) as node:
        topic = f"voids-{next(_names)}"
        node.create_topic(topic, partitions=1)
        where = TopicPartition(topic, 0)
        producers = [
            TransactionalProducer(node, f"{topic}/{number}", timeout_ms=60_000)
            for number in range(3)
        ]
        numbers = itertools.count()
        for at, what, count in steps:
            if what == "write":
                write(producers[at], where, [b"%d" % next(numbers) for _ in range(count)])
                producers[at].flush()
            elif what == "commit":
                producers[at].commit()
            else:
                producers[at].abort()
        for isolation in (COMMITTED, UNCOMMITTED):
            shown = confluent_read(broker.bootstrap, topic, isolation=isolation)
            assert read(node, where, isolation=isolation) == shown
        for producer in producers:
            producer.close()
