"""Which rights an HTTP operation needs: declared with each, checked before its handler is called.

A need names an operation, a type of resource, and the parameter of the path with its name. What a
handler finds in a query or body, such as the topics of a subscription, it checks itself with
`HttpRequest.require`; such an operation says so with `checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.broker.access.resources import (
    CLUSTER,
    Operation,
    Resource,
    ResourceType,
)
from millstream.servers.http.routing.request import HttpRequest


class AccessNeed(NamedTuple):
    """A right to one resource."""

    operation: Operation
    kind: ResourceType
    parameter: str = ""
    """The parameter of the path with the name of the resource; empty for the cluster."""
    name_of: Callable[[HttpRequest], str] | None = None
    """Returns the name of the resource, if it is not just a parameter: the same function by which
    the handler finds it."""

    def resource(self, request: HttpRequest) -> Resource:
        """Return the resource that a request is about."""
        if self.kind is ResourceType.CLUSTER:
            return CLUSTER
        if self.name_of is not None:
            return Resource(self.kind, self.name_of(request))
        return Resource(self.kind, request.path_params[self.parameter])


class OperationAccess(NamedTuple):
    """Who may use an operation."""

    needs: tuple[AccessNeed, ...] = ()
    """Rights that the caller must have, all of them."""
    checks: str = ""
    """What the handler checks itself, in words."""
    is_filtered: bool = False
    """Whether it lists resources, without those that the caller may not describe."""
    is_open: bool = False
    """Whether everyone may use it."""


OPEN = OperationAccess(is_open=True)


def topic_access(operation: Operation, *, checks: str = "") -> OperationAccess:
    """Return the need of a right to the topic in the path."""
    return OperationAccess((AccessNeed(operation, ResourceType.TOPIC, "topic"),), checks)


def group_access(operation: Operation, *, checks: str = "") -> OperationAccess:
    """Return the need of a right to the group in the path."""
    return OperationAccess((AccessNeed(operation, ResourceType.GROUP, "group"),), checks)


def queue_access(
    operation: Operation, on_topic: Operation | None = None, *, checks: str = ""
) -> OperationAccess:
    """Return the need of a right to the queue in the path, and to its topic if that is given."""
    needs: tuple[AccessNeed, ...] = (AccessNeed(operation, ResourceType.GROUP, "queue"),)
    if on_topic is not None:
        needs += (AccessNeed(on_topic, ResourceType.TOPIC, "queue"),)
    return OperationAccess(needs, checks)


def cluster_access(operation: Operation) -> OperationAccess:
    """Return the need of a right to the cluster."""
    return OperationAccess((AccessNeed(operation, ResourceType.CLUSTER),))


def filtered(checks: str) -> OperationAccess:
    """Return the access of an operation that lists what the caller may describe."""
    return OperationAccess(checks=checks, is_filtered=True)


def checked(checks: str) -> OperationAccess:
    """Return the access of an operation whose handler checks everything itself."""
    return OperationAccess(checks=checks)
