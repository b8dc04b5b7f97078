"""Parsing of live events from bytes, split at any position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.clients.http.core.events import ServerSentEvent, ServerSentEventReader
from millstream.errors import MalformedAnswer


def events(data, *, cuts=(), size_max=10_000):
    reader = ServerSentEventReader(event_size_max=size_max)
    ends = [*sorted(cuts), len(data)]
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        found += reader.feed(data[start:end])
    return found


BOTH = [ServerSentEvent("message", b"x"), ServerSentEvent("message", b"y")]
STREAMS = {
    "one event": (b"event: a\nid: 7\ndata: x\n\n", [ServerSentEvent("a", b"x", "7")]),
    "no kind, no id": (b"data: x\n\n", [ServerSentEvent("message", b"x")]),
    "two lines of data": (b"data: x\ndata: y\n\n", [ServerSentEvent("message", b"x\ny")]),
    "one space is not part of a value": (
        b"data:  x\ndata:y\n\n",
        [ServerSentEvent("message", b" x\ny")],
    ),
    "a comment says nothing": (b": hello\n\ndata: x\n: ho\n\n", [ServerSentEvent("message", b"x")]),
    "no data, no event": (b"event: a\nid: 7\n\ndata: x\n\n", [ServerSentEvent("message", b"x")]),
    "an id belongs to its event": (
        b"id: 7\ndata: x\n\ndata: y\n\n",
        [ServerSentEvent("message", b"x", "7"), ServerSentEvent("message", b"y")],
    ),
    "lines end with both": (b"data: x\r\n\r\ndata: y\r\n\r\n", BOTH),
    "lines end as they once did": (b"data: x\r\rdata: y\r\r", BOTH),
    "a mark at the start": (b"\xef\xbb\xbfdata: x\n\n", [ServerSentEvent("message", b"x")]),
    "what is not complete waits": (b"data: x\n\ndata: y\n", [ServerSentEvent("message", b"x")]),
    "a line without a colon": (b"data\n\n", [ServerSentEvent("message", b"")]),
    "unknown fields": (b"retry: 7\nfoo: 1\ndata: x\n\n", [ServerSentEvent("message", b"x")]),
    "a colon in the value": (b'data: {"a": 1}\n\n', [ServerSentEvent("message", b'{"a": 1}')]),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "expected"), STREAMS.values(), ids=STREAMS)
def test_a_stream_gives_the_same_events_whole_and_byte_by_byte(stream, expected):
    assert events(stream) == expected
    assert events(stream, cuts=range(1, len(stream))) == expected
    for cut in range(len(stream)):
        assert events(stream, cuts=[cut]) == expected


def test_a_line_end_that_is_cut_is_one_line_end_though_nothing_comes_in_between():
    reader = ServerSentEventReader(event_size_max=100)
    pieces = (b"data: x\r", b"", b"\ndata: y\r\n\r\n")
    assert [event for piece in pieces for event in reader.feed(piece)] == [
        ServerSentEvent("message", b"x\ny")
    ]


line = st.sampled_from(
    [
        b"data: x",
        b"data:",
        b"data: \xc3\xbc",
        b"event: a",
        b"id: 1",
        b"id:",
        b": c",
        b"",
        b"",
        b"zz",
    ]
)
ending = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(line, ending), max_size=30), st.data())
def test_every_cut_of_every_stream_gives_the_same_events(lines, data):
    stream = b"".join(text + end for text, end in lines)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    assert events(stream, cuts=cuts) == events(stream)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_noise_gives_events_or_is_refused_and_never_crashes(noise, cuts):
    try:
        whole = events(noise)
    except MalformedAnswer:
        return
    assert events(noise, cuts=[min(cut, len(noise)) for cut in cuts]) == whole


@pytest.mark.parametrize(
    "piece", [b"x" * 1_000, b"data: " + b"x" * 100 + b"\n", b":" * 1_000], ids=["x", "data", ":"]
)
def test_an_event_without_an_end_is_refused_before_it_is_kept(piece):
    reader = ServerSentEventReader(event_size_max=5_000)
    with pytest.raises(MalformedAnswer, match="at most 5000 bytes"):
        list(map(reader.feed, [piece] * 100))


def test_an_event_of_the_largest_size_is_taken():
    assert len(events(b"data:" + b"x" * 90 + b"\n\n", size_max=95)) == 1
    with pytest.raises(MalformedAnswer):
        events(b"data:" + b"x" * 91 + b"\n\n", size_max=95)


def test_comments_without_end_are_not_kept():
    reader = ServerSentEventReader(event_size_max=100)
    for _ in range(1_000):
        assert reader.feed(b": still here\n\n") == []


def test_an_id_that_is_no_text_is_refused():
    with pytest.raises(MalformedAnswer, match="not UTF-8"):
        events(b"id: \xff\ndata: x\n\n")
