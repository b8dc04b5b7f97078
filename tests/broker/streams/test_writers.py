"""Write marks: which are refused, and that undoing one leaves no trace."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.streams import writers as module
from millstream.broker.streams.writers import (
    DuplicateWrite,
    StreamClosure,
    StreamWriters,
    WriteMark,
    WriterPosition,
)
from millstream.errors import (
    InvalidRequest,
    MillstreamError,
    StaleStreamProducer,
    StreamClosed,
    StreamMismatch,
    StreamProducerGap,
)

CLOSED = StreamClosure(end_offset=5, producer="p", epoch=1, number=4)


def made(*, closure: StreamClosure | None = None) -> StreamWriters:
    return StreamWriters("s", producers={"p": WriterPosition(1, 4)}, sequence="b", closure=closure)


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        (WriteMark("p", 0, 9), StaleStreamProducer),
        (WriteMark("p", 1, 4), DuplicateWrite),
        (WriteMark("p", 1, 0), DuplicateWrite),
        (WriteMark("p", 1, 6), StreamProducerGap),
        (WriteMark("p", 2, 1), InvalidRequest),
        (WriteMark("new", 3, 1), StreamProducerGap),
        (WriteMark(sequence="b"), StreamMismatch),
        (WriteMark(sequence="a"), StreamMismatch),
        (WriteMark(sequence="B"), StreamMismatch),
        (WriteMark("p", 1, 4, sequence="a"), DuplicateWrite),
    ],
)
def test_a_mark_that_does_not_follow_is_refused(mark: WriteMark, error: type[Exception]) -> None:
    writers = made()
    with pytest.raises(error):
        writers.check(mark)
    assert vars(writers) == vars(made())


@pytest.mark.parametrize(
    "mark",
    [
        WriteMark(),
        WriteMark("p", 1, 5),
        WriteMark("p", 2, 0),
        WriteMark("new", 7, 0),
        WriteMark(sequence="ba"),
        WriteMark("p", 1, 5, sequence="c", is_closing=True),
    ],
)
def test_a_mark_that_follows_is_taken(mark: WriteMark) -> None:
    made().check(mark)


@pytest.mark.parametrize(
    ("mark", "has_data", "error"),
    [
        (WriteMark(), True, StreamClosed),
        (WriteMark("p", 1, 4), True, DuplicateWrite),
        (WriteMark("p", 1, 5), True, StreamClosed),
        (WriteMark("q", 0, 0), True, StreamClosed),
        (WriteMark("p", 0, 0), True, StaleStreamProducer),
        (WriteMark(is_closing=True), False, DuplicateWrite),
    ],
)
def test_a_closed_stream_knows_who_closed_it(
    mark: WriteMark, has_data: bool, error: type[Exception]
) -> None:
    with pytest.raises(error):
        made(closure=CLOSED).check(mark, has_data=has_data)


def test_no_more_producers_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 1)
    with pytest.raises(InvalidRequest, match="at most 1 producers"):
        made().check(WriteMark("another", 0, 0))
    made().check(WriteMark("p", 1, 5))


marks = st.builds(
    WriteMark,
    st.sampled_from([None, "p", "q"]),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from([None, "a", "b", "c"]),
    st.booleans(),
)


@given(st.lists(marks, max_size=12), st.integers(0, 12))
def test_what_is_undone_was_never_there(sent: list[WriteMark], kept: int) -> None:
    writers, undos, before = StreamWriters("s"), [], []
    for offset, mark in enumerate(sent):
        before.append(deepcopy(vars(writers)))
        try:
            writers.check(mark)
        except (MillstreamError, DuplicateWrite):
            before.pop()
            continue
        undos.append(writers.apply(mark, offset + 1))
    kept = min(kept, len(undos))
    for undo in reversed(undos[kept:]):
        writers.undo(undo)
    if kept < len(before):
        assert vars(writers) == before[kept]


@given(st.lists(marks, max_size=12))
def test_a_producers_numbers_are_taken_once_each_and_in_order(sent: list[WriteMark]) -> None:
    writers, taken = StreamWriters("s"), []
    for offset, mark in enumerate(sent):
        try:
            writers.check(mark)
        except (MillstreamError, DuplicateWrite):
            continue
        writers.apply(mark, offset + 1)
        if mark.producer is not None:
            taken.append(mark[:3])
    assert len(set(taken)) == len(taken)
    for producer, epoch, number in taken:
        assert number == 0 or (producer, epoch, number - 1) in taken
