"""Keys and values survive the conversion from JSON to bytes and back."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.http.strict_json import check
from millstream.protocols.http.values import (
    DEPTH_MAX,
    Base64,
    is_too_deep,
    text_bytes,
    text_json,
    value_bytes,
    value_json,
)

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["base64", "n"]) | st.text(st.characters(exclude_categories=["Cs"])),
            inner,
            max_size=4,
        )
    ),
)


def packed(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def is_packed(value: Any) -> bool:
    return (
        isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str)
    )


@given(ANYTHING, st.sampled_from([None, 0, 1]))
def test_any_json_reads_as_what_was_written(value: Any, indent: int | None) -> None:
    if is_packed(value):
        return  # Which stands for bytes.
    text = json.dumps(value, indent=indent, ensure_ascii=indent == 0).encode()
    check(text)
    stored = value_bytes(msgspec.Raw(text))
    assert stored == (None if value is None else text)
    shown = value_json(stored)
    assert b"\n" not in shown
    assert json.loads(shown) == value


@given(st.binary(max_size=50) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_come_back_as_they_were_whichever_way_they_are_shown(data: bytes) -> None:
    shown = value_json(data)
    json.loads(shown)
    back = value_bytes(msgspec.Raw(shown))
    assert back is not None
    if shown.startswith(b'{"base64"'):
        assert back == data
    else:  # White space around and between the tokens of JSON is not kept.
        assert back.split() == data.split()


@given(st.none() | st.binary(max_size=50))
def test_keys_and_headers_come_back_as_they_were(data: bytes | None) -> None:
    shown = text_json(data)
    assert text_bytes(msgspec.json.decode(shown, type=str | Base64 | None)) == data


@pytest.mark.parametrize(
    "text",
    [
        b'{"base64":"/wA="}',
        b' { "base64" : "/wA=" } ',
        b"{" + b" " * 100 + b'"base64":"/wA="}',
        b'{"b\\u0061se64":"/wA="}',
        b'{"base64":"\\u002fwA="}',
        b'{"base64":"\\/wA="}',
    ],
)
def test_bytes_are_bytes_however_their_object_is_written(text: bytes) -> None:
    assert value_bytes(msgspec.Raw(text)) == b"\xff\0"


@pytest.mark.parametrize("text", ["*", "QQ", "QQ=", "Q===", "QQ==\n", " QQ==", "_-8="])
def test_what_is_no_base64_is_refused(text: str) -> None:
    raw = msgspec.Raw(json.dumps({"base64": text}).encode())
    with pytest.raises(MalformedRequest, match="RFC 4648"):
        value_bytes(raw)
    with pytest.raises(MalformedRequest, match="RFC 4648"):
        text_bytes(Base64(text))


@pytest.mark.parametrize("value", [{"base64": 7}, {"base64": None}, {"base64": "QQ==", "n": 1}, {}])
def test_an_object_that_only_looks_like_bytes_is_a_value(value: Any) -> None:
    text = json.dumps(value).encode()
    assert value_bytes(msgspec.Raw(text)) == text
    assert value_json(text) == text


@pytest.mark.parametrize("data", [b"null", b" null ", b"{", b"", b"\xff", b"nul", b"1 2", b"\x00"])
def test_what_would_read_as_something_else_is_shown_as_bytes(data: bytes) -> None:
    assert json.loads(value_json(data)) == packed(data)


@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("core", [b"1", b"[]", b"{}"])
def test_the_depth_of_a_value_has_a_limit(start: bytes, end: bytes, core: bytes) -> None:
    levels = DEPTH_MAX - (core != b"1")
    fits = start * levels + core + end * levels
    assert value_bytes(msgspec.Raw(fits)) == value_json(fits) == fits
    deeper = start + fits + end
    with pytest.raises(MalformedRequest, match="deeper than 128"):
        value_bytes(msgspec.Raw(deeper))
    assert json.loads(value_json(deeper)) == packed(deeper)


def test_a_wide_value_is_not_a_deep_one() -> None:
    assert not is_too_deep(json.dumps([[{}]] * 1000).encode())
    assert not is_too_deep(json.dumps("[" * 1000).encode())
