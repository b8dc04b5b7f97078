"""TLS of the Kafka server and of the HTTP server: who gets in, and what others are told."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.security import KafkaSecurity
from millstream.clients.partition import Isolation
from millstream.clients.tls import ClientTls
from millstream.config.certificates import CertificateFiles
from millstream.config.schema import AccessConfig, ClientAuth, HttpConfig, TlsConfig
from millstream.errors import InvalidConfig, NodeUnreachable
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.records.topic_partition import TopicPartition
from millstream.servers.tls import ServerCertificates, distinguished_name
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.kafka.client import RawClient, batch_of, produce_request
from tests.servers.peer.certificates import Authority

WAIT_S = 10.0
"""Ends a test that hangs; nothing waits for it."""

RULES = r"RULE:CN=nobody.*/DENY/,RULE:CN=([a-z]+).*/$1/"
API_VERSIONS = bytes.fromhex("0000000e 0012 0000 00000001 0004 74657374")
HTTP_GET = b"GET /v1/node HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> dict[str, str]:
    certificate = authority.issue("node")
    return {"cert_file": certificate, "key_file": certificate, "ca_file": authority.certificate}


def broker_with(
    folder: Path, files: dict[str, str], client_auth: ClientAuth, **settings: Any
) -> Any:
    return running_broker(folder, tls=TlsConfig(**files, client_auth=client_auth, **settings))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]
) -> Iterator[RunningBroker]:
    """A node that asks for certificates of clients."""
    folder = tmp_path_factory.mktemp("request")
    with broker_with(folder, files, ClientAuth.REQUEST, principal_rules=RULES) as running:
        yield running


@pytest.fixture(scope="module")
def strict_broker(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]
) -> Iterator[RunningBroker]:
    """A node that requires certificates of clients."""
    folder = tmp_path_factory.mktemp("require")
    with broker_with(folder, files, ClientAuth.REQUIRE) as running:
        yield running


def ports(broker: RunningBroker) -> tuple[int, int]:
    return broker.server.kafka.port, broker.server.http.port


def tls_socket(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    try:
        return context.wrap_socket(plain, server_hostname="127.0.0.1")
    except BaseException:
        plain.close()
        raise


def answers(port: int, context: ssl.SSLContext, sent: bytes = API_VERSIONS) -> bytes:
    """The first bytes that a server answers over TLS; empty if it closes the connection."""
    with tls_socket(port, context) as connected:
        connected.sendall(sent)
        return connected.recv(100)


def is_refused(port: int, context: ssl.SSLContext, sent: bytes = API_VERSIONS) -> bool:
    try:
        return answers(port, context, sent) == b""
    except OSError:  # A client of TLS 1.3 learns of it when it reads.
        return True


def test_kafka_and_http_clients_connect_by_tls_1_2_and_1_3(
    broker: RunningBroker, authority: Authority
) -> None:
    kafka, http = ports(broker)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = authority.client_context(None)
        context.minimum_version = context.maximum_version = version
        assert answers(kafka, context)[4:8] == b"\0\0\0\1"
        assert answers(http, context, HTTP_GET).startswith(b"HTTP/1.1 200")
        with tls_socket(kafka, context) as connected:
            cipher = connected.cipher()
            assert connected.compression() is None
            assert cipher is not None
            assert cipher[0].startswith(("ECDHE-", "TLS_"))


def test_older_protocols_and_ciphers_without_forward_secrecy_are_refused(
    broker: RunningBroker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    for port in ports(broker):
        old = authority.client_context(None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version = ssl.TLSVersion.TLSv1_1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        static = authority.client_context(None)
        static.maximum_version = ssl.TLSVersion.TLSv1_2
        static.set_ciphers("AES256-GCM-SHA384:AES128-SHA")
        for context in (old, static):
            with refused_once(caplog), pytest.raises(ssl.SSLError):
                answers(port, context)


class refused_once:  # noqa: N801 - it reads as a statement.
    """Exactly one line in the log says that there is no TLS connection."""

    def __init__(self, caplog: pytest.LogCaptureFixture, reason: str = "") -> None:
        self._caplog = caplog
        self._reason = reason

    def __enter__(self) -> None:
        self._caplog.set_level(logging.INFO, logger="millstream")
        self._caplog.clear()

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            return
        wait_for(lambda: bool(self._caplog.records))  # The client may learn of it first.
        lines = [r.getMessage() for r in self._caplog.records if r.name.startswith("millstream.se")]
        assert len(lines) == 1, lines
        assert "no TLS connection: " in lines[0]
        assert self._reason in lines[0]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (API_VERSIONS, "wrong version number"),
        (HTTP_GET, "http request"),
        (b"\x16\x03\x01\x00\x05hello" + bytes(100), ""),
        (b"\xff" * 5000, ""),
    ],
    ids=["kafka", "http", "broken-hello", "noise"],
)
def test_what_is_not_tls_is_closed_with_one_line_in_the_log(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture, sent: bytes, reason: str
) -> None:
    for port in ports(broker):
        connected = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        with refused_once(caplog, reason), connected as plain:
            plain.sendall(sent)
            assert read_to_end(plain)[:1] in (b"", b"\x15")  # Nothing, or an alert of TLS.


def read_to_end(connected: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connected.recv(1000):
            data += piece
    except ConnectionResetError:
        pass
    return data


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline
        pause.wait(0.005)


def test_tls_on_a_plain_port_is_closed(tmp_path: Path, authority: Authority) -> None:
    with running_broker(tmp_path) as plain:
        for port in ports(plain):
            with pytest.raises(OSError, match=r"SSL|reset"):
                answers(port, authority.client_context(None))


# Certificates of clients.


@pytest.fixture(scope="module")
def bad_certificates(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "other")
    own = Authority(tmp_path_factory.mktemp("own"), "alice")
    own_file = own.folder / "both.pem"
    own_file.write_text((own.folder / "alice.key").read_text() + Path(own.certificate).read_text())
    # Signed by a certificate that is no authority.
    leaf_folder = tmp_path_factory.mktemp("leaf")
    leaf = Authority(leaf_folder, "leaf")
    authority.issue("leaf")
    for kind, target in (("key", "leaf.key"), ("crt", "leaf.pem")):
        shutil.copy(authority.folder / f"leaf.{kind}", leaf_folder / target)
    by_leaf = Path(leaf.issue("alice"))
    by_leaf.write_text(by_leaf.read_text() + (leaf_folder / "leaf.pem").read_text())
    altered = Path(authority.issue("altered"))
    altered.write_text(_with_altered_signature(altered.read_text()))
    return {
        "expired": authority.issue("late", days=-1),
        "self-signed": str(own_file),
        "other-authority": stranger.issue("alice"),
        "for-servers": authority.issue("servers", usage="serverAuth"),
        "for-mail": authority.issue("mail", usage="emailProtection"),
        "for-code": authority.issue("code", usage="codeSigning"),
        "by-a-leaf": str(by_leaf),
        "altered": str(altered),
    }


def _with_altered_signature(pem: str) -> str:
    """Change the last bytes of a certificate, which are of its signature."""
    start = pem.index("-----BEGIN CERTIFICATE-----")
    der = bytearray(ssl.PEM_cert_to_DER_cert(pem[start:].strip() + "\n"))
    der[-1] ^= 1
    return pem[:start] + ssl.DER_cert_to_PEM_cert(bytes(der))


@pytest.mark.parametrize(
    "kind",
    [
        "expired",
        "self-signed",
        "other-authority",
        "for-servers",
        "for-mail",
        "for-code",
        "by-a-leaf",
        "altered",
    ],
)
def test_a_bad_certificate_of_a_client_is_refused_with_one_line_in_the_log(
    broker: RunningBroker,
    strict_broker: RunningBroker,
    authority: Authority,
    bad_certificates: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    context = authority.client_context(bad_certificates[kind])
    for port in (*ports(broker), *ports(strict_broker)):
        with refused_once(caplog, "the certificate of the client is not valid"):
            assert is_refused(port, context)


def test_a_client_without_a_certificate_is_refused_if_one_is_required(
    strict_broker: RunningBroker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    for port, sent in zip(ports(strict_broker), (API_VERSIONS, HTTP_GET), strict=True):
        with refused_once(caplog, "peer did not return a certificate"):
            assert is_refused(port, authority.client_context(None))
        assert not is_refused(port, authority.client_context(authority.issue("alice")), sent)


def test_the_certificate_of_a_client_names_its_user(
    broker: RunningBroker, authority: Authority
) -> None:
    kafka, _ = ports(broker)
    for certificate, user in ((authority.issue("alice"), "alice"), (None, "ANONYMOUS")):
        with tls_socket(kafka, authority.client_context(certificate)) as connected:
            connected.sendall(API_VERSIONS)
            assert connected.recv(1)
            users = [c.caller.principal.name for c in broker.server._kafka.connections]  # type: ignore[union-attr]
            assert user in users


def test_http_clients_have_the_rights_of_the_user_that_their_certificate_names(
    authority: Authority, tmp_path: Path, files: dict[str, str]
) -> None:
    tls = TlsConfig(**files, client_auth=ClientAuth.REQUEST, principal_rules=RULES)
    access = AccessConfig(enabled=True, super_users=("alice",))
    with running_broker(tmp_path, tls=tls, access=access) as broker:
        for holder, user, is_allowed in (
            ("alice", "User:alice", True),
            ("mallory", "User:mallory", False),
            (None, "User:ANONYMOUS", False),
        ):
            certificate = None if holder is None else authority.issue(holder)
            context = authority.client_context(certificate)
            with tls_socket(broker.server.http.port, context) as connected:
                connected.sendall(b"GET /v1/access/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert user.encode() in connected.recv(10_000)
                connected.sendall(b"PUT /v1/topics/t HTTP/1.1\r\nhost: localhost\r\n\r\n")
                status = int(connected.recv(10_000).split()[1])
                assert (status < 300) is is_allowed, status


def test_a_certificate_does_not_count_for_pages_of_other_sites(
    authority: Authority, tmp_path: Path, files: dict[str, str]
) -> None:
    tls = TlsConfig(**files, client_auth=ClientAuth.REQUEST, principal_rules=RULES)
    access = AccessConfig(enabled=True, super_users=("alice",))
    http = HttpConfig(allowed_origins=("https://app.example",))
    context = authority.client_context(authority.issue("alice"))
    with running_broker(tmp_path, tls=tls, access=access, http_server=http) as broker:
        own = f"https://localhost:{broker.server.http.port}"
        host = own.removeprefix("https://")
        for origin, user in ((own, "User:alice"), ("https://app.example", "User:ANONYMOUS")):
            with tls_socket(broker.server.http.port, context) as connected:
                head = f"GET /v1/access/whoami HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\n\r\n"
                connected.sendall(head.encode())
                answer = connected.recv(10_000)
                assert b"HTTP/1.1 200" in answer
                assert user.encode() in answer
                assert b"allow-credentials" not in answer.lower()


def test_a_user_that_no_rule_names_is_refused(broker: RunningBroker, authority: Authority) -> None:
    for port, sent in zip(ports(broker), (API_VERSIONS, HTTP_GET), strict=True):
        unnamed = authority.client_context(authority.issue("USER-9"))
        assert is_refused(port, unnamed, sent)
        assert not is_refused(port, authority.client_context(authority.issue("bob")), sent)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((), ""),
        (((("commonName", "a"),),), "CN=a"),
        (
            (
                (("countryName", "DE"),),
                (("organizationName", "A, B+C"),),
                (("commonName", " x "),),
            ),
            r"CN=\ x\ ,O=A\, B\+C,C=DE",
        ),
        (((("userId", "#7"), ("domainComponent", 'a"\\;<>')),), r"UID=\#7+DC=a\"\\\;\<\>"),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
    ],
)
def test_the_name_of_a_certificate_is_written_as_in_rfc_2253(subject: Any, name: str) -> None:
    assert distinguished_name({"subject": subject}) == name


# Files of the node.


def test_all_ciphers_have_forward_secrecy(files: dict[str, str]) -> None:
    certificates = ServerCertificates.configured(TlsConfig(**files))
    assert certificates is not None
    names = {cipher["name"] for cipher in certificates.contexts.get_ciphers()}
    assert names
    assert all(name.startswith(("ECDHE-", "TLS_")) for name in names)


def test_a_key_that_others_can_read_is_refused(authority: Authority, tmp_path: Path) -> None:
    key = Path(shutil.copy(authority.issue("node"), tmp_path))
    key.chmod(0o640 if os.getuid() else 0o644)
    with pytest.raises(InvalidConfig, match=r"can be read by others .*; run chmod 600"):
        ServerCertificates(CertificateFiles(str(key), str(key)), ClientAuth.NONE)


def test_a_node_does_not_start_with_files_that_cannot_be_used(
    authority: Authority, tmp_path: Path
) -> None:
    tls = TlsConfig(cert_file=authority.certificate, key_file=authority.issue("node"))
    running = running_broker(tmp_path / "data", tls=tls)
    with pytest.raises(InvalidConfig, match="certificates for clients cannot be used"):
        running.__enter__()


def test_new_certificates_are_shown_to_new_connections_and_others_go_on(
    authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "node.pem"
    shutil.copy(authority.issue("node"), path)
    tls = TlsConfig(cert_file=str(path), key_file=str(path))
    context = authority.client_context(None)
    with running_broker(tmp_path / "data", tls=tls) as broker:
        before = [tls_socket(port, context) for port in ports(broker)]
        serials = {connected.getpeercert()["serialNumber"] for connected in before}  # type: ignore[index]
        os.replace(authority.issue("renewed"), path)
        broker._loop.call_soon_threadsafe(broker.server.reload_certificates)  # As SIGHUP does.
        for port in ports(broker):
            wait_for(lambda port=port: shown_serial(port, context) not in serials)
        for connected, sent in zip(before, (API_VERSIONS, HTTP_GET), strict=True):
            with connected:
                connected.sendall(sent)
                assert connected.recv(1)


def shown_serial(port: int, context: ssl.SSLContext) -> str:
    with tls_socket(port, context) as connected:
        certificate: Any = connected.getpeercert()
        return str(certificate["serialNumber"])


def test_idle_clients_that_do_not_read_do_not_delay_a_stop(
    authority: Authority, tmp_path: Path, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with running_broker(tmp_path, tls=TlsConfig(**files)) as broker:
        context = authority.client_context(None)
        idle = [tls_socket(port, context) for port in ports(broker)]
    for connected in idle:
        connected.close()
    assert "cut off" not in caplog.text


# Our own clients.


def test_our_http_client_appends_and_reads_by_https(
    strict_broker: RunningBroker, authority: Authority
) -> None:
    certificate = authority.issue("alice")
    tls = ClientTls(ca_file=authority.certificate, cert_file=certificate, key_file=certificate)
    assert strict_broker.url.startswith("https://")
    with millstream.Client(strict_broker.url, config=ClientConfig(tls=tls)) as client:
        client.create_topic("by-https")
        client.append("by-https", {"n": 1})
        (record,) = client.read("by-https")
        assert record.value == {"n": 1}


def test_a_client_that_does_not_trust_the_node_says_so(broker: RunningBroker) -> None:
    config = ClientConfig(timeout_s=0.2)
    with (
        millstream.Client(broker.url, config=config) as client,
        pytest.raises(NodeUnreachable, match="certificate verify failed"),
    ):
        client.create_topic("never")


def test_a_node_with_the_certificate_of_another_host_is_not_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    other = authority.issue("elsewhere", hosts="DNS:elsewhere.example")
    tls = TlsConfig(cert_file=other, key_file=other)
    with running_broker(tmp_path / "data", tls=tls) as broker:
        with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
            answers(broker.server.kafka.port, authority.client_context(None))
        config = ClientTls(ca_file=authority.certificate)
        with (
            KafkaClient(
                broker.bootstrap, security=KafkaSecurity(tls=config), timeout_s=0.5
            ) as client,
            pytest.raises(NodeUnreachable, match="IP address mismatch"),
        ):
            client.topics()


def test_our_kafka_client_reads_large_and_small_records_by_tls(
    strict_broker: RunningBroker, authority: Authority
) -> None:
    certificate = authority.issue("alice")
    tls = ClientTls(ca_file=authority.certificate, cert_file=certificate, key_file=certificate)
    values = ["x" * size for size in (1, 100_000, 900_000)]
    with millstream.Client(strict_broker.url, config=ClientConfig(tls=tls)) as client:
        client.create_topic("large")
        for value in values:
            client.append("large", value)
    with KafkaClient(strict_broker.bootstrap, security=KafkaSecurity(tls=tls)) as kafka:
        assert "large" in kafka.topics()
        partition = TopicPartition("large", 0)
        chunks = kafka.chunks(partition, 0, 3, isolation=Isolation.READ_COMMITTED)
        data = b"".join(bytes(chunk.data) for chunk in chunks)
        assert all(json.dumps(value).encode() in data for value in values)
        assert kafka.topics()  # On a connection that was idle.


def test_a_certificate_of_a_client_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="key_file must be set together with cert_file"):
        ClientTls(cert_file="a")
    with pytest.raises(InvalidConfig, match=r"cannot be used: .*missing\.pem"):
        ClientTls(ca_file=str(tmp_path / "missing.pem")).context()


def test_large_responses_to_requests_that_were_sent_ahead_arrive_by_tls(
    broker: RunningBroker, authority: Authority
) -> None:
    """Each fills the buffer of the connection, and the next begins when it was read."""
    name, count, size = "ahead", 24, 400_000
    memory = {"millstream.durability": "memory"}
    topic = broker.run(broker.server.broker.topics.create(name, partitions=1, configs=memory))
    with RawClient(broker.bootstrap, tls=authority.client_context(None)) as client:
        stored = client.call(produce_request(name, batch_of(os.urandom(size))), 8)
        assert stored.responses[0].partition_responses[0].error_code == 0
        part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=size)
        request = FetchRequest(
            max_wait_ms=10_000,
            min_bytes=1,
            max_bytes=size,
            topics=(FetchRequestTopic(topic=name, topic_id=topic.id, partitions=(part,)),),
        )
        for _ in range(count):
            client.send(request)
        for _ in range(count):
            [found] = client.receive().responses
            assert len(found.partitions[0].records) > size
