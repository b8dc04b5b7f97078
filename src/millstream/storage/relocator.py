"""Relocation of old segments to the cold store, of all logs of a store.

    every interval   delete the objects of segments that are gone, then their markers
                     move segments that are old enough, one at a time
                     now and then: delete objects without a marker

All of it runs in threads of its own, and waits for nothing but the cold store: a store that hangs
delays this and nothing else. What failed is tried again, less often each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.clock import Timer, Timers
from millstream.config.schema import LogConfig, TierConfig
from millstream.errors import (
    Busy,
    CorruptFile,
    LogClosed,
    MillstreamError,
    NotLeader,
    Stopping,
    TierUnavailable,
)
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.storage.disk.filesystem import join
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.cold_marker import ColdMarker, read_cold_marker
from millstream.storage.files.names import SegmentId, cold_file, segment_file
from millstream.storage.log import Log
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.segment import LogDirectory, SealedSegment, Segment
from millstream.storage.tier.candidates import relocatable_segments
from millstream.storage.tier.cold_store import ColdStore
from millstream.storage.tier.tier_threads import TierThreads
from millstream.storage.tier.upload import delete_objects, upload_segment

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from millstream.storage.files.names import LogName
    from millstream.storage.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_SECONDS_MAX = 900.0
"""How long one segment may take to be moved before the attempt is given up."""

RETRY_SECONDS = 60.0
"""How soon a log of which a segment could not be moved is tried again; twice as long each time."""

RETRY_SECONDS_MAX = 3600.0

SWEEP_SECONDS = 3600.0
"""How often objects without a marker are looked for."""

UNMARKED_SECONDS = 24 * 3600.0
"""For how long an object must have been seen without a marker before it is deleted."""


@dataclass(slots=True)
class TierCounters:
    """Running totals since the store was opened."""

    relocations: int = 0
    """Number of segments moved to the cold store."""
    bytes: int = 0
    """Bytes of these."""
    failures: int = 0
    """Attempts to move a segment, or to delete one, that failed."""
    deletions: int = 0
    """Number of segments deleted from the cold store."""
    swept: int = 0
    """Number of objects without a marker that were deleted."""


class Relocator:
    """Moves segments of one store to its cold store. Belongs to its event loop."""

    def __init__(
        self,
        store: Store,
        cold_store: ColdStore,
        threads: TierThreads,
        *,
        config: TierConfig,
        monotonic: Callable[[], float],
        draw_token: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store = store
        self._cold_store = cold_store
        self._threads = threads
        self._config = config
        self._monotonic = monotonic
        self._draw_token = draw_token
        self._throttle = IoThrottle(config.bytes_per_second_max, monotonic=monotonic)
        self.counters = TierCounters()
        self._lock = threading.Lock()
        self._discarded: dict[str, tuple[LogDirectory, ColdMarker]] = {}
        """What is to be deleted, by path of the marker."""
        self._uploading: set[str] = set()
        self._failed: dict[LogName, tuple[str, float, float]] = {}
        """Logs of which a segment could not be moved: why, when to try again, and the interval."""
        self._delete_error: str | None = None
        self._unmarked: dict[str, float] = {}
        """Objects without a marker, and since when they are known."""
        self._swept: float | None = None
        self._tasks = BackgroundTasks()
        self._running = asyncio.Lock()
        self._stopped: asyncio.Future[None] | None = None
        self._timers: Timers | None = None
        self._timer: Timer | None = None
        self._is_stopping = False

    # Schedule.

    def start(self, timers: Timers) -> None:
        """Start periodic runs, if maintenance has an interval."""
        if self._store.maintenance.interval_seconds and self._timers is None:
            self._timers = timers
            self._set_timer()

    def _set_timer(self) -> None:
        assert self._timers is not None
        seconds = self._store.maintenance.interval_seconds
        self._timer = self._timers.call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._set_timer()
        if not self._running.locked():
            self._tasks.start(self._run())

    async def run_once(self) -> None:
        """Do once what is due, and return when that is done."""
        if self._is_stopping:
            raise LogClosed(f"{self._store.path} is closed")
        await asyncio.shield(self._tasks.start(self._run()))

    async def stop(self) -> None:
        """Start nothing more; a call that hangs is left to itself."""
        self._is_stopping = True
        self._throttle.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)
        while not self._tasks.is_idle:
            await self._tasks.changed()

    # State.

    def problem(self) -> str | None:
        """Return what cannot be moved or deleted at present, and why; `None` if all can be."""
        for name, (reason, _, _) in self._failed.items():
            return f"segments of {name} cannot be moved to the cold store: {reason}"
        return self._delete_error

    def discard(self, log_directory: LogDirectory, marker: ColdMarker) -> None:
        """Have the objects of a segment deleted, then its marker. Any thread may call it."""
        with self._lock:
            self._discarded[_marker_path(log_directory, marker)] = log_directory, marker

    # Work.

    async def _run(self) -> None:
        async with self._running:
            if self._stopped is None:
                self._stopped = asyncio.get_running_loop().create_future()
            with contextlib.suppress(Stopping):
                await self._delete_discarded()
                for name in sorted(self._store.unsorted_names()):
                    await self._relocate_log(name)
                    await asyncio.sleep(0)
                await self._sweep_if_due()

    async def _call(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread of the tier, unless it has to stop before that ends."""
        if self._is_stopping:
            raise Stopping("the node is stopping")
        assert self._stopped is not None
        call = self._threads.run(work)
        either: set[asyncio.Future[Any]] = {call, self._stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=CALL_SECONDS_MAX)
        if call.done():
            return call.result()
        call.add_done_callback(_ignore)
        if self._is_stopping:
            raise Stopping("the node is stopping")
        raise TierUnavailable(
            f"{self._cold_store.uri} has not answered for {CALL_SECONDS_MAX:.0f} seconds"
        )

    # Deleting.

    async def _delete_discarded(self) -> None:
        for name in self._store.unsorted_names():
            recovered = self._store.recovered_log(name)
            if recovered is not None and recovered.unwanted:
                log_directory = self._store.log_directory(name)
                for marker in recovered.unwanted:
                    self.discard(log_directory, marker)
                recovered.unwanted = []
        self._delete_error = None
        for path, (log_directory, marker) in list(self._discarded.items()):
            try:
                await self._call(partial(self._delete, marker))
                # Apart from that: what a call that was given up does later, it does to objects
                # only, whose names are not used again.
                await self._call(partial(_remove_marker, log_directory, marker))
            except (OSError, CorruptFile, TierUnavailable) as error:
                self.counters.failures += 1
                self._delete_error = f"objects cannot be deleted: {error}"
                logger.warning("%s", self._delete_error)
                return  # The others would fail too.
            self.counters.deletions += 1
            with self._lock:
                self._discarded.pop(path, None)

    def _delete(self, marker: ColdMarker) -> None:
        if marker.store != self._cold_store.uri:
            raise TierUnavailable(
                f"{marker.key} is in {marker.store}, tier.store is {self._cold_store.uri}"
            )
        delete_objects(self._cold_store, marker)

    # Relocating.

    async def _relocate_log(self, name: LogName) -> None:
        if name in self._failed and self._failed[name][1] > self._monotonic():
            return
        try:
            async for log, segment in self._due(name):
                await self._relocate(log, segment)
            self._failed.pop(name, None)
        except (Stopping, LogClosed, Busy, NotLeader) as error:
            if self._is_stopping:
                raise Stopping("the node is stopping") from error
        except MillstreamError as error:
            self.counters.failures += 1
            _, _, before = self._failed.get(name, ("", 0.0, RETRY_SECONDS / 2))
            seconds = min(2 * before, RETRY_SECONDS_MAX)
            self._failed[name] = str(error), self._monotonic() + seconds, seconds
            logger.warning("%s: a segment stays here: %s", name, error)
        except Exception:  # A failure of one log must not keep the segments of others here.
            self.counters.failures += 1
            logger.exception("relocation of segments of %s failed", name)

    async def _due(self, name: LogName) -> AsyncIterator[tuple[Log, SealedSegment]]:
        """Yield the segments to move, as long as there are any."""
        tried: set[SealedSegment] = set()
        while not self._is_stopping:
            log = self._store.find(name)
            if log is None:
                if not self._has_candidates(name):
                    return
                opener: Callable[[LogName], Awaitable[Log]] = self._store.maintenance.opener
                log = await opener(name)
            due = [s for s in self._candidates(log) if s not in tried]
            if not due or log.offline is not None:
                return
            tried.add(due[0])
            yield log, due[0]

    def _has_candidates(self, name: LogName) -> bool:
        """Return whether a log that is not open may have segments to move."""
        recovered = self._store.recovered_log(name)
        config = self._store.maintenance.config_of(name)
        if recovered is None or recovered.offline is not None or config is None:
            return False
        segments, start = recovered.segments, recovered.partition.start_offset
        end = segments[-1].next_offset if segments else start
        return bool(self._select(segments, start=start, end=end, masked=(), config=config))

    def _candidates(self, log: Log) -> list[SealedSegment]:
        needed = log.needed_offset
        end = log.end_offset if needed is None else min(needed, log.end_offset)
        if log.partition.deletions:
            return []  # Their records are looked up when a log is opened, which must not wait.
        if log.removal_hooks is not None:
            end = min(end, log.removal_hooks.stable_offset())
        return [
            segment
            for segment in self._select(
                log.segments,
                start=log.start_offset,
                end=end,
                masked=log.masks,
                config=log.config,
            )
            if not self._is_discarding(segment)
        ]

    def _select(
        self,
        segments: Iterable[Segment],
        *,
        start: int,
        end: int,
        masked: Iterable[int],
        config: LogConfig,
    ) -> list[SealedSegment]:
        return relocatable_segments(
            tuple(segments),
            start=start,
            end=end,
            masked=frozenset(masked),
            config=config,
            now_ms=self._store.now_ms(),
            hot_segments=self._config.hot_segments,
        )

    def _is_discarding(self, segment: SealedSegment) -> bool:
        """Return whether a marker of an earlier relocation has to be removed first."""
        id_ = SegmentId(segment.base_offset, segment.generation)
        path = join(segment.log_directory.directory, cold_file(id_))
        with self._lock:
            return path in self._discarded

    async def _relocate(self, log: Log, segment: SealedSegment) -> None:
        key = self._key(log, segment)
        self._uploading.add(key)
        try:
            upload = partial(
                upload_segment, self._cold_store, segment, key, on_read=self._throttle.pause
            )
            marker = await self._call(upload)
            if await log.relocate(segment, marker):
                self.counters.relocations += 1
                self.counters.bytes += segment.size
                logger.info(
                    "%s: moved offsets %d to %d to the cold store, %d bytes",
                    *(log.name, segment.base_offset, segment.next_offset - 1, segment.size),
                )
            else:
                await self._call(partial(delete_objects, self._cold_store, marker))
        finally:
            self._uploading.discard(key)

    def _key(self, log: Log, segment: SealedSegment) -> str:
        """Return a name for the object of a segment that no other attempt has used.

        What an attempt that was given up still does concerns its own object only.
        """
        topic = log.partition.cursor_id or log.name.rpartition("/")[0]
        partition = log.name.rpartition("/")[2]
        name = segment_file(segment.base_offset, "log", segment.generation).removesuffix(".log")
        return f"{self._store.store_id}/{topic}/{partition}/{name}.{self._draw_token()}.log"

    # Sweeping.

    async def _sweep_if_due(self) -> None:
        now = self._monotonic()
        if self._swept is not None and now - self._swept < SWEEP_SECONDS:
            return
        try:
            await self.sweep()
        except (OSError, TierUnavailable) as error:
            self.counters.failures += 1
            logger.warning("objects without a marker were not looked for: %s", error)
        self._swept = now

    async def sweep(self) -> None:
        """Delete objects that have had no marker for long; forget those that are gone.

        Nothing is deleted while a log cannot be read or is damaged: it may have markers that are
        not known.
        """
        prefix = f"{self._store.store_id}/"
        listed = await self._call(lambda: list(self._cold_store.list(prefix)))
        if self._store.damage():
            return
        marked = self._marked_keys()
        now = self._monotonic()
        unmarked = {key: self._unmarked.get(key, now) for key in listed if key not in marked}
        for key, since in list(unmarked.items()):
            if now - since >= UNMARKED_SECONDS:
                await self._call(partial(self._cold_store.delete, key))
                del unmarked[key]
                self.counters.swept += 1
                logger.info("deleted %s/%s, which had no marker", self._cold_store.uri, key)
        self._unmarked = unmarked

    def _marked_keys(self) -> set[str]:
        markers = [marker for _, marker in self._discarded.values()]
        for name in self._store.unsorted_names():
            log, recovered = self._store.find(name), self._store.recovered_log(name)
            segments: Iterable[Segment] = ()
            if log is not None:
                segments = log.segments
            elif recovered is not None:
                segments = recovered.segments
                markers += recovered.unwanted
            markers += [s.marker for s in segments if isinstance(s, ColdSegment)]
        keys = {key for m in markers for key in (m.key, m.index_key, m.seal_key)}
        for key in self._uploading:
            keys |= {key, f"{key}.index", f"{key}.seal"}
        return keys


def _ignore(call: asyncio.Future[Any]) -> None:
    """Take note of the end of a call that was given up."""
    if not call.cancelled():
        call.exception()


def _remove_marker(log_directory: LogDirectory, marker: ColdMarker) -> None:
    """Remove a marker, unless another one has its name by now. Blocks."""
    filesystem = log_directory.filesystem
    with contextlib.suppress(FileNotFoundError):
        stored = read_cold_marker(filesystem, log_directory.directory, marker.id)
        if stored.key == marker.key:
            filesystem.remove(_marker_path(log_directory, marker))


def _marker_path(log_directory: LogDirectory, marker: ColdMarker) -> str:
    return join(log_directory.directory, cold_file(marker.id))
