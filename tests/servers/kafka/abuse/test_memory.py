"""Clients that make a node hold memory: all of them together cost no more than the configured caps.

The memory of a real process is compared with the caps; how long other clients wait is measured by
`benchmarks/neighbour.py`.
"""

from __future__ import annotations

import contextlib
import selectors
import socket

import pytest

from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.metadata import MetadataRequest
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest
from tests.servers.kafka.client import batch_of, frame, produce_request
from tests.servers.kafka.conftest import make_topic

from .node import MIB, running_node, serve_once, wait_until
from .test_connections import many

RECEIVE_MAX = RESPONSES_MAX = 64 * MIB
CAPS = {"receive_bytes_max": RECEIVE_MAX, "responses_bytes_max": RESPONSES_MAX}

UNREAD = 60
WAITING = 4500
PIPELINED, REQUESTS = 200, 10_000


@pytest.fixture
def node(tmp_path):
    with running_node(tmp_path, kafka_server=CAPS) as running:
        serve_once(running)
        yield running


def fetch_of(topic, *, size_max, wait_ms):
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=size_max)
    wanted = FetchRequestTopic(topic=topic, partitions=(part,))
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=size_max, topics=(wanted,))


def test_fetches_of_a_growing_segment_that_nobody_reads_cost_no_more_than_the_cap(node):
    with node.client() as client:
        topic = make_topic(client)
        for _ in range(80):
            client.call(produce_request(topic, batch_of(bytes(1_000_000))), 9)
    before = node.anonymous_bytes()
    request = frame(fetch_of(topic, size_max=55 * MIB, wait_ms=1000), 4, 1)
    with many(node, UNREAD) as connections:
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request)
            serve_once(node)
        assert node.anonymous_bytes() - before < RESPONSES_MAX
        wait_until(lambda: all(map(has_answer, connections)))
        check_that_others_read(node, topic)


def has_answer(connection):
    """Return whether the client has an answer to read, or was disconnected."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        connection.recv(1, socket.MSG_PEEK)
        return True
    return False


def check_that_others_read(node, topic):
    """A client that reads gets all records, in as many responses as it takes."""
    with node.client() as client:
        (answer,) = client.call(fetch_of(topic, size_max=55 * MIB, wait_ms=1000), 4).responses
        (partition,) = answer.partitions
        assert partition.error_code == 0
        assert len(partition.records) >= 1_000_000


def test_fetches_that_wait_keep_nothing_of_what_arrives_between_them(node):
    """Requests of all clients arrive in shared blocks, which a request in flight may keep."""
    with node.client() as other:
        topic, busy = make_topic(other), make_topic(other)
        produce = produce_request(busy, batch_of(bytes(60_000)))
        before = node.anonymous_bytes()
        request = frame(fetch_of(topic, size_max=MIB, wait_ms=60_000), 4, 1)
        with many(node, WAITING // 25) as waiting:
            for number in range(WAITING):
                waiting[number % len(waiting)].sendall(request)
                other.call(produce, 9)
            assert node.anonymous_bytes() - before < RECEIVE_MAX


def test_requests_behind_one_that_waits_keep_nothing_of_what_arrives_between_them(tmp_path):
    """A connection that may start no more requests keeps the bytes that it sent, and no others."""
    limits = {**CAPS, "requests_in_flight_max": 4}
    with running_node(tmp_path, kafka_server=limits) as node, node.client() as other:
        topic, busy = make_topic(other), make_topic(other)
        produce = produce_request(busy, batch_of(bytes(60_000)))
        request = frame(fetch_of(topic, size_max=MIB, wait_ms=60_000), 4, 1)
        with many(node, 1000) as waiting:
            for connection in waiting:
                connection.sendall(request * 5)
            serve_once(node)
            before = node.anonymous_bytes()
            for connection in waiting:
                connection.sendall(request)
                other.call(produce, 9)
            assert node.anonymous_bytes() - before < RECEIVE_MAX


@pytest.mark.parametrize("request_", [ApiVersionsRequest(), MetadataRequest(topics=())], ids=str)
def test_small_requests_whose_answers_nobody_reads_cost_no_more_than_the_caps(node, request_):
    requests = b"".join(frame(request_, 3, number) for number in range(REQUESTS))
    before = node.anonymous_bytes()
    with many(node, PIPELINED) as connections:
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peak = send_all(node, connections, requests)
        assert peak - before < RECEIVE_MAX + RESPONSES_MAX


def send_all(node, connections, data):
    """Send until the node takes no more of any connection; return the most memory it had."""
    selector = selectors.DefaultSelector()
    for connection in connections:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_WRITE, [0])
    peak = 0
    while selector.get_map() and (ready := selector.select(1.0)):
        for key, _ in ready:
            try:
                key.data[0] += key.fileobj.send(data[key.data[0] : key.data[0] + 65536])
            except BlockingIOError:
                continue
            except ConnectionError:
                key.data[0] = len(data)
            if key.data[0] == len(data):
                selector.unregister(key.fileobj)
        peak = max(peak, node.anonymous_bytes())
    serve_once(node)
    return max(peak, node.anonymous_bytes())
