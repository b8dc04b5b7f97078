"""Every topic config of Kafka 4, and ours: the one place that says what each means here.

Where a meaning says that a config is without effect, its value is checked, kept and shown, and
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
    VALUE_FORMAT,
    VALUE_SCHEMA,
    VALUE_SCHEMA_ALLOWED,
    VALUE_SCHEMA_SIZE_MAX,
    TopicValueFormat,
)
from millstream.config.schema import DAY_MS, GIB, KIB, MIB, Discard, Durability, LogConfig

APPLIED, ACCEPTED, FIXED = SettingEffect.APPLIED, SettingEffect.ACCEPTED, SettingEffect.FIXED

DURABILITY = "millstream.durability"
DISCARD = "millstream.discard"
RETENTION_MS = "retention.ms"
RETENTION_RECORDS = "millstream.retention.records"

_LOG = LogConfig()
_WITHOUT_REPLICAS = "Without effect: there is one replica of each partition, so nothing is copied."
_CODEC_LEVEL = "Without effect: a batch that is packed anew is so at the codec's usual level."
_WITHOUT_TIERS = "Without effect: there is no tiered storage yet, so all data is local."
_REPLICAS = re.compile(r"\*|[0-9]+:[0-9]+")
_REPLICAS_HINT = "* or a list of partition:node"


_SETTINGS = (
    # What is kept.
    TopicSetting(
        "cleanup.policy",
        SettingType.LIST,
        "delete",
        APPLIED,
        values=("compact", "delete"),
        server_name="log.cleanup.policy",
        meaning="How old data goes: `delete` by age and size, `compact` by key, both, or (empty)"
        " not at all. A record without a key is refused by a topic that has `compact`.",
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
        meaning="How long records are kept at least, where `cleanup.policy` has `delete`; -1 is for"
        " ever. The age of a record counts from when its segment was closed here, by a clock that"
        " does not jump, and not from its timestamp. Segments go whole, so it may live longer:"
        " one is closed when it is as old as this, if `segment.ms` did not close it before.",
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
        meaning="How large a partition may grow before its oldest segments go, where"
        " `cleanup.policy` has `delete`; -1 is without limit. Whole segments go, and never so many"
        f" that less than this is left. `{DISCARD}` can have batches refused instead.",
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
        meaning="The same as `retention.bytes`, counted in records. Not a config of Kafka.",
    ),
    TopicSetting(
        DISCARD,
        SettingType.STRING,
        _LOG.discard.value,
        APPLIED,
        values=tuple(kind.value for kind in Discard),
        server_name=DISCARD,
        log_field="discard",
        meaning="What happens when a partition holds as much as `retention.bytes` or"
        f" `{RETENTION_RECORDS}` allow: `old` lets its oldest segments go, `reject` refuses batches"
        " that do not fit, with POLICY_VIOLATION, until something is deleted or too old. Not a"
        " config of Kafka.",
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
        meaning="How long a record with a key and no value, the mark of a deleted key, stays"
        " readable in a compacted topic. It counts from when compaction first met the record, by a"
        " clock that does not jump.",
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
        meaning="How long a record stays as it was written at least, counted from when its segment"
        " was closed.",
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
        meaning="How soon a record can be compacted at the latest: a segment of a compacted topic"
        " is closed at this age, if `segment.ms` does not close it before, and a segment that"
        " waits for so long is compacted whatever `min.cleanable.dirty.ratio` says.",
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
        meaning="Which share of a log must be uncompacted before it is worth compacting.",
    ),
    TopicSetting(
        "file.delete.delay.ms",
        SettingType.LONG,
        "60000",
        ACCEPTED,
        least=0,
        most=LONG_MAX,
        server_name="log.segment.delete.delay.ms",
        meaning="Without effect: a file is removed once no reader has it open, however long that"
        " takes, so no delay is needed.",
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
        meaning="The largest batch that is taken, as it was sent. Kafka allows up to 2147483647;"
        " here no batch is larger than 64 MiB.",
    ),
    TopicSetting(
        "message.timestamp.type",
        SettingType.STRING,
        "CreateTime",
        APPLIED,
        values=("CreateTime", "LogAppendTime"),
        server_name="log.message.timestamp.type",
        meaning="Whether records bear the time that the producer gave them, or that at which they"
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
        meaning="How far in the past the timestamp of a record may lie; older ones are refused."
        " Has no say where `message.timestamp.type` is `LogAppendTime`.",
    ),
    TopicSetting(
        "message.timestamp.after.max.ms",
        SettingType.LONG,
        "3600000",
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.message.timestamp.after.max.ms",
        meaning="How far in the future the timestamp of a record may lie; later ones are refused."
        " Has no say where `message.timestamp.type` is `LogAppendTime`.",
    ),
    TopicSetting(
        "compression.type",
        SettingType.STRING,
        "producer",
        APPLIED,
        values=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        server_name="compression.type",
        meaning="The codec that all batches are kept with; `producer` keeps each as it came. A"
        " batch that comes with another codec is packed anew, which costs much: better set the"
        " producer's own `compression.type`.",
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
        meaning="What the values of records are: bytes of which nothing is known, or what"
        f" `{VALUE_SCHEMA}` describes. The Spark source makes typed columns of it. A node stores"
        " and shows it, and checks no record against it. Not a config of Kafka.",
    ),
    TopicSetting(
        VALUE_SCHEMA,
        SettingType.STRING,
        "",
        APPLIED,
        item_hint=VALUE_SCHEMA_ALLOWED,
        meaning=f"The schema of the values, up to {VALUE_SCHEMA_SIZE_MAX:,} bytes. It has to be set"
        f" together with `{VALUE_FORMAT}`, in one request. Not a config of Kafka.",
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
        meaning="What an acknowledgement promises: `fsync` survives a power cut, `disk` the death"
        " of the process, `memory` neither, though it is written soon after; `ephemeral` is kept in"
        " memory only. A topic is ephemeral for all its life or never. Not a config of Kafka.",
    ),
    TopicSetting(
        "flush.messages",
        SettingType.LONG,
        str(LONG_MAX),
        APPLIED,
        least=1,
        most=LONG_MAX,
        server_name="log.flush.interval.messages",
        meaning="1 makes `memory` and `disk` topics as safe as `fsync` ones. Larger numbers ask for"
        " less than `fsync`, the default, gives, and change nothing.",
    ),
    TopicSetting(
        "flush.ms",
        SettingType.LONG,
        str(LONG_MAX),
        ACCEPTED,
        least=0,
        most=LONG_MAX,
        server_name="log.flush.interval.ms",
        meaning="Without effect: a topic of class `fsync` is synced before each acknowledgement,"
        f" and for the others `{DURABILITY}` says what is promised.",
    ),
    TopicSetting(
        "min.insync.replicas",
        SettingType.INT,
        "1",
        APPLIED,
        least=1,
        most=1,
        server_name="min.insync.replicas",
        meaning="How many replicas must have a record before it is acknowledged. A partition has"
        " one replica, so more than 1 is refused: nothing could ever be written with acks=all.",
    ),
    TopicSetting(
        "unclean.leader.election.enable",
        SettingType.BOOLEAN,
        "false",
        ACCEPTED,
        server_name="unclean.leader.election.enable",
        meaning="Without effect: there is one replica of each partition, and it leads.",
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
        meaning="A segment is closed before it would grow past this. Kafka's default is four times"
        " as large; ours bounds what is read again after a crash. Kafka refuses less than 1 MiB.",
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
        meaning="Without effect: sealing a segment is background work of bounded width, so many at"
        " once do no harm.",
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
        " `index.interval.bytes`, and needs no room set aside.",
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
        meaning="One index entry for every so many bytes of log. Kafka allows 0 to 2147483647.",
    ),
    TopicSetting(
        "preallocate",
        SettingType.BOOLEAN,
        "false",
        ACCEPTED,
        server_name="log.preallocate",
        meaning="Without effect: space for a segment is always set aside in steps as it grows.",
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
        "remote.storage.enable",
        SettingType.BOOLEAN,
        "false",
        FIXED,
        meaning="There is no tiered storage yet, so a topic cannot ask for it.",
    ),
    TopicSetting(
        "remote.log.copy.disable", SettingType.BOOLEAN, "false", ACCEPTED, meaning=_WITHOUT_TIERS
    ),
    TopicSetting(
        "remote.log.delete.on.disable",
        SettingType.BOOLEAN,
        "false",
        ACCEPTED,
        meaning=_WITHOUT_TIERS,
    ),
    TopicSetting(
        "local.retention.ms",
        SettingType.LONG,
        "-2",
        ACCEPTED,
        least=-2,
        most=LONG_MAX,
        server_name="log.local.retention.ms",
        meaning=_WITHOUT_TIERS,
    ),
    TopicSetting(
        "local.retention.bytes",
        SettingType.LONG,
        "-2",
        ACCEPTED,
        least=-2,
        most=LONG_MAX,
        server_name="log.local.retention.bytes",
        meaning=_WITHOUT_TIERS,
    ),
)

TOPIC_CONFIGS: Mapping[str, TopicSetting] = MappingProxyType(
    {setting.name: setting for setting in sorted(_SETTINGS, key=lambda setting: setting.name)}
)
"""Every config that a topic can have, by name."""

REMOVED_CONFIGS: Mapping[str, str] = MappingProxyType(
    {
        "message.format.version": "only format 2 is spoken",
        "message.downconversion.enable": "only format 2 is spoken, so nothing is converted",
        "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and"
        " message.timestamp.after.max.ms",
    }
)
"""What Kafka 4 removed, and why it is not needed: these are refused with a better word."""
