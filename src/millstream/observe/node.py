"""All metrics of a node, in the order in which they are written and documented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from millstream.http.live.live import Live
from millstream.kafka.listener import Listener
from millstream.observe.broker import BROKER, census_of
from millstream.observe.door import DOOR, REQUESTS, listed_requests
from millstream.observe.http_door import HTTP_DOOR, ROUTES, listed_routes
from millstream.observe.lag import GROUPS, listed_progress
from millstream.observe.live import LIVE
from millstream.observe.metrics import Section
from millstream.observe.queues import QUEUES, listed_queues
from millstream.observe.store import LOGS, STORE, listed_logs

SECTIONS: Sequence[Section[Any]] = (
    DOOR,
    REQUESTS,
    HTTP_DOOR,
    ROUTES,
    LIVE,
    BROKER,
    GROUPS,
    QUEUES,
    STORE,
    LOGS,
)
"""Every metric that a node has, beside those of its process."""


class NodeMetrics:
    """What a node tells Prometheus. Scrape it on the event loop, to which all it reads belongs."""

    def __init__(self, broker: Broker, door: Listener, doorway: Doorway, live: Live) -> None:
        self._broker = broker
        self._door = door
        self._doorway = doorway
        self._live = live
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def scrape(self) -> Iterator[str]:
        """Yield the text in pieces; between two of them, the loop may do something else."""
        broker, door = self._broker, self._door
        yield from DOOR.text([((), door)])
        yield from REQUESTS.text(listed_requests(door))
        yield from HTTP_DOOR.text([((), self._doorway)])
        yield from ROUTES.text(listed_routes(self._doorway))
        yield from LIVE.text([((), self._live.counters)])
        yield from BROKER.text([((), census_of(broker))])
        yield from GROUPS.text(listed_progress(broker))
        yield from QUEUES.text(listed_queues(broker))
        yield from STORE.text([((), broker.store)])
        yield from LOGS.text(listed_logs(broker.store))
        yield generate_latest(self._process).decode()
