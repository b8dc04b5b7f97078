"""`GET /v1/ws`: live delivery, appends and acknowledgements by WebSocket, in JSON messages.

    {"op":"subscribe","id":1,"topics":["orders"]}   ──►
                                                    ◄──  {"type":"answer","id":1,"result":{...}}
                                                    ◄──  {"type":"records","cursor":...,...}

Messages are processed in order. Appends and acks wait for the disk concurrently, so their answers
may come in another order: the ids tell which is which. A message counts as in flight until its
answer is sent; with too many, or too large ones, in flight, no more are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from millstream.broker.access.caller import Caller
from millstream.broker.access.resources import CLUSTER, Operation, Resource
from millstream.broker.access.resources import group as group_resource
from millstream.broker.access.resources import topic as topic_resource
from millstream.broker.access.user_slots import slot_holder
from millstream.broker.quotas import QuotaKind
from millstream.errors import MalformedRequest, MillstreamError, NotAuthenticated, NotCoordinator
from millstream.protocols.http.live import (
    OPS,
    AckMessage,
    AppendMessage,
    ClientMessage,
    Envelope,
    SubscribeMessage,
    SubscribeResult,
    UnsubscribeMessage,
    UnsubscribeResult,
)
from millstream.protocols.http.mismatch import describe_mismatch, describe_syntax
from millstream.protocols.http.queues import AckAnswer, ReceiptsBody
from millstream.protocols.http.records import RequestCost
from millstream.protocols.http.strict_json import check, decode
from millstream.servers.http.handlers.records import append, append_answer, ensured_topic
from millstream.servers.http.live.heartbeat_timer import HeartbeatTimer
from millstream.servers.http.live.start_position import StartPosition
from millstream.servers.http.live.subscriber import LiveEvent
from millstream.servers.http.routing.callers import caller_of, require
from millstream.servers.http.routing.errors import domain_error_response, error_body, error_response
from millstream.servers.http.routing.operation_access import checked
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpContext, HttpRequest, with_throttle
from millstream.servers.http.routing.usage import ClientUsage

logger = logging.getLogger(__name__)

PATH = "/v1/ws"

IN_FLIGHT_MAX = 32
"""Messages that are not answered yet: enough for appends to share a sync."""

ERRORS_MAX = 10
"""Invalid messages in a row after which the connection is closed: the client speaks another
protocol."""

POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
SERVICE_RESTART = 1012

_encode = msgspec.json.Encoder().encode
_read_envelope = msgspec.json.Decoder(Envelope).decode


async def serve_socket(websocket: WebSocket, context: HttpContext) -> None:
    """Serve one client until it disconnects or the node stops; one that owes time is refused."""
    slots = context.broker.caps.live
    try:
        caller = caller_of(websocket.scope, context.access)
        usage = context.meter.usage(websocket.scope["headers"])
        usage.user = caller.principal.name
        usage.check(QuotaKind.REQUEST)
        if slots is not None:
            slots.check(slot_holder(caller))
    except MillstreamError as error:
        await websocket.send_denial_response(domain_error_response(error))
        return
    with nullcontext() if slots is None else slots.taken(caller):
        await LiveWebSocket(websocket, context, usage, caller).serve()


class LiveWebSocket:
    """One WebSocket connection."""

    def __init__(
        self, websocket: WebSocket, context: HttpContext, usage: ClientUsage, caller: Caller
    ) -> None:
        self._websocket = websocket
        self._usage = usage
        self._broker = context.broker
        self._live = context.live
        self._shutdown = context.shutdown
        self._config = context.config
        self._forwarder = context.forwarder
        self._access = context.access
        self._caller = caller
        self._subscriber = self._live.enter(is_lasting=True, usage=usage, caller=caller)
        self._heartbeat = HeartbeatTimer(
            self._broker.clock,
            self._broker.timers,
            self._config.heartbeat_ms / 1000,
            self._subscriber.beat,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._held_bytes = 0
        """Bytes of the messages in flight."""
        self._freed = asyncio.Event()
        self._invalid_messages = 0
        self._close_code = SERVICE_RESTART

    async def serve(self) -> None:
        """Process messages and push events until one side closes the connection."""
        counters = self._live.counters
        counters.sockets += 1
        pushing = None
        try:
            await self._websocket.accept()
            self._shutdown.watch(self._subscriber.stop)
            pushing = asyncio.get_running_loop().create_task(self._usage.measured(self._push()))
            await self._take_messages()
        except (WebSocketDisconnect, OSError):
            pass  # The client has disconnected.
        finally:
            counters.sockets -= 1
            self._shutdown.unwatch(self._subscriber.stop)
            self._heartbeat.stop()
            self._live.leave(self._subscriber)
            if pushing is not None:
                pushing.cancel()
            # Operations that were started take effect, whether or not the client waits for them.
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # Output.

    async def _push(self) -> None:
        """Send events, and close the connection when no more follow."""
        counters = self._live.counters
        try:
            while (event := await self._subscriber.next_event()) is not None:
                text = frame(event)
                await self._websocket.send_text(text)
                self._heartbeat.note_sent()
                counters.events += 1
                counters.sent_bytes += len(text)
                counters.socket_bytes += len(text)
                self._subscriber.note_sent(event, len(text))
                if event.kind in ("answer", "error"):
                    self._free()
            await self._websocket.close(self._close_code)
        except (WebSocketDisconnect, OSError):
            pass  # The client has disconnected; the task that reads messages notices too.
        except Exception:
            logger.exception("pushing events to a WebSocket failed")
            await self._websocket.close(INTERNAL_ERROR)

    def _answer(self, kind: str, message: dict[str, Any]) -> None:
        self._subscriber.tell(LiveEvent(kind, _encode(message)))

    # Input.

    async def _take_messages(self) -> None:
        while True:
            while (
                self._in_flight >= IN_FLIGHT_MAX or self._held_bytes > self._config.append_size_max
            ):
                self._freed.clear()
                await self._freed.wait()
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            await self._take(message["text"].encode() if data is None else data)

    async def _take(self, data: bytes) -> None:
        """Start the operation of a message; its answer is sent when it is done."""
        self._in_flight += 1
        message_id = None
        try:
            envelope = _envelope(data)
            message_id = None if envelope.id is msgspec.UNSET else envelope.id
            message = _decode_message(envelope, data)
        except MalformedRequest as error:
            self._invalid_messages += 1
            self._answer("error", _error(message_id, error))
            if self._invalid_messages >= ERRORS_MAX:
                self._close_code = POLICY_VIOLATION
                self._subscriber.close()
            return
        self._invalid_messages = 0
        work = self._usage.measured(self._work(message, len(data)))
        self._held_bytes += len(data)
        if isinstance(message, AppendMessage | AckMessage):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            await work

    async def _work(self, message: ClientMessage, size: int) -> None:
        """Run an operation, and queue its answer."""
        try:
            self._usage.check(QuotaKind.REQUEST)
            result = await self._result(message, size)
        except Exception as error:  # noqa: BLE001 - sent to the client, and logged if it is ours.
            self._answer("error", _error(message.id, error))
        else:
            self._answer("answer", {"type": "answer", "id": message.id, "result": result})
        finally:
            self._held_bytes -= size
            self._usage.settle()

    def _result(self, message: ClientMessage, size: int) -> Coroutine[Any, Any, Any]:
        match message:
            case SubscribeMessage():
                return self._subscribe(message)
            case UnsubscribeMessage():
                return self._unsubscribe(message)
            case AppendMessage():
                return self._append(message, size)
            case AckMessage():
                return self._ack(message)

    def _free(self) -> None:
        """Allow one more message, because one was answered."""
        self._in_flight -= 1
        self._freed.set()

    # Requests.

    def _require(self, operation: Operation, resource: Resource) -> None:
        """Raise unless the caller may do this; its login may have ended since it connected."""
        access = self._access
        if access is None:
            return
        if not access.is_current(self._caller):
            raise NotAuthenticated("the login has ended: connect again with a valid token")
        require(access, self._caller, operation, resource)

    def _check_creation(self, name: str) -> None:
        access = self._access
        if access is not None and not access.check(self._caller, Operation.CREATE, CLUSTER):
            self._require(Operation.CREATE, topic_resource(name))

    async def _subscribe(self, message: SubscribeMessage) -> SubscribeResult:
        for name in message.topics:
            self._require(Operation.READ, topic_resource(name))
        start = StartPosition(message.from_)
        await self._live.follow(self._subscriber, message.topics, start, message.exclude_node)
        try:
            # A right that was taken meanwhile was not yet that of a subscription which could end.
            for name in message.topics:
                self._require(Operation.READ, topic_resource(name))
        except MillstreamError:
            for name in message.topics:
                self._subscriber.unfollow(name)
            raise
        return SubscribeResult(cursor=self._subscriber.cursor.decode())

    async def _unsubscribe(self, message: UnsubscribeMessage) -> UnsubscribeResult:
        ended = [name for name in message.topics if self._subscriber.unfollow(name)]
        return UnsubscribeResult(topics=ended)

    async def _append(self, message: AppendMessage, size: int) -> Any:
        self._require(Operation.WRITE, topic_resource(message.topic))
        self._usage.check(QuotaKind.PRODUCE)
        is_new = self._broker.topics.find(message.topic) is None
        topic = await ensured_topic(
            self._broker,
            message.topic,
            self._usage,
            self._caller,
            lambda: self._check_creation(message.topic),
        )
        if is_new and self._access is not None:
            self._access.note_change(self._caller, Operation.CREATE, topic_resource(message.topic))
        result = await append(self._broker, topic, message, self._caller)
        owed_ms = self._usage.charge(QuotaKind.PRODUCE, size)
        return append_answer(result, with_throttle(result.timings, owed_ms))

    async def _ack(self, message: AckMessage) -> AckAnswer:
        self._require(Operation.READ, group_resource(message.queue))
        try:
            settled = await self._broker.queues.get(message.queue).ack(message.receipts)
        except NotCoordinator as refusal:
            if self._forwarder is None:
                raise
            return await self._forwarder.ask(
                self._websocket,
                refusal,
                AckAnswer,
                method="POST",
                path=f"/v1/queues/{quote(message.queue, safe='')}/ack",
                body=msgspec.json.encode(ReceiptsBody(receipts=message.receipts)),
            )
        return AckAnswer(acked=settled.count, cost=RequestCost(**settled.timings._asdict()))


def frame(event: LiveEvent) -> str:
    """Return an event as a message; answers are encoded already."""
    kind, data, cursor = event
    if kind in ("answer", "error"):
        return data.decode()
    prefix = f'{{"type":"{kind}"'
    if cursor is not None:
        prefix += f',"cursor":"{cursor.decode()}"'
    # Topic names need no escaping in JSON; the data is an object, empty for a heartbeat.
    return prefix + ("}" if data == b"{}" else "," + data[1:].decode())


def _envelope(data: bytes) -> Envelope:
    try:
        return _read_envelope(data)
    except msgspec.ValidationError:
        words = describe_mismatch(check(data), Envelope)
        raise MalformedRequest(f"message {words}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"message is not JSON in UTF-8: {describe_syntax(error)}") from None


def _decode_message(envelope: Envelope, data: bytes) -> ClientMessage:
    kind = OPS.get(envelope.op) if isinstance(envelope.op, str) else None
    if kind is None:
        shown = repr(envelope.op[:100]) if isinstance(envelope.op, str) else "nothing"
        raise MalformedRequest(f"op must be one of {', '.join(map(repr, OPS))}, got {shown}")
    return decode(data, kind)


def _error(message_id: int | None, error: Exception) -> dict[str, Any]:
    if not isinstance(error, MillstreamError):
        logger.error("WebSocket message failed", exc_info=error)
    return {"type": "error", "id": message_id, "error": error_body(error)}


# Routing.


async def open_socket(_: HttpRequest) -> Response:
    """Open a WebSocket: subscribe, unsubscribe, append and ack in JSON messages."""
    status = HTTPStatus.UPGRADE_REQUIRED
    message = "a WebSocket request needs Connection: Upgrade and Upgrade: websocket"
    return error_response(status, status.name.lower(), message, headers={"Upgrade": "websocket"})


OPERATIONS = (
    HttpOperation(
        "GET",
        PATH,
        open_socket,
        "Open a WebSocket to watch, append and acknowledge",
        {HTTPStatus.SWITCHING_PROTOCOLS: None},
        errors=(HTTPStatus.UPGRADE_REQUIRED,),
        tag="live",
        access=checked("each message: READ, WRITE or CREATE on its topic, READ on its queue"),
    ),
)
