"""Replicas of a page of partitions, as the nodes that have them report them.

The progress of followers is known to the leader alone, so the node that was asked asks the others.
One that does not answer leaves a hole, which is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple
from urllib.parse import urlencode

from millstream.broker.broker import Broker
from millstream.broker.cluster_admin import ReplicaStatus
from millstream.errors import MalformedRequest, MillstreamError, NotLeader
from millstream.protocols.http.cluster import (
    ClusterPartitionsQuery,
    ReplicaFollowerShape,
    ReplicasAnswer,
    ReplicaShape,
    ResyncShape,
)
from millstream.protocols.peer.handshake import Purpose
from millstream.records.topic_partition import TopicPartition
from millstream.servers.http.routing.request import HttpRequest

REPLICAS_PATH = "/v1/cluster/replicas"

REPORT_SECONDS_MAX = 5.0
"""How long the report of a node may take."""


class ReplicaReports(NamedTuple):
    """What the nodes of a cluster report."""

    by_node: Mapping[int, Mapping[TopicPartition, ReplicaShape]]
    missing: Mapping[int, str]
    """Nodes that did not answer, and why."""


class ReplicaPage(NamedTuple):
    """Some partitions, sorted by topic and number."""

    partitions: list[TopicPartition]
    next: str | None


def page_of(broker: Broker, query: ClusterPartitionsQuery) -> ReplicaPage:
    """Return the partitions that a query asks for."""
    after = _parse_cursor(query.after) if query.after else None
    topics = [broker.topics.get(query.topic)] if query.topic else broker.topics.all()

    def partitions() -> Iterator[TopicPartition]:
        for topic in topics:
            if after is not None and topic.name < after.topic:
                continue
            for index in range(topic.partition_count):
                partition = TopicPartition(topic.name, index)
                if after is None or partition > after:
                    yield partition

    found = list(islice(partitions(), query.limit + 1))
    shown = found[: query.limit]
    last = f"{shown[-1].topic}/{shown[-1].partition}" if len(found) > len(shown) else None
    return ReplicaPage(shown, last)


def _parse_cursor(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("/")
    if not (topic and index.isascii() and index.isdigit() and len(index) <= 10):
        raise MalformedRequest(f"after must be topic/partition, got {text[:300]!r}")
    return TopicPartition(topic, int(index))


def own_replicas(broker: Broker, page: ReplicaPage) -> list[ReplicaShape]:
    """Return the replicas that this node has of the partitions of a page."""
    statuses = (broker.admin.replica(*partition) for partition in page.partitions)
    return [_shape(status) for status in statuses if status is not None]


async def collect_reports(
    request: HttpRequest, query: ClusterPartitionsQuery, page: ReplicaPage
) -> ReplicaReports:
    """Return the replicas that all nodes have of the partitions of a page."""
    broker = request.context.broker
    by_node = {broker.node_id: _by_partition(own_replicas(broker, page))}
    missing: dict[int, str] = {}
    others = [node for node in broker.admin.nodes() if node.node_id != broker.node_id]
    limits = {"topic": query.topic, "after": query.after, "limit": query.limit}
    path = f"{REPLICAS_PATH}?{urlencode(limits)}"

    async def ask(node_id: int) -> None:
        forwarder = request.context.forwarder
        assert forwarder is not None, "a node with others has one"
        target = NotLeader(f"node {node_id} is asked", leader=node_id)
        try:
            async with asyncio.timeout(REPORT_SECONDS_MAX):
                answer = await forwarder.ask(
                    request,
                    target,
                    ReplicasAnswer,
                    method="GET",
                    path=path,
                    purpose=Purpose.ADMIN,
                )
        except MillstreamError as error:
            missing[node_id] = str(error)
        except TimeoutError:
            missing[node_id] = f"no answer within {REPORT_SECONDS_MAX:g} s"
        else:
            by_node[node_id] = _by_partition(answer.replicas)

    for node in others:
        if not node.is_alive:
            missing[node.node_id] = "the node is not alive"
    if request.context.forwarder is not None:
        await asyncio.gather(*(ask(node.node_id) for node in others if node.is_alive))
    return ReplicaReports(by_node, missing)


def _by_partition(replicas: list[ReplicaShape]) -> dict[TopicPartition, ReplicaShape]:
    return {TopicPartition(replica.topic, replica.partition): replica for replica in replicas}


def _shape(status: ReplicaStatus) -> ReplicaShape:
    return ReplicaShape(
        topic=status.partition.topic,
        partition=status.partition.partition,
        is_leader=status.is_leader,
        first_live_offset=status.start_offset,
        high_watermark=status.high_watermark,
        end=status.end_offset,
        bytes=status.bytes,
        problem=status.problem,
        followers=[
            ReplicaFollowerShape(
                node_id=follower.node_id,
                end=follower.end_offset,
                lag_records=follower.lag_records,
                lag_ms=round(follower.lag_seconds * 1000),
            )
            for follower in status.followers
        ],
        resync=None if status.resync is None else ResyncShape(**status.resync._asdict()),
    )
