"""Handlers of the node: its description and its last minutes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.errors import Unavailable
from millstream.protocols.http.node import ConnectionsAnswer, HistoryAnswer, NodeAnswer
from millstream.servers.http.routing.operation_access import cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response


class NodeReport(Protocol):
    """Reports about a node. Called on its event loop."""

    async def describe(self) -> NodeAnswer:
        """Return the description of the node."""
        ...

    def history(self) -> HistoryAnswer:
        """Return the metrics of the last minutes."""
        ...

    def connections(self) -> ConnectionsAnswer:
        """Return the open connections."""
        ...


async def describe_node(request: HttpRequest) -> Response:
    """Return the version, addresses and machine of the node, and the size of its data."""
    return json_response(await _node_of(request).describe())


async def get_history(request: HttpRequest) -> Response:
    """Return metrics of the last five minutes, one sample per second.

    They are kept in memory, so they start again when the node starts.
    """
    return json_response(_node_of(request).history())


async def list_connections(request: HttpRequest) -> Response:
    """List the open connections, added up by client and address."""
    return json_response(_node_of(request).connections())


def _node_of(request: HttpRequest) -> NodeReport:
    node = request.context.node
    if node is None:
        raise Unavailable("the server runs without a node")
    return node


_MACHINE = {
    "python": "CPython 3.12.3",
    "kernel": "Linux 6.8.0",
    "cpus": 2,
    "cpu_list": "0-1",
    "cpu_quota": None,
    "checksums": "hardware",
    "file_system": "ext4",
    "free_bytes": 250_000_000_000,
    "descriptors_max": 1_048_576,
    "memory_bytes": 8_000_000_000,
    "page_bytes": 4096,
    "maps_max": 65_530,
    "clock_source": "tsc",
    "warnings": [],
}

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/node",
        describe_node,
        "Describe the node",
        {HTTPStatus.OK: NodeAnswer},
        tag="node",
        answer_example={
            "version": "0.1.0",
            "node_id": 1,
            "started_at": 1763240000000,
            "uptime_ms": 123456,
            "status": "ready",
            "problems": [],
            "kafka": "127.0.0.1:9092",
            "http": "http://127.0.0.1:8080",
            "advertised": "127.0.0.1:9092",
            "data": "millstream-data",
            "commits": "threads",
            "durability": "fsync",
            "event_loop": "uvloop 0.22",
            "machine": _MACHINE,
            "opened": {"logs": 3, "scanned_bytes": 0, "damaged_logs": 0},
            "topics": 3,
            "partitions": 9,
            "groups": 1,
            "queues": 1,
            "kafka_connections": 2,
            "http_connections": 3,
            "watchers": 1,
            "console": "read",
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "GET",
        "/v1/node/connections",
        list_connections,
        "List connections",
        {HTTPStatus.OK: ConnectionsAnswer},
        tag="node",
        answer_example={
            "kafka": 2,
            "kafka_max": 20_000,
            "http": 3,
            "http_max": 10_000,
            "clients": [
                {
                    "server": "kafka",
                    "address": "127.0.0.1",
                    "client_id": "billing-1",
                    "connections": 2,
                    "requests": 1,
                    "idle_ms": 120,
                }
            ],
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "GET",
        "/v1/node/history",
        get_history,
        "Get the last minutes of the node",
        {HTTPStatus.OK: HistoryAnswer},
        tag="node",
        answer_example={
            "interval_ms": 1000,
            "until": 1763240000000,
            "series": {
                "appended_records": [0, 40],
                "appended_bytes": [0, 4096],
                "read_bytes": [120, 5300],
                "kafka_requests": [1, 12],
                "http_requests": [1, 1],
                "commit_p50_ms": [None, 0.4],
                "commit_p99_ms": [None, 0.9],
                "kafka_p99_ms": [0.2, 1.2],
                "http_p99_ms": [0.4, 0.4],
                "connections": [3, 3],
                "cpu_percent": [1.5, 4.0],
                "memory_bytes": [90_000_000, 90_100_000],
            },
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
)
