"""Every field of every config can be set, under one name that a user knows."""

from __future__ import annotations

import dataclasses

import pytest

from millstream.config.keys import (
    CONFIG_VARIABLE,
    KEYS,
    PARTS,
    TABLES,
    TOPIC_ONLY_FIELDS,
    VARIABLES,
    ConfigKeyType,
)
from millstream.config.schema import NodeConfig
from millstream.config.values import describe_allowed, display_value, parse_value


def test_every_config_that_a_node_holds_has_a_place():
    parts = {
        field.name
        for field in dataclasses.fields(NodeConfig)
        if dataclasses.is_dataclass(getattr(NodeConfig(), field.name))
    }
    assert parts == PARTS.keys() - {""}


def test_every_field_of_every_config_has_a_key_or_a_reason_why_not():
    fields = {
        (part, field.name)
        for part, (config, _) in PARTS.items()
        for field in dataclasses.fields(config)
        if part or field.name not in PARTS
    }
    assert {(key.part, key.field) for key in KEYS.values()} | TOPIC_ONLY_FIELDS.keys() == fields
    assert not {(key.part, key.field) for key in KEYS.values()} & TOPIC_ONLY_FIELDS.keys()


def test_no_two_keys_share_a_name_or_a_variable():
    names = [name for key in KEYS.values() for name in key.variables]
    assert len(set(names)) == len(names) == len(VARIABLES)
    assert len({(key.part, key.field) for key in KEYS.values()}) == len(KEYS)
    assert CONFIG_VARIABLE not in VARIABLES


def test_the_names_of_variables_follow_from_the_keys():
    assert KEYS["kafka.connections_max"].variable == "MILLSTREAM_KAFKA_CONNECTIONS_MAX"
    assert KEYS["groups.session_timeout_ms_min"].field == "group_session_timeout_ms_min"
    assert all(key.table in TABLES for key in KEYS.values())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("kafka.connections_max", ConfigKeyType.COUNT),
        ("kafka.idle_ms_max", ConfigKeyType.TIME),
        ("kafka.request_size_max", ConfigKeyType.BYTES),
        ("storage.cleaning_bytes_per_second_max", ConfigKeyType.BYTES),
        ("topics.dirty_ratio_min", ConfigKeyType.RATIO),
        ("topics.durability", ConfigKeyType.CHOICE),
        ("node.insecure", ConfigKeyType.SWITCH),
        ("kafka.advertise", ConfigKeyType.ENDPOINT),
        ("node.data", ConfigKeyType.PATH),
        ("cluster.etcd", ConfigKeyType.SERVER_URLS),
        ("cluster.etcd_key_file", ConfigKeyType.PATH),
        ("cluster.peer_advertised", ConfigKeyType.ENDPOINT),
    ],
)
def test_what_sort_of_value_a_key_has_follows_from_its_field(path, kind):
    assert KEYS[path].kind is kind


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.path)
def test_every_default_is_shown_so_that_it_can_be_written(key):
    assert parse_value(key, display_value(key, key.default)) == key.default
    assert describe_allowed(key)


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.path)
def test_a_number_has_limits_and_a_choice_has_choices(key):
    assert (key.limits is not None) == (
        key.kind in (ConfigKeyType.COUNT, ConfigKeyType.BYTES, ConfigKeyType.TIME)
    )
    assert bool(key.choices) == (key.kind is ConfigKeyType.CHOICE)
    has_short_name = key.path in ("node.id", "cluster.name")
    assert not key.flag or key.short_variable or has_short_name
