"""Generations of segments: which files of a directory are the log.

To remove records from a sealed segment, it is rewritten, alone or together with those that follow
it. The output never overwrites a file: it starts where its first input started, ends where its last
one ended, and its generation is greater than theirs.

    generation 0    00...00.log    00...10.log    00...20.log    00...30.log
                   [0          10)[10         20)[20         30)[30    - - -
    generation 1    00...00.1.log
                   [0                                        30)

Its seal is the commit point. Log and index are complete and durable under their names before the
seal appears, and the inputs are removed only when the seal is durable. So the rules are:

1. A rewritten segment with a seal counts, whatever other files exist. A segment of a lower
   generation inside its range was rewritten into it, and only waits to be removed. That also holds
   if its seal, its log or both are damaged: what a rewrite left out was deleted, and must not come
   back with the files that it was rewritten from.
2. A rewritten segment without a seal is unfinished, if lower generations hold all of its range
   that was not deleted: without the seal none of them was ever removed. Otherwise they were,
   so it had a seal and has lost it, and it counts.
3. No crash leaves a segment that is half inside a rewritten one of a higher generation. Nothing can
   be said about such a log, and nothing in it may be touched.

This module only says what counts; it removes nothing. Recovery removes a file with batches only
after it has read what replaces it and found that valid.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from millstream.storage.files.names import SegmentId
from millstream.storage.files.seal import Seal

ReadEnd: TypeAlias = Callable[[SegmentId], int]
"""Reads a log completely, and returns the offset after its last valid batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCandidate:
    """One generation of a segment, as known from its names and its seal. It has a log or a seal."""

    id: SegmentId
    log_size: int | None
    """Bytes of its `.log`; `None` if it has none."""
    has_seal: bool
    """Whether a `.seal` exists, valid or not."""
    seal: Seal | None
    """The content of the seal, if it can be read."""

    @property
    def sealed_end(self) -> int | None:
        """Its end according to its seal; `None` if no seal tells that.

        The seal of a log that has grown since does not. A rewritten segment never grows.
        """
        if self.seal is None:
            return None
        has_grown = self.id.generation == 0 and (self.log_size or 0) > self.seal.size
        return None if has_grown else self.seal.next_offset


@dataclass(frozen=True, slots=True)
class GenerationChoice:
    """The role of every candidate."""

    live: list[SegmentId] = field(default_factory=list)
    """The segments of the log, in order."""
    lost: list[SegmentId] = field(default_factory=list)
    """Candidates that should be part of the log, but have only a seal left."""
    superseded: dict[SegmentId, SegmentId] = field(default_factory=dict)
    """Candidates that were rewritten, each with the one that replaced it, live or lost."""
    unfinished: dict[SegmentId, Sequence[SegmentId]] = field(default_factory=dict)
    """Rewrites that never counted, each with the segments that hold the same offsets, in order."""
    overlapping: dict[SegmentId, SegmentId] = field(default_factory=dict)
    """Candidates that are half inside a rewritten one, each with that one."""


def choose_generations(
    candidates: Sequence[GenerationCandidate], *, start_offset: int, read_end: ReadEnd
) -> GenerationChoice:
    """Decide which candidates are the log that starts at `start_offset`.

    A log is read only if necessary: one of several generations, without a valid seal.
    """
    if not any(candidate.id.generation for candidate in candidates):
        return GenerationChoice(
            live=sorted(candidate.id for candidate in candidates if candidate.log_size is not None),
            lost=sorted(candidate.id for candidate in candidates if candidate.log_size is None),
        )
    chooser = _GenerationChooser(
        {candidate.id: candidate for candidate in candidates}, start_offset, read_end
    )
    return chooser.run(candidates)


class _Rewritten(NamedTuple):
    """A rewritten segment that counts, and its end."""

    base_offset: int
    generation: int
    end: int

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.base_offset, self.generation)


@dataclass(frozen=True, slots=True)
class _GenerationChooser:
    candidates: Mapping[SegmentId, GenerationCandidate]
    start_offset: int
    read_end: ReadEnd

    def run(self, candidates: Sequence[GenerationCandidate]) -> GenerationChoice:
        """Decide from the highest generation to the lowest."""
        choice = GenerationChoice()
        rewritten: list[_Rewritten] = []
        for candidate in sorted(
            candidates, key=lambda candidate: (-candidate.id.generation, candidate.id)
        ):
            if holder := self._holder(candidate, rewritten):
                choice.superseded[candidate.id] = holder
            elif rival := self._rival(candidate, rewritten):
                choice.overlapping[candidate.id] = rival
            elif not candidate.has_seal and (sources := self._sources(candidate)):
                choice.unfinished[candidate.id] = sources
            else:
                (choice.lost if candidate.log_size is None else choice.live).append(candidate.id)
                if candidate.id.generation > 0:
                    insort(rewritten, _Rewritten(*candidate.id, self._end(candidate)))
        choice.live.sort()
        choice.lost.sort()
        return choice

    def _holder(
        self, candidate: GenerationCandidate, rewritten: Sequence[_Rewritten]
    ) -> SegmentId | None:
        """Return the segment of a higher generation that has all offsets of a candidate, if any."""
        before, _ = _neighbours(candidate, rewritten)
        return before.id if before and self._end(candidate) <= before.end else None

    def _rival(
        self, candidate: GenerationCandidate, rewritten: Sequence[_Rewritten]
    ) -> SegmentId | None:
        """Return a segment of a higher generation that has some offsets of a candidate, if any."""
        before, after = _neighbours(candidate, rewritten)
        if before:
            return before.id
        ends_inside = after and after.base_offset < (candidate.sealed_end or 0)
        return after.id if after and ends_inside else None

    def _end(self, candidate: GenerationCandidate) -> int:
        """Return the end of a segment, from its seal or else from its batches."""
        if candidate.sealed_end is not None:
            return candidate.sealed_end
        if candidate.log_size is None:
            return candidate.id.base_offset + 1  # At least: it has lost its log and its seal.
        return self.read_end(candidate.id)

    def _sources(self, rewritten: GenerationCandidate) -> list[SegmentId]:
        """Return the segments of lower generations that hold all offsets of a rewritten one.

        Deleted offsets need not be held: their files may have been removed with or without a seal.
        Empty if an offset is not held, and for a segment that is not rewritten.
        """
        base, generation = rewritten.id
        lower = [
            candidate
            for candidate in self.candidates.values()
            if candidate.id.generation < generation
        ]
        if not lower:
            return []
        live = self.run(lower).live
        end = max(self._end(rewritten), base + 1)
        first = max(base, self.start_offset)
        position = max((s.base_offset for s in live if base <= s.base_offset <= first), default=-1)
        sources = []
        for source in live:
            if source.base_offset == position < end:
                sources.append(source)
                position = self._end(self.candidates[source])
        return sources if position >= end else []


def _neighbours(
    candidate: GenerationCandidate, rewritten: Sequence[_Rewritten]
) -> tuple[_Rewritten | None, _Rewritten | None]:
    """Return the rewritten segment that has the first offset of another, and the one after it.

    Both only if they are of a higher generation; `rewritten` is sorted.
    """
    base, generation = candidate.id
    log_directory = bisect_right(rewritten, base, key=lambda other: other.base_offset)
    before = rewritten[log_directory - 1] if log_directory > 0 else None
    after = rewritten[log_directory] if log_directory < len(rewritten) else None
    if before and (before.generation <= generation or before.end <= base):
        before = None
    if after and after.generation <= generation:
        after = None
    return before, after
