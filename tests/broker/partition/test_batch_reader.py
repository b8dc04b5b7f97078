"""Reading a log in which some batches have no records."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.partition.batch_reader import FirstBatchCache, cut_at, read_batches
from millstream.broker.partition.results import FetchResult
from millstream.config.schema import Durability
from millstream.records.batch import HEADER_SIZE, decode_header, seal, split
from millstream.records.build import build_batch
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.storage.segment.reader import Address, Slice

NOW_MS = 1_700_000_000_000


def full(first: int, count: int = 1, *, size: int = 10) -> bytes:
    """Return a batch with records."""
    records = [Record(b"%d" % (first + n) * size) for n in range(count)]
    batch = build_batch(records, now_ms=NOW_MS)
    return first.to_bytes(8, "big") + batch[8:]


def empty(first: int, count: int = 1) -> bytes:
    """Return the header of a batch whose records were removed."""
    header = decode_header(full(first))
    return seal(header._replace(record_count=0, last_offset_delta=count - 1), b"")


@dataclass
class Batches:
    """Batches in segments, with the read interface of a log."""

    segments: list[list[bytes]]
    start_offset: int = 0
    masks = ()
    partition = PartitionMetadata(Durability.FSYNC)

    def read(self, offset: int, *, size_max: int) -> Slice:
        for segment in self.segments:
            found = [one for one in segment if decode_header(one).last_offset >= offset]
            if found:
                taken = [found[0]]
                for one in found[1:]:
                    if sum(map(len, taken)) + len(one) > size_max:
                        break
                    taken.append(one)
                next_offset = decode_header(taken[-1]).next_offset
                return Slice(memoryview(b"".join(taken)), next_offset, Address(0, 0))
        return Slice(memoryview(b""), offset, Address(0, 0))

    @property
    def end_offset(self) -> int:
        return decode_header(self.segments[-1][-1]).next_offset

    def get(self, offset: int, **options):
        options = {"end_offset": self.end_offset, "size_max": 1 << 20, "is_first": True} | options
        return read_batches(self, offset, first_batch=FirstBatchCache(), **options)


def counts(got) -> list[int]:
    return [header.record_count for header, _ in split(b"".join(got.parts))]


def test_empty_batches_at_the_start_are_left_out():
    log = Batches([[empty(0, 5), empty(5), full(6), empty(7), full(8)]])
    got = log.get(0)
    assert counts(got) == [1, 0, 1]
    assert (got.next_offset, got.is_blank) == (9, False)
    assert got.size == sum(map(len, got.parts))


@pytest.mark.parametrize("size_max", [0, 1, 61, 62, 1000])
def test_an_empty_batch_is_never_all_there_is_as_long_as_a_record_follows(size_max):
    log = Batches([[empty(0)], [empty(1), empty(2)], [empty(3), full(4), full(5)]])
    got = log.get(0, size_max=size_max)
    assert counts(got)[0] == 1
    assert got.next_offset == (6 if size_max == 1000 else 5)


def test_what_does_not_fit_behind_empty_batches_is_not_replaced_by_one_of_them():
    log = Batches([[empty(0), full(1, size=100)]])
    got = log.get(0, size_max=70, is_first=False)
    assert (got.parts, got.next_offset, got.size, got.is_blank) == ((), 0, 0, False)


@pytest.mark.parametrize("size_max", [1, 61, 1000])
def test_where_only_empty_batches_are_left_the_last_takes_the_reader_to_the_end(size_max):
    log = Batches([[full(0), empty(1, 3)], [empty(4), empty(5, 2)]])
    got = log.get(1, size_max=size_max)
    assert (got.is_blank, got.next_offset) == (True, 7)
    [(header, batch)] = split(b"".join(got.parts))
    assert (header.base_offset, header.next_offset, len(batch)) == (5, 7, got.size)


def test_the_end_may_lie_before_that_of_the_log():
    log = Batches([[empty(0), empty(1), full(2)]])
    assert log.get(0, end_offset=2).is_blank
    assert log.get(0, end_offset=2).next_offset == 2
    got = log.get(2, end_offset=2)
    assert (got.parts, got.next_offset) == ((), 2)


def test_an_end_inside_an_empty_batch_is_stepped_over():
    log = Batches([[full(0), empty(1, 5), full(6)]])
    assert log.get(0, end_offset=3).next_offset == 6
    got = log.get(1, end_offset=3)
    assert (got.is_blank, got.next_offset) == (True, 6)


@pytest.mark.parametrize(("start_offset", "left"), [(1, [1, 2, 3]), (2, [2, 3]), (3, [3])], ids=str)
def test_records_before_the_start_are_not_shown_to_who_asks_for_them(start_offset, left):
    log = Batches([[full(0, 3), full(3)]], start_offset)
    got = log.get(0)
    assert [record.offset for record in read_all(b"".join(got.parts))] == left
    assert got.next_offset == 4
    whole = log.get(start_offset)
    assert decode_header(whole.parts[0]).base_offset == (0 if start_offset < 3 else 3)


def test_where_all_was_deleted_who_asks_for_it_is_taken_to_the_end():
    log = Batches([[full(0, 3)]], 3)
    for offset in range(3):
        got = log.get(offset)
        assert (got.is_blank, got.next_offset, got.size) == (True, 3, HEADER_SIZE)
        [(header, _)] = split(b"".join(got.parts))
        assert (header.record_count, header.next_offset, header.leader_epoch) == (0, 3, 0)
    assert log.get(3) == FetchResult(parts=(), next_offset=3, size=0)


def test_a_start_inside_an_empty_batch_is_as_good_as_any():
    log = Batches([[empty(0, 2**31 - 1), full(2**31 - 1)]], 5)
    assert counts(log.get(0)) == [1]


def test_nothing_is_copied():
    log = Batches([[empty(0), full(1), full(2)]])
    kept = log.read(0, size_max=1 << 20)
    log.read = lambda *_, **__: kept
    [part] = log.get(0).parts
    assert part.obj is kept.data.obj


def test_cutting_leaves_what_begins_before_the_end():
    data = memoryview(b"".join((full(0, 2), full(2), full(3))))
    assert [cut_at(data, end)[1] for end in (2, 3, 4)] == [2, 3, 4]
    assert cut_at(data, 0) == (b"", 0)


LAYOUTS = st.lists(
    st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@given(layout=LAYOUTS, size_max=st.sampled_from([0, 1, 61, 150, 400, 10_000]), data=st.data())
def test_every_client_reads_every_record_once_from_any_position(layout, size_max, data):
    segments, offset = [], 0
    for segment in layout:
        made = []
        for is_empty, count in segment:
            made.append(empty(offset, count) if is_empty else full(offset, count))
            offset += count
        segments.append(made)
    log = Batches(segments)
    wanted = [r.offset for one in segments for batch in one for r in read_all(batch)]
    start = data.draw(st.integers(0, offset))
    seen: list[int] = []
    position = start
    while position < offset:
        got = log.get(position, size_max=size_max)
        found = [r.offset for r in read_all(b"".join(got.parts))]
        assert got.parts, "a reader always moves"
        assert bool(found) != got.is_blank
        assert got.next_offset > position
        seen += [one for one in found if one >= position]
        position = got.next_offset
    assert position == offset
    assert seen == [one for one in wanted if one >= start]
