"""Tasks cover the offsets without gaps, and limits are respected."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.ranges import OffsetRange, gather, limit_bytes, limit_records, split

PARTITIONS = [TopicPartition("t", number) for number in range(5)]

OFFSETS = st.dictionaries(
    st.sampled_from(PARTITIONS),
    st.tuples(st.integers(0, 10**12), st.integers(0, 1_000)),
    min_size=1,
)


@given(OFFSETS, st.floats(0.1, 1e6), st.integers(1, 10**6), st.integers(1, 50))
def test_pieces_cover_every_offset_once(ends, offset_bytes, partition_bytes, partitions_min):
    ranges = [OffsetRange(one, start, start + count) for one, (start, count) in ends.items()]
    pieces = split(
        ranges,
        offset_bytes=dict.fromkeys(ends, offset_bytes),
        partition_bytes=partition_bytes,
        partitions_min=partitions_min,
    )
    assert all(piece.count > 0 for piece in pieces)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.partition == whole.partition]
        edges = [whole.start, *(piece.end for piece in mine)]
        assert [piece.start for piece in mine] == edges[:-1]
        assert edges[-1] == whole.end


def test_a_large_range_is_cut_by_its_bytes():
    one = OffsetRange(PARTITIONS[0], 100, 1_100)
    pieces = split(
        [one], offset_bytes={one.partition: 10.0}, partition_bytes=2_500, partitions_min=1
    )
    assert [(piece.start, piece.end) for piece in pieces] == [
        (100, 350),
        (350, 600),
        (600, 850),
        (850, 1_100),
    ]


def test_there_are_as_many_tasks_as_were_asked_for():
    one = OffsetRange(PARTITIONS[0], 0, 10)
    assert len(split([one], offset_bytes={}, partition_bytes=10**9, partitions_min=4)) == 4
    assert len(split([one], offset_bytes={}, partition_bytes=10**9, partitions_min=100)) == 10


@given(OFFSETS, st.integers(0, 2_000))
def test_tasks_have_every_range_once_and_are_not_tiny(ends, bytes_min):
    ranges = [
        OffsetRange(one, start, start + count) for one, (start, count) in ends.items() if count
    ]
    tasks = gather(ranges, offset_bytes={}, task_bytes_min=bytes_min)
    assert [one for task in tasks for one in task.ranges] == ranges
    sizes = [sum(one.count for one in task.ranges) for task in tasks]
    assert all(size >= bytes_min for size in sizes[:-1])


def test_small_ranges_share_a_task_and_large_ones_do_not():
    small = [OffsetRange(one, 0, 10) for one in PARTITIONS[:3]]
    large = OffsetRange(PARTITIONS[3], 0, 1_000)
    tasks = gather([large, *small], offset_bytes={}, task_bytes_min=100)
    assert [len(task.ranges) for task in tasks] == [1, 3]
    tasks = gather(small, offset_bytes={}, task_bytes_min=0)
    assert [len(task.ranges) for task in tasks] == [1, 1, 1]


@given(OFFSETS, st.integers(1, 6_000))
def test_a_limit_is_kept_and_used_up(ends, records_max):
    start = {one: first for one, (first, _) in ends.items()}
    end = {one: first + count for one, (first, count) in ends.items()}
    limited = limit_records(start, end, records_max)
    assert all(start[one] <= limited[one] <= end[one] for one in end)
    waiting = sum(end[one] - start[one] for one in end)
    assert sum(limited[one] - start[one] for one in end) == min(records_max, waiting)


def test_a_small_partition_gets_something_beside_a_large_one():
    start = dict.fromkeys(PARTITIONS[:2], 0)
    end = {PARTITIONS[0]: 1_000_000, PARTITIONS[1]: 1}
    assert limit_records(start, end, 100) == {PARTITIONS[0]: 99, PARTITIONS[1]: 1}


def test_who_has_come_least_far_goes_first_where_a_limit_is_too_small_for_all():
    start = {PARTITIONS[0]: 7, PARTITIONS[1]: 6}
    end = dict.fromkeys(PARTITIONS[:2], 100)
    assert limit_records(start, end, 1) == {PARTITIONS[0]: 7, PARTITIONS[1]: 7}


def test_a_limit_of_bytes_is_one_of_records_by_their_size():
    start, end = {PARTITIONS[0]: 0}, {PARTITIONS[0]: 1_000}
    assert limit_bytes(start, end, 2_000, {PARTITIONS[0]: 20.0}) == {PARTITIONS[0]: 100}
    assert limit_bytes(start, end, 1, {PARTITIONS[0]: 20.0}) == {PARTITIONS[0]: 1}
    assert limit_bytes(start, end, 10**9, {PARTITIONS[0]: 20.0}) == end
