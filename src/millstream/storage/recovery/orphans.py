"""Removal of segments that a rewrite has replaced, and of unfinished rewrites.

A file with batches is removed only after what replaces it was read completely and is valid: bits
may have rotted since either was written, and while both exist nothing is lost. So if one is not
valid, both stay, and that is reported. Only few crashes leave anything to do here, those between
the seal of a rewritten segment and the removal of its inputs, so reading costs little over time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millstream.errors import CorruptFile
from millstream.storage.files.names import SegmentId
from millstream.storage.recovery.generations import GenerationChoice
from millstream.storage.recovery.inventory import LogInventory
from millstream.storage.segment.segment import LogDirectory, write_seal


class Orphans:
    """The segments that do not count, except those that are `dead` and removed anyway."""

    def __init__(
        self,
        log_directory: LogDirectory,
        inventory: LogInventory,
        choice: GenerationChoice,
        *,
        dead: Collection[SegmentId],
    ) -> None:
        self._log_directory = log_directory
        self._inventory = inventory
        self._inputs: dict[SegmentId, list[SegmentId]] = {}
        for segment, holder in choice.superseded.items():
            if segment not in dead:
                self._inputs.setdefault(holder, []).append(segment)
        self._sources = choice.unfinished
        self._unsound = {
            **{s: self._unsound_of(s, inputs) for s, inputs in self._inputs.items()},
            **{s: self._unheld_of(s, sources) for s, sources in self._sources.items()},
        }

    def is_uncertain(self, segment: SegmentId) -> bool:
        """Return whether a rewritten segment counts, but its inputs have to stay.

        Such a segment must not get another seal: the next start would trust it.
        """
        return segment in self._inputs and self._unsound[segment] is not None

    def drop(self) -> list[CorruptFile]:
        """Remove what can be removed, and report why the remaining files have to stay."""
        reports = []
        for rewritten, damaged in self._unsound.items():
            inputs = self._inputs.get(rewritten) or self._sources[rewritten]
            if damaged:
                reports.append(self._report(damaged, [rewritten, *inputs]))
            elif rewritten in self._inputs:
                self._settle(rewritten)
                self._inventory.drop(inputs)
            else:
                self._inventory.drop([rewritten])
        return reports

    def _unsound_of(self, holder: SegmentId, inputs: Sequence[SegmentId]) -> SegmentId | None:
        """Return the segment because of which the inputs of another have to stay, if any.

        The seal of the holder proves that it ends where the last of them did. Without it, each of
        them must tell where it ended.
        """
        if not self._is_sound(holder):
            return holder
        if self._inventory.candidates[holder].seal:
            return None
        return next((segment for segment in inputs if not self._has_end(segment)), None)

    def _unheld_of(self, output: SegmentId, sources: Sequence[SegmentId]) -> SegmentId | None:
        """Return the segment because of which an unfinished one has to stay, if any."""
        if not self._is_sound(output):
            return output
        end = self._inventory.read_end(output)
        return next((segment for segment in sources if not self._holds(segment, end)), None)

    def _is_sound(self, segment: SegmentId) -> bool:
        """Return whether a segment is valid and matches its seal, if it has one."""
        candidate = self._inventory.candidates[segment]
        if candidate.log_size is None:
            return False
        if segment in self._inventory.cold:
            return True  # It was read completely and found valid before its marker was written.
        scanned, seal = self._inventory.read(segment), candidate.seal
        if seal is None:
            return scanned.scan.damage is None
        stats = scanned.scan.stats
        is_sealed = (stats.next_offset, stats.digest) == (seal.next_offset, seal.digest)
        return is_sealed and scanned.file_size == seal.size

    def _has_end(self, segment: SegmentId) -> bool:
        """Return whether the end of a segment is known."""
        is_sealed = self._inventory.candidates[segment].sealed_end is not None
        return is_sealed or self._is_sound(segment)

    def _holds(self, source: SegmentId, end: int) -> bool:
        """Return whether a segment is valid, at least up to an offset if it has grown since.

        That can only be the last of the log: it has no seal, and its end may be torn.
        """
        if self._is_sound(source):
            return True
        is_sealed = self._inventory.candidates[source].sealed_end is not None
        return not is_sealed and self._inventory.read_end(source) >= end

    def _settle(self, segment: SegmentId) -> None:
        """Write the seal of a segment again, durably, before its inputs are removed.

        Its writer may have died before the name was durable, or after a sync that failed.
        """
        if segment in self._inventory.cold:
            return  # So is its marker, which has the seal.
        if seal := self._inventory.candidates[segment].seal:
            index = self._inventory.read(segment).scan.index
            write_seal(self._log_directory, seal, index, segment.generation)

    def _report(self, damaged: SegmentId, held: Sequence[SegmentId]) -> CorruptFile:
        names = ", ".join(self._inventory.path(s, "log") for s in held if s != damaged)
        path = self._inventory.path(damaged, "log")
        return CorruptFile(f"{path}: is damaged, so nothing is removed of {names}")
