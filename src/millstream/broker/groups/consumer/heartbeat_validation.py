"""Validation of heartbeats of consumer groups, independent of the group."""

from __future__ import annotations

from millstream.broker.groups.consumer.assignors import ASSIGNORS
from millstream.broker.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
)
from millstream.broker.groups.consumer.topic_pattern import TopicPattern
from millstream.errors import InvalidRequest, UnsupportedAssignor


def check_heartbeat(beat: ConsumerHeartbeat) -> None:
    """Raise unless `beat` is valid."""
    if not beat.member_id:
        raise InvalidRequest("member id must not be empty")
    for name, value in (("instance id", beat.instance_id), ("rack id", beat.rack_id)):
        if value == "":
            raise InvalidRequest(f"{name} must not be empty")
    if beat.member_epoch < LEAVE_STATIC_EPOCH:
        raise InvalidRequest(f"member epoch must be at least -2, got {beat.member_epoch}")
    if beat.member_epoch == LEAVE_STATIC_EPOCH and beat.instance_id is None:
        raise InvalidRequest("only a member with an instance id can leave temporarily (epoch -2)")
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        names = ", ".join(ASSIGNORS)
        raise UnsupportedAssignor(f"assignor must be one of {names}, got {beat.assignor!r}")
    if beat.rebalance_timeout_ms is not None and beat.rebalance_timeout_ms < 0:
        raise InvalidRequest(
            f"rebalance timeout must not be negative, got {beat.rebalance_timeout_ms} ms"
        )
    if beat.topic_regex:
        TopicPattern(beat.topic_regex)
    if beat.member_epoch == JOIN_EPOCH:
        _check_join(beat)


def _check_join(beat: ConsumerHeartbeat) -> None:
    if beat.rebalance_timeout_ms is None:
        raise InvalidRequest("a member that joins must send a rebalance timeout")
    if beat.owned is None or beat.owned:
        raise InvalidRequest("a member that joins must send an empty list of owned partitions")
    if beat.topic_names is None and beat.topic_regex is None:
        raise InvalidRequest("a member that joins must send topic names or a topic regex")
