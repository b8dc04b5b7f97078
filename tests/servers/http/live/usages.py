"""Usages of watchers in tests that are about something else."""

from __future__ import annotations

from millstream.broker.broker import Broker
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.routing.usage import ClientUsage, QuotaMeter


def usage_of(broker: Broker, client_id: str = "") -> ClientUsage:
    """Return the usage of a client of a broker."""
    return ClientUsage(QuotaMeter(broker.quotas, broker.clock, HttpCounters()), client_id)
