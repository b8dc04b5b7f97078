"""A cluster has no cold store, and says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millstream.broker.topics.configs.topic_config import TopicConfig
from millstream.cluster.control.shared_topics import ClusterTopics
from millstream.errors import InvalidConfig


def test_a_topic_of_a_cluster_cannot_be_tiered() -> None:
    tiered = TopicConfig.parse({"remote.storage.enable": "true"})
    with pytest.raises(InvalidConfig, match=r"orders: remote\.storage\.enable must be false in a"):
        ClusterTopics.check(SimpleNamespace(), "orders", tiered)
    ClusterTopics.check(SimpleNamespace(), "orders", TopicConfig.parse({}))
