"""Which rights each native operation needs: one row for each.

Handlers ask the gate for the resources of a request by these rows and never name an operation
themselves, so what is in the table is what is checked. An operation without a row cannot be served.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millstream.broker.access.resources import Operation as Right
from millstream.protocols.native.operations import Operation
from millstream.servers.api_needs import OPEN, ApiNeeds

NEEDS: Mapping[Operation, ApiNeeds] = MappingProxyType(
    {
        Operation.INGEST: ApiNeeds(topic=Right.WRITE),
        Operation.KEEPALIVE: OPEN,
        # A topic that exists is described, and not created.
        Operation.CREATE_TOPIC: ApiNeeds(
            topic=Right.CREATE, cluster=Right.CREATE, is_cluster_enough=True
        ),
        Operation.DELETE_TOPIC: ApiNeeds(topic=Right.DELETE),
        Operation.LIST_TOPICS: ApiNeeds(topic=Right.DESCRIBE, is_filtered=True),
        Operation.GET_TOPIC: ApiNeeds(topic=Right.DESCRIBE),
        Operation.SET_RETENTION: ApiNeeds(topic=Right.ALTER_CONFIGS),
        Operation.CREATE_TOPIC_WITH_RETENTION: ApiNeeds(
            topic=Right.CREATE, cluster=Right.CREATE, is_cluster_enough=True
        ),
        Operation.GET_CLUSTER_STATUS: ApiNeeds(cluster=Right.DESCRIBE),
        Operation.AUTHENTICATE: OPEN,
        Operation.FETCH: ApiNeeds(topic=Right.READ),
        Operation.SUBSCRIBE: ApiNeeds(topic=Right.READ, group=Right.READ),
        Operation.UNSUBSCRIBE: ApiNeeds(topic=Right.READ, group=Right.READ),
        Operation.COMMIT_OFFSET: ApiNeeds(topic=Right.READ, group=Right.READ),
    }
)
"""The needs of every operation."""
