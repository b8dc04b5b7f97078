"""A setting is checked once, and a wrong one is named together with what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from millstream.config import (
    PORT_MAX,
    BrokerConfig,
    Durability,
    Endpoint,
    KafkaConfig,
    LogConfig,
    NodeConfig,
    StoreConfig,
    durability_named,
    endpoint_named,
    is_loopback,
    settings_of,
)
from millstream.errors import InvalidConfig

CONFIGS = [LogConfig, StoreConfig, BrokerConfig, KafkaConfig, NodeConfig]
NO_NUMBERS = {
    LogConfig: {"durability"},
    BrokerConfig: {"auto_create_topics"},
    NodeConfig: {
        "data", "kafka", "http", "advertised", "is_insecure", "broker", "door", "log", "store",
    },
}  # fmt: skip
LIMITS = [
    pytest.param(config, name, least, most, id=f"{config.__name__}.{name}")
    for config in CONFIGS
    for name, (least, most) in config._limits.items()
]

NO_WHOLE_NUMBER = [None, "1024", 1024.0, float("nan"), True, [1024], Durability.FSYNC]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_whole_number_has_limits(config):
    numbers = {field.name for field in dataclasses.fields(config) if field.type == "int"}
    others = {field.name for field in dataclasses.fields(config)} - numbers
    assert numbers == set(config._limits)
    assert others == NO_NUMBERS.get(config, set())


PARTNERS = {
    "group_session_timeout_ms_min": "group_session_timeout_ms_max",
    "group_session_timeout_ms_max": "group_session_timeout_ms_min",
}
"""Settings of which one bounds the other."""


@pytest.mark.parametrize(("config", "name", "least", "most"), LIMITS)
def test_a_number_may_be_as_small_and_as_large_as_its_limits(config, name, least, most):
    partner = PARTNERS.get(name)
    for value in (least, most):
        settings = {name: value} if partner is None else {name: value, partner: value}
        assert getattr(config(**settings), name) == value


@pytest.mark.parametrize(("config", "name", "least", "most"), LIMITS)
def test_a_number_outside_its_limits_is_refused_with_key_value_and_range(config, name, least, most):
    for value in (least - 1, most + 1, -(2**70), 2**70):
        with pytest.raises(InvalidConfig) as caught:
            config(**{name: value})
        assert str(caught.value) == f"{name} is {value}, allowed is {least} to {most}"


@pytest.mark.parametrize("value", NO_WHOLE_NUMBER, ids=repr)
@pytest.mark.parametrize(("config", "name", "least", "most"), LIMITS)
def test_what_is_no_whole_number_is_refused_with_key_and_value(config, name, least, most, value):
    with pytest.raises(InvalidConfig) as caught:
        config(**{name: value})
    assert str(caught.value) == f"{name} is {value!r}, a whole number is needed"


@pytest.mark.parametrize("value", ["fsync", "FSYNC", None, 1, True], ids=repr)
def test_a_durability_that_is_none_is_refused_with_all_that_are(value):
    with pytest.raises(InvalidConfig) as caught:
        LogConfig(durability=value)
    assert str(caught.value) == (
        f"durability is {value!r}, allowed is ephemeral, memory, disk, fsync"
    )


@pytest.mark.parametrize("kind", Durability)
def test_a_durability_is_found_by_its_name(kind):
    assert durability_named(kind.value) is kind


@pytest.mark.parametrize("name", ["", "FSYNC", "sync", " fsync", "fsync\n", None], ids=repr)
def test_an_unknown_durability_is_refused_with_all_that_are_known(name):
    with pytest.raises(InvalidConfig) as caught:
        durability_named(name)
    assert str(caught.value) == (
        f"durability is {name!r}, allowed is ephemeral, memory, disk, fsync"
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_the_defaults_are_within_their_limits(config):
    default = config()
    for name, (least, most) in config._limits.items():
        assert least <= getattr(default, name) <= most


def test_the_default_loses_no_data():
    assert LogConfig().durability is Durability.FSYNC


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_never_changes(config):
    name = next(iter(config._limits))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config(), name, 1)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_changed_copy_is_checked_too(config):
    name = next(iter(config._limits))
    with pytest.raises(InvalidConfig, match=name):
        dataclasses.replace(config(), **{name: -1})


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_takes_its_settings_by_name_only(config):
    with pytest.raises(TypeError):
        config(1024)
    with pytest.raises(TypeError, match="no_such_setting"):
        config(no_such_setting=1)


@pytest.mark.parametrize("config", [LogConfig, StoreConfig])
def test_settings_come_out_as_plain_values(config):
    settings = settings_of(config())
    assert list(settings) == [field.name for field in dataclasses.fields(config)]
    assert {type(value) for value in settings.values()} <= {int, str}


def test_settings_name_the_durability_as_it_is_written():
    assert settings_of(LogConfig(durability=Durability.DISK))["durability"] == "disk"


# Where a node is reached.


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:9092", Endpoint("127.0.0.1", 9092)),
        ("localhost:0", Endpoint("localhost", 0)),
        ("[::1]:65535", Endpoint("::1", PORT_MAX)),
        ("::1:9092", Endpoint("::1", 9092)),
        ("node-1.example:80", Endpoint("node-1.example", 80)),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(text, endpoint):
    assert endpoint_named(text, name="--kafka") == endpoint


@pytest.mark.parametrize(
    "text",
    ["", ":", "9092", "127.0.0.1", "127.0.0.1:", ":9092", "127.0.0.1:65536", "127.0.0.1:-1",
     "127.0.0.1:9092 ", "127.0.0.1:1e3", "[]:9092"],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused_with_what_was_found_and_what_is_needed(text):
    with pytest.raises(InvalidConfig) as caught:
        endpoint_named(text, name="--kafka")
    assert str(caught.value) == (
        f"--kafka is {text!r}, needed is HOST:PORT with a port of 0-{PORT_MAX}"
    )


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        (Endpoint("127.0.0.1", 9092), "127.0.0.1:9092"),
        (Endpoint("::1", 9092), "[::1]:9092"),
        (Endpoint("localhost", 0), "localhost:0"),
    ],
)
def test_an_endpoint_is_written_so_that_it_can_be_read_again(endpoint, text):
    assert str(endpoint) == text
    assert endpoint_named(text, name="x") == endpoint


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_only_this_machine_reaches_a_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "127.0.0.1.de"])
def test_everything_else_may_be_reached_by_others(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("door", ["kafka", "http"])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::"])
def test_a_door_for_others_has_to_be_allowed(door, host):
    with pytest.raises(InvalidConfig, match=f"{door} is .* allowed with --insecure"):
        NodeConfig(**{door: Endpoint(host, 1)})


@pytest.mark.parametrize("door", ["kafka", "http"])
def test_a_door_for_others_opens_where_that_is_allowed(door):
    config = NodeConfig(**{door: Endpoint("10.0.0.1", 1)}, is_insecure=True)
    assert getattr(config, door).host == "10.0.0.1"


def test_a_node_without_any_settings_serves_this_machine_alone():
    config = NodeConfig()
    assert is_loopback(config.kafka.host)
    assert is_loopback(config.http.host)
    assert config.data == "./millstream-data"
    assert config.log.durability is Durability.FSYNC


def test_the_shortest_session_cannot_be_longer_than_the_longest():
    with pytest.raises(InvalidConfig, match="group_session_timeout_ms_min is 10000, allowed is up"):
        BrokerConfig(group_session_timeout_ms_min=10_000, group_session_timeout_ms_max=9_000)


def test_a_switch_is_true_or_false():
    with pytest.raises(InvalidConfig, match="auto_create_topics is 'no', allowed is True or False"):
        BrokerConfig(auto_create_topics="no")


@pytest.mark.parametrize("text", ["http://localhost:80", "me@localhost:80", "local host:80"])
def test_an_address_is_no_url(text):
    with pytest.raises(InvalidConfig, match="needed is HOST:PORT"):
        endpoint_named(text, name="--kafka")
