"""Records deleted by key are in a file for a while, but no reader sees them."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import DamagedRecords, InvalidAddress, StorageFailed
from millstream.records.batch import HEADER_SIZE, decode_header
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.iterate import read_all, read_records
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.segment.log_state import (
    DeletedOffsets,
    LogPosition,
    LogState,
    merge_deleted_offsets,
)
from millstream.storage.segment.reader import Address
from millstream.storage.segment.segment import SealedSegment, remove_segment
from millstream.storage.segment.stripped_batches import StrippedBatchCache
from millstream.testing import SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.keyed import (
    DIRECTORY,
    SMALL,
    clean,
    fill,
    filled,
    key_of,
    offsets,
    stamp_of,
    value_of,
    walk,
)
from tests.storage.logs import make_store, turns

HIDDEN = {
    "one of a batch": [4],
    "the first of a segment": [9],
    "the last of a segment": [17],
    "two of a batch": [12, 14],
    "a whole batch": [12, 13, 14],
    "a whole segment": list(range(9, 18)),
    "the end of the log": [35],
    "every other": list(range(0, 36, 2)),
    "everything": list(range(36)),
}


def hide(log: Log, hidden: list[int]) -> None:
    """Mask records, as a deletion by key does."""
    masks = {}
    for segment in log.segments:
        inside = [o for o in hidden if segment.base_offset <= o < segment.next_offset]
        if inside:
            known = log.masks.get(segment.base_offset, DeletedOffsets(array("q"), 0))
            more = DeletedOffsets(array("q", inside), 80 * len(inside))
            masks[segment.base_offset] = merge_deleted_offsets([known, more])
    log._state.mask_deleted(masks)


async def with_hidden(hidden: list[int], **options: object) -> Log:
    _, _, log = await filled(**options)
    hide(log, hidden)
    return log


def visible(hidden: list[int]) -> list[int]:
    return [offset for offset in range(36) if offset not in hidden]


# Every way to read.


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("size_max", [1, 400, 700, 10**6])
@in_loop
async def test_a_consumer_at_any_offset_sees_all_that_is_not_hidden_and_nothing_else(
    size_max, hidden
):
    log = await with_hidden(hidden)
    for offset in range(36):
        wanted = [there for there in visible(hidden) if there >= offset]
        assert walk(log, offset, size_max=size_max) == wanted


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@in_loop
async def test_not_one_byte_of_a_hidden_record_leaves_the_log(hidden):
    log = await with_hidden(hidden)
    for offset in range(36):
        data = bytes(log.read(offset).data)
        assert not [gone for gone in hidden if value_of(gone) in data]


@pytest.mark.parametrize("codec", Codec)
@in_loop
async def test_records_of_any_codec_can_be_hidden(codec):
    log = await with_hidden([1, 4, 12, 13, 14], codec=codec)
    assert offsets(log) == visible([1, 4, 12, 13, 14])
    assert {decode_header(log.read(offset).data).codec for offset in (0, 3, 15)} == {codec.value}


@in_loop
async def test_batches_without_hidden_records_come_together_and_the_others_alone():
    log = await with_hidden([13])
    first, second, third = log.read(9), log.read(12), log.read(15)
    assert [len(read_records(each.data)) for each in (first, second, third)] == [3, 2, 3]
    assert [each.next_offset for each in (first, second, third)] == [12, 15, 18]
    assert [each.address.position for each in (first, second, third)] == sorted(
        {first.address.position, second.address.position, third.address.position}
    )


@in_loop
async def test_a_limit_of_records_holds_for_what_is_left():
    log = await with_hidden([13])
    assert log.read(9, records_max=100).next_offset == 12
    assert log.read(9, records_max=1).next_offset == 12
    assert log.read(12, records_max=1).next_offset == 15
    assert log.read(18, records_max=6).next_offset == 24


@in_loop
async def test_a_batch_of_which_nothing_is_left_comes_empty_and_leads_on():
    log = await with_hidden([12, 13, 14])
    found = log.read(13)
    header = decode_header(found.data)
    assert (header.base_offset, header.last_offset, header.record_count) == (12, 14, 0)
    assert len(found.data) == HEADER_SIZE
    assert found.next_offset == 15


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@in_loop
async def test_headers_are_those_of_what_is_left_and_leave_no_offset_out(hidden):
    log = await with_hidden(hidden)
    found = list(log.headers(0))
    assert [header.base_offset for header, _ in found] == list(range(0, 36, 3))
    for header, batch in found:
        inside = range(header.base_offset, header.next_offset)
        assert header.record_count == len([there for there in inside if there not in hidden])
        assert [record.offset for record in read_records(batch)] == [
            there for there in inside if there not in hidden
        ]


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@in_loop
async def test_addresses_lead_from_batch_to_batch_and_show_nothing_hidden(hidden):
    log = await with_hidden(hidden)
    seen = []
    for segment in log.segments:
        address = Address(segment.base_offset, 0)
        while address.position < segment.size:
            found = log.read_at(address)
            assert found.address == address
            seen += [record.offset for record in read_all(found.data)]
            address = found.next_address
    assert seen == visible(hidden)
    with pytest.raises(InvalidAddress):
        log.read_at(Address(9, 10))


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
@in_loop
async def test_no_search_finds_what_is_hidden_and_each_finds_the_next_best(hidden):
    log = await with_hidden(hidden)
    there = visible(hidden)
    for offset in range(36):
        later = [o for o in there if stamp_of(o) >= stamp_of(offset)]
        wanted = (later[0], stamp_of(later[0])) if later else None
        assert log.find_timestamp(stamp_of(offset)) == wanted
    assert log.find_latest() == ((there[-1], stamp_of(there[-1])) if there else None)
    assert [record.offset for record in log.records_between(0, 10**6)] == there


@in_loop
async def test_the_latest_is_found_though_only_hidden_records_bear_the_greatest_time():
    _, _, log = await filled(3)
    for stamps in ([9_000, 5], [5, 7_000, 7_000], [8_000]):
        await log.append_records([Record(b"v", timestamp_ms=stamp) for stamp in stamps])
    assert log.find_latest() == (3, 9_000)
    hide(log, [3])
    assert log.find_latest() == (8, 8_000)
    hide(log, [8])
    assert log.find_latest() == (6, 7_000)
    hide(log, [6])
    assert log.find_latest() == (7, 7_000)
    assert log.find_timestamp(6_000) == (7, 7_000)


@in_loop
async def test_what_is_hidden_below_the_first_offset_makes_no_difference():
    log = await with_hidden([9, 10, 12])
    await log.delete_before(11)
    assert offsets(log) == [11, *range(13, 36)]
    assert log.find_timestamp(0) == (11, stamp_of(11))


@given(
    hidden=st.sets(st.integers(0, 35)),
    offset=st.integers(0, 35),
    size_max=st.integers(1, 1200),
    records_max=st.none() | st.integers(1, 12),
)
def test_whatever_is_hidden_one_read_shows_the_others(hidden, offset, size_max, records_max):
    @in_loop
    async def check() -> None:
        log = await with_hidden(sorted(hidden))
        found = log.read(offset, size_max=size_max, records_max=records_max)
        first = offset - offset % 3
        wanted = [there for there in range(first, found.next_offset) if there not in hidden]
        assert [record.offset for record in read_all(found.data)] == wanted
        assert found.next_offset > offset

    check()


# Damage.


@in_loop
async def test_damage_is_not_made_to_look_sound_by_leaving_records_out():
    disk, _, log = await filled()
    address = log.read(12, size_max=1).address
    path = f"{DIRECTORY}/{9:020d}.log"
    at = disk.content(path).index(value_of(13))
    assert at > address.position
    for segment in log.segments[:2]:
        assert isinstance(segment, SealedSegment)
        segment.forget()
    disk.flip_bit(path, at * 8)
    hide(log, [12])
    for is_checked in (True, False):
        with pytest.raises(DamagedRecords, match=f"byte {address.position}: batch checksum is"):
            log.read(12, is_checked=is_checked)
    with pytest.raises(DamagedRecords):
        log.find_timestamp(stamp_of(12))


# What is kept of it.


def test_a_batch_is_stripped_once_for_all_who_read_it():
    batch = build_batch([Record(b"a"), Record(b"b")], now_ms=1)
    stripped = StrippedBatchCache()
    first = stripped.get("/a.log", 0, batch, array("q", [0]))
    assert stripped.get("/a.log", 0, batch, array("q", [0])) is first
    assert [record.value for record in read_records(first)] == [b"b"]
    assert stripped.size == len(first)


@pytest.mark.parametrize(
    "other",
    [("/b.log", 0, [0]), ("/a.log", 61, [0]), ("/a.log", 0, [1]), ("/a.log", 0, [0, 1])],
    ids=["segment", "position", "record", "records"],
)
def test_what_is_kept_is_not_taken_for_something_else(other):
    batch = build_batch([Record(b"a"), Record(b"b")], now_ms=1)
    stripped = StrippedBatchCache()
    first = stripped.get("/a.log", 0, batch, array("q", [0]))
    path, position, deleted = other
    assert stripped.get(path, position, batch, array("q", deleted)) is not first


def test_what_is_kept_has_a_limit_and_the_least_recently_used_goes_first():
    batch = build_batch([Record(b"a" * 500), Record(b"b" * 400)], now_ms=1)
    stripped = StrippedBatchCache(1_600)
    first, second = (stripped.get("/a.log", n, batch, array("q", [0])) for n in range(2))
    assert stripped.get("/a.log", 0, batch, array("q", [0])) is first
    third = stripped.get("/a.log", 2, batch, array("q", [0]))
    assert len(first) + len(second) + len(third) <= 1_600 or stripped.size <= 1_600
    fourth = stripped.get("/a.log", 3, batch, array("q", [0]))
    assert stripped.size <= 1_600
    assert stripped.get("/a.log", 3, batch, array("q", [0])) is fourth
    assert stripped.get("/a.log", 1, batch, array("q", [0])) is not second


def test_what_is_larger_than_the_limit_is_not_kept():
    batch = build_batch([Record(b"a" * 500), Record(b"b" * 400)], now_ms=1)
    stripped = StrippedBatchCache(100)
    assert stripped.get("/a.log", 0, batch, array("q", [0]))
    assert stripped.size == 0


# Publishing.


@in_loop
async def test_masks_add_up_and_follow_their_segment_when_it_is_sealed_and_opened_again():
    _, _, log = await filled(30)
    hide(log, [28])
    hide(log, [29, 1])
    assert offsets(log) == [0, *range(2, 28)]
    assert (log.deleted_records, log.reclaimable_bytes) == (3, 240)
    await log.roll()
    assert offsets(log) == [0, *range(2, 28)]
    await fill(log, 9)
    assert offsets(log) == [0, *range(2, 28), *range(30, 39)]


@in_loop
async def test_masks_go_with_their_segment():
    log = await with_hidden([1, 10])
    await log.delete_before(9)
    assert list(log.masks) == [9]
    hide(log, [])
    log._state.mask_deleted({0: DeletedOffsets(array("q", [2]), 80)})
    assert list(log.masks) == [9], "the segment is not there any more"


@in_loop
async def test_what_a_rewrite_has_removed_is_masked_no_more_and_the_rest_still_is():
    _, store, log = await filled()
    assert await log.delete_keys(key=b"k1") == 7
    await log.roll()
    before = log.size_bytes
    assert await clean(store, log)
    assert log.size_bytes < before
    assert (log.deleted_records, log.masks) == (0, {})
    assert offsets(log) == [o for o in range(36) if key_of(o) != b"k1"]


def contents_of(*segments: SealedSegment) -> LogState:
    last = segments[-1]
    mark = LogPosition(last.next_offset, last.base_offset, last.size)
    return LogState("/p", segments, mark, start_offset=segments[0].base_offset)


@pytest.mark.parametrize(
    ("removed", "left", "size"),
    [([], [1, 4, 10], 240), ([1, 10], [4], 80), ([4, 7], [1, 10], 160), ([1, 4, 10], None, 0)],
)
@in_loop
async def test_what_takes_the_place_of_segments_inherits_what_was_not_removed(removed, left, size):
    _, _, log = await filled()
    await log.roll()
    old = log.sealed
    contents = contents_of(*old)
    contents.mask_deleted(
        {0: DeletedOffsets(array("q", [1]), 80), 9: DeletedOffsets(array("q", [10]), 80)}
    )
    contents.mask_deleted(
        {0: DeletedOffsets(array("q", [1, 4]), 160), 18: DeletedOffsets(array("q", [20]), 80)}
    )
    contents.replace_segment_run(old[:2], old[0], array("q", removed))
    assert contents.snapshot.bases == (0, 18, 27)
    found = contents.snapshot.masks.get(0)
    assert (list(found.offsets), found.bytes) == (left, size) if left else found is None
    assert list(contents.snapshot.masks[18].offsets) == [20]


@in_loop
async def test_where_the_log_ends_in_what_is_replaced_it_ends_in_what_takes_its_place():
    _, _, log = await filled()
    await log.roll()
    first, second, *rest = log.sealed
    contents = contents_of(first, second, *rest)
    new = SealedSegment(second.log_directory, replace(second.seal, next_offset=36, size=99), 1)
    contents.replace_segment_run([second, *rest], new, array("q"))
    mark = contents.snapshot.committed
    assert (mark.offset, mark.segment, mark.position) == (36, 9, 99)


# Files that go while someone reads.


class Interfering(SimulatedFilesystem):
    """Runs a callback just before a file is opened for reading."""

    interfere = None

    def open_readonly(self, path):
        if self.interfere and path.endswith(".log"):
            interfere, self.interfere = self.interfere, None
            interfere()
        return super().open_readonly(path)


async def about_to_be_replaced() -> tuple[Interfering, Log]:
    """A log that replaces all its segments at the moment when a reader opens the first."""
    disk = Interfering()
    store = make_store(disk, config=SMALL)
    log = await store.log("a")
    await fill(log, 36)
    await turns(50)
    await log.roll()
    stale = log._state.snapshot
    await log.delete_keys(key=b"k1")
    assert await clean(store, log)
    await turns(50)
    current = log._state.snapshot
    assert not set(current.segments) & set(stale.segments)
    for segment in (*stale.segments, *current.segments):
        segment.forget()

    def replace() -> None:
        log._state.snapshot = current

    log._state.snapshot = stale
    disk.interfere = replace
    return disk, log


LEFT = [offset for offset in range(36) if key_of(offset) != b"k1"]

QUESTIONS = {
    "read": lambda log: [r.offset for r in read_all(log.read(0, size_max=1).data)] == [0, 2],
    "records": lambda log: offsets(log) == LEFT,
    "find_timestamp": lambda log: log.find_timestamp(stamp_of(1)) == (2, stamp_of(2)),
    "find_latest": lambda log: log.find_latest() == (35, stamp_of(35)),
    "records_between": lambda log: [r.offset for r in log.records_between(0, 10**9)] == LEFT,
    "read_at": lambda log: log.read_at(Address(0, 0)).next_offset == 3,
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
@in_loop
async def test_a_reader_whose_file_was_replaced_looks_at_what_took_its_place(ask):
    disk, log = await about_to_be_replaced()
    assert ask(log)
    assert disk.interfere is None, "it did happen in the middle"


@in_loop
async def test_going_over_times_goes_on_where_it_was_when_files_are_replaced():
    _, store, log = await filled()
    await log.roll()
    old = log.sealed
    found = log.records_between(0, 10**9)
    seen = [next(found).offset for _ in range(10)]
    await log.delete_keys(key=b"k1")
    assert await clean(store, log)
    await turns(50)
    for segment in old:
        segment.forget()
    seen += [record.offset for record in found]
    expected = [*range(18), *(offset for offset in LEFT if offset >= 18)]
    assert seen == expected, "the segment at hand to its end, and then what took the others' place"


@in_loop
async def test_a_file_that_is_missing_and_was_not_replaced_is_an_error():
    _, _, log = await filled()
    for segment in log.sealed:
        remove_segment(segment.log_directory, segment)
    for ask in (
        lambda: log.read(0),
        lambda: log.find_timestamp(0),
        lambda: log.read_at(Address(0, 0)),
        lambda: list(log.records_between(0, 10**6)),
    ):
        with pytest.raises(StorageFailed, match=r"000\.log cannot be read"):
            ask()


@in_loop
async def test_a_reader_that_is_overtaken_again_and_again_gives_up_one_day():
    _, _, log = await filled()
    stale = log._state.snapshot
    for segment in log.sealed:
        remove_segment(segment.log_directory, segment)

    class Restless(LogState):
        """Every state is over when it is looked at again."""

        asked = 0

        @property
        def state(self):
            self.asked += 1
            return stale if self.asked % 2 else stale._replace(segments=(), bases=())

        @state.setter
        def state(self, _):
            raise AssertionError

    log._state.__class__ = Restless
    with pytest.raises(StorageFailed, match="cannot be read"):
        log.read(0)
    assert log._state.asked < 1000
