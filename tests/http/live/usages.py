"""Who watches, in tests that are about something else."""

from __future__ import annotations

from millstream.broker.broker import Broker
from millstream.http.counters import HttpCounters
from millstream.http.usage import Meter, Usage


def usage_of(broker: Broker, client_id: str = "") -> Usage:
    """Return the usage of a client of a broker."""
    return Usage(Meter(broker.quotas, broker.clock, HttpCounters()), client_id)
