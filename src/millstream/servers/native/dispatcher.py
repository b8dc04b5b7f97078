"""Dispatches frames to the handlers of their operations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.broker.broker import Broker
from millstream.broker.topics.topic_numbers import TopicNumbers
from millstream.config.schema import NativeConfig
from millstream.errors import InvalidRequest, MillstreamError, UnsupportedVersion
from millstream.protocols.native.frame import (
    HEADER_SIZE,
    Flag,
    NativeFrameHeader,
    NativeFrameKind,
    check_payload,
    checksum_of,
    decode_header,
)
from millstream.protocols.native.operations import NativeOperation
from millstream.servers.api_needs import OPEN
from millstream.servers.block_pool import ReceiveBlock
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.native.access_table import NEEDS
from millstream.servers.native.counters import UNKNOWN, NativeCounters
from millstream.servers.native.native_context import NativeContext
from millstream.servers.native.pending_frame import PendingFrame
from millstream.servers.native.subscriptions import Subscriptions
from millstream.servers.request_counters import RequestCounter
from millstream.servers.response_memory import ResponseMemory
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.tracing import Tracer, traced_as

if TYPE_CHECKING:
    from millstream.servers.native.native_protocol import NativeProtocol

Handler: TypeAlias = Callable[[NativeFrameHeader, memoryview, NativeContext], Any]
"""Takes a frame; returns the answer, a `DeferredResponse` or a coroutine.

A coroutine delays the frames behind it, so that those of one connection take effect in order.
"""


class NativeDispatcher:
    """Runs the handlers of frames, and passes their answers to the connections."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[NativeOperation, Handler],
        *,
        config: NativeConfig,
        numbers: TopicNumbers,
        subscriptions: Subscriptions,
        counters: NativeCounters,
        response_memory: ResponseMemory,
        tracer: Tracer | None = None,
    ) -> None:
        self._broker = broker
        self._config = config
        self._numbers = numbers
        self._subscriptions = subscriptions
        self._counters = counters
        self._response_memory = response_memory
        self._tracer = tracer
        self._tasks = BackgroundTasks()
        self._unknown = RequestCounter()
        self._routes = {
            operation: (handler, RequestCounter(), NEEDS[operation])
            for operation, handler in handlers.items()
        }
        counters.requests = {
            operation.label: counter for operation, (_, counter, _) in self._routes.items()
        }
        counters.requests[UNKNOWN] = self._unknown

    def begin(
        self, connection: NativeProtocol, frame: memoryview, block: ReceiveBlock
    ) -> PendingFrame:
        """Start one frame. Raises `MalformedRequest` if the connection has to be closed."""
        began = time.perf_counter()
        header, payload = decode_header(frame), frame[HEADER_SIZE:]
        checksum = checksum_of(frame)
        check_payload(header, payload, checksum)
        operation, refusal = _operation_of(header)
        handler, counter, needs = None, self._unknown, OPEN
        if operation is not None:
            handler, counter, needs = self._routes[operation]
        context = NativeContext(
            self._broker,
            self._config,
            self._numbers,
            self._subscriptions,
            self._counters,
            self._response_memory,
            connection,
            connection.caller,
            self._broker.access,
            needs,
        )
        span = None
        if self._tracer is not None and operation is not None:
            span = self._tracer.begin(f"native {operation.label}")
        pending = PendingFrame(
            connection,
            block,
            operation,
            header.batch_id,
            context,
            counter,
            checksum=checksum,
            began=began,
            span=span,
        )
        if handler is None:
            assert refusal is not None
            pending.answer(refusal)
        elif span is None:
            self._run(connection, pending, handler, header, payload)
        else:
            with traced_as(span.traceparent):
                self._run(connection, pending, handler, header, payload)
        return pending

    def _run(
        self,
        connection: NativeProtocol,
        pending: PendingFrame,
        handler: Handler,
        header: NativeFrameHeader,
        payload: memoryview,
    ) -> None:
        try:
            result = handler(header, payload, pending.context)
        except MillstreamError as error:
            result = error
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


def _operation_of(
    header: NativeFrameHeader,
) -> tuple[NativeOperation | None, MillstreamError | None]:
    """Return what a frame asks for, or why it is refused."""
    refusal: MillstreamError | None = None
    kind = header.kind
    if header.flags & Flag.ENCRYPTED:
        refusal = InvalidRequest("encrypted payloads are not supported")
    elif kind is NativeFrameKind.INGEST:
        return NativeOperation.INGEST, None
    elif header.flags & Flag.COMPRESSED:
        refusal = InvalidRequest("only the records of an ingest frame may be compressed")
    elif kind is NativeFrameKind.KEEPALIVE:
        return NativeOperation.KEEPALIVE, None
    elif kind is not NativeFrameKind.CONTROL:
        refusal = InvalidRequest(f"a client must not send a frame of kind {kind.value}")
    elif header.opcode in _OPCODES:
        return NativeOperation(header.opcode), None
    else:
        refusal = UnsupportedVersion(f"there is no operation {header.opcode:#04x}")
    return None, refusal


_OPCODES = frozenset(NativeOperation)
