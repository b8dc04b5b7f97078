"""Validation of a client's batch before any of it is written."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass

import pytest
from crc32c import crc32c

from millstream.broker.partition.batch_validator import (
    BatchValidator,
    InvalidBatchRecord,
    recompress,
)
from millstream.config.schema import LogConfig
from millstream.errors import (
    BatchTooLarge,
    InvalidBatch,
    InvalidRecord,
    InvalidTimestamp,
)
from millstream.records.batch import BatchHeader, check_batch, decode_header
from millstream.records.build import build_batch
from millstream.records.compression import Codec, compress
from millstream.records.iterate import read_records
from millstream.records.record import Record

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
RECORDS = [
    Record(b"one", key=b"a", headers=(("h", b"1"), ("n", None)), timestamp_ms=NOW_MS),
    Record(None, key=b"b", timestamp_ms=NOW_MS + 5),
    Record(b"three" * 50, key=b"", timestamp_ms=NOW_MS - 7),
]


@dataclass(frozen=True)
class Config:
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    message_bytes_max: int = 1_048_588
    timestamp_type: str = "CreateTime"
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = HOUR_MS
    compression_type: str = "producer"
    checked_values: tuple[str, str] | None = None

    def log_config(self) -> LogConfig:
        return LogConfig()


COMPACTED = Config(cleanup_policy=frozenset({"compact"}))


def check(batch: bytes, config: Config = Config()) -> BatchHeader:
    return BatchValidator(config).check(batch, NOW_MS)


def changed(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """Return the batch with one field changed and a new checksum."""
    data = bytearray(batch)
    struct.pack_into(layout, data, position, value)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


SOUND = build_batch(RECORDS, now_ms=NOW_MS)
IDEMPOTENT = build_batch(RECORDS, now_ms=NOW_MS, producer_id=5, producer_epoch=0, base_sequence=0)


def test_a_sound_batch_is_taken_and_its_header_returned():
    assert check(SOUND) == decode_header(SOUND)
    assert check(IDEMPOTENT).producer_id == 5
    assert check(memoryview(SOUND)).record_count == 3


ATTRIBUTES, DELTA, BASE_TIME, MAX_TIME, ID, EPOCH, SEQUENCE, COUNT = 21, 23, 27, 35, 43, 51, 53, 57


@pytest.mark.parametrize(
    ("batch", "error", "says"),
    [
        (b"", InvalidBatch, "at least 61 bytes, got 0"),
        (SOUND[:60], InvalidBatch, "at least 61 bytes, got 60"),
        (SOUND[:-1], InvalidBatch, "header gives a size"),
        (SOUND + b"\0", InvalidBatch, "header gives a size"),
        (changed(SOUND, 16, ">b", 0), InvalidRecord, "must be 2, got 0"),
        (changed(SOUND, 16, ">b", 1), InvalidRecord, "must be 2, got 1"),
        (changed(SOUND, 16, ">b", 3), InvalidBatch, "must be 2, got 3"),
        (changed(SOUND, 16, ">b", -1), InvalidBatch, "must be 2, got -1"),
        (SOUND[:-1] + b"\1", InvalidBatch, "has checksum"),
        (changed(SOUND, COUNT, ">i", 0), InvalidRecord, "at least 1 record, its header says 0"),
        (changed(SOUND, COUNT, ">i", -1), InvalidRecord, "at least 1 record, its header says -1"),
        (changed(SOUND, COUNT, ">i", 2), InvalidRecord, "2 records and 3 offsets"),
        (changed(SOUND, DELTA, ">i", 3), InvalidRecord, "3 records and 4 offsets"),
        (changed(SOUND, DELTA, ">i", -5), InvalidRecord, "3 records and -4 offsets"),
        (changed(SOUND, ATTRIBUTES, ">h", 0x20), InvalidRecord, "control batches"),
        (changed(SOUND, ATTRIBUTES, ">h", 0x40), InvalidRecord, "attributes are 0x0040"),
        (changed(SOUND, ATTRIBUTES, ">h", -0x8000), InvalidRecord, "attributes"),
        (changed(SOUND, ATTRIBUTES, ">h", 0x08), InvalidTimestamp, "by the broker only"),
        (changed(SOUND, ATTRIBUTES, ">h", 5), InvalidBatch, "between 0 and 4, got 5"),
        (changed(SOUND, ATTRIBUTES, ">h", 0x10), InvalidRecord, "must have a producer id"),
        (changed(IDEMPOTENT, EPOCH, ">h", -1), InvalidRecord, "got 5, -1 and 0"),
        (changed(IDEMPOTENT, SEQUENCE, ">i", -1), InvalidRecord, "got 5, 0 and -1"),
        (changed(IDEMPOTENT, ID, ">q", -2), InvalidRecord, "got -2, 0 and 0"),
        (changed(SOUND, MAX_TIME, ">q", NOW_MS + HOUR_MS + 1), InvalidTimestamp, "in the future"),
        (changed(SOUND, BASE_TIME, ">q", 2**63 - 1), InvalidTimestamp, "in the future"),
        (changed(SOUND, MAX_TIME, ">q", 253_402_300_799_999), InvalidTimestamp, "in the future"),
        (changed(SOUND, MAX_TIME, ">q", -2), InvalidTimestamp, "must not be negative"),
        (changed(SOUND, BASE_TIME, ">q", -(2**63)), InvalidTimestamp, "timestamp is -9223"),
    ],
)
def test_what_is_wrong_is_said_with_what_was_found(batch, error, says):
    with pytest.raises(error, match=says) as found:
        check(batch)
    assert type(found.value) is error


def test_a_batch_that_claims_more_records_than_fit_takes_no_offsets():
    count = 2**31 - 1
    batch = changed(changed(SOUND, COUNT, ">i", count), DELTA, ">i", count - 1)
    with pytest.raises(InvalidRecord, match=f"{count} records do not fit in {len(SOUND) - 61}"):
        check(batch)
    with pytest.raises(InvalidRecord, match="2147483647 records do not fit in 67108864 bytes"):
        check(changed(batch, ATTRIBUTES, ">h", Codec.GZIP))


def test_the_limit_of_the_topic_holds_to_the_byte():
    assert check(SOUND, Config(message_bytes_max=len(SOUND)))
    with pytest.raises(BatchTooLarge, match=f"limit is {len(SOUND) - 1}"):
        check(SOUND, Config(message_bytes_max=len(SOUND) - 1))


def test_too_large_is_said_before_anything_is_summed():
    with pytest.raises(BatchTooLarge):
        check(SOUND[:-1] + b"\1", Config(message_bytes_max=100))


@pytest.mark.parametrize("age_ms", [0, 1000])
def test_timestamps_may_be_as_old_as_the_topic_says(age_ms):
    batch = build_batch([Record(b"", timestamp_ms=NOW_MS - age_ms)], now_ms=0)
    assert check(batch, Config(timestamp_before_max_ms=age_ms))
    older = build_batch([Record(b"", timestamp_ms=NOW_MS - age_ms - 1)], now_ms=0)
    with pytest.raises(InvalidTimestamp, match=f"more than {age_ms} ms in the past"):
        check(older, Config(timestamp_before_max_ms=age_ms))


def test_a_record_without_a_timestamp_is_taken():
    batch = build_batch([Record(b"", timestamp_ms=-1)], now_ms=0)
    assert check(batch, Config(timestamp_before_max_ms=10))


def test_where_the_broker_dates_records_theirs_do_not_matter():
    batch = build_batch([Record(b"", timestamp_ms=253_402_300_799_999)], now_ms=0)
    assert check(batch, Config(timestamp_type="LogAppendTime"))


# Record inspection.


def inspect(batch: bytes, config: Config) -> tuple[BatchHeader, bytes]:
    validator = BatchValidator(config)
    header = validator.check(batch, NOW_MS)
    assert validator.must_inspect(header)
    return validator.inspect(header, batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_compacted_topic_takes_records_with_keys_as_they_are(codec):
    batch = build_batch(RECORDS, now_ms=NOW_MS, codec=codec)
    assert inspect(batch, COMPACTED) == (decode_header(batch), batch)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("index", [0, 2])
def test_and_names_the_first_without_one(codec, index):
    records = [*RECORDS[:index], Record(b"keyless"), *RECORDS[index:], Record(b"another")]
    with pytest.raises(InvalidBatchRecord, match=f"record {index} has no key") as found:
        inspect(build_batch(records, now_ms=NOW_MS, codec=codec), COMPACTED)
    assert found.value.record_index == index
    assert found.value.record_indexes == (index, len(records) - 1)
    copy = pickle.loads(pickle.dumps(found.value))
    assert (str(copy), copy.record_indexes) == (str(found.value), found.value.record_indexes)


def test_a_topic_that_is_not_compacted_does_not_look():
    batch = build_batch([Record(b"keyless")], now_ms=NOW_MS)
    validator = BatchValidator(Config())
    assert not validator.must_inspect(validator.check(batch, NOW_MS))


CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("codec", list(Codec))
def test_a_topic_with_a_codec_stores_everything_in_it_and_changes_nothing_else(name, codec):
    batch = build_batch(
        RECORDS,
        now_ms=NOW_MS,
        codec=codec,
        producer_id=9,
        producer_epoch=3,
        base_sequence=77,
        is_transactional=True,
    )
    config = Config(compression_type=name)
    if codec == CODECS[name]:
        assert not BatchValidator(config).must_inspect(decode_header(batch))
        return
    header, stored = inspect(batch, config)
    assert header == decode_header(stored)
    check_batch(header, stored)
    assert header.codec == CODECS[name]
    assert header.is_transactional
    assert header[6:] == decode_header(batch)[6:]
    assert read_records(stored) == read_records(batch)


def test_what_becomes_too_large_by_unpacking_is_refused():
    batch = build_batch([Record(b"a" * 10_000)], now_ms=NOW_MS, codec=Codec.GZIP)
    with pytest.raises(BatchTooLarge, match="once recompressed"):
        inspect(batch, Config(compression_type="uncompressed", message_bytes_max=1000))


@pytest.mark.parametrize("config", [COMPACTED, Config(compression_type="gzip")])
def test_records_that_cannot_be_unpacked_are_refused(config):
    batch = build_batch(RECORDS, now_ms=NOW_MS, codec=Codec.ZSTD)
    with pytest.raises(InvalidRecord, match="cannot read the records"):
        inspect(changed(batch, 61, ">q", 0), config)


def test_records_that_are_not_what_they_claim_are_refused_where_they_are_looked_at():
    with pytest.raises(InvalidRecord, match="cannot read the records"):
        inspect(changed(SOUND, 61, ">b", 1), COMPACTED)


@pytest.mark.parametrize("config", [COMPACTED, Config(compression_type="lz4")])
def test_a_bomb_is_refused_before_it_goes_off(config):
    small = Config(
        cleanup_policy=config.cleanup_policy,
        compression_type=config.compression_type,
        message_bytes_max=5000,
    )
    body = compress(Codec.ZSTD, b"\0" * 30_000_000)
    assert len(body) < 4000
    bomb = changed(SOUND[:61] + body, ATTRIBUTES, ">h", Codec.ZSTD)
    bomb = bytearray(bomb)
    struct.pack_into(">i", bomb, 8, len(bomb) - 12)
    with pytest.raises(BatchTooLarge, match="decompresses to more than"):
        inspect(changed(bytes(bomb), ATTRIBUTES, ">h", Codec.ZSTD), small)


def test_packing_and_unpacking_a_batch_gives_it_back():
    packed = recompress(decode_header(SOUND), SOUND, Codec.GZIP)
    assert recompress(decode_header(packed), packed, Codec.NONE) == SOUND
