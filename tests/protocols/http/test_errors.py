"""Errors over HTTP: the client gets the error that the node raised."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from millstream import errors
from millstream.broker.partition.batch_validator import InvalidBatchRecord
from millstream.errors import (
    MillstreamError,
    NodeRefused,
    OffsetOutOfRange,
    QuotaExceeded,
    StaleReceipt,
)
from millstream.protocols.http.errors import KINDS, ErrorShape, code_of, error_of

OTHERS = {
    errors.NodeUnreachable,
    errors.NodeRefused,
    errors.MemberIdNeeded,
    errors.StreamClosed,
    errors.StaleStreamProducer,
    errors.StreamProducerGap,
}
ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MillstreamError) and kind not in OTHERS
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_a_code_that_stands_for_it(kind):
    assert KINDS[code_of(kind)] is kind


def test_codes_are_names_in_small_letters():
    assert code_of(errors.UnknownTopic) == "unknown_topic"
    assert code_of(errors.OutOfOrderSequence) == "out_of_order_sequence"


def test_a_class_for_one_place_has_the_code_of_the_one_that_all_know():
    assert code_of(InvalidBatchRecord) == "invalid_record"


NOT_PLAIN = {
    OffsetOutOfRange, StaleReceipt, QuotaExceeded, errors.WouldBlock, errors.DamagedRecords,
    errors.ReplicaMismatch,
}  # fmt: skip
PLAIN = [kind for kind in ALL if kind not in NOT_PLAIN]


@pytest.mark.parametrize("kind", PLAIN)
def test_an_error_comes_back_with_its_message(kind):
    found = error_of(400, ErrorShape(code=code_of(kind), message="because"))
    assert type(found) is kind
    assert str(found) == "because"


def test_numbers_come_back_where_an_error_has_some():
    detail = {"offset": 7, "start": 1, "end": 5}
    found = error_of(416, ErrorShape(code="offset_out_of_range", message="", detail=detail))
    assert isinstance(found, OffsetOutOfRange)
    assert (found.offset, found.start, found.end) == (7, 1, 5)
    stale = error_of(
        409, ErrorShape(code="stale_receipt", message="", detail={"stale": ["a"], "done": 3})
    )
    assert isinstance(stale, StaleReceipt)
    assert (stale.receipts, stale.done) == (("a",), 3)
    detail = {"quota": "producer_byte_rate", "throttle_ms": 1500}
    owed = error_of(429, ErrorShape(code="quota_exceeded", message="", detail=detail))
    assert isinstance(owed, QuotaExceeded)
    assert (owed.quota, owed.throttle_ms) == ("producer_byte_rate", 1500)


@pytest.mark.parametrize(
    "code", ["offset_out_of_range", "stale_receipt", "quota_exceeded", "no_such_error"]
)
@pytest.mark.parametrize(
    "detail",
    [None, {}, {"stale": [1], "done": "x"}, {"offset": "7"}, {"quota": "x", "throttle_ms": "1"}],
)
def test_what_has_no_error_here_is_a_refusal(code, detail):
    found = error_of(409, ErrorShape(code=code, message="because", detail=detail))
    assert isinstance(found, NodeRefused)
    assert (found.code, found.name, found.message) == (409, code, "because")


def test_the_shape_is_what_the_server_writes():
    shape = ErrorShape(code="a", message="b")
    assert msgspec.json.encode(shape) == b'{"code":"a","message":"b","detail":null}'


def test_damage_comes_back_with_its_range():
    shape = ErrorShape(code="damaged_records", message="why", detail={"from": 3, "to": 5})
    found = error_of(500, shape)
    assert isinstance(found, errors.DamagedRecords)
    assert (found.from_offset, found.to_offset) == (3, 5)
    bare = error_of(500, ErrorShape(code="damaged_records", message="why"))
    assert isinstance(bare, errors.NodeRefused)
