"""Events of a node on standard error: one per line, for any client or reader behaviour."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import millstream
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.protocols.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
)
from tests.cli.calls import create_topic, fetch, produce
from tests.cli.nodes import MILLSTREAM, PATIENCE, Node
from tests.observe.logging.hostile_strings import NASTY
from tests.servers.kafka.client import RawClient

ANY = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


def events(node: Node) -> list[dict[str, Any]]:
    """Return all events of a node; each line must be one JSON object."""
    assert node.errors.isascii()
    return [json.loads(line) for line in node.errors.splitlines()]


def event(node: Node, name: str) -> dict[str, Any]:
    (found,) = (one for one in events(node) if one["event"] == name)
    return found


def started(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MILLSTREAM, "serve", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **options,
    )


# Startup and shutdown.


def test_a_node_tells_what_it_found_and_what_it_did(tmp_path: Path):
    with Node(tmp_path / "data", "--set", "node.id=7") as node:
        assert node.stop() == 0
    names = [one["event"] for one in events(node)]
    told = [
        "detected",
        "configured",
        "opened topics",
        "opened state",
        "ready",
        "stopping",
        "stopped",
    ]
    assert [name for name in names if name in told] == told
    detected = event(node, "detected")
    assert detected["version"] == millstream.__version__
    assert detected["event_loop"].startswith("uvloop ")
    assert detected["commits"] in ("kernel", "threads")
    assert detected["data"] == str(tmp_path / "data")
    assert detected["durability"] == "fsync"
    for name in ("python", "kernel", "cpus", "checksums", "file_system", "descriptors_max"):
        assert detected[name]
    for name in ("cpu_list", "page_bytes", "maps_max", "clock_source"):
        assert detected[name]
    assert detected["free_bytes"] > 0
    assert detected["memory_bytes"] > 0
    configured = event(node, "configured")
    assert configured["file"] is None
    assert configured["set"] == {
        "node.data": "--data", "kafka.listen": "--kafka", "http.listen": "--http",
        "node.id": "--set",
    }  # fmt: skip
    ready = event(node, "ready")
    assert (ready["kafka"], ready["http"]) == (node.bootstrap, node.url)
    assert ready["after_ms"] > 0
    assert event(node, "stopped")["is_clean"] is True


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)]
)
def test_a_clean_restart_scans_nothing_and_another_one_says_how_much(
    tmp_path: Path, number: int, status: int
):
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        create_topic(client, "t")
        produce(client, "t", b"x" * 100)
        assert node.stop(number) == status
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        assert b"x" * 100 in fetch(client, "t")
        assert node.stop() == 0
    topics, state = event(node, "opened topics"), event(node, "opened state")
    assert topics["logs"] == 1
    assert topics["damaged_logs"] == 0
    if number == signal.SIGKILL:
        assert topics["scanned_bytes"] > 100
    else:
        assert (topics["scanned_bytes"], state["scanned_bytes"]) == (0, 0)


def test_a_node_that_does_not_stop_in_time_exits_with_1_and_loses_nothing(tmp_path: Path):
    with (
        Node(tmp_path, "--set", "node.drain_ms_max=0 ms") as node,
        RawClient(node.bootstrap) as client,
    ):
        create_topic(client, "t")
        produce(client, "t", b"kept")
        assert node.stop() == 1
    assert event(node, "not stopped within 0 ms")["level"] == "error"
    with Node(tmp_path) as node, RawClient(node.bootstrap) as client:
        assert b"kept" in fetch(client, "t")


def test_a_node_that_cannot_start_says_so_as_an_event_and_exits_with_1(tmp_path: Path):
    with Node(tmp_path):
        second = started("--data", str(tmp_path), *ANY)
    assert (second.returncode, second.stdout) == (1, "")
    *_, refused, stopped = map(json.loads, second.stderr.splitlines())
    assert refused["level"] == "error"
    assert refused["event"] == f"not started: {tmp_path}/lock is locked by another process"
    assert stopped["is_clean"] is False


FAILING = """
from millstream.broker.broker import Broker
from millstream.cli.main import main

async def fail(*_, **__):
    raise RuntimeError("first\\nsecond")

Broker.open = fail
main()
"""


def test_an_error_of_ours_is_one_event_with_its_traceback(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", FAILING, "serve", "--data", str(tmp_path), *ANY],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    (failed,) = (
        one for one in map(json.loads, ended.stderr.splitlines()) if one["level"] == "critical"
    )
    assert failed["traceback"].endswith("RuntimeError: first\nsecond")


def test_a_node_loads_nothing_that_only_other_commands_need():
    code = (
        "import sys, millstream.cli.main, millstream.node, millstream.cli.support.start_report;"
        " print(*{name.partition('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout.split()
    assert not {"rich", "httpx", "numpy", "numba", "pyarrow", "pyspark"} & set(loaded)
    assert "uvloop" in loaded


# Settings.


def test_a_node_is_set_up_by_file_variables_and_options(tmp_path: Path, monkeypatch):
    file = tmp_path / "my.toml"
    file.write_text("[topics]\npartitions = 2\n[logging]\nlevel = 'error'\n")
    file.chmod(0o666)
    monkeypatch.setenv("MILLSTREAM_CONFIG", str(file))
    monkeypatch.setenv("MILLSTREAM_TOPICS_PARTITIONS", "3")
    with (
        Node(tmp_path / "data", "--log-level", "info") as node,
        RawClient(node.bootstrap) as client,
    ):
        create_topic(client, "t")
        answer = client.call(MetadataRequest(topics=(MetadataRequestTopic(name="t"),)))
        assert len(answer.topics[0].partitions) == 3
        assert node.stop() == 0
    configured = event(node, "configured")
    assert configured["file"] == str(file)
    assert configured["set"]["topics.partitions"] == "MILLSTREAM_TOPICS_PARTITIONS"
    assert configured["set"]["logging.level"] == "--log-level"
    (warning,) = (one for one in events(node) if one["level"] == "warning")
    assert "is writable by users other than" in warning["event"]


def test_a_node_without_any_configuration_keeps_its_data_here(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [MILLSTREAM, "serve", *ANY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        while process.stdout.readline() != b"ready\n":
            assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert (tmp_path / "millstream-data/node.json").exists()


def test_a_node_with_wrong_settings_names_all_of_them_and_touches_nothing(tmp_path: Path):
    (tmp_path / "millstream.toml").write_text("[kafka]\nconnections_max = 0\nlisten = 1\n")
    ended = started(*ANY[2:], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines() == [
        "Error: kafka.connections_max must be between 1 and 1000000, got 0 (millstream.toml, line"
        " 2)",
        "Error: kafka.listen must be HOST:PORT with a port from 0 to 65535, got 1"
        " (millstream.toml, line 3)",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["millstream.toml"]


# Input from clients.


def ask_nonsense(bootstrap: str, client_id: str) -> None:
    """Send an invalid request; the node closes the connection and logs the client id."""
    name = client_id.encode()[:30_000]
    body = struct.pack(">hhih", 3, 1, 1, len(name)) + name + b"\x7f\xff\xff\xff"
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
        client.sendall(struct.pack(">i", len(body)) + body)
        assert client.recv(1) == b""


def let_time_out(client: RawClient, transactional_id: str) -> None:
    """Open a transaction that times out immediately, which the node logs."""
    begun = client.call(
        InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1), 4
    )
    if begun.error_code == 0:
        topics = (AddPartitionsToTxnRequestTopic(name="t", partitions=(0,)),)
        client.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=begun.producer_id,
                v3_and_below_producer_epoch=begun.producer_epoch,
                v3_and_below_topics=topics,
            ),
            3,
        )


def ask_over_http(url: str, text: str) -> None:
    """Send the text in a path, a query and a header, then unescaped in a request line."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    escaped = quote(text[:2_000], safe="")
    raw = text[:2_000].encode()
    for request in (
        f"GET /v1/topics/{escaped}?x={escaped} HTTP/1.1\r\nHost: localhost\r\n".encode()
        + b"User-Agent: " + raw.replace(b"\n", b"").replace(b"\r", b"").replace(b"\0", b""),
        b"GET /" + raw + b" HTTP/1.1\r\nHost: " + raw,
    ):  # fmt: skip
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
            client.sendall(request + b"\r\nConnection: close\r\n\r\n")
            while client.recv(65_536):
                pass


def test_whatever_clients_say_a_line_stays_one_line_and_one_object(tmp_path: Path):
    """S27: a hundred strings through both servers, as ids, names, paths and headers."""
    with Node(tmp_path, "--log-level", "debug") as node:
        with RawClient(node.bootstrap, client_id="client") as client:
            create_topic(client, "t")
            for text in NASTY:
                ask_nonsense(node.bootstrap, text)
                let_time_out(client, text)
                ask_over_http(node.url, text)
                create_topic(client, text[:1_000])
        assert node.get("/health/ready")[0] == 200
        assert node.stop() == 0
    said = events(node)
    for one in said:
        assert {"time", "level", "event", "logger"} <= one.keys()
        assert "forged" not in one["event"] or one["level"] != "critical"
    asked = [one["event"] for one in said if "in Metadata of client" in one["event"]]
    assert len(asked) == len(NASTY)
    for text, told in zip(NASTY, asked, strict=True):
        if len(text) < 1_000:
            assert told.endswith(f"in Metadata of client {text}"), "nothing is lost on the way"
    assert len([one for one in said if "the transaction timed out" in one["event"]]) > 50


def test_a_reader_of_standard_error_that_stops_reading_does_not_stop_the_node(tmp_path: Path):
    """A pipe holds 64 KiB; a node that waited for its reader would never respond again."""
    text = "x" * 1_000
    with Node(tmp_path) as node:
        for _ in range(200):
            ask_nonsense(node.bootstrap, text)
        assert node.get("/health/live")[0] == 200
        with RawClient(node.bootstrap) as client:
            create_topic(client, "t")
            assert produce(client, "t", b"x") == 0
        assert node.stop() == 0
    assert sum("in Metadata of client" in one["event"] for one in events(node)) == 200


# On a terminal.


def test_someone_at_a_terminal_reads_a_few_lines(tmp_path: Path):
    terminal, theirs = pty.openpty()
    command = [MILLSTREAM, "serve", "--data", str(tmp_path / "data"), *ANY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(3)]
        process.terminate()
        said = read_terminal(terminal)
        assert process.wait(PATIENCE) == 0
    os.close(terminal)
    assert lines[2] == "ready\n"
    assert f"millstream {millstream.__version__}\r\n" in said
    for words in ("processors", "of memory", "uvloop", "checksums by", "clean, nothing scanned",
                  "3 from options", str(tmp_path / "data"), lines[0].split()[1]):  # fmt: skip
        assert words in said
    assert "stopping" in said
    assert "{" not in said


def read_terminal(terminal: int) -> str:
    """Return all output until every writer has closed the terminal."""
    said = b""
    while True:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:
            return said.decode()
        said += piece
