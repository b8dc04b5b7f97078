"""Clients of others log in over TLS: by SCRAM, by PLAIN, and with certificates alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as ConfluentMechanism

from millstream import AsyncClient, Client, ClientConfig, ClientTls
from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import ScramMechanism
from millstream.broker.access.principal import user
from millstream.broker.access.resources import Operation, ResourceType
from millstream.broker.access.sasl.scram import make_credential, make_salt
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.security import parse_security
from millstream.config.schema import AccessConfig, ClientAuth, TlsConfig
from millstream.errors import NotAuthenticated
from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.chromium import running_chromium
from tests.servers.peer.certificates import Authority

from .conftest import TIMEOUT_S

with warnings.catch_warnings():
    # kafka-python loads its schemas through a part of the standard library that is on its way out.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

FOLDER = Path(__file__).parent
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
PASSWORD = "correct horse"
ROOT = Caller(user("root"), "127.0.0.1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    certificate = authority.issue("node")
    tls = TlsConfig(
        cert_file=certificate,
        key_file=certificate,
        ca_file=authority.certificate,
        client_auth=ClientAuth.REQUEST,
        principal_rules="RULE:CN=(.*)/$1/",
    )
    access = AccessConfig(enabled=True, super_users=("root",), scram_iterations=4096)
    folder = tmp_path_factory.mktemp("broker")
    with running_broker(folder, access=access, tls=tls) as broker:
        gate = broker.server.broker.access
        assert gate is not None
        for name in ("alice", "root"):
            for mechanism in ScramMechanism:
                salt = make_salt(hashlib.sha256(name.encode()).digest())
                made = make_credential(mechanism, PASSWORD, salt=salt, iterations=4096)
                broker.run(gate.put_scram(name, mechanism, made, by=ROOT))
        for kind in (ResourceType.TOPIC, ResourceType.GROUP):
            acl = Acl(
                ResourcePattern(kind, "*"), user("alice"), "*", Operation.ALL, Permission.ALLOW
            )
            broker.run(gate.create_acl(acl, by=ROOT))
        yield broker


@pytest.fixture(autouse=True)
def no_failures_so_far(secure: RunningBroker) -> None:
    secure.server._kafka.logins.limits._failures.clear()  # type: ignore[union-attr]


def librdkafka(
    broker: RunningBroker,
    authority: Authority,
    mechanism: str,
    password: str = PASSWORD,
    **more: Any,
) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": authority.certificate,
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        **more,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_writes_and_reads(
    secure: RunningBroker, authority: Authority, name: str, mechanism: str
) -> None:
    settings = librdkafka(secure, authority, mechanism)
    producer = Producer(settings)
    producer.produce(name, b"value")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**settings, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    try:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.value() == b"value"
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_is_told_that_the_password_is_wrong(
    secure: RunningBroker, authority: Authority, mechanism: str
) -> None:
    errors: list[KafkaError] = []
    settings = librdkafka(secure, authority, mechanism, "wrong", error_cb=errors.append)
    producer = Producer(settings)
    for _ in range(TIMEOUT_S * 10):
        producer.poll(0.1)
        if errors:
            break
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert PASSWORD not in str(errors)


@pytest.mark.parametrize(("holder", "is_allowed"), [("alice", True), ("mallory", False)])
def test_confluent_kafka_with_a_certificate_is_the_user_that_it_names(
    secure: RunningBroker, authority: Authority, name: str, holder: str, is_allowed: bool
) -> None:
    certificate = authority.issue(holder)
    secure.run(secure.server.broker.topics.create(name, partitions=1))
    client = AdminClient(
        {
            "bootstrap.servers": secure.bootstrap,
            "security.protocol": "ssl",
            "ssl.ca.location": authority.certificate,
            "ssl.certificate.location": certificate,
            "ssl.key.location": certificate,
        }
    )
    assert (name in client.list_topics(timeout=TIMEOUT_S).topics) is is_allowed


def test_confluent_kafka_administers_passwords(secure: RunningBroker, authority: Authority) -> None:
    settings = librdkafka(secure, authority, "SCRAM-SHA-256", **{"sasl.username": "root"})
    admin = AdminClient(settings)
    info = ScramCredentialInfo(ConfluentMechanism.SCRAM_SHA_512, 10_000)
    upsertion = UserScramCredentialUpsertion("bob", info, b"another one")
    for change in admin.alter_user_scram_credentials([upsertion]).values():
        change.result(TIMEOUT_S)
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(TIMEOUT_S)
    assert [item.iterations for item in described.scram_credential_infos] == [10_000]
    as_bob = {**settings, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "bob"}
    assert AdminClient({**as_bob, "sasl.password": "another one"}).list_topics(timeout=TIMEOUT_S)
    deletion = UserScramCredentialDeletion("bob", ConfluentMechanism.SCRAM_SHA_512)
    for change in admin.alter_user_scram_credentials([deletion]).values():
        change.result(TIMEOUT_S)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_writes_and_reads(
    secure: RunningBroker, authority: Authority, name: str, mechanism: str
) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": secure.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": authority.certificate,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    producer = KafkaProducer(**settings)
    producer.send(name, b"value").get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        name, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000, **settings
    )
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_writes_and_reads(
    secure: RunningBroker, authority: Authority, name: str, mechanism: str
) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": secure.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=authority.certificate),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }

    async def run() -> None:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(name, b"value")
        async with AIOKafkaConsumer(name, auto_offset_reset="earliest", **settings) as consumer:
            message = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            assert message.value == b"value"
        wrong = AIOKafkaProducer(**{**settings, "sasl_plain_password": "wrong"})
        with pytest.raises(AioKafkaError):
            await wrong.start()
        await wrong.stop()

    asyncio.run(run())


@pytest.mark.parametrize("mechanism", ["PLAIN"])
def test_kcat_writes_and_reads_with_a_file_of_settings(
    secure: RunningBroker, authority: Authority, name: str, mechanism: str, tmp_path: Path
) -> None:
    """The password is in a file, not on the command line.

    Not by SCRAM: Debian's kcat has librdkafka 2.0, whose logins by SCRAM the node refuses.
    """
    assert shutil.which("kcat"), "run `make clients`"
    settings = librdkafka(secure, authority, mechanism)
    file = tmp_path / "kcat.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def kcat(*arguments: str, sent: str = "") -> str:
        done = subprocess.run(
            ["kcat", "-F", str(file), "-t", name, *arguments],
            input=sent,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    kcat("-P", sent="value\n")
    assert kcat("-C", "-e", "-q", "-o", "beginning") == "value\n"


def test_the_clients_of_millstream_write_and_read_with_tokens(
    secure: RunningBroker, authority: Authority, name: str
) -> None:
    gate = secure.server.broker.access
    assert gate is not None
    _, token = secure.run(gate.create_token(user("alice"), by=ROOT))
    config = ClientConfig(token=token, tls=ClientTls(ca_file=authority.certificate))
    with Client(secure.url, config=config) as client:
        client.append(name, "blocking")

    async def run() -> list[Any]:
        async with AsyncClient(secure.url, config=config) as client:
            await client.append(name, "asyncio")
            read = client.read(name)
            return [(await anext(read)).value for _ in range(2)]

    assert asyncio.run(run()) == ["blocking", "asyncio"]
    with (
        Client(secure.url, config=ClientConfig(tls=config.tls)) as nobody,
        pytest.raises(NotAuthenticated),
    ):
        nobody.append(name, "anonymous")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_the_kafka_client_of_millstream_reads(
    secure: RunningBroker, authority: Authority, name: str, mechanism: str, tmp_path: Path
) -> None:
    secure.run(secure.server.broker.topics.create(name, partitions=3))
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    given = {
        "user": "alice",
        "password_file": str(file),
        "ca_file": authority.certificate,
        "mechanism": mechanism,
    }
    security = parse_security(given, environment={})
    with KafkaClient(secure.bootstrap, security=security) as client:
        assert client.topics([name])[name].partitions == 3


def test_a_browser_logs_in_by_https(secure: RunningBroker, authority: Authority, name: str) -> None:
    secure.run(secure.server.broker.topics.create(name, partitions=1))
    gate = secure.server.broker.access
    assert gate is not None
    _, token = secure.run(gate.create_token(user("alice"), by=ROOT))
    with (
        running_chromium("--ignore-certificate-errors") as chromium,
        chromium.page(f"{secure.url}/#/topics") as page,
    ):
        page.until("document.activeElement?.name === 'token'")
        page.write(token)
        page.press("Enter")
        page.until_shown(name, "alice")
        assert page.complaints == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkajs_writes_and_reads(
    secure: RunningBroker, authority: Authority, name: str, mechanism: str
) -> None:
    folder = FOLDER / "kafkajs"
    assert (folder / "node_modules" / "kafkajs").exists(), "run `make clients`"
    login = {
        "ca": authority.certificate,
        "mechanism": mechanism.lower(),
        "username": "alice",
        "password": PASSWORD,
    }
    done = subprocess.run(
        ["node", "login.js", secure.bootstrap, name],
        cwd=folder,
        input=json.dumps(login),
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["value"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_tools_of_kafka_log_in_and_administer_passwords(
    secure: RunningBroker, authority: Authority, tmp_path: Path, mechanism: str
) -> None:
    jars = FOLDER / "kafka-tools" / "jars"
    assert jars.exists(), "run `make clients`"
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_SSL\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.certificate}\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required"
        f' username="root" password="{PASSWORD}";\n'
    )

    def run(*arguments: str) -> str:
        java = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*")
        done = subprocess.run(
            [*java, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tool = ("org.apache.kafka.tools.AclCommand", "--bootstrap-server", secure.bootstrap)
    assert "User:alice" in run(*tool, "--command-config", str(settings), "--list")
    rule = ("--allow-principal", "User:erin", "--operation", "Read", "--topic", "invoices")
    acls = (*tool, "--command-config", str(settings))
    run(*acls, "--add", *rule, "--resource-pattern-type", "prefixed")
    listed = run(*acls, "--list", "--principal", "User:erin")
    assert "resourceType=TOPIC, name=invoices, patternType=PREFIXED" in listed
    assert "principal=User:erin, host=*, operation=READ, permissionType=ALLOW" in listed
    run(*acls, "--remove", *rule, "--resource-pattern-type", "prefixed", "--force")
    assert "User:erin" not in run(*acls, "--list")
    if mechanism != "PLAIN":
        program = str(FOLDER / "kafka-tools" / "Passwords.java")
        said = run(program, secure.bootstrap, str(settings), "dora", mechanism)
        described, users = said.strip().splitlines()
        assert "dora" in described
        assert "iterations=8192" in described
        assert users == "[alice, root]"


def test_a_login_is_kept_alive_by_logging_in_again(
    authority: Authority, tmp_path: Path, name: str
) -> None:
    """KIP-368: librdkafka logs in again before its session ends, and notices nothing else."""
    access = AccessConfig(
        enabled=True, super_users=("alice",), scram_iterations=4096, session_ms_max=1000
    )
    certificate = authority.issue("node")
    tls = TlsConfig(cert_file=certificate, key_file=certificate)
    with running_broker(tmp_path, access=access, tls=tls) as broker:
        gate = broker.server.broker.access
        assert gate is not None
        made = make_credential(ScramMechanism.SHA_256, PASSWORD, salt=b"salt", iterations=4096)
        by = Caller(user("alice"), "127.0.0.1")
        broker.run(gate.put_scram("alice", ScramMechanism.SHA_256, made, by=by))
        lost: list[KafkaError] = []
        settings = librdkafka(broker, authority, "SCRAM-SHA-256", error_cb=lost.append)
        producer = Producer(settings)
        while gate.counters.logins["SCRAM-SHA-256"] < 6:
            producer.produce(name, b"value")
            assert producer.flush(TIMEOUT_S) == 0
        assert not lost
        assert broker.server._kafka.counters.closed_by_us == 0  # type: ignore[union-attr]
