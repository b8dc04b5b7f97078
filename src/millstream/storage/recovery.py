"""Opening the log of a partition: which of its bytes count, and which never did.

Torn is not corrupt. Bytes that were never known to be on the disk may be an unfinished write, and
are cut off at the first batch that is not sound. Bytes that were synced, which a seal, the
checkpoint or a later sealed segment attests, must all be there: where one is not, that is lost
data, which is reported and never cut.

    sealed            sealed            no seal: scanned
    +---------------+ +---------------+ +-----------------+-----------+~~~~~~~~~
    | trusted       | | trusted       | | synced, says    | sound     | torn
    | by its seal   | | by its seal   | | the checkpoint  |           |
    +---------------+ +---------------+ +-----------------+-----------+~~~~~~~~~
                                         damage here is    kept         cut off
                                         reported

Deleted is not lost. `partition.json` says where the log starts, durably, before a file goes: all
that lies before the segment which holds that offset is removed here, whatever a crash has left of
it. In a log of class `fsync` the first offset attests all before it, like a checkpoint; where a log
of a weaker class has lost bytes that far back, it goes on at its first offset.

What is sound but not attested may sit in the kernel's cache only, after a failed sync even marked
as clean. In a log of class `fsync` it is written once more and synced before any reader sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from millstream.clock import Clock
from millstream.config import Durability
from millstream.errors import CorruptData, CorruptFile
from millstream.storage.checkpoint import (
    CHECKPOINT_SIZE,
    NOTHING_SYNCED,
    Synced,
    decode_checkpoint,
)
from millstream.storage.filesystem import File, Filesystem, join, write_all
from millstream.storage.maps import map_file
from millstream.storage.names import (
    CHECKPOINT_FILE,
    PARTITION_FILE,
    TEMPORARY_SUFFIX,
    parse_segment_file,
    segment_file,
)
from millstream.storage.partition import Epoch, Partition, read_partition, write_partition
from millstream.storage.scan import Scan, scan
from millstream.storage.seal import Seal
from millstream.storage.segment import (
    GrowingSegment,
    Place,
    SealedSegment,
    Segment,
    read_seal,
    write_seal,
)

REWRITE_CHUNK = 4 * 1024 * 1024

_ANY_TIME = 2**63 - 1
"""Later than every record: what is said of a segment whose records cannot all be read."""


@dataclass(slots=True)
class Recovered:
    """What opening a log found and did."""

    partition: Partition
    sealed: list[SealedSegment] = field(default_factory=list)
    growing: GrowingSegment | None = None
    is_new: bool = False
    """Whether there is nothing yet, not even its `partition.json`."""
    offline: CorruptData | None = None
    """Why the log can be read but not written: bytes at its end are damaged."""
    damage: list[CorruptData] = field(default_factory=list)
    """Damage in sealed segments: reads that touch it fail, all else works."""
    actions: list[str] = field(default_factory=list)
    """What was cut, removed or derived anew, in words."""
    scanned_bytes: int = 0

    @property
    def segments(self) -> list[Segment]:
        """All segments, in the order of the log."""
        return [*self.sealed, *([self.growing] if self.growing else [])]


@dataclass(frozen=True, slots=True)
class _Unsealed:
    """A segment without a seal, scanned."""

    base_offset: int
    file_size: int
    scan: Scan


def recover(place: Place, clock: Clock) -> Recovered:
    """Open the log in `place`, repair what a crash left unfinished and report what is damaged."""
    return _Recovery(place, clock).run()


class _Recovery:
    def __init__(self, place: Place, clock: Clock) -> None:
        self._place = place
        self._filesystem: Filesystem = place.filesystem
        self._clock = clock
        self._files: list[tuple[int, str]] = []
        self._bases: list[int] = []
        self._dead: list[int] = []
        self._doomed: list[int] = []
        self._leftovers: list[str] = []
        self._names: set[str] = set()
        self._synced = NOTHING_SYNCED
        self._outgrown: dict[int, int] = {}
        self._has_epochs = True
        self._found = Recovered(Partition())

    def run(self) -> Recovered:
        """Go through all steps."""
        self._list()
        self._read_partition()
        self._sort_out()
        self._synced = self._read_checkpoint()
        unsealed = self._go_through(self._read_seals())
        if not self._found.offline:
            self._check_checkpoint(unsealed)
        if not self._found.offline:
            self._check_start(unsealed)
        if not self._found.offline:
            self._finish(unsealed)
        return self._found

    def _go_through(self, seals: dict[int, Seal]) -> list[_Unsealed]:
        """Take up the segments in order, and return those at the end that have no seal.

        What follows a gap that nothing attests was never acknowledged: it is left for `_finish`
        to remove.
        """
        last_sealed = max(seals, default=-1)
        unsealed: list[_Unsealed] = []
        for base in self._bases:
            if self._found.offline:
                break
            expected = self._next_offset(unsealed)
            if expected is not None and base != expected:
                if unsealed or base > max(last_sealed, self._synced.base_offset):
                    self._doomed = [later for later in self._bases if later >= base]
                    break
                self._report_hole(expected, base)
            if base in seals:
                self._found.sealed.append(SealedSegment(self._place, seals[base]))
            elif base < last_sealed:
                self._seal_again(base)
            else:
                unsealed.append(self._scan(base, self._attested(base)))
        return unsealed

    # What is there.

    def _list(self) -> None:
        names = self._filesystem.list(self._place.directory)
        self._names = set(names)
        self._leftovers = [name for name in names if name.endswith(TEMPORARY_SUFFIX)]
        self._files = [found for found in map(parse_segment_file, names) if found]
        self._bases = sorted(base for base, suffix in self._files if suffix == "log")

    def _sort_out(self) -> None:
        """Set aside what was deleted: all before the segment that holds the first offset."""
        start = self._found.partition.start_offset if self._has_epochs else 0
        first = max((base for base in self._bases if base <= start), default=0)
        known = set(self._bases)
        for base, suffix in self._files:
            if base in known:
                continue
            if base < first or suffix != "seal":
                self._leftovers.append(segment_file(base, suffix))
            else:
                self._miss_log(base)
        self._dead = [base for base in self._bases if base < first]
        self._bases = [base for base in self._bases if base >= first]

    def _miss_log(self, base: int) -> None:
        """Report a seal without its log: a hole in the log, or its end."""
        path = self._place.path(base, "seal")
        missing = CorruptFile(f"{path}: the log that it seals is missing")
        if self._bases and base < self._bases[-1]:
            self._found.damage.append(missing)
        else:
            self._found.offline = missing

    def _read_partition(self) -> None:
        try:
            self._found.partition = read_partition(self._filesystem, self._place.directory)
        except FileNotFoundError:
            self._has_epochs = False
            self._found.is_new = not self._bases
            if self._bases:
                self._found.damage.append(self._damaged(PARTITION_FILE, "is missing"))
        except CorruptFile as error:
            self._has_epochs = False
            self._found.damage.append(error)

    def _read_checkpoint(self) -> Synced:
        if CHECKPOINT_FILE not in self._names:
            return NOTHING_SYNCED
        file = self._filesystem.open_readonly(join(self._place.directory, CHECKPOINT_FILE))
        try:
            return decode_checkpoint(file.read_at(0, CHECKPOINT_SIZE))
        finally:
            file.close()

    def _read_seals(self) -> dict[int, Seal]:
        seals = {}
        for base in self._bases:
            try:
                seal = read_seal(self._place, base)
            except FileNotFoundError:
                continue
            except CorruptFile as error:
                self._found.actions.append(f"derived anew: {error}")
                continue
            size = self._filesystem.size(self._place.path(base, "log"))
            if size < seal.size:
                path = self._place.path(base, "log")
                self._found.damage.append(
                    CorruptFile(f"{path}: has {size} bytes, its seal says {seal.size}")
                )
            if size <= seal.size:
                seals[base] = seal
            else:
                self._outgrown[base] = seal.size
                path = self._place.path(base, "seal")
                self._found.actions.append(
                    f"derived anew: {path}: seals {seal.size} bytes, the log has {size}"
                )
        return seals

    # What it means.

    def _next_offset(self, unsealed: list[_Unsealed]) -> int | None:
        """Offset that the next segment has to start with, if that is known."""
        if unsealed:
            last = unsealed[-1].scan
            return -1 if last.damage else last.tally.next_offset
        if self._found.sealed:
            return self._found.sealed[-1].next_offset
        return min(self._found.partition.start_offset, self._bases[0]) if self._has_epochs else None

    def _attested(self, base: int) -> int:
        """How many bytes of a segment the checkpoint, or a seal from before, attests."""
        if base < self._synced.base_offset:
            return self._filesystem.size(self._place.path(base, "log"))
        checkpoint = self._synced.size if base == self._synced.base_offset else 0
        return max(checkpoint, self._outgrown.get(base, 0))

    def _scan(self, base: int, attested: int) -> _Unsealed:
        path = self._place.path(base, "log")
        view = map_file(self._filesystem, path)
        found = scan(
            view,
            base_offset=base,
            created_ms=self._clock.wall_ms(),
            index_interval_bytes=self._place.index_interval_bytes,
            leader_epoch=self._found.partition.epoch_at(base) if self._has_epochs else None,
        )
        self._found.scanned_bytes += len(view)
        if found.tally.size < attested:
            reason = found.damage.reason if found.damage else "the file ends there"
            self._found.offline = CorruptFile(
                f"{path}: sound up to byte {found.tally.size}, synced up to byte {attested}:"
                f" {reason}"
            )
            self._keep_readable(found)
        return _Unsealed(base, len(view), found)

    def _keep_readable(self, found: Scan) -> None:
        """Let the sound part of a segment be read; nothing on the disk is touched."""
        self._found.growing = GrowingSegment(self._place, found.tally, found.index, None)

    def _seal_again(self, base: int) -> None:
        """Derive the seal of a segment that a later sealed one attests.

        Where the segment is damaged it gets none, and is read as far as it goes.
        """
        found = self._scan(base, 0)
        if found.scan.damage is None:
            self._seal(found)
            return
        path = self._place.path(base, "log")
        damage = found.scan.damage
        self._found.damage.append(CorruptFile(f"{path}: byte {damage.position}: {damage.reason}"))
        following = next(later for later in self._bases if later > base)
        seal = replace(
            found.scan.tally.seal(0),
            next_offset=following,
            size=found.file_size,
            timestamp_max=_ANY_TIME,
        )
        self._found.sealed.append(SealedSegment(self._place, seal))

    def _report_hole(self, expected: int, base: int) -> None:
        if base > expected:
            what = f"offsets {expected} to {base - 1} have no segment"
        else:
            what = f"a segment starts at {base}, the one before it ends at {expected}"
        self._found.damage.append(CorruptFile(f"{self._place.directory}: {what}"))

    def _check_checkpoint(self, unsealed: list[_Unsealed]) -> None:
        """A segment that the checkpoint speaks of, or a later one, must be there."""
        if self._synced.size == 0:
            return
        if not self._bases or self._bases[-1] < self._synced.base_offset:
            path = self._place.path(self._synced.base_offset, "log")
            self._found.offline = CorruptFile(f"{path}: is missing, but was synced")
        elif unsealed and unsealed[-1].base_offset < self._synced.base_offset:
            last = unsealed[-1]
            path = self._place.path(last.base_offset, "log")
            self._found.offline = CorruptFile(
                f"{path}: ends at offset {last.scan.tally.next_offset}, but synced is"
                f" the segment that starts at {self._synced.base_offset}"
            )
            self._keep_readable(last.scan)

    def _check_start(self, unsealed: list[_Unsealed]) -> None:
        """A log of class `fsync` was synced up to its first offset before it started there."""
        if self._ends_early(unsealed) and self._found.partition.durability is Durability.FSYNC:
            start = self._found.partition.start_offset
            self._found.offline = CorruptFile(
                f"{self._place.directory}: ends at offset {self._end(unsealed)}, but starts at"
                f" {start}: what was there is lost"
            )
            if unsealed:
                self._keep_readable(unsealed[-1].scan)

    def _ends_early(self, unsealed: list[_Unsealed]) -> bool:
        """Whether the last segment ends before the first offset of the log."""
        end = self._end(unsealed)
        return self._has_epochs and end is not None and end < self._found.partition.start_offset

    def _end(self, unsealed: list[_Unsealed]) -> int | None:
        """Offset after the last sound record; nothing where there is no segment."""
        if unsealed:
            return unsealed[-1].scan.tally.next_offset
        return self._found.sealed[-1].next_offset if self._found.sealed else None

    # What is done about it.

    def _finish(self, unsealed: list[_Unsealed]) -> None:
        for name in self._leftovers:
            self._remove(name)
        self._drop_segments(self._dead)
        self._drop_segments(self._doomed)
        if unsealed:
            self._cut(unsealed[-1])
        if self._ends_early(unsealed):
            self._drop_last(self._bases[0])
            self._found.sealed, unsealed = [], []
        elif unsealed and unsealed[-1].scan.tally.size == 0:
            self._drop_last(unsealed.pop().base_offset)
        for found in unsealed[:-1]:
            self._seal(found)
        if unsealed:
            self._grow(unsealed[-1])
        elif CHECKPOINT_FILE in self._names:
            self._remove(CHECKPOINT_FILE)
        if not self._has_epochs and self._bases:
            self._derive_partition()
        self._clamp_epochs()

    def _drop_segments(self, bases: list[int]) -> None:
        """Remove segments, durably, the last first: what remains is a log at every moment."""
        for base in reversed(bases):
            for suffix in ("seal", "index", "log"):
                name = segment_file(base, suffix)
                if name in self._names:
                    self._remove(name)
        if bases:
            self._filesystem.sync_directory(self._place.directory)

    def _drop_last(self, base: int) -> None:
        """Remove a segment at the end that holds nothing which counts.

        Where it is the only one, what attests it, or one that was deleted, goes first: a crash in
        between must not leave that speaking of a segment which is gone.
        """
        witnesses = {CHECKPOINT_FILE, segment_file(base, "seal")} & self._names
        if self._bases[0] == base and witnesses:
            for name in sorted(witnesses):
                self._remove(name)
            self._filesystem.sync_directory(self._place.directory)
        self._drop_segments([base])

    def _cut(self, found: _Unsealed) -> None:
        size = found.scan.tally.size
        if size == found.file_size:
            return
        path = self._place.path(found.base_offset, "log")
        file = self._filesystem.open(path)
        try:
            file.truncate(size)
            file.sync()
        finally:
            file.close()
        reason = found.scan.damage.reason if found.scan.damage else "no batch"
        self._found.actions.append(
            f"cut off: {path}: {found.file_size - size} bytes after {size}: {reason}"
        )

    def _seal(self, found: _Unsealed) -> None:
        """Seal a segment that was left without one, because the next had already begun."""
        self._make_durable(found)
        seal = found.scan.tally.seal(self._clock.wall_ms())
        write_seal(self._place, seal, found.scan.index)
        self._found.sealed.append(SealedSegment(self._place, seal))
        self._found.actions.append(f"sealed: {self._place.path(found.base_offset, 'log')}")

    def _grow(self, found: _Unsealed) -> None:
        """Make the last segment the one that is written, with all that it holds durable."""
        if self._found.partition.durability is Durability.FSYNC:
            self._make_durable(found)
            self._filesystem.sync_directory(self._place.directory)
        self._keep_readable(found.scan)

    def _make_durable(self, found: _Unsealed) -> None:
        file = self._filesystem.open(self._place.path(found.base_offset, "log"))
        try:
            self._write_again(file, found)
            file.sync()
        finally:
            file.close()

    def _write_again(self, file: File, found: _Unsealed) -> None:
        end = found.scan.tally.size
        attested = min(self._attested(found.base_offset), end)
        for start in range(attested, end, REWRITE_CHUNK):
            chunk = file.read_at(start, min(REWRITE_CHUNK, end - start))
            write_all(file, start, [chunk])

    def _derive_partition(self) -> None:
        """Write the epochs down again, as the segments bear them."""
        epochs: list[Epoch] = []
        for segment in self._found.segments:
            if not epochs or segment.leader_epoch > epochs[-1].number:
                epochs.append(Epoch(segment.leader_epoch, segment.base_offset))
        if epochs:
            start_offset = self._found.segments[0].base_offset
            self._found.partition = Partition(start_offset=start_offset, epochs=tuple(epochs))
            write_partition(self._filesystem, self._place.directory, self._found.partition)
            self._found.actions.append(f"derived anew: {self._place.directory}/{PARTITION_FILE}")

    def _clamp_epochs(self) -> None:
        """Let the newest epoch begin where the log ends, if what was before it was lost."""
        partition = self._found.partition
        segments = self._found.segments
        end = segments[-1].next_offset if segments else partition.start_offset
        if partition.epochs[-1].start_offset > end:
            self._found.partition = partition.with_epoch(partition.leader_epoch, end)
            write_partition(self._filesystem, self._place.directory, self._found.partition)

    def _remove(self, name: str) -> None:
        path = join(self._place.directory, name)
        self._filesystem.remove(path)
        self._names.discard(name)
        self._found.actions.append(f"removed: {path}")

    def _damaged(self, name: str, reason: str) -> CorruptFile:
        return CorruptFile(f"{join(self._place.directory, name)}: {reason}")
