"""Swap of a rewritten segment for its inputs.

    1. the log and the index of the output are durable under their names
    2. `partition.json` says durably that there are rewritten segments
    3. the seal of the output is written and durable: from here on it is part of the log
    4. readers see it
    5. the files of the inputs are removed

A crash before 3 is done leaves the inputs, and the output without a seal, which recovery removes.
A crash after it leaves the output, and recovery removes what is left of the inputs. Both sets hold
the same visible records: what the output lacks was deleted, superseded or aborted, durably, before
it was written.

1 to 4 exclude all other changes of `partition.json` and of the segments. If inputs were removed or
reopened in the meantime, that is found out first, and nothing happens. The last segment of the log
is rewritten only once the writer has promised not to reopen it.

**If the seal cannot be written**, it is removed again, durably, and then the other files of the
output: the inputs are the log, as before. If even that fails, it is uncertain which set the next
start will find. Until the removal succeeds or the log is opened again:

- Both sets stay complete. Readers see the inputs. Files of the output are not touched: with a
  durable seal they are the log.
- Nothing is rewritten. Another output could overlap this one, and recovery could not tell which of
  the two is right.
- Appends go on: they only concern later segments, and the last one is never reopened.
- Deletion and eviction continue too, and remove the files of inputs that are completely dead. The
  start offset and the rules are durable before that, and hold for either set. If the first input is
  gone and the seal is missing, recovery seals the output: it is complete, because 1 came before.
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
    """Segments that were rewritten are no longer part of the log, or about to change."""


class SegmentSwap:
    """Replaces segments of one log. Belongs to its event loop.

    `retire` makes the writer promise that it will not reopen a sealed segment; it returns False if
    the writer has begun to.
    """

    def __init__(self, context: LogContext, *, retire: Callable[[SealedSegment], bool]) -> None:
        self._context = context
        self._retire = retire
        self._uncertain: SealedSegment | None = None
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def is_uncertain(self) -> bool:
        """Whether it is uncertain which files the next start finds, so nothing is replaced."""
        return self._uncertain is not None

    async def swap(
        self, inputs: Sequence[SealedSegment], output: RewriteOutput, removed: array[int]
    ) -> None:
        """Replace `inputs` by `output`. The masks of the `removed` offsets are dropped with them.

        On failure, removes the output and raises `SwapConflict`, `OSError`, or the reason why the
        log may not be changed any more.
        """
        change = self._context.metadata_file.run_exclusive(self._swap_in(inputs, output, removed))
        await self.withdraw_on_failure(output, change)

    async def withdraw_on_failure(
        self, output: RewriteOutput, work: Coroutine[Any, Any, None]
    ) -> None:
        """Await `work`; if it fails, remove the output and raise."""
        try:
            await work
        except Exception:
            if output.segment not in self._context.state.snapshot.segments:
                await self._withdraw(output.segment)
            raise

    async def unmask(self, segment: SealedSegment, removed: array[int]) -> None:
        """Drop masks of a segment that has no records at these offsets."""
        await self._context.metadata_file.run_exclusive(self._unmask(segment, removed))

    async def wait_for_removals(self) -> None:
        """Wait until the files of all inputs are removed, or cannot be."""
        if self._removals:
            await asyncio.wait(self._removals)

    async def settle(self) -> None:
        """Try again to remove an output whose seal is uncertain."""
        if self._uncertain is not None:
            await self._withdraw(self._uncertain)

    async def _swap_in(
        self, inputs: Sequence[SealedSegment], output: RewriteOutput, removed: array[int]
    ) -> None:
        context, metadata_file = self._context, self._context.metadata_file
        assert not self.is_uncertain, "nothing is replaced while a seal is uncertain"
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

        Segments before the start offset may be dropped at any time; all others only exclusively.
        """
        snapshot = self._context.state.snapshot
        if any(segment.next_offset <= snapshot.start for segment in inputs):
            raise SwapConflict(f"records before offset {snapshot.start} were deleted meanwhile")
        if not set(inputs) <= set(snapshot.segments):
            raise SwapConflict("segments were removed or reopened meanwhile")
        if inputs[-1] is snapshot.segments[-1] and not self._retire(inputs[-1]):
            raise SwapConflict("the last segment was reopened meanwhile")

    async def _unmask(self, segment: SealedSegment, removed: array[int]) -> None:
        if segment in self._context.state.snapshot.segments:
            self._context.state.replace_segment_run((segment,), segment, removed)

    async def _withdraw(self, segment: SealedSegment) -> None:
        context = self._context
        try:
            await context.background.run(partial(withdraw_output, context.log_directory, segment))
        except OSError as error:
            if self._uncertain is None:
                logger.error(  # noqa: TRY400 - the message says it all.
                    "%s: cleaning is off until the log is reopened: %s cannot be removed: %s",
                    *(context.name, segment.path, error),
                )
            self._uncertain = segment
        else:
            self._uncertain = None

    async def _remove(self, segments: Sequence[SealedSegment]) -> None:
        """Remove dead files. Those that cannot be removed are removed by the next recovery."""
        context = self._context
        for segment in segments:
            try:
                await context.background.run(
                    partial(remove_segment, context.log_directory, segment)
                )
            except OSError as error:
                logger.warning("%s: a replaced segment was not removed: %s", context.name, error)


def withdraw_output(log_directory: LogDirectory, segment: SealedSegment) -> None:
    """Remove a rewritten segment whose inputs are all present. Blocks.

    Its seal is removed durably before anything else of it, so that no seal is ever left whose files
    are missing.
    """
    with contextlib.suppress(FileNotFoundError):
        log_directory.filesystem.remove(
            log_directory.path(segment.base_offset, "seal", segment.generation)
        )
    log_directory.filesystem.sync_directory(log_directory.directory)
    remove_segment(log_directory, segment)
