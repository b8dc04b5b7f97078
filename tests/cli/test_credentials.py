"""Commands connect to a node with TLS and logins: credentials from files and variables."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from millstream import Client
from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.principal import user
from millstream.broker.access.sasl.scram import make_credential
from millstream.cli.main import main
from millstream.clients.kafka.security import VARIABLES
from millstream.config.schema import AccessConfig, TlsConfig
from millstream.testing.broker import running_broker
from tests.servers.peer.certificates import Authority

PASSWORD = "correct horse"
ROOT = Caller(user("root"), "127.0.0.1")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (*VARIABLES.values(), "MILLSTREAM_PASSWORD", "MILLSTREAM_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class Place:
    """A node, and files with what is needed to log in."""

    def __init__(self, node, folder, authority):
        self.node = node
        self.folder = folder
        self.ca_file = authority.certificate
        self.password_file = folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        gate = node.server.broker.access
        made = make_credential(ScramMechanism.SHA_256, PASSWORD, salt=b"s", iterations=4096)
        node.run(gate.put_scram("root", ScramMechanism.SHA_256, made, by=ROOT))
        _, self.token = node.run(gate.create_token(user("root"), by=ROOT))
        self.token_file = folder / "token"
        self.token_file.write_text(self.token)

    def http(self):
        return [
            *("--server", self.node.url),
            *("--ca-file", self.ca_file),
            *("--token-file", str(self.token_file)),
        ]

    def kafka(self):
        return ["--user", "root", "--password-file", str(self.password_file)]

    def run(self, *words, status=0, **environment):
        done = CliRunner(env=environment).invoke(main, [str(word) for word in words])
        assert done.exit_code == status, (done.output, done.exception)
        assert PASSWORD not in done.output
        assert self.token.rpartition("_")[2] not in done.output
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    authority = Authority(folder)
    certificate = authority.issue("node")
    tls = TlsConfig(cert_file=certificate, key_file=certificate)
    access = AccessConfig(enabled=True, super_users=("root",), scram_iterations=4096)
    with running_broker(folder / "data", access=access, tls=tls) as node:
        node.run(node.server.broker.topics.create("orders", partitions=2))
        yield Place(node, folder, authority)


def test_verify_reads_a_node_as_a_user(place):
    options = ("verify", "--bootstrap", place.node.bootstrap, "--topic", "orders", "--json")
    done = place.run(*options, *place.kafka(), "--ca-file", place.ca_file)
    assert json.loads(done.stdout)["is_sound"]
    variables = {
        "MILLSTREAM_USER": "root",
        "MILLSTREAM_PASSWORD": PASSWORD,
        "MILLSTREAM_CA_FILE": place.ca_file,
    }
    assert json.loads(place.run(*options, **variables).stdout)["is_sound"]


def test_verify_with_a_wrong_password_says_so(place, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_text("battery staple")
    login = ("--user", "root", "--password-file", wrong, "--ca-file", place.ca_file)
    done = place.run("verify", "--bootstrap", place.node.bootstrap, *login, status=1)
    assert "the login failed" in done.stderr
    assert "battery" not in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--user", "root"], "--password-file must be set if --security-protocol is SASL_SSL"),
        (["--password-file", "p"], "--password-file requires --security-protocol SASL_SSL"),
        (["--security-protocol", "TLS"], "--security-protocol must be one of PLAINTEXT, SSL"),
        (["--cert-file", "c"], "--key-file must be set together with --cert-file"),
    ],
)
def test_options_that_do_not_fit_together_are_wrong_usage(place, options, message):
    done = place.run("verify", "--bootstrap", place.node.bootstrap, *options, status=2)
    assert message in done.stderr


def test_bench_measures_both_servers(place):
    options = ("--node", "--seconds", "0.05", "--bootstrap", place.node.bootstrap, "--json")
    command = ("bench", "--data", place.folder, *options)
    done = place.run(*command, *place.http(), *place.kafka())
    assert {row["what"] for row in json.loads(done.stdout)} >= {"http: append", "kafka: produce"}
    without = place.run(*command, *place.http())
    assert "it may need a login (--user)" in without.stderr


def test_bench_load_logs_in_on_every_connection(place):
    options = ("--seconds", "0.2", "--connections", "2", "--rate", "100", "--json")
    done = place.run("bench", "load", *options, *place.http())
    report = json.loads(done.stdout)
    assert report["stored"] == report["acknowledged"] > 0


def test_chaos_writes_and_reads_as_a_user(place):
    ledger = place.folder / "ledger.jsonl"
    options = ("--duration", "0.5", "--partitions", "1", "--settle", "10", "--ledger", ledger)
    command = ("chaos", "run", *options, "--bootstrap", place.node.bootstrap, "--json")
    report = json.loads(place.run(*command, *place.http(), *place.kafka()).stdout)
    assert report["problems"] == []
    assert report["read"] == report["acknowledged"] > 0
    assert PASSWORD not in ledger.read_text()


def test_commands_of_topics_groups_and_queues_log_in_by_variables(place):
    variables = {
        "MILLSTREAM_SERVER": place.node.url,
        "MILLSTREAM_TOKEN_FILE": str(place.token_file),
        "MILLSTREAM_CA_FILE": place.ca_file,
    }
    assert "orders" in place.run("topic", "list", **variables).stdout
    place.run("group", "list", **variables)
    place.run("queue", "list", **variables)
    assert (
        "not valid"
        in place.run(
            "topic", "list", status=1, **variables | {"MILLSTREAM_TOKEN": "ms_4f1d0c9a2b7e_x"}
        ).stderr
    )


def test_a_client_takes_everything_from_the_environment(place, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_TOKEN_FILE", str(place.token_file))
    monkeypatch.setenv("MILLSTREAM_CA_FILE", place.ca_file)
    with Client(place.node.url) as client:
        client.append("orders", {"n": 1})
        assert client.topic("orders").describe().count > 0


def test_no_option_is_a_secret(place):
    for command in ("verify", "bench", "chaos run", "jobs replay", "pipeline run", "topic list"):
        said = place.run(*command.split(), "--help").stdout
        assert "--password-file" in said or command == "topic list"
        assert "--password " not in said
        assert "--token " not in said
