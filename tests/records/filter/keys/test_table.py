"""The key table has the latest offset of every key, in bounded memory."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records import opened_batch
from millstream.records.compression import Codec
from millstream.records.filter.batch_filter import AbortedOffsets, FilterRules, filler_batches
from millstream.records.filter.keys import memory as key_memory
from millstream.records.filter.keys.memory import FIRST_POSITION
from millstream.records.filter.keys.table import KeyTable
from millstream.records.record import Record
from tests.records.filter.log_batches import (
    WAYS,
    batch_at,
    filtering_by,
    keyed,
    marker_at,
    tombstone,
)
from tests.records.samples import GOLDEN_BODY, assemble

MB = 1 << 20


@pytest.fixture(params=WAYS)
def way(request):
    with filtering_by(request.param):
        yield request.param


def table(memory_bytes_max: int = MB, seed: int = 1) -> KeyTable:
    return KeyTable(memory_bytes_max=memory_bytes_max, seed=seed)


def numbered(first: int, count: int, size: int = 8) -> bytes:
    """A batch of `count` records, each with a key of its own."""
    return batch_at(first, [Record(b"", b"%0*d" % (size, first + n)) for n in range(count)])


def contents(found: KeyTable, keys) -> dict[bytes, int]:
    return {key: found.find(key) for key in keys if found.find(key) >= 0}


@pytest.mark.usefixtures("way")
def test_the_latest_offset_of_each_key_is_known():
    found = table()
    assert found.count == 0
    assert found.find(b"a") == -1
    log = batch_at(0, keyed("a", "b", None, "a")) + batch_at(4, [tombstone("b"), *keyed("", "c")])
    assert found.add(log, FilterRules()) == 7
    assert found.count == 4
    assert contents(found, [b"a", b"b", b"", b"c", b"d"]) == {b"a": 3, b"b": 4, b"": 5, b"c": 6}


@pytest.mark.usefixtures("way")
def test_a_later_call_adds_to_what_is_known_and_an_earlier_offset_changes_nothing():
    found = table()
    found.add(batch_at(10, keyed("a", "b")), FilterRules())
    assert found.add(batch_at(20, keyed("b", "c")), FilterRules()) == 22
    found.add(batch_at(5, keyed("a", "b", "c")), FilterRules())
    assert contents(found, [b"a", b"b", b"c"]) == {b"a": 10, b"b": 20, b"c": 21}


@pytest.mark.usefixtures("way")
def test_records_that_the_rules_remove_are_left_out():
    log = (
        batch_at(0, keyed("a", "b", "c"))
        + batch_at(3, keyed("d"), producer_id=1, is_transactional=True)
        + batch_at(4, keyed("e"), producer_id=2, is_transactional=True)
        + marker_at(5, producer_id=1, is_commit=False)
        + marker_at(6, producer_id=2, is_commit=True)
        + batch_at(7, keyed("a", "b", "c", "d"))
    )
    rules = FilterRules(
        start_offset=1,
        deleted=array("q", [2, 8, 10]),
        aborted=[AbortedOffsets(producer_id=1, first_offset=3, last_offset=5)],
    )
    found = table()
    assert found.add(log, rules) == 11
    assert found.count == 4
    assert contents(found, [b"a", b"b", b"c", b"d", b"e"]) == {b"a": 7, b"b": 1, b"c": 9, b"e": 4}


@pytest.mark.usefixtures("way")
def test_batches_that_cannot_be_read_or_are_empty_are_skipped_and_counted_as_seen():
    broken = assemble(GOLDEN_BODY[:-1] + b"\x01", base_offset=3)
    packed = assemble(b"nonsense", attributes=Codec.ZSTD, base_offset=9)
    found = table()
    end = found.add(
        batch_at(0, keyed("a")) + broken + batch_at(5, keyed("b")) + packed, FilterRules()
    )
    assert end == 11
    assert found.add(filler_batches(11, 90, leader_epoch=0), FilterRules()) == 90
    assert found.count == 2
    assert found.find(b"k") == -1
    assert found.add(b"", FilterRules(start_offset=3)) == 3


@pytest.mark.usefixtures("way")
def test_a_batch_that_does_not_sum_up_is_refused():
    damaged = bytearray(batch_at(0, keyed("a")) + batch_at(1, keyed("b")))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch, match="batch checksum is"):
        table().add(damaged, FilterRules())


def test_keys_with_the_same_hash_are_told_apart_by_their_bytes(monkeypatch):
    monkeypatch.setattr(key_memory, "siphash", lambda key, seed: 77)
    found = table()
    keys = ["", "\0", "\0" * 8, "a", "a\0", "abcdefgh", "abcdefgh\0", "abcdefgi", "abcdefghi"]
    found.add(batch_at(0, keyed(*keys)), FilterRules())
    found.add(batch_at(100, keyed("a\0")), FilterRules())
    expected = {key.encode(): number for number, key in enumerate(keys)} | {b"a\0": 100}
    assert contents(found, expected) == expected


def test_kernels_tell_keys_apart_whose_slots_say_the_same():
    # Two keys with one hash are hard to find, so one is put into the slot of the other.
    pairs = ((b"abcdefgh", b"abcdefgi"), (b"a", b"a\0"), (b"x" * 9, b"x" * 8 + b"y"))
    with filtering_by("kernels"):
        for first, second in pairs:
            found = table()
            found.add(batch_at(0, [Record(b"", first)]), FilterRules())
            words = key_memory.key_words(second)
            place = FIRST_POSITION
            found.memory.arena[place + 1] = len(second)
            found.memory.arena[place + 2 : place + 2 + len(words)] = array("q", words)
            found.add(batch_at(5, [Record(b"", first)]), FilterRules())
            assert found.count == 2
            assert found.memory.arena[place] == 0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=60), max_size=5
    ),
    st.integers(0, 2**128 - 1),
)
def test_both_ways_fill_the_same_memory_with_what_a_dictionary_would_hold(batches, seed):
    expected, tables, end = {}, [], 0
    for keys in batches:
        expected |= {key: end + n for n, key in enumerate(keys) if key is not None}
        end += len(keys)
    for way in WAYS:
        found, offset = table(1 << 15, seed), 0
        with filtering_by(way):
            for keys in batches:
                offset = found.add(
                    batch_at(offset, [Record(b"", key) for key in keys]), FilterRules()
                )
        tables.append(found)
        assert offset == end
        assert contents(found, expected) == expected
        assert found.count == len(expected)
    first, second = (found.memory for found in tables)
    assert first.slots == second.slots
    assert first.arena[: first.end] == second.arena[: second.end]


def test_both_ways_may_take_turns():
    found = table()
    for turn in range(8):
        with filtering_by(WAYS[turn % 2]):
            found.add(numbered(100 * turn, 100), FilterRules())
            found.add(batch_at(1000 + turn, keyed("x")), FilterRules())
    assert found.count == 801
    assert found.find(b"x") == 1007
    assert all(found.find(b"%08d" % n) == n for n in range(800))


@pytest.mark.usefixtures("way")
def test_a_table_grows_and_forgets_nothing():
    found = table()
    for first in range(0, 3000, 300):
        assert found.add(numbered(first, 300, size=5 + first // 300), FilterRules()) == first + 300
    assert found.count == 3000
    assert len(found.memory.slots) == 4096
    assert all(found.find(b"%0*d" % (5 + n // 300, n)) == n for n in range(3000))


@pytest.mark.parametrize("memory", [1000, 5000, 40_000, 100_000])
@pytest.mark.parametrize("size", [8, 90])
def test_a_full_table_stops_at_the_start_of_a_batch_within_its_memory(memory, size):
    stops = set()
    for way in WAYS:
        with filtering_by(way):
            found = table(memory)
            log = b"".join(numbered(first, 10, size) for first in range(0, 3000, 10))
            stops.add(stop := found.add(log, FilterRules()))
        assert stop < 3000
        assert stop % 10 == 0
        assert stop <= found.count < stop + 10
        assert 8 * (len(found.memory.slots) + found.memory.end) <= memory
        assert all(found.find(b"%0*d" % (size, n)) == n for n in range(found.count))
    assert len(stops) == 1


@pytest.mark.usefixtures("way")
def test_a_table_grows_within_its_memory():
    # Sixty-four slots are enough for 48 keys, which have 3 words each; then there are 128.
    words = 128 + FIRST_POSITION + 49 * 3
    assert table(8 * words).add(numbered(0, 48) + numbered(48, 1), FilterRules()) == 49
    assert table(8 * words - 8).add(numbered(0, 48) + numbered(48, 1), FilterRules()) == 48


@pytest.mark.usefixtures("way")
def test_a_full_table_still_takes_note_of_the_keys_that_it_has():
    found = table(1000)
    stop = found.add(b"".join(numbered(n, 1) for n in range(90)), FilterRules())
    assert 0 < stop < 90
    assert found.add(batch_at(500, [Record(b"", b"%08d" % 0)]), FilterRules()) == 501
    assert found.find(b"%08d" % 0) == 500
    assert found.add(numbered(600, 1), FilterRules()) == 600


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("memory", [0, 8, 511, 520])
def test_a_table_without_memory_takes_note_of_nothing(memory):
    found = table(memory)
    assert found.add(numbered(7, 3), FilterRules()) == 7
    assert found.add(batch_at(7, keyed(None)), FilterRules()) == 8
    assert found.count == 0


@pytest.mark.usefixtures("way")
def test_many_batches_are_noted_in_groups_as_in_one(monkeypatch):
    log = b"".join(
        batch_at(10 * n, keyed(*(f"{n * i % 83}" for i in range(10))), codec=Codec(n % 5))
        for n in range(40)
    )
    whole = table()
    whole.add(log, FilterRules())
    monkeypatch.setattr(opened_batch, "_GROUP_SIZE_MAX", 300)
    parts = table()
    assert parts.add(log, FilterRules()) == 400
    assert parts.memory.arena[: parts.memory.end] == whole.memory.arena[: whole.memory.end]


def test_the_seed_decides_where_keys_lie():
    slots = set()
    for seed in (0, 1, 2**64, 2**127):
        found = table(seed=seed)
        found.add(numbered(0, 20), FilterRules())
        slots.add(found.memory.slots.tobytes())
    assert len(slots) == 4
