"""All metrics of a node, in the order in which they are written and documented."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from millstream.broker.access.counters import AccessCounters
from millstream.broker.broker import Broker
from millstream.observe.loop_watch import LoopWatch
from millstream.observe.metrics.access import ACCESS
from millstream.observe.metrics.broker import BROKER, census_of
from millstream.observe.metrics.group_lag import GROUPS, listed_progress
from millstream.observe.metrics.health import HEALTH, NodeCondition
from millstream.observe.metrics.http_server import HTTP_SERVER, ROUTES, listed_routes
from millstream.observe.metrics.kafka_server import (
    DURATIONS,
    KAFKA_SERVER,
    REQUESTS,
    listed_durations,
    listed_requests,
)
from millstream.observe.metrics.live import LIVE
from millstream.observe.metrics.metadata import (
    METADATA,
    METADATA_DURATIONS,
    listed_metadata_durations,
)
from millstream.observe.metrics.metric import LabelledSources, MetricReading, MetricSection
from millstream.observe.metrics.native_server import (
    NATIVE_DURATIONS,
    NATIVE_REQUESTS,
    NATIVE_SERVER,
    listed_native_durations,
    listed_native_requests,
)
from millstream.observe.metrics.peers import (
    FORWARDS,
    PEER_CALLS,
    PEER_CLIENT,
    PEER_REQUESTS,
    PEER_SERVER,
    PEERS,
    listed_peer_calls,
    listed_peer_requests,
    listed_peers,
)
from millstream.observe.metrics.queues import QUEUES, listed_queues
from millstream.observe.metrics.replication import (
    LED_PARTITIONS,
    REPLICA_LAGS,
    REPLICATION,
    listed_lags,
    listed_led_partitions,
)
from millstream.observe.metrics.store import LOGS, STORE, listed_logs
from millstream.observe.metrics.streams import STREAMS
from millstream.observe.metrics.telemetry import TELEMETRY, TelemetryCounters
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.server.server_state import HttpServerState
from millstream.servers.kafka.listener import KafkaListener

if TYPE_CHECKING:
    from millstream.clients.peer.pool import PeerPool
    from millstream.cluster.forwarding.counters import ForwardCounters
    from millstream.cluster.replication.replica_manager import ReplicaManager
    from millstream.servers.native.listener import NativeListener
    from millstream.servers.peer.listener import PeerListener

CLUSTER_SECTIONS: Sequence[MetricSection[Any]] = (
    PEER_SERVER,
    PEER_REQUESTS,
    PEER_CLIENT,
    PEER_CALLS,
    PEERS,
    FORWARDS,
    REPLICATION,
    LED_PARTITIONS,
    REPLICA_LAGS,
)
"""Metrics that only a node of a cluster has."""

NATIVE_SECTIONS: Sequence[MetricSection[Any]] = (NATIVE_SERVER, NATIVE_REQUESTS, NATIVE_DURATIONS)
"""Metrics that only a node with a native server has."""

SECTIONS: Sequence[MetricSection[Any]] = (
    HEALTH,
    KAFKA_SERVER,
    REQUESTS,
    DURATIONS,
    HTTP_SERVER,
    ROUTES,
    LIVE,
    BROKER,
    GROUPS,
    QUEUES,
    STREAMS,
    STORE,
    LOGS,
    METADATA,
    METADATA_DURATIONS,
    ACCESS,
    TELEMETRY,
    *NATIVE_SECTIONS,
    *CLUSTER_SECTIONS,
)
"""All metrics of a node, except those of its process."""


class NodeMetrics:
    """Metrics of a node. Scrape it on the event loop, which owns everything that it reads."""

    def __init__(
        self,
        broker: Broker,
        kafka: KafkaListener,
        http: HttpServerState,
        live: LiveDelivery,
        *,
        health: Callable[[], Health],
        watch: LoopWatch,
        telemetry: TelemetryCounters | None = None,
        native: NativeListener | None = None,
        peer_server: PeerListener | None = None,
        peer_pool: PeerPool | None = None,
        forwards: ForwardCounters | None = None,
        replicas: ReplicaManager | None = None,
    ) -> None:
        self._broker = broker
        self._kafka = kafka
        self._http = http
        self._live = live
        self._health = health
        self._watch = watch
        self._telemetry = telemetry or TelemetryCounters()
        self._native = native
        self._peer_server = peer_server
        self._peer_pool = peer_pool
        self._forwards = forwards
        self._replicas = replicas
        self._no_access = AccessCounters()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def scrape(self) -> Iterator[str]:
        """Yield the text in pieces, so that the loop can do other work between them."""
        for section, listed in self._listed():
            yield from section.text(listed)
        yield generate_latest(self._process).decode()

    def readings(self) -> Iterator[MetricReading]:
        """Yield the metrics as values, in pieces too, without those of the process."""
        for section, listed in self._listed():
            yield from section.readings(listed)

    def _listed(self) -> Iterator[tuple[MetricSection[Any], LabelledSources[Any]]]:
        """Yield every section with its things, which are looked up only when it is its turn."""
        broker, kafka, http = self._broker, self._kafka, self._http
        yield HEALTH, [((), NodeCondition(self._health(), self._watch))]
        yield KAFKA_SERVER, [((), kafka)]
        yield REQUESTS, listed_requests(kafka)
        yield DURATIONS, listed_durations(kafka)
        yield HTTP_SERVER, [((), http)]
        yield ROUTES, listed_routes(http)
        yield LIVE, [((), self._live.counters)]
        yield BROKER, [((), census_of(broker))]
        yield GROUPS, listed_progress(broker)
        yield QUEUES, listed_queues(broker)
        yield STREAMS, [((), broker.streams)]
        yield STORE, [((), broker.store)]
        yield LOGS, listed_logs(broker.store)
        yield METADATA, [((), broker.metadata)]
        yield METADATA_DURATIONS, listed_metadata_durations(broker.metadata)
        access = broker.access
        yield ACCESS, [((), self._no_access if access is None else access.counters)]
        yield TELEMETRY, [((), self._telemetry)]
        if (native := self._native) is not None:
            yield NATIVE_SERVER, [((), native)]
            yield NATIVE_REQUESTS, listed_native_requests(native)
            yield NATIVE_DURATIONS, listed_native_durations(native)
        if (server := self._peer_server) is not None:
            yield PEER_SERVER, [((), server)]
            yield PEER_REQUESTS, listed_peer_requests(server)
        if (pool := self._peer_pool) is not None:
            yield PEER_CLIENT, [((), pool)]
            yield PEER_CALLS, listed_peer_calls(pool)
            yield PEERS, listed_peers(pool)
        if (forwards := self._forwards) is not None:
            yield FORWARDS, [((), forwards)]
        if (replicas := self._replicas) is not None:
            yield REPLICATION, [((), replicas)]
            yield LED_PARTITIONS, listed_led_partitions(replicas)
            yield REPLICA_LAGS, listed_lags(replicas)
