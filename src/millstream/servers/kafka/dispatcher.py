"""From a frame to its handler."""

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
from millstream.servers.kafka.block_pool import ReceiveBlock
from millstream.servers.kafka.counters import KafkaCounters, RequestCounter
from millstream.servers.kafka.deferred_response import DeferredResponse
from millstream.servers.kafka.fast_produce import PendingFastProduce, begin_fast_produce
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.handlers.versions import unsupported_version
from millstream.servers.kafka.pending_request import PendingRequest
from millstream.servers.kafka.request_context import RequestContext
from millstream.servers.kafka.spans import describe_topics
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.tracing import Tracer

if TYPE_CHECKING:
    from millstream.servers.kafka.kafka_protocol import KafkaProtocol

Handler = Callable[[Any, RequestContext], Any]
"""Takes the request; returns the response, None, a `DeferredResponse` or a coroutine.

A coroutine holds up the requests behind it, so that those of one connection take effect in order.
"""


_PRODUCE = APIS[PRODUCE_KEY].name


class Dispatcher:
    """Has requests handled, and their answers given back to the sessions."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[int, Handler],
        *,
        config: KafkaConfig,
        fetch_sessions: FetchSessions,
        counters: KafkaCounters,
        tracer: Tracer | None = None,
    ) -> None:
        self._broker = broker
        self._config = config
        self._fetch_sessions = fetch_sessions
        self._tracer = tracer
        self._tasks = BackgroundTasks()
        self._routes = {
            key: (APIS[key], handler, RequestCounter()) for key, handler in handlers.items()
        }
        self._produced = self._routes[PRODUCE_KEY][2]
        counters.requests = {api.name: counter for api, _, counter in self._routes.values()}

    def begin(
        self, session: KafkaProtocol, frame: memoryview, block: ReceiveBlock
    ) -> PendingRequest | PendingFastProduce:
        """Begin one request. Raises `MalformedRequest` where the connection has to end."""
        tracer, span = self._tracer, None
        if frame[1] == PRODUCE_KEY:
            span = None if tracer is None else tracer.begin(_PRODUCE)
            plain = begin_fast_produce(session, frame, block, self._broker, self._produced, span)
            if plain is not None:
                return plain
        began = time.perf_counter()
        header, body = decode_request_header(frame)
        key, version, correlation_id, client_id = header
        route = self._routes.get(key)
        if route is None:
            raise MalformedRequest(f"API key {key} is not known")
        api, handler, counter = route
        versions = api.versions
        is_spoken = versions.first <= version <= versions.last
        if not is_spoken and key != API_VERSIONS_KEY:
            raise MalformedRequest(
                f"{api.name} of version {version} is not spoken,"
                f" allowed is {versions.first}-{versions.last}"
            )
        context = RequestContext(
            self._broker,
            self._config,
            self._fetch_sessions,
            version if is_spoken else 0,
            client_id or "",
            session.principal,
            session.host,
        )
        span = tracer.begin(api.name) if tracer is not None and key != PRODUCE_KEY else span
        exchange = PendingRequest(
            session, block, api, correlation_id, context, counter, began, span
        )
        if is_spoken:
            self._handle(session, exchange, handler, body)
        else:  # Tell a client that is too new what it may say.
            exchange.answer(unsupported_version())
        return exchange

    def _handle(
        self, session: KafkaProtocol, exchange: PendingRequest, handler: Handler, body: memoryview
    ) -> None:
        """Have a request answered, now or when its handler is done."""
        api, context = exchange.api, exchange.context
        try:
            request = decode(api.request, body, context.version, is_exact=False)
        except MalformedRequest as error:  # Say whose it is: that is where it has to be mended.
            whose = f"in {api.name} of client {context.client_id}"
            raise MalformedRequest(f"{error}, {whose}") from error
        if exchange.span is not None:
            describe_topics(exchange.span, request)
        try:
            result = handler(request, context)
        except Exception:  # noqa: BLE001 - An error of ours ends one connection, not the node.
            exchange.fail()
            return
        if type(result) is CoroutineType:
            session.hold()
            self._tasks.start(exchange.run(result))
            return
        exchange.busy_seconds = time.perf_counter() - exchange.began
        if type(result) is DeferredResponse:
            exchange.defer(result)
        else:
            exchange.answer(result)
