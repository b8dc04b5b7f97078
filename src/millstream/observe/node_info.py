"""What a node knows of itself: what `GET /v1/node` and `GET /v1/node/history` tell."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from importlib.metadata import version

import millstream
from millstream import histogram as distribution
from millstream.broker.broker import Broker
from millstream.clock import Timers
from millstream.config.schema import Endpoint
from millstream.observe.history import History, HistoryBuckets, HistorySample
from millstream.observe.machine import detect_machine
from millstream.protocols.http.node import HistoryAnswer, MachineShape, NodeAnswer, OpenedShape
from millstream.servers.http import counters as http_counters
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.server.server_state import HttpServerState
from millstream.servers.kafka.listener import KafkaListener

_STATM = "/proc/self/statm"
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class NodeInfo:
    """Describes a node, and keeps its history from `start` to `stop`. Lives on its event loop."""

    def __init__(
        self,
        broker: Broker,
        door: KafkaListener,
        doorway: HttpServerState,
        live: LiveDelivery,
        *,
        health: Callable[[], Health],
        doors: Callable[[], tuple[Endpoint, Endpoint]],
        timers: Timers,
    ) -> None:
        self._broker = broker
        self._door = door
        self._doorway = doorway
        self._live = live
        self._health = health
        self._doors = doors
        """Where the Kafka door and the HTTP door listen."""
        self._data = os.path.abspath(broker.store.path)
        self._started_at = broker.clock.wall_ms()
        self._began = broker.clock.monotonic()
        bounds = HistoryBuckets(
            commits=distribution.LATENCY_BUCKETS,
            kafka_answers=distribution.LATENCY_BUCKETS,
            http_answers=http_counters.SECONDS,
        )
        self._history = History(self._reading, bounds, clock=broker.clock, timers=timers)

    def start(self) -> None:
        """Begin to keep the history."""
        self._history.start()

    def stop(self) -> None:
        """Keep it no longer."""
        self._history.stop()

    async def describe(self) -> NodeAnswer:
        """Return what the node is, now."""
        broker, live = self._broker, self._live.counters
        # It reads files of the system, and asks the disk how much room there is.
        machine = await asyncio.get_running_loop().run_in_executor(
            None, detect_machine, broker.store.path
        )
        health = self._health()
        kafka, http = self._doors()
        openings = broker.openings.values()
        return NodeAnswer(
            version=millstream.__version__,
            node_id=broker.node_id,
            started_at=self._started_at,
            uptime_ms=int((broker.clock.monotonic() - self._began) * 1000),
            status="ready" if health.is_ready else "not ready",
            problems=[problem.message for problem in health.problems],
            kafka=str(kafka),
            http=f"http://{http}",
            advertised=str(broker.advertised),
            data=self._data,
            commits=broker.store.sync_backend,
            event_loop=_event_loop(),
            machine=MachineShape(
                python=machine.python,
                kernel=machine.kernel,
                cpus=machine.cpus,
                cpu_quota=machine.cpu_quota,
                checksums=machine.checksums,
                file_system=machine.file_system,
                free_bytes=machine.free_bytes,
                descriptors_max=machine.descriptors_max,
                memory_bytes=machine.memory_bytes,
            ),
            opened=OpenedShape(
                logs=sum(one.logs for one in openings),
                scanned_bytes=sum(one.scanned_bytes for one in openings),
                damaged_logs=sum(one.damaged_logs for one in openings),
            ),
            topics=broker.topics.count,
            partitions=broker.topics.partition_count,
            groups=len(broker.groups.registry),
            queues=len(broker.queues.all()),
            kafka_connections=self._door.connection_count,
            http_connections=len(self._doorway.connections),
            watchers=live.event_streams + live.sockets,
        )

    def history(self) -> HistoryAnswer:
        """Return what it did in the last minutes."""
        return self._history.answer()

    def _reading(self) -> HistorySample:
        totals, kafka = self._broker.store.totals, self._door.counters
        http, live = self._doorway.counters, self._live.counters
        return HistorySample(
            appended_records=totals.records,
            appended_bytes=totals.bytes,
            read_bytes=kafka.sent_bytes + http.sent_bytes + live.socket_bytes,
            kafka_requests=sum(one.count for one in kafka.requests.values()),
            http_requests=sum(http.durations.counts),
            commits=tuple(totals.syncs.counts),
            kafka_answers=kafka.prompt_answers(),
            http_answers=tuple(http.prompt_durations.counts),
            connections=self._door.connection_count + len(self._doorway.connections),
            cpu_seconds=time.process_time(),
            memory_bytes=resident_bytes(),
        )


def resident_bytes(path: str = _STATM) -> int | None:
    """Return how much memory this process takes, as far as the system says."""
    try:
        with open(path, encoding="ascii") as file:
            fields = file.read(1024).split()
    except OSError:
        return None
    return int(fields[1]) * _PAGE_SIZE if len(fields) > 1 and fields[1].isdecimal() else None


def _event_loop() -> str:
    """Return what drives the node, and its version."""
    package = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return f"uvloop {version('uvloop')}" if package == "uvloop" else package
