"""`millstream access users`: passwords that no command line and no request carries."""

from __future__ import annotations

import json
import logging
import stat

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from millstream.cli.access import users as users_module
from millstream.cli.main import main
from millstream.config.schema import AccessConfig
from millstream.testing.broker import running_broker

from .test_access import Site, no_token  # noqa: F401 - a fixture.

PASSWORD = "correct horse, ünïcode"


@pytest.fixture
def site(tmp_path):
    data = tmp_path / "data"
    made = CliRunner().invoke(main, ["access", "init", "--data", str(data)])
    assert made.exit_code == 0, made.output
    admin = tmp_path / "admin.token"
    admin.write_text(made.stdout)
    access = AccessConfig(enabled=True, super_users=("root",))
    with running_broker(data, access=access) as node:
        yield Site(node, admin, tmp_path)


def password_file(site, password=PASSWORD):
    file = site.path / "password"
    file.touch(mode=stat.S_IRUSR | stat.S_IWUSR)
    file.write_text(password + "\n")
    return str(file)


def log_in(site, name, password, mechanism="SCRAM-SHA-256"):
    """Return whether librdkafka can log in."""
    admin = AdminClient(
        {
            "bootstrap.servers": site.node.bootstrap,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "log_level": 0,
        },
        logger=logging.getLogger("quiet"),
    )
    try:
        return bool(admin.list_topics(timeout=5).brokers)
    except Exception:  # noqa: BLE001 - that it cannot log in is the answer.
        return False


@pytest.mark.parametrize("mechanism", users_module.MECHANISMS)
def test_a_client_logs_in_with_the_password_that_was_set(site, mechanism):
    done = site.run("access", "users", "set", "alice", "--password-file", password_file(site))
    assert done.stdout == "set the password of alice (SCRAM-SHA-256, SCRAM-SHA-512)\n"
    assert log_in(site, "alice", PASSWORD, mechanism)
    assert not log_in(site, "alice", "wrong", mechanism)


def test_a_password_can_come_from_standard_input(site):
    words = ["access", "users", "set", "bob", "--password-file", "-", "--server", site.node.url]
    words += ["--token-file", str(site.admin), "--mechanism", "SCRAM-SHA-512"]
    done = CliRunner().invoke(main, words, input=PASSWORD + "\n")
    assert done.exit_code == 0, done.output
    assert log_in(site, "bob", PASSWORD, "SCRAM-SHA-512")
    described = json.loads(site.run("access", "users", "describe", "bob", "--json").stdout)
    assert described["credentials"] == [{"mechanism": "SCRAM-SHA-512", "iterations": 15_000}]


def test_without_a_file_the_command_asks_twice_and_shows_nothing(site, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    words = ["access", "users", "set", "carol", "--server", site.node.url]
    words += ["--token-file", str(site.admin)]
    runner = CliRunner()
    refused = runner.invoke(main, words, input="")
    assert refused.exit_code == 2
    assert "there is no terminal" in refused.output

    class Terminal:
        @staticmethod
        def isatty():
            return True

    monkeypatch.setattr(users_module.sys, "stdin", Terminal)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "unused")
    asked = []

    def hidden(prompt):
        asked.append(prompt)
        return PASSWORD

    monkeypatch.setattr("click.termui.hidden_prompt_func", hidden)
    assert users_module._password(None) == PASSWORD
    assert len(asked) == 2


def test_setting_a_password_replaces_the_former_one_for_all_mechanisms(site):
    first = password_file(site, "first")
    site.run("access", "users", "set", "alice", "--password-file", first)
    second = password_file(site, "second")
    site.run(
        "access", "users", "set", "alice", "--password-file", second, "--mechanism", "SCRAM-SHA-256"
    )
    assert log_in(site, "alice", "second")
    for mechanism in users_module.MECHANISMS:
        assert not log_in(site, "alice", "first", mechanism)


def test_users_are_listed_described_and_deleted(site):
    site.run("access", "users", "set", "alice", "--password-file", password_file(site))
    listed = json.loads(site.run("access", "users", "list", "--json").stdout)
    assert [item["user"] for item in listed["users"]] == ["alice"]
    assert "15000" in site.run("access", "users", "describe", "alice").stdout
    site.run("access", "users", "delete", "alice")
    assert not log_in(site, "alice", PASSWORD)
    assert "has no password" in site.run("access", "users", "delete", "alice", status=1).stderr
    assert "has no password" in site.run("access", "users", "describe", "alice", status=1).stderr


@pytest.mark.parametrize("iterations", ["4095", "1000001", "0"])
def test_too_few_or_too_many_rounds_are_refused(site, iterations):
    options = ["--password-file", password_file(site), "--iterations", iterations]
    done = site.run("access", "users", "set", "alice", *options, status=2)
    assert "4096<=x<=1000000" in done.stderr


@pytest.mark.parametrize("password", ["", "x" * 1025])
def test_a_password_without_a_sensible_length_is_refused(site, password):
    options = ["--password-file", password_file(site, password)]
    done = site.run("access", "users", "set", "alice", *options, status=1)
    assert "must have 1 to 1024 characters" in done.stderr


def test_only_a_super_user_sets_or_deletes_the_password_of_one(site):
    options = ["--password-file", password_file(site)]
    done = site.run("access", "users", "set", "root", *options, status=1)
    assert "only a super user can change the password of User:root" in done.stderr
    done = site.run("access", "users", "delete", "root", status=1)
    assert "only a super user can change the password of User:root" in done.stderr


def test_a_user_without_the_right_to_alter_the_cluster_sets_no_password(site):
    token = site.token("mallory")
    options = ["--password-file", password_file(site)]
    site.run("access", "users", "set", "mallory", *options, token=token, status=1)
    assert not log_in(site, "mallory", PASSWORD)


def test_the_password_is_in_no_file_of_the_node_and_in_no_output(site):
    done = site.run("access", "users", "set", "alice", "--password-file", password_file(site))
    assert PASSWORD not in done.output
    secret = PASSWORD.encode()
    data = site.path / "data"
    for file in data.rglob("*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file


def test_names_with_odd_characters_are_users_too(site):
    for name in ("a/b", "CN=alice,OU=x", "ü ser", "..", "%2e"):
        site.run("access", "users", "set", name, "--password-file", password_file(site))
        site.run("access", "users", "describe", name)
        site.run("access", "users", "delete", name)
