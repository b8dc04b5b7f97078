"""Metrics of a store and its logs.

    REGISTRY.register(StoreCollector(store))

A log counts from when it was opened, so a log that is reopened starts at zero, which Prometheus
treats as a restart. A scrape may come from any thread; the numbers that it reads may be a few
appends apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millstream.errors import BackpressureKind
from millstream.histogram import LATENCY_BUCKETS
from millstream.observe.metrics.metric import (
    LISTED_MAX,
    LabelledSources,
    MetricDeclaration,
    MetricSection,
    counter,
    counter_by,
    gauge,
    gauge_by,
    histogram,
)
from millstream.storage.log import Log
from millstream.storage.segment.counters import BATCH_BYTES_BUCKETS, BATCH_RECORDS_BUCKETS
from millstream.storage.store import Store

_WAIT_KINDS: tuple[BackpressureKind, ...] = ("log", "store", "sealing")
_REFUSAL_KINDS: tuple[BackpressureKind, ...] = (*_WAIT_KINDS, "full", "limit")


LOG_METRICS: Sequence[MetricDeclaration[Log]] = (
    counter(
        "millstream_log_appends_total",
        "Batches written.",
        lambda log: log.counters.appends,
    ),
    counter(
        "millstream_log_records_total",
        "Records in the batches written.",
        lambda log: log.counters.records,
    ),
    counter(
        "millstream_log_appended_bytes_total",
        "Bytes of the batches written, headers included.",
        lambda log: log.counters.bytes,
    ),
    counter(
        "millstream_log_writes_total",
        "Writes to the log file; one takes all batches that arrived in one turn of the loop.",
        lambda log: log.counters.writes,
    ),
    counter(
        "millstream_log_syncs_total",
        "Syncs of the log file; one serves all batches that were written before it began.",
        lambda log: log.counters.syncs,
    ),
    counter(
        "millstream_log_sync_seconds_total",
        "Time that commits spent waiting for the disk.",
        lambda log: log.counters.sync_seconds,
    ),
    counter(
        "millstream_log_rolls_total",
        "Segments started.",
        lambda log: log.counters.rolls,
    ),
    counter(
        "millstream_log_seals_total",
        "Segments sealed.",
        lambda log: log.counters.seals,
    ),
    counter_by(
        "reason",
        _REFUSAL_KINDS,
        "millstream_log_refused_appends_total",
        "Batches rejected, by the kind of backpressure: too much of this log waited for the"
        " disk (log), or of all logs (store), or two segments waited to be sealed (sealing), the"
        " disk was full (full), or the log has reached its limit (limit).",
        lambda log, kind: log.counters.refusals[kind],
    ),
    counter_by(
        "reason",
        _WAIT_KINDS,
        "millstream_log_waited_appends_total",
        "Batches that waited for admission, by the kind of backpressure: too much of this log"
        " waited for the disk (log), or of all logs (store), or two segments waited to be sealed"
        " (sealing).",
        lambda log, kind: log.counters.waits[kind],
    ),
    counter(
        "millstream_log_evicted_segments_total",
        "Segments deleted by retention.",
        lambda log: log.counters.evicted_segments,
    ),
    counter(
        "millstream_log_evicted_bytes_total",
        "Bytes of the segments deleted by retention.",
        lambda log: log.counters.evicted_bytes,
    ),
    counter(
        "millstream_log_evicted_records_total",
        "Records deleted by retention.",
        lambda log: log.counters.evicted_records,
    ),
    counter(
        "millstream_log_deletions_total",
        "Deletions by key or by key prefix.",
        lambda log: log.counters.deletions,
    ),
    counter(
        "millstream_log_deleted_records_total",
        "Records deleted by key or by key prefix.",
        lambda log: log.counters.deleted_records,
    ),
    counter(
        "millstream_log_decisions_total",
        "Deletions by key and cleanings that this node decided as the leader of the log, in a"
        " cluster.",
        lambda log: log.counters.decisions,
    ),
    counter(
        "millstream_log_applied_decisions_total",
        "Decisions of the leader that this node has applied: cleanings, and deletions that matched"
        " a record.",
        lambda log: log.counters.decisions_applied,
    ),
    counter(
        "millstream_log_failed_decisions_total",
        "Attempts to apply a decision of the leader that failed. It is tried again; until then"
        " deleted records may be visible on this node.",
        lambda log: log.counters.decision_failures,
    ),
    counter(
        "millstream_log_cleanings_total",
        "Cleaning runs that rewrote segments: compaction, merging, or reclaiming deleted records.",
        lambda log: log.counters.cleanings,
    ),
    counter(
        "millstream_log_cleaning_failures_total",
        "Cleaning runs that failed; segments that they had not replaced are unchanged.",
        lambda log: log.counters.cleaning_failures,
    ),
    counter(
        "millstream_log_cleaning_seconds_total",
        "Total time of cleaning runs, including the pauses of their rate limit.",
        lambda log: log.counters.cleaning_seconds,
    ),
    counter(
        "millstream_log_cleaning_read_bytes_total",
        "Bytes read by cleaning runs.",
        lambda log: log.counters.cleaned_bytes_read,
    ),
    counter(
        "millstream_log_cleaning_written_bytes_total",
        "Bytes written by cleaning runs.",
        lambda log: log.counters.cleaned_bytes_written,
    ),
    counter(
        "millstream_log_cleaning_removed_records_total",
        "Records removed by cleaning runs.",
        lambda log: log.counters.removed_records,
    ),
    gauge(
        "millstream_log_unflushed_bytes",
        "Bytes admitted that wait for the disk.",
        lambda log: log.unflushed_bytes,
    ),
    gauge(
        "millstream_log_start_offset",
        "First offset that can be read.",
        lambda log: log.start_offset,
    ),
    gauge(
        "millstream_log_eviction_floor_offset",
        "Offset before which retention deleted everything.",
        lambda log: log.eviction_floor,
    ),
    gauge(
        "millstream_log_end_offset",
        "Offset after the last committed record.",
        lambda log: log.end_offset,
    ),
    gauge(
        "millstream_log_segments",
        "Segments of the log.",
        lambda log: len(log.segments),
    ),
    gauge(
        "millstream_log_held_bytes",
        "Bytes of the segments.",
        lambda log: log.size_bytes,
    ),
    gauge(
        "millstream_log_cold_bytes",
        "Bytes of the segments that are in the cold store only.",
        lambda log: log.cold_bytes,
    ),
    gauge(
        "millstream_log_held_records",
        "Records in the segments, including deleted ones that are not reclaimed yet.",
        lambda log: log.record_count,
    ),
    gauge(
        "millstream_log_unreclaimed_records",
        "Records deleted by key that are not reclaimed yet.",
        lambda log: log.deleted_records,
    ),
    gauge(
        "millstream_log_reclaimable_bytes",
        "Bytes of these records.",
        lambda log: log.reclaimable_bytes,
    ),
    gauge(
        "millstream_log_offline_flag",
        "1 if the log accepts no appends until it is reopened, otherwise 0.",
        lambda log: log.offline is not None,
    ),
    gauge(
        "millstream_log_recovered_bytes",
        "Bytes scanned when the log was opened; 0 after a clean shutdown.",
        lambda log: log.counters.recovered_bytes,
    ),
)

STORE_METRICS: Sequence[MetricDeclaration[Store]] = (
    gauge(
        "millstream_store_open_logs",
        "Open logs.",
        lambda store: len(store.open_logs),
    ),
    gauge(
        "millstream_store_unlisted_logs",
        f"Open logs beyond the first {LISTED_MAX:,}, which have no metrics of their own.",
        lambda store: max(0, len(store.open_logs) - LISTED_MAX),
    ),
    gauge(
        "millstream_store_offline_logs",
        "Open logs that accept no appends until they are reopened, listed or not.",
        lambda store: sum(log.offline is not None for log in store.open_logs),
    ),
    gauge(
        "millstream_store_unreclaimed_records",
        "Records of open logs, listed or not, deleted by key that are not reclaimed yet.",
        lambda store: sum(log.deleted_records for log in store.open_logs),
    ),
    histogram(
        "millstream_store_commit_duration_seconds",
        "Time of a commit of class `fsync`, from the write of the first batch in it.",
        LATENCY_BUCKETS,
        lambda store: store.totals.commits,
    ),
    histogram(
        "millstream_store_sync_duration_seconds",
        "Time of the syncs of these commits.",
        LATENCY_BUCKETS,
        lambda store: store.totals.syncs,
    ),
    histogram(
        "millstream_store_batch_size_bytes",
        "Bytes of written batches, headers included.",
        BATCH_BYTES_BUCKETS,
        lambda store: store.totals.batch_bytes,
    ),
    histogram(
        "millstream_store_batch_size_records",
        "Records of written batches. If most have one record, clients do not batch.",
        BATCH_RECORDS_BUCKETS,
        lambda store: store.totals.batch_records,
    ),
    gauge(
        "millstream_store_recovered_bytes",
        "Bytes scanned when the data was opened; 0 after a clean shutdown.",
        lambda store: store.opening.scanned_bytes,
    ),
    gauge(
        "millstream_store_repaired_logs",
        "Logs repaired when the data was opened.",
        lambda store: store.opening.repaired_logs,
    ),
    gauge(
        "millstream_store_damaged_logs",
        "Logs in which damage was found, when the data was opened, by a reader or by a scrub.",
        lambda store: len(store.damage()),
    ),
    counter(
        "millstream_store_upkeep_runs_total",
        "Maintenance runs over all logs, which delete what is too old or too much.",
        lambda store: store.maintenance.counters.runs,
    ),
    counter(
        "millstream_store_upkeep_failures_total",
        "Failures of maintenance on one log; the run continues with the others.",
        lambda store: store.maintenance.counters.failures,
    ),
    counter(
        "millstream_store_scrubbed_bytes_total",
        "Bytes of finished segments that scrubs have read and checked.",
        lambda store: store.scrubber.counters.bytes,
    ),
    counter(
        "millstream_store_scrub_damaged_segments_total",
        "Finished segments that a scrub found damaged.",
        lambda store: store.scrubber.counters.damaged_segments,
    ),
    counter(
        "millstream_store_scrub_failures_total",
        "Logs that a scrub could not check; it continues with the others.",
        lambda store: store.scrubber.counters.failures,
    ),
    gauge(
        "millstream_store_scrub_pass_age_seconds",
        "Time since the last complete scrub of all data ended, or since the first one began.",
        lambda store: store.scrubber.pass_age_seconds,
    ),
    gauge_by(
        "backend",
        ("kernel", "threads"),
        "millstream_store_sync_backend_info",
        "1 for what waits for the disk when a log is committed: the kernel, or threads.",
        lambda store, backend: store.sync_backend == backend,
    ),
    counter(
        "millstream_store_sync_fallbacks_total",
        "Commits for which the kernel had no capacity, or which it refused: a thread synced them.",
        lambda store: store.sync_fallbacks,
    ),
    counter(
        "millstream_store_cold_reads_total",
        "Reads of old data that was not in memory and was prefetched first.",
        lambda store: store.prefetcher.reads,
    ),
    counter(
        "millstream_store_cold_read_bytes_total",
        "Bytes prefetched.",
        lambda store: store.prefetcher.bytes,
    ),
    counter(
        "millstream_store_tier_segments_moved_total",
        "Segments moved to the cold store.",
        lambda store: 0 if store.relocator is None else store.relocator.counters.relocations,
    ),
    counter(
        "millstream_store_tier_moved_bytes_total",
        "Bytes of the segments moved to the cold store.",
        lambda store: 0 if store.relocator is None else store.relocator.counters.bytes,
    ),
    counter(
        "millstream_store_tier_segments_deleted_total",
        "Segments deleted from the cold store.",
        lambda store: 0 if store.relocator is None else store.relocator.counters.deletions,
    ),
    counter(
        "millstream_store_tier_failures_total",
        "Attempts to move a segment to the cold store, or to delete one there, that failed.",
        lambda store: 0 if store.relocator is None else store.relocator.counters.failures,
    ),
    counter(
        "millstream_store_tier_reads_total",
        "Pieces read from the cold store.",
        lambda store: 0 if store.cold_reader is None else store.cold_reader.counters.reads,
    ),
    counter(
        "millstream_store_tier_read_bytes_total",
        "Bytes read from the cold store.",
        lambda store: 0 if store.cold_reader is None else store.cold_reader.counters.bytes,
    ),
    counter(
        "millstream_store_tier_read_seconds_total",
        "Time that reads of the cold store took, of all threads together.",
        lambda store: 0 if store.cold_reader is None else store.cold_reader.counters.seconds,
    ),
    counter(
        "millstream_store_tier_read_failures_total",
        "Reads of the cold store that failed, or returned something else than was stored.",
        lambda store: 0 if store.cold_reader is None else store.cold_reader.counters.failures,
    ),
    gauge(
        "millstream_store_tier_cached_bytes",
        "Bytes of pieces of the cold store in memory.",
        lambda store: 0 if store.cold_reader is None else store.cold_reader.cached_bytes,
    ),
    gauge_by(
        "priority",
        ("idle", "normal"),
        "millstream_store_replay_priority_info",
        "1 for the disk priority at which old data is prefetched: idle if that is configured"
        " and the kernel supports it.",
        lambda store, priority: store.replay_priority.value == priority,
    ),
    gauge(
        "millstream_store_open_maps",
        "Sealed segments mapped for reading.",
        lambda store: store.maps_open,
    ),
)

LOGS = MetricSection(metrics=LOG_METRICS, labels=("topic", "partition"))
STORE = MetricSection(metrics=STORE_METRICS)


class StoreCollector(Collector):
    """Reads the counters of a store and of its open logs whenever a registry collects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterable[Metric]:
        """Yield all metrics without reading any number."""
        yield from LOGS.empty_families()
        yield from STORE.empty_families()

    def collect(self) -> Iterable[Metric]:
        """Read every number once."""
        yield from LOGS.families(listed_logs(self._store))
        yield from STORE.families([((), self._store)])


def listed_logs(store: Store) -> LabelledSources[Log]:
    """Yield the open logs that have metrics of their own: those that were opened first."""
    for log in islice(store.open_logs, LISTED_MAX):
        topic, _, partition = log.name.rpartition("/")
        yield (topic, partition), log
