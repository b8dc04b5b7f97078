"""The view of the cluster, in a real browser, with three real nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.browser.chromium import Chromium
from tests.browser.console import console
from tests.cluster.forwarding.cluster_http import create, leader_of, others, url
from tests.cluster.local_cluster import LocalCluster, local_cluster, submit, until
from tests.in_loop import in_loop

ROWS = (
    "JSON.stringify([...document.querySelectorAll('[role=region][aria-label={}] tbody tr')]"
    ".map(row => [...row.children].map(cell => cell.innerText.trim())))"
)


def in_browser(chromium: Chromium, address: str, *waits: str) -> tuple[Any, Any, str]:
    """Wait for the view; return its rows of nodes and of topic t, and all its text."""
    with console(chromium, address, "#/cluster") as page:
        for wait in waits:
            page.until(wait)
        nodes, partitions = (
            json.loads(page.run(ROWS.format(label))) for label in ("Nodes", "Partitions")
        )
        text: str = page.run("document.querySelector('.view').innerText")
    return nodes, [row for row in partitions if row[0] == "t"], text


async def shown(
    cluster: LocalCluster, chromium: Chromium, node_id: int, *waits: str
) -> tuple[Any, Any, str]:
    return await asyncio.to_thread(in_browser, chromium, url(cluster, node_id), *waits)


def isr(cluster: LocalCluster) -> list[int]:
    node = next(iter(cluster.nodes.values()))
    return list(node.broker.admin.partition("t", 0).isr)


@in_loop
async def test_nodes_leaders_and_replicas_are_shown_and_a_node_that_is_gone(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        await until(lambda: len(isr(cluster)) == 3)
        leader = leader_of(cluster, "t")
        is_there = (
            "document.body.innerText.includes('Left to copy') && document.querySelector('tbody tr')"
        )
        nodes, ((_, _, state, shown_leader, in_sync, *_),), _ = await shown(
            cluster, chromium, leader, is_there
        )
        assert [row[0] for row in nodes] == ["1", "2", "3"]
        assert all(row[1].startswith("alive") for row in nodes)
        assert sum("controller" in row[1] for row in nodes) == 1
        assert (state, shown_leader) == ("well", str(leader))
        assert sorted(in_sync.split(", ")) == ["1", "2", "3"]
        gone, asked = others(cluster, leader)
        await cluster.stop_node(gone)
        await until(lambda: gone not in isr(cluster))
        await submit(cluster.partition(leader_of(cluster, "t"), "t"), "a", "b")
        nodes, ((_, _, state, _, in_sync, _, lag, *_),), text = await shown(
            cluster, chromium, asked, f"document.body.innerText.includes('gone') && ({is_there})"
        )
        assert {row[0]: row[1] for row in nodes}[str(gone)] == "gone"
        # A leader that was elected after the node had gone does not know how far it is.
        is_same_leader = leader_of(cluster, "t") == leader
        assert (state, lag) == ("behind", "2" if is_same_leader else "\N{EN DASH}")
        assert str(gone) not in in_sync.split(", ")
        assert "the cluster has 2 nodes" in text
