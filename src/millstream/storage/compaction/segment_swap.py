"""Putting a rewritten segment in the place of those that it was made from.

    1. the log and the index of the output are durable under their names
    2. `partition.json` says durably that there are rewritten segments
    3. the seal of the output appears and is durable: from here on it is part of the log
    4. readers are shown it
    5. the files of the inputs go

A crash before 3 is done leaves the inputs, and the output without a seal, which recovery removes. A
crash after it leaves the output, and recovery removes what is left of the inputs. Both sets hold
the same records, as far as anybody may see them: what the output lacks was deleted, superseded or
aborted, durably, before it was written.

1 to 4 happen in turn with all other changes of `partition.json` and of the segments. Inputs that
were removed or opened again in the meantime are found out first, and then nothing happens. The last
segment of the log is rewritten only once the writer has promised not to open it again.

**Where the seal cannot be written**, it is taken away again, durably, and then the other files of
the output: the inputs are the log, as before. Where even that fails, nobody knows which set the
next start will find. What holds then, until taking it away succeeds or the log is opened again:

- Both sets stay whole. Readers see the inputs. Files of the output are not touched: with a durable
  seal they are the log.
- Nothing is rewritten. Another output could overlap this one, and recovery could not tell which of
  the two holds the truth.
- Appending goes on: it only concerns segments behind these, and the last is never opened again.
- Deleting and evicting go on too, and remove the files of inputs that are wholly dead. The first
  offset and the rules are durable before that, and hold for either set. Should the first input be
  gone and the seal be missing, recovery seals the output: it is whole, because 1 came before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from millstream.storage.compaction.rewrite_output import RewriteOutput
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.segment import (
    LogDirectory,
    SealedSegment,
    remove_segment,
    write_seal,
)

logger = logging.getLogger(__name__)


class SwapConflict(Exception):
    """Segments that were rewritten are not part of the log any more, or about to change."""


class SegmentSwap:
    """Replaces segments of one log. Belongs to its event loop.

    `retire` has the writer promise that it will not open a sealed segment again; it returns False
    where the writer has begun to.
    """

    def __init__(self, context: LogContext, *, retire: Callable[[SealedSegment], bool]) -> None:
        self._context = context
        self._retire = retire
        self._doubtful: SealedSegment | None = None
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def is_uncertain(self) -> bool:
        """Whether it is not known which files the next start will find: nothing is replaced."""
        return self._doubtful is not None

    async def switch(
        self, inputs: Sequence[SealedSegment], output: RewriteOutput, removed: array[int]
    ) -> None:
        """Put `output` in the place of `inputs`. The masks of the `removed` offsets go with them.

        If that fails, the output is removed, and this raises `SwapConflict`, `OSError`, or why the
        log may not be changed any more.
        """
        change = self._context.metadata_file.run_exclusive(self._switch(inputs, output, removed))
        await self.or_withdraw(output, change)

    async def or_withdraw(self, output: RewriteOutput, work: Coroutine[Any, Any, None]) -> None:
        """Do what has to come first; where it fails, remove what was written and raise."""
        try:
            await work
        except Exception:
            if output.segment not in self._context.state.snapshot.segments:
                await self._withdraw(output.segment)
            raise

    async def unmask(self, segment: SealedSegment, removed: array[int]) -> None:
        """Forget masks of a segment in which there is nothing at these offsets."""
        await self._context.metadata_file.run_exclusive(self._unmask(segment, removed))

    async def wait_for_removals(self) -> None:
        """Return when the files of all inputs are gone, or cannot be removed."""
        if self._removals:
            await asyncio.wait(self._removals)

    async def settle(self) -> None:
        """Try once more to take away what is in doubt."""
        if self._doubtful is not None:
            await self._withdraw(self._doubtful)

    async def _switch(
        self, inputs: Sequence[SealedSegment], output: RewriteOutput, removed: array[int]
    ) -> None:
        context, metadata_file = self._context, self._context.metadata_file
        assert not self.is_uncertain, "nothing is replaced while a seal is in doubt"
        self._check(inputs)
        if not metadata_file.partition.is_rewritten:
            await metadata_file.write(replace(metadata_file.partition, is_rewritten=True))
        segment = output.segment
        await context.background.run(
            partial(
                write_seal, context.log_directory, segment.seal, output.index, segment.generation
            )
        )
        context.state.replace_segment_run(inputs, segment, removed)
        removal = context.tasks.start(self._remove(inputs))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        context.on_change()

    def _check(self, inputs: Sequence[SealedSegment]) -> None:
        """Raise `SwapConflict` unless the inputs are segments of the log and will stay so.

        Those below the first offset may be dropped at any time; all others only in turn.
        """
        snapshot = self._context.state.snapshot
        if any(segment.next_offset <= snapshot.start for segment in inputs):
            raise SwapConflict(f"all before offset {snapshot.start} was deleted")
        if not set(inputs) <= set(snapshot.segments):
            raise SwapConflict("segments were removed or opened again")
        if inputs[-1] is snapshot.segments[-1] and not self._retire(inputs[-1]):
            raise SwapConflict("the last segment is opened again")

    async def _unmask(self, segment: SealedSegment, removed: array[int]) -> None:
        if segment in self._context.state.snapshot.segments:
            self._context.state.replace_segment_run((segment,), segment, removed)

    async def _withdraw(self, segment: SealedSegment) -> None:
        context = self._context
        try:
            await context.background.run(partial(withdraw_output, context.log_directory, segment))
        except OSError as error:
            if self._doubtful is None:
                logger.error(  # noqa: TRY400 - the message says it all.
                    "%s: no more cleaning until it is opened again: %s cannot be taken back: %s",
                    *(context.name, segment.path, error),
                )
            self._doubtful = segment
        else:
            self._doubtful = None

    async def _remove(self, segments: Sequence[SealedSegment]) -> None:
        """Remove files that no one needs. What cannot be removed, the next start tries again."""
        context = self._context
        for segment in segments:
            try:
                await context.background.run(
                    partial(remove_segment, context.log_directory, segment)
                )
            except OSError as error:
                logger.warning("%s: a rewritten segment is still there: %s", context.name, error)


def withdraw_output(log_directory: LogDirectory, segment: SealedSegment) -> None:
    """Take a rewritten segment back whose inputs are all there. Blocks.

    Its seal is gone durably before anything else of it goes, so that no seal is ever left that
    speaks of files which are not there.
    """
    with contextlib.suppress(FileNotFoundError):
        log_directory.filesystem.remove(
            log_directory.path(segment.base_offset, "seal", segment.generation)
        )
    log_directory.filesystem.sync_directory(log_directory.directory)
    remove_segment(log_directory, segment)
