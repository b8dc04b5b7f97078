"""Messages about JSON: the place, what is allowed, what was found, in no library's words."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Raw, Struct

from millstream.errors import MalformedRequest
from millstream.protocols.http.strict_json import decode


class Row(Struct, forbid_unknown_fields=True, kw_only=True):
    partition: Annotated[int, Meta(ge=0, le=9)] | None = None
    key: Annotated[str, Meta(min_length=1, max_length=5)] | None = None
    value: Raw = Raw(b"null")


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    rows: Annotated[list[Row], Meta(max_length=3)]
    mode: Literal["fast", "safe"] = "safe"
    is_new: bool = False
    share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    names: dict[str, str] = {}
    limit: Annotated[int, Meta(ge=1)] | Literal["none"] = 1


CASES = {
    '{"rows": 7}': "body is invalid: rows must be a list of at most 3 items, got 7",
    "{}": "body must have the field 'rows'",
    "[]": "body must be a JSON object",
    '{"rows": [{}, {"partition": "1"}]}': (
        'body is invalid: rows[1].partition must be an integer between 0 and 9, got "1"'
    ),
    '{"rows": [{"partition": 10}]}': (
        "body is invalid: rows[0].partition must be an integer between 0 and 9, got 10"
    ),
    '{"rows": [{"partition": 1.5}]}': (
        "body is invalid: rows[0].partition must be an integer between 0 and 9, got 1.5"
    ),
    '{"rows": [{"partition": true}]}': (
        "body is invalid: rows[0].partition must be an integer between 0 and 9, got true"
    ),
    '{"rows": [{"key": ""}]}': (
        'body is invalid: rows[0].key must be text of 1 to 5 characters, got ""'
    ),
    '{"rows": [], "mode": "slow"}': (
        'body is invalid: mode must be one of "fast", "safe", got "slow"'
    ),
    '{"rows": [], "is_new": 1}': "body is invalid: is_new must be true or false, got 1",
    '{"rows": [], "share": 2}': "body is invalid: share must be a number between 0 and 1, got 2",
    '{"rows": [], "names": {"a": null}}': "body is invalid: names.a must be text, got null",
    '{"rows": [], "names": []}': "body is invalid: names must be an object, got a list of 0",
    '{"rows": [{}, {}, {}, {}]}': (
        "body is invalid: rows must be a list of at most 3 items, got a list of 4"
    ),
    '{"rows": [null]}': "body is invalid: rows[0] must be an object, got null",
    '{"rows": [], "limit": 0}': (
        'body is invalid: limit must be an integer of at least 1 or one of "none", got 0'
    ),
    '{"rows": [{"colour": 1}]}': (
        "body has the unknown field 'colour' in rows[0], allowed: 'partition', 'key', 'value'"
    ),
    "{": "body is not JSON in UTF-8: it ends too early",
    '{"rows": []': "body is not JSON in UTF-8: it ends too early",
    '{"rows": [],}': "body is not JSON in UTF-8: it is malformed at byte 12",
    "": "body is not JSON in UTF-8: it ends too early",
    "nul": "body is not JSON in UTF-8: it ends too early",
}


@pytest.mark.parametrize(("text", "words"), CASES.items(), ids=list(CASES))
def test_a_message_says_where_what_is_allowed_and_what_was_found(text, words):
    with pytest.raises(MalformedRequest) as caught:
        decode(text.encode(), Message)
    assert str(caught.value) == words


def test_bytes_that_are_not_text_are_named():
    with pytest.raises(MalformedRequest, match="body is not JSON in UTF-8: "):
        decode(b'{"rows": "\xff"}', Message)


@pytest.mark.parametrize("number", ["3.0", "3.000", "0.3e1", "30E-1"])
def test_an_integer_may_be_written_with_a_point_or_an_exponent(number):
    message = decode(
        f' {{"rows": [{{"partition": {number}}}], "limit": {number}}} '.encode(), Message
    )
    assert (message.rows[0].partition, message.limit) == (3, 3)


def test_numbers_in_values_stay_as_they_were_written():
    message = decode(b'{"rows": [{"partition": 3.0, "value": {"n": 3.0, "m": [1.0]}}]}', Message)
    assert bytes(message.rows[0].value) == b'{"n": 3.0, "m": [1.0]}'


@pytest.mark.parametrize("number", ["1e400", "9007199254740993.0", "3.5", "-0.5"])
def test_a_number_that_is_no_integer_is_refused(number):
    with pytest.raises(MalformedRequest):
        decode(f'{{"rows": [], "limit": {number}}}'.encode(), Message)
