"""A load of appends at a fixed rate, over a fixed number of connections.

The times at which requests should be sent are fixed before the first one. The latency of a request
counts from that time, not from when it was sent: a node that stalls for a second delays all
requests of that second, and a load that waited with it would count only one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from millstream.cli.bench.latencies import Latencies
from millstream.clients.http.aio.client import AsyncClient
from millstream.clients.http.core.config import ClientConfig
from millstream.errors import MillstreamError

VALUES = 64
"""Different requests: values that do not repeat within a request, and hardly between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What to send."""

    topic: str
    seconds: float
    records_per_second: float
    """Of all connections together; 0 is as fast as the node answers."""
    record_size: int
    records_per_request: int
    timeout_s: float
    """How long a request, with its retries, may take."""


@dataclass(slots=True)
class LoadResult:
    """What came of it."""

    latencies: Latencies = field(default_factory=Latencies)
    acknowledged: int = 0
    """Records."""
    failures: Counter[str] = field(default_factory=Counter)
    """Requests that failed, by class of the error."""
    behind_s: float = 0.0
    """How late the latest request was sent: more than a moment means that the rate was not met."""
    seconds: float = 0.0


class LoadClient(Protocol):
    """One connection: `AsyncClient`."""

    async def append_many(self, topic: str, records: Iterable[Any], /) -> Sequence[object]:
        """Append records; return where each of them was stored."""
        ...


class LoadRun:
    """One run. `now` and `pause` are the clock of the event loop."""

    def __init__(
        self,
        plan: LoadPlan,
        *,
        now: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._plan = plan
        self._now = now
        self._pause = pause
        self.result = LoadResult()
        self._requests = [
            [os.urandom(plan.record_size) for _ in range(plan.records_per_request)]
            for _ in range(VALUES)
        ]

    async def run(self, clients: Sequence[LoadClient]) -> LoadResult:
        """Send everything, over one connection for each client; return at the last response."""
        began = self._now()
        await asyncio.gather(
            *(
                self._send_all(client, first, len(clients), began)
                for first, client in enumerate(clients)
            )
        )
        self.result.seconds = self._now() - began
        return self.result

    async def _send_all(self, client: LoadClient, first: int, step: int, began: float) -> None:
        """Send every `step`th request from the `first` on, one after the other."""
        plan, result = self._plan, self.result
        rate = plan.records_per_second / plan.records_per_request
        for number in itertools.count(first, step):
            due = began + number / rate if rate else self._now()
            if due - began >= plan.seconds:
                return
            if (early := due - self._now()) > 0:
                await self._pause(early)
            result.behind_s = max(result.behind_s, self._now() - due)
            try:
                placed = await client.append_many(plan.topic, self._requests[number % VALUES])
            except MillstreamError as error:
                result.failures[type(error).__name__] += 1
            else:
                result.acknowledged += len(placed)
                result.latencies.add(self._now() - due)


async def run_load(
    servers: str, plan: LoadPlan, *, connections: int, config: ClientConfig | None = None
) -> LoadResult:
    """Run a load against nodes, with connections of its own."""
    config = dataclasses.replace(
        config or ClientConfig(), timeout_s=plan.timeout_s, answer_s_max=plan.timeout_s
    )
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(servers, config=config))
            for _ in range(connections)
        ]
        # So that the first requests do not have to connect.
        await asyncio.gather(*(client.topic(plan.topic).describe() for client in clients))
        return await LoadRun(plan, now=asyncio.get_running_loop().time).run(clients)
