"""One request of a peer, from its arrival until its last frame was sent.

    handler(request, context) returns      the request ends
    a response                             at once
    a `DeferredResponse`                   when it is finished
    a coroutine                            with its result, which may be any of these
    an async iterator                      with its last item; each is one frame of a stream

A request that does not end before its deadline is cancelled, and so is one whose caller cancels it
or goes away. Every request ends with exactly one last frame, as long as the connection exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from millstream.errors import MillstreamError
from millstream.protocols.kafka.codec.message import encode_parts
from millstream.protocols.kafka.codec.primitives import Buffer
from millstream.protocols.peer.apis import PeerApi
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import peer_code_of
from millstream.protocols.peer.frame import (
    STREAM_WINDOW_BYTES,
    FrameHeader,
    FrameKind,
    encode_frame,
)
from millstream.servers.block_pool import ReceiveBlock
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.peer.counters import PeerRequestCounter
from millstream.servers.peer.peer_context import PeerContext
from millstream.tracing import Span

if TYPE_CHECKING:
    from millstream.servers.peer.peer_protocol import PeerProtocol

logger = logging.getLogger(__name__)

ERROR_TEXT_LENGTH_MAX = 1000
"""Characters of an error's text that are sent."""

PeerHandler = Callable[[Any, PeerContext], Any]
"""Takes a request; returns a response, a `DeferredResponse`, a coroutine or an async iterator.

Requests of a connection start in the order in which they arrived, and end in any order. Views in a
request, such as the body of a `ForwardRequest`, are valid until its handler has returned or, of a
stream, has yielded its first item.
"""


class PendingCall:
    """A request in flight."""

    __slots__ = (
        "_block",
        "_connection",
        "_counter",
        "_credit",
        "_credited",
        "_deferred",
        "_header",
        "_loop",
        "_started_at",
        "_task",
        "_timer",
        "api",
        "is_done",
        "span",
    )

    def __init__(
        self,
        connection: PeerProtocol,
        api: PeerApi,
        header: FrameHeader,
        block: ReceiveBlock,
        counter: PeerRequestCounter,
    ) -> None:
        self._connection = connection
        self._header = header
        self._block: ReceiveBlock | None = block
        self._counter = counter
        self._loop = asyncio.get_running_loop()
        self._started_at = time.perf_counter()
        self._deferred: DeferredResponse | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._credit = STREAM_WINDOW_BYTES
        self._credited: asyncio.Future[None] | None = None
        self.api = api
        self.span: Span | None = None
        """Set if the caller is traced, and this node records that."""
        self.is_done = False
        """Whether the last frame was sent, or nobody waits for it."""

    # Work.

    def run(self, handler: PeerHandler, request: Any, context: PeerContext) -> None:
        """Call the handler, and answer now or when its result is there."""
        if not self.api.has_views:
            self._release()
        try:
            result = handler(request, context)
        except MillstreamError as error:
            self.refuse(peer_code_of(error), str(error))
            return
        except Exception:  # noqa: BLE001 - an internal error ends one request, not the node.
            self._fail()
            return
        if type(result) is CoroutineType:
            self._start(self._await(result), context, result)
        elif isinstance(result, AsyncIterator):
            self._start(self._stream(result), context)
        elif type(result) is DeferredResponse:
            self._deferred = result
            result.then(self.answer)
            self._set_timer(context)
        else:
            self.answer(result)

    def _start(
        self,
        work: Coroutine[Any, Any, None],
        context: PeerContext,
        awaited: Coroutine[Any, Any, Any] | None = None,
    ) -> None:
        """Run `work` as a task; `awaited` is what it awaits."""
        self._set_timer(context)
        self._task = self._connection.tasks.start(self._supervise(work))

        def end(_: object) -> None:
            # If the task was cancelled before it ran, nothing of this has happened yet.
            work.close()
            if awaited is not None:
                awaited.close()
            self._release()

        self._task.add_done_callback(end)

    def _set_timer(self, context: PeerContext) -> None:
        if not self.is_done:
            self._timer = self._loop.call_at(context.deadline, self._expire)

    async def _supervise(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except MillstreamError as error:
            self.refuse(peer_code_of(error), str(error))
        except Exception:  # noqa: BLE001 - an internal error ends one request, not the node.
            self._fail()
        finally:
            self._release()
            if not self.is_done and self._deferred is None:  # Cancelled from outside.
                self.refuse(PeerErrorCode.CANCELLED, "the request was cancelled by the node")

    async def _await(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        result = await coroutine
        if isinstance(result, AsyncIterator):
            await self._stream(result)
        elif isinstance(result, DeferredResponse):
            if self.is_done:
                result.cancel()
            else:
                self._deferred = result
                result.then(self.answer)
        else:
            self.answer(result)

    async def _stream(self, items: AsyncIterator[Any]) -> None:
        """Send a frame for each item, as fast as the caller reads, then the last frame."""
        async with contextlib.AsyncExitStack() as stack:
            if (close := getattr(items, "aclose", None)) is not None:
                stack.push_async_callback(close)
            async for item in items:
                if self._timer is not None:
                    self._timer.cancel()  # The deadline is for the first frame.
                    self._timer = None
                self._release()
                parts = self._encode(encode_parts(item, self._header.version), is_last=False)
                await self._wait_for_credit()
                await self._connection.wait_until_writable()
                self._credit -= sum(map(len, parts))
                self._connection.send(parts)
        self._finish(PeerErrorCode.NONE, ())

    async def _wait_for_credit(self) -> None:
        while self._credit <= 0:
            self._credited = self._loop.create_future()
            await self._credited

    def add_credit(self, size: int) -> None:
        """Let the stream send more: the caller has read so much of it."""
        self._credit = min(self._credit + size, STREAM_WINDOW_BYTES)
        if self._credited is not None and not self._credited.done():
            self._credited.set_result(None)

    # The end.

    def answer(self, response: Any) -> None:
        """Send the response."""
        if self.is_done:
            self._release()  # The work could not be cancelled, and is done only now.
            return
        try:
            parts = encode_parts(response, self._header.version)
        except (TypeError, ValueError, MillstreamError):
            self._fail()
            return
        self._finish(PeerErrorCode.NONE, parts)

    def refuse(self, code: PeerErrorCode, text: str) -> None:
        """Send an error as the last frame."""
        if not self.is_done:
            self._finish(code, (text[:ERROR_TEXT_LENGTH_MAX].encode(errors="replace"),))

    def cancel(self) -> None:
        """Stop the work: the caller does not need it any more."""
        if not self.is_done:
            self.refuse(PeerErrorCode.CANCELLED, "the request was cancelled by its caller")
            self._stop_work()

    def drop(self) -> None:
        """Stop the work: the connection is gone."""
        if not self.is_done:
            self._end(PeerErrorCode.CANCELLED)
            self._stop_work()

    def _expire(self) -> None:
        self._timer = None
        deadline_ms = self._header.deadline_ms
        self.refuse(PeerErrorCode.DEADLINE_EXCEEDED, f"not done within {deadline_ms} ms")
        self._stop_work()

    def _fail(self) -> None:
        """Log an internal error of the handler. Call it in `except`."""
        logger.exception("%s of a peer failed", self.api.name)
        self.refuse(PeerErrorCode.UNKNOWN_SERVER_ERROR, f"internal error in {self.api.name}")

    def _stop_work(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._deferred is not None and self._deferred.cancel():
            self._release()

    def _finish(self, code: PeerErrorCode, body: tuple[Buffer, ...] | list[Buffer]) -> None:
        parts = self._encode(body, is_last=True, code=code)
        self._end(code)
        self._connection.forget(self._header.correlation_id)
        self._connection.send(parts)

    def _end(self, code: PeerErrorCode) -> None:
        self.is_done = True
        self._counter.record(code, time.perf_counter() - self._started_at)
        if self.span is not None:
            is_ours = code in (PeerErrorCode.UNKNOWN_SERVER_ERROR, PeerErrorCode.DEADLINE_EXCEEDED)
            self.span.end(code.name if is_ours else None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and (self._deferred is None or self._deferred.is_done):
            self._release()

    def _encode(
        self,
        body: tuple[Buffer, ...] | list[Buffer],
        *,
        is_last: bool,
        code: PeerErrorCode = PeerErrorCode.NONE,
    ) -> list[Buffer]:
        header = FrameHeader(
            FrameKind.RESPONSE,
            self._header.correlation_id,
            self._header.api_key,
            self._header.version,
            hlc=self._connection.timestamp(),
            error_code=code,
            is_last=is_last,
            traceparent=self._header.traceparent,
        )
        return encode_frame(header, body)

    def _release(self) -> None:
        """Release the memory of the request."""
        if self._block is not None:
            block, self._block = self._block, None
            block.release()
