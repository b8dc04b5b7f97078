"""Whatever moment the power goes, or a call fails, while segments are rewritten.

The steps are done here one by one, so that every state between them is seen: the old files count or
the new ones, never a mix, and no state is taken for damage.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from millstream.records.batch import stamp
from millstream.storage.disk.filesystem import Filesystem, join, write_all
from millstream.storage.files.checkpoint import Checkpoint, SyncPoint
from millstream.storage.files.names import CHECKPOINT_FILE, SegmentId
from millstream.storage.files.partition_metadata import PartitionMetadata, write_partition_metadata
from millstream.storage.inspect.verify_store import verify_partition
from millstream.storage.recovery.log_recovery import RecoveredLog
from millstream.storage.segment.segment import SealedSegment, read_seal, remove_segment
from millstream.testing import (
    CrashState,
    FaultyFilesystem,
    SimulatedFilesystem,
    sample_crash_states,
    sweep,
)
from millstream.testing.disk.crash_states import crash_states
from tests.crash.test_io_errors import KINDS
from tests.storage.rewritten import (
    DIRECTORY,
    DROPPED,
    NEW,
    OLD,
    A,
    B,
    C,
    D,
    X,
    Y,
    appended,
    make_disk,
    make_log_directory,
    path_of,
    put_log,
    put_seal,
    recovered,
    values,
)

LONG = bool(os.environ.get("MILLSTREAM_LONG"))
RECOVERIES = 20 if LONG else 2
"""Power cuts while the log is opened, for one of each ten states."""

GROWING = SegmentId(40, 0)


@dataclass(frozen=True)
class Counts:
    """The seal of a rewritten segment is durable: it has taken the place of its inputs."""

    segment: SegmentId


@dataclass(frozen=True)
class Acked:
    """Records of the growing segment were acknowledged, up to this offset."""

    end: int


class Log:
    """A log by hand: segments that are rewritten, and one behind them that grows meanwhile."""

    def __init__(self, disk: SimulatedFilesystem, filesystem: Filesystem | None = None) -> None:
        self._disk = disk
        self._place = make_log_directory(filesystem or disk)
        self._size = 0
        self._end = GROWING.base_offset

    def begin(self) -> None:
        """Begin the growing segment."""
        filesystem = self._place.filesystem
        self._file = filesystem.create(path_of(GROWING, "log"))
        self._checkpoint = Checkpoint(filesystem.create(join(DIRECTORY, CHECKPOINT_FILE)))
        filesystem.sync_directory(DIRECTORY)

    def append(self) -> None:
        """Append a batch and acknowledge it, as a log of class fsync does."""
        data = _batch(self._end)
        write_all(self._file, self._size, [data])
        self._file.sync()
        self._size += len(data)
        self._end += 2
        self._checkpoint.write(SyncPoint(GROWING.base_offset, self._size))
        self._disk.note(Acked(self._end))

    def rewrite(self, output: SegmentId, inputs: Sequence[SegmentId]) -> None:
        """Go through all steps of a rewrite."""
        place = self._place
        write_partition_metadata(place.filesystem, DIRECTORY, PartitionMetadata(is_rewritten=True))
        put_log(place, output)
        self.append()
        put_seal(place, output)
        self._disk.note(Counts(output))
        self.append()
        for segment in inputs:
            seal = read_seal(place, *segment)
            remove_segment(place, SealedSegment(place, seal, segment.generation))


def _batch(offset: int) -> bytes:
    """A batch of the growing segment, with the values of others: only its offset matters."""
    return stamp(appended(0, 2), base_offset=offset, leader_epoch=0)


def live(disk: SimulatedFilesystem, order: Sequence[SegmentId]) -> None:
    """Rewrite three segments into one, and that one with the next; inputs go in some order."""
    log = Log(disk)
    log.begin()
    log.rewrite(X, order)
    log.rewrite(Y, [D, X] if order[0] == A else [X, D])


@pytest.mark.parametrize("order", [(A, B, C), (C, B, A), (B, A, C)], ids=["up", "down", "mixed"])
def test_a_power_cut_leaves_the_old_set_or_the_new_one(order: Sequence[SegmentId]) -> None:
    disk = make_disk(A, B, C, D, partition=PartitionMetadata())
    live(disk, order)
    states = 0
    if LONG or order == (A, B, C):
        chosen = crash_states(disk.trace, seed=1)
    else:
        chosen = sample_crash_states(disk.trace, 200, seed=1)
    for state in chosen:
        states += 1
        check(state.filesystem(), state, str(state))
        if states % 10 == 0:
            check_crash_while_recovering(state)
    assert states >= 200, "the workload is too short"


def check(disk: SimulatedFilesystem, state: CrashState, where: str) -> None:
    findings = [found for found in verify_partition(disk, DIRECTORY) if found.is_damage]
    assert not findings, f"{where}: unfinished taken for damaged: {findings}"
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None), where
    check_records(found, state, where)
    again = recovered(disk)
    assert not again.actions, f"{where}: something was left to do"
    check_records(again, state, where)
    left = [found for found in verify_partition(disk, DIRECTORY) if "checkpoint" not in found.path]
    assert not left, where


def check_records(found: RecoveredLog, state: CrashState, where: str) -> None:
    rewritten = {offset: value for offset, value in values(found).items() if offset < 40}
    allowed = [NEW] if Counts(X) in state.notes else [OLD, NEW]
    assert rewritten in allowed, f"{where}: a mix: {sorted(set(OLD) - set(rewritten))}"
    assert set(OLD) - set(rewritten) in ({*DROPPED}, set()), where
    end = max((note.end for note in state.notes if isinstance(note, Acked)), default=0)
    last = found.segments[-1]
    assert last.next_offset >= max(end, 40), f"{where}: acknowledged and lost"
    bases = [segment.base_offset for segment in found.segments]
    ends = [segment.next_offset for segment in found.segments]
    assert bases == [0, *ends[:-1]], f"{where}: not dense"


def check_crash_while_recovering(state: CrashState) -> None:
    disk = state.filesystem()
    recovered(disk)
    for again in sample_crash_states(disk.trace, RECOVERIES, state.point):
        check(again.filesystem(), state, f"{state}, then {again}")


# Failing calls.


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_while_rewriting_leaves_one_of_the_sets(kind: str, forever: bool) -> None:
    """Who rewrites stops at the first error, and touches nothing any more."""
    hits = 0
    for fault in sweep(forever=forever, **KINDS[kind]):
        disk = make_disk(A, B, C, D, partition=PartitionMetadata())
        log = Log(disk, FaultyFilesystem(disk, fault))
        try:
            log.begin()
            log.rewrite(X, (A, B, C))
        except OSError:
            pass
        for after in (disk.copy(), disk.crash()):
            check_data(after, fault.describe())
        hits += bool(fault.hits)
    assert hits > 3, "the sweep reached hardly any call"


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_while_recovering_leaves_one_of_the_sets(kind: str, forever: bool) -> None:
    for has_seal in (True, False):
        for fault in sweep(forever=forever, **KINDS[kind]):
            disk = make_disk(A, B, C, D, X)
            if not has_seal:
                disk.remove(path_of(X, "seal"))
                disk.sync_directory(DIRECTORY)
            try:
                recovered(FaultyFilesystem(disk, fault))
            except OSError:
                assert fault.hits, "it works without a fault"
            for after in (disk.copy(), disk.crash()):
                check_data(after, fault.describe())


def check_data(disk: SimulatedFilesystem, where: str) -> None:
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None), where
    rewritten = {offset: value for offset, value in values(found).items() if offset < 40}
    assert rewritten in (OLD, NEW), where
