"""What all connections of the HTTP door share."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.clock import Clock, Timers
from millstream.config import HttpConfig
from millstream.http.closing import Closing
from millstream.http.connections import Connections
from millstream.http.counters import HttpCounters


@dataclass(slots=True)
class Doorway:
    """Limits, time, and what is counted. Belongs to the event loop."""

    config: HttpConfig
    clock: Clock
    timers: Timers
    closing: Closing = field(default_factory=Closing)
    counters: HttpCounters = field(default_factory=HttpCounters)
    connections: Connections = field(default_factory=Connections)
