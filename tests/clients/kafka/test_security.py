"""Settings of TLS and logins: what precedes what, and which do not fit together."""

from __future__ import annotations

import pytest

from millstream.clients.kafka.login import KafkaLogin, LoginMechanism
from millstream.clients.kafka.security import (
    NO_SECURITY,
    VARIABLES,
    KafkaSecurity,
    absolute_files,
    parse_security,
)
from millstream.clients.tls import ClientTls
from millstream.errors import InvalidConfig

LOGIN = {"user": "alice", "password_file": "/p"}


def parse(given, environment=None, **more):
    return parse_security(given, environment=environment or {}, **more)


def test_nothing_is_clear_text_without_a_login():
    assert parse({}) == NO_SECURITY


@pytest.mark.parametrize(
    ("given", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"ca_file": "/c"}, "SSL"),
        (LOGIN, "SASL_SSL"),
        ({**LOGIN, "protocol": "sasl_plaintext"}, "SASL_PLAINTEXT"),
        ({"protocol": "ssl"}, "SSL"),
    ],
)
def test_the_protocol_follows_from_the_other_settings(given, protocol):
    assert parse(given).settings()["protocol"] == protocol


def test_the_address_of_the_same_node_tells_of_tls():
    assert parse({}, is_tls=True) == KafkaSecurity(tls=ClientTls())


def test_what_is_given_precedes_defaults_and_those_precede_the_environment():
    environment = {VARIABLES["user"]: "carol", VARIABLES["password_file"]: "/of-carol"}
    assert parse({}, environment).login == KafkaLogin(user="carol", password_file="/of-carol")
    assert parse({}, environment, defaults={"user": "bob"}).login.user == "bob"
    found = parse({"user": "alice"}, environment, defaults={"user": "bob"}).login
    assert found == KafkaLogin(user="alice", password_file="/of-carol")


def test_a_variable_that_is_not_needed_is_left_alone():
    environment = {VARIABLES["user"]: "carol", VARIABLES["ca_file"]: "/c"}
    assert parse({"protocol": "PLAINTEXT"}, environment) == NO_SECURITY


def test_only_the_environment_can_have_the_password_itself(monkeypatch):
    login = parse({"user": "alice"}, {"MILLSTREAM_PASSWORD": "correct horse"}).login
    assert login == KafkaLogin(user="alice")
    assert "correct horse" not in repr(login)
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "correct horse")
    assert login.password() == "correct horse"
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "x" * 2000)
    with pytest.raises(InvalidConfig, match="must have 1 to 1024 characters, got 2000"):
        login.password()


def test_a_password_that_is_not_text_is_not_repeated(tmp_path):
    file = tmp_path / "password"
    file.write_bytes(b"correct \xff horse")
    with pytest.raises(InvalidConfig, match="it is not text") as caught:
        KafkaLogin(user="alice", password_file=str(file)).password()
    assert caught.value.__cause__ is None
    assert "horse" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"protocol": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, got 'TLS'"),
        ({"protocol": "SSL", "user": "a"}, "--user requires protocol SASL_SSL, got SSL"),
        ({"protocol": "SASL_PLAINTEXT", "ca_file": "a"}, "ca_file requires protocol SSL or SASL"),
        ({"protocol": "SASL_SSL"}, "--user must be set if protocol is SASL_SSL"),
        ({"user": "a"}, "password_file must be set if protocol is SASL_SSL, or the variable"),
        ({**LOGIN, "mechanism": "GSSAPI"}, "mechanism must be one of SCRAM-SHA-256, SCRAM-SHA"),
        ({"cert_file": "a"}, "key_file must be set together with cert_file"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(given, message):
    with pytest.raises(InvalidConfig) as caught:
        parse(given, names={"user": "--user"})
    assert message in str(caught.value)


def test_settings_make_the_same_security_elsewhere():
    given = {**LOGIN, "ca_file": "/c", "cert_file": "/d", "key_file": "/e", "mechanism": "PLAIN"}
    security = parse(given)
    assert security.login.mechanism is LoginMechanism.PLAIN
    assert parse(security.settings()) == security
    assert parse(NO_SECURITY.settings()) == NO_SECURITY


def test_relative_paths_start_at_the_home_of_the_settings():
    settings = {"ca_file": "certs/ca.pem", "password_file": "/p", "user": "certs/ca.pem"}
    assert absolute_files(settings, "/home/etl") == {
        "ca_file": "/home/etl/certs/ca.pem",
        "password_file": "/p",
        "user": "certs/ca.pem",
    }


def test_files_of_certificates_of_the_environment_are_used_if_none_are_given():
    environment = {"MILLSTREAM_CA_FILE": "/c"}
    assert ClientTls().or_environment(environment) == ClientTls(ca_file="/c")
    given = ClientTls(cert_file="/d", key_file="/e")
    assert given.or_environment(environment) is given
