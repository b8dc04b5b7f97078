"""Quota rules with an explicit time: which clients share a bucket, and how much it allows."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.broker.quota_rules import (
    BURST_SECONDS,
    DEFAULT,
    THROTTLE_MS_MAX,
    ClientQuotaEntity,
    QuotaKind,
    TokenBucket,
    TokenBuckets,
    check_entity,
    check_rate,
    quota_candidates,
    quota_kind_named,
    resolve_quota,
)
from millstream.errors import InvalidRequest

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200

ORDER = [
    ClientQuotaEntity("u", "c"),
    ClientQuotaEntity("u", DEFAULT),
    ClientQuotaEntity("u", None),
    ClientQuotaEntity(DEFAULT, "c"),
    ClientQuotaEntity(DEFAULT, DEFAULT),
    ClientQuotaEntity(DEFAULT, None),
    ClientQuotaEntity(None, "c"),
    ClientQuotaEntity(None, DEFAULT),
]
WHO = ClientQuotaEntity("u", "c")


# Which quota applies.


def test_the_order_is_kafkas():
    assert list(quota_candidates("u", "c")) == ORDER


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_in_order_holds_whatever_else_there_is(first):
    rates = {entity: float(number) for number, entity in enumerate(ORDER) if number >= first}
    found = resolve_quota(rates, "u", "c")
    assert found is not None
    assert found[1] == first


def test_no_quota_holds_where_none_fits():
    assert resolve_quota({}, "u", "c") is None
    assert (
        resolve_quota(
            {ClientQuotaEntity("v", None): 1.0, ClientQuotaEntity(None, "d"): 1.0}, "u", "c"
        )
        is None
    )


@pytest.mark.parametrize(
    ("quota", "shared_by"),
    [
        (ClientQuotaEntity("u", "c"), ClientQuotaEntity("u", "c")),
        (ClientQuotaEntity("u", DEFAULT), ClientQuotaEntity("u", "c")),
        (ClientQuotaEntity("u", None), ClientQuotaEntity("u", None)),
        (ClientQuotaEntity(DEFAULT, "c"), ClientQuotaEntity("u", "c")),
        (ClientQuotaEntity(DEFAULT, DEFAULT), ClientQuotaEntity("u", "c")),
        (ClientQuotaEntity(DEFAULT, None), ClientQuotaEntity("u", None)),
        (ClientQuotaEntity(None, "c"), ClientQuotaEntity(None, "c")),
        (ClientQuotaEntity(None, DEFAULT), ClientQuotaEntity(None, "c")),
    ],
)
def test_a_quota_is_shared_by_all_that_it_does_not_tell_apart(quota, shared_by):
    assert resolve_quota({quota: 1.0}, "u", "c") == (shared_by, 1.0)


def test_a_user_called_default_is_not_the_default():
    assert resolve_quota({ClientQuotaEntity(DEFAULT, None): 1.0}, "default", "c") == (
        ClientQuotaEntity("default", None),
        1.0,
    )
    assert resolve_quota({ClientQuotaEntity("default", None): 1.0}, "u", "c") is None


@pytest.mark.parametrize(
    ("entity", "words"),
    [
        (ClientQuotaEntity("u", None), "user 'u'"),
        (ClientQuotaEntity(DEFAULT, "c"), "default user, client-id 'c'"),
        (ClientQuotaEntity(None, DEFAULT), "default client-id"),
    ],
)
def test_an_entity_can_be_told(entity, words):
    assert str(check_entity(entity)) == words


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        (ClientQuotaEntity(None, None), "requires a user, a client id, or both"),
        (ClientQuotaEntity("", None), "characters, got 0"),
        (ClientQuotaEntity(None, "x" * 256), "between 1 and 255 characters, got 256"),
    ],
)
def test_an_entity_that_cannot_be_is_refused(entity, message):
    with pytest.raises(InvalidRequest, match=message):
        check_entity(entity)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", QuotaKind)
def test_a_rate_is_above_nothing_and_below_everything(kind, rate):
    with pytest.raises(InvalidRequest, match=f"{kind.value} must be .* above 0, got {rate}"):
        check_rate(kind, rate)


@pytest.mark.parametrize("kind", [QuotaKind.PRODUCE, QuotaKind.CONSUME])
@pytest.mark.parametrize("rate", [0.5, 1.5, 2.0**63])
def test_bytes_come_whole(kind, rate):
    with pytest.raises(InvalidRequest, match="a whole number of bytes"):
        check_rate(kind, rate)


def test_shares_and_partitions_need_not():
    assert check_rate(QuotaKind.REQUEST, 0.5) == 0.5
    assert check_rate(QuotaKind.MUTATION, 1.5) == 1.5
    assert check_rate(QuotaKind.PRODUCE, 1e6) == 1e6


def test_a_kind_is_called_as_kafka_calls_it():
    assert {quota_kind_named(kind.value) for kind in QuotaKind} == set(QuotaKind)
    with pytest.raises(
        InvalidRequest, match=r"quota must be one of .*, got 'connection_creation_rate'"
    ):
        quota_kind_named("connection_creation_rate")


# Buckets.


def test_a_full_bucket_holds_the_burst_and_then_the_rate():
    buckets = TokenBuckets()
    assert buckets.take(WHO, 100.0, 100 * BURST_SECONDS, now=0.0) == 0
    assert buckets.take(WHO, 100.0, 100, now=0.0) == 1000
    assert buckets.wait_ms(WHO, 100.0, now=0.0) == 1000
    assert buckets.wait_ms(WHO, 100.0, now=0.75) == 250
    assert buckets.wait_ms(WHO, 100.0, now=1.0) == 0
    assert buckets.take(WHO, 100.0, 1, now=1.0) == 10


def test_what_was_used_is_owed_however_much_it_was():
    buckets = TokenBuckets()
    assert buckets.take(WHO, 1.0, 1e15, now=0.0) == THROTTLE_MS_MAX
    assert buckets.take(ClientQuotaEntity("v", None), 1.0, BURST_SECONDS + 5, now=0.0) == 5000


def test_a_clock_that_stands_or_runs_back_gives_nothing():
    bucket = TokenBucket(0.0, 10.0)
    for now in (10.0, 5.0, -5.0):
        bucket.fill(100.0, now)
        assert bucket.tokens == 0
    bucket.fill(100.0, 11.0)
    assert bucket.tokens == 100


def test_another_rate_holds_at_once():
    buckets = TokenBuckets()
    buckets.take(WHO, 100.0, 1100, now=0.0)
    assert buckets.wait_ms(WHO, 100.0, now=0.0) == 1000
    assert buckets.wait_ms(WHO, 10.0, now=0.0) == 10_000
    assert buckets.wait_ms(WHO, 1000.0, now=0.0) == 100


def test_clients_do_not_share_buckets():
    buckets = TokenBuckets()
    assert buckets.take(ClientQuotaEntity("u", "c"), 1.0, 100, now=0.0) > 0
    assert buckets.wait_ms(ClientQuotaEntity("u", "d"), 1.0, now=0.0) == 0
    assert buckets.wait_ms(ClientQuotaEntity("u", None), 1.0, now=0.0) == 0


def test_a_bucket_that_is_full_again_is_forgotten():
    buckets = TokenBuckets()
    for number in range(50):
        buckets.take(ClientQuotaEntity("u", str(number)), 10.0, 50, now=0.0)
    assert len(buckets) == 50
    for _ in range(60):
        buckets.take(WHO, 10.0, 1, now=5.0)
    assert len(buckets) == 1


def test_a_bucket_that_owes_is_remembered():
    buckets = TokenBuckets()
    buckets.take(ClientQuotaEntity("u", "debtor"), 10.0, 1000, now=0.0)
    for number in range(100):
        buckets.take(ClientQuotaEntity("u", str(number)), 10.0, 1, now=50.0)
    assert buckets.wait_ms(ClientQuotaEntity("u", "debtor"), 10.0, now=50.0) == 40_000


def test_there_are_never_more_buckets_than_allowed():
    buckets = TokenBuckets(buckets_max=10)
    for number in range(1000):
        buckets.take(ClientQuotaEntity("u", str(number)), 1.0, 1000, now=0.0)
        assert len(buckets) <= 11
    assert buckets.wait_ms(ClientQuotaEntity("u", "999"), 1.0, now=0.0) == 990_000


@settings(max_examples=EXAMPLES)
@given(
    rate=st.floats(0.1, 1e9),
    uses=st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 50.0)), min_size=1, max_size=50),
)
def test_no_more_than_rate_and_burst_passes_a_client_that_waits_as_told(rate, uses):
    """`uses` are pauses in addition to the requested wait, and amounts in seconds of the rate."""
    buckets, now, passed = TokenBuckets(), 0.0, 0.0
    for pause, seconds in uses:
        now += pause
        allowed = rate * (now + BURST_SECONDS)
        assert passed <= allowed * (1 + 1e-9)
        wait_ms = buckets.take(WHO, rate, seconds * rate, now)
        passed += seconds * rate
        assert 0 <= wait_ms <= THROTTLE_MS_MAX
        now += wait_ms / 1000


@settings(max_examples=EXAMPLES)
@given(
    rate=st.floats(0.1, 1e6),
    times=st.lists(st.floats(-1e3, 1e6), min_size=1, max_size=30),
    amount=st.floats(0.0, 1e9),
)
def test_whatever_the_clock_does_no_wait_is_negative_and_no_bucket_overflows(rate, times, amount):
    buckets = TokenBuckets()
    for now in times:
        wait_ms = buckets.take(WHO, rate, amount, now)
        assert 0 <= wait_ms <= THROTTLE_MS_MAX
        assert buckets.wait_ms(WHO, rate, now) == wait_ms
    bucket = buckets._buckets[WHO][0]
    assert bucket.tokens <= rate * BURST_SECONDS


@settings(max_examples=EXAMPLES)
@given(
    rate=st.integers(1, 1000),
    uses=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5000)), max_size=40),
)
def test_forgetting_full_buckets_changes_nothing(rate, uses):
    forgetful, single = TokenBuckets(), TokenBucket(float(rate * BURST_SECONDS), 0.0)
    now = 0
    for pause, amount in uses:
        now += pause
        forgetful.take(ClientQuotaEntity("other", str(now)), float(rate), 0, float(now))
        single.fill(float(rate), float(now))
        single.tokens -= amount
        found = forgetful.take(WHO, float(rate), float(amount), float(now))
        assert found == single.wait_ms(float(rate))
