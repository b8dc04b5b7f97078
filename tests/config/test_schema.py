"""Configs validate their fields, and errors name the field and what is allowed."""

from __future__ import annotations

import dataclasses
import re

import pytest

from millstream.config.schema import (
    PORT_MAX,
    AccessConfig,
    BrokerConfig,
    ClientAuth,
    ClusterConfig,
    Discard,
    Durability,
    Endpoint,
    EventFormat,
    EventLevel,
    HttpConfig,
    KafkaConfig,
    LogConfig,
    LoggingConfig,
    NativeConfig,
    NodeConfig,
    StoreConfig,
    TelemetryConfig,
    TierConfig,
    TlsConfig,
    is_loopback,
    parse_durability,
    parse_endpoint,
    settings_of,
)
from millstream.errors import InvalidConfig

CONFIGS = [
    LogConfig,
    StoreConfig,
    TierConfig,
    BrokerConfig,
    KafkaConfig,
    HttpConfig,
    NodeConfig,
    TelemetryConfig,
    ClusterConfig,
]
NO_NUMBERS = {
    LogConfig: {"durability", "discard", "is_compacted", "is_tiered", "dirty_ratio_min"},
    TierConfig: {"store"},
    StoreConfig: {"replay_priority", "maintenance_cpus"},
    BrokerConfig: {"auto_create_topics", "adopt_topics"},
    HttpConfig: {"access_log", "allowed_hosts", "allowed_origins", "console"},
    NodeConfig: {
        "data", "kafka", "http", "native", "advertised", "is_insecure", "broker", "kafka_server",
        "http_server", "native_server", "log",
        "store", "logging", "telemetry", "cluster", "cpus", "tls", "access",
        "oauth", "outbound", "tier",
    },
    NativeConfig: {"default_topic"},
    TelemetryConfig: {"traces", "protocol", "traces_ratio", "metrics", "endpoint", "service_name"},
    ClusterConfig: {
        "etcd", "name", "etcd_user", "etcd_password_file", "etcd_ca_file", "etcd_cert_file",
        "etcd_key_file", "rack", "replica_selector", "peer", "peer_advertised", "peer_ca_file",
        "peer_cert_file", "peer_key_file",
    },
}  # fmt: skip
LIMITS = [
    pytest.param(config, name, least, most, id=f"{config.__name__}.{name}")
    for config in CONFIGS
    for name, (least, most) in config._limits.items()
]

OPTIONAL = [
    pytest.param(config, name, id=f"{config.__name__}.{name}")
    for config in CONFIGS
    for name in sorted(config._optional)
]

REQUIRED = [limit for limit in LIMITS if limit.values[1] not in limit.values[0]._optional]

NO_WHOLE_NUMBER = ["1024", 1024.0, float("nan"), True, [1024], Durability.FSYNC]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_whole_number_has_limits(config):
    kinds = {field.name: field.type for field in dataclasses.fields(config)}
    numbers = {name for name, kind in kinds.items() if kind in ("int", "int | None")}
    optional = {name for name, kind in kinds.items() if kind == "int | None"}
    others = {field.name for field in dataclasses.fields(config)} - numbers
    assert numbers == set(config._limits)
    assert optional == config._optional
    assert others == NO_NUMBERS.get(config, set())


PARTNERS = {
    "group_session_timeout_ms_min": "group_session_timeout_ms_max",
    "group_session_timeout_ms_max": "group_session_timeout_ms_min",
    "drain_notice_ms": "drain_ms_max",
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
        assert str(caught.value) == f"{name} must be between {least} and {most}, got {value}"


@pytest.mark.parametrize("value", NO_WHOLE_NUMBER, ids=repr)
@pytest.mark.parametrize(("config", "name", "least", "most"), LIMITS)
def test_what_is_no_whole_number_is_refused_with_key_and_value(config, name, least, most, value):
    with pytest.raises(InvalidConfig) as caught:
        config(**{name: value})
    assert str(caught.value) == f"{name} must be a whole number, got {value!r}"


@pytest.mark.parametrize(("config", "name", "least", "most"), REQUIRED)
def test_a_required_number_cannot_be_none(config, name, least, most):
    with pytest.raises(InvalidConfig, match=f"{name} must be a whole number, got None"):
        config(**{name: None})


@pytest.mark.parametrize(("config", "name"), OPTIONAL)
def test_a_limit_that_may_be_left_out_is_left_out_unless_it_is_set(config, name):
    assert getattr(config(), name) is None
    assert getattr(config(**{name: None}), name) is None


@pytest.mark.parametrize("value", ["old", "OLD", None, 1, Durability.FSYNC], ids=repr)
def test_a_discard_that_is_none_is_refused_with_all_that_are(value):
    with pytest.raises(InvalidConfig) as caught:
        LogConfig(discard=value)
    assert str(caught.value) == f"discard must be one of old, reject, got {value!r}"


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 1, 1.0])
def test_a_ratio_may_be_anything_from_0_to_1(value):
    assert LogConfig(dirty_ratio_min=value).dirty_ratio_min == value


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf"), "0.5", None, True])
def test_what_is_no_ratio_is_refused(value):
    with pytest.raises(InvalidConfig) as caught:
        LogConfig(dirty_ratio_min=value)
    assert str(caught.value) == (f"dirty_ratio_min must be a number from 0 to 1, got {value!r}")


def test_a_log_is_compacted_or_not():
    with pytest.raises(InvalidConfig, match="is_compacted must be True or False, got 1"):
        LogConfig(is_compacted=1)


def test_compaction_cannot_have_to_wait_longer_than_it_may():
    LogConfig(compaction_lag_ms_min=5, compaction_lag_ms_max=5)
    with pytest.raises(InvalidConfig) as caught:
        LogConfig(compaction_lag_ms_min=6, compaction_lag_ms_max=5)
    assert str(caught.value) == (
        "compaction_lag_ms_min must be at most compaction_lag_ms_max, which is 5, got 6"
    )


def test_the_default_removes_nothing():
    config = LogConfig()
    limits = (config.retention_ms, config.retention_bytes, config.retention_records)
    assert limits == (None, None, None)
    assert config.discard is Discard.OLD
    assert not config.is_compacted


@pytest.mark.parametrize("value", ["fsync", "FSYNC", None, 1, True], ids=repr)
def test_a_durability_that_is_none_is_refused_with_all_that_are(value):
    with pytest.raises(InvalidConfig) as caught:
        LogConfig(durability=value)
    assert str(caught.value) == (
        f"durability must be one of ephemeral, memory, disk, fsync, got {value!r}"
    )


@pytest.mark.parametrize("kind", Durability)
def test_a_durability_is_found_by_its_name(kind):
    assert parse_durability(kind.value) is kind


@pytest.mark.parametrize("name", ["", "FSYNC", "sync", " fsync", "fsync\n", None], ids=repr)
def test_an_unknown_durability_is_refused_with_all_that_are_known(name):
    with pytest.raises(InvalidConfig) as caught:
        parse_durability(name)
    assert str(caught.value) == (
        f"durability must be one of ephemeral, memory, disk, fsync, got {name!r}"
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_the_defaults_are_within_their_limits(config):
    default = config()
    for name, (least, most) in config._limits.items():
        value = getattr(default, name)
        assert value is None or least <= value <= most


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
    assert {type(value) for value in settings.values()} <= {int, str, float, bool, type(None)}


def test_settings_name_what_can_be_chosen_as_it_is_written():
    settings = settings_of(LogConfig(durability=Durability.DISK, discard=Discard.REJECT))
    assert (settings["durability"], settings["discard"]) == ("disk", "reject")


def test_a_limit_that_was_left_out_comes_out_as_nothing():
    settings = settings_of(LogConfig(retention_bytes=5))
    assert (settings["retention_ms"], settings["retention_bytes"]) == (None, 5)


@pytest.mark.parametrize("value", ["info", None, 20, EventFormat.JSON], ids=repr)
def test_a_level_that_is_none_is_refused_with_all_that_are(value):
    with pytest.raises(InvalidConfig) as caught:
        LoggingConfig(level=value)
    assert str(caught.value) == f"level must be one of debug, info, warning, error, got {value!r}"


@pytest.mark.parametrize("value", ["json", None, EventLevel.INFO], ids=repr)
def test_a_format_that_is_none_is_refused_with_all_that_are(value):
    with pytest.raises(InvalidConfig) as caught:
        LoggingConfig(format=value)
    assert str(caught.value) == f"format must be one of auto, json, pretty, got {value!r}"


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
    assert parse_endpoint(text, name="--kafka") == endpoint


@pytest.mark.parametrize(
    "text",
    ["", ":", "9092", "127.0.0.1", "127.0.0.1:", ":9092", "127.0.0.1:65536", "127.0.0.1:-1",
     "127.0.0.1:9092 ", "127.0.0.1:1e3", "[]:9092"],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused_with_what_was_found_and_what_is_needed(text):
    with pytest.raises(InvalidConfig) as caught:
        parse_endpoint(text, name="--kafka")
    assert str(caught.value) == (
        f"--kafka must be HOST:PORT with a port from 0 to {PORT_MAX}, got {text!r}"
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
    assert parse_endpoint(text, name="x") == endpoint


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_only_this_machine_reaches_a_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "127.0.0.1.de"])
def test_everything_else_may_be_reached_by_others(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("name", ["kafka", "http"])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::"])
def test_a_listener_for_other_machines_has_to_be_allowed(name, host):
    with pytest.raises(InvalidConfig, match=f"{name} is .* allowed with --insecure"):
        NodeConfig(**{name: Endpoint(host, 1)})


@pytest.mark.parametrize("name", ["kafka", "http"])
def test_a_listener_for_other_machines_opens_if_it_is_allowed(name):
    config = NodeConfig(**{name: Endpoint("10.0.0.1", 1)}, is_insecure=True)
    assert getattr(config, name).host == "10.0.0.1"


MUTUAL = TlsConfig(cert_file="c", key_file="k", ca_file="a", client_auth=ClientAuth.REQUIRE)


def test_a_listener_for_other_machines_opens_by_tls_with_certificates_or_logins():
    everywhere = Endpoint("0.0.0.0", 1)
    assert NodeConfig(kafka=everywhere, http=everywhere, tls=MUTUAL).tls.is_on
    for auth in (ClientAuth.NONE, ClientAuth.REQUEST):
        tls = dataclasses.replace(MUTUAL, client_auth=auth)
        with pytest.raises(InvalidConfig, match="allowed with --insecure"):
            NodeConfig(kafka=everywhere, tls=tls)
        assert NodeConfig(kafka=everywhere, tls=tls, access=AccessConfig(enabled=True))
    with pytest.raises(InvalidConfig, match="allowed with --insecure"):  # In clear text.
        NodeConfig(kafka=everywhere, access=AccessConfig(enabled=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cert_file": "c"}, "key_file must be set together with cert_file"),
        ({"key_file": "k"}, "cert_file must be set together with key_file"),
        (
            {"cert_file": "c", "key_file": "k", "client_auth": ClientAuth.REQUEST},
            "ca_file must be set if client_auth is request",
        ),
        (
            {"ca_file": "a", "client_auth": ClientAuth.REQUIRE},
            "cert_file must be set if client_auth is require",
        ),
        ({"client_auth": "require"}, "client_auth must be one of none, request, require"),
        ({"principal_rules": "RULE:("}, "principal_rules: a rule must be DEFAULT or RULE:"),
    ],
)
def test_settings_of_tls_that_do_not_fit_together_are_named(settings, message):
    with pytest.raises(InvalidConfig, match=re.escape(message)):
        TlsConfig(**settings)


def test_a_node_without_any_settings_serves_this_machine_alone():
    config = NodeConfig()
    assert is_loopback(config.kafka.host)
    assert is_loopback(config.http.host)
    assert config.data == "./millstream-data"
    assert config.log.durability is Durability.FSYNC


def test_the_shortest_session_cannot_be_longer_than_the_longest():
    with pytest.raises(InvalidConfig, match="group_session_timeout_ms_min must be at most"):
        BrokerConfig(group_session_timeout_ms_min=10_000, group_session_timeout_ms_max=9_000)


def test_a_switch_is_true_or_false():
    with pytest.raises(InvalidConfig, match="auto_create_topics must be True or False, got 'no'"):
        BrokerConfig(auto_create_topics="no")


@pytest.mark.parametrize("text", ["http://localhost:80", "me@localhost:80", "local host:80"])
def test_an_address_is_no_url(text):
    with pytest.raises(InvalidConfig, match="must be HOST:PORT"):
        parse_endpoint(text, name="--kafka")


# The cluster.


def test_a_node_without_etcd_is_alone():
    assert ClusterConfig().is_lone
    assert not ClusterConfig(etcd=("http://10.0.0.1:2379", "https://[::1]:2379")).is_lone


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"etcd": ("10.0.0.1:2379",)}, "etcd must be URLs http://HOST:PORT"),
        ({"etcd": ("http://10.0.0.1",)}, "etcd must be URLs http://HOST:PORT"),
        ({"etcd": ("http://10.0.0.1:2379/v3",)}, "etcd must be URLs http://HOST:PORT"),
        ({"etcd": ("http://user:word@10.0.0.1:2379",)}, "etcd must be URLs http://HOST:PORT"),
        ({"name": "a/b"}, "name must be 1 to 100 letters"),
        ({"name": ""}, "name must be 1 to 100 letters"),
        ({"rack": "a\nb"}, "rack must be 1 to 200 printable"),
        ({"etcd_user": "u"}, "etcd_password_file must be set together with etcd_user"),
        ({"etcd_password_file": "f"}, "etcd_user must be set together with etcd_password_file"),
        ({"etcd_cert_file": "f"}, "etcd_key_file must be set together with etcd_cert_file"),
        ({"etcd_key_file": "f"}, "etcd_cert_file must be set together with etcd_key_file"),
        ({"peer_cert_file": "f"}, "peer_key_file must be set together with peer_cert_file"),
        ({"peer_ca_file": "f"}, "peer_cert_file must be set together with peer_ca_file"),
        (
            {"peer_cert_file": "f", "peer_key_file": "f"},
            "peer_ca_file must be set together with peer_cert_file",
        ),
    ],
)
def test_settings_of_a_cluster_that_cannot_be_are_refused(settings, message):
    with pytest.raises(InvalidConfig, match=message):
        ClusterConfig(**settings)


def test_a_replica_selector_is_one_of_two():
    with pytest.raises(InvalidConfig, match="replica_selector must be one of"):
        ClusterConfig(replica_selector="rack")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"enabled": 1}, "enabled must be True or False, got 1"),
        ({"super_users": "root"}, "super_users must be names of users"),
        ({"super_users": ("a,b",)}, "super_users must be names of users"),
        ({"super_users": ("a\n",)}, "super_users must be names of users"),
        ({"plain_without_tls": 1}, "plain_without_tls must be True or False, got 1"),
        ({"sasl_mechanisms": ("PLAIN",)}, "sasl_mechanisms must be names of mechanisms: SCRAM"),
        ({"scram_iterations": 4095}, "scram_iterations must be between 4096 and 1000000, got 4095"),
        ({"session_ms_max": -1}, "session_ms_max must be between 0 and"),
        ({"reads": "open"}, "reads must be one of closed, open, got 'open'"),
    ],
)
def test_rights_are_configured_in_words_that_are_checked(fields, words):
    with pytest.raises(InvalidConfig, match=words):
        AccessConfig(**fields)


def test_a_node_has_no_logins_by_default():
    assert not NodeConfig().access.enabled
