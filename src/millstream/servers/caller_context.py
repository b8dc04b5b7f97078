"""What handlers of all servers know of the client of a request: its rights and its quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import Principal
from millstream.broker.access.resources import (
    CLUSTER,
    Operation,
    Resource,
    ResourceType,
    group,
    topic,
    transactional_id,
)
from millstream.errors import MillstreamError
from millstream.servers.api_needs import ApiNeeds

if TYPE_CHECKING:
    from millstream.broker.access.access import Access
    from millstream.broker.broker import Broker
    from millstream.broker.quotas import QuotaKind


class CallerContext:
    """Base of the contexts of requests. Only names the fields that it needs."""

    __slots__ = ("throttle_ms",)

    broker: Broker
    caller: Caller
    client_id: str
    access: Access | None
    """The gate; `None` if everyone may do everything."""
    needs: ApiNeeds
    """Which operations the API does."""
    throttle_ms: int
    """How long the client has to wait before its next request, as known so far."""

    @property
    def principal(self) -> Principal:
        """Who sends the request."""
        return self.caller.principal

    def charge(self, kind: QuotaKind, amount: float) -> int:
        """Charge the client for what it used; return how long it has to wait now, in total."""
        quotas = self.broker.quotas
        if not quotas.is_empty:
            now = self.broker.clock.monotonic()
            wait_ms = quotas.charge(kind, self.principal.name, self.client_id, amount, now)
            self.throttle_ms = max(self.throttle_ms, wait_ms)
        return self.throttle_ms

    # Rights.

    def require_topic(self, name: str) -> None:
        """Raise unless the caller may do to the topic what the API does."""
        if self.access is not None:
            self.access.require(self.caller, self.needs.on(ResourceType.TOPIC), topic(name))

    def require_group(self, name: str) -> None:
        """Raise unless the caller may do to the group what the API does."""
        if self.access is not None:
            self.access.require(self.caller, self.needs.on(ResourceType.GROUP), group(name))

    def require_transactional_id(self, name: str) -> None:
        """Raise unless the caller may do to the transactional id what the API does."""
        if self.access is not None:
            operation = self.needs.on(ResourceType.TRANSACTIONAL_ID)
            self.access.require(self.caller, operation, transactional_id(name))

    def require_cluster(self) -> None:
        """Raise unless the caller may do to the cluster what the API does."""
        if self.access is not None:
            self.access.require(self.caller, self.needs.on(ResourceType.CLUSTER), CLUSTER)

    def cluster_refusal(self) -> MillstreamError | None:
        """Return the error if the caller may not do to the cluster what the API does."""
        try:
            self.require_cluster()
        except MillstreamError as error:
            return error
        return None

    def require_creation(self, name: str) -> None:
        """Raise unless the caller may create the topic, or any topic."""
        access, caller = self.access, self.caller
        if access is None or access.check(caller, Operation.CREATE, CLUSTER):
            return
        access.require(caller, Operation.CREATE, topic(name))

    def note_change(self, resource: Resource, operation: Operation | None = None) -> None:
        """Record that the caller has changed a resource, by what the API does to it if not said."""
        if self.access is not None:
            done = operation or self.needs.on(resource.kind)
            self.access.note_change(self.caller, done, resource)

    def may(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the caller may do an operation; for lists that are filtered."""
        return self.access is None or self.access.check(self.caller, operation, resource)

    def may_describe_topic(self, name: str) -> bool:
        return self.may(Operation.DESCRIBE, topic(name))
