"""How many replicas a topic has, and how many of them an acknowledgement needs."""

from __future__ import annotations

from millstream.broker.topics.configs.topic_settings import MIN_INSYNC_REPLICAS
from millstream.broker.topics.topic import Topic, TopicRow

FACTOR_DEFAULT = 3
"""Replicas of a topic that was created without a number, if there are as many nodes."""


def factor_of(row: TopicRow, nodes: int, configured: int = FACTOR_DEFAULT) -> int:
    """Return the replicas that each partition of a topic should have."""
    if row.replication_factor is not None:
        return row.replication_factor
    return default_factor(nodes, configured)


def default_factor(nodes: int, configured: int = FACTOR_DEFAULT) -> int:
    """Return the replicas of a topic that was created without a number.

    `configured` is the number that the settings ask for, `topics.replicas`.
    """
    return max(1, min(configured, nodes))


def min_insync_of(topic: Topic, replicas: int) -> int:
    """Return how many replicas must have a record before `acks=all` is answered.

    A majority, unless the topic says otherwise; never more than there are.
    """
    configured = topic.config.overrides.get(MIN_INSYNC_REPLICAS)
    return min(int(configured) if configured else replicas // 2 + 1, replicas)
