"""InitProducerId, as clients see it."""

from __future__ import annotations

import itertools

import pytest

from millstream.errors import DiskFull
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from tests.servers.kafka.client import RawClient

ALL = range(6)
_names = itertools.count()


def init(client: RawClient, name: str | None, version: int = 5, **fields):
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=fields.pop("timeout_ms", 60_000), **fields
    )
    return client.call(request, version)


@pytest.fixture
def name():
    return f"id-{next(_names)}"


@pytest.mark.parametrize("version", ALL)
def test_producers_without_a_transactional_id_are_all_different(client, version):
    answers = [init(client, None, version, timeout_ms=-1) for _ in range(3)]
    assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0)] * 3
    assert len({answer.producer_id for answer in answers}) == 3


@pytest.mark.parametrize("version", ALL)
def test_instances_of_a_transactional_id_follow_each_other(client, name, version):
    first, second = init(client, name, version), init(client, name, version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_client_goes_on_after_an_error_with_the_next_epoch(client, name, version):
    first = init(client, name, version)
    for _ in range(2):
        again = init(client, name, version, producer_id=first.producer_id, producer_epoch=0)
        assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, ErrorCode.PRODUCER_FENCED),
        (5, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_a_client_that_was_overtaken_is_told_so_in_words_that_it_knows(client, name, version, code):
    first = init(client, name)
    init(client, name)
    answer = init(client, name, version, producer_id=first.producer_id, producer_epoch=0)
    assert answer.error_code == code
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": -5}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 2**31 - 1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_000}, ErrorCode.NONE),
    ],
)
def test_a_timeout_outside_the_limits_is_refused(client, name, version, fields, code):
    assert init(client, name, version, **fields).error_code == code


def test_an_empty_transactional_id_is_refused(client):
    assert init(client, "").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(5, -1), (-1, 5)])
def test_half_an_identity_is_refused(client, name, producer_id, producer_epoch):
    answer = init(client, name, producer_id=producer_id, producer_epoch=producer_epoch)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [
        (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("some id", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_who_comes_while_nothing_can_be_stored_is_told_to_come_again(
    client, broker, monkeypatch, transactional_id, code
):
    async def fail(*_):
        raise DiskFull("no room")

    monkeypatch.setattr(broker.server.broker.producer_ids, "take", fail)
    assert init(client, transactional_id).error_code == code
