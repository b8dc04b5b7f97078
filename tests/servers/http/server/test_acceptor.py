"""The limits of connections hold, and the log keeps its descriptors."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from millstream.config.schema import HttpConfig
from millstream.servers.http.server.listener import DESCRIPTOR_SHARE
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.raw_client import RawClient, raw_client

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def refused(broker: RunningBroker) -> dict[str, int]:
    listener = broker.server._http
    assert listener is not None
    return dict(listener.state.counters.refused)


def wait_until_none(broker: RunningBroker) -> None:
    listener = broker.server._http
    assert listener is not None
    broker.run(listener.state.connections.wait_until_none())


def is_served(client: RawClient) -> bool:
    client.try_to_send(GET)
    return client.answer().status == 200


def test_one_connection_too_many_is_told_so_and_closed(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(connections_max=3)) as broker:
        taken = [RawClient(broker.url) for _ in range(3)]
        assert all(is_served(client) for client in taken)
        with raw_client(broker.url) as client:
            (answer,) = client.answers()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error["code"] == "service_unavailable"
        assert refused(broker) == {"connections": 1}
        for client in taken:
            client.socket.close()
        wait_until_none(broker)
        assert ask(broker.url, "GET", "/health/live").status == 200


def test_one_address_has_its_own_limit(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(connections_per_address_max=1)) as broker:
        with raw_client(broker.url) as first:
            assert is_served(first)
            with raw_client(broker.url) as client:
                assert [answer.status for answer in client.answers()] == [503]
        assert refused(broker) == {"address": 1}
        wait_until_none(broker)
        assert ask(broker.url, "GET", "/health/live").status == 200


NODE = """
import logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
logging.basicConfig(stream=sys.stderr, level="INFO")
from millstream.servers.http.server import listener
from millstream.testing.broker import running_broker
listener.DESCRIPTOR_SHARE = float(sys.argv[2])
with running_broker(sys.argv[1]) as broker:
    print(broker.url, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def limited_node(path: Path, share: float) -> Iterator[tuple[str, list[str]]]:
    """Run a process with 256 descriptors; yields its URL, and a list that gets its log lines."""
    command = [sys.executable, "-c", NODE, str(path), str(share)]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as node:
        assert node.stdout is not None
        yield node.stdout.readline().strip(), lines
        _, log = node.communicate("")
        lines += log.splitlines()
    assert node.returncode == 0


def wait_until_served(url: str) -> None:
    """Wait until the node has noticed that clients are gone."""
    while True:
        with raw_client(url) as client:
            client.try_to_send(GET)
            if client_statuses(client) == [200]:
                return


def test_a_thousand_connections_leave_the_log_its_descriptors(tmp_path: Path) -> None:
    """An accepted client appends to new logs, whose files have to be opened."""
    with limited_node(tmp_path, DESCRIPTOR_SHARE) as (url, log):
        clients = []
        for _ in range(1_000):
            client = RawClient(url)
            client.send(GET)
            clients.append(client)
        statuses = [next(iter(client_statuses(client)), 0) for client in clients]
        assert 50 < statuses.count(200) < 128
        taken = clients[statuses.index(200)]
        assert append(taken, "new") == 201
        for client in clients:
            client.socket.close()
        wait_until_served(url)
        with raw_client(url) as client:
            assert append(client, "newer") == 201
    assert not [line for line in log if "Traceback" in line]
    assert len(log) < 100


def test_without_descriptors_nothing_spins_and_all_is_well_again_after(tmp_path: Path) -> None:
    """As if Kafka clients had taken the others: the share is larger than the limit."""
    with limited_node(tmp_path, 10.0) as (url, log):
        clients = [RawClient(url) for _ in range(1_000)]
        for client in clients[:150]:
            assert is_served(client)
        for client in clients:
            client.socket.close()
        wait_until_served(url)
        with raw_client(url) as client:
            assert append(client, "new") == 201
    pauses = [line for line in log if "no connections are accepted" in line]
    assert 0 < len(pauses) < 100
    assert not [line for line in log if "Traceback" in line]


def client_statuses(client: RawClient) -> list[int]:
    """Return the status of the next response; none if the connection ended without one."""
    with contextlib.suppress(AssertionError):
        return [client.answer().status]
    return []


def append(client: RawClient, topic: str) -> int:
    body = json.dumps({"records": [{"value": 1}]}).encode()
    client.send(
        f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return client.answer().status
