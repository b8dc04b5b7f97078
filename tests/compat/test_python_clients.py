"""kafka-python and aiokafka read what we write, and we read what they write."""

from __future__ import annotations

import pytest

from millstream.records.arrow.decoder import arrow_batches
from millstream.records.batch import CONTROL_BIT, check_batch, decode_header, stamp
from millstream.records.build import build_batch
from millstream.records.iterate import read_records
from millstream.records.record import StoredRecord

from .python_clients import CLIENTS
from .samples import NOW, RECORDS, every_codec, stored

every_client = pytest.mark.parametrize("client", CLIENTS)


def write_with_client(client, codec, **producer):
    identity = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1} | producer
    builder = CLIENTS[client][0](
        magic=2,
        compression_type=int(codec),
        is_transactional=int("producer_id" in producer),
        batch_size=16 * 1024 * 1024,
        **identity,
    )
    for offset, record in enumerate(RECORDS):
        headers = list(record.headers)
        appended = builder.append(
            offset, record.timestamp_ms, record.key, record.value, headers=headers
        )
        assert appended is not None
    return bytes(builder.build())


def read_with_client(client, batch):
    reader = CLIENTS[client][1](bytearray(batch))
    assert reader.validate_crc()
    return [
        StoredRecord(r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers)))
        for r in reader
    ]


@every_client
@every_codec
def test_what_the_client_writes_we_read(client, codec):
    batch = write_with_client(client, codec)
    header = decode_header(batch)
    check_batch(header, batch)
    assert header.codec == codec
    assert read_records(batch) == stored()
    values = [value for part in arrow_batches(batch) for value in part["value"].to_pylist()]
    assert values == [record.value for record in RECORDS]


@every_client
@every_codec
def test_what_we_write_the_client_reads(client, codec):
    batch = build_batch(RECORDS, now_ms=NOW, codec=codec)
    stamped = stamp(batch, base_offset=1000, leader_epoch=3)
    assert read_with_client(client, stamped) == stored(base_offset=1000)


@every_client
def test_without_a_codec_both_write_the_same_bytes(client):
    ours = stamp(build_batch(RECORDS, now_ms=NOW), base_offset=0, leader_epoch=0)
    theirs = stamp(write_with_client(client, 0), base_offset=0, leader_epoch=0)
    assert ours == theirs


@every_client
def test_a_transactional_producer_is_told_alike(client):
    identity = {"producer_id": 2**40, "producer_epoch": 5, "base_sequence": 77}
    ours = build_batch(RECORDS, now_ms=NOW, is_transactional=True, **identity)
    theirs = write_with_client(client, 0, **identity)
    assert decode_header(ours)[4:] == decode_header(theirs)[4:]
    reader = CLIENTS[client][1](bytearray(ours))
    assert reader.is_transactional
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (2**40, 5, 77)


@every_client
def test_a_control_batch_is_told_alike(client):
    batch = bytearray(build_batch(RECORDS, now_ms=NOW))
    batch[22] |= CONTROL_BIT
    assert CLIENTS[client][1](batch).is_control_batch
    assert decode_header(batch).is_control
