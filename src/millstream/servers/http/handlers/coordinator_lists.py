"""Lists of what several nodes coordinate: every coordinator is asked for its part.

A list that lacks a part looks complete. So if a coordinator cannot answer, or has not loaded its
state, the whole list is refused, and the error says which node or partition is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from millstream.broker.state.coordinators import Coordinators
from millstream.broker.state.internal_partitions import InternalPartition
from millstream.errors import MalformedRequest, MillstreamError, NotLeader, Unavailable
from millstream.servers.http.routing.operations import TAKEOVER_SECONDS, TAKEOVER_SECONDS_MAX
from millstream.servers.http.routing.request import FORWARDED, HttpRequest

T = TypeVar("T")

COORDINATORS_HEADER = "millstream-coordinators"
"""Names the internal partitions of which a node is asked for its part of a list."""


async def ask_coordinators(
    request: HttpRequest,
    coordinators: Coordinators[Any],
    kind: type[T],
    own: Callable[[], Awaitable[T]],
    *,
    is_every_node: bool = False,
) -> list[T]:
    """Return the parts of a list, one for each node that coordinates some of it.

    `own` makes the part of this node. With `is_every_node`, the other nodes are asked too. An
    election takes a moment, so it is tried for two seconds.
    """
    forwarder = request.context.forwarder
    if forwarder is None:
        return [await own()]
    if FORWARDED in request.scope:
        coordinators.check_loaded(_indexes_in(request))
        return [await own()]
    broker = request.context.broker

    async def ask(node_id: int, indexes: Sequence[int]) -> T:
        if node_id == broker.node_id:
            coordinators.check_loaded(indexes)
            return await own()
        header = ",".join(map(str, indexes))
        return await ask_node(request, node_id, kind, headers={COORDINATORS_HEADER: header})

    async def collect() -> list[T]:
        by_node = _coordinators_by_node(request, coordinators)
        if is_every_node:
            for node in broker.admin.nodes():
                if node.is_alive:
                    by_node.setdefault(node.node_id, [])
        return await gather_parts({node: ask(node, indexes) for node, indexes in by_node.items()})

    return await retried(collect)


async def retried(collect: Callable[[], Awaitable[T]]) -> T:
    """Return a result, if need be after an election."""
    deadline = asyncio.get_running_loop().time() + TAKEOVER_SECONDS_MAX
    while True:
        try:
            return await collect()
        except Unavailable:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(TAKEOVER_SECONDS)


async def gather_parts(asked: Mapping[int, Awaitable[T]]) -> list[T]:
    """Return what all nodes answer; raises `Unavailable` if one cannot."""
    parts = await asyncio.gather(*asked.values(), return_exceptions=True)
    for node_id, part in zip(asked, parts, strict=True):
        if isinstance(part, MillstreamError):
            raise Unavailable(
                f"the list would not be complete: node {node_id} cannot answer: {part}"
            ) from part
        if isinstance(part, BaseException):
            raise part
    return [part for part in parts if not isinstance(part, BaseException)]


async def ask_node(
    request: HttpRequest, node_id: int, kind: type[T], *, headers: Mapping[str, str] | None = None
) -> T:
    """Send the request of a client to one node, which answers for itself alone."""
    forwarder = request.context.forwarder
    assert forwarder is not None, "a node of a cluster has one"
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    target = path + b"?" + query if query else path
    refusal = NotLeader(f"node {node_id} is asked", leader=node_id)
    return await forwarder.ask(
        request, refusal, kind, method="GET", path=target.decode("latin-1"), headers=headers
    )


def _coordinators_by_node(
    request: HttpRequest, coordinators: Coordinators[Any]
) -> dict[int, list[int]]:
    """Return the numbers of the internal partitions that each node leads."""
    internal = request.context.broker.internal_partitions
    by_node: dict[int, list[int]] = {}
    for index in range(coordinators.count):
        partition = InternalPartition(coordinators.name, index)
        node_id = internal.leader_of(partition)
        if node_id < 0:
            raise Unavailable(f"the list would not be complete: no node leads {partition} now")
        by_node.setdefault(node_id, []).append(index)
    return by_node


def _indexes_in(request: HttpRequest) -> Iterable[int]:
    text = request.headers.get(COORDINATORS_HEADER, "")
    try:
        return [int(index) for index in text.split(",") if index]
    except ValueError:
        raise MalformedRequest(
            f"{COORDINATORS_HEADER} must have numbers, got {text[:100]!r}"
        ) from None
