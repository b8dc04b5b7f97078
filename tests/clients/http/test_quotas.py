"""Both clients at a node with quotas: they send their client id, and wait when throttled."""

from __future__ import annotations

import pytest

from millstream.broker.access.principal import ANONYMOUS
from millstream.broker.quotas import ClientQuotaEntity, QuotaKind
from millstream.clients.http.core.config import ClientConfig
from millstream.errors import InvalidConfig, QuotaExceeded
from millstream.testing.clocks.manual_clock import ManualClock

from .scripted import ScriptedNode, answer, refusal

TOPICS = answer(200, {"topics": [], "next": None})
JOBS = answer(200, {"jobs": [], "cost": {}})


def owing(throttle_ms: int) -> bytes:
    detail = {"quota": "consumer_byte_rate", "throttle_ms": throttle_ms}
    return refusal(429, "quota_exceeded", detail, retry_after=str(-(-throttle_ms // 1000)))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def patient(connect, clock):
    """Create clients whose pauses take no time and are recorded in `paused`."""

    def make(url, **options):
        return connect(url, clock=clock, pause=pause, jitter=lambda: 0.0, **options)

    def pause(seconds):
        make.paused.append(seconds)
        clock.advance(seconds)

    make.paused = []
    return make


def test_a_client_waits_as_long_as_it_owes(patient):
    with ScriptedNode(owing(1_250), owing(300), TOPICS) as node:
        assert patient(node.url).topics() == []
        assert patient.paused == [1.25, 0.3]
        assert len(node.seen) == 3


def test_a_claim_that_was_refused_did_nothing_and_is_made_again(patient):
    with ScriptedNode(owing(500), JOBS) as node:
        assert patient(node.url).queue("q").claim() == []
        assert [seen.path for seen in node.seen] == ["/v1/queues/q/claim"] * 2


def test_a_wait_beyond_the_deadline_is_not_begun(patient):
    config = ClientConfig(timeout_s=2.0)
    with ScriptedNode(owing(2_500)) as node, pytest.raises(QuotaExceeded) as refused:
        patient(node.url, config=config).topics()
    assert refused.value.throttle_ms == 2_500
    assert patient.paused == []


def test_a_client_says_who_it_is(connect, broker):
    quotas, clock = broker.server.broker.quotas, broker.server.broker.clock
    entity = ClientQuotaEntity(None, "ünï etl")

    async def owe() -> None:
        await quotas.alter(entity, {"request_percentage": 1.0})
        quotas.charge(QuotaKind.REQUEST, ANONYMOUS.name, "ünï etl", 10_000.0, clock.monotonic())

    broker.run(owe())
    try:
        with pytest.raises(QuotaExceeded):
            connect(broker.url, config=ClientConfig(client_id="ünï etl")).topics()
        connect(broker.url).topics()
    finally:
        broker.run(quotas.alter(entity, {"request_percentage": None}))


@pytest.mark.parametrize("wrong", ["a\r\nx: y", "a\tb", "\x00", " a", "a ", "x" * 256])
def test_a_client_id_cannot_become_a_header_of_its_own(wrong):
    with pytest.raises(InvalidConfig, match="client_id must be"):
        ClientConfig(client_id=wrong)
