"""One connection: version negotiation, and nodes that violate the protocol."""

from __future__ import annotations

import socket
import struct

import pytest

from millstream.clients.kafka.connection import BrokerConnection
from millstream.clients.kafka.deadline import Deadline
from millstream.errors import (
    MalformedAnswer,
    NodeRefused,
    NodeUnreachable,
    UnsupportedVersion,
)
from millstream.protocols.kafka.codec.message import decode
from millstream.protocols.kafka.messages.fetch import FetchRequest
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataResponse
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from millstream.protocols.kafka.messages.versions import ApiVersionsResponse, ApiVersionsResponseApi
from millstream.testing.clocks.manual_clock import ManualClock

from .fake_node import FakeNode, framed

ANSWER = MetadataResponse(cluster_id="fake")


def connect(node, *, timeout_s=30.0, **more):
    return BrokerConnection("127.0.0.1", node.port, client_id="test", timeout_s=timeout_s, **more)


def test_a_real_node_is_spoken_to_in_the_newest_version(broker):
    host, _, port = broker.bootstrap.rpartition(":")
    with BrokerConnection(host, int(port), client_id="test", timeout_s=30.0) as connection:
        assert connection.version_of(MetadataRequest) == 13
        assert connection.call(MetadataRequest(topics=())).controller_id >= 0
        assert connection.features["transaction.version"] == 2


def test_answers_come_in_the_order_of_requests():
    answers = iter(["first", "second", "third"])
    with (
        FakeNode(lambda *_: MetadataResponse(cluster_id=next(answers))) as node,
        connect(node) as connection,
    ):
        for _ in range(3):
            connection.send(MetadataRequest())
        assert connection.in_flight == 3
        found = [connection.receive().cluster_id for _ in range(3)]
        assert found == ["first", "second", "third"]


@pytest.mark.parametrize(("spoken", "version"), [((0, 99), 13), ((0, 5), 5), ((2, 2), 2)])
def test_the_highest_version_that_both_know_is_used(spoken, version):
    with FakeNode(lambda *_: ANSWER, apis={3: spoken}) as node, connect(node) as connection:
        assert connection.call(MetadataRequest()).brokers == ()
    assert [header.api_version for header in node.asked if header.api_key == 3] == [version]


@pytest.mark.parametrize(
    ("apis", "said"),
    [
        ({3: (0, 9)}, "supports no version of Fetch, this client needs one of 4 to 18"),
        ({1: (0, 3)}, "supports versions 0 to 3 of Fetch"),
        ({1: (19, 20)}, "supports versions 19 to 20 of Fetch"),
    ],
)
def test_a_request_that_the_node_does_not_know_is_not_sent(apis, said):
    with FakeNode(lambda *_: ANSWER, apis=apis) as node, connect(node) as connection:
        with pytest.raises(UnsupportedVersion, match=said):
            connection.send(FetchRequest(max_wait_ms=0, min_bytes=0, topics=()))
        assert not connection.supports(ProduceRequest)
    assert len(node.asked) == 1


def test_a_node_too_old_for_the_question_is_asked_again_in_its_own_version():
    apis = (
        ApiVersionsResponseApi(api_key=18, min_version=0, max_version=2),
        ApiVersionsResponseApi(api_key=3, min_version=0, max_version=1),
    )

    def answer(header, _):
        if header.api_version > 2:
            refused = ApiVersionsResponse(error_code=35, api_keys=apis)
            return framed(header._replace(api_version=0), refused)
        return ApiVersionsResponse(api_keys=apis)

    with FakeNode(answer, answers_versions=False) as node, connect(node) as connection:
        assert connection.version_of(MetadataRequest) == 1
    assert [header.api_version for header in node.asked] == [4, 2]


def test_a_node_that_does_not_say_what_it_speaks_is_left():
    def answer(*_):
        return ApiVersionsResponse(error_code=71)

    with (
        FakeNode(answer, answers_versions=False) as node,
        pytest.raises(NodeRefused, match=r"\(71\)"),
    ):
        connect(node)


def bytes_of(size, number, rest):
    return struct.pack(">ii", size, number) + rest


GARBAGE = {
    "no number": (lambda h: b"\xff" * 64, "response size must be between 4 and 2048 bytes, got -1"),
    "http": (lambda h: b"HTTP/1.1 400 Bad Request\r\n\r\n", "got 1213486160"),
    "too large": (
        lambda h: bytes_of(2049, h.correlation_id, b""),
        "between 4 and 2048 bytes, got 2049",
    ),
    "too small": (lambda h: bytes_of(3, h.correlation_id, b""), "between 4 and 2048 bytes, got 3"),
    "wrong number": (
        lambda h: framed(h._replace(correlation_id=h.correlation_id + 1), ANSWER),
        r"response has correlation id \d+, expected \d+",
    ),
    "noise": (lambda h: bytes_of(24, h.correlation_id, b"\x7f" * 20), "on Metadata: "),
    "empty": (lambda h: bytes_of(4, h.correlation_id, b""), "ends at byte 0, within its header"),
    "trailing": (
        lambda h: bytes_of(
            len(framed(h, ANSWER)) - 3, h.correlation_id, framed(h, ANSWER)[8:] + b"!"
        ),
        "but there are",
    ),
}


@pytest.mark.parametrize(("answer", "said"), GARBAGE.values(), ids=GARBAGE)
def test_an_answer_that_is_none_is_refused_and_ends_the_connection(answer, said):
    with (
        FakeNode(lambda header, _: answer(header)) as node,
        connect(node, frame_size_max=2048) as connection,
    ):
        with pytest.raises(MalformedAnswer, match=said) as raised:
            connection.call(MetadataRequest())
        assert f"127.0.0.1:{node.port} on Metadata" in str(raised.value)
        assert not connection.is_usable()
        with pytest.raises(NodeUnreachable):
            connection.call(MetadataRequest())


def test_a_claimed_size_is_refused_before_memory_is_taken_for_it():
    with (
        FakeNode(lambda h, _: bytes_of(2**31 - 1, h.correlation_id, b"")) as node,
        connect(node) as connection,
    ):
        before = [len(buffer) for buffer in vars(connection._buffers).values()]
        with pytest.raises(MalformedAnswer, match="got 2147483647"):
            connection.call(MetadataRequest())
        assert [len(buffer) for buffer in vars(connection._buffers).values()] == before


def test_a_silent_node_is_given_up_at_the_deadline():
    with FakeNode(lambda *_: None) as node, connect(node, timeout_s=0.05) as connection:
        with pytest.raises(NodeUnreachable, match=r"no response within 0\.05 s") as raised:
            connection.call(MetadataRequest())
        assert raised.value.may_be_done


def test_a_node_that_is_silent_from_the_start_cannot_have_done_anything():
    with FakeNode(lambda *_: None, answers_versions=False) as node:
        with pytest.raises(NodeUnreachable) as raised:
            connect(node, timeout_s=0.05)
        assert not raised.value.may_be_done


class TickingClock(ManualClock):
    """A clock that advances by one second each time it is read."""

    def monotonic(self):
        self.advance(1)
        return super().monotonic()


def test_a_node_that_never_stops_sending_does_not_outlive_the_deadline():
    """The deadline is fixed; it does not start again with every byte."""
    with (
        FakeNode(lambda h, _: bytes_of(1004, h.correlation_id, b"x" * 1000)) as node,
        connect(node, timeout_s=20, clock=TickingClock()) as connection,
    ):
        deadline = Deadline(2.5, clock=TickingClock())
        connection.send(MetadataRequest())
        into = memoryview(bytearray(100))
        for _ in range(2):
            connection._read(into, deadline)
        with pytest.raises(NodeUnreachable, match=r"no response within 2\.5 s"):
            connection._read(into, deadline)  # More bytes are available, but it is too late.


def test_a_node_that_hangs_up_is_named():
    with FakeNode(lambda *_: None) as node, connect(node) as connection:
        connection.send(MetadataRequest())
        node.__exit__()
        with pytest.raises(NodeUnreachable, match=f"127.0.0.1:{node.port}: ") as raised:
            connection.receive()
        assert raised.value.may_be_done
        assert not connection.is_usable()


def test_nobody_listening_is_said_with_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NodeUnreachable, match=f"127.0.0.1:{port}: cannot connect: ") as raised:
        BrokerConnection("127.0.0.1", port, client_id="test", timeout_s=1.0)
    assert not raised.value.may_be_done


def test_a_host_that_is_none_is_said_with_its_name():
    with pytest.raises(NodeUnreachable, match=r"no such host\.invalid:1: "):
        BrokerConnection("no such host.invalid", 1, client_id="test", timeout_s=1.0)


def received(*sent):
    """Return the records that a node receives when `sent` is produced in one request."""
    seen = []

    def answer(header, body):
        request = decode(ProduceRequest, body, header.api_version)
        seen.extend(bytes(part.records) for part in request.topic_data[0].partition_data)
        return ProduceResponse()

    data = tuple(
        ProduceRequestPartition(index=number, records=part) for number, part in enumerate(sent)
    )
    topic = ProduceRequestTopic(name="t", partition_data=data)
    with FakeNode(answer) as node, connect(node) as connection:
        connection.call(ProduceRequest(acks=-1, timeout_ms=1, topic_data=(topic,)))
    return tuple(seen)


def test_a_request_of_more_parts_than_the_system_takes_at_once_arrives_whole():
    sent = tuple(b"%06d" % number for number in range(2000))
    assert received(*sent) == sent


def test_a_request_of_more_bytes_than_the_system_takes_at_once_arrives_whole():
    sent = (b"0123456789abcde" * 2_000_000, b"the end")
    assert received(*sent) == sent
