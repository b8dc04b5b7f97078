"""Records in native payloads: what is sent is what is fetched, to the byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import BatchTooLarge
from millstream.protocols.native.record_set import (
    AVRO,
    JSON,
    KEY_SIZE_MAX,
    KEYED,
    NULL,
    RAW,
    TIMED,
    TIMED_KEYED,
    TYPE_HEADER,
    encode_records,
    read_records,
    typed_record,
)
from millstream.records.record import Record, StoredRecord

MIB = 1024 * 1024

KINDS = st.sampled_from([RAW, JSON, AVRO, KEYED, TIMED, TIMED_KEYED, 0x80, 0xFE, NULL])
RECORDS = st.builds(
    typed_record,
    KINDS,
    st.binary(max_size=20),
    key=st.binary(max_size=20),
    time_ns=st.integers(0, 2**64 - 1),
)


def stored(records):
    """Records as a log returns them."""
    return [
        StoredRecord(offset, record.timestamp_ms or 0, record.key, record.value, record.headers)
        for offset, record in enumerate(records)
    ]


def read(payload, *, record_count=1, count_max=1000):
    return read_records(payload, record_count=record_count, count_max=count_max)


def fetched(records, *, size_max=MIB, frame_size_max=MIB):
    return encode_records(stored(records), size_max=size_max, frame_size_max=frame_size_max)


@pytest.mark.parametrize(
    ("payload", "record"),
    [
        ("01 03000000 616263", Record(b"abc")),
        ("01 00000000", Record(b"")),
        ("02 02000000 7b7d", Record(b"{}", headers=((TYPE_HEADER, b"\2"),))),
        ("90 01000000 78", Record(b"x", headers=((TYPE_HEADER, b"\x90"),))),
        ("10 04000000 0100 6b 76", Record(b"v", key=b"k")),
        (
            "11 09000000 40420f0000000000 76",
            Record(
                b"v",
                headers=((TYPE_HEADER, bytes.fromhex("11 40420f0000000000")),),
                timestamp_ms=1,
            ),
        ),
        (
            "12 0c000000 40420f0000000000 0100 6b 76",
            Record(
                b"v",
                key=b"k",
                headers=((TYPE_HEADER, bytes.fromhex("12 40420f0000000000")),),
                timestamp_ms=1,
            ),
        ),
        ("ff 00000000", Record(None)),
        ("ff 01000000 6b", Record(None, key=b"k")),
    ],
)
def test_records_have_the_published_bytes(payload, record):
    sent = bytes.fromhex(payload)
    assert read(sent) == [record]
    assert fetched([record]).data == sent


@given(st.lists(RECORDS, max_size=8))
def test_every_sequence_of_records_is_split_and_joined_again(encoded):
    payload = b"".join(encoded)
    if not payload:
        return
    records = read(payload)
    assert len(records) == len(encoded)
    again = fetched(records)
    assert again == (payload, len(encoded), None)


@given(st.binary(min_size=1, max_size=60), st.integers(0, 100))
@example(b"hello world", 2)
@example(b"\x01\x00\x00\x00\x00\x01", 3)
@example(b"\xff\x01\x00\x05\x00\x00\x00hello", 1)
def test_every_payload_is_fetched_as_it_was_sent(payload, record_count):
    records = read(payload, record_count=record_count)
    again = fetched(records)
    assert again.data == payload
    is_kept_whole = records[0].value == payload
    assert again.record_count == (max(record_count, 1) if is_kept_whole else len(records))


def test_every_cut_of_a_record_is_kept_whole():
    payload = typed_record(TIMED_KEYED, b"value", key=b"key", time_ns=5)
    for size in range(1, len(payload)):
        [record] = read(payload[:size], record_count=4)
        assert record.value == payload[:size]
        assert record.headers == ((TYPE_HEADER, struct.pack("<BI", 0, 4)),)


def test_records_of_other_clients_are_shown_with_key_and_value():
    others = [
        Record(b"v", headers=(("trace", b"1"),)),
        Record(b"v", key=b"k"),
        Record(None, key=b"k"),
        Record(None),
    ]
    assert fetched(others).data == b"".join(
        (
            typed_record(RAW, b"v"),
            typed_record(KEYED, b"v", key=b"k"),
            typed_record(NULL, key=b"k"),
            typed_record(NULL),
        )
    )


@pytest.mark.parametrize("content", [b"", b"\0", b"\x11", b"\x12" + bytes(8), b"\x01", b"\x77"])
def test_a_type_header_that_does_not_fit_its_record_is_ignored(content):
    [record] = [Record(b"v", headers=((TYPE_HEADER, content),))]
    assert fetched([record]).data == typed_record(RAW, b"v")


def test_records_are_encoded_up_to_the_size_and_at_least_one():
    records = [Record(bytes(100)) for _ in range(5)]
    one = len(typed_record(RAW, bytes(100)))
    assert fetched(records, size_max=2 * one) == (typed_record(RAW, bytes(100)) * 2, 2, 2)
    assert fetched(records, size_max=2 * one + one - 1).next_offset == 2
    assert fetched(records, size_max=1) == (typed_record(RAW, bytes(100)), 1, 1)


def test_a_record_that_no_frame_can_hold_is_named():
    with pytest.raises(
        BatchTooLarge, match=r"the record at offset 0 has 105 bytes .* limit is 104"
    ):
        fetched([Record(bytes(100))], frame_size_max=104)
    with pytest.raises(BatchTooLarge, match="the key of the record at offset 0 has 65536 bytes"):
        fetched([Record(b"", key=bytes(KEY_SIZE_MAX + 1))])


def test_the_number_of_records_of_a_frame_is_limited():
    payload = typed_record(RAW, b"") * 11
    assert len(read(payload, count_max=11)) == 11
    with pytest.raises(BatchTooLarge, match="at most 10 records"):
        read(payload, count_max=10)
