"""Error codes between peers: one table, and no error that claims too much."""

from __future__ import annotations

import inspect

import pytest

from millstream import errors
from millstream.errors import MillstreamError, OutcomeUnknown, PeerUnavailable, Unavailable
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import (
    PEER_CODES,
    UNKNOWN_OUTCOMES,
    peer_code_of,
    peer_error_of,
)

OTHER_NAMES = {
    56: "STORAGE_ERROR",
    101: "DUPLICATE_NODE",
    102: "UNKNOWN_NODE",
    104: "WRONG_CLUSTER",
}
ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MillstreamError)
]


@pytest.mark.parametrize("code", [code for code in PeerErrorCode if code < 1000])
def test_a_code_that_kafka_has_keeps_its_number(code):
    assert OTHER_NAMES.get(code, ErrorCode(code).name) == code.name


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_has_a_code(kind):
    code = next(PEER_CODES[base] for base in kind.__mro__ if base in PEER_CODES)
    assert code is not PeerErrorCode.NONE


@pytest.mark.parametrize("code", [code for code in PeerErrorCode if code])
def test_a_code_says_whether_something_may_have_been_done(code):
    error = peer_error_of(code, "text")
    assert "text" in str(error)
    assert isinstance(error, OutcomeUnknown) == (code in UNKNOWN_OUTCOMES)


def test_a_code_of_a_newer_release_says_nothing_about_the_outcome():
    error = peer_error_of(1999, "text")
    assert isinstance(error, OutcomeUnknown)
    assert str(error) == "error 1999: text"


@pytest.mark.parametrize(
    ("error", "code", "arrives_as"),
    [
        (errors.UnknownTopic("t"), PeerErrorCode.UNKNOWN_TOPIC_OR_PARTITION, errors.UnknownTopic),
        (errors.ProducerFenced("p"), PeerErrorCode.PRODUCER_FENCED, errors.ProducerFenced),
        (errors.InvalidName("n"), PeerErrorCode.REFUSED, errors.RequestError),
        (errors.DiskFull("d"), PeerErrorCode.UNAVAILABLE, PeerUnavailable),
        (errors.Stopping("s"), PeerErrorCode.STOPPING, PeerUnavailable),
        (errors.LogClosed("l"), PeerErrorCode.NOT_LEADER_OR_FOLLOWER, PeerUnavailable),
        (errors.StorageFailed("f"), PeerErrorCode.STORAGE_ERROR, OutcomeUnknown),
        (errors.OutcomeUnknown("u"), PeerErrorCode.OUTCOME_UNKNOWN, OutcomeUnknown),
        (errors.MillstreamError("m"), PeerErrorCode.UNKNOWN_SERVER_ERROR, OutcomeUnknown),
        (PeerUnavailable("far", code=6), PeerErrorCode.UNAVAILABLE, PeerUnavailable),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_arrives_as_what_the_caller_can_act_on(error, code, arrives_as):
    assert peer_code_of(error) is code
    assert type(peer_error_of(code, str(error))) is arrives_as


def test_a_refusal_carries_its_code():
    error = peer_error_of(PeerErrorCode.NOT_LEADER_OR_FOLLOWER, "gone")
    assert isinstance(error, Unavailable)
    assert error.code == 6
    assert str(error) == "NOT_LEADER_OR_FOLLOWER: gone"
