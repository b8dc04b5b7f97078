"""A cursor is text that names topics, their ids and the offsets to read next."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.records.cursor import (
    CURSOR_LENGTH_MAX,
    CURSOR_PATTERN,
    CursorPosition,
    decode_cursor,
    encode_cursor,
)

ID = uuid.UUID("c7725dd1-09a7-4642-bc9b-662fd694eae7")
TEXT = "x3Jd0QmnRkK8m2Yv1pTq5w"


def test_a_position_names_its_topic_by_name_and_id():
    assert encode_cursor({("orders", 0): CursorPosition(42, ID)}) == f"orders@{TEXT}:0:42"


def test_a_position_without_an_id_is_one_of_the_present_topic():
    positions = decode_cursor("orders:0:42")
    assert positions == {("orders", 0): CursorPosition(42)}
    assert not positions["orders", 0].is_foreign(ID)


def test_a_position_with_another_id_is_foreign():
    position = CursorPosition(42, ID)
    assert position.is_foreign(uuid.uuid4())
    assert not position.is_foreign(ID)
    assert not position.is_foreign(None)


@given(
    st.dictionaries(
        st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 10**9)),
        st.builds(CursorPosition, st.integers(0, 2**63 - 1), st.none() | st.uuids()),
        min_size=1,
        max_size=5,
    )
)
def test_every_cursor_reads_back_and_has_the_described_form(positions):
    text = encode_cursor(positions)
    assert decode_cursor(text) == positions
    assert re.fullmatch(CURSOR_PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders:0",
        "orders:0:",
        "orders:x:1",
        "orders:0:-1",
        ":0:1",
        "orders@:0:1",
        f"orders@{TEXT[:-1]}:0:1",
        f"orders@{TEXT}A:0:1",
        f"orders@{TEXT[:-1]}x:0:1",
        "orders@x3Jd0QmnRkK8m2Yv1pTq5é:0:1",
        f"@{TEXT}:0:1",
        "orders:0:1,",
    ],
)
def test_what_is_not_a_cursor_is_refused_with_its_form(text):
    with pytest.raises(MalformedRequest, match="expected topic@id:partition:offset"):
        decode_cursor(text)


def test_a_partition_must_not_be_named_twice():
    with pytest.raises(MalformedRequest, match="orders:0 twice"):
        decode_cursor(f"orders@{TEXT}:0:1,orders:0:1")


def test_a_cursor_has_a_limit():
    with pytest.raises(MalformedRequest, match=f"at most {CURSOR_LENGTH_MAX} characters"):
        decode_cursor("a" * (CURSOR_LENGTH_MAX + 1))
