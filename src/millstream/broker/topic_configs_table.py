"""Every topic config of Kafka 4, and ours: the one place that says what each means here.

Where a meaning says that a config is without effect, its value is checked, kept and shown, and
nothing else; the meaning says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from millstream.broker.topic_configs import INT_MAX, LONG_MAX, Effect, Kind, Setting
from millstream.broker.topic_values import (
    VALUE_FORMAT,
    VALUE_SCHEMA,
    VALUE_SCHEMA_ALLOWED,
    VALUE_SCHEMA_SIZE_MAX,
    DeclaredFormat,
)
from millstream.config import DAY_MS, GIB, KIB, MIB, Discard, Durability, LogConfig

APPLIED, ACCEPTED, FIXED = Effect.APPLIED, Effect.ACCEPTED, Effect.FIXED

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
    Setting(
        "cleanup.policy",
        Kind.LIST,
        "delete",
        APPLIED,
        values=("compact", "delete"),
        server_name="log.cleanup.policy",
        meaning="How old data goes: `delete` by age and size, `compact` by key, both, or (empty)"
        " not at all. A record without a key is refused by a topic that has `compact`.",
    ),
    Setting(
        RETENTION_MS,
        Kind.LONG,
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
    Setting(
        "retention.bytes",
        Kind.LONG,
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
    Setting(
        RETENTION_RECORDS,
        Kind.LONG,
        "-1",
        APPLIED,
        least=-1,
        most=LONG_MAX,
        server_name=RETENTION_RECORDS,
        log_field="retention_records",
        meaning="The same as `retention.bytes`, counted in records. Not a config of Kafka.",
    ),
    Setting(
        DISCARD,
        Kind.STRING,
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
    Setting(
        "delete.retention.ms",
        Kind.LONG,
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
    Setting(
        "min.compaction.lag.ms",
        Kind.LONG,
        "0",
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.cleaner.min.compaction.lag.ms",
        log_field="compaction_lag_ms_min",
        meaning="How long a record stays as it was written at least, counted from when its segment"
        " was closed.",
    ),
    Setting(
        "max.compaction.lag.ms",
        Kind.LONG,
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
    Setting(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        "0.5",
        APPLIED,
        least=0,
        most=1,
        server_name="log.cleaner.min.cleanable.ratio",
        log_field="dirty_ratio_min",
        meaning="Which share of a log must be uncompacted before it is worth compacting.",
    ),
    Setting(
        "file.delete.delay.ms",
        Kind.LONG,
        "60000",
        ACCEPTED,
        least=0,
        most=LONG_MAX,
        server_name="log.segment.delete.delay.ms",
        meaning="Without effect: a file is removed once no reader has it open, however long that"
        " takes, so no delay is needed.",
    ),
    # Records.
    Setting(
        "max.message.bytes",
        Kind.INT,
        "1048588",
        APPLIED,
        least=61,
        most=64 * MIB,
        server_name="message.max.bytes",
        meaning="The largest batch that is taken, as it was sent. Kafka allows up to 2147483647;"
        " here no batch is larger than 64 MiB.",
    ),
    Setting(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        APPLIED,
        values=("CreateTime", "LogAppendTime"),
        server_name="log.message.timestamp.type",
        meaning="Whether records bear the time that the producer gave them, or that at which they"
        " were appended.",
    ),
    Setting(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        str(LONG_MAX),
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.message.timestamp.before.max.ms",
        meaning="How far in the past the timestamp of a record may lie; older ones are refused."
        " Has no say where `message.timestamp.type` is `LogAppendTime`.",
    ),
    Setting(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        "3600000",
        APPLIED,
        least=0,
        most=LONG_MAX,
        server_name="log.message.timestamp.after.max.ms",
        meaning="How far in the future the timestamp of a record may lie; later ones are refused."
        " Has no say where `message.timestamp.type` is `LogAppendTime`.",
    ),
    Setting(
        "compression.type",
        Kind.STRING,
        "producer",
        APPLIED,
        values=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        server_name="compression.type",
        meaning="The codec that all batches are kept with; `producer` keeps each as it came. A"
        " batch that comes with another codec is packed anew, which costs much: better set the"
        " producer's own `compression.type`.",
    ),
    Setting(
        "compression.gzip.level",
        Kind.INT,
        "-1",
        ACCEPTED,
        least=1,
        most=9,
        also=frozenset({-1}),
        server_name="compression.gzip.level",
        meaning=_CODEC_LEVEL,
    ),
    Setting(
        "compression.lz4.level",
        Kind.INT,
        "9",
        ACCEPTED,
        least=1,
        most=17,
        server_name="compression.lz4.level",
        meaning=_CODEC_LEVEL,
    ),
    Setting(
        "compression.zstd.level",
        Kind.INT,
        "3",
        ACCEPTED,
        least=-131_072,
        most=22,
        server_name="compression.zstd.level",
        meaning=_CODEC_LEVEL,
    ),
    Setting(
        VALUE_FORMAT,
        Kind.STRING,
        DeclaredFormat.RAW.value,
        APPLIED,
        values=tuple(kind.value for kind in DeclaredFormat),
        meaning="What the values of records are: bytes of which nothing is known, or what"
        f" `{VALUE_SCHEMA}` describes. The Spark source makes typed columns of it. A node stores"
        " and shows it, and checks no record against it. Not a config of Kafka.",
    ),
    Setting(
        VALUE_SCHEMA,
        Kind.STRING,
        "",
        APPLIED,
        item_hint=VALUE_SCHEMA_ALLOWED,
        meaning=f"The schema of the values, up to {VALUE_SCHEMA_SIZE_MAX:,} bytes. It has to be set"
        f" together with `{VALUE_FORMAT}`, in one request. Not a config of Kafka.",
    ),
    # Durability.
    Setting(
        DURABILITY,
        Kind.STRING,
        _LOG.durability.value,
        APPLIED,
        values=tuple(kind.value for kind in Durability),
        server_name=DURABILITY,
        log_field="durability",
        meaning="What an acknowledgement promises: `fsync` survives a power cut, `disk` the death"
        " of the process, `memory` neither, though it is written soon after; `ephemeral` is kept in"
        " memory only. A topic is ephemeral for all its life or never. Not a config of Kafka.",
    ),
    Setting(
        "flush.messages",
        Kind.LONG,
        str(LONG_MAX),
        APPLIED,
        least=1,
        most=LONG_MAX,
        server_name="log.flush.interval.messages",
        meaning="1 makes `memory` and `disk` topics as safe as `fsync` ones. Larger numbers ask for"
        " less than `fsync`, the default, gives, and change nothing.",
    ),
    Setting(
        "flush.ms",
        Kind.LONG,
        str(LONG_MAX),
        ACCEPTED,
        least=0,
        most=LONG_MAX,
        server_name="log.flush.interval.ms",
        meaning="Without effect: a topic of class `fsync` is synced before each acknowledgement,"
        f" and for the others `{DURABILITY}` says what is promised.",
    ),
    Setting(
        "min.insync.replicas",
        Kind.INT,
        "1",
        APPLIED,
        least=1,
        most=1,
        server_name="min.insync.replicas",
        meaning="How many replicas must have a record before it is acknowledged. A partition has"
        " one replica, so more than 1 is refused: nothing could ever be written with acks=all.",
    ),
    Setting(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        "false",
        ACCEPTED,
        server_name="unclean.leader.election.enable",
        meaning="Without effect: there is one replica of each partition, and it leads.",
    ),
    # Segments.
    Setting(
        "segment.bytes",
        Kind.INT,
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
    Setting(
        "segment.ms",
        Kind.LONG,
        str(_LOG.segment_age_ms_max),
        APPLIED,
        least=1,
        most=LONG_MAX,
        server_name="log.roll.ms",
        log_field="segment_age_ms_max",
        meaning="A segment is closed when its first batch is older than this.",
    ),
    Setting(
        "segment.jitter.ms",
        Kind.LONG,
        "0",
        ACCEPTED,
        least=0,
        most=LONG_MAX,
        server_name="log.roll.jitter.ms",
        meaning="Without effect: sealing a segment is background work of bounded width, so many at"
        " once do no harm.",
    ),
    Setting(
        "segment.index.bytes",
        Kind.INT,
        str(10 * MIB),
        ACCEPTED,
        least=4,
        most=INT_MAX,
        server_name="log.index.size.max.bytes",
        meaning="Without effect: an index grows with its segment, one entry for every"
        " `index.interval.bytes`, and needs no room set aside.",
    ),
    Setting(
        "index.interval.bytes",
        Kind.INT,
        str(_LOG.index_interval_bytes),
        APPLIED,
        least=64,
        most=16 * MIB,
        server_name="log.index.interval.bytes",
        log_field="index_interval_bytes",
        meaning="One index entry for every so many bytes of log. Kafka allows 0 to 2147483647.",
    ),
    Setting(
        "preallocate",
        Kind.BOOLEAN,
        "false",
        ACCEPTED,
        server_name="log.preallocate",
        meaning="Without effect: space for a segment is always set aside in steps as it grows.",
    ),
    # Replicas and tiers.
    Setting(
        "leader.replication.throttled.replicas",
        Kind.LIST,
        "",
        ACCEPTED,
        item=_REPLICAS,
        item_hint=_REPLICAS_HINT,
        meaning=_WITHOUT_REPLICAS,
    ),
    Setting(
        "follower.replication.throttled.replicas",
        Kind.LIST,
        "",
        ACCEPTED,
        item=_REPLICAS,
        item_hint=_REPLICAS_HINT,
        meaning=_WITHOUT_REPLICAS,
    ),
    Setting(
        "remote.storage.enable",
        Kind.BOOLEAN,
        "false",
        FIXED,
        meaning="There is no tiered storage yet, so a topic cannot ask for it.",
    ),
    Setting("remote.log.copy.disable", Kind.BOOLEAN, "false", ACCEPTED, meaning=_WITHOUT_TIERS),
    Setting(
        "remote.log.delete.on.disable", Kind.BOOLEAN, "false", ACCEPTED, meaning=_WITHOUT_TIERS
    ),
    Setting(
        "local.retention.ms",
        Kind.LONG,
        "-2",
        ACCEPTED,
        least=-2,
        most=LONG_MAX,
        server_name="log.local.retention.ms",
        meaning=_WITHOUT_TIERS,
    ),
    Setting(
        "local.retention.bytes",
        Kind.LONG,
        "-2",
        ACCEPTED,
        least=-2,
        most=LONG_MAX,
        server_name="log.local.retention.bytes",
        meaning=_WITHOUT_TIERS,
    ),
)

TOPIC_CONFIGS: Mapping[str, Setting] = MappingProxyType(
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
