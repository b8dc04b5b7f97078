"""Store: the logs of one data directory.

    <data>/
      lock                     held by the one process that has the store open
      node.json                format and version of the store, and its id
      clock.json               retention clock, by which data ages
      scrub.json               how far the scrub has come
      spare                    ballast file: disk space to delete with on a full disk
      topics/<topic>/<partition>/
        00000000000000000000.log  .index  .seal
        partition.json  checkpoint
      trash/                   deleted topics, until their files are removed

Opening visits every directory once and recovers logs that need it; a log that was closed cleanly is
trusted by its seals and not scanned. Damage is local: a log that cannot be opened raises when it is
requested, and does not affect others.

From `start_maintenance` on, retention is applied to all logs, and they are cleaned and scrubbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Self
from weakref import WeakValueDictionary

from millstream.clock import Clock, SystemClock, Timers
from millstream.config.cpus import format_cpus
from millstream.config.schema import (
    Durability,
    LogConfig,
    ReplayPriority,
    StoreConfig,
    TierConfig,
)
from millstream.errors import (
    CorruptFile,
    InvalidConfig,
    LogClosed,
    MillstreamError,
    StorageFailed,
    StoreLocked,
    UnknownFormat,
    UnknownLog,
    again,
)
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.append.group_committer import GroupCommitter
from millstream.storage.disk.cpu_affinity import allowed_cpus, pin_thread
from millstream.storage.disk.errors import transient_error
from millstream.storage.disk.executor import Executor, ThreadExecutor
from millstream.storage.disk.file_cache import FileCache
from millstream.storage.disk.filesystem import Filesystem, Lock, OsFilesystem, join, parent
from millstream.storage.disk.io_priority import (
    IDLE,
    LOWEST_BEST_EFFORT,
    IoPriority,
    is_granted,
    set_io_priority,
)
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.disk.memory_filesystem import MemoryFilesystem
from millstream.storage.disk.page_cache import PageCacheProbe, detect_page_cache_probe
from millstream.storage.disk.syncer import KernelSyncer, Syncer, probe_syncer
from millstream.storage.files.ballast import BallastFile
from millstream.storage.files.document import read_document, write_document
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.names import (
    BALLAST_FILE,
    LOCK_FILE,
    NODE_FILE,
    STORE_KIND,
    STORE_VERSION,
    TOPICS_DIRECTORY,
    LogName,
    check_partition,
    check_topic,
    is_topic,
    parse_partition,
)
from millstream.storage.files.partition_metadata import PartitionMetadata, write_partition_metadata
from millstream.storage.files.trash import empty_trash, move_to_trash, remove_trash
from millstream.storage.health import LogHealth
from millstream.storage.log import Log
from millstream.storage.maintenance import Maintenance
from millstream.storage.prefetch import Prefetcher
from millstream.storage.recovery.damaged_end import record_damaged_end
from millstream.storage.recovery.log_recovery import RecoveredLog, recover
from millstream.storage.relocator import Relocator
from millstream.storage.retention.eviction import Eviction
from millstream.storage.retention.retention_clock import (
    RetentionClock,
    load_retention_clock,
    read_retention_clock,
    save_retention_clock,
)
from millstream.storage.retention.size_caps import caps_of
from millstream.storage.scrub import Scrubber
from millstream.storage.segment.counters import StoreTotals
from millstream.storage.segment.lifecycle import SegmentSyncFailed, sync_all
from millstream.storage.segment.segment import LogDirectory
from millstream.storage.tier.cold_reader import ColdReader
from millstream.storage.tier.cold_store import ColdStore
from millstream.storage.tier.tier_threads import TierThreads

logger = logging.getLogger(__name__)

REPLAY_THREADS = 2
"""Threads that read old data for consumers that are far behind.

With one, all would wait for the slowest; many would only make the disk seek.
"""

CLOSE_IDLE_RETRY_SECONDS = 0.1
"""How soon to try again to close logs that were busy."""

CLOCK_SAVE_SECONDS = 60.0
"""How often the retention clock is saved; a power cut sets it back by at most this much."""

TIER_READ_THREADS = 4
"""Threads that read from the cold store."""

TIER_READS_WAITING_MAX = 256
"""Pieces that may wait for these threads; beyond this, readers are refused."""

_EPHEMERAL_ROOT = "/ephemeral"
"""Directory of logs of class `ephemeral`, in the in-memory file system."""


def check_store_format(filesystem: Filesystem, path: str) -> None:
    """Raise `UnknownFormat` if a later release has written the files of a store itself.

    Nothing is changed. Damage, and files of logs, are found when the store is opened.
    """
    with contextlib.suppress(OSError, CorruptFile):
        read_document(filesystem, join(path, NODE_FILE), STORE_KIND, STORE_VERSION)
    with contextlib.suppress(OSError, CorruptFile):
        read_retention_clock(filesystem, path)


class StoreOpenReport(NamedTuple):
    """Statistics of opening a store."""

    logs: int = 0
    scanned_bytes: int = 0
    """Bytes that had to be scanned; 0 if all logs were closed cleanly."""
    repaired_logs: int = 0
    damaged_logs: int = 0


class Store:
    """All logs of one data directory, owned by one process and one event loop."""

    def __init__(  # noqa: PLR0915 - a field for each of its many parts.
        self,
        path: str,
        *,
        config: StoreConfig | None = None,
        log_config: LogConfig | None = None,
        filesystem: Filesystem | None = None,
        clock: Clock | None = None,
        background: Executor | None = None,
        syncer: Syncer | None = None,
        timers: Timers | None = None,
        page_cache_probe: PageCacheProbe | None = None,
        draw_id: Callable[[], uuid.UUID] | None = None,
        tier: TierConfig | None = None,
        cold_store: ColdStore | None = None,
        tier_threads: TierThreads | None = None,
    ) -> None:
        self.path = path
        self._draw_id = draw_id
        """Makes ids of topics, if nobody else does: a broker has its own."""
        self._topic_ids: dict[str, uuid.UUID] = {}
        """Ids that this store has drawn or read since it was opened."""
        self.config = config or StoreConfig()
        self.log_config = log_config or LogConfig()
        self._filesystem = filesystem or OsFilesystem()
        self._clock = clock or SystemClock()
        self._background = background or ThreadExecutor(
            self.config.sync_threads, name="millstream-disk"
        )
        self._syncer = syncer
        self._timers = timers
        self.totals = StoreTotals()
        """Totals of all logs since the store was opened."""
        self._committer = GroupCommitter(self._background, syncer, self.totals)
        self._is_probing = filesystem is None and syncer is None
        self._budget = ByteBudget(self.config.unflushed_bytes_max)
        self._ballast = BallastFile(self._filesystem, join(path, BALLAST_FILE))
        self._map_cache: FileCache[memoryview] = FileCache(self.config.maps_open_max)
        self._index_cache: FileCache[SegmentIndex] = FileCache(self.config.maps_open_max)
        self._memory = MemoryFilesystem(self.config.ephemeral_bytes_max)
        self._memory.make_directory(_EPHEMERAL_ROOT)
        self._lock: Lock | None = None
        self._recovered: dict[LogName, RecoveredLog] = {}
        self._failed: dict[LogName, MillstreamError] = {}
        self._damaged: dict[LogName, None] = {}
        """Logs in which recovery or a reader found damage."""
        self.health = LogHealth()
        """Logs that cannot be written at present."""
        self._logs: dict[LogName, Log] = {}
        self._configs: dict[LogName, LogConfig] = {}
        self._borrowed: set[LogName] = set()
        self._opening: WeakValueDictionary[LogName, asyncio.Lock] = WeakValueDictionary()
        self._deleting: dict[str, asyncio.Future[None]] = {}
        self._trash_removals: set[asyncio.Future[None]] = set()
        self._open_writers: OrderedDict[Log, None] = OrderedDict()
        self._close_idle_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._retention_clock: RetentionClock | None = None
        self._clock_saved = 0.0
        self.store_id = ""
        """UUID of this data directory, once it is open."""
        self.opening = StoreOpenReport()
        # Cleaning blocks a thread for a long time, so it has its own.
        self._cleaning_background = background or ThreadExecutor(
            1, name="millstream-upkeep", on_start=partial(self._prepare_thread, LOWEST_BEST_EFFORT)
        )
        self.maintenance = Maintenance(
            self, background=self._cleaning_background, monotonic=self._clock.monotonic
        )
        """Background maintenance of all logs: retention and cleaning."""
        # A scrub waits in its thread until it may read on, so it has its own too.
        self._scrub_background = background or ThreadExecutor(
            1, name="millstream-scrub", on_start=partial(self._prepare_thread, IDLE)
        )
        self.scrubber = Scrubber(
            self,
            background=self._scrub_background,
            throttle=IoThrottle(
                self.config.scrub_bytes_per_second_max, monotonic=self._clock.monotonic
            ),
        )
        """Reads sealed segments now and then, to find damage."""
        self._replay_background = background or ThreadExecutor(
            REPLAY_THREADS, name="millstream-replay", on_start=partial(self._prepare_thread, IDLE)
        )
        self.prefetcher = Prefetcher(
            self._replay_background,
            page_cache_probe or detect_page_cache_probe(),
            cold_wait_seconds=(tier or TierConfig()).read_wait_ms / 1000,
        )
        """Reads old data into the page cache, for readers on the event loop."""
        self.replay_priority = ReplayPriority.NORMAL
        """Disk priority of the prefetcher: the configured one, if the kernel allows it."""
        self.cold_reader: ColdReader | None = None
        """Reads of the cold store, if the store has one."""
        self.relocator: Relocator | None = None
        """Moves old segments to the cold store."""
        self._tier_threads: tuple[TierThreads, ...] = ()
        if cold_store is not None:
            self._add_tier(tier or TierConfig(), cold_store, tier_threads)

    def _add_tier(
        self, config: TierConfig, cold_store: ColdStore, threads: TierThreads | None
    ) -> None:
        monotonic = self._clock.monotonic
        reading = threads or TierThreads(
            TIER_READ_THREADS, queue_max=TIER_READS_WAITING_MAX, name="millstream-cold"
        )
        moving = threads or TierThreads(
            1,
            queue_max=TIER_READS_WAITING_MAX,
            name="millstream-tier",
            on_start=partial(self._prepare_thread, IDLE),
        )
        self._tier_threads = (reading, moving)
        self.relocator = Relocator(self, cold_store, moving, config=config, monotonic=monotonic)
        self.cold_reader = ColdReader(
            cold_store,
            reading,
            cache_bytes_max=config.cache_bytes_max,
            monotonic=monotonic,
            on_discard=self.relocator.discard,
        )

    # Opening.

    def open(self) -> None:
        """Lock the directory, check its format and recover its logs. Blocks until that is done."""
        if self._lock is not None or self._is_closed:
            raise StoreLocked(f"{self.path} was already opened by this store; create another Store")
        try:
            self._acquire()
            self._check_format()
            self._retention_clock = load_retention_clock(self._filesystem, self.path, self._clock)
            self._clock_saved = self._clock.monotonic()
            empty_trash(self._filesystem, self.path)
            self._recover_all()
            self.opening = StoreOpenReport(
                logs=len(self._recovered) + len(self._failed),
                scanned_bytes=sum(
                    recovered.scanned_bytes for recovered in self._recovered.values()
                ),
                repaired_logs=len(self.recovered()),
                damaged_logs=len(self.damage()),
            )
        except OSError as error:
            self._release()
            raise StorageFailed(f"{self.path} cannot be opened: {error}") from error
        except MillstreamError:
            self._release()
            raise

    def _acquire(self) -> None:
        self._filesystem.make_directory(self.path)
        self._filesystem.sync_directory(parent(self.path))
        self._lock = self._filesystem.lock(join(self.path, LOCK_FILE))
        if self._is_probing:
            file = self._filesystem.open(join(self.path, LOCK_FILE))
            self._syncer = probe_syncer(file)
            self._committer = GroupCommitter(self._background, self._syncer, self.totals)
            file.close()
            if self._syncer is None:
                logger.warning(
                    "%s: the kernel does not sync files asynchronously here; threads do, and a"
                    " single append takes about twice as long",
                    self.path,
                )
            if self.config.replay_priority is ReplayPriority.IDLE and is_granted(IDLE):
                self.replay_priority = ReplayPriority.IDLE
        logger.info("%s: sync backend: %s", self.path, self.sync_backend)

    def _prepare_thread(self, priority: IoPriority) -> None:
        """Lower the disk priority of the calling thread and pin it, as configured and allowed."""
        if cpus := self.config.maintenance_cpus:
            try:
                pin_thread(cpus)
            except OSError as error:
                allowed = format_cpus(allowed_cpus())
                logger.warning(
                    "maintenance runs on processors %s, not on %s: %s",
                    *(allowed, format_cpus(cpus), error.strerror),
                )
        if self.config.replay_priority is ReplayPriority.IDLE:
            with contextlib.suppress(OSError):
                set_io_priority(priority)

    def yield_to_syncs(self) -> None:
        """Let syncs in flight proceed. For a loop that has more to do and does not become idle."""
        if isinstance(self._syncer, KernelSyncer):
            self._syncer.yield_to_syncs()

    @property
    def sync_backend(self) -> str:
        """Whether commits are synced by the kernel (asynchronous I/O) or by threads."""
        return "kernel" if self._syncer else "threads"

    @property
    def sync_fallbacks(self) -> int:
        """Commits that were meant for the kernel and that it did not take."""
        refusals = self._syncer.refusals if isinstance(self._syncer, KernelSyncer) else 0
        return self.totals.sync_fallbacks + refusals

    def _check_format(self) -> None:
        """Check the format of the directory, and record it in a new one; another is not touched."""
        try:
            content = read_document(
                self._filesystem, join(self.path, NODE_FILE), STORE_KIND, STORE_VERSION
            )
        except FileNotFoundError:
            others = set(self._filesystem.list(self.path)) - {LOCK_FILE, NODE_FILE + ".tmp"}
            if others:
                raise StorageFailed(
                    f"{self.path} has no {NODE_FILE} but contains {sorted(others)[0]!r}:"
                    " not a data directory, or a damaged one"
                ) from None
            content = {"store_id": str(uuid.uuid4())}
            write_document(
                self._filesystem,
                self.path,
                NODE_FILE,
                content,
                kind=STORE_KIND,
                version=STORE_VERSION,
            )
        self.store_id = str(content.get("store_id", ""))
        topics = join(self.path, TOPICS_DIRECTORY)
        self._filesystem.make_directory(topics)
        self._filesystem.sync_directory(self.path)

    def now_ms(self) -> int:
        """Return the time of the retention clock, by which data ages. The store must be open."""
        assert self._retention_clock is not None, "the store is open"
        return self._retention_clock.now_ms()

    def age_ms(self, date_ms: int) -> int:
        """Return the least age of a time of the retention clock. The store must be open."""
        assert self._retention_clock is not None, "the store is open"
        return self._retention_clock.age_ms(date_ms)

    def _recover_all(self) -> None:
        topics = join(self.path, TOPICS_DIRECTORY)
        for topic in filter(is_topic, self._filesystem.list(topics)):
            with contextlib.suppress(NotADirectoryError):  # A file that is not ours is ignored.
                for name in self._filesystem.list(join(topics, topic)):
                    if (partition := parse_partition(name)) is not None:
                        self._recover(LogName(topic, partition), self.log_config)

    def _recover(self, name: LogName, config: LogConfig) -> None:
        self._failed.pop(name, None)
        self._recovered.pop(name, None)
        self._damaged[name] = None
        try:
            recovered = recover(self._log_directory(name, config), self._clock, now_ms=self.now_ms)
        except MillstreamError as error:
            self._failed[name] = error
        except OSError as error:
            self._failed[name] = StorageFailed(f"{name} cannot be opened: {error}")
        else:
            self._recovered[name] = self._with_dates_since_clock(recovered)
            if not recovered.damage and not recovered.offline:
                del self._damaged[name]
            for action in recovered.actions:
                logger.info("%s: %s", name, action)
            for damage in recovered.damage:
                logger.error("%s: damaged: %s", name, damage)

    def _with_dates_since_clock(self, recovered: RecoveredLog) -> RecoveredLog:
        """Give segments from before the retention clock its start date: theirs mean nothing."""
        assert self._retention_clock is not None, "the store is open"
        since_ms = self._retention_clock.since_ms
        for segment in recovered.sealed:
            seal = segment.seal
            if max(seal.created_ms, seal.sealed_ms) < since_ms:
                segment.seal = replace(seal, created_ms=since_ms, sealed_ms=since_ms)
        partition = recovered.partition
        marks = tuple(mark._replace(ms=max(mark.ms, since_ms)) for mark in partition.age_marks)
        recovered.partition = replace(partition, age_marks=marks)
        return recovered

    def _log_directory(self, name: LogName, config: LogConfig) -> LogDirectory:
        is_ephemeral = config.durability is Durability.EPHEMERAL
        root = _EPHEMERAL_ROOT if is_ephemeral else join(self.path, TOPICS_DIRECTORY)
        return LogDirectory(
            filesystem=self._memory if is_ephemeral else self._filesystem,
            directory=join(root, name.topic, str(name.partition)),
            map_cache=self._map_cache,
            index_cache=self._index_cache,
            index_interval_bytes=config.index_interval_bytes,
            ballast=None if is_ephemeral else self._ballast,
            cold=None if is_ephemeral else self.cold_reader,
        )

    @property
    def has_tier(self) -> bool:
        """Whether segments can be moved to a cold store."""
        return self.cold_reader is not None

    def tier_problems(self) -> list[str]:
        """Return what the cold store does not do at present."""
        parts = (self.cold_reader, self.relocator)
        problems = (part.problem() for part in parts if part is not None)
        return [problem for problem in problems if problem is not None]

    def log_directory(self, name: LogName) -> LogDirectory:
        """Return the directory of a log on disk."""
        return self._log_directory(name, replace(self.log_config, durability=Durability.FSYNC))

    # Logs.

    @property
    def filesystem(self) -> Filesystem:
        """The file system of all logs that are not of class `ephemeral`."""
        return self._filesystem

    async def log(
        self,
        topic: str,
        partition: int = 0,
        *,
        config: LogConfig | None = None,
        topic_id: uuid.UUID | None = None,
        is_managed: bool = False,
    ) -> Log:
        """Return a log; create it if it does not exist.

        The caller that first opens it with `is_managed` sets its removal hooks and then calls its
        `begin_retention`.

        A `config` applies from now on. Without one, a log keeps its durability class and uses the
        settings of the store otherwise. A log that is open keeps its settings.

        A `topic_id` is recorded durably in the log. Raises `CorruptFile` if the log has another.
        Without one, a store that draws ids gives the log an id of its own.
        """
        name = LogName(check_topic(topic), check_partition(partition))
        async with self._exclusive(name):
            if self._is_closed:
                raise LogClosed(f"{self.path} is closed")
            if name not in self._logs:
                log = self._logs[name] = await self._open_log(name, config, topic_id)
                if not is_managed:
                    await log.begin_retention()
            elif name in self._borrowed:
                await self._apply_config(self._logs[name], config)
            self._borrowed.discard(name)
            if topic_id is not None:
                await self._logs[name].record_topic_id(topic_id)
            return self._logs[name]

    @contextlib.asynccontextmanager
    async def _exclusive(self, name: LogName) -> AsyncIterator[None]:
        """Hold the lock of a log, once no other caller opens it or deletes its topic."""
        while True:
            await self._wait_until_deleted(name.topic)
            async with self._opening.setdefault(name, asyncio.Lock()):
                if name.topic not in self._deleting:
                    yield
                    return

    async def borrow(self, name: LogName) -> Log:
        """Return a log for maintenance, open or not; raise `UnknownLog` if it does not exist.

        It does not count as opened: the first caller that requests it still decides its settings.
        """
        async with self._exclusive(name):
            if self._is_closed:
                raise LogClosed(f"{self.path} is closed")
            if name not in self._logs:
                if name not in self._recovered and name not in self._failed:
                    raise UnknownLog(f"{name} does not exist")
                log = self._logs[name] = await self._open_log(name, self._configs.get(name))
                await log.begin_retention()
                self._borrowed.add(name)
            return self._logs[name]

    async def _apply_config(self, log: Log, config: LogConfig | None) -> None:
        """Apply the settings of the first caller to a log that maintenance has opened."""
        if config is not None and config != log.config and log.offline is None:
            await log.reconfigure(config)

    def find(self, name: LogName) -> Log | None:
        """Return a log if it is open, else None."""
        return self._logs.get(name)

    def recovered_log(self, name: LogName) -> RecoveredLog | None:
        """Return the result of recovering a log; valid until the log is opened."""
        return self._recovered.get(name)

    def is_failed(self, name: LogName) -> bool:
        """Return whether a log exists and could not be read when the store was opened."""
        return name in self._failed

    def check_formats(self) -> None:
        """Raise `UnknownFormat` if a later release has written to one of the logs.

        Such a log fails when it is requested, and others can be used. For a replica that is not
        enough: what it lacks would be fetched from others, and what it has removed.
        """
        for error in self._failed.values():
            if isinstance(error, UnknownFormat):
                raise again(error)

    def end_offset_of(self, name: LogName) -> int | None:
        """Return the end of a log, open or not; `None` if it cannot be read."""
        if (log := self._logs.get(name)) is not None:
            return log.end_offset
        if (recovered := self._recovered.get(name)) is None:
            return None
        segments, start = recovered.segments, recovered.partition.start_offset
        return max(start, segments[-1].next_offset) if segments else start

    def config_of(self, name: LogName) -> LogConfig:
        """Return the settings that maintenance uses for a log that is not open."""
        return self._configs.get(name) or self.log_config

    def get(self, topic: str, partition: int = 0) -> Log:
        """Return a log that is open; raise `UnknownLog` if it is not."""
        name = LogName(topic, partition)
        if name not in self._logs:
            raise UnknownLog(f"{name} is not open")
        return self._logs[name]

    def names(self) -> list[LogName]:
        """Return the names of all logs, open or not, sorted."""
        return sorted(self.unsorted_names())

    def unsorted_names(self) -> set[LogName]:
        """Return the names of all logs; sorting a hundred thousand would block the event loop."""
        return {*self._recovered, *self._failed, *self._logs}

    @property
    def maps_open(self) -> int:
        """How many sealed segments are mapped for reading."""
        return len(self._map_cache)

    @property
    def open_logs(self) -> list[Log]:
        return list(self._logs.values())

    def damage(self) -> dict[LogName, list[MillstreamError]]:
        """Return the damage found by recovery and by readers, by log; empty if there is none."""
        damage: dict[LogName, list[MillstreamError]] = {}
        for name in tuple(self._damaged):
            if name in self._failed:
                damage[name] = [self._failed[name]]
                continue
            recovered, log = self._recovered.get(name), self._logs.get(name)
            found: list[MillstreamError] = []
            if log is not None:
                found += log.damage
            elif recovered is not None:
                found += recovered.damage
            if recovered is not None and recovered.offline and recovered.offline not in found:
                found.append(recovered.offline)
            if found:
                damage[name] = found
        return damage

    def recovered(self) -> dict[LogName, list[str]]:
        """Return the repairs made when the store was opened, as messages, by log."""
        return {name: log.actions for name, log in self._recovered.items() if log.actions}

    def topic_directory(self, topic: str) -> str:
        """Return the directory of the logs of a topic, except for those of class `ephemeral`."""
        return join(self.path, TOPICS_DIRECTORY, check_topic(topic))

    async def reopen(
        self, topic: str, partition: int = 0, *, removes_damaged_end: bool = False
    ) -> Log:
        """Close a log, recover it and open it again, so that an offline log can be used.

        `removes_damaged_end` truncates a log that is offline because its end is damaged or missing
        to what is valid before that: the records are lost, unless another replica has them.
        """
        name = LogName(check_topic(topic), check_partition(partition))
        async with self._exclusive(name):
            if name not in self.names():
                raise UnknownLog(f"{name} does not exist")
            if log := self._logs.pop(name, None):
                self._configs[name] = log.config
                await self._close_log(log)
                self.health.remove(name)
            config = self._configs.get(name)
            recovering = partial(self._recover, name, config or self.log_config)
            await self._background.run(recovering)
            recovered = self._recovered.get(name)
            if removes_damaged_end and recovered is not None and recovered.offline is not None:
                log_directory = self._log_directory(name, config or self.log_config)
                cutting = partial(record_damaged_end, log_directory, now_ms=self.now_ms)
                truncation = await self._background.run(cutting)
                logger.warning("%s: truncated to %d: end is damaged", name, truncation.end_offset)
                await self._background.run(recovering)
            self._logs[name] = await self._open_log(name, config)
            return self._logs[name]

    async def _close_log(self, log: Log) -> None:
        try:
            await log.close()
        except StorageFailed as error:
            logger.warning("%s", error)
        self._open_writers.pop(log, None)
        for segment in log.segments:
            self._map_cache.forget(segment.path)
            self._index_cache.forget(segment.path.removesuffix("log") + "index")

    # Deleting.

    async def delete(self, topic: str) -> None:
        """Delete all logs of a topic. Durable when this returns, and the name can be used again.

        Open logs are closed, and what they have not committed is refused with `LogClosed`. After a
        crash the topic exists completely or not at all. Files are removed afterwards; slices that
        were read stay valid. Does nothing if the topic does not exist.
        """
        check_topic(topic)
        await self._wait_until_deleted(topic)
        if self._is_closed:
            raise LogClosed(f"{self.path} is closed")
        # A task of the store: a caller that stops waiting must not leave a topic half deleted.
        self._deleting[topic] = task = asyncio.ensure_future(self._delete(topic))
        task.add_done_callback(lambda _: self._deleting.pop(topic))
        await asyncio.shield(task)

    async def _wait_until_deleted(self, topic: str) -> None:
        """Wait until no deletion of the topic is in flight, whether it succeeds or not."""
        while deleting := self._deleting.get(topic):
            await asyncio.wait([deleting])

    async def _delete(self, topic: str) -> None:
        for name in [name for name in self._opening if name.topic == topic]:
            async with self._opening.setdefault(name, asyncio.Lock()):
                pass  # Callers that were opening it are done; others wait for the deletion.
        names = [name for name in self.names() if name.topic == topic]
        self._topic_ids.pop(topic, None)
        logs = [self._logs.pop(name) for name in names if name in self._logs]
        for log in logs:
            await log.discard()
            self._open_writers.pop(log, None)
        ephemeral = join(_EPHEMERAL_ROOT, topic)
        self._memory.remove_tree(ephemeral)
        directory = join(self.path, TOPICS_DIRECTORY, topic)
        moving = partial(move_to_trash, self._filesystem, self.path, directory)
        try:
            moved = await self._background.run(moving)
        except OSError as error:
            await self._background.run(partial(self._recover_again, names))
            raise StorageFailed(f"{topic} was not deleted: {error}") from error
        finally:
            # Not earlier: a reader can map a file again for as long as it has its name.
            for removed in (ephemeral, directory):
                self._map_cache.forget_below(removed)
                self._index_cache.forget_below(removed)
        for name in names:
            self._forget(name)
        if moved is not None:
            self._remove_trash(moved)

    async def delete_partition(self, topic: str, partition: int) -> None:
        """Delete one log of a topic. Durable when this returns; its files are removed afterwards.

        After a crash the log exists completely or not at all. Does nothing if it does not exist.
        """
        name = LogName(check_topic(topic), check_partition(partition))
        async with self._exclusive(name):
            if self._is_closed:
                raise LogClosed(f"{self.path} is closed")
            if name not in self.unsorted_names():
                return
            if log := self._logs.pop(name, None):
                await log.discard()
                self._open_writers.pop(log, None)
            directory = join(self.path, TOPICS_DIRECTORY, topic, str(partition))
            moving = partial(move_to_trash, self._filesystem, self.path, directory)
            try:
                moved = await self._background.run(moving)
            except OSError as error:
                await self._background.run(partial(self._recover_again, [name]))
                raise StorageFailed(f"{name} was not deleted: {error}") from error
            finally:
                self._map_cache.forget_below(directory)
                self._index_cache.forget_below(directory)
            self._forget(name)
        if moved is not None:
            self._remove_trash(moved)

    def _forget(self, name: LogName) -> None:
        self._recovered.pop(name, None)
        self._failed.pop(name, None)
        self._damaged.pop(name, None)
        self._configs.pop(name, None)
        self.health.remove(name)
        self._borrowed.discard(name)

    def _recover_again(self, names: list[LogName]) -> None:
        """Recover logs again that were closed without a seal, so that they can be opened."""
        for name in names:
            self._recover(name, self.log_config)
            if name in self._recovered and self._recovered[name].is_new:
                del self._recovered[name]  # It was moved after all, though perhaps not durably.

    def _remove_trash(self, moved: str) -> None:
        """Remove a directory in the trash, in the background."""
        done = self._background.run(partial(remove_trash, self._filesystem, moved))
        self._trash_removals.add(done)
        done.add_done_callback(self._trash_removals.discard)

    async def _open_log(
        self, name: LogName, config: LogConfig | None, topic_id: uuid.UUID | None = None
    ) -> Log:
        if name in self._failed:
            raise again(self._failed[name])
        embedded_id: uuid.UUID | None = None
        if topic_id is None and self._draw_id is not None:
            embedded_id = self._own_topic_id(name.topic, self._draw_id)
        make = partial(self._make_log, name, config, topic_id, embedded_id)
        try:
            return await self._background.run(make)
        except OSError as error:
            failed = StorageFailed(f"{name} cannot be opened: {error}")
            raise transient_error(str(name), error) or failed from error

    def _make_log(
        self,
        name: LogName,
        config: LogConfig | None,
        topic_id: uuid.UUID | None,
        embedded_id: uuid.UUID | None,
    ) -> Log:
        """Create or open a log. Blocks: the name of a new one is durable before it is used."""
        recovered = self._recovered.get(name)
        if config is None:
            kept = recovered.partition.durability if recovered else self.log_config.durability
            config = replace(self.log_config, durability=kept)
        if (
            recovered
            and not recovered.is_new
            and _is_ephemeral(config)
            and not _is_ephemeral(recovered)
        ):
            raise InvalidConfig(f"{name} is stored on disk and cannot become ephemeral")
        log_directory = self._log_directory(name, config)
        if (
            recovered is None
            or recovered.is_new
            or _is_ephemeral(recovered) != _is_ephemeral(config)
        ):
            _make_directory(log_directory.filesystem, parent(log_directory.directory))
            _make_directory(log_directory.filesystem, log_directory.directory)
            partition_metadata = PartitionMetadata(
                config.durability,
                topic_id=topic_id,
                embedded_id=embedded_id,
                caps=caps_of(config),
            )
            recovered = RecoveredLog(partition_metadata)
            write_partition_metadata(
                log_directory.filesystem, log_directory.directory, recovered.partition
            )
        elif recovered.partition.durability is not config.durability and not recovered.offline:
            if config.durability is Durability.FSYNC:
                _sync_growing(log_directory, recovered)
            recovered.partition = replace(recovered.partition, durability=config.durability)
            write_partition_metadata(
                log_directory.filesystem, log_directory.directory, recovered.partition
            )
        self._fill_embedded_id(log_directory, recovered, embedded_id)
        return Log(
            name=str(name),
            log_directory=log_directory,
            config=config,
            clock=self._clock,
            background=self._background,
            committer=self._committer,
            budget=self._budget,
            recovered=recovered,
            timers=self._timers,
            retention_now_ms=self.now_ms,
            deletions_max=self.config.deletions_max,
            on_open=self._limit_open_files,
            on_unhealthy=partial(self.health.add, name),
            on_damage=partial(self._note_damage, name),
        )

    def _note_damage(self, name: LogName, _: Log) -> None:
        """Note that a reader found damage; called in the thread of the reader."""
        self._damaged[name] = None

    def _own_topic_id(self, topic: str, draw: Callable[[], uuid.UUID]) -> uuid.UUID:
        """Return the id of a topic of an embedded store: that of its logs, or a new one."""
        if topic not in self._topic_ids:
            stored = (
                recovered.partition.cursor_id
                for name, recovered in sorted(self._recovered.items())
                if name.topic == topic
            )
            self._topic_ids[topic] = (
                next((id_ for id_ in stored if id_ is not None), None) or draw()
            )
        return self._topic_ids[topic]

    def _fill_embedded_id(
        self, log_directory: LogDirectory, recovered: RecoveredLog, embedded_id: uuid.UUID | None
    ) -> None:
        """Give an id to a log of a release that stored none. An id is never replaced.

        It is stored at once: the next start would draw another.
        """
        partition = recovered.partition
        if embedded_id is None or partition.cursor_id is not None or recovered.offline is not None:
            return
        partition = replace(partition, embedded_id=embedded_id)
        try:
            write_partition_metadata(log_directory.filesystem, log_directory.directory, partition)
        except OSError as error:  # Perhaps a full disk. Its cursors have no id then.
            logger.warning("%s: its id was not stored: %s", log_directory.directory, error)
            return
        recovered.partition = partition

    def _limit_open_files(self, log: Log) -> None:
        """Record that a log opened a file, and close idle logs beyond the limit, oldest first."""
        self._open_writers[log] = None
        self._open_writers.move_to_end(log)
        self._close_idle_logs(newest=log)

    def _close_idle_logs(self, newest: Log | None = None) -> None:
        """Close idle logs down to the limit; try again later if too many are busy."""
        if self._close_idle_timer is not None:
            self._close_idle_timer.cancel()
            self._close_idle_timer = None
        for other in list(self._open_writers):
            if len(self._open_writers) <= self.config.writers_open_max:
                return
            if other is not newest and (other.close_idle() or not other.is_open_for_writing):
                del self._open_writers[other]
        if len(self._open_writers) > self.config.writers_open_max and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._close_idle_timer = loop.call_later(
                CLOSE_IDLE_RETRY_SECONDS, self._close_idle_logs
            )

    # Maintenance.

    def start_maintenance(self, timers: Timers | None = None) -> None:
        """Run maintenance of all logs every `upkeep_interval_ms` until the store is closed.

        They are scrubbed every `scrub_interval_ms`.

        Call it on the event loop of the store, which also provides the timers unless `timers` are
        given. A second call has no effect. Blocks while it creates the ballast file in a new
        directory: the disk may be full before the first run.
        """
        try:
            self._ballast.ensure()
        except OSError as error:
            logger.warning("%s: the ballast file cannot be created: %s", self.path, error)
        self.maintenance.start(timers or asyncio.get_running_loop())
        self.scrubber.start(timers or asyncio.get_running_loop())
        if self.relocator is not None:
            self.relocator.start(timers or asyncio.get_running_loop())

    def plan_evictions(self) -> list[tuple[LogName, Eviction]]:
        """Return what retention would delete in all logs now. Nothing is deleted."""
        return self.maintenance.plan_evictions()

    async def run_housekeeping(self) -> None:
        """Save the retention clock now and then, and restore the ballast file if it was used."""
        assert self._retention_clock is not None, "the store is open"
        if self._clock.monotonic() - self._clock_saved >= CLOCK_SAVE_SECONDS:
            self._clock_saved = self._clock.monotonic()
            await self._background.run(
                partial(save_retention_clock, self._filesystem, self.path, self._retention_clock)
            )
        try:
            await self._background.run(self._ballast.ensure)
        except OSError as error:
            logger.warning("%s: the ballast file cannot be restored: %s", self.path, error)
        await self._check_disk_space()

    async def _check_disk_space(self) -> None:
        """Clear the disk-full state of logs if the disk has space again."""
        full = self.health.full()
        if not full:
            return
        has_disk_space = await self._background.run(self._ballast.has_disk_space)
        for log in full if has_disk_space else ():
            log.clear_disk_full()

    # Closing.

    async def close(self) -> None:
        """Commit and seal every log, and release the directory.

        All logs are closed even if one fails; then the first failure is raised.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._close_idle_timer is not None:
            self._close_idle_timer.cancel()
        if self.relocator is not None:
            await self.relocator.stop()
        for threads in self._tier_threads:
            threads.close()
        await self.maintenance.stop()
        await self.scrubber.stop()
        await asyncio.gather(*self._deleting.values(), return_exceptions=True)
        await self._adopt_unsealed()
        results = await asyncio.gather(
            *(log.close() for log in self._logs.values()), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        await asyncio.gather(*self._trash_removals)
        if self._retention_clock is not None:
            await self._background.run(
                partial(save_retention_clock, self._filesystem, self.path, self._retention_clock)
            )
        self._cleaning_background.close()
        self._scrub_background.close()
        self._replay_background.close()
        self._background.close()
        self._release()
        if failures:
            raise failures[0]

    async def _adopt_unsealed(self) -> None:
        """Open logs that were recovered and never used, so that closing them seals them."""
        for name, recovered in self._recovered.items():
            if name not in self._logs and recovered.growing and not recovered.offline:
                self._logs[name] = await self._open_log(name, None)

    def _release(self) -> None:
        if self._syncer is not None:
            self._syncer.close()
            self._syncer = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().run_in_executor(None, self.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _is_ephemeral(log: RecoveredLog | LogConfig) -> bool:
    """Return whether a log is stored in memory only."""
    config = log.partition if isinstance(log, RecoveredLog) else log
    return config.durability is Durability.EPHEMERAL


def _sync_growing(log_directory: LogDirectory, recovered: RecoveredLog) -> None:
    """Sync what a weaker class wrote, before the log becomes one of class `fsync`."""
    files = [recovered.growing.open()] if recovered.growing else []
    try:
        sync_all(log_directory, files)
    except SegmentSyncFailed as failed:
        raise failed.cause from failed
    finally:
        if recovered.growing:
            recovered.growing.file = None


def _make_directory(filesystem: Filesystem, path: str) -> None:
    """Create a directory. Its name is durable when this returns."""
    filesystem.make_directory(path)
    filesystem.sync_directory(parent(path))
