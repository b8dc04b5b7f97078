"""Tombstones stay for a while after their first filter pass, then they are removed."""

from __future__ import annotations

from array import array

import pytest

from millstream.records.batch import HORIZON_BIT, decode_header
from millstream.records.compression import Codec
from millstream.records.filter import remaining
from millstream.records.filter.batch_filter import FilterRules, filter_batches, remove_offsets
from millstream.records.filter.keys.table import KeyTable
from millstream.records.iterate import read_records
from millstream.records.record import Record
from tests.records.samples import GOLDEN, NOW, assemble

from .log_batches import WAYS, batch_at, filtering_by, keyed, offsets, read, tombstone

DAY = 86_400_000
FIRST = FilterRules(now_ms=NOW, tombstone_ms=DAY)


@pytest.fixture(params=WAYS, autouse=True)
def _way(request):
    with filtering_by(request.param):
        yield


def at(now_ms: int) -> FilterRules:
    return FilterRules(now_ms=now_ms, tombstone_ms=DAY)


MIXED = [
    Record(b"value", b"a", (("h", b"v"), ("n", None)), timestamp_ms=NOW - 5),
    tombstone("b", NOW - 700),
    Record(None, None, timestamp_ms=NOW + 10),
    Record(b"", b"", timestamp_ms=-3),
    tombstone("c", NOW + DAY),
]


def test_the_first_filter_pass_sets_the_horizon_computed_by_hand():
    [piece] = filter_batches(batch_at(7, [Record(None, b"k", timestamp_ms=1000)]), at(200)).pieces
    # The delta is 1000 - (200 + a day) = -86399200, which folds to 172798399, which has 28 bits.
    body = bytes.fromhex("14 00 bfe3b252 00 02 6b 01 00")
    assert piece[61:] == body
    header = decode_header(piece)
    assert piece[21:23] == bytes.fromhex("0040")
    assert header.has_horizon
    assert (header.base_timestamp, header.max_timestamp) == (200 + DAY, 1000)


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("append_time", [None, NOW + 3])
def test_every_record_keeps_its_timestamp_and_all_else(codec, append_time):
    batch = batch_at(50, MIXED, codec=codec, append_time=append_time, producer_id=3)
    [piece] = filter_batches(batch, FIRST).pieces
    assert read([piece]) == read([batch])
    before, after = decode_header(batch), decode_header(piece)
    assert after == before._replace(
        length=after.length,
        crc=after.crc,
        attributes=before.attributes | HORIZON_BIT,
        base_timestamp=NOW + DAY,
    )


@pytest.mark.parametrize("append_time", [None, 12])
def test_tombstones_stay_before_the_horizon_and_go_from_it_on(append_time):
    [dated] = filter_batches(batch_at(50, MIXED, append_time=append_time), FIRST).pieces
    for now_ms in (0, NOW, NOW + DAY - 1):
        assert filter_batches(dated, at(now_ms)).pieces == [dated]
    filtered = filter_batches(dated, at(NOW + DAY))
    assert offsets(filtered.pieces) == [50, 52, 53]
    assert filtered.removed_records == 2
    assert read(filtered.pieces) == [r for r in read([dated]) if r.offset not in {51, 54}]
    assert filter_batches(filtered.pieces[0], at(NOW + 9 * DAY)).pieces == filtered.pieces


def test_a_horizon_once_set_does_not_move():
    [dated] = filter_batches(batch_at(0, MIXED), FIRST).pieces
    later = FilterRules(now_ms=NOW + DAY // 2, tombstone_ms=10 * DAY)
    assert filter_batches(dated, later).pieces == [dated]


def test_tombstones_stay_untouched_where_no_time_is_given():
    [dated] = filter_batches(batch_at(0, MIXED), FIRST).pieces
    rules = FilterRules(now_ms=NOW + 9 * DAY)
    assert filter_batches(dated, rules).pieces == [dated]
    assert filter_batches(batch_at(0, MIXED), rules).pieces == [batch_at(0, MIXED)]


def test_a_batch_without_tombstones_gets_no_horizon():
    for records in (keyed("a", None), [Record(None, None)], [Record(b"", b"a")]):
        batch = batch_at(0, records)
        filtered = filter_batches(batch, FIRST)
        assert (filtered.pieces, filtered.changed_batches) == ([batch], 0)


def test_a_batch_whose_tombstones_go_for_other_reasons_gets_no_horizon():
    [piece] = filter_batches(
        batch_at(0, MIXED), FilterRules(now_ms=NOW, tombstone_ms=0, start_offset=2)
    ).pieces
    assert decode_header(piece).has_horizon
    rules = FilterRules(now_ms=NOW, tombstone_ms=DAY, deleted=array("q", [1, 4]))
    [piece] = filter_batches(batch_at(0, MIXED), rules).pieces
    assert not decode_header(piece).has_horizon
    assert decode_header(piece).base_timestamp == NOW - 5


def test_outdated_tombstones_and_values_go_before_any_horizon():
    log = batch_at(0, [*keyed("a"), tombstone("a"), tombstone("b")]) + batch_at(3, keyed("b"))
    table = KeyTable(memory_bytes_max=1 << 14, seed=0)
    table.add(log, FilterRules())
    filtered = filter_batches(log, FilterRules(key_table=table, now_ms=NOW, tombstone_ms=DAY))
    assert offsets(filtered.pieces) == [1, 3]
    assert decode_header(filtered.pieces[0]).has_horizon


def test_a_tombstone_time_of_zero_removes_them_in_the_second_pass():
    rules = FilterRules(now_ms=NOW, tombstone_ms=0)
    [dated] = filter_batches(batch_at(0, MIXED), rules).pieces
    assert len(read_records(dated)) == 5
    assert offsets(filter_batches(dated, rules).pieces) == [0, 2, 3]


def test_tombstones_may_be_kept_forever():
    [dated] = filter_batches(
        batch_at(0, MIXED), FilterRules(now_ms=NOW, tombstone_ms=2**63 - 1)
    ).pieces
    assert decode_header(dated).has_horizon
    assert read([dated]) == read([batch_at(0, MIXED)])
    assert filter_batches(dated, FilterRules(now_ms=2**61, tombstone_ms=2**63 - 1)).pieces == [
        dated
    ]


@pytest.mark.parametrize("timestamps", [[-(2**63)], [0, -(2**63)], [-(2**62), -(2**62) - 2**61]])
def test_timestamps_too_far_away_for_a_horizon_keep_the_batch_as_it_is(timestamps):
    batch = batch_at(0, [tombstone("k", timestamp_ms) for timestamp_ms in timestamps])
    rules = FilterRules(now_ms=NOW, tombstone_ms=2**62)
    assert filter_batches(batch, rules).pieces == [batch]
    assert offsets(filter_batches(batch + batch_at(9, keyed("x")), rules).pieces)[-1] == 9


def test_the_farthest_timestamp_that_fits_gets_a_horizon():
    batch = batch_at(0, [tombstone("k", -(2**63) + NOW + DAY)])
    [piece] = filter_batches(batch, FIRST).pieces
    assert decode_header(piece).has_horizon
    assert read([piece]) == read([batch])
    too_far = batch_at(0, [tombstone("k", 0), tombstone("k", -(2**63) + NOW + DAY - 1)])
    assert filter_batches(too_far, FIRST).pieces == [too_far]


def test_a_batch_that_a_horizon_would_make_too_large_gets_none(monkeypatch):
    batch = batch_at(0, [tombstone("k") for _ in range(50)])
    [dated] = filter_batches(batch, FIRST).pieces
    monkeypatch.setattr(remaining, "BATCH_SIZE_MAX", len(dated))
    assert filter_batches(batch, FIRST).pieces == [dated]
    monkeypatch.setattr(remaining, "BATCH_SIZE_MAX", len(dated) - 1)
    assert filter_batches(batch, FIRST).pieces == [batch]
    rules = FilterRules(now_ms=NOW, tombstone_ms=DAY, start_offset=10)
    assert decode_header(filter_batches(batch, rules).pieces[0]).has_horizon


def test_a_packed_body_may_grow_to_what_a_body_may_have(monkeypatch):
    batch = batch_at(0, [tombstone("k") for _ in range(50)], codec=Codec.GZIP)
    [dated] = filter_batches(batch, FIRST).pieces
    size = sum(13 if n >= 64 else 12 for n in range(50)) + 50
    monkeypatch.setattr(remaining, "BODY_SIZE_MAX", size)
    fits = filter_batches(batch, FIRST).pieces == [dated]
    monkeypatch.setattr(remaining, "BODY_SIZE_MAX", 100)
    assert filter_batches(batch, FIRST).pieces == [batch]
    assert fits


def test_stripping_keeps_a_horizon():
    [dated] = filter_batches(batch_at(0, MIXED), FIRST).pieces
    stripped = remove_offsets(dated, array("q", [0, 1]))
    assert decode_header(stripped).has_horizon
    assert decode_header(stripped).base_timestamp == NOW + DAY
    assert read([stripped]) == read([dated])[2:]
    emptied = remove_offsets(dated, array("q", range(5)))
    assert decode_header(emptied).attributes == HORIZON_BIT


def test_numbers_with_redundant_bytes_are_read_and_written_again():
    batch = batch_at(0, [tombstone("k", 5)])
    # Length and delta in two bytes where one would do.
    padded = bytes.fromhex("9000 00 8000 00 02 6b 01 00")
    padded_batch = assemble(padded, template=batch)
    assert filter_batches(padded_batch, FIRST).pieces == filter_batches(batch, FIRST).pieces
    pair = assemble(padded + bytes.fromhex("0e 00 00 02 02 6b 01 00"), template=GOLDEN)
    assert remove_offsets(pair, array("q", [1])) == assemble(padded, record_count=1)
