"""Opening of stored batches: where they are decompressed and decoded, and with how much memory.

A few KB are opened on the event loop, which takes less time than to wake a thread; all else is
opened in a thread. A batch that may become large waits for memory first: all readers of a node
share one budget. A batch that was smaller by its own account than in truth is opened again with
the memory that the largest batch needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from millstream.broker.loop_threads import LoopThreads
from millstream.clock import Timers
from millstream.config.schema import BrokerConfig
from millstream.errors import DeadlineExceeded
from millstream.records.batch import HEADER_SIZE, BatchHeader, Bytes, split
from millstream.records.compression import BODY_SIZE_MAX, OversizedBody, declared_size
from millstream.storage.disk.executor import Executor

T = TypeVar("T")

INLINE_BYTES_MAX = 64 * 1024
"""Batches that have up to this size together, decompressed, are opened on the event loop. Measured,
that takes 20 to 55 µs for decompression, by codec; a thread takes 100 µs to wake up and answer.
"""

INLINE_COMPRESSED_MAX = 16 * 1024
"""The same, compressed: it limits what batches cost that declare a wrong size."""

SMALL_BYTES_MAX = 1024 * 1024
"""A batch of up to this size waits for no memory: the number of threads limits these."""

MEMORY_FACTOR = 2
"""Bytes of memory per decompressed byte: the output, and the records that are cut out of it."""

_LIKELY_RATIO = 8


class _Waiter(NamedTuple):
    size: int
    admitted: asyncio.Future[None]


class DecompressionBudget:
    """Memory for large batches while they are open. Belongs to an event loop.

    Requests are admitted in order of arrival: none that needs much waits forever.
    """

    def __init__(self, config: BrokerConfig | None = None, *, timers: Timers | None = None) -> None:
        config = config or BrokerConfig()
        self._bytes_max = config.decompression_bytes_max
        self._wait_ms_max = config.decompression_wait_ms_max
        self._timers = timers
        self._waiting: deque[_Waiter] = deque()
        self.used_bytes = 0
        """Bytes that are reserved now."""
        self.timeouts = 0
        """Requests that waited in vain."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait for memory."""
        return len(self._waiting)

    async def acquire(self, size: int) -> None:
        """Reserve memory for a batch of `size` bytes, decompressed; wait for it if need be."""
        reserved = self._memory_of(size)
        if self._waiting or self.used_bytes + reserved > self._bytes_max:
            await self._wait(reserved)
        else:
            self.used_bytes += reserved

    def release(self, size: int) -> None:
        """Return what `acquire` reserved for the same size."""
        self.used_bytes -= self._memory_of(size)
        self._admit()

    def _memory_of(self, size: int) -> int:
        return min(size * MEMORY_FACTOR, self._bytes_max)

    async def _wait(self, size: int) -> None:
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        timers = self._timers or asyncio.get_running_loop()
        timer = timers.call_later(self._wait_ms_max / 1000, partial(self._give_up, waiter))
        self._waiting.append(waiter)
        try:
            await waiter.admitted
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
                self.used_bytes -= size  # It was admitted and cancelled in one turn of the loop.
            self._admit()
            raise
        finally:
            timer.cancel()

    def _give_up(self, waiter: _Waiter) -> None:
        if not waiter.admitted.done():
            self._waiting.remove(waiter)
            self.timeouts += 1
            waiter.admitted.set_exception(
                DeadlineExceeded(
                    f"no memory to decompress a batch within {self._wait_ms_max} ms:"
                    f" {self.used_bytes} bytes of {self._bytes_max} are in use"
                )
            )

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and self.used_bytes + waiting[0].size <= self._bytes_max:
            waiter = waiting.popleft()
            if not waiter.admitted.done():
                self.used_bytes += waiter.size
                waiter.admitted.set_result(None)


class BatchOpener:
    """Opens batches of all partitions of a node. Belongs to an event loop."""

    def __init__(
        self, budget: DecompressionBudget | None = None, executor: Executor | None = None
    ) -> None:
        self.budget = budget or DecompressionBudget()
        self._executor = executor or LoopThreads()

    async def run(self, parts: Iterable[memoryview], work: Callable[[int], T]) -> T:
        """Return the result of `work`, which opens the batches in `parts` one after the other.

        `work` gets the largest size to which it may decompress a batch, and raises `OversizedBody`
        if one is larger; it is then called again with a higher limit, up to `BODY_SIZE_MAX`. So it
        must have no effect unless it returns.
        """
        sizes = sizes_of(pair for part in parts for pair in split(part))
        if sizes.is_inline:
            with contextlib.suppress(OversizedBody):
                return work(INLINE_BYTES_MAX)
        return await self.run_in_thread(sizes, work)

    async def run_in_thread(self, sizes: OpenedSizes, work: Callable[[int], T]) -> T:
        """Return the result of `work` as `run` does, and never call it on the event loop."""
        likely = min(max(sizes.largest, SMALL_BYTES_MAX), BODY_SIZE_MAX)
        if likely < BODY_SIZE_MAX:
            with contextlib.suppress(OversizedBody):
                return await self._run(likely, partial(work, likely))
        return await self.run_large(partial(work, BODY_SIZE_MAX))

    async def run_large(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which may open batches of any size, one at a time."""
        return await self._run(BODY_SIZE_MAX, work)

    async def _run(self, size: int, work: Callable[[], T]) -> T:
        if size <= SMALL_BYTES_MAX:
            return await self._executor.run(work)
        await self.budget.acquire(size)
        done = self._executor.run(work)
        # If the caller is cancelled, the thread still uses its memory.
        done.add_done_callback(lambda _: self.budget.release(size))
        return await asyncio.shield(done)


class OpenedSizes(NamedTuple):
    """How large batches are, decompressed, as far as they tell."""

    compressed: int
    """Bytes of compressed batches, as stored."""
    total: int
    largest: int

    @property
    def is_inline(self) -> bool:
        """Whether the batches are opened on the event loop."""
        return self.total <= INLINE_BYTES_MAX and self.compressed <= INLINE_COMPRESSED_MAX


def sizes_of(batches: Iterable[tuple[BatchHeader, Bytes]]) -> OpenedSizes:
    """Return the sizes of batches; one that declares none is assumed to shrink to an eighth."""
    compressed = total = largest = 0
    for header, batch in batches:
        size = len(batch)
        if header.codec:
            compressed += size
            declared = declared_size(header.codec, memoryview(batch)[HEADER_SIZE:])
            size = _LIKELY_RATIO * size if declared is None else declared
        total += size
        largest = max(largest, size)
    return OpenedSizes(compressed, total, largest)
