"""Metrics of a store: exact values, under names that state what they count."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from millstream.config.schema import Discard, Durability, LogConfig
from millstream.errors import DiskFull, LogFull, LogOffline, WouldBlock
from millstream.observe.metrics.metric import LISTED_MAX
from millstream.observe.metrics.store import LOG_METRICS, LOGS, STORE_METRICS, StoreCollector
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.in_loop import in_loop

DECLARED = [*LOG_METRICS, *STORE_METRICS]
SMALL = LogConfig(segment_bytes_max=1024)
BATCH = build_batch([Record(b"x" * 50), Record(b"y" * 50)], now_ms=0)


class SlowFilesystem(FaultyFilesystem):
    """A disk without faults on which every directory sync takes two seconds."""

    def __init__(self, inner: Filesystem, clock: ManualClock) -> None:
        super().__init__(inner, Fault(call=1_000_000))
        self._clock = clock
        self.seconds = 0

    def sync_directory(self, path: str) -> None:
        self._clock.advance(2)
        self.seconds += 2
        super().sync_directory(path)


def open_store(
    filesystem: Filesystem, *, log_config: LogConfig = SMALL, clock: ManualClock | None = None
) -> Store:
    store = Store(
        "/data",
        log_config=log_config,
        filesystem=filesystem,
        clock=clock or ManualClock(),
        background=SeededBackground(0),
    )
    store.open()
    return store


class Scraped:
    """The metrics of a store, by name and labels."""

    def __init__(self, store: Store) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StoreCollector(store))

    def log(self, name: str, topic: str = "a", partition: int = 0, **labels: str) -> float | None:
        where = {"topic": topic, "partition": str(partition), **labels}
        return self._registry.get_sample_value(f"millstream_log_{name}", where)

    def store(self, name: str) -> float | None:
        return self._registry.get_sample_value(f"millstream_store_{name}")

    def text(self) -> str:
        return generate_latest(self._registry).decode()


@in_loop
async def test_what_is_scraped_is_what_is_declared():
    store = open_store(SimulatedFilesystem())
    await store.log("a")
    families = list(StoreCollector(store).collect())
    described = list(StoreCollector(store).describe())
    scraped = {sample.name for family in families for sample in family.samples}
    assert scraped == {name for metric in DECLARED for name, _, _ in metric.parts()}
    assert [family.documentation for family in families] == [metric.help for metric in DECLARED]
    assert [family.name for family in families] == [family.name for family in described]
    assert not any(family.samples for family in described)


@in_loop
async def test_the_text_of_a_scrape_holds_help_type_and_labels():
    store = open_store(SimulatedFilesystem())
    await (await store.log("orders.eu", 7)).append(BATCH)
    text = Scraped(store).text()
    assert "# HELP millstream_log_records_total Records in the batches written." in text
    assert "# TYPE millstream_log_records_total counter" in text
    assert "# TYPE millstream_log_end_offset gauge" in text
    assert 'millstream_log_records_total{partition="7",topic="orders.eu"} 2.0' in text
    assert LOGS.labels == ("topic", "partition")


# Values.


@in_loop
async def test_a_new_log_has_counted_nothing():
    store = open_store(SimulatedFilesystem())
    await store.log("a")
    scraped = Scraped(store)
    for metric in LOG_METRICS:
        for sample in metric.samples:
            labels = dict(zip(metric.labels, sample.labels, strict=True))
            name = metric.name.removeprefix("millstream_log_")
            assert scraped.log(name, **labels) == 0, metric.name


@in_loop
async def test_appends_are_counted_as_batches_records_bytes_and_writes():
    store = open_store(SimulatedFilesystem())
    log = await store.log("a")
    await asyncio.gather(*(log.append(BATCH) for _ in range(3)))
    await log.append(BATCH)
    scraped = Scraped(store)
    assert scraped.log("appends_total") == 4
    assert scraped.log("records_total") == 8
    assert scraped.log("appended_bytes_total") == 4 * len(BATCH)
    assert scraped.log("writes_total") == 2, "three at once, and one"
    assert scraped.log("syncs_total") == 2
    assert (scraped.log("start_offset"), scraped.log("end_offset")) == (0, 8)


@in_loop
async def test_rolls_seals_and_segments_are_counted():
    store = open_store(SimulatedFilesystem())
    log = await store.log("a")
    each = SMALL.segment_bytes_max // len(BATCH)
    for _ in range(2 * each + 1):
        await log.append(BATCH)
    scraped = Scraped(store)
    assert scraped.log("segments") == 3
    assert scraped.log("rolls_total") == 3
    await log.close()
    assert scraped.log("seals_total") == 3


@in_loop
async def test_the_time_that_syncs_take_is_summed():
    clock = ManualClock()
    disk = SlowFilesystem(SimulatedFilesystem(), clock)
    store = open_store(disk, clock=clock)
    log = await store.log("a")
    disk.seconds = 0
    await log.append(BATCH)
    await log.append(BATCH)
    assert disk.seconds > 0
    assert Scraped(store).log("sync_seconds_total") == disk.seconds


@in_loop
async def test_each_log_has_its_own_numbers():
    store = open_store(SimulatedFilesystem())
    for count, (topic, partition) in enumerate([("a", 0), ("a", 1), ("b", 0)], start=1):
        log = await store.log(topic, partition)
        for _ in range(count):
            await log.append(BATCH)
    scraped = Scraped(store)
    assert scraped.log("appends_total", "a", 0) == 1
    assert scraped.log("appends_total", "a", 1) == 2
    assert scraped.log("appends_total", "b", 0) == 3
    assert scraped.log("appends_total", "b", 1) is None
    assert scraped.store("open_logs") == 3


@in_loop
async def test_refusals_are_counted_by_their_reason():
    disk = SimulatedFilesystem()
    store = open_store(disk, log_config=LogConfig(unflushed_bytes_max=1))
    log = await store.log("a")
    await log.append(BATCH)
    first = log.try_append(BATCH)
    for _ in range(2):
        with pytest.raises(WouldBlock):
            log.try_append(BATCH)
    await first
    disk.bytes_max = disk.bytes_used
    large = build_batch([Record(b"x" * 1_000_000)], now_ms=0)
    with pytest.raises(DiskFull):
        await log.append(large)
    scraped = Scraped(store)
    assert scraped.log("refused_appends_total", reason="log") == 2
    assert scraped.log("refused_appends_total", reason="full") == 1
    assert scraped.log("appends_total") == 2


@in_loop
async def test_batches_that_a_full_log_refuses_are_counted():
    limited = LogConfig(retention_records=3, discard=Discard.REJECT)
    store = open_store(SimulatedFilesystem(), log_config=limited)
    log = await store.log("a")
    await log.append(BATCH)
    for _ in range(2):
        with pytest.raises(LogFull):
            await log.append(BATCH)
    scraped = Scraped(store)
    assert scraped.log("refused_appends_total", reason="limit") == 2
    assert scraped.log("appends_total") == 1


@in_loop
async def test_every_batch_that_a_full_disk_refuses_is_counted():
    disk = SimulatedFilesystem()
    store = open_store(disk)
    log = await store.log("a")
    await log.append(BATCH)
    disk.bytes_max = disk.bytes_used
    large = build_batch([Record(b"x" * 1_000_000)], now_ms=0)
    refused = await asyncio.gather(*(log.append(large) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in refused] == [DiskFull] * 3
    assert Scraped(store).log("refused_appends_total", reason="full") == 3


@in_loop
async def test_a_log_that_is_not_synced_counts_writes_and_no_syncs():
    store = open_store(SimulatedFilesystem(), log_config=LogConfig(durability=Durability.DISK))
    log = await store.log("a")
    await log.append(BATCH)
    await log.append(BATCH)
    scraped = Scraped(store)
    assert (scraped.log("writes_total"), scraped.log("syncs_total")) == (2, 0)


@in_loop
async def test_bytes_are_unflushed_from_their_admission_to_their_commit():
    store = open_store(SimulatedFilesystem())
    log = await store.log("a")
    scraped = Scraped(store)
    futures = [log.try_append(BATCH), log.try_append(BATCH)]
    assert scraped.log("unflushed_bytes") == 2 * len(BATCH)
    await asyncio.gather(*futures)
    assert scraped.log("unflushed_bytes") == 0


@in_loop
async def test_an_offline_log_raises_its_flag_until_it_is_reopened():
    fault = Fault(call=1, only={"sync"}, path=".log", error=errno.EIO)
    store = open_store(FaultyFilesystem(SimulatedFilesystem(), fault))
    log = await store.log("a")
    await store.log("b")
    with pytest.raises(LogOffline):
        await log.append(BATCH)
    scraped = Scraped(store)
    assert (scraped.log("offline_flag", "a"), scraped.log("offline_flag", "b")) == (1, 0)
    await store.reopen("a")
    assert scraped.log("offline_flag", "a") == 0


@in_loop
async def test_bytes_that_recovery_scanned_are_told():
    disk = SimulatedFilesystem()
    store = open_store(disk)
    await (await store.log("a")).append(BATCH)
    await (await store.log("a")).append(BATCH)
    again = open_store(disk.crash())
    await again.log("a")
    assert Scraped(again).log("recovered_bytes") == 2 * len(BATCH)
    assert Scraped(again).log("appends_total") == 0


@in_loop
async def test_sizes_of_batches_are_counted():
    store = open_store(SimulatedFilesystem())
    log = await store.log("a")
    for count in (1, 2, 5, 2):
        await log.append_records([Record(b"x" * 100)] * count)
    text = Scraped(store).text()
    for bound, batches in (("1.0", 1), ("4.0", 3), ("16.0", 4), ("+Inf", 4)):
        name = "millstream_store_batch_size_records_bucket"
        assert f'{name}{{le="{bound}"}} {batches}.0\n' in text
    for bound, batches in (("64.0", 0), ("256.0", 1), ("1024.0", 4), ("+Inf", 4)):
        name = "millstream_store_batch_size_bytes_bucket"
        assert f'{name}{{le="{bound}"}} {batches}.0\n' in text


@in_loop
async def test_what_retention_took_is_counted():
    limited = replace(SMALL, retention_records=2)
    store = open_store(SimulatedFilesystem(), log_config=limited)
    log = await store.log("a")
    each = SMALL.segment_bytes_max // len(BATCH)
    for _ in range(3 * each):
        await log.append(BATCH)
    await log.roll()
    await store.maintenance.run_once()
    scraped = Scraped(store)
    assert scraped.log("evicted_segments_total") == 2
    evicted = 3 * 2 * each - 2  # As readers see it; files go by whole segments.
    assert scraped.log("evicted_records_total") == evicted
    assert scraped.log("evicted_bytes_total") == 2 * each * len(BATCH)
    assert scraped.log("eviction_floor_offset") == scraped.log("start_offset") == evicted
    assert scraped.log("held_records") == 2 * each
    assert scraped.log("held_bytes") == each * len(BATCH)
    assert scraped.store("upkeep_runs_total") == 1
    assert scraped.store("upkeep_failures_total") == 0


KEYED = build_batch([Record(b"x" * 50, key=b"k"), Record(b"y" * 50, key=b"l")], now_ms=0)


@in_loop
async def test_what_was_deleted_by_key_is_counted_until_it_is_reclaimed():
    store = open_store(SimulatedFilesystem())
    log = await store.log("a")
    for _ in range(3):
        await log.append(KEYED)
    assert await log.delete_keys(key=b"k") == 3
    assert await log.delete_keys(key=b"nothing") == 0
    scraped = Scraped(store)
    assert scraped.log("deletions_total") == 1
    assert scraped.log("deleted_records_total") == 3
    assert scraped.log("unreclaimed_records") == scraped.store("unreclaimed_records") == 3
    assert 3 * 50 < scraped.log("reclaimable_bytes") < 3 * len(KEYED)
    await store.maintenance.run_once(is_forced=True)
    assert scraped.log("cleanings_total") >= 1
    assert scraped.log("cleaning_failures_total") == 0
    assert scraped.log("cleaning_removed_records_total") == 3
    assert scraped.log("cleaning_read_bytes_total") >= 3 * len(KEYED)
    assert 0 < scraped.log("cleaning_written_bytes_total") < 3 * len(KEYED)
    assert scraped.log("unreclaimed_records") == scraped.store("unreclaimed_records") == 0
    assert scraped.log("reclaimable_bytes") == 0
    assert scraped.log("deleted_records_total") == 3, "a counter only goes up"
    assert scraped.log("held_records") == 3


@in_loop
async def test_a_log_that_cannot_be_looked_after_is_counted():
    limited = replace(SMALL, retention_records=1)
    fault = Fault(call=2, only={"rename"}, path="partition.json", error=errno.EIO)
    store = open_store(FaultyFilesystem(SimulatedFilesystem(), fault), log_config=limited)
    log = await store.log("a")
    for _ in range(20):
        await log.append(BATCH)
    await log.roll()
    await store.maintenance.run_once()
    assert fault.hits, "the start of the log could not be written down"
    scraped = Scraped(store)
    assert scraped.store("upkeep_failures_total") == 1
    assert scraped.log("evicted_segments_total") == 0


@in_loop
async def test_maps_are_counted_as_they_open():
    disk = SimulatedFilesystem()
    store = open_store(disk)
    for topic in "abc":
        await (await store.log(topic)).append(BATCH)
    await store.close()
    again = open_store(disk)
    scraped = Scraped(again)
    assert (scraped.store("open_logs"), scraped.store("open_maps")) == (0, 0)
    for count, topic in enumerate("abc", start=1):
        list((await again.log(topic)).records())
        assert (scraped.store("open_logs"), scraped.store("open_maps")) == (count, count)


@in_loop
async def test_so_many_logs_have_metrics_of_their_own_and_the_others_are_counted():
    store = open_store(SimulatedFilesystem(), log_config=LogConfig(durability=Durability.EPHEMERAL))
    for partition in range(LISTED_MAX + 3):
        await store.log("a", partition)
    scraped = Scraped(store)
    assert scraped.log("end_offset", "a", LISTED_MAX - 1) == 0
    assert scraped.log("end_offset", "a", LISTED_MAX) is None
    assert scraped.store("open_logs") == LISTED_MAX + 3
    assert scraped.store("unlisted_logs") == 3


@in_loop
async def test_offline_logs_are_counted_though_they_have_no_metrics_of_their_own(monkeypatch):
    fault = Fault(call=1, only={"sync"}, path=".log", error=errno.EIO)
    store = open_store(FaultyFilesystem(SimulatedFilesystem(), fault))
    await store.log("sound")
    with pytest.raises(LogOffline):
        await (await store.log("broken")).append(BATCH)
    monkeypatch.setattr("millstream.observe.metrics.store.LISTED_MAX", 1)
    scraped = Scraped(store)
    assert scraped.log("offline_flag", "broken") is None
    assert scraped.store("offline_logs") == 1


class UnreadableStore(Store):
    """A store that fails the test if it is read."""

    @property
    def open_logs(self) -> list[Log]:
        raise AssertionError("read")


def test_registering_names_the_metrics_and_reads_none():
    registry = CollectorRegistry(auto_describe=True)
    store = UnreadableStore("/data", background=SeededBackground(0))
    registry.register(StoreCollector(store))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(StoreCollector(store))
