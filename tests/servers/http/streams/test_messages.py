"""Conversion of bodies to records and back."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from millstream.errors import MalformedRequest
from millstream.records.record import StoredRecord
from millstream.servers.http.streams import messages as module
from millstream.servers.http.streams.messages import body_of, json_messages, values_of

JSON = "application/json"


def stored(*values: bytes | None) -> list[StoredRecord]:
    return [StoredRecord(offset, 0, None, value) for offset, value in enumerate(values)]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(anything)
def test_what_is_read_is_what_was_written_as_an_array(message: object) -> None:
    messages = json_messages(json.dumps(message).encode())
    expected = message if isinstance(message, list) else [message]
    assert json.loads(body_of(JSON, stored(*messages))) == expected


def test_a_message_keeps_its_words() -> None:
    assert json_messages(b' [1.50, {"a" :1e3} ,"\\u00e9"] ') == [
        b"1.50",
        b'{"a" :1e3}',
        b'"\\u00e9"',
    ]
    assert json_messages(b" 12345678901234567890123 \n") == [b"12345678901234567890123"]


@pytest.mark.parametrize(
    "body", [b"{", b"[1,]", b"NaN", b"\xff", b'{"a":1,"a":2}', b"[" * 100_000, b"\xef\xbb\xbf1"]
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        json_messages(body)


def test_more_messages_than_a_batch_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGES_MAX", 2)
    assert len(json_messages(b"[1,2]")) == 2
    with pytest.raises(HTTPException, match="at most 2 messages, got 3"):
        json_messages(b"[1,2,3]")


@pytest.mark.parametrize("value", [b"\xff\xfe", b"{", b'"a\nb"', b"", b"nul"])
def test_a_kafka_value_that_is_no_json_is_shown_as_bytes(value: bytes) -> None:
    [first, second] = json.loads(body_of(JSON, stored(value, b"1")))
    assert first.keys() == {"base64"}
    assert second == 1


def test_bytes_are_one_record_and_read_as_they_are() -> None:
    assert asyncio.run(values_of("image/png", b"\0\xff")) == [b"\0\xff"]
    assert body_of("image/png", stored(b"\0", None, b"\xff")) == b"\0\xff"
    large = b"[" + b",".join([b'"0123456789"'] * 10_000) + b"]"
    assert len(asyncio.run(values_of(JSON, large))) == 10_000
