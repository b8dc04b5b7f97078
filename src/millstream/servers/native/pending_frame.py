"""One frame of a client with its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from millstream.broker.access.principal import ANONYMOUS
from millstream.broker.quotas import QuotaKind
from millstream.errors import (
    AccessDenied,
    DeadlineExceeded,
    MillstreamError,
    NotAuthenticated,
    UnknownTopic,
    UnknownTopicId,
    WouldBlock,
)
from millstream.protocols.native.errors import error_body
from millstream.protocols.native.frame import Checksum, Frame, backpressure_frame, control_frame
from millstream.protocols.native.operations import NativeOperation, Reply
from millstream.records.batch import Bytes
from millstream.servers.block_pool import ReceiveBlock
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.native.native_context import NativeContext
from millstream.servers.request_counters import RequestCounter
from millstream.tracing import Span

if TYPE_CHECKING:
    from millstream.servers.native.native_protocol import NativeProtocol

logger = logging.getLogger(__name__)

FRAME_BYTES = 2048
"""Memory of a frame in flight, apart from its content."""


class PendingFrame:
    """A frame from when it was read until its answer was handed to the socket."""

    __slots__ = (
        "_batch_id",
        "_block",
        "_checksum",
        "_connection",
        "_counter",
        "_operation",
        "began",
        "busy_seconds",
        "context",
        "memory_bytes",
        "parts",
        "span",
    )

    def __init__(  # noqa: PLR0917 - made once for each frame.
        self,
        connection: NativeProtocol,
        block: ReceiveBlock,
        operation: NativeOperation | None,
        batch_id: int,
        context: NativeContext,
        counter: RequestCounter,
        *,
        checksum: Checksum,
        began: float,
        span: Span | None,
    ) -> None:
        self._connection = connection
        self._block: ReceiveBlock | None = block
        self._operation = operation
        self._batch_id = batch_id
        self._checksum = checksum
        self.context = context
        self._counter = counter
        self.began = began
        self.span = span
        self.parts: list[Bytes] | None = None
        """The answer; `None` until it is ready."""
        self.memory_bytes = FRAME_BYTES
        """Memory that the frame takes until its answer is sent, about, apart from its bytes."""
        self.busy_seconds = 0.0
        """Time that the loop was occupied, as far as it is measured: not within coroutines."""

    def defer(self, deferred: DeferredResponse) -> None:
        """Answer when `deferred` has the answer."""
        deferred.then(self.answer)

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Await the answer, then let the next frame of the connection start."""
        try:
            answer = await coroutine
            if isinstance(answer, DeferredResponse):
                self.defer(answer)
            else:
                self.answer(answer)
        except MillstreamError as error:
            self.answer(error)
        except Exception:  # noqa: BLE001 - an internal error ends one connection, not the node.
            self.fail()
        finally:
            self._connection.resume()

    def answer(self, answer: Frame | MillstreamError) -> None:
        """Pass an answer, or the one to an error, to the connection."""
        counter, context = self._counter, self.context
        frame = self._refusal(answer) if isinstance(answer, MillstreamError) else answer
        parts = frame.encode(self._checksum)
        seconds = time.perf_counter() - self.began
        counter.record(seconds)
        counter.loop_seconds += self.busy_seconds
        throttle_ms = context.charge(QuotaKind.REQUEST, self.busy_seconds)
        if self.span is not None:
            self._end_span(self.span, answer)
        self._release()
        self.parts = parts
        self._connection.answered(sum(map(len, parts)))
        if throttle_ms:
            self._connection.throttle(throttle_ms / 1000)

    def _refusal(self, error: MillstreamError) -> Frame:
        """Return the answer to an error: records that were not admitted may be sent again."""
        context = self.context
        if self._operation is NativeOperation.INGEST and isinstance(
            error, WouldBlock | DeadlineExceeded
        ):
            context.counters.backpressure += 1
            return backpressure_frame(self._batch_id)
        context.counters.refused_requests += 1
        return control_frame(Reply.ERROR, error_body(self._as_told(error)))

    def _as_told(self, error: MillstreamError) -> MillstreamError:
        """Return the error that the client is told.

        One that has not logged in is told to do that, whether what it named exists or not.
        """
        is_anonymous = self.context.access is not None and self.context.principal == ANONYMOUS
        if is_anonymous and isinstance(error, AccessDenied | UnknownTopic | UnknownTopicId):
            return NotAuthenticated("log in first: without a login, you may not do this")
        return error

    def fail(self) -> None:
        """Log an internal error of the handler and close the connection. Call it in `except`."""
        label = "frame" if self._operation is None else self._operation.label
        logger.exception("%s failed", label)
        self._counter.errors += 1
        if self.span is not None:
            self.span.end(f"{label} failed")
        self._release()
        self._connection.close(f"internal error in {label}")

    def _end_span(self, span: Span, answer: Frame | MillstreamError) -> None:
        span.set_attribute("messaging.system", "millstream")
        span.set_attribute("client.address", self._connection.host)
        if isinstance(answer, MillstreamError):
            span.set_attribute("error.type", type(answer).__name__)
        span.end()

    def abandon(self) -> None:
        """Let the work go on: no frame waits for new records."""

    def cancel(self) -> None:
        """Let the work go on: records that have their offsets are appended."""
        if self.span is not None and self.parts is None:
            self.span.end("the connection was lost")
            self.span = None

    def _release(self) -> None:
        """Release the memory of the frame."""
        if self._block is not None:
            block, self._block = self._block, None
            block.release()
