"""Settings that a node reports, under Kafka's names if Kafka has one."""

from __future__ import annotations

from dataclasses import fields

from millstream.broker.topics.configs.node_settings import (
    BROKER_NAMES,
    GROUP_NAMES,
    KAFKA_SERVER_NAMES,
    group_settings,
    node_settings,
)
from millstream.broker.topics.configs.topic_setting import SettingType
from millstream.broker.topics.configs.topic_settings import DURABILITY, TOPIC_CONFIGS
from millstream.config.schema import BrokerConfig, Durability, KafkaConfig, LogConfig


def settings(broker=None, kafka=None, log=None) -> dict:
    found = node_settings(broker or BrokerConfig(), kafka or KafkaConfig(), log or LogConfig())
    named = {setting.name: setting for setting in found}
    assert len(named) == len(found), "a name is there twice"
    assert list(named) == sorted(named)
    return named


def test_every_setting_of_the_node_is_shown():
    shown = {setting.field for setting in settings().values()}
    for config in (BrokerConfig, KafkaConfig):
        assert {field.name for field in fields(config)} <= shown
    assert {"durability", "segment_bytes_max", "segment_age_ms_max"} <= shown


def test_every_name_belongs_to_a_field():
    assert BROKER_NAMES.keys() | GROUP_NAMES.keys() <= {
        field.name for field in fields(BrokerConfig)
    }
    assert KAFKA_SERVER_NAMES.keys() <= {field.name for field in fields(KafkaConfig)}


def test_what_kafka_has_no_name_for_has_one_of_ours():
    ours = {name for name in settings() if name.startswith("millstream.")}
    assert "millstream.partitions.max" in ours
    assert DURABILITY in ours
    assert not any("_" in name for name in settings())


def test_values_are_what_is_set_and_defaults_are_not():
    found = settings(
        BrokerConfig(auto_create_topics=False, offsets_retention_ms=60_000),
        KafkaConfig(idle_ms_max=5000),
        LogConfig(durability=Durability.MEMORY, segment_bytes_max=4096),
    )
    for name, value, default, kind in (
        ("auto.create.topics.enable", "false", "true", SettingType.BOOLEAN),
        ("offsets.retention.minutes", "1", "10080", SettingType.LONG),
        ("connections.max.idle.ms", "5000", "600000", SettingType.LONG),
        ("log.segment.bytes", "4096", "268435456", SettingType.INT),
        (DURABILITY, "memory", "fsync", SettingType.STRING),
        ("log.cleanup.policy", "delete", "delete", SettingType.LIST),
        ("default.replication.factor", "1", "1", SettingType.INT),
    ):
        setting = found[name]
        assert (setting.value, setting.default, setting.kind) == (value, default, kind)
        assert setting.meaning.endswith(".")


def test_every_default_of_topics_is_a_setting_of_the_node():
    names = settings().keys()
    for setting in TOPIC_CONFIGS.values():
        assert setting.server_name is None or setting.server_name in names


def test_groups_have_what_concerns_them():
    found = group_settings(BrokerConfig(consumer_session_timeout_ms=9000))
    assert [(setting.name, setting.value, setting.default) for setting in found] == [
        ("consumer.heartbeat.interval.ms", "5000", "5000"),
        ("consumer.session.timeout.ms", "9000", "45000"),
    ]
