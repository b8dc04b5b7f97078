"""Peers: other servers that do some of what a node does, measured beside it."""

from __future__ import annotations

from measure.peers import Start

from peers.connector import running_connector
from peers.kafka import running_kafka, running_kafka_cluster
from peers.nats import running_nats, running_nats_cluster, running_nats_synced
from peers.redis import running_redis

STARTS: dict[str, Start] = {
    "kafka": running_kafka,
    "kafka cluster": running_kafka_cluster,
    "kafka connector": running_connector,
    "redis": running_redis,
    "nats": running_nats,
    "nats cluster": running_nats_cluster,
    "nats sync_interval=always": running_nats_synced,
}
"""How each is started. The first word is what `--peers` calls it."""

PEERS = tuple(dict.fromkeys(name.split()[0] for name in STARTS))
