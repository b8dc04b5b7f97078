"""Runs the steps of operations over the connections of the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.steps import SendRequest, Steps
from millstream.clients.http.transport.async_connection_pool import AsyncConnectionPool
from millstream.errors import MillstreamError

T = TypeVar("T")


class AsyncStepRunner:
    """Connections of a client, and how it waits."""

    def __init__(
        self,
        connections: Mapping[NodeUrl, AsyncConnectionPool],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.connections = connections
        self.pause = pause

    async def run(self, steps: Steps[T]) -> T:
        """Execute the steps of an operation and return its result."""
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._execute(step)
                except MillstreamError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()

    async def _execute(self, step: Any) -> Any:
        if isinstance(step, SendRequest):
            return await self.connections[step.address].send(step.request, step.timeout_s)
        return await self.pause(step.seconds)
