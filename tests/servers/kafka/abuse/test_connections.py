"""Connections that use too much: memory stays bounded, and other clients are served."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time

import pytest

from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.metadata import MetadataRequest
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest
from tests.servers.kafka.client import RawClient, batch_of, frame, produce_request
from tests.servers.kafka.conftest import make_topic

from .node import MIB, running_node, serve_once, wait_until

CLAIMS = 1_000
IDLE = 2_000
DEAF = 200
PIPELINED = 10_000


@contextlib.contextmanager
def many(node, count):
    """Connected sockets."""
    host, _, port = node.bootstrap.rpartition(":")
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            for _ in range(count)
        ]


def is_closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("arrived", [0, 1, 5000])
def test_a_thousand_clients_that_claim_much_cost_little(node, arrived):
    serve_once(node)
    before = node.memory_bytes()
    with many(node, CLAIMS) as connections:
        for connection in connections:
            connection.sendall(struct.pack(">i", 100_000_000) + bytes(arrived))
        serve_once(node)
        assert node.memory_bytes() - before < 50 * MIB


def test_two_thousand_idle_clients_cost_little(node):
    serve_once(node)
    before = node.memory_bytes()
    with many(node, IDLE) as connections:
        hello = frame(ApiVersionsRequest(), 0, 1)
        for connection in connections:
            connection.sendall(hello)
        for connection in connections:
            assert len(connection.recv(65536)) > 100
        assert (node.memory_bytes() - before) / IDLE <= 30_000
        serve_once(node)


def test_clients_that_never_read_are_bounded_and_dropped(tmp_path):
    with running_node(tmp_path, kafka_server={"output_ms_max": 4000}) as node:
        with node.client() as client:
            topic = make_topic(client)
            client.call(produce_request(topic, batch_of(bytes(100_000))), 9)
        before = node.memory_bytes()
        part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
        wanted = FetchRequestTopic(topic=topic, partitions=(part,))
        request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=(wanted,))
        requests = b"".join(frame(request, 4, number) for number in range(PIPELINED))
        with many(node, DEAF) as connections:
            for connection in connections:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            _send_without_reading(connections, requests, node, before)
            wait_until(lambda: node.said().count("read nothing for") == DEAF)
        serve_once(node)


def _send_without_reading(connections, data, node, before):
    """Send as much as the node takes within two seconds, and watch it."""
    selector = selectors.DefaultSelector()
    for connection in connections:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_WRITE, [0])
    deadline = time.monotonic() + 2
    while selector.get_map() and time.monotonic() < deadline:
        for key, _ in selector.select(0.1):
            place = key.data
            try:
                place[0] += key.fileobj.send(data[place[0] : place[0] + 65536])
            except ConnectionError:
                place[0] = len(data)
            if place[0] == len(data):
                selector.unregister(key.fileobj)
    # Half a megabyte for each client that does not read, and as much for what the loop holds.
    assert node.memory_bytes() - before < DEAF * MIB
    serve_once(node)


SLOW = {"handshake_ms_max": 600, "request_ms_max": 600, "idle_ms_max": 1500}


@pytest.fixture(scope="module")
def hasty_node(tmp_path_factory):
    with running_node(tmp_path_factory.mktemp("hasty"), kafka_server=SLOW) as running:
        yield running


def test_a_client_that_says_nothing_is_dropped(hasty_node):
    with many(hasty_node, 50) as connections:
        began = time.monotonic()
        wait_until(lambda: all(map(is_closed, connections)))
        assert time.monotonic() - began > 0.3


@pytest.mark.parametrize("is_greeted", [False, True], ids=["first-request", "later-request"])
def test_a_client_that_sends_byte_by_byte_is_dropped(hasty_node, is_greeted):
    request = frame(ApiVersionsRequest(), 0, 1, client_id="slow" * 100)
    with hasty_node.client() as client:
        if is_greeted:
            client.call(ApiVersionsRequest(), 0)
        assert is_closed_while_sending_slowly(client.socket, request)


def is_closed_while_sending_slowly(connection, request):
    """Send one byte every 20 ms; return whether the node closed the connection meanwhile."""
    for byte in request:
        try:
            connection.sendall(bytes([byte]))
        except ConnectionError:
            return True
        time.sleep(0.02)
    return False


def test_an_idle_client_is_dropped_and_a_busy_one_is_not(hasty_node):
    with hasty_node.client() as idle, hasty_node.client() as busy:
        idle.call(ApiVersionsRequest(), 0)

        def is_idle_closed():
            busy.call(ApiVersionsRequest(), 0)
            return is_closed(idle.socket)

        wait_until(is_idle_closed)


def test_without_descriptors_the_node_waits_and_then_goes_on(tmp_path):
    with running_node(tmp_path, descriptors_max=256) as node:
        host, _, port = node.bootstrap.rpartition(":")
        with contextlib.ExitStack() as stack:
            for _ in range(1000):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.connect((host, int(port)))
            wait_until(lambda: node.said().count("no connections are accepted") > 1)
        wait_until(lambda: _is_served(node))


def _is_served(node):
    try:
        with node.client(timeout=1) as client:
            return len(client.call(MetadataRequest(topics=())).brokers) == 1
    except OSError:
        return False


def test_more_connections_than_allowed_are_closed(tmp_path):
    with running_node(tmp_path, kafka_server={"connections_max": 10}) as node:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(node.client()) for _ in range(10)]
            for client in clients:  # Who is served was accepted before the others connect.
                client.call(MetadataRequest(topics=()))
            others = stack.enter_context(many(node, 5))
            wait_until(lambda: all(map(is_closed, others)))
            assert all(client.call(MetadataRequest(topics=())).brokers for client in clients)
        wait_until(lambda: _is_served(node))


@pytest.mark.parametrize("piece", [1, 7, 10**9], ids=["byte-by-byte", "pieces", "at-once"])
def test_pipelined_requests_are_answered_in_order(node, piece):
    with RawClient(node.bootstrap) as client:
        sent = b""
        for number in range(1, 101):
            request = ApiVersionsRequest() if number % 2 else MetadataRequest(topics=())
            sent += frame(request, 3, number)
        for start in range(0, len(sent), piece):
            client.socket.sendall(sent[start : start + piece])
        numbers = [struct.unpack_from(">i", client.receive_frame())[0] for _ in range(100)]
        assert numbers == list(range(1, 101))


def test_an_answer_that_has_to_wait_holds_back_those_behind_it(node):
    with RawClient(node.bootstrap) as client:
        topic = make_topic(client)
        part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        wanted = FetchRequestTopic(topic=topic, partitions=(part,))
        client.send(FetchRequest(max_wait_ms=300, min_bytes=1, topics=(wanted,)), 4)
        for number in range(10):
            client.send(produce_request(topic, batch_of(b"%d" % number)), 9)
            client.send(MetadataRequest(topics=()), 12)
        client.receive()  # It raises where an answer is not that of the oldest request.
        for number in range(10):
            (produced,) = client.receive().responses
            assert produced.partition_responses[0].base_offset == number
            client.receive()
