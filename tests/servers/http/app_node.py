"""The HTTP application of a real broker, with a manual clock.

What happens between a request and its response can be controlled exactly: a client disconnects in
the middle, or stops reading, or time passes.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from starlette.types import Message

from millstream.broker.broker import Broker
from millstream.config.schema import KIB, HttpConfig
from millstream.servers.http.app import make_app
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.shutdown_signal import ShutdownSignal
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers

PATIENCE_S = 60


class PendingRequest:
    """One request of a client that can disconnect, or stop reading, at any moment."""

    def __init__(
        self, app: Any, method: str, path: str, body: Any = None, client_id: str | None = None
    ) -> None:
        self.sent: list[Message] = []
        self.lost: list[Message] = []
        """Messages that crossed the disconnect, as into the buffer of a closed socket."""
        self._news = asyncio.Event()
        self._is_gone = asyncio.Event()
        self._messages_max = -1
        self._body: bytes | None = b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        headers = [(b"host", b"localhost")]
        if client_id is not None:
            headers.append((b"client-id", client_id.encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if len(self.sent) == self._messages_max:
            await self._is_gone.wait()
        if self._is_gone.is_set():
            self.lost.append(message)
        else:
            self.sent.append(message)
            self._news.set()

    def leave(self) -> None:
        """Disconnect."""
        self._is_gone.set()

    def stop_reading_after(self, messages: int) -> None:
        """Accept no more than so many messages, including the head."""
        self._messages_max = messages

    async def answer(self) -> tuple[int, Any]:
        """Wait for the response; return status and JSON."""
        await self.task
        start, *rest = self.sent + self.lost
        data = b"".join(one["body"] for one in rest)
        return start["status"], json.loads(data) if data else None

    async def events(self, count: int) -> list[tuple[str, Any]]:
        """Wait for so many events, and return them."""
        while len(found := self._events()) < count:
            self._news.clear()
            await self._news.wait()
        return found

    def _events(self) -> list[tuple[str, Any]]:
        data = b"".join(one.get("body", b"") for one in self.sent[1:]).decode()
        found = []
        for block in data.split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            found.append((lines["event"], json.loads(lines["data"])))
        return found


class AppNode:
    """A broker and its HTTP application."""

    def __init__(self, broker: Broker, clock: ManualClock, timers: ManualTimers) -> None:
        self.broker = broker
        self.clock = clock
        self.timers = timers
        health = Health(is_started=True)
        self.counters = HttpCounters()
        config = HttpConfig(heartbeat_ms=1_000, live_bytes_max=64 * KIB)
        self.live = LiveDelivery(broker, config)
        self.shutdown = ShutdownSignal()
        self.app = make_app(
            lambda: health,
            list,
            broker,
            config=config,
            live=self.live,
            shutdown=self.shutdown,
            counters=self.counters,
        )

    def begin(
        self, method: str, path: str, body: Any = None, client_id: str | None = None
    ) -> PendingRequest:
        """Start a request without waiting for its response."""
        return PendingRequest(self.app, method, path, body, client_id)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Make a request that must succeed, and return its JSON."""
        status, answer = await self.begin(method, path, body).answer()
        assert status < 300, answer
        return answer

    async def append(self, topic: str, *values: Any) -> None:
        """Append a job for each value."""
        records = [{"value": value} for value in values]
        await self.ask("POST", f"/v1/topics/{topic}/records", {"records": records})


def with_app_node(
    work: Callable[[AppNode], Coroutine[Any, Any, None]],
) -> Callable[[Path], None]:
    """Run a test with a node of its own."""

    @functools.wraps(work)
    def test(tmp_path: Path) -> None:
        async def live() -> None:
            clock = ManualClock()
            timers = ManualTimers(clock)
            broker = await Broker.open(str(tmp_path), clock=clock, timers=timers)
            try:
                await asyncio.wait_for(work(AppNode(broker, clock, timers)), PATIENCE_S)
            finally:
                await broker.close()

        asyncio.run(live())

    del test.__wrapped__  # type: ignore[attr-defined]
    return test
