"""`millstream verify --cluster`: compares all replicas of all partitions.

Each node reads its own replicas and sends digests, so no record is sent over the network. Any node
can be asked: it passes each request on to the node that has the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import click
import msgspec

from millstream.audit.verification.replica_comparison import (
    CheckedReplica,
    ReplicaFinding,
    ReplicaFindingKind,
    compare_replicas,
)
from millstream.cli.support.node_api import NodeApi
from millstream.cli.support.output import printable, to_json
from millstream.errors import MalformedAnswer, MillstreamError, UnknownTopic
from millstream.protocols.http.cluster import CheckedSegmentShape, ReplicaSegmentsAnswer
from millstream.records.topic_partition import TopicPartition
from millstream.storage.disk.io_throttle import IoThrottle

SEGMENTS_PATH = "/v1/cluster/segments"

Progress = Callable[[int, int], None]
"""Called with the number of bytes done, and the total."""


class ClusterReport(NamedTuple):
    """The result of comparing the replicas of a cluster."""

    partitions: int
    replicas: int
    bytes: int
    uncompared: int
    """Partitions of which only damage was looked for: cleaned, or with one replica."""
    findings: Sequence[ReplicaFinding]

    @property
    def is_sound(self) -> bool:
        return not self.findings

    def count(self, kind: ReplicaFindingKind) -> int:
        return sum(finding.kind is kind for finding in self.findings)


class ClusterVerification:
    """One run over all partitions of a cluster."""

    def __init__(
        self,
        node: NodeApi,
        *,
        topics: Sequence[str] = (),
        throttle: IoThrottle | None = None,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        self._node = node
        self._topics = topics
        self._throttle = throttle
        self._progress = progress
        self._bytes = self._total = 0
        self._findings: list[ReplicaFinding] = []

    def run(self) -> ClusterReport:
        """Read all replicas, and compare them."""
        rows = [
            row
            for topic in self._topics or [""]
            for row in self._node.pages(
                "/v1/cluster/partitions", "partitions", {"topic": topic} if topic else None
            )
        ]
        self._total = sum((row["bytes"] or 0) * len(row["replicas"]) for row in rows)
        replicas = uncompared = 0
        for row in rows:
            partition = TopicPartition(row["topic"], row["partition"])
            checked = self._check_partition(partition, row)
            replicas += len(checked)
            compared = compare_replicas(partition, checked)
            uncompared += not compared.is_compared
            self._findings += compared.findings
        return ClusterReport(len(rows), replicas, self._bytes, uncompared, self._findings)

    def _check_partition(
        self, partition: TopicPartition, row: Mapping[str, Any]
    ) -> list[CheckedReplica]:
        """Let all nodes read a partition, up to the lowest of their high watermarks."""
        ends: dict[int, int] = {}
        for follower in row["followers"]:
            node_id = follower["node_id"]
            if not follower["is_alive"]:
                self._note_unchecked(node_id, partition, "the node is not alive")
            elif (head := self._ask(node_id, partition, until=0)) is not None:
                ends[node_id] = head.high_watermark
        checked = []
        for node_id in ends:
            replica = self._check_replica(node_id, partition, min(ends.values()))
            if replica is not None:
                checked.append(replica)
        return checked

    def _check_replica(
        self, node_id: int, partition: TopicPartition, end: int
    ) -> CheckedReplica | None:
        segments: list[CheckedSegmentShape] = []
        start = 0
        while (page := self._ask(node_id, partition, start=start, until=end)) is not None:
            segments += page.segments
            self._note_bytes(sum(segment.bytes for segment in page.segments))
            if page.next is None:
                return CheckedReplica(
                    node_id, page.is_leader, page.is_cleaned, page.first_live_offset, segments
                )
            start = page.next
        return None

    def _note_bytes(self, size: int) -> None:
        self._bytes += size
        self._progress(self._bytes, max(self._bytes, self._total))
        if self._throttle is not None:
            self._throttle.pause(size)

    def _ask(
        self, node_id: int, partition: TopicPartition, *, until: int, start: int = 0
    ) -> ReplicaSegmentsAnswer | None:
        """Let a node read a part of its replica; None if it cannot, which is a finding."""
        wanted = {
            "node": node_id,
            "topic": partition.topic,
            "partition": partition.partition,
            "from": start,
            "until": until,
        }
        try:
            answer = self._node.ask("GET", f"{SEGMENTS_PATH}?{urlencode(wanted)}", field="segments")
            return msgspec.convert(answer, ReplicaSegmentsAnswer)
        except msgspec.ValidationError as error:
            raise MalformedAnswer(str(error)) from error
        except UnknownTopic:
            self._note_unchecked(node_id, partition, "the topic was deleted meanwhile")
        except MillstreamError as error:
            self._note_unchecked(node_id, partition, str(error))
        return None

    def _note_unchecked(self, node_id: int, partition: TopicPartition, why: str) -> None:
        self._findings.append(
            ReplicaFinding(ReplicaFindingKind.UNCHECKED, node_id, partition, None, why)
        )


def print_cluster_report(report: ClusterReport, *, as_json: bool) -> None:
    """Print findings to standard output, and a summary to standard error."""
    if as_json:
        click.echo(to_json(_json(report), indent=2))
    else:
        for line in _lines(report):
            click.echo(printable(line))
    kinds = ", ".join(f"{report.count(kind)} {kind.value}" for kind in ReplicaFindingKind)
    summary = (
        f"{report.replicas} replicas of {report.partitions} partitions, {report.bytes} bytes read:"
        f" {kinds}"
    )
    if report.uncompared:
        summary += (
            f"; {report.uncompared} partitions were read and not compared, because they are cleaned"
            " or have one replica"
        )
    if report.count(ReplicaFindingKind.DAMAGED):
        summary += "\nnodes repair what is damaged by themselves; verify again in a minute"
    click.echo(summary, err=True)


def _lines(report: ClusterReport) -> Iterator[str]:
    for finding in report.findings:
        place = f"node {finding.node_id}: {finding.partition.topic}/{finding.partition.partition}"
        if finding.segment is not None:
            place += f": segment {finding.segment}"
        yield f"{finding.kind.value}: {place}: {finding.message}"


def _json(report: ClusterReport) -> dict[str, Any]:
    return {
        "is_sound": report.is_sound,
        "partitions": report.partitions,
        "replicas": report.replicas,
        "bytes": report.bytes,
        "uncompared": report.uncompared,
        **{kind.value: report.count(kind) for kind in ReplicaFindingKind},
        "findings": [
            {
                "kind": finding.kind.value,
                "node_id": finding.node_id,
                "topic": finding.partition.topic,
                "partition": finding.partition.partition,
                "segment": finding.segment,
                "message": finding.message,
            }
            for finding in report.findings
        ],
    }
