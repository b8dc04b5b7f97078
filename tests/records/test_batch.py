"""Batch header: fields, checksum, stamping."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.batch import (
    BATCH_SIZE_MAX,
    PREFIX_SIZE,
    check_batch,
    decode_header,
    split,
    stamp,
    stamped_prefix,
    with_append_time,
)
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.iterate import read_records
from millstream.records.record import Record
from tests.compat.python_clients import CLIENTS

from .samples import GOLDEN, NOW, assemble

HEADER = decode_header(GOLDEN)


def crc32c_bit_by_bit(data):
    """Compute the checksum by its definition, independent of any library."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_header_reads_field_by_field_as_it_lies():
    header = decode_header(
        bytes.fromhex(
            "0000000000000001 00000031 00000003 02 00000004 0000 00000006"
            "0000000000000007 0000000000000008 0000000000000009 000a 0000000b 00000005"
        )
    )
    assert header == (1, 49, 3, 2, 4, 0, 6, 7, 8, 9, 10, 11, 5)
    assert (header.size, header.last_offset, header.next_offset) == (61, 7, 8)


def test_the_golden_sum_is_crc32c_of_all_that_follows_it():
    assert HEADER.crc == crc32c_bit_by_bit(GOLDEN[21:])


@pytest.mark.parametrize(
    ("attributes", "meaning"),
    [
        (0x00, (0, False, False, False)),
        (0x04, (4, False, False, False)),
        (0x08, (0, True, False, False)),
        (0x10, (0, False, True, False)),
        (0x20, (0, False, False, True)),
        (0x3F, (7, True, True, True)),
    ],
)
def test_attributes_mean_codec_time_transaction_and_control(attributes, meaning):
    header = HEADER._replace(attributes=attributes)
    found = (
        header.codec,
        header.is_log_append_time,
        header.is_transactional,
        header.is_control,
    )
    assert found == meaning


def test_every_cut_of_a_header_is_refused():
    for size in range(61):
        with pytest.raises(CorruptBatch, match=f"header must have 61 bytes, got {size}"):
            decode_header(GOLDEN[:size])


@pytest.mark.parametrize(
    ("position", "replacement", "message"),
    [
        (16, "01", "batch magic must be 2, got 1"),
        (8, "00000030", "batch size must be between 61 and .* bytes, got 60"),
        (8, "ffffffff", "bytes, got 11"),
        (8, "7fffffff", f"between 61 and {BATCH_SIZE_MAX} bytes"),
        (23, "ffffffff", "last offset delta must be 0 or more, got -1"),
        (57, "ffffffff", "record count must be between 0 and 2, .* got -1"),
        (57, "00000003", "record count must be between 0 and 2, .* got 3"),
    ],
)
def test_a_header_that_cannot_be_is_refused(position, replacement, message):
    new = bytes.fromhex(replacement)
    damaged = GOLDEN[:position] + new + GOLDEN[position + len(new) :]
    with pytest.raises(CorruptBatch, match=message):
        decode_header(damaged)


def test_a_sound_batch_passes_the_check():
    check_batch(HEADER, GOLDEN)


def test_every_cut_of_a_batch_fails_the_check():
    for size in range(len(GOLDEN)):
        with pytest.raises(
            CorruptBatch, match=f"batch must have 85 bytes, as its header says, got {size}"
        ):
            check_batch(HEADER, GOLDEN[:size])


def test_trailing_bytes_fail_the_check():
    with pytest.raises(CorruptBatch, match="batch must have 85 bytes, as its header says, got 86"):
        check_batch(HEADER, GOLDEN + b"!")


@pytest.mark.parametrize("position", range(16, len(GOLDEN)))
def test_every_flipped_bit_after_the_stamp_is_found(position):
    for bit in range(8):
        damaged = bytearray(GOLDEN)
        damaged[position] ^= 1 << bit
        with pytest.raises(CorruptBatch):
            check_batch(decode_header(damaged), damaged)


def test_a_stamp_changes_offset_and_epoch_and_nothing_else():
    stamped = stamp(GOLDEN, base_offset=2**40, leader_epoch=7)
    header = decode_header(stamped)
    assert header == HEADER._replace(base_offset=2**40, leader_epoch=7)
    assert stamped[PREFIX_SIZE:] == GOLDEN[PREFIX_SIZE:]
    check_batch(header, stamped)


def test_the_stamped_prefix_and_the_rest_make_the_stamped_batch():
    place = {"base_offset": 5, "leader_epoch": 6}
    stamped = stamped_prefix(HEADER, **place) + GOLDEN[PREFIX_SIZE:]
    assert stamped == stamp(GOLDEN, **place)


def test_split_gives_each_batch_whole_and_in_order():
    batches = [stamp(GOLDEN, base_offset=2 * i, leader_epoch=0) for i in range(3)]
    batches.insert(1, assemble(b"", record_count=0))
    found = list(split(b"".join(batches)))
    assert [bytes(view) for _, view in found] == batches
    assert [header for header, _ in found] == [decode_header(batch) for batch in batches]


def test_split_of_nothing_is_nothing():
    assert list(split(b"")) == []


def test_split_gives_what_is_whole_and_refuses_every_cut_after_it():
    for size in range(1, len(GOLDEN)):
        batches = split(GOLDEN + GOLDEN[:size])
        next(batches)
        with pytest.raises(CorruptBatch):
            next(batches)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_split_but_never_crashes(noise):
    with contextlib.suppress(CorruptBatch):
        list(split(noise))


# Log-append time.


@pytest.mark.parametrize("codec", list(Codec))
def test_append_time_dates_every_record_and_leaves_all_else(codec):
    records = [Record(b"a", timestamp_ms=5), Record(b"b", timestamp_ms=9, key=b"k")]
    batch = build_batch(
        records, now_ms=NOW, codec=codec, producer_id=7, producer_epoch=1, base_sequence=4
    )
    dated = with_append_time(memoryview(batch), NOW + 1)
    header, before = decode_header(dated), decode_header(batch)
    check_batch(header, dated)
    assert header.is_log_append_time
    assert header._replace(crc=before.crc, attributes=before.attributes, max_timestamp=9) == before
    assert [r.timestamp_ms for r in read_records(dated)] == [NOW + 1, NOW + 1]
    assert [r.value for r in read_records(dated)] == [b"a", b"b"]
    assert dated[61:] == batch[61:]


def test_append_time_can_be_given_again():
    batch = build_batch([Record(b"a")], now_ms=NOW)
    assert with_append_time(with_append_time(batch, 5), 6) == with_append_time(batch, 6)


def test_append_time_of_what_is_no_batch_is_refused():
    with pytest.raises(CorruptBatch):
        with_append_time(b"too short", NOW)


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_see_append_time(client):
    dated = with_append_time(build_batch([Record(b"a", timestamp_ms=5)], now_ms=NOW), NOW)
    reader = CLIENTS[client][1](dated)
    assert reader.validate_crc()
    assert reader.timestamp_type == 1
    assert [record.timestamp for record in reader] == [NOW]
