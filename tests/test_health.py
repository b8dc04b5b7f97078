"""`/health/ready` fails if and only if a node cannot serve all clients."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.problems import LISTED_MAX, Problem, ProblemCode, listed_problems
from millstream.config.schema import NodeConfig
from millstream.errors import InvalidConfig
from millstream.protocols.kafka.messages.metadata import MetadataRequest
from millstream.protocols.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.testing.broker import RunningBroker, running_broker
from millstream.testing.disk.fault import Fault
from millstream.testing.disk.faulty_filesystem import FaultyFilesystem
from tests.cli.calls import create_topic, produce
from tests.cli.nodes import Node, wait_until
from tests.metadata.sqlite_files import FailingConnection
from tests.servers.http.calls import ask
from tests.servers.kafka.client import RawClient, batch_of, produce_request

NOWHERE = "/no path has this in it/"


class Disk:
    """A disk that works until a test makes it fail, for some paths."""

    def __init__(self, **settings: Any) -> None:
        self.fault = Fault(call=1, forever=True, path=NOWHERE, **settings)
        self.filesystem = FaultyFilesystem(OsFilesystem(), self.fault)

    def fail(self, path: str) -> None:
        self.fault.path = path

    def mend(self) -> None:
        self.fault.path = NOWHERE


def ready(url: str) -> tuple[int, list[str]]:
    """Return the status of `/health/ready`, and the codes of its problems."""
    found = ask(url, "GET", "/health/ready")
    assert found.json["status"] == ("ready" if found.status == 200 else "not ready")
    return found.status, [problem["code"] for problem in found.json["problems"]]


def messages(url: str) -> list[str]:
    return [one["message"] for one in ask(url, "GET", "/health/ready").json["problems"]]


def metric(url: str, line: str) -> str:
    text = ask(url, "GET", "/metrics").body.decode()
    (found,) = (one for one in text.splitlines() if one.startswith(f"{line} "))
    return found.rpartition(" ")[2]


def try_produce(client: RawClient, topic: str) -> int:
    answer = client.call(produce_request(topic, batch_of(b"x")), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def try_commit(client: RawClient, topic: str) -> int:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    wanted = OffsetCommitRequestTopic(name=topic, partitions=(part,))
    answer = client.call(OffsetCommitRequest(group_id="g", member_id="", topics=(wanted,)), 8)
    return int(answer.topics[0].partitions[0].error_code)


@contextlib.contextmanager
def node_on(disk: Disk, path: Path) -> Iterator[tuple[RunningBroker, RawClient]]:
    """Run a node with topics `orders` and `mail` on a disk that works again before it stops."""
    with (
        running_broker(path, filesystem=disk.filesystem) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        for topic in ("orders", "mail"):
            create_topic(client, topic)
            produce(client, topic, b"first")
        assert try_commit(client, "orders") == 0
        assert ready(broker.url) == (200, [])
        try:
            yield broker, client
        finally:
            disk.mend()


# Disk failures.


@pytest.fixture
def failing_sync() -> Disk:
    return Disk(only={"sync"})


def test_a_failed_sync_of_its_own_state_leaves_a_node_not_ready(tmp_path: Path, failing_sync: Disk):
    with node_on(failing_sync, tmp_path) as (broker, client):
        failing_sync.fail("__state/topics/groups")
        assert try_commit(client, "orders") != 0
        assert ready(broker.url) == (503, ["state_offline"])
        (message,) = messages(broker.url)
        assert message.startswith("__state/groups/0 is offline until it is opened again: ")
        assert metric(broker.url, "millstream_node_ready_flag") == "0.0"
        assert metric(broker.url, 'millstream_node_problems{code="state_offline"}') == "1.0"
        failing_sync.mend()
        assert try_commit(client, "orders") != 0
        assert ready(broker.url)[0] == 503, "it stays so until the log is opened again"
        assert ask(broker.url, "GET", "/health/live").status == 200
        assert ask(broker.url, "GET", "/health/startup").status == 200


def test_a_queue_whose_log_fails_to_sync_counts_as_state(tmp_path: Path, failing_sync: Disk):
    with node_on(failing_sync, tmp_path) as (broker, _):
        headers = {"content-type": "application/json"}
        assert ask(broker.url, "PUT", "/v1/queues/mail", b"{}", headers).status == 201
        failing_sync.fail("__state/topics/queue-")
        ask(broker.url, "POST", "/v1/queues/mail/claim", b"{}", headers)
        status, codes = ready(broker.url)
        assert status == 503
        assert codes[0] == "state_offline"


def test_one_topic_that_is_offline_is_told_and_leaves_a_node_ready(
    tmp_path: Path, failing_sync: Disk
):
    with node_on(failing_sync, tmp_path) as (broker, client):
        failing_sync.fail("/topics/orders/0")
        assert try_produce(client, "orders") != 0
        assert ready(broker.url) == (200, ["log_offline"])
        assert messages(broker.url)[0].startswith("orders/0 is offline until it is opened again: ")
        assert try_produce(client, "mail") == 0
        assert metric(broker.url, "millstream_node_ready_flag") == "1.0"
        failing_sync.mend()
        broker.run(broker.server.broker.store.reopen("orders"))
        assert ready(broker.url) == (200, [])


def test_a_topic_that_is_gone_is_no_problem_any_more(tmp_path: Path, failing_sync: Disk):
    with node_on(failing_sync, tmp_path) as (broker, client):
        failing_sync.fail("/topics/orders/0")
        assert try_produce(client, "orders") != 0
        failing_sync.mend()
        assert ask(broker.url, "DELETE", "/v1/topics/orders").status == 204
        assert ready(broker.url) == (200, [])


@pytest.fixture
def full() -> Disk:
    """Make the disk full: nothing can grow, but files can be truncated."""
    return Disk(only={"create", "write_at", "reserve"}, error=errno.ENOSPC)


def test_a_full_disk_is_told_until_something_is_written_again(tmp_path: Path, full: Disk):
    with node_on(full, tmp_path) as (broker, client):
        full.fail("/topics/orders/0")
        assert try_produce(client, "orders") != 0
        assert ready(broker.url) == (200, ["disk_full"])
        assert messages(broker.url)[0].startswith("orders/0: the disk is full: ")
        assert try_produce(client, "orders") != 0
        assert ready(broker.url) == (200, ["disk_full"])
        full.mend()
        assert try_produce(client, "orders") == 0
        assert ready(broker.url) == (200, [])


def test_space_that_maintenance_finds_ends_it_even_without_writes(tmp_path: Path, full: Disk):
    with node_on(full, tmp_path) as (broker, client):
        maintenance = broker.server.broker.store.maintenance
        full.fail(str(tmp_path))
        assert try_produce(client, "orders") != 0
        assert try_produce(client, "mail") != 0
        broker.run(maintenance.run_once())
        assert ready(broker.url) == (200, ["disk_full"])
        assert messages(broker.url)[0].endswith("(and 1 other logs)")
        full.mend()
        broker.run(maintenance.run_once())
        assert ready(broker.url) == (200, [])
        assert not (tmp_path / "spare.tmp").exists()


def test_metadata_that_takes_no_changes_leaves_a_node_not_ready(tmp_path: Path):
    with running_broker(tmp_path) as broker:
        metadata = broker.server.broker._metadata
        whole = metadata._connection
        metadata._connection = FailingConnection(whole, "COMMIT", sqlite3.SQLITE_IOERR)
        assert ask(broker.url, "PUT", "/v1/topics/new").status == 500
        metadata._connection = whole
        assert ready(broker.url) == (503, ["metadata_offline"])
        assert "topics and settings cannot be changed: " in messages(broker.url)[0]


# The response.


def test_what_keeps_a_node_from_being_ready_is_told_first_and_never_left_out():
    others = [Problem(ProblemCode.LOG_OFFLINE, str(number)) for number in range(100)]
    found = listed_problems([*others, Problem(ProblemCode.METADATA_OFFLINE, "last")])
    assert found[0].code is ProblemCode.METADATA_OFFLINE
    assert len(found) == LISTED_MAX


def test_notice_may_take_no_longer_than_stopping():
    with pytest.raises(InvalidConfig, match="drain_notice_ms must be at most drain_ms_max"):
        NodeConfig(drain_ms_max=1, drain_notice_ms=2)


# Node in another process.


class Scripted(Node):
    """A node whose process runs a script first."""

    def __init__(self, script: str, data: Path, *options: str) -> None:
        super().__init__(data, *options)
        start = f"{script}\nfrom millstream.cli.main import main\nmain()"
        self._command = [sys.executable, "-c", start, *self._command[1:]]


SLOW_START = """
import asyncio, sys
from millstream.broker.broker import Broker
from millstream.servers.http.server.listener import HttpListener

listen, open_broker = HttpListener.listen, Broker.open

async def tell(self, host, port):
    port = await listen(self, host, port)
    print(f"early http://{host}:{port}", flush=True)
    return port

async def wait(*args, **settings):
    await asyncio.get_running_loop().run_in_executor(None, input)
    return await open_broker(*args, **settings)

HttpListener.listen, Broker.open = tell, wait
"""


def test_a_node_that_starts_says_so_and_serves_nothing_else(tmp_path: Path):
    node = Scripted(SLOW_START, tmp_path)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                node._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        stack.callback(process.kill)
        word, url = process.stdout.readline().split()
        assert word == "early"
        assert ready(url) == (503, ["starting"])
        assert ask(url, "GET", "/health/startup").status == 503
        assert ask(url, "GET", "/health/live").status == 200
        refused = ask(url, "GET", "/v1/topics")
        assert refused.status == 503
        assert refused.message == "the node is starting"
        assert refused.headers["retry-after"]
        process.stdin.write("go on\n")
        process.stdin.flush()
        while process.stdout.readline() != "ready\n":
            pass
        assert ready(url) == (200, [])
        assert ask(url, "GET", "/health/startup").status == 200
        assert ask(url, "GET", "/v1/topics").status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


LONG_NOTICE = ("--set", "node.drain_ms_max=1 h", "--set", "node.drain_notice_ms=1 h")


def test_a_node_that_is_told_to_stop_says_so_at_once_and_serves_on(tmp_path: Path):
    with Node(tmp_path, *LONG_NOTICE) as node:
        assert ready(node.url) == (200, [])
        node.process.send_signal(signal.SIGTERM)
        wait_until(lambda: ready(node.url) == (503, ["stopping"]))
        assert node.get("/health/live")[0] == 200
        assert node.get("/health/startup")[0] == 200
        with RawClient(node.bootstrap) as client:  # New clients can still connect.
            assert client.call(MetadataRequest(topics=())).brokers
            create_topic(client, "late")
            assert produce(client, "late", b"x") == 0
        assert node.stop() == 1, "a second signal waits for nothing"


def test_a_node_stops_cleanly_after_its_notice(tmp_path: Path):
    with Node(tmp_path, "--set", "node.drain_notice_ms=200") as node:
        assert node.stop() == 0


FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
"""


def test_without_descriptors_a_node_is_not_ready_and_is_again_with_some(tmp_path: Path):
    with Scripted(FEW_DESCRIPTORS, tmp_path) as node:
        asking = http.client.HTTPConnection(node.url.removeprefix("http://"), timeout=60)

        def codes() -> list[str]:
            asking.request("GET", "/health/ready")
            answer = asking.getresponse()
            found = json.loads(answer.read())
            assert (answer.status == 200) == (not found["problems"])
            return [one["code"] for one in found["problems"]]

        assert codes() == []
        host, _, port = node.bootstrap.rpartition(":")
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.connect((host, int(port)))
            wait_until(lambda: codes() == ["descriptors_exhausted"])
        wait_until(lambda: codes() == [])
        asking.close()
        assert node.stop() == 0
