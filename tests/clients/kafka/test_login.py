"""Logins of our Kafka client, and servers that it does not trust."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.principal import user
from millstream.broker.access.sasl.scram import challenge, finish, make_credential
from millstream.broker.access.sasl.scram import read_client_first as read_first
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.login import KafkaLogin, LoginMechanism, begin_login
from millstream.clients.kafka.security import KafkaSecurity
from millstream.clients.tls import ClientTls
from millstream.config.schema import AccessConfig, TlsConfig
from millstream.errors import InvalidConfig, NotAuthenticated
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.peer.certificates import Authority

PASSWORD = "correct, horse="
USER = "al,i=ce"
ROOT = Caller(user("root"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    certificate = authority.issue("node")
    access = AccessConfig(enabled=True, super_users=(), scram_iterations=4096)
    tls = TlsConfig(cert_file=certificate, key_file=certificate)
    with running_broker(tmp_path_factory.mktemp("node"), access=access, tls=tls) as running:
        gate = running.server.broker.access
        assert gate is not None
        for mechanism in ScramMechanism:
            made = make_credential(mechanism, PASSWORD, salt=b"salt", iterations=4096)
            running.run(gate.put_scram(USER, mechanism, made, by=ROOT))
        yield running


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return path


@pytest.mark.parametrize("mechanism", LoginMechanism)
def test_the_client_logs_in(
    broker: RunningBroker, authority: Authority, password_file: Path, mechanism: LoginMechanism
) -> None:
    login = KafkaLogin(user=USER, password_file=str(password_file), mechanism=mechanism)
    tls = ClientTls(ca_file=authority.certificate)
    gate = broker.server.broker.access
    assert gate is not None
    before = gate.counters.logins[mechanism.value]
    with KafkaClient(broker.bootstrap, security=KafkaSecurity(tls=tls, login=login)) as client:
        assert client.topics() == {}
    assert gate.counters.logins[mechanism.value] == before + 1


def test_a_wrong_password_is_reported_at_once_and_not_tried_again(
    broker: RunningBroker, authority: Authority, password_file: Path
) -> None:
    password_file.write_text("wrong")
    login = KafkaLogin(user=USER, password_file=str(password_file))
    gate = broker.server.broker.access
    assert gate is not None
    before = gate.counters.failed_logins["SCRAM-SHA-256"]
    with (
        KafkaClient(
            broker.bootstrap,
            security=KafkaSecurity(tls=ClientTls(ca_file=authority.certificate), login=login),
        ) as client,
        pytest.raises(NotAuthenticated, match="the login failed"),
    ):
        client.topics()
    assert gate.counters.failed_logins["SCRAM-SHA-256"] == before + 1


def test_a_node_without_logins_is_not_sent_a_password(tmp_path: Path, password_file: Path) -> None:
    login = KafkaLogin(user=USER, password_file=str(password_file), mechanism=LoginMechanism.PLAIN)
    with (
        running_broker(tmp_path / "data") as broker,
        KafkaClient(broker.bootstrap, security=KafkaSecurity(login=login)) as client,
        pytest.raises(NotAuthenticated, match="offers none, not PLAIN"),
    ):
        client.topics()


def test_a_password_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "password"
    login = KafkaLogin(user="alice", password_file=str(path))
    with pytest.raises(InvalidConfig, match=r"password file .* cannot be read"):
        login.password()
    path.write_text("\n")
    with pytest.raises(InvalidConfig, match="must have 1 to 1024 characters"):
        login.password()
    path.write_text("secret\nmore")
    assert login.password() == "secret"


# Servers that are not what they seem.


def scram(password_file: Path) -> tuple[object, str]:
    exchange = begin_login(KafkaLogin(user="alice", password_file=str(password_file)), b"nonce")
    return exchange, next(exchange).decode()


def test_a_server_that_knows_the_password_is_trusted(password_file: Path) -> None:
    exchange, first = scram(password_file)
    made = make_credential(ScramMechanism.SHA_256, PASSWORD, salt=b"s", iterations=4096)
    answer, state = challenge(
        ScramMechanism.SHA_256,
        read_first(first.encode()),
        made,
        server_nonce="x",
        secret=b"",
        iterations=4096,
    )
    proof = exchange.send(answer)  # type: ignore[attr-defined]
    with pytest.raises(StopIteration):
        exchange.send(finish(state, proof))  # type: ignore[attr-defined]


def test_a_server_that_does_not_know_the_password_is_not_trusted(password_file: Path) -> None:
    exchange, first = scram(password_file)
    nonce = first.rpartition("r=")[2]
    exchange.send(f"r={nonce}x,s=c2FsdA==,i=4096".encode())  # type: ignore[attr-defined]
    forged = b"v=" + base64.b64encode(bytes(32))
    with pytest.raises(NotAuthenticated, match="does not know the password"):
        exchange.send(forged)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("r={nonce},s=c2FsdA==,i=4096", "does not continue that of the client"),
        ("r=x{nonce},s=c2FsdA==,i=4096", "does not continue that of the client"),
        ("r={nonce}x,s=c2FsdA==,i=1", "iterations must be between 4096"),
        ("r={nonce}x,s=c2FsdA==,i=99999999999", "iterations must be between 4096"),
        ("r={nonce}x,s=?,i=4096", "is wrong"),
        ("e=other-error", "has no nonce, salt and iterations"),
        ("", "has no nonce, salt and iterations"),
    ],
)
def test_a_challenge_that_weakens_the_proof_is_refused(
    password_file: Path, answer: str, reason: str
) -> None:
    exchange, first = scram(password_file)
    nonce = first.rpartition("r=")[2]
    with pytest.raises(NotAuthenticated, match=reason):
        exchange.send(answer.format(nonce=nonce).encode())  # type: ignore[attr-defined]
