"""The application of the HTTP door before a real broker, whose time passes when it is told to.

What happens between a request and its answer can be arranged exactly: a client goes away in the
middle, or stops reading, or time passes.
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


class Exchange:
    """One request, by a client that can go away, or stop reading, at any moment."""

    def __init__(
        self, app: Any, method: str, path: str, body: Any = None, client_id: str | None = None
    ) -> None:
        self.sent: list[Message] = []
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
        if not self._is_gone.is_set():
            self.sent.append(message)
            self._news.set()

    def leave(self) -> None:
        """Go away, without a word."""
        self._is_gone.set()

    def stop_reading_after(self, messages: int) -> None:
        """Have no room for more than so many messages, the head among them."""
        self._messages_max = messages

    async def answer(self) -> tuple[int, Any]:
        """Return status and JSON, once they are there."""
        await self.task
        start, *rest = self.sent
        data = b"".join(one["body"] for one in rest)
        return start["status"], json.loads(data) if data else None

    async def events(self, count: int) -> list[tuple[str, Any]]:
        """Return the first events, once there are so many."""
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
    """A broker and the door before it."""

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
    ) -> Exchange:
        """Make a request, and do not wait for its answer."""
        return Exchange(self.app, method, path, body, client_id)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Make a request that has to succeed, and return what it is answered."""
        status, answer = await self.begin(method, path, body).answer()
        assert status < 300, answer
        return answer

    async def append(self, topic: str, *values: Any) -> None:
        """Append a job for each value."""
        records = [{"value": value} for value in values]
        await self.ask("POST", f"/v1/topics/{topic}/records", {"records": records})


def at_the_door(
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
