"""What all connections of the HTTP door share."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.clock import Clock, Timers
from millstream.config.schema import HttpConfig
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.server.connection_set import ConnectionSet
from millstream.servers.http.shutdown_signal import ShutdownSignal


@dataclass(slots=True)
class HttpServerState:
    """Limits, time, and what is counted. Belongs to the event loop."""

    config: HttpConfig
    clock: Clock
    timers: Timers
    closing: ShutdownSignal = field(default_factory=ShutdownSignal)
    counters: HttpCounters = field(default_factory=HttpCounters)
    connections: ConnectionSet = field(default_factory=ConnectionSet)
