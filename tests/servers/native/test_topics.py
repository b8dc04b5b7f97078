"""Topics by the native protocol: numbers, retention, deletion."""

from __future__ import annotations

import pytest

from millstream import Client
from millstream.config.schema import NativeConfig
from millstream.protocols.native import operations as ops
from millstream.protocols.native.error_codes import NativeErrorCode
from millstream.testing.broker import running_broker

from .client import NativeClient, Refused, get_json


def test_a_topic_has_a_number_of_its_own_and_keeps_it(tmp_path):
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
    ):
        first, second = client.create("first"), client.create("second")
        assert (first["id"], second["id"]) == (1, 2)
        client.call(ops.NativeOperation.DELETE_TOPIC, ops.topic_id_body(2))
        assert client.create("second")["id"] == 3
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
    ):
        assert client.topics() == {"first": 1, "second": 3}
        assert client.create("third")["id"] == 4
        with pytest.raises(Refused, match="the topic with number 2 was deleted") as refused:
            client.fetch(2, 0)
        assert refused.value.code == NativeErrorCode.TOPIC_DELETED
        assert client.create("first")["created_at"] == first["created_at"]


def test_numbers_of_topics_that_others_deleted_are_not_given_again(tmp_path):
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
        Client(broker.url) as http,
    ):
        number = client.create("mine")["id"]
        client.ingest(number, b"old")
        http.topic("mine").delete()
        http.create_topic("mine")
        for call in (client.get, lambda number: client.fetch(number, 0)):
            with pytest.raises(Refused) as refused:
                call(number)
            assert refused.value.code == NativeErrorCode.TOPIC_DELETED
        assert client.topics() == {"mine": number + 1}
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
    ):
        with pytest.raises(Refused) as refused:
            client.get(number)
        assert refused.value.code == NativeErrorCode.TOPIC_DELETED


def test_a_topic_that_exists_is_described_and_not_created_again(client, name):
    created = client.create(name)
    client.ingest(created["id"], b"one")
    assert client.create(name) == created == client.get(created["id"])
    assert client.fetch(created["id"], 0)[0].record_count == 1


def test_topics_of_other_clients_have_numbers_too(client, broker, name):
    with Client(broker.url) as http:
        http.create_topic(name, partitions=3)
        http.append(name, b"to the first", partition=0)
    number = client.topics()[name]
    assert client.fetch(number, 0)[0].record_count == 1


def test_retention_is_set_in_seconds_and_bytes(client, broker, name):
    created = client.create(name, ops.Retention(3600, 1_000_000))
    assert created["retention"] == {"max_age_secs": 3600, "max_bytes": 1_000_000}
    body = ops.set_retention_body(ops.SetRetention(created["id"], 0, 5000))
    client.call(ops.NativeOperation.SET_RETENTION, body)
    assert client.get(created["id"])["retention"] == {"max_age_secs": 0, "max_bytes": 5000}
    assert get_json(broker, f"/v1/topics/{name}")["configs"]["retention.bytes"] == "5000"
    client.call(
        ops.NativeOperation.SET_RETENTION,
        ops.set_retention_body(ops.SetRetention(created["id"], 0, 0)),
    )
    assert "retention" not in client.get(created["id"])


def test_a_topic_with_another_retention_is_not_taken_for_the_one_that_is_wanted(client, name):
    client.create(name, ops.Retention(3600, 0))
    client.create(name, ops.Retention(3600, 0))
    with pytest.raises(Refused, match="exists with another retention") as refused:
        client.create(name, ops.Retention(60, 0))
    assert refused.value.code == NativeErrorCode.TOPIC_EXISTS


def test_a_retention_that_is_too_long_is_refused(client, name):
    with pytest.raises(Refused, match="max_age_secs must be between 0 and"):
        client.create(name, ops.Retention(2**64 - 1, 0))
    assert name not in client.topics()


@pytest.mark.parametrize("bad", ["a topic", "a/b", "..", "n" * 250])
def test_a_bad_name_is_refused(client, bad):
    with pytest.raises(Refused) as refused:
        client.create(bad)
    assert refused.value.code == NativeErrorCode.INVALID_TOPIC_NAME


def test_a_number_that_was_never_given_is_unknown(client):
    with pytest.raises(Refused, match="there is no topic with number 4000000000") as refused:
        client.get(4_000_000_000)
    assert refused.value.code == NativeErrorCode.UNKNOWN_TOPIC


def test_more_topics_than_fit_one_transaction_get_numbers(tmp_path):
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
        Client(broker.url) as http,
    ):
        for number in range(120):
            http.create_topic(f"topic-{number}")
        listed = client.topics()
        assert sorted(listed.values()) == list(range(1, 121))


def test_the_status_of_a_lone_node_is_that_of_a_leader(client):
    _, payload = client.call(ops.NativeOperation.GET_CLUSTER_STATUS)
    assert payload.startswith(b'{"node_id":1,"is_leader":true,"leader_id":1,')
    assert b'"node_count":1,"healthy_nodes":1,"quorum_available":true,"peer_states":{}' in payload
