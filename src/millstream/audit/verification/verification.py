"""Verification of a data directory or a node."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from millstream.audit.verification.ack_index import AckIndex, IndexedAck
from millstream.audit.verification.directory_source import DirectorySource
from millstream.audit.verification.metadata_check import verify_metadata
from millstream.audit.verification.node_source import NodeSource
from millstream.audit.verification.partition_check import PartitionCheck
from millstream.audit.verification.probes import Probes
from millstream.audit.verification.report import AckOutcome, Report
from millstream.audit.verification.source import PartitionFacts, VerificationSource
from millstream.broker.partition.producers.snapshot import SNAPSHOT_FILE, read_snapshot
from millstream.clients.kafka.security import NO_SECURITY, KafkaSecurity
from millstream.errors import CorruptFile, UnknownFormat, UnknownTopic
from millstream.records.topic_partition import TopicPartition
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.inspect.catalog import (
    Finding,
    SegmentFiles,
    check_directory,
    log_directory,
    log_names,
    store_paths,
    survey_partition,
    unusable_file_finding,
)
from millstream.storage.inspect.verify_segment import SegmentResult, verify_segment
from millstream.storage.inspect.verify_store import SegmentChecks, verify_partition, verify_store

Progress = Callable[[int, int], None]
"""Called with the number of bytes done, and the total."""


def verify_snapshot(disk: Filesystem, directory: str) -> Iterator[Finding]:
    """Check the producer snapshot of a partition. A missing one is made again."""
    try:
        read_snapshot(disk, directory, now_ms=0)
    except FileNotFoundError:
        return
    except (CorruptFile, UnknownFormat, OSError) as error:
        yield unusable_file_finding(join(directory, SNAPSHOT_FILE), error)


ProbesFactory = Callable[[TopicPartition, PartitionFacts], Probes]
"""Creates the probes of a partition."""


def _no_progress(_done: int, _total: int) -> None:
    pass


class Verification:
    """One run over a directory or a node.

    `deleted` names topics that were deleted, or of which records were deleted: their missing
    records count as deleted. The throttle limits the read rate.
    """

    def __init__(
        self,
        ack_index: AckIndex,
        *,
        topics: Sequence[str] = (),
        deleted: Collection[str] = (),
        throttle: IoThrottle | None = None,
        progress: Progress = _no_progress,
    ) -> None:
        self._ack_index = ack_index
        self._topics = topics
        self._deleted = deleted
        self._throttle = throttle
        self._progress = progress
        self._total = 0
        self._starts: Mapping[TopicPartition, int] = {}
        self.report = Report(torn_files=ack_index.torn_files, records=ack_index.count)
        self.report.outcomes[AckOutcome.UNPLACED] += ack_index.unplaced

    # A directory.

    def verify_directory(self, data: str, *, filesystem: Filesystem | None = None) -> Report:
        """Check all files of a data directory, and all acknowledgements."""
        disk = filesystem or OsFilesystem()
        check_directory(disk, data)
        for finding in self._files(disk, data):
            self.report.add_finding(finding)
        if self._ack_index.count:
            source = DirectorySource(data, filesystem=disk, on_bytes=self._note)
            for partition, acks in self._ack_index.partitions():
                self._check(source, partition, acks)
        return self.report

    def _files(self, disk: Filesystem, data: str) -> Iterator[Finding]:
        if isinstance(disk, OsFilesystem) and not self._topics:  # SQLite has no other.
            yield from verify_metadata(disk, data)
        for name in log_names(disk, data):
            if not self._topics or name.topic in self._topics:
                yield from verify_snapshot(disk, log_directory(data, name))
        if not self._topics:
            for path in store_paths(disk, data):
                before = self.report.bytes

                def progress(done: int, total: int, before: int = before) -> None:
                    self._update(before + done, before + total)

                checks = self._checks(disk) if self._throttle else None
                yield from verify_store(disk, path, progress=progress, checks=checks)
            return
        names = [name for name in log_names(disk, data) if name.topic in self._topics]
        directories = [log_directory(data, name) for name in names]
        sizes = [
            sum(files.size for files in survey_partition(disk, directory).segments)
            for directory in directories
        ]
        for directory, size in zip(directories, sizes, strict=True):
            yield from verify_partition(disk, directory)
            self._total = sum(sizes)
            self._note(size)

    def _checks(self, disk: Filesystem) -> SegmentChecks:
        """Return a check of segments one after another at a limited rate."""

        def checks(segments: Sequence[SegmentFiles]) -> Iterator[SegmentResult]:
            for files in segments:
                yield verify_segment(disk, files)
                assert self._throttle is not None
                self._throttle.pause(files.size)

        return checks

    # A node.

    def verify_node(
        self,
        bootstrap: str,
        *,
        samples: int,
        seed: int,
        timeout_s: float,
        starts: Mapping[TopicPartition, int] | None = None,
        security: KafkaSecurity = NO_SECURITY,
    ) -> Report:
        """Read all partitions of a node, compare them, then probe its indexes.

        Partitions of `starts` are read from that offset on: everything acknowledged is behind it.
        """
        self._starts = starts or {}
        rng = random.Random(seed)  # noqa: S311 - the choice of offsets is not secret.

        def make_probes(partition: TopicPartition, facts: PartitionFacts) -> Probes:
            return Probes(partition, facts, count=samples, rng=rng)

        with NodeSource(
            bootstrap, timeout_s=timeout_s, security=security, on_bytes=self._note
        ) as source:
            remaining = dict.fromkeys(self._partitions(source))
            self._total = source.size(list(remaining))
            for partition, acks in self._ack_index.partitions():
                remaining.pop(partition, None)
                self._check(source, partition, acks, make_probes)
            for partition in remaining:
                self._check(source, partition, iter(()), make_probes)
        return self.report

    def _partitions(self, source: NodeSource) -> list[TopicPartition]:
        """Return the partitions to read. A missing topic shows in its acknowledgements."""
        if not self._topics:
            return source.partitions()
        partitions = []
        for topic in self._topics:
            try:
                partitions += source.partitions([topic])
            except UnknownTopic:
                if not self._ack_index.count and topic not in self._deleted:
                    raise
        return partitions

    # Both.

    def _check(
        self,
        source: VerificationSource,
        partition: TopicPartition,
        acks: Iterator[IndexedAck],
        make_probes: ProbesFactory | None = None,
    ) -> None:
        facts = source.facts(partition)
        may_be_missing = partition.topic in self._deleted
        if isinstance(facts, str):
            for ack in acks:
                if may_be_missing:
                    self.report.count(partition.topic, AckOutcome.DELETED)
                else:
                    self.report.add_discrepancy(partition, ack, AckOutcome.LOST, facts)
            return
        facts = facts._replace(start=max(facts.start, self._starts.get(partition, 0)))
        probes = make_probes(partition, facts) if make_probes else None
        PartitionCheck(
            source,
            partition,
            facts,
            ack_index=self._ack_index,
            report=self.report,
            may_be_missing=may_be_missing,
            on_batch=probes.take if probes else None,
        ).run(acks)
        if probes is not None:
            assert isinstance(source, NodeSource), "only the indexes of a node are probed"
            probes.check(source, self.report)

    def _note(self, size: int) -> None:
        if self._throttle is not None:
            self._throttle.pause(size)
        self._update(self.report.bytes + size, self._total)

    def _update(self, done: int, total: int) -> None:
        self.report.bytes = done
        self._total = max(total, done)
        self._progress(done, self._total)
