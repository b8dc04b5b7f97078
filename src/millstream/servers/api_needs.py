"""What an API of a server does to the resources that a request names, for its table of rights."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.access.resources import Operation, ResourceType


class ApiNeeds(NamedTuple):
    """The operation that an API does on each type of resource that it names."""

    topic: Operation | None = None
    group: Operation | None = None
    transactional_id: Operation | None = None
    cluster: Operation | None = None
    is_filtered: bool = False
    """Whether it lists resources: those that the caller may not describe are left out."""
    is_cluster_enough: bool = False
    """Whether the right to the cluster replaces that to a topic or group."""
    is_open: bool = False
    """Whether everyone may use it, even before a login."""

    def on(self, kind: ResourceType) -> Operation:
        """Return the operation on resources of a type."""
        operation = {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.CLUSTER: self.cluster,
        }[kind]
        assert operation is not None, f"the API has a row for resources of type {kind.name}"
        return operation


OPEN = ApiNeeds(is_open=True)
"""The row of what everyone may use."""
