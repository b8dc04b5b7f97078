"""The context of a request: what a handler gets beside the request itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.broker.quota_rules import ANONYMOUS
from millstream.config.schema import KafkaConfig

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.quotas import QuotaKind
    from millstream.servers.kafka.fetch_session import FetchSessions
    from millstream.servers.kafka.response_memory import ResponseMemory


@dataclass(slots=True)
class RequestContext:
    broker: Broker
    config: KafkaConfig
    fetch_sessions: FetchSessions
    version: int
    """The version of the request, and so of its response."""
    client_id: str
    principal: str = ANONYMOUS
    host: str = ""
    response_memory: ResponseMemory | None = None
    """The memory for responses of all connections; unlimited in tests without a listener."""
    throttle_ms: int = 0
    """How long the client has to wait before its next request, as known so far."""

    def charge(self, kind: QuotaKind, amount: float) -> int:
        """Charge the client for what it used; return how long it has to wait now, in total."""
        quotas = self.broker.quotas
        if not quotas.is_empty:
            now = self.broker.clock.monotonic()
            wait_ms = quotas.charge(kind, self.principal, self.client_id, amount, now)
            self.throttle_ms = max(self.throttle_ms, wait_ms)
        return self.throttle_ms
