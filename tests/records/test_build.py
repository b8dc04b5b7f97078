"""Records to batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from millstream.errors import BatchTooLarge, InvalidBatch
from millstream.records import build
from millstream.records.batch import BATCH_SIZE_MAX, check_batch, decode_header
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.iterate import read_records
from millstream.records.record import Record

from .samples import GOLDEN, GOLDEN_RECORDS, NOW, record_lists, stored


def test_a_batch_matches_the_bytes_written_by_hand():
    assert build_batch(GOLDEN_RECORDS, now_ms=NOW) == GOLDEN


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
@settings(deadline=None)
@given(records=record_lists)
def test_every_codec_gives_back_what_went_in(codec, records):
    batch = build_batch(records, now_ms=NOW, codec=codec)
    header = decode_header(batch)
    check_batch(header, batch)
    assert header.codec == codec
    assert read_records(batch) == stored(records)


@given(record_lists)
def test_a_batch_is_dated_by_its_first_and_its_latest_record(records):
    header = decode_header(build_batch(records, now_ms=NOW))
    stamps = [record.timestamp_ms for record in stored(records)]
    assert (header.base_timestamp, header.max_timestamp) == (stamps[0], max(stamps))


def test_a_new_batch_has_no_place_and_no_producer_yet():
    header = decode_header(build_batch([Record(b"v")], now_ms=NOW))
    assert (header.base_offset, header.leader_epoch) == (0, -1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert not header.is_transactional


def test_a_producers_identity_goes_into_the_header():
    batch = build_batch(
        [Record(b"v")],
        now_ms=NOW,
        codec=Codec.ZSTD,
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=4,
        is_transactional=True,
    )
    header = decode_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, 4)
    assert header.is_transactional
    assert header.codec == Codec.ZSTD


def test_a_batch_with_more_records_than_small_numbers_keeps_them_all():
    records = [Record(b"%d" % number) for number in range(3000)]
    batch = build_batch(records, now_ms=NOW)
    assert decode_header(batch).last_offset_delta == 2999
    assert read_records(batch) == stored(records)


def test_an_empty_batch_is_refused():
    with pytest.raises(InvalidBatch, match="at least 1 record, got 0"):
        build_batch([], now_ms=NOW)


def test_a_batch_over_the_limit_is_refused():
    records = [Record(bytes(BATCH_SIZE_MAX - 100)), Record(bytes(100))]
    with pytest.raises(BatchTooLarge, match=f"at most {BATCH_SIZE_MAX} bytes"):
        build_batch(records, now_ms=NOW)


def test_a_batch_at_the_limit_is_built(monkeypatch):
    monkeypatch.setattr(build, "BATCH_SIZE_MAX", len(GOLDEN))
    assert build_batch(GOLDEN_RECORDS, now_ms=NOW) == GOLDEN
    monkeypatch.setattr(build, "BATCH_SIZE_MAX", len(GOLDEN) - 1)
    with pytest.raises(BatchTooLarge, match="batch must have at most 84 bytes, got 85"):
        build_batch(GOLDEN_RECORDS, now_ms=NOW)


def test_a_body_that_no_reader_would_unpack_is_refused(monkeypatch):
    monkeypatch.setattr(build, "BODY_SIZE_MAX", 1000)
    with pytest.raises(BatchTooLarge, match="must have at most 1000 bytes, got 1009"):
        build_batch([Record(bytes(1000))], now_ms=NOW, codec=Codec.ZSTD)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([Record(b"", timestamp_ms=2**63)], id="timestamp_over_64_bits"),
        pytest.param(
            [Record(b"", timestamp_ms=-1), Record(b"", timestamp_ms=2**63 - 1)],
            id="timestamps_too_far_apart",
        ),
        pytest.param([Record(b"", headers=(("\ud800", b""),))], id="header_key_without_utf8"),
    ],
)
def test_what_does_not_fit_its_field_is_refused(records):
    with pytest.raises(InvalidBatch, match="field of a record cannot be encoded"):
        build_batch(records, now_ms=NOW)


def test_a_producer_id_that_does_not_fit_is_refused():
    with pytest.raises(InvalidBatch, match="field of a record cannot be encoded"):
        build_batch([Record(b"")], now_ms=NOW, producer_id=2**63)
