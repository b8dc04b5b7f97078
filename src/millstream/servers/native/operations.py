"""Table of all native operations and their handlers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millstream.protocols.native.operations import Operation
from millstream.servers.native.dispatcher import Handler
from millstream.servers.native.handlers import (
    cluster,
    fetch,
    ingest,
    keepalive,
    login,
    subscriptions,
    topics,
)

HANDLERS: Mapping[Operation, Handler] = MappingProxyType(
    {
        Operation.INGEST: ingest.ingest,
        Operation.KEEPALIVE: keepalive.keepalive,
        Operation.CREATE_TOPIC: topics.create_topic,
        Operation.DELETE_TOPIC: topics.delete_topic,
        Operation.LIST_TOPICS: topics.list_topics,
        Operation.GET_TOPIC: topics.get_topic,
        Operation.SET_RETENTION: topics.set_retention,
        Operation.CREATE_TOPIC_WITH_RETENTION: topics.create_topic_with_retention,
        Operation.GET_CLUSTER_STATUS: cluster.get_cluster_status,
        Operation.AUTHENTICATE: login.authenticate,
        Operation.FETCH: fetch.fetch,
        Operation.SUBSCRIBE: subscriptions.subscribe,
        Operation.UNSUBSCRIBE: subscriptions.unsubscribe,
        Operation.COMMIT_OFFSET: subscriptions.commit_offset,
    }
)
