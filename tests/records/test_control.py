"""Control batches: transaction markers as Kafka's clients read them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.batch import check_batch, decode_header
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.control import Marker, build_marker, read_marker
from millstream.records.iterate import read_all, read_records
from millstream.records.record import Record
from tests.compat.python_clients import CLIENTS

from .samples import NOW, assemble

# Written by hand from the protocol guide: producer 4000, epoch 3, a commit by coordinator epoch 5.
GOLDEN = bytes.fromhex(
    "0000000000000000 00000042 ffffffff 02 00000000 0030 00000000"  # The sum is left out.
    "0000018bcfe56800 0000018bcfe56800 0000000000000fa0 0003 ffffffff 00000001"
    "20 00 00 00 08 00000001 0c 000000000005 00"
)


def make(*, is_commit: bool = True) -> bytes:
    return build_marker(4000, 3, is_commit=is_commit, coordinator_epoch=5, now_ms=NOW)


def test_a_marker_lies_as_kafka_writes_it() -> None:
    marker = make()
    assert marker[:17] + marker[21:] == GOLDEN[:17] + GOLDEN[21:]
    check_batch(decode_header(marker), marker)


def test_a_marker_is_a_control_batch_of_its_producer_without_a_sequence() -> None:
    header = decode_header(make())
    assert header.is_control
    assert header.is_transactional
    assert not header.is_log_append_time
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 3, -1)
    assert (header.record_count, header.last_offset_delta) == (1, 0)
    assert header.base_timestamp == header.max_timestamp == NOW


@given(
    is_commit=st.booleans(),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
)
def test_a_marker_reads_back_as_it_was_built(
    is_commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    batch = build_marker(
        producer_id,
        producer_epoch,
        is_commit=is_commit,
        coordinator_epoch=coordinator_epoch,
        now_ms=NOW,
    )
    assert read_marker(batch) == Marker(is_commit, coordinator_epoch)
    assert read_marker(memoryview(batch)) == Marker(is_commit, coordinator_epoch)
    header = decode_header(batch)
    assert (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch)


def test_no_application_is_shown_a_marker() -> None:
    assert list(read_all(make())) == []
    [record] = read_all(make(), with_control=True)
    assert (record.key, record.value) == (b"\0\0\0\x01", b"\0\0\0\0\0\x05")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("is_commit", [True, False])
def test_clients_see_a_control_batch_and_what_it_says(client: str, is_commit: bool) -> None:
    reader = CLIENTS[client][1](make(is_commit=is_commit))
    assert reader.validate_crc()
    assert reader.is_control_batch
    assert reader.is_transactional
    assert reader.producer_id == 4000
    [record] = list(reader)
    version, kind = struct.unpack(">hh", record.key)
    assert (version, kind) == (0, is_commit)
    assert struct.unpack(">hi", record.value) == (0, 5)


def control(key: bytes | None, value: bytes | None, *, count: int = 1, **options: object) -> bytes:
    options = {"is_control": True, "is_transactional": True, **options}
    return build_batch([Record(value, key=key)] * count, now_ms=NOW, **options)


COMMIT, EPOCH = struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 9)


def test_later_versions_may_say_more() -> None:
    longer = control(struct.pack(">hhi", 1, 1, 7), struct.pack(">hiq", 2, 9, 1))
    assert read_marker(longer) == Marker(is_commit=True, coordinator_epoch=9)


def test_a_packed_marker_is_read_too() -> None:
    assert read_marker(control(COMMIT, EPOCH, codec=Codec.GZIP)) == Marker(True, 9)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (control(COMMIT, EPOCH, is_control=False), "must have the control bit and a record"),
        (control(COMMIT, EPOCH, count=2), "must have 1 record, got 2"),
        (control(None, EPOCH), "control key must have at least 4 bytes, got None"),
        (control(COMMIT[:-1], EPOCH), "control key must have at least 4 bytes"),
        (control(COMMIT, None), "control value must have at least 6 bytes, got None"),
        (control(COMMIT, EPOCH[:-1]), "control value must have at least 6 bytes"),
        (
            control(struct.pack(">hh", -1, 1), EPOCH),
            "control key version must be 0 or more, got -1",
        ),
        (
            control(COMMIT, struct.pack(">hi", -1, 9)),
            "control value version must be 0 or more, got -1",
        ),
    ],
)
def test_what_is_no_marker_is_refused(batch: bytes, message: str) -> None:
    with pytest.raises(CorruptBatch, match=message):
        read_marker(batch)


@pytest.mark.parametrize("kind", [2, 6, 0x4D00, -1])
def test_a_control_batch_of_another_type_is_no_marker_and_no_damage(kind: int) -> None:
    assert read_marker(control(struct.pack(">hh", 0, kind), EPOCH)) is None
    assert read_marker(control(struct.pack(">hh", 0, kind), None, count=2)) is None


def test_a_packed_marker_cannot_become_an_allocation() -> None:
    bomb = control(COMMIT, EPOCH + bytes(1_000_000), codec=Codec.GZIP)
    with pytest.raises(CorruptBatch, match="decompresses to more than"):
        read_marker(bomb)


def test_every_cut_of_a_marker_is_refused() -> None:
    marker = make()
    for size in range(len(marker)):
        with pytest.raises(CorruptBatch):
            read_marker(marker[:size])


@given(st.binary(max_size=100))
def test_noise_is_refused_or_read_but_never_crashes(noise: bytes) -> None:
    with contextlib.suppress(CorruptBatch):
        read_marker(assemble(noise, template=make()))


def test_a_batch_may_be_all_or_nothing_of_what_its_attributes_say() -> None:
    for is_transactional in (True, False):
        for is_control in (True, False):
            for codec in Codec:
                batch = build_batch(
                    [Record(b"v")],
                    now_ms=NOW,
                    codec=codec,
                    is_transactional=is_transactional,
                    is_control=is_control,
                )
                header = decode_header(batch)
                assert header.is_transactional == is_transactional
                assert header.is_control == is_control
                assert header.codec == codec
                assert [record.value for record in read_records(batch)] == [b"v"]
