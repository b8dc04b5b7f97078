"""Facts about a node, as `GET /v1/node` and `GET /v1/node/history` report them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from importlib.metadata import version

import millstream
from millstream.broker.broker import Broker
from millstream.clock import Timers
from millstream.config.schema import Endpoint
from millstream.histogram import LATENCY_BUCKETS
from millstream.observe.history import History, HistoryBuckets, HistorySample
from millstream.observe.machine import detect_machine, machine_warnings
from millstream.protocols.http.node import (
    ConnectionGroupShape,
    ConnectionsAnswer,
    HistoryAnswer,
    MachineShape,
    NodeAnswer,
    OpenedShape,
    ServerName,
)
from millstream.servers.http.counters import SECONDS
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.server.server_state import HttpServerState
from millstream.servers.kafka.listener import KafkaListener

CLIENTS_MAX = 1_000
"""Clients in a list of connections."""

_STATM = "/proc/self/statm"
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class NodeInfo:
    """Describes a node, and records its history from `start` to `stop`. Runs on the event loop."""

    def __init__(
        self,
        broker: Broker,
        kafka: KafkaListener,
        http: HttpServerState,
        live: LiveDelivery,
        *,
        health: Callable[[], Health],
        endpoints: Callable[[], tuple[Endpoint, str]],
        timers: Timers,
    ) -> None:
        self._broker = broker
        self._kafka = kafka
        self._http = http
        self._live = live
        self._health = health
        self._endpoints = endpoints
        """Address of the Kafka listener, and URL of the HTTP server."""
        self._data = os.path.abspath(broker.store.path)
        self._started_at = broker.clock.wall_ms()
        self._started = broker.clock.monotonic()
        bounds = HistoryBuckets(
            commits=LATENCY_BUCKETS,
            kafka_answers=LATENCY_BUCKETS,
            http_answers=SECONDS,
        )
        self._history = History(self._sample, bounds, clock=broker.clock, timers=timers)

    def start(self) -> None:
        """Start to record the history."""
        self._history.start()

    def stop(self) -> None:
        self._history.stop()

    async def describe(self) -> NodeAnswer:
        """Return the present state of the node."""
        broker, live = self._broker, self._live.counters
        # It reads files of the system, and asks the disk how much space is free.
        machine = await asyncio.get_running_loop().run_in_executor(
            None, detect_machine, broker.store.path
        )
        health = self._health()
        kafka, http = self._endpoints()
        openings = broker.openings.values()
        return NodeAnswer(
            version=millstream.__version__,
            node_id=broker.node_id,
            started_at=self._started_at,
            uptime_ms=int((broker.clock.monotonic() - self._started) * 1000),
            status="ready" if health.is_ready else "not ready",
            problems=[problem.message for problem in health.problems],
            kafka=str(kafka),
            http=http,
            advertised=str(broker.advertised),
            data=self._data,
            commits=broker.store.sync_backend,
            durability=broker.store.log_config.durability.value,
            event_loop=_event_loop(),
            machine=MachineShape(
                python=machine.python,
                kernel=machine.kernel,
                cpus=machine.cpus,
                cpu_list=machine.cpu_list,
                cpu_quota=machine.cpu_quota,
                checksums=machine.checksums,
                file_system=machine.file_system,
                free_bytes=machine.free_bytes,
                descriptors_max=machine.descriptors_max,
                memory_bytes=machine.memory_bytes,
                page_bytes=machine.page_bytes,
                maps_max=machine.maps_max,
                clock_source=machine.clock_source,
                warnings=machine_warnings(machine, maps_open_max=broker.store.config.maps_open_max),
            ),
            opened=OpenedShape(
                logs=sum(opening.logs for opening in openings),
                scanned_bytes=sum(opening.scanned_bytes for opening in openings),
                damaged_logs=len(broker.store.damage()) + len(broker.state.damage()),
            ),
            topics=broker.topics.count,
            partitions=broker.topics.partition_count,
            groups=len(broker.groups),
            queues=len(broker.queues.all()),
            kafka_connections=self._kafka.connection_count,
            http_connections=len(self._http.connections),
            watchers=live.event_streams + live.sockets,
            console=self._http.config.console.value,
        )

    def connections(self) -> ConnectionsAnswer:
        """Return the open connections, added up by client and address."""
        clients: dict[tuple[str, str, str | None], ConnectionGroupShape] = {}
        now = asyncio.get_running_loop().time()
        for session in self._kafka.connections:
            client = _client(clients, "kafka", session.host, session.client_id)
            client.requests += session.request_count
            idle_ms = int((now - session.active_at) * 1000)
            client.idle_ms = idle_ms if client.idle_ms is None else min(client.idle_ms, idle_ms)
        open_http = self._http.connections
        for connection in open_http:
            server: ServerName = "websocket" if connection.is_websocket else "http"
            _client(clients, server, open_http.address_of(connection), None)
        kafka, http = self._kafka, self._http
        listed = sorted(clients.values(), key=lambda client: -client.connections)
        return ConnectionsAnswer(
            kafka=kafka.connection_count,
            kafka_max=kafka.config.connections_max,
            http=len(open_http),
            http_max=http.config.connections_max,
            clients=listed[:CLIENTS_MAX],
        )

    def history(self) -> HistoryAnswer:
        """Return the samples of the last minutes."""
        return self._history.answer()

    def _sample(self) -> HistorySample:
        totals, kafka = self._broker.store.totals, self._kafka.counters
        http, live = self._http.counters, self._live.counters
        return HistorySample(
            appended_records=totals.records,
            appended_bytes=totals.bytes,
            read_bytes=kafka.sent_bytes + http.sent_bytes + live.socket_bytes,
            kafka_requests=sum(requests.count for requests in kafka.requests.values()),
            http_requests=sum(http.durations.counts),
            commits=tuple(totals.syncs.counts),
            kafka_answers=kafka.prompt_answers(),
            http_answers=tuple(http.prompt_durations.counts),
            connections=self._kafka.connection_count + len(self._http.connections),
            cpu_seconds=time.process_time(),
            memory_bytes=resident_bytes(),
        )


def _client(
    clients: dict[tuple[str, str, str | None], ConnectionGroupShape],
    server: ServerName,
    address: str,
    client_id: str | None,
) -> ConnectionGroupShape:
    """Count one more connection of a client, and return what is known of the client."""
    key = (server, address, client_id)
    if (client := clients.get(key)) is None:
        client = clients[key] = ConnectionGroupShape(
            server=server,
            address=address,
            client_id=client_id,
            connections=0,
            requests=0,
            idle_ms=None,
        )
    client.connections += 1
    return client


def resident_bytes(path: str = _STATM) -> int | None:
    """Return the resident memory of this process, or `None` if the system does not report it."""
    try:
        with open(path, encoding="ascii") as file:
            fields = file.read(1024).split()
    except OSError:
        return None
    return int(fields[1]) * _PAGE_SIZE if len(fields) > 1 and fields[1].isdecimal() else None


def _event_loop() -> str:
    """Return the name of the event loop implementation, with its version."""
    package = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return f"uvloop {version('uvloop')}" if package == "uvloop" else package
