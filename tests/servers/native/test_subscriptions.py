"""Where native consumers are: subscriptions, and offsets that last."""

from __future__ import annotations

import pytest

from millstream.config.schema import LogConfig, NativeConfig
from millstream.protocols.native.error_codes import NativeErrorCode
from millstream.protocols.native.operations import END
from millstream.testing.broker import running_broker

from .client import NativeClient, Refused, get_json, metric

SUBSCRIPTIONS = "millstream_native_subscriptions"


def test_a_subscription_starts_where_it_is_asked_to(client, topic):
    client.ingest(topic, b"0", b"1", b"2")
    assert client.subscribe(topic, 0) == 0
    assert client.subscribe(topic, 2) == 2
    assert client.subscribe(topic, END) == 3
    client.unsubscribe(topic)
    client.unsubscribe(topic)


@pytest.mark.parametrize("offset", [4, 2**63])
def test_a_subscription_past_the_end_is_refused(client, topic, offset):
    client.ingest(topic, b"0", b"1", b"2")
    with pytest.raises(Refused, match="offset must be between 0 and 3") as refused:
        client.subscribe(topic, offset)
    assert refused.value.code == NativeErrorCode.OUT_OF_RANGE


def test_a_subscription_to_what_retention_took_is_refused_and_the_beginning_is_found(tmp_path):
    log = LogConfig(segment_bytes_max=1024, retention_records=3)
    with (
        running_broker(tmp_path, log=log, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
    ):
        number = client.create("capped")["id"]
        for value in range(10):
            client.ingest(number, b"%d" % value)
        assert client.subscribe(number, 0) == 7
        with pytest.raises(Refused, match="offset must be between 7 and 10, got 3"):
            client.subscribe(number, 3)


def test_commits_are_kept_as_the_offsets_of_a_group_and_survive_a_restart(tmp_path):
    with (
        running_broker(tmp_path, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
    ):
        number = client.create("orders")["id"]
        client.ingest(number, b"0", b"1", b"2")
        client.subscribe(number, 0, consumer=0xAB)
        client.commit(number, 2, consumer=0xAB)
        client.unsubscribe(number, consumer=0xAB)
    with running_broker(tmp_path, native_server=NativeConfig()) as broker:
        group = get_json(broker, "/v1/groups/native-00000000000000ab")
        [offset] = group["offsets"]
        assert (offset["topic"], offset["partition"], offset["lag"]) == ("orders", 0, 1)


def test_an_offset_that_no_log_can_have_is_not_committed(client, topic):
    with pytest.raises(Refused) as refused:
        client.commit(topic, END)
    assert refused.value.code == NativeErrorCode.OUT_OF_RANGE


def test_subscriptions_are_counted_until_their_connection_ends(tmp_path):
    with running_broker(tmp_path, native_server=NativeConfig()) as broker:
        with NativeClient(broker.native) as client:
            number = client.create("orders")["id"]
            client.subscribe(number, 0, consumer=1)
            client.subscribe(number, 0, consumer=2)
            client.subscribe(number, 0, consumer=2)
            assert metric(broker, SUBSCRIPTIONS) == 2
            client.unsubscribe(number, consumer=1)
            assert metric(broker, SUBSCRIPTIONS) == 1
            client.ingest(number, b"0", b"1")
            client.fetch(number, 0)

            async def offsets():
                return [entry.offset for entry in broker.server._native.subscriptions]

            assert broker.run(offsets()) == [2]
        while metric(broker, SUBSCRIPTIONS):
            pass
