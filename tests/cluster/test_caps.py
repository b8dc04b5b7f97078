"""Caps in a cluster: nodes that create topics at once do not exceed them together."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.queues.row import QUEUES_PREFIX
from millstream.broker.queues.values import QueueChanges
from millstream.errors import CapExceeded, NotCoordinator
from tests.cluster.local_cluster import local_cluster
from tests.in_loop import in_loop

ALICE = Caller(user("alice"), "10.0.0.1")


@in_loop
async def test_nodes_that_create_topics_at_once_keep_to_the_caps(tmp_path: Path) -> None:
    limits = {"limit_topics_per_user": 3}
    async with local_cluster(tmp_path, broker=limits) as cluster:
        results = await asyncio.gather(
            *(
                node.broker.topics.create(f"t{node_id}-{n}", partitions=1, creator=ALICE)
                for node_id, node in cluster.nodes.items()
                for n in range(3)
            ),
            return_exceptions=True,
        )
        made = [item for item in results if not isinstance(item, BaseException)]
        assert len(made) == 3
        refused = {type(item) for item in results if isinstance(item, BaseException)}
        assert refused == {CapExceeded}


@in_loop
async def test_nodes_that_create_queues_at_once_keep_to_the_caps(tmp_path: Path) -> None:
    limits = {"limit_queues_per_user": 3}
    async with local_cluster(tmp_path, broker=limits) as cluster:
        results = await asyncio.gather(
            *(
                node.broker.queues.put(f"q{node_id}-{n}", QueueChanges(), ALICE)
                for node_id, node in cluster.nodes.items()
                for n in range(3)
            ),
            return_exceptions=True,
        )
        # A queue that another node coordinates is created too, and the client sent there.
        kinds = Counter(
            type(item) for item in results if not isinstance(item, tuple | NotCoordinator)
        )
        assert kinds == {CapExceeded: 6}
        [node, *_] = cluster.nodes.values()
        assert len(await node.broker.metadata.list(QUEUES_PREFIX)) == 3
