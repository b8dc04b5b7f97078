"""Every topic config: set, described, applied or rejected."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.topics.configs.topic_config import (
    BATCH_SIZE_MAX_LEAST,
    AlterConfigOperation,
    ConfigChange,
    TopicConfig,
    setting_named,
)
from millstream.broker.topics.configs.topic_setting import (
    LONG_MAX,
    VALUE_SIZE_MAX,
    SettingEffect,
    SettingType,
    TopicSetting,
)
from millstream.broker.topics.configs.topic_settings import (
    DISCARD,
    DURABILITY,
    LAKE_DELETIONS,
    LAKE_POSITIONS,
    LAKE_REQUIRED,
    LAKE_TABLE,
    REMOVED_CONFIGS,
    RETENTION_RECORDS,
    TOPIC_CONFIGS,
)
from millstream.broker.topics.configs.value_format import (
    VALUE_CHECK,
    VALUE_FORMAT,
    VALUE_SCHEMA,
    TopicValueFormat,
    ValueCheckLevel,
)
from millstream.config.schema import DAY_MS, GIB, MIB, Discard, Durability, LogConfig
from millstream.errors import InvalidConfig

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Defaults of Kafka 4."""

EVERY = pytest.mark.parametrize("setting", TOPIC_CONFIGS.values(), ids=TOPIC_CONFIGS.keys())


def samples(setting: TopicSetting) -> tuple[list[str], list[str]]:
    """Return valid values and invalid values."""
    if setting.effect is SettingEffect.FIXED:
        return [setting.default], ["true", "maybe", ""]
    if setting.kind is SettingType.BOOLEAN:
        return ["true", "false", "TRUE", " False "], ["", "yes", "1", "truefalse"]
    if setting.kind is SettingType.LIST and setting.values:
        good = [*setting.values, ",".join(setting.values), " , ".join(setting.values), ""]
        return good, ["other", "delete,other", "delete;compact", "delete,delete", "delete,"]
    if setting.name == LAKE_POSITIONS:
        return ["0:1", "0:1,1:20", ""], ["0", "*", "a:b", "0:1;1:1", "0:1,0:1", "-1:0", "0:-1"]
    if setting.name == LAKE_TABLE:
        return ["s3://lake/orders", "/lake/orders", ""], ["a\nb", "x" * 4097]
    if setting.name == LAKE_DELETIONS:
        return ["orders.lake-deletions", ""], ["a b", "a/b", "x" * 250]
    if setting.kind is SettingType.LIST:
        return ["*", "0:1", "0:1,1:1", ""], ["0", "a:b", "0:1;1:1", "0:1,0:1", "-1:0"]
    if setting.name == VALUE_SCHEMA:
        return ["", "  "], ["x", "{}"]  # Raw values, the default, have no schema.
    if setting.values:
        # Raw values, the default, cannot be checked.
        alone = {VALUE_FORMAT: ["raw"], VALUE_CHECK: ["none"]}
        good = alone.get(setting.name, list(setting.values))
        return good, ["", "other", setting.values[0].upper() + "x"]
    assert setting.least is not None
    assert setting.most is not None
    limits = [setting.least, setting.most]
    good = [f" {number} " for number in limits] + [str(number) for number in setting.also]
    step = 0.001 if setting.kind is SettingType.DOUBLE else 1
    beyond = [setting.least - step, setting.most + step]
    bad = [str(number) for number in beyond if number not in setting.also]
    bad += ["", "x", "1x", "0x10", "1_000", "--1", "nan", "inf", "9" * 30]
    if setting.kind is not SettingType.DOUBLE:
        bad += ["1.5", "1e3"]
    return good, bad


def test_every_config_of_kafka_is_there_with_its_default_or_says_which_kafka_has():
    ours = {DURABILITY, DISCARD, RETENTION_RECORDS, VALUE_FORMAT, VALUE_SCHEMA, VALUE_CHECK}
    ours |= {LAKE_TABLE, LAKE_DELETIONS, LAKE_REQUIRED, LAKE_POSITIONS}
    assert TOPIC_CONFIGS.keys() - ours == KAFKA_DEFAULTS.keys()
    for name, default in KAFKA_DEFAULTS.items():
        setting = TOPIC_CONFIGS[name]
        assert (setting.kafka_default or setting.default) == default
        assert setting.kafka_default != setting.default


def test_what_kafka_4_removed_is_refused_with_a_reason():
    assert REMOVED_CONFIGS.keys() == {
        "message.format.version",
        "message.downconversion.enable",
        "message.timestamp.difference.max.ms",
    }
    for name in REMOVED_CONFIGS:
        with pytest.raises(InvalidConfig, match=f"{name} was removed in Kafka 4: "):
            TopicConfig.parse({name: "true"})


@EVERY
def test_every_config_has_a_meaning_and_says_what_is_allowed(setting: TopicSetting) -> None:
    assert setting.meaning[0].isupper() or setting.meaning[0].isdigit()
    assert setting.meaning.endswith(".")
    assert setting.allowed
    assert ("ithout effect" in setting.meaning) == (setting.effect is SettingEffect.ACCEPTED)


@EVERY
def test_every_config_takes_what_is_allowed_and_shows_it(setting: TopicSetting) -> None:
    for text in samples(setting)[0]:
        config = TopicConfig.parse({setting.name: text})
        assert config.overrides == {setting.name: text.strip()}
        assert config.value(setting.name) == text.strip()


@EVERY
def test_every_config_refuses_what_is_not_and_names_what_is(setting: TopicSetting) -> None:
    for text in samples(setting)[1]:
        with pytest.raises(InvalidConfig) as refused:
            TopicConfig.parse({setting.name: text})
        message = str(refused.value)
        assert message.startswith(setting.name), message
        assert repr(text.strip()) in message, message
        assert setting.allowed in message or "duplicate" in message


@EVERY
def test_every_config_that_is_not_set_has_its_default(setting: TopicSetting) -> None:
    config = TopicConfig.parse({})
    assert config.overrides == {}
    assert config.value(setting.name) == setting.default
    assert TopicConfig.parse({setting.name: setting.default}) == dataclasses.replace(
        config, overrides={setting.name: setting.default}
    )


@EVERY
def test_every_config_needs_a_value(setting: TopicSetting) -> None:
    with pytest.raises(InvalidConfig, match=f"{setting.name} has no value, it must be"):
        TopicConfig.parse({setting.name: None})


@pytest.mark.parametrize("name", ["", "retention", "Retention.ms", "log.retention.ms", "x" * 9999])
def test_an_unknown_config_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="is not a topic config") as refused:
        TopicConfig.parse({name: "1"})
    assert len(str(refused.value)) < 200


def test_a_value_of_any_length_costs_little():
    with pytest.raises(InvalidConfig, match=f"{10 * MIB} characters, limit is {VALUE_SIZE_MAX}"):
        TopicConfig.parse({"leader.replication.throttled.replicas": "0:1,0:2," * (10 * MIB // 8)})


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=30))
def test_noise_is_refused_or_taken_but_never_crashes(name: str, noise: str) -> None:
    try:
        config = TopicConfig.parse({name: noise})
    except InvalidConfig:
        return
    assert config.value(name) == noise.strip()
    config.log_config()


# Typed values.


def test_the_typed_values():
    config = TopicConfig.parse(
        {
            "cleanup.policy": "compact, delete",
            "max.message.bytes": "5000",
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.before.max.ms": "1",
            "message.timestamp.after.max.ms": "2",
            "compression.type": "zstd",
            DURABILITY: "disk",
            "segment.bytes": "2048",
            "segment.ms": "3",
            "index.interval.bytes": "100",
            "retention.ms": "4",
            "retention.bytes": "5",
            RETENTION_RECORDS: "9",
            DISCARD: "reject",
            "delete.retention.ms": "6",
            "min.compaction.lag.ms": "7",
            "max.compaction.lag.ms": "8",
            "min.cleanable.dirty.ratio": "0.25",
            VALUE_FORMAT: "json",
            VALUE_SCHEMA: "id BIGINT",
            VALUE_CHECK: "schema",
            LAKE_DELETIONS: "deleted",
        }
    )
    found = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ("overrides", "node")
    }
    assert found == {
        "cleanup_policy": {"compact", "delete"},
        "message_bytes_max": 5000,
        "timestamp_type": "LogAppendTime",
        "timestamp_before_max_ms": 1,
        "timestamp_after_max_ms": 2,
        "compression_type": "zstd",
        "durability": Durability.DISK,
        "flush_messages": 2**63 - 1,
        "flush_ms": 200,
        "segment_bytes": 2048,
        "segment_ms": 3,
        "index_interval_bytes": 100,
        "retention_ms": 4,
        "retention_bytes": 5,
        "retention_records": 9,
        "is_tiered": False,
        "local_retention_ms": None,
        "local_retention_bytes": None,
        "discard": Discard.REJECT,
        "delete_retention_ms": 6,
        "compaction_lag_min_ms": 7,
        "compaction_lag_max_ms": 8,
        "cleanable_dirty_ratio_min": 0.25,
        "value_format": TopicValueFormat.JSON,
        "value_schema": "id BIGINT",
        "value_check": ValueCheckLevel.SCHEMA,
        "lake_deletions": "deleted",
        "lake_positions": None,
    }
    assert config.lake_position(0) is None
    assert config.is_compacted
    assert config.is_log_append_time
    assert config.log_config() == LogConfig(
        durability=Durability.DISK,
        segment_bytes_max=2048,
        segment_age_ms_max=3,
        index_interval_bytes=100,
        batch_size_max=5000,
        retention_ms=4,
        retention_bytes=5,
        retention_records=9,
        discard=Discard.REJECT,
        is_compacted=True,
        tombstone_ms=6,
        dirty_ratio_min=0.25,
        compaction_lag_ms_min=7,
        compaction_lag_ms_max=8,
    )


def test_a_topic_that_sets_nothing_is_as_safe_as_can_be():
    config = TopicConfig.parse({})
    assert config.durability is Durability.FSYNC
    assert not config.is_compacted
    assert not config.is_log_append_time
    assert config.log_config() == LogConfig(batch_size_max=1048588, retention_ms=7 * DAY_MS)


def test_the_marker_of_a_transaction_fits_however_small_batches_have_to_be():
    config = TopicConfig.parse({"max.message.bytes": "61"})
    assert config.message_bytes_max == 61
    assert config.log_config().batch_size_max == BATCH_SIZE_MAX_LEAST


def test_no_age_is_too_large_for_a_log():
    config = TopicConfig.parse({"segment.ms": str(LONG_MAX)})
    assert config.log_config().segment_age_ms_max == 2**53


@pytest.mark.parametrize(
    ("policy", "lag_ms", "age_ms"),
    [
        ("delete", "1000", 7 * DAY_MS),
        ("compact", "1000", 1000),
        ("compact,delete", "1000", 1000),
        ("compact", str(8 * DAY_MS), 7 * DAY_MS),
        ("", "1000", 7 * DAY_MS),
    ],
)
def test_a_compacted_topic_closes_segments_in_time_to_compact_them(policy, lag_ms, age_ms):
    config = TopicConfig.parse({"cleanup.policy": policy, "max.compaction.lag.ms": lag_ms})
    assert config.log_config().segment_age_ms_max == age_ms


def test_a_record_cannot_have_to_wait_longer_for_compaction_than_it_may():
    with pytest.raises(
        InvalidConfig, match=r"min\.compaction\.lag\.ms must be at most .*, 5, got 6"
    ):
        TopicConfig.parse({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


@pytest.mark.parametrize(
    ("flush", "asked", "given"),
    [
        ("1", "memory", Durability.FSYNC),
        ("1", "disk", Durability.FSYNC),
        ("1", "fsync", Durability.FSYNC),
        ("2", "memory", Durability.MEMORY),
        ("2", "disk", Durability.DISK),
    ],
)
def test_flushing_each_record_means_at_least_fsync(flush, asked, given):
    config = TopicConfig.parse({"flush.messages": flush, DURABILITY: asked})
    assert config.durability is given
    assert config.log_config().durability is given
    assert config.value(DURABILITY) == asked


@pytest.mark.parametrize(("name", "value"), [("flush.messages", "1"), ("flush.ms", "1000")])
def test_what_is_in_memory_only_cannot_be_flushed(name, value):
    with pytest.raises(InvalidConfig, match=f"{name} must not be set .* cannot be flushed"):
        TopicConfig.parse({name: value, DURABILITY: "ephemeral"})
    node = LogConfig(flush_records=1, flush_ms=7)
    config = TopicConfig.parse({DURABILITY: "ephemeral"}, node)
    assert config.durability is Durability.EPHEMERAL


@pytest.mark.parametrize(
    ("overrides", "flush_ms", "flush_records"),
    [
        ({}, 200, 2**63 - 1),
        ({"flush.ms": "0", "flush.messages": "5"}, 0, 5),
        ({"flush.ms": str(2**63 - 1)}, 2**53, 2**63 - 1),
    ],
)
def test_flush_settings_reach_the_log(overrides, flush_ms, flush_records):
    config = TopicConfig.parse(overrides).log_config()
    assert (config.flush_ms, config.flush_records) == (flush_ms, flush_records)


def test_the_node_gives_the_defaults_of_what_it_can_set():
    node = LogConfig(
        durability=Durability.DISK,
        segment_bytes_max=4096,
        segment_records_max=10,
        segment_age_ms_max=99,
        index_interval_bytes=128,
        unflushed_bytes_max=5000,
        retention_ms=1000,
        retention_bytes=2000,
        retention_records=3000,
        discard=Discard.REJECT,
        tombstone_ms=10,
        dirty_ratio_min=0.75,
        compaction_lag_ms_min=20,
        compaction_lag_ms_max=30,
    )
    config = TopicConfig.parse({"segment.bytes": "2048"}, node)
    assert config.log_config() == dataclasses.replace(
        node, segment_bytes_max=2048, batch_size_max=1048588
    )
    assert config.value(DURABILITY) == "disk"
    assert config.value("segment.bytes") == "2048"
    assert config.value("segment.ms") == "99"
    assert config.value("index.interval.bytes") == "128"
    assert config.value("retention.ms") == "1000"
    assert config.value(DISCARD) == "reject"
    assert config.value("min.cleanable.dirty.ratio") == "0.75"
    deleted = config.changed([ConfigChange("segment.bytes", AlterConfigOperation.DELETE)])
    assert deleted.value("segment.bytes") == "4096"


def test_a_node_without_limits_leaves_topics_with_those_that_kafka_has():
    config = TopicConfig.parse({}, LogConfig(retention_ms=None, compaction_lag_ms_max=None))
    assert config.value("retention.ms") == str(7 * DAY_MS)
    assert config.value("max.compaction.lag.ms") == str(LONG_MAX)


@pytest.mark.parametrize(
    ("policy", "is_limited", "is_compacted"),
    [
        ("delete", True, False),
        ("compact", False, True),
        ("compact,delete", True, True),
        ("", False, False),
    ],
)
def test_the_policy_decides_how_old_data_goes(policy, is_limited, is_compacted):
    limits = {"retention.ms": "1", "retention.bytes": "2", RETENTION_RECORDS: "3"}
    log = TopicConfig.parse({"cleanup.policy": policy, **limits}).log_config()
    found = (log.retention_ms, log.retention_bytes, log.retention_records)
    assert found == ((1, 2, 3) if is_limited else (None, None, None))
    assert log.is_compacted is is_compacted


def test_minus_one_is_no_limit_and_zero_is_one():
    limits = ("retention.ms", "retention.bytes", RETENTION_RECORDS)
    for text, value in (("-1", None), ("0", 0)):
        log = TopicConfig.parse(dict.fromkeys(limits, text)).log_config()
        assert (log.retention_ms, log.retention_bytes, log.retention_records) == (value,) * 3


def test_a_time_that_no_log_lives_to_see_is_none():
    far = str(LONG_MAX)
    names = ("retention.ms", "delete.retention.ms", "min.compaction.lag.ms")
    log = TopicConfig.parse({"cleanup.policy": "compact,delete", **dict.fromkeys(names, far)})
    assert log.log_config() == dataclasses.replace(
        TopicConfig.parse({"cleanup.policy": "compact,delete"}).log_config(),
        retention_ms=None,
        tombstone_ms=2**53,
        compaction_lag_ms_min=2**53,
    )


def test_our_segments_are_smaller_than_kafkas():
    assert TOPIC_CONFIGS["segment.bytes"].default == str(256 * MIB)
    assert TOPIC_CONFIGS["segment.bytes"].kafka_default == str(1 * GIB)


# Changes.


def changed(overrides: dict[str, str | None], *changes: ConfigChange) -> dict[str, str]:
    return dict(TopicConfig.parse(overrides).changed(changes).overrides)


SET, DELETE = AlterConfigOperation.SET, AlterConfigOperation.DELETE
APPEND, SUBTRACT = AlterConfigOperation.APPEND, AlterConfigOperation.SUBTRACT


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({}, ConfigChange("retention.ms", SET, "1"), {"retention.ms": "1"}),
        ({"retention.ms": "1"}, ConfigChange("retention.ms", SET, "2"), {"retention.ms": "2"}),
        ({"retention.ms": "1"}, ConfigChange("retention.ms", DELETE), {}),
        ({"retention.ms": "1"}, ConfigChange("retention.ms", DELETE, "5"), {}),
        ({}, ConfigChange("retention.ms", DELETE), {}),
        (
            {},
            ConfigChange("cleanup.policy", APPEND, "compact"),
            {"cleanup.policy": "delete,compact"},
        ),
        (
            {},
            ConfigChange("cleanup.policy", APPEND, "delete"),
            {"cleanup.policy": "delete"},
        ),
        (
            {"cleanup.policy": "compact,delete"},
            ConfigChange("cleanup.policy", SUBTRACT, "delete"),
            {"cleanup.policy": "compact"},
        ),
        (
            {"cleanup.policy": "compact"},
            ConfigChange("cleanup.policy", SUBTRACT, "delete"),
            {"cleanup.policy": "compact"},
        ),
        ({}, ConfigChange("cleanup.policy", SUBTRACT, "delete"), {"cleanup.policy": ""}),
        (
            {"cleanup.policy": ""},
            ConfigChange("cleanup.policy", APPEND, "compact"),
            {"cleanup.policy": "compact"},
        ),
        (
            {"leader.replication.throttled.replicas": "0:1"},
            ConfigChange("leader.replication.throttled.replicas", APPEND, " 1:1, 0:1 "),
            {"leader.replication.throttled.replicas": "0:1,1:1"},
        ),
    ],
)
def test_a_change_sets_deletes_appends_or_subtracts(before, change, after):
    assert changed(before, change) == after


def test_changes_happen_in_their_order_and_leave_the_rest():
    assert changed(
        {"retention.ms": "1", "segment.ms": "2"},
        ConfigChange("retention.ms", DELETE),
        ConfigChange("cleanup.policy", SET, "compact"),
    ) == {"cleanup.policy": "compact", "segment.ms": "2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ConfigChange("retention.ms", APPEND, "1"), "retention.ms is not a list"),
        (ConfigChange("retention.ms", SUBTRACT, "1"), "retention.ms is not a list"),
        (ConfigChange("retention.ms", SET, "x"), "retention.ms must be between -1 and .*, got 'x'"),
        (ConfigChange("retention.ms", SET), "retention.ms has no value"),
        (ConfigChange("cleanup.policy", APPEND), "cleanup.policy has no value"),
        (ConfigChange("cleanup.policy", APPEND, "x"), "must be a list of compact, delete"),
        (ConfigChange("nothing", DELETE), "'nothing' is not a topic config"),
        (ConfigChange("nothing", SET, "1"), "'nothing' is not a topic config"),
        (ConfigChange("message.format.version", DELETE), "was removed in Kafka 4"),
    ],
)
def test_a_change_that_cannot_be_is_refused(change, message):
    with pytest.raises(InvalidConfig, match=message):
        TopicConfig.parse({}).changed([change])


@pytest.mark.parametrize("other", ["memory", "disk", "fsync"])
def test_a_topic_is_ephemeral_for_all_its_life_or_never(other):
    ephemeral = TopicConfig.parse({DURABILITY: "ephemeral"})
    lasting = TopicConfig.parse({DURABILITY: other})
    for before, after in ((ephemeral, lasting), (lasting, ephemeral)):
        with pytest.raises(InvalidConfig, match="become or cease to be ephemeral"):
            before.check_successor(after)
    ephemeral.check_successor(ephemeral)
    lasting.check_successor(TopicConfig.parse({}))


def test_a_setting_is_found_by_its_name():
    assert setting_named("retention.ms") is TOPIC_CONFIGS["retention.ms"]


@pytest.mark.parametrize("kind", ["raw", "msgpack"])
def test_only_values_with_a_schema_can_be_checked(kind: str) -> None:
    with pytest.raises(InvalidConfig, match=f"to be json or avro, got {kind}"):
        TopicConfig.parse({"millstream.value.format": kind, "millstream.value.check": "schema"})
    declared = {"millstream.value.format": "json", "millstream.value.schema": "id INT"}
    assert TopicConfig.parse(declared).checked_values is None
    both = TopicConfig.parse(declared | {"millstream.value.check": "schema"})
    assert both.checked_values == ("json", "id INT")


def test_retention_waits_for_the_lake_up_to_its_positions_and_not_with_compaction():
    required = {LAKE_REQUIRED: "true", LAKE_POSITIONS: "0:5,2:7"}
    config = TopicConfig.parse(required)
    assert [config.lake_position(number) for number in range(3)] == [5, 0, 7]
    with pytest.raises(InvalidConfig, match=r"millstream\.lake\.required must be false"):
        TopicConfig.parse({**required, "cleanup.policy": "compact,delete"})
