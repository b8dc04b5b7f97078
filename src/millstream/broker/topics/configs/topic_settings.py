"""Every topic config of Kafka 4, and ours: the one place that defines their meaning here.

If a meaning says that a config is without effect, its value is validated, stored and shown, and
nothing else; the meaning says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from millstream.broker.topics.configs.topic_setting import (
    INT_MAX,
    LONG_MAX,
    SettingEffect,
    SettingType,
    TopicSetting,
)
from millstream.broker.topics.configs.value_format import (
    VALUE_CHECK,
    VALUE_FORMAT,
    VALUE_SCHEMA,
    VALUE_SCHEMA_ALLOWED,
    VALUE_SCHEMA_SIZE_MAX,
    TopicValueFormat,
    ValueCheckLevel,
)
from millstream.config.schema import DAY_MS, GIB, KIB, MIB, Discard, Durability, LogConfig

APPLIED, ACCEPTED, FIXED = SettingEffect.APPLIED, SettingEffect.ACCEPTED, SettingEffect.FIXED

DURABILITY = "millstream.durability"
DISCARD = "millstream.discard"
FLUSH_MESSAGES = "flush.messages"
FLUSH_MS = "flush.ms"
RETENTION_MS = "retention.ms"
MIN_INSYNC_REPLICAS = "min.insync.replicas"
RETENTION_RECORDS = "millstream.retention.records"
LAKE_TABLE = "millstream.lake.table"
LAKE_DELETIONS = "millstream.lake.deletions"
LAKE_REQUIRED = "millstream.lake.required"
LAKE_POSITIONS = "millstream.lake.positions"

_LOG = LogConfig()
_WITHOUT_REPLICAS = "Without effect: there is one replica of each partition, so nothing is copied."
_CODEC_LEVEL = "Without effect: batches are recompressed at the default level of the codec."
_COPIED_ONCE = (
    "Without effect: a segment is copied when it is about to leave the local disk, and not before."
)
REMOTE_STORAGE_ENABLE = "remote.storage.enable"
LOCAL_RETENTION_MS = "local.retention.ms"
LOCAL_RETENTION_BYTES = "local.retention.bytes"
_REPLICAS = re.compile(r"\*|[0-9]+:[0-9]+")
_REPLICAS_HINT = "* or a list of partition:node"


_SETTINGS = (
    # Retention and compaction.
    TopicSetting(
        "cleanup.policy",
        SettingType.LIST,
        "delete",
        APPLIED,
        values=("compact", "delete"),
        server_name="log.cleanup.policy",
        meaning="How old records are removed: `delete` by age and size, `compact` by key, both, or"
        " (empty) not at all. With `compact`, records without a key are rejected.",
    ),
    TopicSetting(
        RETENTION_MS,
        SettingType.LONG,
        str(7 * DAY_MS),
        APPLIED,
        least=-1,
        most=LONG_MAX,
        server_name="log.retention.ms",
        log_field="retention_ms",
        meaning="How long records are kept at least, if `cleanup.policy` has `delete`; -1 is"
        " forever. The age of a record counts from when it was written here, by the"
        " retention clock, not from its timestamp. Readers see a record for at most a hundredth of"
        " this time and two maintenance intervals longer. Files are deleted by whole segments: a"
        " segment is closed at this age, unless `segment.ms` closes it before.",
    ),
    TopicSetting(
        "retention.bytes",
        SettingType.LONG,
        "-1",
        APPLIED,
        least=-1,
        most=LONG_MAX,
        server_name="log.retention.bytes",
        log_field="retention_bytes",
        meaning="Size of a partition, if `cleanup.policy` has `delete`; -1 is no limit. Readers see"
        " the newest batches with at most this many bytes, and always the last batch; Kafka keeps"
        " up to a segment more. Files are deleted later, by whole segments. A topic with"
        f" `{DISCARD}=reject` rejects batches instead.",
    ),
    TopicSetting(
        RETENTION_RECORDS,
        SettingType.LONG,
        "-1",
        APPLIED,
        least=-1,
        most=LONG_MAX,
        server_name=RETENTION_RECORDS,
        log_field="retention_records",
        meaning="The same as `retention.bytes`, counted in records: readers see exactly the last so"
        " many. Not a Kafka config.",
    ),
    TopicSetting(
        DISCARD,
        SettingType.STRING,
        _LOG.discard.value,
        APPLIED,
        values=tuple(kind.value for kind in Discard),
        server_name=DISCARD,
        log_field="discard",
        meaning="What happens when a partition reaches `retention.bytes` or"
        f" `{RETENTION_RECORDS}`: `old` deletes its oldest segments, `reject` rejects batches that"
        " do not fit, with POLICY_VIOLATION, until records are deleted or expire. Not a Kafka"
        " config.",
    ),
    TopicSetting(
        "delete.retention.ms",
        SettingType.LONG,
        str(DAY_MS),
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.cleaner.delete.retention.ms",
        log_field="tombstone_ms",
        meaning="How long a tombstone (a record with a key and no value) stays readable in a"
        " compacted topic. It counts from when compaction first read the record, by the retention"
        " clock.",
    ),
    TopicSetting(
        "min.compaction.lag.ms",
        SettingType.LONG,
        "0",
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.cleaner.min.compaction.lag.ms",
        log_field="compaction_lag_ms_min",
        meaning="Minimum time before a record can be compacted, counted from when its segment was"
        " closed.",
    ),
    TopicSetting(
        "max.compaction.lag.ms",
        SettingType.LONG,
        str(LONG_MAX),
        APPLIED,
        least=1,
        most=LONG_MAX,
        server_name="log.cleaner.max.compaction.lag.ms",
        log_field="compaction_lag_ms_max",
        meaning="Maximum time before a record can be compacted: a segment of a compacted topic is"
        " closed at this age, unless `segment.ms` closes it before, and a segment that has waited"
        " this long is compacted whatever `min.cleanable.dirty.ratio` is.",
    ),
    TopicSetting(
        "min.cleanable.dirty.ratio",
        SettingType.DOUBLE,
        "0.5",
        APPLIED,
        least=0,
        most=1,
        server_name="log.cleaner.min.cleanable.ratio",
        log_field="dirty_ratio_min",
        meaning="Share of a log that must be uncompacted before it is compacted.",
    ),
    TopicSetting(
        "file.delete.delay.ms",
        SettingType.LONG,
        "60000",
        ACCEPTED,
        least=0,
        most=LONG_MAX,
        server_name="log.segment.delete.delay.ms",
        meaning="Without effect: a file is removed once no reader has it open, so no delay is"
        " needed.",
    ),
    # Records.
    TopicSetting(
        "max.message.bytes",
        SettingType.INT,
        "1048588",
        APPLIED,
        least=61,
        most=64 * MIB,
        server_name="message.max.bytes",
        meaning="The largest batch that is accepted, as it was sent. Kafka allows up to"
        " 2147483647; here the limit is 64 MiB.",
    ),
    TopicSetting(
        "message.timestamp.type",
        SettingType.STRING,
        "CreateTime",
        APPLIED,
        values=("CreateTime", "LogAppendTime"),
        server_name="log.message.timestamp.type",
        meaning="Whether records have the timestamp of the producer, or the time at which they"
        " were appended.",
    ),
    TopicSetting(
        "message.timestamp.before.max.ms",
        SettingType.LONG,
        str(LONG_MAX),
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.message.timestamp.before.max.ms",
        meaning="How far in the past the timestamp of a record may be; older records are rejected."
        " Ignored if `message.timestamp.type` is `LogAppendTime`.",
    ),
    TopicSetting(
        "message.timestamp.after.max.ms",
        SettingType.LONG,
        "3600000",
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.message.timestamp.after.max.ms",
        meaning="How far in the future the timestamp of a record may be; later records are"
        " rejected. Ignored if `message.timestamp.type` is `LogAppendTime`.",
    ),
    TopicSetting(
        "compression.type",
        SettingType.STRING,
        "producer",
        APPLIED,
        values=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        server_name="compression.type",
        meaning="The codec of all stored batches; `producer` stores each batch as it was sent. A"
        " batch with another codec is recompressed, which is expensive: better set the producer's"
        " own `compression.type`.",
    ),
    TopicSetting(
        "compression.gzip.level",
        SettingType.INT,
        "-1",
        ACCEPTED,
        least=1,
        most=9,
        also=frozenset({-1}),
        server_name="compression.gzip.level",
        meaning=_CODEC_LEVEL,
    ),
    TopicSetting(
        "compression.lz4.level",
        SettingType.INT,
        "9",
        ACCEPTED,
        least=1,
        most=17,
        server_name="compression.lz4.level",
        meaning=_CODEC_LEVEL,
    ),
    TopicSetting(
        "compression.zstd.level",
        SettingType.INT,
        "3",
        ACCEPTED,
        least=-131_072,
        most=22,
        server_name="compression.zstd.level",
        meaning=_CODEC_LEVEL,
    ),
    TopicSetting(
        VALUE_FORMAT,
        SettingType.STRING,
        TopicValueFormat.RAW.value,
        APPLIED,
        values=tuple(kind.value for kind in TopicValueFormat),
        meaning="Format of record values: `raw` bytes, `msgpack`, or a format that"
        f" `{VALUE_SCHEMA}` describes. The Spark source reads the latter as typed columns; the"
        " console decodes values by it. A node stores and shows it, and checks records against it"
        f" only with `{VALUE_CHECK}`. Not a Kafka config.",
    ),
    TopicSetting(
        VALUE_SCHEMA,
        SettingType.STRING,
        "",
        APPLIED,
        item_hint=VALUE_SCHEMA_ALLOWED,
        meaning=f"Schema of the values, up to {VALUE_SCHEMA_SIZE_MAX:,} bytes. It has to be set"
        f" together with `{VALUE_FORMAT}`, in one request. Not a Kafka config.",
    ),
    TopicSetting(
        VALUE_CHECK,
        SettingType.STRING,
        ValueCheckLevel.NONE.value,
        APPLIED,
        values=tuple(level.value for level in ValueCheckLevel),
        meaning="With `schema`, a batch is refused if one of its values cannot be read as the"
        f" topic declares, in `{VALUE_FORMAT}` `json` or `avro`. Records without a value are"
        " allowed. Records that are in the topic already are not checked. Not a Kafka config.",
    ),
    # Lake.
    TopicSetting(
        LAKE_TABLE,
        SettingType.STRING,
        "",
        APPLIED,
        item=re.compile(r"[^\x00-\x1f\x7f]{0,4096}"),
        item_hint="an address of at most 4,096 characters, or empty",
        meaning="Address of the Delta table that has the history of the topic: a directory, or an"
        " object store such as `s3://bucket/prefix`. Readers with `history=auto` find it here, and"
        " `millstream lake` commands without `--table`. A node only stores and shows it. Not a"
        " Kafka config.",
    ),
    TopicSetting(
        LAKE_DELETIONS,
        SettingType.STRING,
        "",
        APPLIED,
        item=re.compile(r"[A-Za-z0-9._-]{0,249}"),
        item_hint="the name of a topic, or empty",
        meaning="Topic in which the node records each deletion by key before it deletes, so that"
        " the table of the topic follows. `millstream lake enable` creates and sets it. Empty: none"
        " are recorded. Not a Kafka config.",
    ),
    TopicSetting(
        LAKE_REQUIRED,
        SettingType.BOOLEAN,
        "false",
        APPLIED,
        meaning="Whether retention waits for the lake: no record leaves the log, for readers or"
        f" from the disk, before `{LAKE_POSITIONS}` has passed it. Not with `compact`. Records are"
        " still deleted on request. Not a Kafka config.",
    ),
    TopicSetting(
        LAKE_POSITIONS,
        SettingType.LIST,
        "",
        APPLIED,
        item=re.compile(r"[0-9]{1,9}:[0-9]{1,18}"),
        item_hint="a list of partition:offset",
        meaning="The next offset that the table of the topic needs of each partition; 0 for others."
        f" With `{LAKE_REQUIRED}`, the writer of the table sets it after each commit. Not a Kafka"
        " config.",
    ),
    # Durability.
    TopicSetting(
        DURABILITY,
        SettingType.STRING,
        _LOG.durability.value,
        APPLIED,
        values=tuple(kind.value for kind in Durability),
        server_name=DURABILITY,
        log_field="durability",
        meaning="What an acknowledged record survives: with `fsync` a power failure, with `disk` a"
        " crash of the process and, after `flush.ms`, a power failure, with `memory` neither,"
        " though it is written soon after and synced like `disk`; with `ephemeral` it is kept in"
        " memory only. A topic cannot become or cease to be ephemeral."
        " Not a Kafka config.",
    ),
    TopicSetting(
        FLUSH_MESSAGES,
        SettingType.LONG,
        str(LONG_MAX),
        APPLIED,
        least=1,
        most=LONG_MAX,
        server_name="log.flush.interval.messages",
        log_field="flush_records",
        meaning="A topic of class `disk` or `memory` is synced in the background as soon as this"
        " many records of a partition are not synced, without waiting for `flush.ms`. 1 makes it as"
        " safe as one of class `fsync`, which syncs before it acknowledges. An `ephemeral` topic"
        " must not set it.",
    ),
    TopicSetting(
        FLUSH_MS,
        SettingType.LONG,
        str(_LOG.flush_ms),
        APPLIED,
        least=0,
        most=LONG_MAX,
        kafka_default=str(LONG_MAX),
        server_name="log.flush.interval.ms",
        log_field="flush_ms",
        meaning="A topic of class `disk` or `memory` is synced in the background this long after a"
        " write at the latest: a power cut costs no more than what was written within this time."
        " Kafka leaves that to the operating system. A topic of class `fsync` is synced sooner,"
        " before each acknowledgement. An `ephemeral` topic must not set it.",
    ),
    TopicSetting(
        MIN_INSYNC_REPLICAS,
        SettingType.INT,
        "1",
        APPLIED,
        least=1,
        most=1_000,
        server_name="min.insync.replicas",
        meaning="How many replicas must have a record before `acks=all` is answered. In a cluster"
        " the default is a majority of the replicas, and a greater number than there are replicas"
        " counts as all of them. On a lone node a partition has one replica, so more than 1 is"
        " rejected: nothing could be written with acks=all.",
    ),
    TopicSetting(
        "unclean.leader.election.enable",
        SettingType.BOOLEAN,
        "false",
        ACCEPTED,
        server_name="unclean.leader.election.enable",
        meaning="Without effect: a replica that is not in sync becomes the leader only on request.",
    ),
    # Segments.
    TopicSetting(
        "segment.bytes",
        SettingType.INT,
        str(_LOG.segment_bytes_max),
        APPLIED,
        least=1 * KIB,
        most=2 * GIB - 1,
        kafka_default=str(1 * GIB),
        server_name="log.segment.bytes",
        log_field="segment_bytes_max",
        meaning="A segment is closed before it would exceed this size. Kafka's default is four"
        " times as large; ours limits how much is read after a crash. Kafka rejects values below"
        " 1 MiB.",
    ),
    TopicSetting(
        "segment.ms",
        SettingType.LONG,
        str(_LOG.segment_age_ms_max),
        APPLIED,
        least=1,
        most=LONG_MAX,
        server_name="log.roll.ms",
        log_field="segment_age_ms_max",
        meaning="A segment is closed when its first batch is older than this.",
    ),
    TopicSetting(
        "segment.jitter.ms",
        SettingType.LONG,
        "0",
        ACCEPTED,
        least=0,
        most=LONG_MAX,
        server_name="log.roll.jitter.ms",
        meaning="Without effect: segments are sealed in the background, a limited number at a"
        " time, so many at once do no harm.",
    ),
    TopicSetting(
        "segment.index.bytes",
        SettingType.INT,
        str(10 * MIB),
        ACCEPTED,
        least=4,
        most=INT_MAX,
        server_name="log.index.size.max.bytes",
        meaning="Without effect: an index grows with its segment, one entry for every"
        " `index.interval.bytes`, and needs no preallocated space.",
    ),
    TopicSetting(
        "index.interval.bytes",
        SettingType.INT,
        str(_LOG.index_interval_bytes),
        APPLIED,
        least=64,
        most=16 * MIB,
        server_name="log.index.interval.bytes",
        log_field="index_interval_bytes",
        meaning="Bytes of log for each index entry. Kafka allows 0 to 2147483647.",
    ),
    TopicSetting(
        "preallocate",
        SettingType.BOOLEAN,
        "false",
        ACCEPTED,
        server_name="log.preallocate",
        meaning="Without effect: space for a segment is always allocated in steps as it grows.",
    ),
    # Replicas and tiers.
    TopicSetting(
        "leader.replication.throttled.replicas",
        SettingType.LIST,
        "",
        ACCEPTED,
        item=_REPLICAS,
        item_hint=_REPLICAS_HINT,
        meaning=_WITHOUT_REPLICAS,
    ),
    TopicSetting(
        "follower.replication.throttled.replicas",
        SettingType.LIST,
        "",
        ACCEPTED,
        item=_REPLICAS,
        item_hint=_REPLICAS_HINT,
        meaning=_WITHOUT_REPLICAS,
    ),
    TopicSetting(
        REMOTE_STORAGE_ENABLE,
        SettingType.BOOLEAN,
        "false",
        APPLIED,
        meaning="Whether old segments are moved to the cold store of the node (`tier.store`), which"
        " a lone node may have. Not for topics that are compacted or kept in memory only. If it is"
        " turned off, what was moved stays there and can be read.",
    ),
    TopicSetting(
        "remote.log.copy.disable", SettingType.BOOLEAN, "false", ACCEPTED, meaning=_COPIED_ONCE
    ),
    TopicSetting(
        "remote.log.delete.on.disable",
        SettingType.BOOLEAN,
        "false",
        ACCEPTED,
        meaning="Without effect: what was moved stays there until retention deletes it.",
    ),
    TopicSetting(
        LOCAL_RETENTION_MS,
        SettingType.LONG,
        "-2",
        APPLIED,
        least=-2,
        most=LONG_MAX,
        server_name="log.local.retention.ms",
        meaning="How long a closed segment stays on the local disk, with `remote.storage.enable`,"
        " before it is moved to the cold store; -1 is as long as `retention.ms`. With -2 here and"
        " for `local.retention.bytes`, a segment is moved as soon as it is not one of the newest"
        " `tier.hot_segments`; Kafka keeps it as long as `retention.ms` then.",
    ),
    TopicSetting(
        LOCAL_RETENTION_BYTES,
        SettingType.LONG,
        "-2",
        APPLIED,
        least=-2,
        most=LONG_MAX,
        server_name="log.local.retention.bytes",
        meaning="Bytes of a partition that stay on the local disk, with `remote.storage.enable`:"
        " older segments are moved to the cold store. -1 is no limit; -2 as for"
        " `local.retention.ms`.",
    ),
)

TOPIC_CONFIGS: Mapping[str, TopicSetting] = MappingProxyType(
    {setting.name: setting for setting in sorted(_SETTINGS, key=lambda setting: setting.name)}
)
"""Every config that a topic can have, by name."""

REMOVED_CONFIGS: Mapping[str, str] = MappingProxyType(
    {
        "message.format.version": "only format 2 is supported",
        "message.downconversion.enable": "only format 2 is supported, so nothing is converted",
        "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and"
        " message.timestamp.after.max.ms",
    }
)
"""Configs that Kafka 4 has removed, and why they are not needed: their error explains that."""
