"""What lies in a data directory, seen without touching it.

`segments list`, `dump`, `verify` and `reindex` all start here. Nothing is created, removed,
written or locked, so a running node may own the directory at the same time. Its checkpoint is
read before the names and its epochs after them: then every segment that the checkpoint speaks of
is listed, and every epoch that a listed segment bears is known.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from millstream.config import Durability
from millstream.errors import CorruptFile, MillstreamError, StorageFailed, UnknownFormat
from millstream.storage.checkpoint import (
    CHECKPOINT_SIZE,
    NOTHING_SYNCED,
    Synced,
    decode_checkpoint,
)
from millstream.storage.filesystem import Filesystem, join
from millstream.storage.names import (
    CHECKPOINT_FILE,
    LOCK_FILE,
    NODE_FILE,
    PARTITION_FILE,
    STATE_DIRECTORY,
    TEMPORARY_SUFFIX,
    TOPICS_DIRECTORY,
    is_topic,
    parse_partition,
    parse_segment_file,
    segment_file,
)
from millstream.storage.partition import Partition, read_partition
from millstream.storage.scan import scan
from millstream.storage.seal import SEAL_SIZE, Seal, decode_seal
from millstream.storage.store import LogName

UNSEALED_MAX = 2
"""The writer's rule: a third segment is not begun before the first is sealed."""


class Kind(enum.Enum):
    """What a finding means."""

    DAMAGED = "damaged"
    """Data, or what describes it, is lost."""

    UNKNOWN = "unknown format"
    """Written by another version: it can be neither checked nor used."""

    UNFINISHED = "unfinished"
    """What a crash leaves, or someone else: the next start sets it right or passes over it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a file that is not as it should be."""

    path: str
    position: int | None
    """Byte where it starts; `None` where it concerns the file as a whole."""
    what: str
    kind: Kind = Kind.DAMAGED

    @property
    def is_damage(self) -> bool:
        """Whether the data directory is not sound because of it."""
        return self.kind is not Kind.UNFINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The files of one segment, and what must be true of its log."""

    directory: str
    base_offset: int
    suffixes: frozenset[str]
    size: int
    """Bytes of the log when it was listed."""
    leader_epoch: int | None
    """What `partition.json` says that its batches bear; `None` where that cannot be read."""
    is_whole: bool
    """Whether all of it was synced, so that no bad byte can be an unfinished write."""
    synced: int
    """Where it is not whole: how many of its bytes were synced."""
    is_sealed: bool
    """Whether it has a seal, or must have had one."""
    is_attested: bool
    """Whether it is known that all before it was synced, and its name too."""
    is_deleted: bool = False
    """Whether it lies before the segment that holds the first offset: the next start removes it."""

    def path(self, suffix: str) -> str:
        """Return the path of one of the files."""
        return join(self.directory, segment_file(self.base_offset, suffix))

    def may_be_torn(self, position: int) -> bool:
        """Whether a bad byte there can be what an unfinished write left."""
        return not self.is_whole and position >= self.synced


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """The directory of one partition."""

    directory: str
    names: Sequence[str]
    segments: Sequence[SegmentFiles]
    """In the order of the log, with those of which only a seal or an index is left."""
    synced: Synced
    start_offset: int | None
    """The first offset, which the first segment holds; `None` where that cannot be read."""
    is_start_attested: bool
    """Whether all before the first offset was synced: the class of the log is `fsync`."""
    findings: Sequence[Finding]
    """What is wrong with `partition.json` and the checkpoint."""


def check_directory(filesystem: Filesystem, path: str) -> None:
    """Raise `StorageFailed` unless `path` is a data directory, sound or not."""
    try:
        names = set(filesystem.list(path))
    except NotADirectoryError:
        raise StorageFailed(f"{path} is not a directory") from None
    known = {NODE_FILE, NODE_FILE + TEMPORARY_SUFFIX, TOPICS_DIRECTORY, LOCK_FILE}
    if not names & known:
        why = f"it has no {NODE_FILE}" if names else "it does not exist or is empty"
        raise StorageFailed(f"{path} is not a data directory: {why}")


def store_paths(filesystem: Filesystem, path: str) -> list[str]:
    """Return the stores of a data directory: itself, and what a node keeps of its own in it."""
    state = join(path, STATE_DIRECTORY)
    return [path, state] if NODE_FILE in filesystem.list(state) else [path]


def log_directory(path: str, name: LogName) -> str:
    """Return the directory of a log."""
    return join(path, TOPICS_DIRECTORY, name.topic, str(name.partition))


def log_names(filesystem: Filesystem, path: str) -> list[LogName]:
    """Return the names of all logs, sorted."""
    topics = join(path, TOPICS_DIRECTORY)
    found = []
    for topic in filter(is_topic, filesystem.list(topics)):
        try:
            partitions = map(parse_partition, filesystem.list(join(topics, topic)))
        except NotADirectoryError:
            continue
        found += [LogName(topic, number) for number in partitions if number is not None]
    return sorted(found)


def survey(filesystem: Filesystem, directory: str) -> PartitionFiles:
    """Look at the directory of a partition: its names and its small files."""
    synced, checkpoint_findings = _read_checkpoint(filesystem, join(directory, CHECKPOINT_FILE))
    names = filesystem.list(directory)
    suffixes: dict[int, set[str]] = {}
    for base, suffix in filter(None, map(parse_segment_file, names)):
        suffixes.setdefault(base, set()).add(suffix)
    partition, partition_findings = _read_partition(filesystem, directory, has_data=bool(suffixes))
    segments = list(_segments(filesystem, directory, suffixes, synced))
    return PartitionFiles(
        directory=directory,
        names=names,
        segments=_placed(segments, partition) if partition else segments,
        synced=synced,
        start_offset=partition.start_offset if partition else None,
        is_start_attested=partition is not None and partition.durability is Durability.FSYNC,
        findings=[*partition_findings, *checkpoint_findings],
    )


def _placed(segments: Sequence[SegmentFiles], partition: Partition) -> list[SegmentFiles]:
    """Say of each segment what `partition.json` says of it."""
    logs = [files.base_offset for files in segments if "log" in files.suffixes]
    first = max((base for base in logs if base <= partition.start_offset), default=0)
    return [
        replace(
            files,
            leader_epoch=partition.epoch_at(files.base_offset),
            is_deleted=files.base_offset < first,
        )
        for files in segments
    ]


def _segments(
    filesystem: Filesystem, directory: str, suffixes: dict[int, set[str]], synced: Synced
) -> Iterator[SegmentFiles]:
    """Yield the segments, with what seals and checkpoint attest of each.

    Segments are sealed in their order. So one without a seal that lies before a sealed one, or
    before the last two without a seal, has lost it.
    """
    bases = sorted(base for base, found in suffixes.items() if found != {"index"})
    sealed = [base for base in bases if "seal" in suffixes[base]]
    unsealed = [base for base in bases if not sealed or base > sealed[-1]]
    growing = unsealed[-UNSEALED_MAX:]
    for base, found in sorted(suffixes.items()):
        is_sealed = base in bases and base not in growing
        yield SegmentFiles(
            directory=directory,
            base_offset=base,
            suffixes=frozenset(found),
            size=_size(filesystem, join(directory, segment_file(base, "log"))),
            leader_epoch=None,
            is_whole=is_sealed or base < synced.base_offset,
            synced=synced.size if base == synced.base_offset else 0,
            is_sealed=is_sealed,
            is_attested=is_sealed or base <= synced.base_offset,
        )


def _size(filesystem: Filesystem, path: str) -> int:
    try:
        return filesystem.size(path)
    except OSError:
        return 0  # Whoever opens it will say what is wrong.


def _read_partition(
    filesystem: Filesystem, directory: str, *, has_data: bool
) -> tuple[Partition | None, list[Finding]]:
    path = join(directory, PARTITION_FILE)
    try:
        partition = read_partition(filesystem, directory)
    except FileNotFoundError:
        return None, [Finding(path, None, "is missing")] if has_data else []
    except (MillstreamError, OSError) as error:
        return None, [problem(path, error)]
    for before, after in pairwise(partition.epochs):
        if before.number >= after.number or before.start_offset > after.start_offset:
            return None, [Finding(path, 0, f"epoch {after} follows {before}")]
    return partition, []


def _read_checkpoint(filesystem: Filesystem, path: str) -> tuple[Synced, list[Finding]]:
    """Return how far the log was synced. Slots that were never written are blank, not bad."""
    try:
        data = read_file(filesystem, path, size_max=CHECKPOINT_SIZE)
        synced = decode_checkpoint(data)
    except FileNotFoundError:
        return NOTHING_SYNCED, []
    except (MillstreamError, OSError) as error:
        return NOTHING_SYNCED, [problem(path, error)]
    if synced != NOTHING_SYNCED or not any(data):
        return synced, []
    # It is never synced by itself, so a power cut may tear both of its records.
    what = "none of its records is sound; the next commit writes it again"
    return synced, [Finding(path, 0, what, Kind.UNFINISHED)]


def problem(path: str, error: Exception) -> Finding:
    """Return the finding that a file cannot be used."""
    if isinstance(error, OSError):
        return Finding(path, 0, f"cannot be read: {error.strerror}")
    kind = Kind.UNKNOWN if isinstance(error, UnknownFormat) else Kind.DAMAGED
    return Finding(path, 0, str(error).removeprefix(f"{path}: "), kind)


def read_file(filesystem: Filesystem, path: str, *, size_max: int) -> bytes:
    """Return the bytes of a small file."""
    file = filesystem.open_readonly(path)
    try:
        data = file.read_at(0, size_max + 1)
    finally:
        file.close()
    if len(data) > size_max:
        raise CorruptFile(f"{path}: has more than {size_max} bytes")
    return data


def read_seal_of(filesystem: Filesystem, files: SegmentFiles) -> Seal:
    """Read the seal of a segment, and check that it is its own."""
    path = files.path("seal")
    seal = decode_seal(read_file(filesystem, path, size_max=SEAL_SIZE))
    if seal.base_offset != files.base_offset:
        raise CorruptFile(f"{path}: is the seal of base offset {seal.base_offset}")
    return seal


def read_growing(filesystem: Filesystem, files: SegmentFiles) -> memoryview:
    """Return a copy of a log that may be written meanwhile: such a one must not be mapped."""
    file = filesystem.open_readonly(files.path("log"))
    try:
        return memoryview(file.read_at(0, file.size()))
    finally:
        file.close()


def describe(filesystem: Filesystem, files: SegmentFiles) -> Seal:
    """Return what a segment holds, by its seal or, where it has none, by its sound batches."""
    if "seal" in files.suffixes:
        try:
            return read_seal_of(filesystem, files)
        except (MillstreamError, FileNotFoundError):
            pass  # Damaged, or taken away to write on.
    found = scan(
        read_growing(filesystem, files),
        base_offset=files.base_offset,
        created_ms=0,
        index_interval_bytes=files.size + 1,  # No one looks at the index.
        leader_epoch=files.leader_epoch,
    )
    return found.tally.seal(sealed_ms=0)
