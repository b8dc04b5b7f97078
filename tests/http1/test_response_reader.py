"""HTTP/1.1 responses, split at any position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedAnswer
from millstream.http1.response_reader import ResponseReader

ANSWER = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nX:  a b \r\n"
    b"content-length: 5\r\n\r\nhello"
)
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def read(data, *, cuts=(), head_size_max=1_000, body_size_max=1_000):
    reader = ResponseReader(head_size_max=head_size_max, body_size_max=body_size_max)
    ends = [*sorted(cuts), len(data)]
    for start, end in zip([0, *ends], ends, strict=False):
        if start < end:
            reader.feed(data[start:end])
    return reader


@pytest.mark.parametrize(("data", "body"), [(ANSWER, b"hello"), (CHUNKED, b"abcde")])
def test_every_cut_of_an_answer_gives_the_same_answer(data, body):
    for cut in range(len(data)):
        reader = read(data, cuts=[cut])
        assert reader.is_done
        assert reader.keeps_alive
        assert reader.body == body
        assert not read(data[:cut]).is_done if cut else True
    assert read(data, cuts=range(1, len(data))).body == body


def test_headers_are_found_by_small_letters():
    assert read(ANSWER).headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "version", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n"]
)
def test_a_connection_that_the_node_ends_is_not_used_again(version):
    reader = read(version + b"content-length: 0\r\n\r\n")
    assert reader.is_done
    assert not reader.keeps_alive


def test_a_body_that_gets_too_large_is_refused_while_it_comes():
    reader = ResponseReader(head_size_max=1_000, body_size_max=100)
    reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    with pytest.raises(MalformedAnswer, match="more than 100 bytes"):
        list(map(reader.feed, [b"a\r\n0123456789\r\n"] * 100))


def test_a_stream_that_is_taken_as_it_comes_may_be_as_long_as_it_likes():
    reader = ResponseReader(head_size_max=1_000, body_size_max=100)
    reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        reader.feed(b"a\r\n0123456789\r\n")
        assert reader.take() == b"0123456789"


@given(st.binary(max_size=100))
def test_noise_is_refused_or_waited_for_and_never_crashes(noise):
    try:
        read(b"HTTP/1.1 " + noise)
        read(noise) if noise else None
    except MalformedAnswer:
        pass
