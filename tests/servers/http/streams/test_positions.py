"""Offsets sort as text; cursors always increase."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.streams.row import MARK_MAX, MARK_MIN, StreamRow
from millstream.errors import MalformedRequest
from millstream.servers.http.streams.positions import (
    CURSOR_EPOCH_MS,
    CURSOR_SPACE_MS,
    OFFSET_MAX,
    cursor_after,
    offset_of,
    offset_text,
)

offsets = st.integers(0, OFFSET_MAX)


marks = st.just(0) | st.integers(MARK_MIN, MARK_MAX)


@given(offsets, offsets, marks)
def test_offsets_sort_as_text_and_read_back(one: int, other: int, mark: int) -> None:
    assert (offset_text(one, mark) < offset_text(other, mark)) == (one < other)
    assert offset_of(offset_text(one, mark)) == (one, mark or None)


@given(st.uuids(), st.lists(offsets, max_size=4), offsets)
def test_a_fork_shares_its_offsets_with_its_source_up_to_the_fork(
    topic_id: uuid.UUID, forks: list[int], offset: int
) -> None:
    row = StreamRow(topic="t", topic_id=topic_id, content_type="text/plain", created_ms=0)
    for fork_offset in forks:
        fork = StreamRow(
            topic="f",
            topic_id=uuid.uuid4(),
            content_type="text/plain",
            created_ms=0,
            inherited_marks=row.marks_until(fork_offset),
        )
        assert fork.mark_at(fork_offset) == row.mark_at(fork_offset)
        assert (fork.mark_at(offset) == row.mark_at(offset)) == (offset <= fork_offset)
        row = fork
    assert MARK_MIN <= row.mark_at(offset) <= MARK_MAX


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "1_2",
        "-2",
        "NOW",
        "0" * 16 + "_" + "0" * 15 + "1",
        "\u0660" * 16 + "_" + "0" * 16,
        "a\n",
    ],
)
def test_what_no_answer_gave_is_no_offset(text: str) -> None:
    with pytest.raises(MalformedRequest, match="offset must be"):
        offset_of(text)


@given(st.integers(0, 10**12), st.integers(0, 2**40))
def test_a_cursor_is_later_than_the_one_that_was_sent(past_ms: int, seed: int) -> None:
    draw = random.Random(seed).randint
    now_ms = CURSOR_EPOCH_MS + past_ms
    first = cursor_after(None, now_ms, draw)
    assert int(first) == past_ms // CURSOR_SPACE_MS
    second = cursor_after(first, now_ms, draw)
    assert int(first) < int(second) <= int(first) + 180
    assert int(cursor_after(second, now_ms, draw)) > int(second)


@pytest.mark.parametrize("sent", ["", "abc", "-5", "1" * 30])
def test_a_cursor_that_is_none_counts_as_none(sent: str) -> None:
    assert cursor_after(sent, CURSOR_EPOCH_MS + 40_000, random.Random(1).randint) == "2"
