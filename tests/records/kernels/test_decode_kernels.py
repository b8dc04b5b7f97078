"""The compiled kernels accept, refuse and decode exactly what the plain reader does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records import varint
from millstream.records.arrow.decoder import ALL_COLUMNS, COLUMNS, decode_python
from millstream.records.arrow.decoder_vectorized import decode
from millstream.records.batch import TIMESTAMP_TYPE_BIT, decode_header, stamp
from millstream.records.body import open_bodies
from millstream.records.build import build_batch
from millstream.records.compression import BODY_SIZE_MAX, Codec, compress
from millstream.records.kernels import compiler, decode_kernels
from millstream.records.record import Record
from tests.records.samples import GOLDEN_BODY, NOW, assemble, record_lists

column_lists = st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True)


def outcome(decoder, data, columns):
    """Return the result of a decoder: its columns, or that it raised."""
    try:
        bodies = list(open_bodies(data, check=False, size_max=BODY_SIZE_MAX))
        arrays = decoder(data, bodies, columns)
    except CorruptBatch:
        return "refused"
    for array in arrays:
        array.validate(full=True)
    return [array.to_pylist() for array in arrays]


def assert_same(data, columns=COLUMNS):
    expected = outcome(decode_python, data, columns)
    assert outcome(decode, data, columns) == expected
    return expected


@st.composite
def logs(draw):
    """A few batches in a row, of any codec and either kind of time."""
    data = b""
    for records in draw(st.lists(record_lists, min_size=1, max_size=4)):
        batch = build_batch(records, now_ms=NOW, codec=draw(st.sampled_from(Codec)))
        if draw(st.booleans()):
            header = decode_header(batch)
            attributes = header.attributes | TIMESTAMP_TYPE_BIT
            batch = assemble(batch[61:], template=batch, attributes=attributes)
        data += stamp(batch, base_offset=draw(st.integers(0, 2**62)), leader_epoch=0)
    return data


@settings(deadline=None, max_examples=200)
@given(logs(), column_lists)
def test_every_log_decodes_alike(data, columns):
    assert assert_same(data, columns) != "refused"


@settings(deadline=None, max_examples=300)
@given(record_lists, st.data())
def test_every_damage_to_a_body_is_judged_alike(records, data):
    batch = build_batch(records, now_ms=NOW)
    body = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))
    assert_same(assemble(bytes(body[:kept]), template=batch))


def test_every_byte_of_a_record_set_to_every_value_is_judged_alike():
    refused = 0
    for position in range(len(GOLDEN_BODY)):
        for byte in range(256):
            body = GOLDEN_BODY[:position] + bytes([byte]) + GOLDEN_BODY[position + 1 :]
            refused += assert_same(assemble(body)) == "refused"
    assert refused > 3000


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=60),
    st.integers(0, 4),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, TIMESTAMP_TYPE_BIT]),
)
def test_noise_is_judged_alike(body, count, base_timestamp, attributes):
    fields = {"record_count": count, "last_offset_delta": 3, "base_timestamp": base_timestamp}
    assert_same(assemble(body, attributes=attributes, **fields))


@pytest.mark.parametrize(
    ("fields", "base_timestamp", "is_sound"),
    [
        ("14 00 feffffffffffffffff01 00 01 01 00", 0, True),
        ("14 00 feffffffffffffffff01 00 01 01 00", 1, False),
        ("14 00 ffffffffffffffffff01 00 01 01 00", 0, True),
        ("14 00 ffffffffffffffffff01 00 01 01 00", -1, False),
        ("14 00 ffffffffffffffffff02 00 01 01 00", 0, False),
        ("0c 00 00 00 01 01 00", 0, True),
        ("8c00 00 00 00 01 01 00", 0, True),
        ("8c80808000 00 00 00 01 01 00", 0, True),
        ("8c8080808000 00 00 00 01 01 00", 0, False),
        ("8c80808010 00 00 00 01 01 00", 0, False),
        ("0c 00 00 00 03 01 00", 0, False),
        ("0e 00 00 00 01 01 00 00", 0, False),
        ("10 00 00 00 01 01 02 01 01", 0, False),
        ("10 00 00 00 01 01 02 00 01", 0, True),
        ("10 00 00 00 01 01 04 00 00", 0, False),
        ("10 00 00 00 01 01 01 00 00", 0, False),
        ("0c 00 00 00 01 01 01", 0, False),
        ("0c 00 00 01 01 01 00", 0, False),
        ("0c 00 00 02 01 01 00", 0, False),
        ("0c 00 00 00 01 feffffff0f", 0, False),
    ],
)
def test_the_edges_of_every_number_are_judged_alike(fields, base_timestamp, is_sound):
    body = bytes.fromhex(fields.replace("14 00", "1e 00"))
    batch = assemble(body, record_count=1, last_offset_delta=0, base_timestamp=base_timestamp)
    assert (assert_same(batch) != "refused") == is_sound


def test_offsets_that_repeat_or_go_back_are_refused_alike():
    assert assert_same(assemble(GOLDEN_BODY[17:] * 2)) == "refused"
    assert assert_same(assemble(GOLDEN_BODY[17:] + GOLDEN_BODY[:17])) == "refused"


def test_offsets_with_gaps_are_read_alike():
    batch = assemble(GOLDEN_BODY[17:], last_offset_delta=9, record_count=1)
    assert assert_same(batch, ["offset"]) == [[1]]


def test_a_batch_without_records_must_have_no_bytes_either():
    assert assert_same(assemble(b"\0", record_count=0)) == "refused"
    assert assert_same(assemble(b"", record_count=0)) == [[], [], [], [], []]


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_large_and_many_records_are_read_alike(codec):
    records = [Record(bytes([n % 251]) * (n * 7 % 1500), b"%d" % n) for n in range(2000)]
    batch = build_batch(records, now_ms=NOW, codec=codec)
    assert assert_same(batch, ["value"]) == [[record.value for record in records]]
    assert_same(batch + batch)


def test_a_broken_batch_is_named_among_sound_ones():
    sound = assemble(GOLDEN_BODY)
    packed = assemble(compress(Codec.LZ4, GOLDEN_BODY + b"!"), attributes=Codec.LZ4)
    broken = stamp(packed, base_offset=40, leader_epoch=0)
    data = sound + broken + sound
    bodies = list(open_bodies(data, check=True, size_max=1000))
    with pytest.raises(
        CorruptBatch, match="batch at offset 40: malformed record at byte 24 of its"
    ):
        decode(data, bodies, COLUMNS)


def test_a_record_that_would_go_on_in_the_next_batch_is_broken_where_it_starts():
    # Its last two bytes are missing, and the next batch begins with the zeros that would fit.
    cut = assemble(bytes.fromhex("12 00 00 00 01 06 6161"), record_count=1)
    data = cut + assemble(GOLDEN_BODY)
    bodies = list(open_bodies(data, check=True, size_max=1000))
    with pytest.raises(CorruptBatch, match="batch at offset 0: malformed record at byte 0 of its"):
        decode(data, bodies, COLUMNS)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=12), st.integers(0, 12))
@example(bytes.fromhex("ffffffff0f"), 0)
@example(bytes.fromhex("ffffffff10"), 0)
@example(bytes.fromhex("ffffffffffffffffff01"), 0)
@example(bytes.fromhex("ffffffffffffffffff02"), 0)
@example(bytes.fromhex("ffffffffffffffffffff01"), 0)
def test_numbers_are_read_alike(noise, position):
    source = np.frombuffer(noise, np.uint8)
    for plain, compiled in (
        (varint.read_varint, decode_kernels.read_varint),
        (varint.read_varlong, decode_kernels.read_varlong),
    ):
        number, end = compiled(source, position, source.size)
        try:
            assert (number, end) == plain(noise, position)
        except CorruptBatch:
            assert end == -1


def test_a_broken_position_stays_broken():
    source = np.zeros(4, np.uint8)
    source.setflags(write=False)
    assert decode_kernels.read_varint(source, -1, 4)[1] == -1
    assert decode_kernels.read_varlong(source, -1, 4)[1] == -1
    assert decode_kernels.read_field(source, -1, 4)[2] == -1
    assert decode_kernels.skip_headers(source, -1, 4, 0) == -1


def test_kernels_work_where_nothing_can_be_cached(monkeypatch):
    def refuse(**options):
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(compiler.numba, "njit", refuse)
    assert compiler.kernel(len) is len
