"""Usage of HTTP clients and their quotas, with a manual clock."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.quotas import ClientQuotaEntity, QuotaKind, Quotas
from millstream.errors import MalformedRequest, QuotaExceeded
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.routing.throttle import THROTTLE_SECONDS_MAX, Throttle
from millstream.servers.http.routing.usage import (
    DELIVERY_QUOTAS,
    ClientUsage,
    QuotaMeter,
    client_id_of,
)
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.metadata.memory import MemoryMetadata

PRODUCE, CONSUME, REQUEST = QuotaKind.PRODUCE, QuotaKind.CONSUME, QuotaKind.REQUEST


class Bench:
    """A meter, and quotas that are empty at first."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.quotas = Quotas(MemoryMetadata())
        self.counters = HttpCounters()
        self.meter = QuotaMeter(self.quotas, self.clock, self.counters)

    def allow(self, client_id: str, **rates: float | None) -> None:
        asyncio.run(self.quotas.alter(ClientQuotaEntity(None, client_id), rates))

    def usage(self, client_id: str) -> ClientUsage:
        return self.meter.usage([(b"client-id", client_id.encode())])


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Who it is.


@pytest.mark.parametrize(
    ("headers", "client_id"),
    [
        ([], ""),
        ([(b"client-id", b"")], ""),
        ([(b"host", b"a"), (b"client-id", b"etl")], "etl"),
        ([(b"client-id", b"a b/c=d&e")], "a b/c=d&e"),
        ([(b"client-id", "ünï 漢字".encode())], "ünï 漢字"),
        ([(b"client-id", b"x" * 255)], "x" * 255),
    ],
)
def test_a_client_is_who_it_says(headers, client_id):
    assert client_id_of(headers) == client_id


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([b"x" * 256], "Client-Id must have at most 255 characters, got 256"),
        ([b"a\tb"], "Client-Id must be printable"),
        ([b"a\x1b[31m"], "Client-Id must be printable"),
        (["a\u2028b".encode()], "Client-Id must be printable"),
        ([b"\xff\xfe"], "Client-Id must be UTF-8"),
        ([b"a", b"a"], "Client-Id must be given once"),
        ([b"", b"a"], "Client-Id must be given once"),
    ],
)
def test_a_hostile_client_id_is_refused(values, says):
    with pytest.raises(MalformedRequest, match=says):
        client_id_of([(b"client-id", value) for value in values])


# What it owes.


def test_where_nobody_has_a_quota_nothing_is_owed(bench):
    usage = bench.usage("etl")
    assert usage.is_free
    assert usage.charge(PRODUCE, 10**12) == 0
    usage.check(PRODUCE)
    assert usage.throttle_ms == 0


def test_usage_is_taken_after_the_fact_and_then_waited_for(bench):
    bench.allow("etl", producer_byte_rate=1000)
    usage = bench.usage("etl")
    usage.check(PRODUCE)
    assert usage.charge(PRODUCE, 10_000) == 0  # As much as flows in ten seconds.
    usage.check(PRODUCE)
    assert usage.charge(PRODUCE, 1500) == 1500
    with pytest.raises(QuotaExceeded) as refused:
        bench.usage("etl").check(REQUEST, PRODUCE)
    assert (refused.value.quota, refused.value.throttle_ms) == ("producer_byte_rate", 1500)
    bench.clock.advance(1.499)
    with pytest.raises(QuotaExceeded, match="try again in 1 ms"):
        usage.check(PRODUCE)
    bench.clock.advance(0.001)
    usage.check(PRODUCE)
    assert bench.counters.throttled == {"producer_byte_rate": 2}
    assert bench.counters.throttle_seconds["producer_byte_rate"] == pytest.approx(1.501)


def test_who_owes_one_thing_may_use_another(bench):
    bench.allow("etl", producer_byte_rate=1, consumer_byte_rate=1)
    usage = bench.usage("etl")
    usage.charge(PRODUCE, 100)
    usage.check(CONSUME, REQUEST)
    with pytest.raises(QuotaExceeded):
        usage.check(CONSUME, PRODUCE)


def test_the_longest_wait_is_told(bench):
    bench.allow("etl", producer_byte_rate=1, consumer_byte_rate=1)
    usage = bench.usage("etl")
    usage.charge(PRODUCE, 15)
    usage.charge(CONSUME, 30)
    found = usage.owed((REQUEST, PRODUCE, CONSUME))
    assert found == (CONSUME, 20_000)


def test_clients_are_charged_by_themselves(bench):
    bench.allow("etl", producer_byte_rate=1)
    bench.usage("etl").charge(PRODUCE, 10**6)
    bench.usage("other").check(PRODUCE)
    bench.usage("").check(PRODUCE)


# Time.


def test_only_the_time_that_the_loop_spends_is_measured(bench):
    bench.allow("etl", request_percentage=10)
    usage = bench.usage("etl")

    async def work() -> str:
        bench.clock.advance(0.25)
        await asyncio.sleep(0)
        bench.clock.advance(0.25)
        return "done"

    async def run() -> str:
        working = asyncio.ensure_future(usage.measured(work()))
        await asyncio.sleep(0)
        bench.clock.advance(100.0)  # While it waits, others do what they like.
        return await working

    assert asyncio.run(run()) == "done"
    bench.quotas.charge(REQUEST, "ANONYMOUS", "etl", 1.0, bench.clock.monotonic())  # All it has.
    usage.settle()
    assert usage.throttle_ms == 5_000  # 0.5 s at a tenth of a core.
    usage.settle()
    assert bench.usage("etl").owed([REQUEST]) == (REQUEST, 5_000)


def test_work_that_is_called_off_is_called_off_where_it_waits(bench):
    bench.allow("etl", request_percentage=10)
    seen = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("called off")
            raise

    async def run() -> None:
        working = asyncio.ensure_future(bench.usage("etl").measured(work()))
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(run())
    assert seen == ["called off"]


def test_an_error_of_measured_work_is_its_own(bench):
    bench.allow("etl", request_percentage=10)

    async def work() -> None:
        await asyncio.sleep(0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(bench.usage("etl").measured(work()))


def test_work_that_nobody_has_a_quota_for_is_not_touched(bench):
    async def work() -> None:
        pass

    one = work()
    assert bench.usage("etl").measured(one) is one
    one.close()


# Live delivery.


def test_a_delivery_is_held_until_nothing_is_owed(bench):
    bench.allow("etl", consumer_byte_rate=1000)
    usage, woken = bench.usage("etl"), []
    holding = Throttle(usage, bench.timers, lambda: woken.append(bench.clock.monotonic()))
    assert not holding.is_held()
    usage.charge(CONSUME, 12_000)
    assert holding.is_held()
    bench.timers.advance(1.0)
    assert holding.is_held()
    assert woken == []
    bench.timers.advance(1.0)
    assert woken == [2.0]
    assert not holding.is_held()
    assert bench.counters.held_deliveries == {"consumer_byte_rate": 1}
    assert bench.counters.throttle_seconds["consumer_byte_rate"] == 2.0


def test_a_delivery_looks_again_while_it_is_held_for_long(bench):
    """The quota may have been raised meanwhile."""
    bench.allow("etl", consumer_byte_rate=1)
    usage, woken = bench.usage("etl"), []
    holding = Throttle(usage, bench.timers, lambda: woken.append(bench.clock.monotonic()))
    usage.charge(CONSUME, 10**6)
    assert holding.is_held()
    bench.allow("etl", consumer_byte_rate=None)
    bench.timers.advance(THROTTLE_SECONDS_MAX)
    assert woken == [THROTTLE_SECONDS_MAX]
    assert not holding.is_held()
    assert bench.timers.pending == 0


def test_what_is_closed_wakes_nobody(bench):
    bench.allow("etl", consumer_byte_rate=1)
    usage = bench.usage("etl")
    holding = Throttle(usage, bench.timers, lambda: pytest.fail("woken"))
    usage.charge(CONSUME, 100)
    assert holding.is_held()
    holding.close()
    bench.timers.advance(1000)


def test_delivery_waits_for_what_it_uses():
    assert set(DELIVERY_QUOTAS) == {CONSUME, REQUEST}
