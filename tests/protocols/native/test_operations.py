"""Bodies of native operations, byte for byte."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.native import operations as ops

U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NAMES = st.text(min_size=1, max_size=60)

BODIES = {
    "delete": (
        lambda body: ops.read_topic_id(body, ops.NativeOperation.DELETE_TOPIC),
        ops.topic_id_body,
        7,
        "07000000",
        U32,
    ),
    "retention": (
        ops.read_set_retention,
        ops.set_retention_body,
        ops.SetRetention(1, 2, 3),
        "01000000 0200000000000000 0300000000000000",
        st.builds(ops.SetRetention, U32, U64, U64),
    ),
    "create": (
        ops.read_create_topic_with_retention,
        ops.create_topic_body,
        ops.CreateTopic("ab", ops.Retention(1, 2)),
        "0200 6162 0100000000000000 0200000000000000",
        st.builds(ops.CreateTopic, NAMES, st.builds(ops.Retention, U64, U64)),
    ),
    "fetch": (
        ops.read_fetch,
        ops.fetch_body,
        ops.Fetch(5, 2**64 - 1, 65536),
        "05000000 ffffffffffffffff 00000100",
        st.builds(ops.Fetch, U32, U64, U32),
    ),
    "subscribe": (
        ops.read_subscribe,
        ops.subscribe_body,
        ops.Subscribe(1, 2, 3, 4),
        "01000000 0200000000000000 03000000 0400000000000000",
        st.builds(ops.Subscribe, U32, U64, U32, U64),
    ),
    "unsubscribe": (
        ops.read_unsubscribe,
        ops.unsubscribe_body,
        ops.Unsubscribe(1, 2),
        "01000000 0200000000000000",
        st.builds(ops.Unsubscribe, U32, U64),
    ),
    "commit": (
        ops.read_commit_offset,
        ops.commit_offset_body,
        ops.CommitOffset(1, 2, 3),
        "01000000 0200000000000000 0300000000000000",
        st.builds(ops.CommitOffset, U32, U64, U64),
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_have_the_published_bytes(name):
    read, write, value, expected, _ = BODIES[name]
    assert write(value) == bytes.fromhex(expected)
    assert read(bytes.fromhex(expected)) == value


@pytest.mark.parametrize("name", BODIES)
@given(data=st.data())
def test_what_was_written_is_read(name, data):
    read, write, _, _, values = BODIES[name]
    value = data.draw(values)
    assert read(write(value)) == value


@pytest.mark.parametrize("name", BODIES)
def test_every_cut_of_a_body_and_one_byte_more_is_refused(name):
    read, _, _, expected, _ = BODIES[name]
    body = bytes.fromhex(expected)
    for damaged in [*(body[:size] for size in range(len(body))), body + b"!"]:
        with pytest.raises(MalformedRequest):
            read(damaged)


@given(st.sampled_from(sorted(BODIES)), st.binary(max_size=64))
def test_noise_is_refused_or_read(name, noise):
    with contextlib.suppress(MalformedRequest):
        BODIES[name][0](noise)


@pytest.mark.parametrize("name", [b"", b"n" * 256, b"\xff\xfe"])
def test_a_name_is_one_to_255_bytes_of_utf_8(name):
    with pytest.raises(MalformedRequest, match="the name of a topic must"):
        ops.read_create_topic(name)
    assert ops.read_create_topic(b"n" * 255).name == "n" * 255


def test_codes_are_those_of_the_description():
    assert {operation.label: int(operation) for operation in ops.NativeOperation} == {
        "Ingest": 0x100,
        "Keepalive": 0x101,
        "CreateTopic": 0x01,
        "DeleteTopic": 0x02,
        "ListTopics": 0x03,
        "GetTopic": 0x04,
        "SetRetention": 0x05,
        "CreateTopicWithRetention": 0x06,
        "GetClusterStatus": 0x07,
        "Authenticate": 0x08,
        "Fetch": 0x10,
        "Subscribe": 0x20,
        "Unsubscribe": 0x21,
        "CommitOffset": 0x22,
    }
    assert [int(reply) for reply in ops.Reply] == [0x09, 0x11, 0x12, 0x23, 0x24, 0x80, 0x81, 0xFF]


def test_answers_have_the_published_bytes():
    fetched = ops.fetched_body(ops.Fetched(258, 3, 2))
    assert fetched == bytes.fromhex("0201000000000000 03000000 02000000")
    assert ops.read_fetched(fetched + b"abc") == (ops.Fetched(258, 3, 2), b"abc")
    assert ops.offset_body(258) == bytes.fromhex("0201000000000000")
    assert ops.consumer_offset_body(1, 2) == bytes.fromhex("0100000000000000 0200000000000000")
    assert ops.login_body("no", is_success=False) == b"\0no"
    for damaged in (fetched[:-1], fetched + b"ab"):
        with pytest.raises(MalformedRequest, match="an answer to Fetch must have"):
            ops.read_fetched(damaged)
