"""Removing what a rewrite has replaced, or a rewrite that never came to its end.

A file that holds batches goes only after what takes its place was read through and found sound:
bits may have rotted since either was written, and as long as both are there nothing is lost. So
where one is not sound, both stay, and that is reported. Only a few crashes leave anything to do
here, those between the seal of a rewritten segment and the removal of its inputs, so reading costs
little over time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millstream.errors import CorruptFile
from millstream.storage.files.names import SegmentId
from millstream.storage.recovery.generations import GenerationChoice
from millstream.storage.recovery.inventory import LogInventory
from millstream.storage.segment.segment import LogDirectory, write_seal


class Orphans:
    """All that does not count, but for what is `dead` and goes anyway."""

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
        """Whether a rewritten segment counts, and yet what it was made from has to stay.

        Such a one must not get another seal: the next start would take its word for it.
        """
        return segment in self._inputs and self._unsound[segment] is not None

    def drop(self) -> list[CorruptFile]:
        """Remove what can be removed, and say why the rest has to stay."""
        kept = []
        for rewritten, bad in self._unsound.items():
            others = self._inputs.get(rewritten) or self._sources[rewritten]
            if bad:
                kept.append(self._report(bad, [rewritten, *others]))
            elif rewritten in self._inputs:
                self._settle(rewritten)
                self._inventory.drop(others)
            else:
                self._inventory.drop([rewritten])
        return kept

    def _unsound_of(self, holder: SegmentId, inputs: Sequence[SegmentId]) -> SegmentId | None:
        """Return the segment because of which the inputs of another have to stay, if there is one.

        The seal of the holder attests that it ends where the last of them did. Without it, each of
        them must tell where it ended.
        """
        if not self._is_sound(holder):
            return holder
        if self._inventory.candidates[holder].seal:
            return None
        return next((segment for segment in inputs if not self._has_end(segment)), None)

    def _unheld_of(self, output: SegmentId, sources: Sequence[SegmentId]) -> SegmentId | None:
        """Return the segment because of which an unfinished one has to stay, if there is one."""
        if not self._is_sound(output):
            return output
        end = self._inventory.read_end(output)
        return next((segment for segment in sources if not self._holds(segment, end)), None)

    def _is_sound(self, segment: SegmentId) -> bool:
        """Whether all of a segment is sound, and what its seal says, if it has one."""
        candidate = self._inventory.candidates[segment]
        if candidate.log_size is None:
            return False
        found, seal = self._inventory.read(segment), candidate.seal
        if seal is None:
            return found.scan.damage is None
        stats = found.scan.stats
        is_sealed = (stats.next_offset, stats.digest) == (seal.next_offset, seal.digest)
        return is_sealed and found.file_size == seal.size

    def _has_end(self, segment: SegmentId) -> bool:
        """Whether it is known where a segment ends."""
        is_sealed = self._inventory.candidates[segment].sealed_end is not None
        return is_sealed or self._is_sound(segment)

    def _holds(self, source: SegmentId, end: int) -> bool:
        """Whether a segment is sound, up to an offset at the least where it has grown since.

        That can only be the last of the log: it has no seal, and its end may be torn.
        """
        if self._is_sound(source):
            return True
        is_sealed = self._inventory.candidates[source].sealed_end is not None
        return not is_sealed and self._inventory.read_end(source) >= end

    def _settle(self, segment: SegmentId) -> None:
        """Write the seal of a segment once more, durably, before what it was made from goes.

        Whoever wrote it may have died before its name was durable, or after a sync that failed.
        """
        if seal := self._inventory.candidates[segment].seal:
            index = self._inventory.read(segment).scan.index
            write_seal(self._log_directory, seal, index, segment.generation)

    def _report(self, bad: SegmentId, held: Sequence[SegmentId]) -> CorruptFile:
        names = ", ".join(self._inventory.path(s, "log") for s in held if s != bad)
        path = self._inventory.path(bad, "log")
        return CorruptFile(f"{path}: is not sound, therefore nothing is removed of {names}")
