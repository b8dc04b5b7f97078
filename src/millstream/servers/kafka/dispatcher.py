"""Dispatches frames to the handlers of their APIs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from millstream.broker.broker import Broker
from millstream.config.schema import KafkaConfig
from millstream.errors import MalformedRequest
from millstream.protocols.kafka.apis import API_VERSIONS_KEY, APIS, PRODUCE_KEY
from millstream.protocols.kafka.codec.message import decode
from millstream.protocols.kafka.header import decode_request_header
from millstream.servers.block_pool import ReceiveBlock
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.kafka.access_table import NEEDS
from millstream.servers.kafka.counters import KafkaCounters
from millstream.servers.kafka.fast_produce import PendingFastProduce, begin_fast_produce
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.handlers.versions import unsupported_version
from millstream.servers.kafka.pending_request import PendingRequest
from millstream.servers.kafka.request_context import RequestContext
from millstream.servers.kafka.spans import describe_topics
from millstream.servers.request_counters import RequestCounter
from millstream.servers.response_memory import ResponseMemory
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.tracing import Tracer, traced_as

if TYPE_CHECKING:
    from millstream.servers.kafka.kafka_protocol import KafkaProtocol

Handler = Callable[[Any, RequestContext], Any]
"""Takes the request; returns the response, None, a `DeferredResponse` or a coroutine.

A coroutine delays the requests behind it, so that those of one connection take effect in order.
"""


_PRODUCE = APIS[PRODUCE_KEY].name

SASL_KEYS = (17, 36)
"""SaslHandshake and SaslAuthenticate."""

FINDING_KEYS = (3, 10)
"""Metadata and FindCoordinator, by which clients find the node to ask."""

DECODED_FACTOR = 8
"""Memory of a decoded request, per byte of its frame, without records: small values take much."""


class Dispatcher:
    """Runs the handlers of requests, and passes their responses to the connections."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[int, Handler],
        *,
        config: KafkaConfig,
        fetch_sessions: FetchSessions,
        counters: KafkaCounters,
        response_memory: ResponseMemory | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._broker = broker
        self._access = broker.access
        self._config = config
        self._fetch_sessions = fetch_sessions
        self._response_memory = response_memory
        self._tracer = tracer
        self._tasks = BackgroundTasks()
        self._routes = {
            key: (APIS[key], handler, RequestCounter(), NEEDS[key])
            for key, handler in handlers.items()
        }
        self._produced = self._routes[PRODUCE_KEY][2]
        counters.requests = {api.name: counter for api, _, counter, _ in self._routes.values()}

    def begin(
        self, connection: KafkaProtocol, frame: memoryview, block: ReceiveBlock
    ) -> PendingRequest | PendingFastProduce:
        """Start one request. Raises `MalformedRequest` if the connection has to be closed."""
        tracer, span = self._tracer, None
        if frame[1] == PRODUCE_KEY:
            span = None if tracer is None else tracer.begin(_PRODUCE)
            fast = begin_fast_produce(connection, frame, block, self._broker, self._produced, span)
            if fast is not None:
                return fast
        began = time.perf_counter()
        header, body = decode_request_header(frame)
        key, version, correlation_id, client_id = header
        route = self._routes.get(key)
        if route is None:
            raise MalformedRequest(f"unknown API key {key}")
        api, handler, counter, needs = route
        versions = api.versions
        is_supported = versions.first <= version <= versions.last
        if not is_supported and key != API_VERSIONS_KEY:
            raise MalformedRequest(
                f"version of {api.name} must be between {versions.first} and {versions.last},"
                f" got {version}"
            )
        connection.client_id = client_id or ""
        context = RequestContext(
            self._broker,
            self._config,
            self._fetch_sessions,
            version if is_supported else 0,
            client_id or "",
            connection.caller,
            connection.host,
            self._response_memory,
            0,
            self._access,
            needs,
        )
        if key in SASL_KEYS:
            context.login = connection.login()
        elif key in FINDING_KEYS and self._broker.cluster.is_cut_off:
            # The response says that nobody leads. A client with no other connection (librdkafka
            # opens one at a time) would ask this node again and again; so it has to ask another.
            connection.end()
        span = tracer.begin(api.name) if tracer is not None and key != PRODUCE_KEY else span
        pending = PendingRequest(
            connection, block, api, correlation_id, context, counter, began, span
        )
        if is_supported:
            self._handle(connection, pending, handler, body)
        else:  # Tells a client that is too new which versions it may use.
            pending.answer(unsupported_version())
        return pending

    def _handle(
        self, connection: KafkaProtocol, pending: PendingRequest, handler: Handler, body: memoryview
    ) -> None:
        """Run the handler, and answer the request now or when the handler is done."""
        api, context = pending.api, pending.context
        try:
            request = decode(api.request, body, context.version, is_exact=False)
        except MalformedRequest as error:  # The client has to be fixed, so name it.
            raise MalformedRequest(
                f"{error}, in {api.name} of client {context.client_id}"
            ) from error
        if api.key != PRODUCE_KEY:
            # Only records are views into the frame, everything else was copied.
            pending.memory_bytes += DECODED_FACTOR * len(body)
            pending.release()
        if pending.span is not None:
            describe_topics(pending.span, request)
        if pending.span is None:
            self._run(connection, pending, handler, request)
        else:
            with traced_as(pending.span.traceparent):
                self._run(connection, pending, handler, request)

    def _run(
        self, connection: KafkaProtocol, pending: PendingRequest, handler: Handler, request: Any
    ) -> None:
        try:
            result = handler(request, pending.context)
        except Exception:  # noqa: BLE001 - an internal error ends one connection, not the node.
            pending.fail()
            return
        if type(result) is CoroutineType:
            connection.pause()
            self._tasks.start(pending.run(result))
            return
        pending.busy_seconds = time.perf_counter() - pending.began
        if type(result) is DeferredResponse:
            pending.defer(result)
        else:
            pending.answer(result)
