"""The short way says the same of a request, and of its answer, as the long way does."""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.kafka.fast_produce import (
    encode_fast_response,
    read_fast_produce,
    topic_of,
)
from millstream.protocols.kafka.header import decode_request_header, encode_response_header
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

VERSIONS = range(9, 14)
TOPIC_ID = uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)


def framed(request: ProduceRequest, version: int, client_id: bytes = b"me", number: int = 7):
    header = struct.pack(">hhih", 0, version, number, len(client_id)) + client_id + b"\0"
    return memoryview(header + encode(request, version))


def request_for(batch: bytes, *, name: str = "orders", index: int = 3, acks: int = 1, **fields):
    part = ProduceRequestPartition(index=index, records=memoryview(batch))
    topic = ProduceRequestTopic(name=name, topic_id=TOPIC_ID, partition_data=(part,))
    return ProduceRequest(acks=acks, timeout_ms=1500, topic_data=(topic,), **fields)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    batch=st.binary(min_size=1, max_size=300) | st.just(bytes(20_000)) | st.just(bytes(3_000_000)),
    name=st.text(min_size=1, max_size=200),
    index=st.integers(-(2**31), 2**31 - 1),
    acks=st.integers(-(2**15), 2**15 - 1),
    client_id=st.binary(max_size=300),
)
def test_both_ways_read_the_same(version, batch, name, index, acks, client_id):
    frame = framed(request_for(batch, name=name, index=index, acks=acks), version, client_id)
    plain = read_fast_produce(frame)
    is_long = version < 13 and len(name.encode()) > 126
    if is_long or len(client_id) > 255:
        assert plain is None
        return
    header, body = decode_request_header(
        framed(request_for(batch, name=name, index=index, acks=acks), version)
    )
    request = decode(ProduceRequest, body, version)
    topic = request.topic_data[0]
    part = topic.partition_data[0]
    assert (plain.version, plain.correlation_id) == (version, header.correlation_id)
    assert plain.client_id == client_id
    assert (plain.acks, plain.timeout_ms) == (request.acks, request.timeout_ms)
    is_named = version < 13
    assert topic_of(plain.topic, is_named=is_named) == (name if is_named else TOPIC_ID)
    assert (plain.partition, plain.batch) == (part.index, part.records)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    offsets=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3),
    index=st.integers(-(2**31), 2**31 - 1),
    name=st.text(min_size=1, max_size=40),
)
def test_both_ways_answer_the_same(version, offsets, index, name):
    plain = read_fast_produce(framed(request_for(b"batch", name=name, index=index), version))
    if plain is None:
        return
    base_offset, append_time_ms, start = offsets
    result = ProduceResponsePartition(
        index=index,
        base_offset=base_offset,
        log_append_time_ms=append_time_ms,
        log_start_offset=start,
    )
    topic = ProduceResponseTopic(name=name, topic_id=TOPIC_ID, partition_responses=(result,))
    body = encode_response_header(0, version, 7) + encode(
        ProduceResponse(responses=(topic,)), version
    )
    answer = encode_fast_response(
        plain, base_offset=base_offset, append_time_ms=append_time_ms, log_start_offset=start
    )
    assert answer == struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_and_every_byte_too_many_is_left_to_the_long_way(version):
    frame = framed(request_for(b"x" * 200), version)
    for end in range(len(frame)):
        assert read_fast_produce(frame[:end]) is None
    assert read_fast_produce(memoryview(bytes(frame) + b"\0")) is None


def two_partitions() -> ProduceRequest:
    part = ProduceRequestPartition(index=0, records=memoryview(b"batch"))
    topic = ProduceRequestTopic(name="t", topic_id=TOPIC_ID, partition_data=(part, part))
    return ProduceRequest(acks=1, timeout_ms=1, topic_data=(topic,))


def no_topic() -> ProduceRequest:
    return ProduceRequest(acks=1, timeout_ms=1, topic_data=())


def no_records() -> ProduceRequest:
    part = ProduceRequestPartition(index=0, records=None)
    topic = ProduceRequestTopic(name="t", topic_id=TOPIC_ID, partition_data=(part,))
    return ProduceRequest(acks=1, timeout_ms=1, topic_data=(topic,))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "request_",
    [
        two_partitions(),
        no_topic(),
        no_records(),
        request_for(b""),
        request_for(b"batch", transactional_id="t"),
    ],
)
def test_what_is_not_plain_is_left_to_the_long_way(version, request_):
    assert read_fast_produce(framed(request_, version)) is None


@pytest.mark.parametrize("version", [*range(9), *range(14, 20)])
def test_other_versions_are_left_to_the_long_way(version):
    frame = bytearray(framed(request_for(b"batch"), 9))
    struct.pack_into(">h", frame, 2, version)
    assert read_fast_produce(memoryview(frame)) is None


@given(st.binary(max_size=100), st.sampled_from(VERSIONS))
def test_noise_is_left_to_the_long_way_or_read_as_it_does(noise, version):
    frame = memoryview(struct.pack(">hhih", 0, version, 7, 0) + noise)
    plain = read_fast_produce(frame)
    if plain is not None:
        _, body = decode_request_header(frame)
        request = decode(APIS[0].request, body, version)
        assert request.topic_data[0].partition_data[0].records == plain.batch
