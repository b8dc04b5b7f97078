"""Several addresses of a cluster: which node is asked next."""

from __future__ import annotations

import json

import pytest

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.node_addresses import NodeAddresses, parse_node_urls
from millstream.clients.http.core.requests import Idempotency, Request
from millstream.clients.http.core.responses import ClientResponse
from millstream.clients.http.core.steps import (
    ClientContext,
    Pause,
    RetriedRequest,
    SendRequest,
)
from millstream.errors import InvalidConfig, MillstreamError, NodeUnreachable, OutcomeUnknown
from millstream.testing.clocks.manual_clock import ManualClock

OK = ClientResponse(200, {}, b"{}")


def refused(status: int, code: str, **detail: object) -> ClientResponse:
    body = {"error": {"code": code, "message": "m", "detail": detail or None}}
    return ClientResponse(status, {}, json.dumps(body).encode())


def run(
    effect: Idempotency, *answers: ClientResponse | MillstreamError
) -> tuple[list[str], ClientResponse]:
    """Return what was done: the host of each request, and pauses; and the response."""
    addresses = NodeAddresses([NodeUrl("a", 1), NodeUrl("b", 1)])
    context = ClientContext(addresses, ClientConfig(), ManualClock(), lambda: 0.0)
    steps = RetriedRequest(context, Request("POST", "/", effect)).steps()
    done, remaining = [], list(answers)
    step = next(steps)
    try:
        while True:
            if isinstance(step, Pause):
                done.append("pause")
                step = steps.send(None)
                continue
            assert isinstance(step, SendRequest)
            done.append(step.address.host)
            answer = remaining.pop(0)
            if isinstance(answer, MillstreamError):
                step = steps.throw(answer)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return done, end.value


def test_addresses_are_parsed_from_text_and_from_sequences():
    for urls in ("http://a:1,http://b:1", "http://a:1, http://b:1", ["http://a:1", "http://b:1"]):
        assert parse_node_urls(urls).all == (NodeUrl("a", 1), NodeUrl("b", 1))
    for wrong in ("", "http://a:1,", []):
        with pytest.raises(InvalidConfig):
            parse_node_urls(wrong)


def test_a_client_stays_with_a_node_that_answers():
    assert run(Idempotency.EACH, OK)[0] == ["a"]


@pytest.mark.parametrize(
    "failure",
    [
        NodeUnreachable("a", "refused"),
        refused(503, "leader_not_available"),
        refused(503, "stopping"),
        refused(409, "behind", end=3),
    ],
)
def test_the_next_node_is_asked_at_once_and_then_again_after_a_pause(
    failure: ClientResponse | MillstreamError,
):
    assert run(Idempotency.EACH, failure, OK)[0] == ["a", "b"]
    assert run(Idempotency.EACH, failure, failure, OK)[0] == ["a", "b", "pause", "a"]


def test_a_client_that_exceeds_its_quota_does_not_ask_another_node():
    failure = refused(429, "quota_exceeded", kind="quota", quota="q", throttle_ms=5)
    assert run(Idempotency.EACH, failure, OK)[0] == ["a", "pause", "a"]


def test_an_unknown_outcome_is_repeated_only_if_that_does_no_harm():
    unknown = refused(504, "outcome_unknown")
    assert run(Idempotency.SAME, unknown, OK)[0] == ["a", "b"]
    with pytest.raises(OutcomeUnknown):
        run(Idempotency.EACH, unknown, OK)


def test_callers_that_failed_together_move_on_together():
    addresses = NodeAddresses([NodeUrl("a", 1), NodeUrl("b", 1), NodeUrl("c", 1)])
    failed = addresses.current
    addresses.move_on(failed)
    addresses.move_on(failed)
    assert addresses.current.host == "b"
