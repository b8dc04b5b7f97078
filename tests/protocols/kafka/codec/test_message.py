"""Declaring, decoding and encoding messages, one kind of field at a time."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import uuid

import pytest

from millstream.errors import MalformedRequest, UnsupportedVersion
from millstream.protocols.kafka.codec.message import (
    NEVER,
    Versions,
    decode,
    encode,
    encode_parts,
    message,
    wire,
)
from millstream.protocols.kafka.codec.message import struct as wire_struct
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    NO_ID,
    NULLABLE_ARRAY,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    RECORDS,
    STRING,
    UINT16,
    UINT32,
    UUID,
    Array,
)
from millstream.protocols.kafka.messages.groups import HeartbeatRequest
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)

CLASSIC, FLEXIBLE = 0, 1
BOTH = Versions(first=CLASSIC, last=FLEXIBLE, flexible=FLEXIBLE)


@wire_struct
class Point:
    x: int = wire(INT8, default=0)
    y: int = wire(INT8, default=0)


def one(kind, **options):
    """A message with one field."""

    @message(BOTH)
    class One:
        field: object = wire(kind, **options)

    return One


@message(BOTH)
class Tagged:
    name: str = wire(STRING)
    color: str | None = wire(NULLABLE_STRING, since=1, default=None, tag=2)
    point: Point = wire(Point, since=1, default=Point(), tag=0)
    points: tuple[Point, ...] = wire(ARRAY(Point), since=1, default=(), tag=200)


# What is written, as which bytes it lies in a classic and in a flexible version.
KINDS = {
    "true": (BOOL, True, "01", "01"),
    "uint16": (UINT16, 65535, "ffff", "ffff"),
    "uint32": (UINT32, 2**32 - 1, "ffffffff", "ffffffff"),
    "uuid": (UUID, uuid.UUID(int=1), "00" * 15 + "01", "00" * 15 + "01"),
    "text": (STRING, "€", "0003 e282ac", "04 e282ac"),
    "empty text": (STRING, "", "0000", "01"),
    "null text": (NULLABLE_STRING, None, "ffff", "00"),
    "bytes": (BYTES, b"\xff", "00000001 ff", "02 ff"),
    "null bytes": (NULLABLE_BYTES, None, "ffffffff", "00"),
    "records": (RECORDS, b"r", "00000001 72", "02 72"),
    "null records": (RECORDS, None, "ffffffff", "00"),
    "array": (ARRAY(INT16), (1, -1), "00000002 0001 ffff", "03 0001 ffff"),
    "array of arrays": (
        ARRAY(Array(STRING)),
        (("a",), ()),
        "00000002 00000001 000161 00000000",
        "03 02 0261 01",
    ),
    "null array": (NULLABLE_ARRAY(INT8), None, "ffffffff", "00"),
    "struct": (Point, Point(x=1, y=-1), "01ff", "01ff 00"),
    "array of structs": (
        ARRAY(Point),
        (Point(x=1), Point(y=2)),
        "00000002 0100 0002",
        "03 0100 00 0002 00",
    ),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("version", [CLASSIC, FLEXIBLE])
def test_a_kind_has_its_two_encodings(name, version):
    kind, value, *golden = KINDS[name]
    data = bytes.fromhex(golden[version]) + b"\x00" * version
    made = one(kind)(field=value)
    assert encode(made, version) == data
    assert decode(type(made), data, version) == made


@pytest.mark.parametrize("byte", [1, 2, 255])
def test_every_byte_but_zero_is_true(byte):
    assert decode(one(BOOL), bytes([byte]), CLASSIC).field is True


def test_lists_are_written_as_tuples_are():
    assert encode(one(ARRAY(INT8))(field=[1, 2]), CLASSIC) == bytes.fromhex("00000002 0102")


REFUSED = {
    "null text": (STRING, "ffff", "00", "One.field is null"),
    "null bytes": (BYTES, "ffffffff", "00", "One.field is null"),
    "null array": (ARRAY(INT8), "ffffffff", "00", "One.field is null"),
    "long text": (STRING, "0002 61", "03 61", "One.field announces 2 bytes, 1 are left"),
    "long bytes": (BYTES, "7fffffff", "80808008", "One.field announces .* bytes, 0 are left"),
    "long array": (
        ARRAY(INT32),
        "00000002 00000000",
        "03 00000000",
        "One.field announces 2 items of at least 4 bytes, 4 are left",
    ),
    "text that is not UTF-8": (STRING, "0002 61ff", "03 61ff", "not UTF-8: .* at its byte 1 of 2"),
    "half of a surrogate pair": (STRING, "0003 eda080", "04 eda080", "not UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("version", [CLASSIC, FLEXIBLE])
def test_bad_bytes_are_refused_with_what_was_found(name, version):
    kind, *data, error = REFUSED[name]
    with pytest.raises(MalformedRequest, match=error):
        decode(one(kind), bytes.fromhex(data[version]), version)


@pytest.mark.parametrize("kind", [NULLABLE_STRING, NULLABLE_BYTES, RECORDS, NULLABLE_ARRAY(INT8)])
def test_only_minus_one_is_null(kind):
    data = b"\xff\xff\xff\xfe"[2 if kind is NULLABLE_STRING else 0 :]
    with pytest.raises(MalformedRequest, match=r"announces -2 .*, minimum is 0"):
        decode(one(kind), data, CLASSIC)


def test_text_is_no_longer_than_the_classic_size_can_say():
    longest = "x" * 0x7FFF
    kind = one(STRING)
    for version in (CLASSIC, FLEXIBLE):
        data = encode(kind(field=longest), version)
        assert decode(kind, data, version).field == longest
        with pytest.raises(ValueError, match="32767"):
            encode(kind(field=longest + "x"), version)
    data = bytes.fromhex("818002") + b"x" * 0x8000 + b"\x00"
    with pytest.raises(MalformedRequest, match="announces 32768 bytes, limit is 32767"):
        decode(kind, data, FLEXIBLE)


@pytest.mark.parametrize("mark", [0, 2, 0x7F, 0xFE])
def test_a_nullable_struct_is_there_or_null(mark):
    kind = one(Point, nullable_since=0)
    assert decode(kind, b"\x01\x05\x06", CLASSIC).field == Point(x=5, y=6)
    assert decode(kind, b"\xff", CLASSIC).field is None
    signed = mark - 256 if mark > 127 else mark
    with pytest.raises(MalformedRequest, match=f"starts with {signed}, expected 1, or -1"):
        decode(kind, bytes([mark, 5, 6]), CLASSIC)


def test_null_is_allowed_from_its_version_on():
    kind = one(STRING, nullable_since=1)
    assert decode(kind, bytes.fromhex("00 00"), FLEXIBLE).field is None
    with pytest.raises(MalformedRequest, match="null"):
        decode(kind, bytes.fromhex("ffff"), CLASSIC)
    with pytest.raises(ValueError, match="One v0 cannot be written"):
        encode(kind(field=None), CLASSIC)


def test_a_field_has_its_default_in_versions_without_it():
    @message(Versions(first=0, last=2, flexible=NEVER))
    class Middle:
        always: int = wire(INT8)
        middle: int = wire(INT8, since=1, until=1, default=-1)

    value = Middle(always=1, middle=2)
    assert [encode(value, version).hex() for version in range(3)] == ["01", "0102", "01"]
    assert decode(Middle, b"\x01", 0) == decode(Middle, b"\x01", 2) == Middle(always=1)
    assert decode(Middle, b"\x01\x02", 1) == value


@pytest.mark.parametrize("options", [{"since": 1}, {"until": 3}, {"tag": 0}])
def test_a_field_that_versions_lack_needs_a_default(options):
    with pytest.raises(TypeError, match="default"):
        wire(INT8, **options)


def test_items_that_take_no_bytes_are_not_declared():
    @wire_struct
    class Nothing:
        later: int = wire(INT8, since=1, default=0)

    with pytest.raises(TypeError, match="take no bytes"):
        decode(one(ARRAY(Nothing)), b"\x7f\xff\xff\xff", CLASSIC)
    assert decode(one(ARRAY(Nothing)), b"\x02\x05\x00\x00", FLEXIBLE).field == (Nothing(later=5),)


@pytest.mark.parametrize("version", [-1, 5, 99])
def test_a_version_that_is_not_spoken_is_named(version):
    value = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    error = f"version of HeartbeatRequest must be between 0 and 4, got {version}"
    with pytest.raises(UnsupportedVersion, match=error):
        encode(value, version)
    with pytest.raises(UnsupportedVersion, match=error):
        decode(HeartbeatRequest, b"", version)


def test_a_struct_is_no_message():
    with pytest.raises(TypeError, match="Point is not a message"):
        encode(Point(), 0)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INT8, 128),
        (INT8, None),
        (INT8, "1"),
        (STRING, 5),
        (BYTES, "x"),
        (ARRAY(INT8), 5),
        (UUID, "id"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_not_written(kind, value):
    with pytest.raises(ValueError, match="One v1 cannot be written"):
        encode(one(kind)(field=value), FLEXIBLE)


def test_tags_are_written_in_order_and_only_where_they_say_something():
    assert encode(Tagged(name="n"), FLEXIBLE) == bytes.fromhex("02 6e 00")
    value = Tagged(name="n", color="c", point=Point(x=1), points=(Point(),))
    data = bytes.fromhex("02 6e 03  00 03 0100 00  02 02 0263  c801 04 02 0000 00")
    assert encode(value, FLEXIBLE) == data
    assert decode(Tagged, data, FLEXIBLE) == value
    assert encode(value, CLASSIC) == bytes.fromhex("0001 6e")


def test_tags_that_nobody_knows_are_passed_over():
    data = bytes.fromhex("02 6e 03  01 00  02 02 0263  ffffffff0f 02 abcd")
    assert decode(Tagged, data, FLEXIBLE) == Tagged(name="n", color="c")
    point = bytes.fromhex("0102 01 07 01 ff 00")
    assert decode(one(Point), point, FLEXIBLE).field == Point(x=1, y=2)


def test_tags_may_come_in_any_order_and_the_last_of_two_counts():
    data = bytes.fromhex("02 6e 03  02 02 0261  00 03 0500 00  02 02 0262")
    assert decode(Tagged, data, FLEXIBLE) == Tagged(name="n", color="b", point=Point(x=5))


@pytest.mark.parametrize(
    ("tags", "error"),
    [
        ("01 02 03 0263 00", "Tagged.color announces 3 bytes, its value has 2"),
        ("01 02 01 0263", "Tagged.color announces 1 bytes, its value has 2"),
        ("01 02 09 0263", "tag announces 9 bytes, 2 are left"),
        ("01 07 05 00", "tag announces 5 bytes, 1 are left"),
        ("02 02 02 0263", "ends at byte"),
        ("ffffffff0f 00", "4294967295 items of at least 2 bytes, 1 are left"),
    ],
)
def test_bad_tags_are_refused(tags, error):
    with pytest.raises(MalformedRequest, match=error):
        decode(Tagged, bytes.fromhex("02 6e" + tags), FLEXIBLE)


def test_records_are_views_into_the_frame():
    request = produce(b"records")
    for version in (3, 9):
        frame = memoryview(encode(request, version))
        records = decode(ProduceRequest, frame, version).topic_data[0].partition_data[0].records
        assert records == b"records"
        assert isinstance(records, memoryview)
        assert records.obj is frame.obj


@pytest.mark.parametrize("version", [3, 9])
def test_parts_keep_the_buffers_of_records(version):
    buffers = [b"first", memoryview(b"second"), b"third"]
    parts = encode_parts(produce(buffers), version)
    assert [part for part in parts if any(part is buffer for buffer in buffers)] == buffers
    assert b"".join(parts) == encode(produce(b"firstsecondthird"), version)
    assert all(len(part) for part in parts)


@pytest.mark.parametrize("empty", [b"", [], (), [b"", memoryview(b"")]])
def test_records_may_be_empty(empty):
    for version in (3, 9):
        assert encode(produce(empty), version) == encode(produce(b""), version)


def test_what_is_decoded_is_as_frozen_as_what_is_made():
    made = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    read = decode(HeartbeatRequest, encode(made, 0), 0)
    assert type(read) is HeartbeatRequest
    assert hash(read) == hash(made)
    assert repr(read) == repr(made)
    assert copy.copy(read) == pickle.loads(pickle.dumps(read)) == made
    assert dataclasses.replace(read, generation_id=2).generation_id == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.generation_id = 2


def test_ids_of_zeros_are_the_id_of_nothing():
    assert decode(one(UUID), bytes(16), CLASSIC).field == NO_ID


def produce(records):
    partition = ProduceRequestPartition(index=0, records=records)
    topic = ProduceRequestTopic(name="t", partition_data=(partition,))
    return ProduceRequest(acks=1, timeout_ms=1, topic_data=(topic,))
