"""Counters of the gate, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

METHODS = ("token", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "certificate")
"""The ways to log in."""

REFUSED = ("topic", "group", "cluster", "transactional id")
KEY_READS = ("read", "failed")
CHANGES = ("acl", "token", "user", "topic", "group", "cluster")


@dataclass(slots=True)
class AccessCounters:
    """What the gate has done since the node started."""

    logins: Counter[str] = field(default_factory=Counter)
    """Logins that succeeded, by method: token, or the name of a SASL mechanism."""
    failed_logins: Counter[str] = field(default_factory=Counter)
    """Logins that failed, by method."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Operations that were refused, by type of resource."""
    changes: Counter[str] = field(default_factory=Counter)
    """Administrative changes, by what was changed."""
    key_reads: Counter[str] = field(default_factory=Counter)
    """Attempts to read the keys of the issuer of JWTs, by outcome."""
    cut_off: int = 0
    """Connections that were closed because their login had ended."""
