"""The network of a test cluster: what a cut holds back, and what is delivered when it heals."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from millstream.testing.cluster.network import LinkRule
from millstream.testing.cluster.proxy import Network, process_of_connection
from millstream.testing.etcd import free_ports

WAIT_SECONDS = 30.0
STEPS_MAX = 20
"""More turns of the event loop than the end of a connection takes."""


class Pair:
    """Both ends of a connection through a proxy, from the party `a` to the party `b`."""

    def __init__(self, network: Network) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        [self._port] = free_ports(1)
        target = ("127.0.0.1", self._listener.getsockname()[1])
        network.add_proxy(self._port, target, "b", lambda _: "a")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), WAIT_SECONDS)

    def accept(self) -> socket.socket:
        self._listener.settimeout(WAIT_SECONDS)
        accepted, _ = self._listener.accept()
        accepted.settimeout(WAIT_SECONDS)
        return accepted

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def pair(network: Network) -> Iterator[Pair]:
    pair = Pair(network)
    yield pair
    pair.close()


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def wait_for_held(network: Network, source: str, target: str, size: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while network.held(source, target) != size:
        assert time.monotonic() < deadline, network.held(source, target)


def has_data(connection: socket.socket) -> bool:
    """Return whether bytes have arrived, without waiting for any."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(WAIT_SECONDS)


def test_bytes_pass_in_both_directions_and_so_does_the_end(pair: Pair):
    with pair.connect() as client:
        client.sendall(b"x" * 1_000_000)
        with pair.accept() as server:
            assert read(server, 1_000_000) == b"x" * 1_000_000
            server.sendall(b"answer")
        assert read(client, 6) == b"answer"
        assert client.recv(1) == b""


def test_a_cut_holds_bytes_of_both_directions_until_it_heals(network: Network, pair: Pair):
    with pair.connect() as client, pair.accept() as server:
        network.cut("a", "b")
        client.sendall(b"request")
        server.sendall(b"answer")
        wait_for_held(network, "a", "b", 7)
        wait_for_held(network, "b", "a", 6)
        assert not has_data(server)
        assert not has_data(client)
        network.heal()
        assert read(server, 7) == b"request"
        assert read(client, 6) == b"answer"


def test_a_one_way_cut_lets_the_other_direction_pass(network: Network, pair: Pair):
    with pair.connect() as client, pair.accept() as server:
        network.cut_one_way("a", "b")
        client.sendall(b"request")
        server.sendall(b"answer")
        assert read(client, 6) == b"answer"
        wait_for_held(network, "a", "b", 7)
        assert not has_data(server)
        network.heal()
        assert read(server, 7) == b"request"


def test_bytes_that_a_cut_holds_are_dropped_if_their_sender_leaves(network: Network, pair: Pair):
    with pair.connect() as client, pair.accept() as server:
        network.cut("a", "b")
        client.sendall(b"stale")
        wait_for_held(network, "a", "b", 5)
        client.close()
        wait_for_held(network, "a", "b", 0)
        network.heal()
        with pytest.raises(ConnectionResetError):
            server.recv(5)


def test_a_connection_through_a_cut_is_silent_until_it_heals(network: Network, pair: Pair):
    network.cut("a", "b")
    with pair.connect() as client:
        client.sendall(b"request")
        assert not has_data(client)
        network.heal()
        with pair.accept() as server:
            assert read(server, 7) == b"request"


def test_a_party_that_is_not_there_ends_the_connection(network: Network):
    with socket.socket() as silent:  # Nobody listens there, and nobody else can.
        silent.bind(("127.0.0.1", 0))
        [port] = free_ports(1)
        network.add_proxy(port, silent.getsockname(), "b", lambda _: "a")
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as client,
        ):
            client.recv(1)


@pytest.mark.parametrize("steps", range(STEPS_MAX))
def test_a_network_may_be_closed_at_each_step_of_the_end_of_a_connection(steps: int):
    """Whatever it leaves open is reported when it is collected, which is an error."""
    network = Network()
    pair = Pair(network)
    with pair.connect() as client, pair.accept() as server:
        client.sendall(b"x")
        assert read(server, 1) == b"x"

        async def end_and_close() -> None:
            server.close()
            for _ in range(steps):
                await asyncio.sleep(0)
            await network._close()

        asyncio.run_coroutine_threadsafe(end_and_close(), network._loop).result()
        network.close()
    pair.close()
    gc.collect()


def test_late_and_lost_bytes_arrive_complete_and_in_order(network: Network, pair: Pair):
    network.slow_down("a", "b", delay_s=0.001, loss=0.3)
    numbers = b"".join(b"%06d" % number for number in range(5000))
    with pair.connect() as client:
        sender = threading.Thread(
            target=lambda: [client.sendall(numbers[at : at + 600]) for at in range(0, 30000, 600)]
        )
        sender.start()
        with pair.accept() as server:
            assert read(server, 30000) == numbers
        sender.join()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"delay_s": -1.0}, "delay_s must be at least 0, got -1.0"),
        ({"loss": 1.5}, "loss must be between 0 and 1, got 1.5"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        LinkRule(**rule)


def test_the_process_of_a_connection_is_found_by_its_ports():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other,
    ):
        ports = client.getsockname()[1], listener.getsockname()[1]
        pids = {"other": other.pid, "this": os.getpid()}
        assert process_of_connection(*ports, pids) == "this"
        del pids["this"]
        with pytest.raises(LookupError, match=f"no node has a connection from port {ports[0]}"):
            process_of_connection(*ports, pids)
        other.kill()
