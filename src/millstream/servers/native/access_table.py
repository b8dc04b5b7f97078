"""Which rights each native operation needs: one row for each.

Handlers ask the gate for the resources of a request by these rows and never name an operation
themselves, so what is in the table is what is checked. An operation without a row cannot be served.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millstream.broker.access.resources import Operation as Right
from millstream.protocols.native.operations import NativeOperation
from millstream.servers.api_needs import OPEN, ApiNeeds

NEEDS: Mapping[NativeOperation, ApiNeeds] = MappingProxyType(
    {
        NativeOperation.INGEST: ApiNeeds(topic=Right.WRITE),
        NativeOperation.KEEPALIVE: OPEN,
        # A topic that exists is described, and not created.
        NativeOperation.CREATE_TOPIC: ApiNeeds(
            topic=Right.CREATE, cluster=Right.CREATE, is_cluster_enough=True
        ),
        NativeOperation.DELETE_TOPIC: ApiNeeds(topic=Right.DELETE),
        NativeOperation.LIST_TOPICS: ApiNeeds(topic=Right.DESCRIBE, is_filtered=True),
        NativeOperation.GET_TOPIC: ApiNeeds(topic=Right.DESCRIBE),
        NativeOperation.SET_RETENTION: ApiNeeds(topic=Right.ALTER_CONFIGS),
        NativeOperation.CREATE_TOPIC_WITH_RETENTION: ApiNeeds(
            topic=Right.CREATE, cluster=Right.CREATE, is_cluster_enough=True
        ),
        NativeOperation.GET_CLUSTER_STATUS: ApiNeeds(cluster=Right.DESCRIBE),
        NativeOperation.AUTHENTICATE: OPEN,
        NativeOperation.FETCH: ApiNeeds(topic=Right.READ),
        NativeOperation.SUBSCRIBE: ApiNeeds(topic=Right.READ, group=Right.READ),
        NativeOperation.UNSUBSCRIBE: ApiNeeds(topic=Right.READ, group=Right.READ),
        NativeOperation.COMMIT_OFFSET: ApiNeeds(topic=Right.READ, group=Right.READ),
    }
)
"""The needs of every operation."""
