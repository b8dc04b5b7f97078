"""Verification of one segment: its log byte by byte, its seal and its index against the log."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from millstream.errors import CorruptBatch, MillstreamError, UnknownFormat
from millstream.records.batch import HEADER_SIZE, decode_header
from millstream.storage.disk.filesystem import File, Filesystem, join
from millstream.storage.files.cold_marker import read_cold_marker
from millstream.storage.files.index import ENTRY_SIZE, INDEX_HEADER_SIZE, SegmentIndex, decode_index
from millstream.storage.files.names import COLD_SUFFIX, PARTITION_FILE, SegmentId
from millstream.storage.files.seal import Seal
from millstream.storage.inspect.catalog import (
    Finding,
    FindingKind,
    SegmentFate,
    SegmentFiles,
    read_file,
    read_segment_seal,
    read_unsealed_log,
    unusable_file_finding,
)
from millstream.storage.segment.cold_segment import is_same_content
from millstream.storage.segment.keys.key_file import check_key_index
from millstream.storage.segment.scan import SegmentScan, check_batch_at, scan

INDEX_SIZE_MAX = INDEX_HEADER_SIZE + ENTRY_SIZE * (2**31 // HEADER_SIZE)
"""One entry for each of the smallest batches in the largest segment."""

_CHUNK = 1024 * 1024
_INDEXED_SIZE = struct.Struct("<16xq")
_SEAL_FIELDS = {
    "next_offset": 16,
    "size": 24,
    "batch_count": 32,
    "record_count": 40,
    "timestamp_min": 48,
    "timestamp_max": 56,
    "digest": 80,
    "leader_epoch": 96,
}
"""Fields of a seal that the log has too, and their positions. The times of creation and sealing
are only in the seal.
"""


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """Result of the verification of one segment."""

    id: SegmentId
    size: int
    next_offset: int | None
    """Where the next segment has to start; `None` if unknown."""
    findings: Sequence[Finding]
    end_offset: int | None = None
    """The offset after the last intact record; `None` if its log cannot be read."""

    def is_damaged(self, *suffixes: str) -> bool:
        """Whether one of these files is damaged or missing; without suffixes, whether any is."""
        ends = tuple(f".{suffix}" for suffix in suffixes) or ("",)
        return any(finding.is_damage and finding.path.endswith(ends) for finding in self.findings)


def verify_segment(filesystem: Filesystem, files: SegmentFiles) -> SegmentResult:
    """Check the files of one segment against each other. The result can be pickled."""
    return _SegmentCheck(filesystem, files).run()


@dataclass(slots=True)
class _SegmentCheck:
    filesystem: Filesystem
    files: SegmentFiles
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> SegmentResult:
        files = self.files
        if not files.is_live:
            self._check_leftover()
            return self._result(0, None)
        self._check_marker()
        if files.is_cold and files.cold is not None:
            seal = self._seal() if "seal" in files.suffixes else None
            if seal is not None and not is_same_content(files.cold, seal):
                self._damage("seal", None, "is not that of the object in the cold store")
            end = files.cold.seal.next_offset
            return replace(self._result(0, end), end_offset=end)
        seal = self._seal()
        if "log" not in files.suffixes:
            self._damage("log", None, "is missing, though its seal exists")
            return self._result(0, seal.next_offset if seal else None)
        log = self._scan(seal)
        self._check_index(seal, log)
        self._check_keys()
        if log is None:
            return self._result(0, seal.next_offset if seal else None)
        ends = [seal.next_offset] if seal else []
        if log.damage is None:
            ends.append(log.stats.next_offset)
        result = self._result(log.stats.size, max(ends, default=None))
        return replace(result, end_offset=log.stats.next_offset)

    def _result(self, size: int, next_offset: int | None) -> SegmentResult:
        return SegmentResult(self.files.id, size, next_offset, tuple(self.findings))

    def _damage(self, suffix: str, position: int | None, message: str) -> None:
        self.findings.append(Finding(self.files.path(suffix), position, message))

    def _note(self, suffix: str, position: int | None, message: str) -> None:
        self.findings.append(
            Finding(self.files.path(suffix), position, message, FindingKind.UNFINISHED)
        )

    def _check_marker(self) -> None:
        """Check the marker of a segment in a cold store; without the `.log`, nothing replaces it.

        The object is checked whenever it is read, and not here.
        """
        if COLD_SUFFIX not in self.files.suffixes:
            return
        try:
            read_cold_marker(self.filesystem, self.files.directory, self.files.id)
        except (MillstreamError, OSError) as error:
            if "log" not in self.files.suffixes:
                self.findings.append(unusable_file_finding(self.files.path(COLD_SUFFIX), error))
                return
        if "log" in self.files.suffixes:
            what = "the log is here too; the next start removes the marker and the object"
            self._note(COLD_SUFFIX, None, what)

    # Files that are not part of the log.

    def _check_leftover(self) -> None:
        """Report files that wait for their removal.

        Findings that depend on other segments are left to the check of the partition.
        """
        suffix = min(self.files.suffixes)
        if self.files.suffixes == {COLD_SUFFIX} and self.files.cold is None:
            self._check_marker()
            return
        if self.files.fate is SegmentFate.DELETED:
            self._note(suffix, None, "was deleted; will be removed at the next start")
        elif self.files.fate is SegmentFate.ORPHANED:
            self._note(suffix, None, "has no log; will be removed at the next start")
        elif self.files.fate is SegmentFate.UNFINISHED:
            self._scan(None)  # It was synced before it was renamed, so it must be intact.

    # The seal.

    def _seal(self) -> Seal | None:
        if "seal" not in self.files.suffixes:
            if self.files.generation > 0:
                self._damage("seal", None, "is missing, though the segment was rewritten")
            elif self.files.is_sealed:
                self._damage("seal", None, "is missing, though later segments exist")
            return None
        try:
            return read_segment_seal(self.filesystem, self.files)
        except (MillstreamError, OSError) as error:
            self.findings.append(unusable_file_finding(self.files.path("seal"), error))
            return None

    def _compare(self, seal: Seal, log: SegmentScan) -> None:
        """Check that a seal agrees with an intact log."""
        derived = log.stats.seal(seal.sealed_ms)
        if derived.size < seal.size:
            self._damage("log", derived.size, f"ends here, its seal says at byte {seal.size}")
            return
        wrong = [name for name in _SEAL_FIELDS if getattr(seal, name) != getattr(derived, name)]
        if wrong:
            words = (
                f"{name} is {_plain(getattr(seal, name))}, in the log"
                f" {_plain(getattr(derived, name))}"
                for name in wrong
            )
            self._damage("seal", _SEAL_FIELDS[wrong[0]], "; ".join(words))

    # The log.

    def _scan(self, seal: Seal | None) -> SegmentScan | None:
        try:
            view = self._view(seal)
        except _Unreadable as error:
            self._damage("log", error.position, str(error))
            return None
        except OSError as error:
            self.findings.append(unusable_file_finding(self.files.path("log"), error))
            return None
        log = scan(
            view,
            base_offset=self.files.base_offset,
            created_ms=seal.created_ms if seal else 0,
            index_interval_bytes=1,  # Every batch: the index may point to any of them.
            leader_epoch=self._leader_epoch(seal, view),
        )
        self._check_log(view, log)
        if seal and log.damage is None:
            self._compare(seal, log)
        return log

    def _view(self, seal: Seal | None) -> memoryview:
        """Return the bytes of the log: a map if nothing writes it, else a copy."""
        file = self.filesystem.open_readonly(self.files.path("log"))
        try:
            if seal is None or (size := file.size()) > seal.size:
                return read_unsealed_log(self.filesystem, self.files)
            return _map(file, size)
        finally:
            file.close()

    def _leader_epoch(self, seal: Seal | None, view: memoryview) -> int | None:
        """Return the epoch that the batches must have: what two of three sources say."""
        expected = self.files.leader_epoch
        if seal is None or expected == seal.leader_epoch:
            return expected
        if expected is None:
            return seal.leader_epoch
        try:
            if decode_header(view).leader_epoch != seal.leader_epoch:
                return expected
        except CorruptBatch:
            return expected
        path = join(self.files.directory, PARTITION_FILE)
        base, epoch = self.files.base_offset, seal.leader_epoch
        message = f"epoch at offset {base} is {expected}, in the segment {epoch}"
        self.findings.append(Finding(path, 0, message))
        return seal.leader_epoch

    def _check_log(self, view: memoryview, log: SegmentScan) -> None:
        size, damage = log.stats.size, log.damage
        if damage and (not self.files.may_be_torn(size) or _bears_other_epoch(view, log)):
            self._damage("log", size, f"{damage.reason}; the bytes after it were not checked")
        elif size < self.files.synced:
            self._damage("log", size, f"ends here, but {self.files.synced} bytes were synced")
        elif damage:
            message = f"{len(view) - size} bytes after {size} will be cut off at the next start"
            self._note("log", size, message)

    # The index.

    def _check_index(self, seal: Seal | None, log: SegmentScan | None) -> None:
        if "index" not in self.files.suffixes:
            if self.files.is_sealed:
                self._damage("index", None, "is missing")
            return
        if finding := self._index_problem(seal, log):
            self.findings.append(self._derivable(finding))

    def _index_problem(self, seal: Seal | None, log: SegmentScan | None) -> Finding | None:
        path = self.files.path("index")
        try:
            index = self._read_index(seal, log)
        except (MillstreamError, OSError) as error:
            return unusable_file_finding(path, error)
        if log is None:
            return None
        is_cut = log.damage is not None or (seal is not None and log.stats.size < seal.size)
        number = _wrong_entry(index, log, end=log.stats.size if is_cut else None)
        if number is None:
            return None
        position = INDEX_HEADER_SIZE + number * ENTRY_SIZE
        return Finding(path, position, f"entry {number} points at no such batch")

    def _read_index(self, seal: Seal | None, log: SegmentScan | None) -> SegmentIndex:
        """Read the index, which covers all of a sealed log and may lag behind on another."""
        path = self.files.path("index")
        data = read_file(self.filesystem, path, size_max=INDEX_SIZE_MAX)
        sizes = [seal.size] if seal else []
        if log and log.damage is None:
            sizes.append(log.stats.size)
        if not sizes or not self.files.is_sealed:
            late = _INDEXED_SIZE.unpack_from(data)[0] if len(data) >= INDEX_HEADER_SIZE else 0
            sizes = [min([late, *sizes])]
        return decode_index(
            memoryview(data), base_offset=self.files.base_offset, log_size=max(sizes)
        )

    # The keys.

    def _check_keys(self) -> None:
        """Check the key index, if there is one: it is built on demand."""
        if "keys" in self.files.suffixes and (finding := self._keys_problem()):
            self.findings.append(self._derivable(finding))

    def _keys_problem(self) -> Finding | None:
        """Check its checksum. One of an earlier log, or another version, is simply built again."""
        path = self.files.path("keys")
        try:
            file = self.filesystem.open_readonly(path)
            try:
                check_key_index(_map(file, file.size()))
            finally:
                file.close()
        except _Unreadable as error:
            return Finding(path, error.position, str(error))
        except (FileNotFoundError, UnknownFormat):
            return None
        except (MillstreamError, OSError) as error:
            return unusable_file_finding(path, error)
        return None

    def _derivable(self, finding: Finding) -> Finding:
        """Return a finding about a file that recovery ignores until the segment is sealed."""
        if self.files.is_sealed:
            return finding
        return replace(
            finding,
            message=f"{finding.message}; will be written again",
            kind=FindingKind.UNFINISHED,
        )


class _Unreadable(Exception):
    """The disk fails to return bytes of a file."""

    def __init__(self, position: int, error: OSError) -> None:
        super().__init__(f"cannot be read: {error.strerror}")
        self.position = position


def _map(file: File, size: int) -> memoryview:
    """Map a file after reading all of it: if the disk fails, a map would kill the process."""
    for position in range(0, size, _CHUNK):
        try:
            file.read_at(position, _CHUNK)
        except OSError as error:
            raise _Unreadable(position, error) from error
    return file.map(size)


def _bears_other_epoch(view: memoryview, log: SegmentScan) -> bool:
    """Whether only the epoch of the batch at the damage is wrong, which no torn write causes."""
    try:
        check_batch_at(view, log.stats.size, log.stats.next_offset, None)
    except CorruptBatch:
        return False
    return True


def _wrong_entry(index: SegmentIndex, log: SegmentScan, *, end: int | None) -> int | None:
    """Return the number of the first wrong entry of an index, if there is one.

    Entries that point beyond `end`, where a damaged log stops, cannot be checked.
    """
    before = -1
    for number in range(len(index)):
        entry = index[number]
        if end is not None and entry.position >= end:
            break
        is_right = len(log.index) > 0 and entry == log.index.for_position(entry.position)
        is_next = entry.position == 0 if number == 0 else entry.position > before
        if not is_right or not is_next:
            return number
        before = entry.position
    return None


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
