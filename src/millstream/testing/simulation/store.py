"""A metadata store in memory: one partition, registrations of nodes, leases, compare and set.

It means what etcd means: every change has a revision, a transaction either takes effect as a whole
or not at all, and a node's registration is gone when its lease has expired. Delays and losses are
those of the network, which is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.cluster.controller import ClusterNode
from millstream.cluster.life import LifeRecord, decode_life, encode_life
from millstream.cluster.replication_state import (
    Proposal,
    ReplicationState,
    decode_state,
    encode_state,
)


@dataclass(slots=True)
class Registration:
    """The key of a node."""

    broker_epoch: int
    expires_at: float


class SimulatedStore:
    """The store, by its own clock."""

    def __init__(self, ttl_seconds: float) -> None:
        self.revision = 0
        self.controller_epoch = 1
        self.registrations: dict[int, Registration] = {}
        self._ttl = ttl_seconds
        self._lives: dict[int, tuple[bytes, int]] = {}
        self._value = b""
        self._value_revision = 0

    @property
    def state(self) -> ReplicationState:
        """The state of the partition."""
        return decode_state(self._value, self._value_revision)

    def last_life(self, node: int) -> tuple[LifeRecord | None, int]:
        """Return the record of the last life of a node, and its revision."""
        value, revision = self._lives.get(node, (b"", 0))
        return (decode_life(value) if value else None), revision

    def register(self, node: int, record: LifeRecord, revision: int, now: float) -> int | None:
        """Register a node; return its broker epoch.

        None if it is registered, or if the record of its last life is not of this revision.
        """
        self._expire(now)
        if node in self.registrations or self.last_life(node)[1] != revision:
            return None
        self.revision += 1
        self.registrations[node] = Registration(self.revision, now + self._ttl)
        self._lives[node] = (encode_life(record), self.revision)
        return self.revision

    def renew(self, node: int, broker_epoch: int, now: float) -> bool:
        """Renew the lease of a node; return whether it exists."""
        self._expire(now)
        registration = self.registrations.get(node)
        if registration is None or registration.broker_epoch != broker_epoch:
            return False
        registration.expires_at = now + self._ttl
        return True

    def live(self, now: float) -> dict[int, ClusterNode]:
        """Return the nodes that the controller sees."""
        self._expire(now)
        nodes = {}
        for node, registration in self.registrations.items():
            record, revision = self.last_life(node)
            assert record is not None
            since = record.continuous_since(revision)
            nodes[node] = ClusterNode(node, registration.broker_epoch, since)
        return nodes

    def commit(self, proposal: Proposal, now: float) -> bool:
        """Carry out a proposal if its comparisons hold; return whether they do."""
        self._expire(now)
        epochs = {node: one.broker_epoch for node, one in self.registrations.items()}
        if not proposal.holds(self._value_revision, epochs, self.controller_epoch):
            return False
        self.revision += 1
        self._value = encode_state(proposal.state)
        self._value_revision = self.revision
        return True

    def _expire(self, now: float) -> None:
        for node in [node for node, one in self.registrations.items() if one.expires_at <= now]:
            del self.registrations[node]
            self.revision += 1
