"""All metrics of a node, in the order in which they are written and documented."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from millstream.broker.broker import Broker
from millstream.http.doorway import Doorway
from millstream.http.health import Health
from millstream.http.live.live import Live
from millstream.kafka.listener import Listener
from millstream.observe.broker import BROKER, census_of
from millstream.observe.condition import CONDITION, Condition
from millstream.observe.door import (
    DOOR,
    DURATIONS,
    REQUESTS,
    listed_durations,
    listed_requests,
)
from millstream.observe.http_door import HTTP_DOOR, ROUTES, listed_routes
from millstream.observe.lag import GROUPS, listed_progress
from millstream.observe.live import LIVE
from millstream.observe.loop import LoopWatch
from millstream.observe.metrics import Listed, Reading, Section
from millstream.observe.queues import QUEUES, listed_queues
from millstream.observe.store import LOGS, STORE, listed_logs
from millstream.observe.streams import STREAMS
from millstream.observe.telemetry import TELEMETRY, TelemetryCounters

SECTIONS: Sequence[Section[Any]] = (
    CONDITION,
    DOOR,
    REQUESTS,
    DURATIONS,
    HTTP_DOOR,
    ROUTES,
    LIVE,
    BROKER,
    GROUPS,
    QUEUES,
    STREAMS,
    STORE,
    LOGS,
    TELEMETRY,
)
"""Every metric that a node has, beside those of its process."""


class NodeMetrics:
    """What a node tells Prometheus. Scrape it on the event loop, to which all it reads belongs."""

    def __init__(
        self,
        broker: Broker,
        door: Listener,
        doorway: Doorway,
        live: Live,
        *,
        health: Callable[[], Health],
        watch: LoopWatch,
        telemetry: TelemetryCounters | None = None,
    ) -> None:
        self._broker = broker
        self._door = door
        self._doorway = doorway
        self._live = live
        self._health = health
        self._watch = watch
        self._telemetry = telemetry or TelemetryCounters()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def scrape(self) -> Iterator[str]:
        """Yield the text in pieces; between two of them, the loop may do something else."""
        for section, listed in self._listed():
            yield from section.text(listed)
        yield generate_latest(self._process).decode()

    def readings(self) -> Iterator[Reading]:
        """Yield the same as values, without those of the process, in pieces too."""
        for section, listed in self._listed():
            yield from section.readings(listed)

    def _listed(self) -> Iterator[tuple[Section[Any], Listed[Any]]]:
        """Yield every section with the things that it tells of, which are looked up only then."""
        broker, door = self._broker, self._door
        yield CONDITION, [((), Condition(self._health(), self._watch))]
        yield DOOR, [((), door)]
        yield REQUESTS, listed_requests(door)
        yield DURATIONS, listed_durations(door)
        yield HTTP_DOOR, [((), self._doorway)]
        yield ROUTES, listed_routes(self._doorway)
        yield LIVE, [((), self._live.counters)]
        yield BROKER, [((), census_of(broker))]
        yield GROUPS, listed_progress(broker)
        yield QUEUES, listed_queues(broker)
        yield STREAMS, [((), broker.streams)]
        yield STORE, [((), broker.store)]
        yield LOGS, listed_logs(broker.store)
        yield TELEMETRY, [((), self._telemetry)]
