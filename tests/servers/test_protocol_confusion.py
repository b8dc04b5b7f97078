"""Clients that speak another protocol than the port: closed soon, with a line, without an answer
that could be taken for one.

    sent      TLS, HTTP, Kafka, noise
    ports     Kafka, Kafka by TLS, HTTP, HTTP by TLS, peers, peers by TLS
"""

from __future__ import annotations

import logging
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.config.schema import TlsConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.in_loop import in_loop
from tests.servers.peer.certificates import Authority
from tests.servers.peer.peer_nodes import raw_peer, running_peer, until

PATIENCE_S = 20.0
"""Ends a test that hangs. A limit of the node would close these connections after 10 s or more, so
the figure of one second is that of the log lines, not of this machine's load."""

PORTS = ("kafka", "kafka-tls", "http", "http-tls")
OWN = {("kafka", "kafka"), ("http", "http"), ("tls", "kafka-tls"), ("tls", "http-tls")}
"""What belongs there."""


def client_hello() -> bytes:
    """The first bytes of a real client of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls = context.wrap_bio(incoming, outgoing, server_hostname="node")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


SENT = {
    "tls": client_hello(),
    "http": b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "kafka": bytes.fromhex("0000000e 0012 0000 00000001 0004 74657374"),
    "noise": b"\xfe" + random.Random(7).randbytes(5000),
    "alert": bytes.fromhex("15030100020228"),
    "old-hello": bytes.fromhex("80 2e 01 00 02 00 15 00 00 00 10") + bytes(40),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    certificate = Authority(tmp_path_factory.mktemp("authority")).issue("node")
    tls = TlsConfig(cert_file=certificate, key_file=certificate)
    with (
        running_broker(tmp_path_factory.mktemp("plain")) as plain,
        running_broker(tmp_path_factory.mktemp("tls"), tls=tls) as encrypted,
    ):
        kafka, http = _ports(plain)
        kafka_tls, http_tls = _ports(encrypted)
        yield {"kafka": kafka, "http": http, "kafka-tls": kafka_tls, "http-tls": http_tls}


def _ports(broker: RunningBroker) -> tuple[int, int]:
    return broker.server.kafka.port, broker.server.http.port


def answer_of(port: int, sent: bytes) -> bytes:
    """Everything that a port answers until it closes the connection; fails if it does not."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connected:
        connected.sendall(sent)
        data = b""
        try:
            while piece := connected.recv(4096):
                data += piece
        except ConnectionResetError:
            pass
        return data


CELLS = [(sent, port) for sent in SENT for port in PORTS if (sent, port) not in OWN]


@pytest.mark.parametrize(("sent", "port"), CELLS)
def test_another_protocol_is_closed_with_one_line(
    ports: dict[str, int], caplog: pytest.LogCaptureFixture, sent: str, port: str
) -> None:
    caplog.set_level(logging.INFO, logger="millstream")
    caplog.clear()
    resident = _resident_kib()
    answer = answer_of(ports[port], SENT[sent])
    if port == "http":
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
    elif port == "kafka":
        assert answer == b""
    else:
        assert answer == b"" or answer[0] == 0x15, "nothing, or an alert of TLS"
    if port != "http":  # A bad request is counted and answered; the access log has a line.
        lines = _lines(caplog)
        assert len(lines) == 1, lines
        assert len(lines[0]) < 1000
    assert _resident_kib() - resident < 50_000, "no size that was claimed was allocated"


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the servers; the client may know that it is over before the line is written."""
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while True:
        if (lines := _said(caplog)) or time.monotonic() > deadline:
            return lines
        pause.wait(0.005)


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("millstream.servers")
    ]


def _resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.parametrize("port", PORTS)
def test_a_connection_that_is_closed_before_a_byte_came_is_not_told(
    ports: dict[str, int], caplog: pytest.LogCaptureFixture, port: str
) -> None:
    """Load balancers look in this way whether a node is there."""
    caplog.set_level(logging.WARNING, logger="millstream")
    caplog.clear()
    for _ in range(5):
        socket.create_connection(("127.0.0.1", ports[port]), timeout=PATIENCE_S).close()
    assert answer_of(ports["http"], SENT["kafka"]).startswith(b"HTTP/1.1 400 ")
    assert _said(caplog) == []


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("sent", SENT)
def test_the_port_of_peers_gives_nothing_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: str, is_tls: bool
) -> None:
    """A connection that is no peer is closed with a line; it learns nothing about the cluster."""
    authority = Authority(tmp_path)
    context = authority.server_context(authority.issue("node")) if is_tls else None

    @in_loop
    async def run() -> None:
        caplog.set_level(logging.INFO, logger="millstream")
        async with running_peer(ssl_context=context) as server, raw_peer(server.port) as raw:
            caplog.clear()
            await raw.send(SENT[sent])
            if is_tls and sent == "tls":  # A handshake that does not go on has a deadline.
                return
            try:
                answer = await raw.reader.read()
            except ConnectionResetError:
                answer = b""
            assert answer == b"" or (is_tls and answer[0] == 0x15)
            await until(lambda: bool(_said(caplog)))
            assert len(_said(caplog)) == 1

    run()
