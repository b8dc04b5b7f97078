"""A request as handlers see it: Starlette's request with the parts of the server behind it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from starlette.requests import Request
from starlette.types import Receive, Scope

from millstream.broker.access.access import Access
from millstream.broker.access.caller import Caller
from millstream.broker.access.resources import CLUSTER, Operation, Resource, ResourceType
from millstream.broker.broker import Broker
from millstream.broker.topics.record_appender import AppendTimings
from millstream.config.schema import HttpConfig
from millstream.servers.http.routing.callers import caller_of, require
from millstream.servers.http.routing.recorded_body import RecordedBody
from millstream.servers.http.routing.usage import ClientUsage, QuotaMeter
from millstream.servers.http.shutdown_signal import ShutdownSignal
from millstream.tracing import Span

if TYPE_CHECKING:
    from millstream.servers.http.forwarding.request_forwarder import RequestForwarder
    from millstream.servers.http.handlers.node import NodeReport
    from millstream.servers.http.live.live_delivery import LiveDelivery


CHANGES = frozenset({Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS})
"""Rights to change something that lasts, other than records."""

ABORT = (Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
"""The right to end the transaction of someone else."""

FORWARDED = "millstream.forwarded"
"""In the scope of a request that another node has forwarded: the id of that node."""


@dataclass(frozen=True, slots=True)
class HttpContext:
    """Everything that handlers share: the broker, the settings and the server's services."""

    broker: Broker
    config: HttpConfig
    shutdown: ShutdownSignal
    live: LiveDelivery
    meter: QuotaMeter
    node: NodeReport | None = None
    """Absent if the application runs without a node, as in tests."""
    access: Access | None = None
    """The gate; None if everyone may do everything."""
    forwarder: RequestForwarder | None = None
    """Takes the requests that other nodes are responsible for; None on a lone node."""


class HttpRequest(Request):
    """One HTTP request, with what the server notes about it while it is handled."""

    def __init__(self, scope: Scope, receive: Receive, context: HttpContext | None) -> None:
        super().__init__(scope, receive)
        # Only an application without a broker has no context, and its operations use none.
        self.context = cast("HttpContext", context)
        self.span: Span | None = None
        """Set if the request is traced."""
        self.timings: AppendTimings | None = None
        """Times of the append that the request made, reported in `Server-Timing`."""
        self.is_long_poll = False
        """Whether the client asked to wait: the response time then says nothing about the node."""
        self.granted: list[tuple[Operation, Resource]] = []
        """Rights that the request relies on: it is cut off when one of them is taken."""
        self.charged: ClientUsage | None = None
        """The usage of the client, once it was needed."""

    @property
    def usage(self) -> ClientUsage:
        """Return the usage of the client; raises `MalformedRequest` for a bad `Client-Id`."""
        usage = self.charged
        if usage is None:
            headers, is_charged = self.scope["headers"], FORWARDED not in self.scope
            usage = self.charged = self.context.meter.usage(headers, is_charged=is_charged)
            if self.context.access is not None:
                usage.user = self.caller.principal.name
        return usage

    # Rights.

    @property
    def caller(self) -> Caller:
        """Who sends the request; raises `NotAuthenticated` if its token is not valid."""
        return caller_of(self.scope, self.context.access)

    def require(self, operation: Operation, resource: Resource) -> None:
        """Raise unless the caller may do an operation on a resource."""
        access = self.context.access
        if access is not None:
            require(access, self.caller, operation, resource)
            self.granted.append((operation, resource))

    def require_topic(self, operation: Operation, name: str) -> None:
        self.require(operation, Resource(ResourceType.TOPIC, name))

    def require_creation(self, name: str) -> None:
        """Raise unless the caller may create the topic, or any topic."""
        access = self.context.access
        if access is None:
            return
        if access.check(self.caller, Operation.CREATE, CLUSTER):
            self.granted.append((Operation.CREATE, CLUSTER))
        else:
            self.require_topic(Operation.CREATE, name)

    def live_slot(self) -> AbstractContextManager[None]:
        """Count a live connection for the caller; raises `CapExceeded` if it has too many."""
        slots = self.context.broker.caps.live
        return nullcontext() if slots is None else slots.taken(self.caller)

    def note_changes(self) -> None:
        """Record what the caller has created, changed or deleted with this request."""
        access = self.context.access
        if access is not None:
            for operation, resource in dict.fromkeys(self.granted):
                # Nothing but an abort needs a right to a transactional id.
                if operation in CHANGES or (operation, resource.kind) == ABORT:
                    access.note_change(self.caller, operation, resource)

    def may(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the caller may do an operation; for lists that are filtered."""
        access = self.context.access
        return access is None or access.check(self.caller, operation, resource)

    def may_describe_topic(self, name: str) -> bool:
        return self.may(Operation.DESCRIBE, Resource(ResourceType.TOPIC, name))

    def may_describe_group(self, name: str) -> bool:
        return self.may(Operation.DESCRIBE, Resource(ResourceType.GROUP, name))

    def record_body(self) -> RecordedBody:
        """Keep the body from now on, so that the request can be forwarded."""
        body = RecordedBody(self._receive)
        self._receive = body.receive
        return body

    def note_timings(self, timings: AppendTimings) -> AppendTimings:
        """Report the times of an append in `Server-Timing` and in the span.

        Returns them for the response body, with the time that the client has to wait before its
        next request.
        """
        self.timings = timings
        if self.span is not None:
            self.span.set_attribute("millstream.append.wait_ms", timings.throttle_ms)
            self.span.set_attribute("millstream.fsync_ms", timings.fsync_ms)
            self.span.step("commit", timings.commit_ms / 1000)
        return with_throttle(timings, self.usage.throttle_ms)


def with_throttle(timings: AppendTimings, throttle_ms: int) -> AppendTimings:
    """Return the times with `throttle_ms`, if that is longer than the wait they already contain."""
    if throttle_ms <= timings.throttle_ms:
        return timings
    return timings._replace(throttle_ms=throttle_ms)
