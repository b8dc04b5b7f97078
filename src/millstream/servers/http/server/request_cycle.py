"""One request of a connection, as the ASGI application sees it: `receive` and `send`."""

from __future__ import annotations

import asyncio
import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Scope

if TYPE_CHECKING:
    from millstream.servers.http.server.http_protocol import HttpProtocol

logger = logging.getLogger(__name__)

BUFFERED_BODY_MAX = 64 * 1024
"""Bytes of a body that wait for the application before the connection stops reading."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class RequestCycle:
    """Runs the application for one request.

    The connection adds the body as it arrives and says when the client has disconnected. The head
    of a response of known length is held back until its body follows, so that both are one write.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_event",
        "_expects_continue",
        "_head",
        "_is_chunked",
        "_is_message_complete",
        "_missing_size",
        "is_complete",
        "is_disconnected",
        "is_resumable",
        "is_started",
        "keep_alive",
        "scope",
    )

    def __init__(
        self, connection: HttpProtocol, scope: Scope, *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.is_started = False
        """Whether the application has sent the head of its response."""
        self.is_complete = False
        """Whether the application has sent all of its response."""
        self.is_disconnected = False
        self.is_resumable = False
        """Whether the response may be cut off when the node stops: clients continue it."""
        self._connection = connection
        self._expects_continue = expects_continue
        self._event = asyncio.Event()
        """Set if `receive` has something to return."""
        self._body = b""
        self._is_message_complete = False
        self._head = b""
        self._is_chunked = False
        self._missing_size = 0
        """Bytes of the response body that `Content-Length` promised and that are not sent yet."""

    # The connection's side.

    def add_body(self, data: bytes) -> bool:
        """Add a part of the body; return whether so much waits that reading should stop."""
        if self.is_complete:
            return False
        self._body = self._body + data if self._body else data
        self._event.set()
        return len(self._body) > BUFFERED_BODY_MAX

    def end_body(self) -> None:
        """Note that the request is complete."""
        self._is_message_complete = True
        self._event.set()

    def disconnect(self) -> None:
        """Note that the client has disconnected: nothing more is sent, and `receive` says so."""
        if not self.is_complete:
            self.is_disconnected = True
        self._event.set()

    async def run(self, app: ASGIApp) -> None:
        """Run the application; close the connection if it fails to send a whole response."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            logger.exception("the application failed")
            self._connection.fail_response()
        else:
            if not self.is_complete and not self.is_disconnected:
                logger.error("the application returned without a complete response")
                self._connection.fail_response()

    # The application's side.

    async def receive(self) -> Message:
        """Return the next part of the body, or that the client has disconnected."""
        connection = self._connection
        if self._expects_continue:
            self._expects_continue = False
            if not connection.transport.is_closing():
                connection.transport.write(_CONTINUE)
        if not self.is_disconnected and not self.is_complete:
            await self._event.wait()
            self._event.clear()
        if self.is_disconnected or self.is_complete:
            return {"type": "http.disconnect"}
        body, self._body = self._body, b""
        connection.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self._is_message_complete}

    async def send(self, message: Message) -> None:
        """Send the head of the response, or a part of its body."""
        connection = self._connection
        if connection.is_write_paused and not self.is_disconnected:
            await connection.wait_until_writable()
        if self.is_disconnected:
            return
        if message["type"] == "http.response.start" and not self.is_started:
            self._send_head(message)
        elif message["type"] == "http.response.body" and self.is_started and not self.is_complete:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}")

    def _send_head(self, message: Message) -> None:
        self.is_started = True
        self._expects_continue = False
        self.is_resumable = message.get("is_resumable", False)
        connection = self._connection
        status = message["status"]
        lines = [_STATUS_LINES[status], connection.date_line]
        is_sized = False
        is_closing = False
        for name, value in message.get("headers", ()):
            # Some values come from clients, and a line end in one would begin another header.
            if _CONTROL.search(value) is not None:
                raise RuntimeError(f"response header {name!r} has a control character")
            if name == b"content-length":
                is_sized = True
                self._missing_size = int(value)
            elif name == b"connection" and value.lower() == b"close":
                is_closing = True
                self.keep_alive = False
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive and not is_closing:
            lines.append(b"connection: close\r\n")
        is_head = self.scope["method"] == "HEAD"
        if is_head:
            self._missing_size = 0
        elif not is_sized and status not in _WITHOUT_BODY:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if is_sized:
            self._head = head
        else:
            connection.write(head)

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        connection = self._connection
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            end = b"0\r\n\r\n" if is_last else b""
            body = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        else:
            self._missing_size -= len(body)
            if self._missing_size < 0:
                raise RuntimeError("response body is longer than Content-Length")
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            connection.write(body)
        if not is_last:
            return
        if self._missing_size:
            raise RuntimeError(f"response body lacks {self._missing_size} bytes of Content-Length")
        self.is_complete = True
        self._event.set()
        if not self.keep_alive:
            connection.close_after_response()
        connection.on_response_complete()
