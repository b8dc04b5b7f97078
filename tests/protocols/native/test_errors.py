"""Errors on the native protocol: a code for each, and what programs need with it."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from millstream import errors
from millstream.protocols.native.error_codes import NOT_SENT, RETRIABLE, NativeErrorCode
from millstream.protocols.native.errors import CODES, RETRIABLE_WORD, code_of, error_body

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.MillstreamError)
]


def body(error):
    return msgspec.json.decode(error_body(error))


def test_every_code_of_the_description_is_there():
    assert {int(code) for code in NativeErrorCode} == {
        *range(0x01, 0x07),
        *range(0x10, 0x14),
        *range(0x20, 0x24),
        *range(0x30, 0x33),
        *range(0x40, 0x43),
        *range(0x50, 0x53),
        *range(0x60, 0x63),
    }
    assert {int(code) for code in RETRIABLE} == {*range(0x20, 0x24), 0x30, 0x31, 0x62}


def test_every_code_belongs_to_an_error_or_is_never_sent():
    sent = set(CODES.values())
    assert sent | NOT_SENT == set(NativeErrorCode)
    assert not sent & NOT_SENT


@pytest.mark.parametrize("kind", ALL)
def test_an_error_is_retriable_exactly_if_nothing_was_done_or_nobody_knows(kind):
    may_retry = issubclass(kind, errors.Unavailable | errors.OutcomeUnknown)
    stops = issubclass(kind, errors.DiskFull)
    is_closed = issubclass(kind, errors.LogClosed)
    code = next(CODES[base] for base in kind.__mro__ if base in CODES)
    assert (code in RETRIABLE) == ((may_retry and not stops) or is_closed)


def test_errors_bring_what_programs_need():
    assert body(errors.UnknownTopic("no such topic")) == {
        "code": 0x10,
        "message": "no such topic",
        "details": {},
    }
    assert body(errors.OffsetOutOfRange(5, start=10, end=20))["details"] == {
        "offset": 5,
        "start": 10,
        "end": 20,
    }
    assert body(errors.QuotaExceeded("producer_byte_rate", 300))["details"] == {
        "retry_after_ms": 300,
        "quota": "producer_byte_rate",
        "retry": RETRIABLE_WORD,
    }
    assert body(errors.NotLeader("elsewhere", leader=3))["details"]["leader"] == 3
    assert body(errors.NotCoordinator("elsewhere", coordinator=2))["details"]["coordinator"] == 2
    damage = errors.DamagedRecords("a file", "bad", from_offset=1, to_offset=2)
    assert body(damage)["details"] == {"from": 1, "to": 2}
    assert code_of(damage) is NativeErrorCode.STORAGE


def test_published_clients_try_again_after_retriable_errors_only():
    assert RETRIABLE_WORD.encode() in error_body(errors.NotLeader("no leader now"))
    assert RETRIABLE_WORD.encode() not in error_body(errors.InvalidRequest("wrong"))
