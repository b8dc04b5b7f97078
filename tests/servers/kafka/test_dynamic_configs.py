"""Configs that clients change while a node runs: effective at once, and after a restart."""

from __future__ import annotations

import uuid

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from millstream.protocols.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest
from millstream.testing.broker import running_broker

from .client import RawClient, batch_of
from .conftest import make_topic
from .handlers.test_produce import produce, produce_request


def change(broker, kind, name, **configs):
    """Set configs with a real client."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def heartbeat(client, group, topic):
    """Join a group, and return how often to send heartbeats."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=str(uuid.uuid4()),
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=(topic,),
        topic_partitions=(),
    )
    answer = client.call(request, 1)
    assert answer.error_code == 0, answer.error_message
    return answer.heartbeat_interval_ms


def test_the_limit_of_connections_per_address_holds_at_once_and_after_a_restart(tmp_path):
    for is_restarted in (False, True):
        with running_broker(tmp_path) as broker:
            if not is_restarted:
                change(broker, ConfigResource.Type.BROKER, "1", max_connections_per_ip="5")
            with RawClient(broker.bootstrap) as first:
                first.call(ApiVersionsRequest(), 3)
                held = [RawClient(broker.bootstrap) for _ in range(8)]
                assert held[-1].is_closed_by_peer()
                for client in held:
                    client.socket.close()


def test_the_heartbeat_interval_of_a_group_changes_and_that_of_others_does_not(tmp_path):
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        topic = make_topic(client)
        assert heartbeat(client, "g", topic) == 5000
        change(broker, ConfigResource.Type.GROUP, "g", consumer_heartbeat_interval_ms="7000")
        assert heartbeat(client, "g", topic) == 7000
        assert heartbeat(client, "other", topic) == 5000
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        assert heartbeat(client, "g", topic) == 7000


def test_a_limit_for_clients_without_a_quota_throttles_them(tmp_path):
    with running_broker(tmp_path) as broker, RawClient(broker.bootstrap) as client:
        topic = make_topic(client)
        assert produce(client, topic, batch_of(b"x" * 1000)).error_code == 0
        limit = {"millstream_limit_producer_bytes_per_second": "10"}
        change(broker, ConfigResource.Type.BROKER, "1", **limit)
        answer = client.call(produce_request(topic, batch_of(b"x" * 1000)), 9)
        assert answer.throttle_time_ms > 0
