"""Only JSON with the same meaning for every reader is accepted, and errors say what is wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.http.records import AppendBody
from millstream.protocols.http.strict_json import check, decode
from millstream.protocols.http.topics import TopicBody

from .test_values import ANYTHING


@given(ANYTHING, st.booleans(), st.sampled_from([None, 1]), st.sampled_from([(",", ":"), None]))
def test_json_is_taken_however_it_is_spaced_and_escaped(
    value: Any, ascii_only: bool, indent: int | None, separators: tuple[str, str] | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    found = check(text.encode())
    assert json.loads(json.dumps(found)) == json.loads(text)


@given(
    st.dictionaries(st.sampled_from(["a", "b", '"', "\\", "é", ""]), ANYTHING, min_size=1),
    st.data(),
)
def test_a_field_twice_is_found_however_it_is_written(value: dict[str, Any], data: Any) -> None:
    fields = [(name, json.dumps(part, separators=(",", ":"))) for name, part in value.items()]
    twice = data.draw(st.sampled_from(fields))
    other = data.draw(st.sampled_from(["1", twice[1], '"x"']))
    fields.insert(data.draw(st.integers(0, len(fields))), (twice[0], other))
    escape = data.draw(st.booleans())
    space = data.draw(st.sampled_from(["", " "]))
    text = f",{space}".join(
        f"{json.dumps(name, ensure_ascii=escape)}:{space}{part}" for name, part in fields
    )
    inside = data.draw(st.sampled_from(["{%s}", "[{%s}]", '{"z":{%s}}', '{"z":[1,{%s}]}']))
    with pytest.raises(MalformedRequest, match="twice"):
        check((inside % text).encode())


def test_the_same_name_written_in_two_ways_is_the_same_name() -> None:
    with pytest.raises(MalformedRequest, match="the field 'a' twice"):
        check(b'{"a":1,"\\u0061":2}')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[]", "must be a JSON object"),
        (b"7", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"", "not JSON"),
        (b'{"records":[{"value":1}]} ?', "not JSON"),
        (b'{"records":[]}', "records must be a list of 1 to 10000 items, got a list of 0"),
        (b"{}", "must have the field 'records'"),
        (b'{"recrods":[]}', "'recrods', allowed: 'records', 'partition', 'node', 'producer'"),
        (b'{"records":[{"value":1},{"vlue":1}]}', "'vlue' in records[1], allowed: 'value'"),
        (b'{"records":[{"key":{"base":"x"}}]}', "'base' in records[0].key, allowed: 'base64'"),
        (b'{"records":[{},{},{"partition":-1}]}', "records[2].partition must be"),
        (b'{"records":[{},{"headers":{"a":7}}]}', "records[1].headers.a must be"),
        (
            b'{"records":[{}],"producer":{"id":1,"epoch":0}}',
            "the field 'sequence' in producer",
        ),
        (b'{"records":[{}],"producer":{"id":1,"epoch":0,"seq":1}}', "'seq' in producer"),
        (b'{"records":{"0":{}}}', "records must be a list of 1 to 10000 items, got an object"),
    ],
)
def test_an_error_says_where_it_is_and_what_is_allowed(body: bytes, said: str) -> None:
    with pytest.raises(MalformedRequest) as error:
        decode(body, AppendBody)
    assert said in str(error.value)


def test_words_that_are_not_allowed_are_told_with_those_that_are() -> None:
    with pytest.raises(MalformedRequest) as error:
        decode(b'{"durability":"tape"}', TopicBody)
    assert 'durability must be one of "disk", "ephemeral", "fsync", "memory", got "tape"' in str(
        error.value
    )


def test_no_error_repeats_much_of_what_was_sent() -> None:
    for name in ("x" * 100_000, "\\" * 100_000):
        body = json.dumps({name: 1, **{f"f{n}": n for n in range(1000)}}).encode()
        with pytest.raises(MalformedRequest) as error:
            decode(body, AppendBody)
        assert len(str(error.value)) < 1000


class Deep(msgspec.Struct):
    """A recursive message."""

    value: msgspec.Raw


def deep(depth: int) -> bytes:
    return b'{"value":' + b"[" * depth + b"]" * depth + b"}"


def test_depth_that_nobody_minds_is_taken() -> None:
    assert decode(deep(500), Deep)


@pytest.mark.parametrize("depth", [1_000, 5_000, 100_000])
def test_depth_that_would_end_the_interpreter_is_refused(depth: int) -> None:
    with pytest.raises(MalformedRequest, match="nested too deeply"):
        decode(deep(depth), Deep)
