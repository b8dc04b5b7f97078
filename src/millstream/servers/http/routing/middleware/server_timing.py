"""Every answer says what it cost, in the header that browsers and proxies read for that.

    Server-Timing: commit;dur=0.41, fsync;dur=0.3, throttle;dur=0, total;dur=0.62

The first three are there where something was written; `throttle` also where the client owes what a
quota does not allow it, and has to wait for so long. All are in milliseconds.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.broker.topics.record_appender import AppendTimings
from millstream.clock import Clock
from millstream.servers.http.routing.request_state import with_throttle
from millstream.servers.http.routing.usage import ClientUsage


class ServerTimingMiddleware:
    """Adds `Server-Timing` to what the application answers."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and say how long that took."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._clock.monotonic()

        async def send_timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                took = (self._clock.monotonic() - begun) * 1000
                usage: ClientUsage | None = scope.get("millstream.usage")
                owed_ms = 0 if usage is None else usage.throttle_ms
                header = (b"server-timing", _words(scope.get("millstream.cost"), owed_ms, took))
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, send_timed)


def _words(cost: AppendTimings | None, owed_ms: int, total_ms: float) -> bytes:
    total = f"total;dur={total_ms:.3g}"
    if cost is None:
        return (f"throttle;dur={owed_ms}, {total}" if owed_ms else total).encode()
    cost = with_throttle(cost, owed_ms)
    return (
        f"commit;dur={cost.commit_ms:g}, fsync;dur={cost.fsync_ms:g},"
        f" throttle;dur={cost.throttle_ms:g}, {total}"
    ).encode()
