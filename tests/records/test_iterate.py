"""Batch to records, in plain Python."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.batch import CONTROL_BIT, TIMESTAMP_TYPE_BIT, stamp
from millstream.records.build import build_batch
from millstream.records.compression import Codec, compress
from millstream.records.iterate import first_offset_at, read_all, read_records
from millstream.records.record import Record, StoredRecord

from .samples import GOLDEN, GOLDEN_BODY, GOLDEN_RECORDS, NOW, assemble, record_lists, stored


def one_record(fields: str, **header: int) -> bytes:
    """Return a batch of one record, with fields given in hex and a correct length."""
    data = bytes.fromhex(fields)
    size = bytes([2 * len(data)])
    return assemble(size + data, last_offset_delta=0, record_count=1, **header)


def test_a_batch_written_by_hand_reads_as_meant():
    assert read_records(GOLDEN) == stored(GOLDEN_RECORDS)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read_into_bytes(kind):
    for record in read_records(kind(GOLDEN)):
        assert type(record.value) in (bytes, type(None))


def test_offsets_follow_the_stamp():
    stamped = stamp(GOLDEN, base_offset=2**62, leader_epoch=1)
    assert read_records(stamped) == stored(GOLDEN_RECORDS, base_offset=2**62)


def test_offsets_may_have_gaps_where_records_were_compacted_away():
    batch = assemble(GOLDEN_BODY[17:], last_offset_delta=9, record_count=1)
    assert [record.offset for record in read_records(batch)] == [1]


def test_log_append_time_dates_every_record():
    batch = assemble(GOLDEN_BODY, attributes=TIMESTAMP_TYPE_BIT, max_timestamp=77)
    assert [record.timestamp_ms for record in read_records(batch)] == [77, 77]


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_a_batch_that_compaction_emptied_has_no_records(codec):
    assert read_records(assemble(b"", record_count=0, attributes=codec)) == []


def test_a_header_key_that_is_not_utf8_is_mended():
    (record,) = read_records(one_record("00 00 00 01 01 02 02ff 01"))
    assert record.headers == (("\ufffd", None),)


def test_every_cut_of_a_batch_is_refused():
    for size in range(len(GOLDEN)):
        with pytest.raises(CorruptBatch):
            read_records(GOLDEN[:size])


def test_bytes_after_the_batch_are_refused():
    with pytest.raises(CorruptBatch, match="batch must have 85 bytes, as its header says, got 86"):
        read_records(GOLDEN + b"!")


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_every_cut_of_a_body_is_refused_although_the_sum_is_right(codec):
    for size in range(len(GOLDEN_BODY)):
        body = compress(codec, GOLDEN_BODY[:size])
        with pytest.raises(CorruptBatch):
            read_records(assemble(body, attributes=codec))


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_bytes_after_the_last_record_are_refused(codec):
    body = compress(codec, GOLDEN_BODY + b"!!")
    with pytest.raises(CorruptBatch, match="2 bytes follow the last record"):
        read_records(assemble(body, attributes=codec))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", "1 records cannot fit into 1 bytes"),
        ("00 00 00 01 01", "1 records cannot fit into 6 bytes"),
        ("00 00 00 01 01 80", "number at byte 5 is truncated: the data ends at 6"),
        ("00 80 80 80 80 80", "number at byte 1 is truncated"),
        ("00 00 00 01 01 00 00", "must end at byte 7, .* got 6"),
        ("00 00 01 01 01 00 00", "offset delta must be between 0 and 0, got -1"),
        ("00 00 02 01 01 00 00", "offset delta must be between 0 and 0, got 1"),
        ("00 00 00 03 01 00", "field must have -2 bytes"),
        ("00 00 00 08 01 00", "field must have 4 bytes, .* got 2"),
        ("00 00 00 01 06 00", "field must have 3 bytes, .* got 1"),
        ("00 00 00 01 01 01", "-1 headers cannot fit into 0 bytes"),
        ("00 00 00 01 01 04 00 00", "2 headers cannot fit into 2 bytes"),
        ("00 00 00 01 01 02 01 01", "header has no key"),
        ("00 00 00 01 01 02 00 03", "field must have -2 bytes"),
        ("00 00 00 01 01 02 00 02", "field must have 1 bytes, .* got 0"),
        ("00 feffffffffffffffff01 00 01 01 00", "timestamp .* does not fit into 64 bits"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(fields, message):
    with pytest.raises(CorruptBatch, match=message):
        read_records(one_record(fields))


@pytest.mark.parametrize(
    ("body", "fields", "message"),
    [
        (b"\x01" + bytes(20), {}, "record must have -1 bytes, .* got 20"),
        (b"\x60" + bytes(20), {}, "record must have 48 bytes, .* got 20"),
        (GOLDEN_BODY, {"record_count": 1}, "7 bytes follow the last record"),
        (GOLDEN_BODY[17:] * 2, {}, "offset delta must be between 2 and 1, got 1"),
        (
            GOLDEN_BODY,
            {"record_count": 9, "last_offset_delta": 8},
            "9 records cannot fit into 24 bytes",
        ),
        (GOLDEN_BODY, {"attributes": 5}, "codec must be between 0 and 4, got 5"),
        (
            GOLDEN_BODY,
            {"base_offset": 2**63 - 1},
            "last offset must be at most .*, got 9223372036854775808",
        ),
    ],
)
def test_a_batch_that_contradicts_its_records_is_refused(body, fields, message):
    with pytest.raises(CorruptBatch, match=message):
        read_records(assemble(body, **fields))


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_a_body_over_the_callers_limit_is_refused(codec):
    batch = build_batch([Record(bytes(5000))], now_ms=NOW, codec=codec)
    assert len(read_records(batch, size_max=5009)) == 1
    with pytest.raises(CorruptBatch, match="5008"):
        read_records(batch, size_max=5008)


@given(st.binary(min_size=0, max_size=60), st.integers(0, 7), st.integers(0, 4))
def test_noise_in_a_sound_frame_is_refused_or_read_but_never_crashes(body, attributes, count):
    with contextlib.suppress(CorruptBatch):
        read_records(assemble(body, attributes=attributes, record_count=count, last_offset_delta=3))


@given(st.lists(record_lists, max_size=4))
def test_read_all_reads_batch_after_batch(lists):
    offset, data, expected = 0, b"", []
    for records in lists:
        batch = build_batch(records, now_ms=NOW)
        data += stamp(batch, base_offset=offset, leader_epoch=0)
        expected += stored(records, base_offset=offset)
        offset += len(records)
    assert list(read_all(data)) == expected


def test_read_all_leaves_control_batches_out_unless_asked():
    marker = assemble(GOLDEN_BODY, attributes=CONTROL_BIT)
    data = marker + GOLDEN
    assert list(read_all(data)) == stored(GOLDEN_RECORDS)
    assert list(read_all(data, with_control=True)) == 2 * stored(GOLDEN_RECORDS)


def test_read_all_finds_a_wrong_sum_unless_told_not_to_look():
    damaged = bytearray(GOLDEN)
    damaged[17] ^= 1
    with pytest.raises(CorruptBatch, match="batch checksum is"):
        list(read_all(damaged))
    assert list(read_all(damaged, check=False)) == stored(GOLDEN_RECORDS)


@settings(deadline=None)
@given(record_lists, st.integers(NOW - 100, NOW + 100), st.sampled_from(Codec))
def test_the_first_record_of_a_time_is_found(records, timestamp, codec):
    batch = stamp(build_batch(records, now_ms=NOW, codec=codec), base_offset=50, leader_epoch=0)
    late = [r for r in stored(records, base_offset=50) if r.timestamp_ms >= timestamp]
    expected = (late[0].offset, late[0].timestamp_ms) if late else None
    assert first_offset_at(batch, timestamp) == expected


def test_a_batch_of_log_append_time_is_found_by_that_time_alone():
    batch = assemble(GOLDEN_BODY, attributes=TIMESTAMP_TYPE_BIT, max_timestamp=77)
    assert first_offset_at(batch, 77) == (0, 77)
    assert first_offset_at(batch, 78) is None


def test_a_batch_that_overstates_its_time_has_no_record_of_it():
    assert first_offset_at(assemble(GOLDEN_BODY, max_timestamp=5000), 2000) is None


def test_big_numbers_take_more_than_one_byte():
    records = [
        Record(bytes(70_000), bytes(200), timestamp_ms=2**62),
        Record(b"", b"", timestamp_ms=5),
    ]
    assert read_records(build_batch(records, now_ms=NOW)) == [
        StoredRecord(0, 2**62, bytes(200), bytes(70_000)),
        StoredRecord(1, 5, b"", b""),
    ]
