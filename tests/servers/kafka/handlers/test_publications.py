"""PublishTransactions, as clients see it: many producers, one commit, once."""

from __future__ import annotations

import itertools

import pytest

from millstream.errors import DiskFull
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.publications import (
    PublishTransactionsRequest,
    PublishTransactionsRequestTransaction,
    RenewTransactionsRequest,
)
from millstream.protocols.kafka.messages.transactions import ListTransactionsRequest
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest
from millstream.testing.broker import running_broker
from tests.servers.kafka.client import RawClient
from tests.servers.kafka.conftest import make_topic

from .test_transactions import Producer, committed

_names = itertools.count()


@pytest.fixture
def query():
    """The name of a publisher."""
    return f"query-{next(_names)}"


def publish(client, query, *producers, sequence=0, **fields):
    fields.setdefault("prefix", f"{query}/")
    chosen = tuple(
        PublishTransactionsRequestTransaction(
            transactional_id=one.name, producer_id=one.id, producer_epoch=one.epoch
        )
        for one in producers
    )
    request = PublishTransactionsRequest(
        publisher=query, sequence=sequence, transactions=chosen, **fields
    )
    return client.call(request)


def tasks(client, query, topic, *values):
    """Producers that each wrote one value to one of two partitions."""
    made = []
    for number, value in enumerate(values):
        producer = Producer(client, name=f"{query}/{number}/0")
        producer.write(topic, value, number % 2)
        made.append(producer)
    return made


def shown(client, topic):
    return [*committed(client, topic, 0), *committed(client, topic, 1)]


def ids(client, query):
    found = client.call(ListTransactionsRequest()).transaction_states
    return {
        one.transactional_id: one.transaction_state
        for one in found
        if one.transactional_id.startswith(query)
    }


def test_it_is_announced(client):
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    (found,) = [one for one in client.call(request).api_keys if one.api_key == 1000]
    assert (found.min_version, found.max_version) == (0, 0)


def test_records_of_many_producers_are_seen_when_they_are_published_and_not_before(
    client, topic, query
):
    made = tasks(client, query, topic, b"a", b"b", b"c")
    assert shown(client, topic) == []
    answer = publish(client, query, *made)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.is_repeated, answer.last_sequence) == (False, 0)
    assert shown(client, topic) == [b"a", b"c", b"b"], "the answer means that they can be read"


def test_a_repetition_is_answered_as_done_and_its_records_are_never_seen(client, topic, query):
    publish(client, query, *tasks(client, query, topic, b"a", b"b"), sequence=4)
    again = tasks(client, query, topic, b"a", b"b")
    answer = publish(client, query, *again, sequence=4)
    assert (answer.error_code, answer.is_repeated, answer.last_sequence) == (0, True, 4)
    assert shown(client, topic) == [b"a", b"b"]
    assert publish(client, query, *tasks(client, query, topic, b"c"), sequence=5).error_code == 0
    assert shown(client, topic) == [b"a", b"c", b"b"]


def test_attempts_that_were_not_chosen_are_never_seen_and_hold_up_no_reader(client, topic, query):
    failed = Producer(client, name=f"{query}/0/attempt")
    failed.write(topic, b"half")
    publish(client, query, *tasks(client, query, topic, b"a", b"b"))
    assert shown(client, topic) == [b"a", b"b"]
    assert failed.send(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert failed.end(commit=True).error_code == ErrorCode.PRODUCER_FENCED


def test_a_task_that_was_published_can_write_nothing_more(client, topic, query):
    (task,) = tasks(client, query, topic, b"a")
    publish(client, query, task)
    (successor,) = tasks(client, query, topic, b"b")
    for partition in (0, 1):
        assert task.send(topic, b"late", partition) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert task.end(commit=True).error_code == ErrorCode.PRODUCER_FENCED
    publish(client, query, successor, sequence=1)
    assert shown(client, topic) == [b"a", b"b"]


def test_where_one_cannot_be_committed_none_is_and_it_is_named(client, topic, query):
    one, other = tasks(client, query, topic, b"a", b"b")
    Producer(client, name=other.name)
    answer = publish(client, query, one, other)
    assert answer.error_code == ErrorCode.PRODUCER_FENCED
    assert f"cannot commit transactional id {other.name!r}" in answer.error_message
    assert (answer.is_repeated, answer.last_sequence) == (False, -1)
    assert shown(client, topic) == []
    answer = publish(client, query, one)
    assert (answer.error_code, answer.is_repeated) == (0, False)
    assert shown(client, topic) == [b"a"]


def test_what_is_given_up_is_never_seen(client, topic, query):
    made = tasks(client, query, topic, b"a", b"b")
    answer = publish(client, query, committed=False)
    assert (answer.error_code, answer.is_repeated, answer.last_sequence) == (0, False, -1)
    assert shown(client, topic) == []
    assert publish(client, query, *made).error_code == ErrorCode.PRODUCER_FENCED


def test_a_final_publication_leaves_no_transactional_ids_behind(client, topic, query):
    made = tasks(client, query, topic, b"a", b"b")
    Producer(client, name=f"{query}/9/0")
    assert len(ids(client, query)) == 3
    assert publish(client, query, *made, is_final=True).error_code == 0
    assert ids(client, query) == {}
    assert publish(client, query, *made, is_final=True).is_repeated
    assert shown(client, topic) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"publisher": ""}, "publisher must have between 1 and 1024 characters, got 0"),
        ({"sequence": -1}, "sequence must be at least 0, got -1"),
        ({"prefix": "other"}, "prefix 'other' does not start with the publisher"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused_with_a_reason(client, fields, words):
    request = PublishTransactionsRequest(**{"publisher": "q", "sequence": 0, **fields})
    answer = client.call(request)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert words in answer.error_message


def test_what_cannot_be_stored_can_be_asked_for_again(client, broker, topic, query, monkeypatch):
    made = tasks(client, query, topic, b"a")

    async def fail(*_):
        raise DiskFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(broker.server.broker.transactions.of("")._store, "save_published", fail)
        answer = publish(client, query, *made)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answer.error_message == "no room"
    assert publish(client, query, *made).error_code == 0


def test_a_publication_is_remembered_over_a_restart(tmp_path):
    with running_broker(tmp_path) as node, RawClient(node.bootstrap) as client:
        topic = make_topic(client, partitions=2)
        assert publish(client, "q", *tasks(client, "q", topic, b"a", b"b")).error_code == 0
    with running_broker(tmp_path) as node, RawClient(node.bootstrap) as client:
        assert publish(client, "q", *tasks(client, "q", topic, b"a", b"b")).is_repeated
        assert shown(client, topic) == [b"a", b"b"]


def test_transactions_of_a_publisher_are_renewed_together(client, topic, query):
    tasks(client, query, topic, b"a", b"b")
    request = RenewTransactionsRequest(publisher=query, prefix=f"{query}/", duration_ms_max=600_000)
    answer = client.call(request)
    assert (answer.error_code, answer.transaction_count) == (0, 2)
    too_long = RenewTransactionsRequest(
        publisher=query, prefix=f"{query}/", duration_ms_max=900_001
    )
    answer = client.call(too_long)
    assert answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert "between 1 and 900000 ms, got 900001" in answer.error_message
