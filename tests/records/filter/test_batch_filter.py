"""The batch filter removes the records that the rules select, and changes nothing else."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from millstream.errors import BatchTooLarge, CorruptBatch
from millstream.records import opened_batch
from millstream.records.batch import TRANSACTIONAL_BIT, decode_header, split
from millstream.records.compression import Codec
from millstream.records.filter import batch_filter
from millstream.records.filter.batch_filter import (
    AbortedOffsets,
    FilterRules,
    filler_batches,
    filter_batches,
    remove_offsets,
)
from millstream.records.filter.keys.table import KeyTable
from millstream.records.iterate import read_records
from millstream.records.record import Record
from tests.records.samples import GOLDEN, GOLDEN_BODY, assemble

from .log_batches import (
    WAYS,
    batch_at,
    changed,
    filtering_by,
    headers,
    keyed,
    marker_at,
    offsets,
    read,
)

LOG = (
    batch_at(0, keyed("a", "b", "c"))
    + batch_at(3, keyed("a", None, "d"), codec=Codec.LZ4)
    + batch_at(6, keyed("b", "e"))
)


@pytest.fixture(params=WAYS, autouse=True)
def _way(request):
    with filtering_by(request.param):
        yield


def table_of(*logs: bytes, rules: FilterRules | None = None) -> KeyTable:
    table = KeyTable(memory_bytes_max=1 << 16, seed=1)
    for log in logs:
        table.add(log, rules or FilterRules())
    return table


# Rules about offsets and keys.


def test_nothing_goes_by_default_and_untouched_batches_are_one_view_of_the_data():
    filtered = filter_batches(LOG, FilterRules())
    assert (filtered.removed_records, filtered.changed_batches) == (0, 0)
    [piece] = filtered.pieces
    assert piece == LOG
    assert piece.obj is LOG


def test_no_data_is_filtered_to_nothing():
    assert filter_batches(b"", FilterRules(start_offset=9, deleted=array("q", [1]))) == ([], 0, 0)


def test_records_before_the_start_go():
    assert offsets(filter_batches(LOG, FilterRules(start_offset=4)).pieces) == [4, 5, 6, 7]
    assert filter_batches(LOG, FilterRules(start_offset=8)) == ([], 8, 3)


def test_deleted_records_go_and_others_stay():
    filtered = filter_batches(LOG, FilterRules(deleted=array("q", [-3, 1, 3, 4, 5, 7, 99])))
    assert offsets(filtered.pieces) == [0, 2, 6]
    assert (filtered.removed_records, filtered.changed_batches) == (5, 3)
    assert [header.base_offset for header in headers(filtered.pieces)] == [0, 6]


def test_records_go_of_whose_key_a_later_one_is_known_and_those_without_a_key_stay():
    filtered = filter_batches(LOG, FilterRules(key_table=table_of(LOG)))
    assert offsets(filtered.pieces) == [2, 3, 4, 5, 6, 7]
    assert (filtered.removed_records, filtered.changed_batches) == (2, 1)


def test_an_empty_table_needs_no_record_to_be_looked_at():
    packed = batch_at(0, keyed("a"), codec=Codec.ZSTD)
    broken = assemble(b"this cannot be unpacked", template=packed)
    assert filter_batches(broken, FilterRules(key_table=table_of())).pieces == [broken]


def test_only_an_earlier_offset_is_outdated():
    log = batch_at(10, keyed("a", "b"))
    assert filter_batches(log, FilterRules(key_table=table_of(log))).pieces == [log]
    assert filter_batches(log, FilterRules(key_table=table_of(batch_at(9, keyed("a"))))).pieces == [
        log
    ]
    assert offsets(
        filter_batches(log, FilterRules(key_table=table_of(batch_at(11, keyed("a"))))).pieces
    ) == [11]


def test_no_key_is_not_an_empty_key():
    log = batch_at(0, keyed(None, "", None)) + batch_at(3, keyed(""))
    assert offsets(filter_batches(log, FilterRules(key_table=table_of(log))).pieces) == [0, 2, 3]


def test_what_is_untouched_stays_a_view_around_what_is_changed():
    filtered = filter_batches(LOG, FilterRules(deleted=array("q", [4])))
    first, second, third = filtered.pieces
    assert first == batch_at(0, keyed("a", "b", "c"))
    assert third == batch_at(6, keyed("b", "e"))
    assert first.obj is third.obj is LOG
    assert offsets([second]) == [3, 5]


def test_a_batch_that_loses_records_keeps_its_place_and_its_producer():
    batch = batch_at(40, keyed("a", "b", "c"), producer_id=7, codec=Codec.GZIP)
    [piece] = filter_batches(batch, FilterRules(deleted=array("q", [40, 42]))).pieces
    before, after = decode_header(batch), decode_header(piece)
    assert after == before._replace(length=after.length, crc=after.crc, record_count=1)
    [record] = read_records(piece)
    assert record == read_records(batch)[1]


def test_a_batch_that_loses_all_records_goes_unless_its_producer_needs_it():
    batch = batch_at(40, keyed("a", "b"), producer_id=7, codec=Codec.SNAPPY)
    rules = {"deleted": array("q", [40, 41])}
    assert filter_batches(batch, FilterRules(**rules)) == ([], 2, 1)
    [piece] = filter_batches(batch, FilterRules(producers=frozenset({40}), **rules)).pieces
    before, after = decode_header(batch), decode_header(piece)
    assert len(piece) == 61
    assert after == before._replace(length=49, crc=after.crc, attributes=0, record_count=0)


def test_empty_batches_go_uncounted_unless_their_producer_needs_them():
    data = (
        batch_at(0, keyed("a")) + filler_batches(1, 900, leader_epoch=4) + batch_at(900, keyed("b"))
    )
    filtered = filter_batches(data, FilterRules())
    assert offsets(filtered.pieces) == [0, 900]
    assert [header.record_count for header in headers(filtered.pieces)] == [1, 1]
    assert (filtered.removed_records, filtered.changed_batches) == (0, 0)
    assert filter_batches(data, FilterRules(producers=frozenset({1}))).pieces == [data]


def test_a_batch_that_was_filtered_before_is_filtered_again():
    [once] = filter_batches(
        batch_at(0, keyed(*"abcdef")), FilterRules(deleted=array("q", [0, 2, 5]))
    ).pieces
    assert offsets([once]) == [1, 3, 4]
    rules = FilterRules(deleted=array("q", [2, 3]), key_table=table_of(batch_at(50, keyed("b"))))
    [twice] = filter_batches(once, rules).pieces
    assert offsets([twice]) == [4]
    assert decode_header(twice).last_offset_delta == 5


# Transactions.

TRANSACTIONS = (
    batch_at(0, keyed("a", "b"), producer_id=1, is_transactional=True)
    + batch_at(2, keyed("c"), producer_id=2, is_transactional=True, codec=Codec.ZSTD)
    + marker_at(3, producer_id=2, is_commit=True)
    + batch_at(4, keyed("d"), producer_id=1, is_transactional=True)
    + marker_at(5, producer_id=1, is_commit=False)
    + batch_at(6, keyed("e"), producer_id=1, is_transactional=True)
    + marker_at(7, producer_id=1, is_commit=True)
    + batch_at(8, keyed("f"), producer_id=1)
)
ABORTED = (AbortedOffsets(producer_id=1, first_offset=0, last_offset=5),)


def test_transactions_are_left_as_they_are_unless_they_are_settled():
    assert filter_batches(TRANSACTIONS, FilterRules()).pieces == [TRANSACTIONS]


def test_aborted_records_go_committed_ones_stay_and_commit_markers_go():
    filtered = filter_batches(TRANSACTIONS, FilterRules(aborted=ABORTED))
    assert offsets(filtered.pieces) == [2, 5, 6, 8]
    assert (filtered.removed_records, filtered.changed_batches) == (5, 6)
    kinds = [(h.base_offset, h.is_transactional, h.is_control) for h in headers(filtered.pieces)]
    assert kinds == [(2, False, False), (5, True, True), (6, False, False), (8, False, False)]


def test_a_committed_batch_loses_its_bit_and_keeps_its_body_to_the_byte():
    for tombstone_ms in (None, 1):  # Without it, the records are not even decoded.
        filtered = filter_batches(
            TRANSACTIONS, FilterRules(aborted=ABORTED, tombstone_ms=tombstone_ms)
        )
        _, original = list(split(TRANSACTIONS))[1]
        piece = filtered.pieces[0]
        attributes = decode_header(original).attributes & ~TRANSACTIONAL_BIT
        assert piece == changed(bytes(original), attributes=attributes)


def test_abort_markers_stay_whole():
    marker = marker_at(5, producer_id=1, is_commit=False)
    assert filter_batches(marker, FilterRules(aborted=ABORTED, start_offset=9)).pieces == [marker]


def test_markers_and_batches_that_tell_of_a_producer_stay():
    rules = FilterRules(aborted=ABORTED, producers=frozenset({3, 4, 7}))
    filtered = filter_batches(TRANSACTIONS, rules)
    assert offsets(filtered.pieces) == [2, 3, 5, 6, 7, 8]
    kept = {header.base_offset: header for header in headers(filtered.pieces)}
    assert kept[3].is_transactional
    assert kept[7].record_count == 1
    assert kept[4].record_count == 0
    assert not kept[4].is_transactional
    assert kept[4].producer_id == 1
    assert kept[4].base_sequence == 70


def test_only_transactional_batches_of_that_producer_between_the_offsets_are_aborted():
    log = b"".join(
        batch_at(offset, keyed("k"), producer_id=producer, is_transactional=kind)
        for offset, producer, kind in [
            (9, 1, True),
            (10, 1, True),
            (11, 2, True),
            (12, 1, False),
            (13, 1, True),
            (14, 1, True),
            (20, 1, True),
            (30, 1, True),
        ]
    )
    aborted = [
        AbortedOffsets(producer_id=1, first_offset=20, last_offset=25),
        AbortedOffsets(producer_id=1, first_offset=10, last_offset=13),
    ]
    assert offsets(filter_batches(log, FilterRules(aborted=aborted)).pieces) == [9, 11, 12, 14, 30]


def test_an_empty_transactional_header_loses_its_bit_once_it_is_settled():
    batch = batch_at(4, keyed("a"), producer_id=1, is_transactional=True)
    emptied = remove_offsets(batch, array("q", [4]))
    assert decode_header(emptied).is_transactional
    [piece] = filter_batches(emptied, FilterRules(aborted=(), producers=frozenset({4}))).pieces
    assert not decode_header(piece).is_transactional
    assert filter_batches(piece, FilterRules(aborted=(), producers=frozenset({4}))).pieces == [
        piece
    ]


def test_a_control_batch_of_another_kind_stays():
    strange = changed(marker_at(3, producer_id=1, is_commit=True), record_count=0)
    assert filter_batches(strange, FilterRules(aborted=())).pieces == [strange]


# Damage.


@pytest.mark.parametrize("position", [17, 22, 60, 70])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_batch_that_does_not_sum_up_is_refused_whatever_the_rules(number, position):
    batches = [bytearray(batch) for _, batch in split(LOG)]
    batches[number][position] ^= 1
    data = b"".join(batches)
    for rules in (
        FilterRules(),
        FilterRules(start_offset=100),
        FilterRules(deleted=array("q", range(9))),
    ):
        with pytest.raises(CorruptBatch):
            filter_batches(data, rules)


def test_data_that_ends_inside_a_batch_is_refused():
    with pytest.raises(CorruptBatch):
        filter_batches(LOG[:-1], FilterRules())


def broken_record(**fields: int) -> bytes:
    return assemble(GOLDEN_BODY[:-1] + b"\x01", **fields)


def not_unpackable(**fields: int) -> bytes:
    return assemble(b"nonsense", **{"attributes": Codec.GZIP, **fields})


def claims_too_many(**fields: int) -> bytes:
    return assemble(GOLDEN_BODY, **{"record_count": 9, "last_offset_delta": 20, **fields})


def has_bytes_but_no_records(**fields: int) -> bytes:
    return assemble(GOLDEN_BODY, **{"record_count": 0, **fields})


@pytest.mark.parametrize(
    "broken", [broken_record, not_unpackable, claims_too_many, has_bytes_but_no_records]
)
def test_a_batch_whose_records_cannot_be_read_is_kept_as_it_is_among_others(broken):
    batch = broken(base_offset=3)
    data = batch_at(0, keyed("a", "b", "c")) + batch + batch_at(40, keyed("a", "b"))
    deleted = array("q", [2, 3, 41])
    latest = table_of(data, rules=FilterRules(deleted=deleted))
    filtered = filter_batches(data, FilterRules(key_table=latest, deleted=deleted, tombstone_ms=5))
    assert filtered.pieces[-2] == batch
    assert offsets(filtered.pieces[:-2] + filtered.pieces[-1:]) == [1, 40]
    assert filtered.removed_records == 3
    with pytest.raises(CorruptBatch):
        remove_offsets(batch, array("q", [3]))


def test_unreadable_batches_in_a_row_are_all_kept():
    broken = [broken_record(base_offset=3), broken_record(base_offset=5)]
    data = b"".join((batch_at(0, keyed(*"abc")), *broken, batch_at(7, keyed(*"abc"))))
    filtered = filter_batches(data, FilterRules(deleted=array("q", [1, 3, 4, 5, 6, 9])))
    first, middle, last = filtered.pieces
    assert middle == b"".join(broken)
    assert offsets([first, last]) == [0, 2, 7, 8]


def test_an_unreadable_batch_goes_where_all_of_it_goes():
    assert filter_batches(broken_record(base_offset=3), FilterRules(start_offset=5)) == ([], 2, 1)


def test_an_unreadable_committed_batch_loses_its_bit_and_nothing_else():
    batch = broken_record(attributes=TRANSACTIONAL_BIT, producer_id=5)
    for rules in (FilterRules(aborted=()), FilterRules(aborted=(), tombstone_ms=1)):
        filtered = filter_batches(batch, rules)
        assert filtered.pieces == [changed(batch, attributes=0)]
        assert filtered.removed_records == 0


def test_what_does_not_fit_a_batch_is_refused_where_records_go(monkeypatch):
    batch = batch_at(0, [Record(bytes(900), b"a"), Record(None, b"b")], codec=Codec.SNAPPY)
    monkeypatch.setattr(batch_filter, "BATCH_SIZE_MAX", 70)
    with pytest.raises(BatchTooLarge, match=r"offset 0 must have at most 70 bytes .*, got \d+"):
        filter_batches(batch, FilterRules(deleted=array("q", [0])))
    with pytest.raises(BatchTooLarge, match="at most 70 bytes"):
        remove_offsets(batch, array("q", [0]))
    assert filter_batches(batch, FilterRules(now_ms=1, tombstone_ms=1)).pieces == [batch]


# Removal of single offsets.


def test_stripping_matches_what_was_worked_out_by_hand():
    first = "0000000000000000 00000042 ffffffff 02 %s 0000 00000001"
    second = "00000000000003e8 %s ffffffffffffffff ffff ffffffff 00000001"
    kept_first = assemble(GOLDEN_BODY[:17], record_count=1)
    kept_second = assemble(GOLDEN_BODY[17:], record_count=1, max_timestamp=990)
    assert remove_offsets(GOLDEN, array("q", [1])) == kept_first
    assert remove_offsets(GOLDEN, array("q", [0])) == kept_second
    prefix = bytes.fromhex(first % kept_first[17:21].hex())
    assert kept_first[:27] == prefix
    assert kept_first[27:61] == bytes.fromhex(second % "00000000000003e8")
    assert kept_second[27:61] == bytes.fromhex(second % "00000000000003de")


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_a_stripped_batch_is_packed_as_before(codec):
    records = [Record(b"v%d" % n, b"k%d" % n, (("h", None),)) for n in range(30)]
    batch = batch_at(1000, records, codec=codec)
    stripped = remove_offsets(batch, array("q", [7, 1000, 1013, 1029, 5000]))
    assert decode_header(stripped).codec == codec
    gone = {1000, 1013, 1029}
    assert read([stripped]) == [r for r in read([batch]) if r.offset not in gone]


def test_nothing_to_strip_gives_the_same_bytes():
    for deleted in (array("q"), array("q", [-1, 2, 3])):
        assert remove_offsets(GOLDEN, deleted) == GOLDEN
    with_gap = remove_offsets(GOLDEN, array("q", [0]))
    assert remove_offsets(memoryview(with_gap), array("q", [0])) == with_gap


def test_a_batch_without_any_record_keeps_all_else():
    batch = batch_at(
        5, keyed("a", "b"), producer_id=4, is_transactional=True, codec=Codec.ZSTD, append_time=77
    )
    stripped = remove_offsets(batch, array("q", [5, 6]))
    before, after = decode_header(batch), decode_header(stripped)
    assert len(stripped) == 61
    assert after == before._replace(
        length=49, crc=after.crc, attributes=before.attributes & ~7, record_count=0
    )
    assert read([stripped]) == []
    assert remove_offsets(stripped, array("q", [5, 6])) == stripped


def test_log_append_time_stays_that_of_the_batch():
    batch = batch_at(0, [Record(b"", timestamp_ms=at) for at in (1, 9, 5)], append_time=3)
    stripped = remove_offsets(batch, array("q", [1]))
    assert decode_header(stripped).max_timestamp == 3
    assert [record.timestamp_ms for record in read([stripped])] == [3, 3]


def test_the_greatest_timestamp_is_that_of_what_is_left():
    batch = batch_at(0, [Record(b"", timestamp_ms=at) for at in (5, -9, 7, -20)])
    for deleted, expected in (([2], 5), ([0, 2], -9), ([0, 1, 2], -20), ([3], 7)):
        stripped = remove_offsets(batch, array("q", deleted))
        assert decode_header(stripped).max_timestamp == expected
        assert decode_header(stripped).base_timestamp == 5


def test_stripping_checks_the_sum_first():
    damaged = bytearray(GOLDEN)
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch, match="batch checksum is"):
        remove_offsets(damaged, array("q", [0]))


def test_markers_cannot_be_stripped():
    marker = marker_at(3, producer_id=1, is_commit=True)
    assert remove_offsets(marker, array("q", [3])) == marker


# Fillers.


def test_a_filler_matches_what_was_worked_out_by_hand():
    assert filler_batches(3, 11, leader_epoch=5) == assemble(
        b"",
        base_offset=3,
        leader_epoch=5,
        last_offset_delta=7,
        base_timestamp=-1,
        max_timestamp=-1,
        record_count=0,
    )
    assert filler_batches(3, 3, leader_epoch=5) == b""


@pytest.mark.parametrize(
    ("offsets", "deltas"),
    [
        (1, [0]),
        (2**31, [2**31 - 1]),
        (2**31 + 1, [2**31 - 1, 0]),
        (2**33 - 3, [2**31 - 1] * 3 + [2**31 - 4]),
    ],
)
def test_a_filler_covers_any_number_of_offsets(offsets, deltas):
    found = headers([filler_batches(10, 10 + offsets, leader_epoch=0)])
    assert [header.last_offset_delta for header in found] == deltas
    assert found[0].base_offset == 10
    assert found[-1].next_offset == 10 + offsets
    for before, after in pairwise(found):
        assert after.base_offset == before.next_offset


# Many batches.


def test_many_batches_are_filtered_in_groups_as_in_one(monkeypatch):
    data = b"".join(
        batch_at(10 * n, keyed(*"abcdefghij"), codec=Codec(n % 5), producer_id=n % 3 - 1)
        for n in range(40)
    )
    rules = FilterRules(
        deleted=array("q", range(0, 400, 3)),
        key_table=table_of(data),
        producers=frozenset({0, 100}),
    )
    whole = filter_batches(data, rules)
    monkeypatch.setattr(opened_batch, "_GROUP_SIZE_MAX", 300)
    assert filter_batches(data, rules) == whole
    assert offsets(whole.pieces) == [n for n in range(390, 400) if n % 3]


@pytest.mark.parametrize("count", [63, 64, 65, 128, 200])
def test_large_batches_are_filtered_like_small_ones(count):
    keys = [None if n % 9 == 0 else f"key {n * n % 31}" for n in range(2 * count)]
    data = batch_at(0, keyed(*keys[:count])) + batch_at(count, keyed(*keys[count:]))
    latest = {key: n for n, key in enumerate(keys)}
    expected = [n for n, key in enumerate(keys) if key is None or latest[key] == n]
    assert offsets(filter_batches(data, FilterRules(key_table=table_of(data))).pieces) == expected
