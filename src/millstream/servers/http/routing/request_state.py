"""What every handler of the door can reach, and how it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope

from millstream.broker.broker import Broker
from millstream.broker.topics.record_appender import AppendTimings
from millstream.config.schema import HttpConfig
from millstream.servers.http.routing.usage import usage_of
from millstream.servers.http.shutdown_signal import ShutdownSignal
from millstream.tracing import Span

if TYPE_CHECKING:
    from millstream.servers.http.live.live_delivery import LiveDelivery

T = TypeVar("T")

JSON = "application/json"

SPAN = "millstream.span"
"""Where a request has its span, if it is followed."""

_encode = msgspec.json.Encoder().encode


def broker_of(request: HTTPConnection) -> Broker:
    """Return the broker behind the door."""
    return cast("Broker", request.app.state.broker)


def config_of(request: HTTPConnection) -> HttpConfig:
    """Return what the door is set to."""
    return cast("HttpConfig", request.app.state.config)


def shutdown_of(request: HTTPConnection) -> ShutdownSignal:
    """Return who tells that the door closes; who waits long has to watch it."""
    return cast("ShutdownSignal", request.app.state.closing)


def live_of(request: HTTPConnection) -> LiveDelivery:
    """Return live delivery: who watches what."""
    return cast("LiveDelivery", request.app.state.live)


def json_response(
    message: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with a message, or with bytes that are JSON already."""
    content = message if isinstance(message, bytes) else _encode(message)
    return Response(content, status, headers, JSON)


def note_cost(request: HTTPConnection, cost: AppendTimings) -> AppendTimings:
    """Have the answer tell in its `Server-Timing` what the request cost, and its span, if any.

    Returns the same for its body, with what the client owes: it has to wait for so long before its
    next request.
    """
    scope = request.scope
    scope["millstream.cost"] = cost
    if SPAN in scope:
        _follow(scope[SPAN], cost)
    return with_throttle(cost, usage_of(request).throttle_ms)


def with_throttle(cost: AppendTimings, owed_ms: int) -> AppendTimings:
    """Return a cost that tells what is owed, where that is more than had to be waited already."""
    return cost._replace(throttle_ms=owed_ms) if owed_ms > cost.throttle_ms else cost


def note_long_poll(request: HTTPConnection) -> None:
    """Have the time to the answer say nothing of the node: its client asked it to wait."""
    request.scope["millstream.is_patient"] = True


def is_long_poll(scope: Mapping[str, Any]) -> bool:
    """Whether the answer may take its time."""
    return "millstream.is_patient" in scope


def _follow(span: Span, cost: AppendTimings) -> None:
    """Tell what a request waited for: its offset, the commit, and the disk within that."""
    span.set_attribute("millstream.append.wait_ms", cost.throttle_ms)
    span.set_attribute("millstream.fsync_ms", cost.fsync_ms)
    span.step("commit", cost.commit_ms / 1000)


def note_resumable(scope: Scope) -> None:
    """Have an answer cut off at once when the node stops and its client does not read it.

    For answers that go on for long, and that the client goes on with where they broke off.
    """
    scope["millstream.is_resumable"] = True


def is_resumable(scope: Mapping[str, Any]) -> bool:
    """Whether an answer may be cut off when the node stops."""
    return "millstream.is_resumable" in scope


async def in_thread_if(is_much: bool, work: Callable[[], T]) -> T:  # noqa: FBT001 - the name asks.
    """Do some work at once, or in a thread where it is so much that others would notice."""
    if not is_much:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)
