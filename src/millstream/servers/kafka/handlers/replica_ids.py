"""Replica ids of requests: replicas have a listener of their own, and are refused by this one."""

from __future__ import annotations

from millstream.errors import InvalidRequest


def is_replica(replica_id: int) -> bool:
    """Return whether a request comes from a replica.

    Negative numbers stand for consumers of several kinds; kafka-replica-verification is one.
    """
    return replica_id >= 0


def check_not_replica(replica_id: int) -> None:
    """Raise `InvalidRequest` if a request comes from a replica."""
    if is_replica(replica_id):
        raise InvalidRequest(f"replica id must be negative on this listener, got {replica_id}")
