"""What producers send into one partition: from a client's batch to an offset.

    append ── size, format, sum, timestamps, keys ──► log ── offset given, sequence checked ──►
              nothing is written yet                         a duplicate goes no further
      ──► committed

Rules that everything here keeps:

1. What is wrong with a batch is said before anything of it is written.
2. Sequences are checked in the order of the log, at the moment an offset is given, and what was
   remembered is undone when the offset is taken back.
3. A batch that was appended before is answered when the first one is committed, and not before.
4. Batches get their offsets in the order in which they came, though some have to be looked into
   in a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from millstream.broker.partition.batch_validator import BatchValidator
from millstream.broker.partition.producers.entry import AppendedBatch
from millstream.broker.partition.producers.states import DuplicateBatch, ProducerStates
from millstream.broker.partition.results import Appended, TimestampedAppend
from millstream.clock import Clock
from millstream.config.schema import Durability
from millstream.errors import LogFull, MillstreamError, Unavailable
from millstream.records.batch import BatchHeader, Bytes, decode_header, with_append_time
from millstream.records.control import Marker, build_marker
from millstream.storage.append.pending_append import AppendWaiter, OnAdmit
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log

INLINE_SIZE_MAX = 16 * 1024
"""Batches up to this size are looked into on the loop, where their topic asks for that: it takes
no longer than to wake a thread."""

_Submit = Callable[[BatchHeader, Bytes], asyncio.Future[Appended]]


class _AppendTerms(NamedTuple):
    """On which terms a batch is appended; see `Partition.append`."""

    now_ms: int
    """When it came."""
    timeout: float | None
    is_early: bool
    guard: int | None = None
    on_admit: OnAdmit | None = None


class _QueuedBatch(NamedTuple):
    """A batch whose records are being looked at, in its place in the line."""

    ready: asyncio.Future[tuple[BatchHeader, Bytes]]
    answer: asyncio.Future[Appended]
    submit: _Submit


class _PendingDuplicate(NamedTuple):
    """A duplicate whose first is not committed yet."""

    last_offset: int
    answer: asyncio.Future[Appended]
    appended: Appended


class ProducerAppender:
    """Everything that is appended to one partition goes through here."""

    def __init__(
        self,
        log: Log,
        states: ProducerStates,
        rules: BatchValidator,
        *,
        clock: Clock,
        background: Executor,
    ) -> None:
        self._log = log
        self._states = states
        self._clock = clock
        self._background = background
        self._line: deque[_QueuedBatch] = deque()
        self._repeats: list[_PendingDuplicate] = []
        self.rules = rules
        """What the topic asks of every batch; may be replaced at any time."""
        self.refusal: MillstreamError | None = None
        """Why nothing is taken any more, once it is not."""

    # Batches of clients.

    def append(
        self,
        batch: Bytes,
        *,
        timeout_ms: int | None = None,
        is_early: bool = False,
        guard: int | None = None,
        on_admit: OnAdmit | None = None,
    ) -> asyncio.Future[Appended]:
        """Append one batch; see `Partition.append`."""
        header, now_ms = self._checked(batch)
        terms = _AppendTerms(now_ms, _seconds(timeout_ms), is_early, guard, on_admit)
        return self._take(header, batch, terms)

    def append_for(
        self, waiter: AppendWaiter, batch: Bytes, *, timeout_ms: int | None, is_early: bool
    ) -> None:
        """Append one batch and tell `waiter`; see `Partition.append_for`."""
        header, now_ms = self._checked(batch)
        timeout = _seconds(timeout_ms)
        rules = self.rules
        has_more = header.producer_id >= 0 or rules.is_append_time or rules.has_work(header)
        if not has_more and not self._line:
            self._log.submit_for(waiter, batch, header, timeout=timeout, is_early=is_early)
            return
        future = self._take(header, batch, _AppendTerms(now_ms, timeout, is_early))
        future.add_done_callback(partial(_notify_waiter, waiter))

    def _checked(self, batch: Bytes) -> tuple[BatchHeader, int]:
        """Return the header of a batch that may be appended, and when it came; else raise."""
        if self.refusal is not None:
            raise self.refusal
        now_ms = self._clock.wall_ms()
        return self.rules.check(batch, now_ms), now_ms

    def _take(
        self, header: BatchHeader, batch: Bytes, terms: _AppendTerms
    ) -> asyncio.Future[Appended]:
        """Append a batch that was checked, once its records are looked into where that is asked."""
        rules = self.rules
        has_work = rules.has_work(header)
        if not has_work and not self._line:
            return self._submit(header, batch, terms)
        submit = partial(self._submit, terms=terms)
        if not self._line and len(batch) <= INLINE_SIZE_MAX:
            return submit(*rules.work(header, batch))
        return self._stand_in_line(header, batch, submit, has_work=has_work)

    def _submit(
        self, header: BatchHeader, batch: Bytes, terms: _AppendTerms
    ) -> asyncio.Future[Appended]:
        """Hand a batch that was checked to the log."""
        if self.refusal is not None:
            raise self.refusal
        log = self._log
        is_append_time = self.rules.is_append_time
        if is_append_time:
            batch = with_append_time(batch, terms.now_ms)
            header = decode_header(batch)
        admit = terms.on_admit
        if header.producer_id >= 0:
            admit = partial(self._admit, header, terms)
        expected = log.next_offset
        future = log.submit(
            batch, on_admit=admit, timeout=terms.timeout, is_early=terms.is_early, header=header
        )
        if log.next_offset != expected and not is_append_time:
            return future
        # It was refused, or waits to be admitted and may turn out to be a duplicate then.
        return self._follow(future, header, terms.now_ms if is_append_time else None)

    def _admit(self, header: BatchHeader, terms: _AppendTerms, base_offset: int) -> None:
        now_ms = int(self._clock.monotonic() * 1000)
        self._states.admit(header, base_offset, now_ms=now_ms, guard=terms.guard)
        if terms.on_admit is not None:
            terms.on_admit(base_offset)

    def _follow(
        self, future: asyncio.Future[Appended], header: BatchHeader, append_time_ms: int | None
    ) -> asyncio.Future[Appended]:
        """Return what ends as `future` does, save where that finds a duplicate: then well."""
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def end(done: asyncio.Future[Appended]) -> None:
            if answer.done():
                return
            if done.cancelled():
                answer.cancel()
            elif (error := done.exception()) is None:
                appended = done.result()
                if append_time_ms is not None:
                    appended = TimestampedAppend.of(appended, append_time_ms)
                answer.set_result(appended)
            elif isinstance(error, DuplicateBatch):
                self._repeat(error.kept, answer)
            elif isinstance(error, LogFull) and (kept := self._states.kept(header)):
                self._repeat(kept, answer)  # It needs no room: it is there.
            else:
                answer.set_exception(error)

        if future.done():
            end(future)
        else:
            future.add_done_callback(end)
            answer.add_done_callback(lambda _: answer.cancelled() and future.cancel())
        return answer

    # Batches that have to be looked into.

    def _stand_in_line(
        self, header: BatchHeader, batch: Bytes, submit: _Submit, *, has_work: bool
    ) -> asyncio.Future[Appended]:
        """Have the records looked at, and the batch appended after all that came before it."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[tuple[BatchHeader, Bytes]]
        if has_work:
            ready = self._background.run(partial(self.rules.work, header, batch))
        else:
            ready = loop.create_future()
            ready.set_result((header, batch))
        turn = _QueuedBatch(ready, loop.create_future(), submit)
        self._line.append(turn)
        ready.add_done_callback(self._serve_line)
        return turn.answer

    def _serve_line(self, _: asyncio.Future[tuple[BatchHeader, Bytes]]) -> None:
        while self._line and self._line[0].ready.done():
            turn = self._line.popleft()
            try:
                _forward_result(turn.submit(*turn.ready.result()), turn.answer)
            except MillstreamError as error:
                _fail(turn.answer, error)

    # Batches that were appended before.

    def _repeat(self, kept: AppendedBatch, answer: asyncio.Future[Appended]) -> None:
        """Answer a duplicate, once the first one is safe."""
        appended = Appended(kept.first_offset, kept.last_offset, None)
        if self.rules.is_append_time:
            appended = TimestampedAppend.of(appended, kept.timestamp_ms)
        is_acknowledged = self._log.config.durability is Durability.MEMORY
        if is_acknowledged or kept.last_offset < self._log.end_offset:
            answer.set_result(appended)
        elif self.refusal is not None:
            answer.set_exception(self.refusal)
        else:
            self._repeats.append(_PendingDuplicate(kept.last_offset, answer, appended))

    # Markers.

    async def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker
    ) -> Appended:
        """Append the marker that ends a producer's transaction."""
        if self.refusal is not None:
            raise self.refusal
        batch = build_marker(
            producer_id,
            producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=self._clock.wall_ms(),
        )
        admit = partial(self._admit_marker, decode_header(batch), marker)
        return await self._log.submit(batch, is_checked=True, on_admit=admit)

    def _admit_marker(self, header: BatchHeader, marker: Marker, offset: int) -> None:
        now_ms = int(self._clock.monotonic() * 1000)
        self._states.admit_marker(header, marker, offset, now_ms=now_ms)

    # What the log tells.

    def note_commit(self) -> None:
        """Take note that the log is committed up to where it says."""
        end_offset = self._log.end_offset
        if self._states.has_steps:
            self._states.committed(end_offset)
        if self._repeats:
            waiting = []
            for repeat in self._repeats:
                if repeat.last_offset >= end_offset:
                    waiting.append(repeat)
                elif not repeat.answer.done():
                    repeat.answer.set_result(repeat.appended)
            self._repeats = waiting

    def rewind(self, offset: int) -> None:
        """Forget what the log has taken back."""
        self._states.rewind(offset)
        error = Unavailable(f"{self._log.name}: the batch was taken back; it may be sent again")
        doomed = [repeat for repeat in self._repeats if repeat.last_offset >= offset]
        self._repeats = [repeat for repeat in self._repeats if repeat.last_offset < offset]
        for repeat in doomed:
            _fail(repeat.answer, error)

    def close(self, refusal: MillstreamError) -> None:
        """Take nothing more; what has its offset already runs to its end."""
        self.refusal = refusal
        for repeat in self._repeats:
            _fail(repeat.answer, refusal)
        self._repeats.clear()


def _forward_result(source: asyncio.Future[Appended], answer: asyncio.Future[Appended]) -> None:
    """Have `answer` end as `source` does."""

    def end(done: asyncio.Future[Appended]) -> None:
        if answer.done():
            return
        if done.cancelled():
            answer.cancel()
        elif (error := done.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    if source.done():
        end(source)
    else:
        source.add_done_callback(end)


def _notify_waiter(waiter: AppendWaiter, done: asyncio.Future[Appended]) -> None:
    """Tell who waits how the future ended."""
    error = done.exception()
    if error is None:
        waiter.set_result(done.result())
    elif isinstance(error, Exception):
        waiter.set_exception(error)


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None else max(0, timeout_ms) / 1000


def _fail(answer: asyncio.Future[Appended], error: MillstreamError) -> None:
    if not answer.done():
        answer.set_exception(error)
