"""One request with its response."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from millstream.broker.quotas import QuotaKind
from millstream.protocols.kafka.apis import Api
from millstream.protocols.kafka.codec.message import encode_parts
from millstream.protocols.kafka.header import encode_response_header
from millstream.records.batch import Bytes
from millstream.servers.block_pool import ReceiveBlock
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.kafka.request_context import RequestContext
from millstream.servers.kafka.spans import describe
from millstream.servers.request_counters import RequestCounter
from millstream.tracing import Span

if TYPE_CHECKING:
    from millstream.servers.kafka.kafka_protocol import KafkaProtocol

logger = logging.getLogger(__name__)

REQUEST_BYTES = 4096
"""Memory of a request in flight, apart from its content."""

WAIT_STEP_NAMES = {"Produce": "commit", "Fetch": "wait for records"}
"""Names of the span steps in which a deferred request waits, by API."""


class PendingRequest:
    """A request from when it was read until its response was handed to the socket."""

    __slots__ = (
        "_block",
        "_connection",
        "_correlation_id",
        "_counter",
        "_deferred",
        "api",
        "began",
        "busy_seconds",
        "context",
        "memory_bytes",
        "parts",
        "span",
    )

    def __init__(  # noqa: PLR0917 - made once for each request.
        self,
        connection: KafkaProtocol,
        block: ReceiveBlock,
        api: Api,
        correlation_id: int,
        context: RequestContext,
        counter: RequestCounter,
        began: float,
        span: Span | None = None,
    ) -> None:
        self._connection = connection
        self._block: ReceiveBlock | None = block
        self.api = api
        self._correlation_id = correlation_id
        self.context = context
        self._counter = counter
        self.began = began
        self._deferred: DeferredResponse | None = None
        self.parts: list[Bytes] | None = None
        """The response; `None` until it is ready, empty if the client wants none."""
        self.memory_bytes = REQUEST_BYTES
        """Memory that the request takes until its response is sent, about."""
        self.busy_seconds = 0.0
        """Time that the loop was occupied, as far as it is measured: not within coroutines."""
        self.span = span
        """Set if the request is traced."""

    # With a response.

    def defer(self, deferred: DeferredResponse) -> None:
        """Answer when `deferred` has the response."""
        self._deferred = deferred
        deferred.then(self.answer)

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Await the response, then let the next request of the connection start."""
        try:
            response = await coroutine
            if isinstance(response, DeferredResponse):
                self.defer(response)
            else:
                self.answer(response)
        except Exception:  # noqa: BLE001 - an internal error ends one connection, not the node.
            self.fail()
        finally:
            self._connection.resume()

    def answer(self, response: Any) -> None:
        """Encode the response and pass it to the connection; `None` if the client wants none."""
        counter, context = self._counter, self.context
        seconds = time.perf_counter() - self.began
        counter.record(seconds)
        counter.loop_seconds += self.busy_seconds
        throttle_ms = context.charge(QuotaKind.REQUEST, self.busy_seconds)
        if self.span is not None:
            self._end_span(self.span, seconds, throttle_ms)
        if response is None:
            parts: list[Bytes] = []
        else:
            if throttle_ms and throttle_ms > getattr(response, "throttle_time_ms", throttle_ms):
                response = dataclasses.replace(response, throttle_time_ms=throttle_ms)
            parts = encode_response(self.api, context.version, self._correlation_id, response)
        self.release()
        self.parts = parts
        self._connection.answered(sum(map(len, parts)))
        if throttle_ms:
            self._connection.throttle(throttle_ms / 1000)

    def fail(self) -> None:
        """Log an internal error of the handler and close the connection. Call it in `except`."""
        logger.exception("%s of version %d failed", self.api.name, self.context.version)
        self._counter.errors += 1
        if self.span is not None:
            self.span.end(f"{self.api.name} failed")
        self.release()
        self._connection.close(f"internal error in {self.api.name}")

    def _end_span(self, span: Span, seconds: float, throttle_ms: int) -> None:
        """Record the request, and how long it waited: for the disk, for records, for a quota."""
        context = self.context
        describe(span, self.api.name, context.version, context.client_id, context.host)
        if self._deferred is not None:
            span.step(WAIT_STEP_NAMES.get(self.api.name, "wait"), seconds - self.busy_seconds)
        if throttle_ms:
            span.set_attribute("millstream.throttle_ms", throttle_ms)
        span.end()

    # Without a response.

    def cancel(self) -> None:
        """Stop waiting for the response: the connection is lost.

        Work that continues nonetheless still needs the request's bytes, and releases them itself.
        """
        if self.span is not None:
            self.span.end("the connection was lost")
        if self.parts is None and self._deferred is not None and self._deferred.cancel():
            self.release()

    def abandon(self) -> None:
        """Stop waiting, without a response: the client is gone and its connection still open."""
        if self.parts is None and self._deferred is not None and self._deferred.cancel():
            self.release()
            self.parts = []
            self._connection.answered(0)

    def release(self) -> None:
        """Release the memory of the request."""
        if self._block is not None:
            block, self._block = self._block, None
            block.release()


def encode_response(api: Api, version: int, correlation_id: int, response: object) -> list[Bytes]:
    """Encode a response with its header. Records are not copied."""
    header = encode_response_header(api.key, version, correlation_id)
    parts = encode_parts(response, version)
    first, *others = parts
    size = len(header) + len(first)
    for part in others:
        size += len(part)
    return [b"".join((size.to_bytes(4), header, first)), *others]
