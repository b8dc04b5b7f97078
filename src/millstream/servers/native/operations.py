"""Table of all native operations and their handlers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millstream.protocols.native.operations import NativeOperation
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

HANDLERS: Mapping[NativeOperation, Handler] = MappingProxyType(
    {
        NativeOperation.INGEST: ingest.ingest,
        NativeOperation.KEEPALIVE: keepalive.keepalive,
        NativeOperation.CREATE_TOPIC: topics.create_topic,
        NativeOperation.DELETE_TOPIC: topics.delete_topic,
        NativeOperation.LIST_TOPICS: topics.list_topics,
        NativeOperation.GET_TOPIC: topics.get_topic,
        NativeOperation.SET_RETENTION: topics.set_retention,
        NativeOperation.CREATE_TOPIC_WITH_RETENTION: topics.create_topic_with_retention,
        NativeOperation.GET_CLUSTER_STATUS: cluster.get_cluster_status,
        NativeOperation.AUTHENTICATE: login.authenticate,
        NativeOperation.FETCH: fetch.fetch,
        NativeOperation.SUBSCRIBE: subscriptions.subscribe,
        NativeOperation.UNSUBSCRIBE: subscriptions.unsubscribe,
        NativeOperation.COMMIT_OFFSET: subscriptions.commit_offset,
    }
)
