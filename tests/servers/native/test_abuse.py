"""Bad input at the native server: closed or refused, bounded, and nobody else is harmed."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading

import pytest

from millstream.config.schema import KIB, MIB, BrokerConfig, LogConfig, NativeConfig
from millstream.protocols.native import operations as ops
from millstream.protocols.native.compression import LZ4, ZSTD
from millstream.protocols.native.error_codes import NativeErrorCode
from millstream.protocols.native.frame import (
    Flag,
    Frame,
    NativeFrameHeader,
    control_frame,
    encode_header,
    ingest_frame,
    keepalive_frame,
)
from millstream.protocols.native.record_set import read_records
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.testing.broker import running_broker
from millstream.testing.disk.faulty_filesystem import CallFaults, FaultyFilesystem

from .client import Backpressure, NativeClient, Refused, metric

CLOSED = "millstream_native_closed_connections_total"


def damaged(frame, position, value):
    sent = bytearray(frame.to_bytes())
    sent[position] = value
    return bytes(sent)


NO_FRAMES = {
    "noise": random.Random(7).randbytes(5000),
    "http": b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "magic": damaged(keepalive_frame(), 0, ord("X")),
    "version 2": damaged(keepalive_frame(), 4, 2),
    "header crc": damaged(keepalive_frame(), 8, 0),
    "payload crc": damaged(ingest_frame(1, b"abc", record_count=1), 36, 0),
    "payload": damaged(ingest_frame(1, b"abc", record_count=1), 45, 0),
    "17 MiB": encode_header(NativeFrameHeader(Flag.BATCH, 1, payload_length=17 * MIB)),
    "4 GiB": encode_header(NativeFrameHeader(Flag.BATCH, 1, payload_length=2**32 - 1)),
    "unused flag": encode_header(NativeFrameHeader(0x84)),
}


@pytest.mark.parametrize("name", NO_FRAMES)
def test_what_is_no_frame_ends_its_connection_without_an_answer(broker, name):
    before = metric(broker, CLOSED)
    with NativeClient(broker.native) as client:
        client.socket.sendall(NO_FRAMES[name])
        assert client.is_closed()
    assert metric(broker, CLOSED) == before + 1
    with NativeClient(broker.native) as other:
        other.send(keepalive_frame())
        other.answer()


REFUSED = {
    "unknown operation": (control_frame(0x77), NativeErrorCode.UNKNOWN_OPERATION),
    "server's operation": (control_frame(ops.Reply.FETCH), NativeErrorCode.UNKNOWN_OPERATION),
    "ack": (Frame(NativeFrameHeader(Flag.ACK)), NativeErrorCode.MALFORMED),
    "backpressure": (Frame(NativeFrameHeader(Flag.BACKPRESSURE)), NativeErrorCode.MALFORMED),
    "nothing": (Frame(NativeFrameHeader(0)), NativeErrorCode.MALFORMED),
    "empty ingest": (Frame(NativeFrameHeader(Flag.BATCH)), NativeErrorCode.MALFORMED),
    "encrypted": (
        Frame(NativeFrameHeader(Flag.BATCH | Flag.ENCRYPTED), (b"a",)),
        NativeErrorCode.MALFORMED,
    ),
    "compressed fetch": (
        Frame(NativeFrameHeader(Flag.CONTROL | Flag.COMPRESSED, 0x10), (bytes(16),)),
        NativeErrorCode.MALFORMED,
    ),
    "short body": (control_frame(ops.NativeOperation.FETCH, bytes(15)), NativeErrorCode.MALFORMED),
    "long body": (control_frame(ops.NativeOperation.LIST_TOPICS, b"x"), NativeErrorCode.MALFORMED),
    "unknown codec": (
        Frame(NativeFrameHeader(Flag.BATCH | Flag.COMPRESSED), (b"\7" + bytes(9),)),
        NativeErrorCode.MALFORMED,
    ),
    "bomb": (
        Frame(NativeFrameHeader(Flag.BATCH | Flag.COMPRESSED), (struct.pack("<BI", ZSTD, 2**31),)),
        NativeErrorCode.MALFORMED,
    ),
    "lying lz4": (
        Frame(
            NativeFrameHeader(Flag.BATCH | Flag.COMPRESSED),
            (struct.pack("<BII", LZ4, 9, 9) + b"x",),
        ),
        NativeErrorCode.MALFORMED,
    ),
}


def test_frames_that_cannot_be_served_are_refused_in_order_and_the_connection_goes_on(client):
    for frame, _ in REFUSED.values():
        client.send(frame)
        client.send(keepalive_frame())
    for name, (_, code) in REFUSED.items():
        with pytest.raises(Refused) as refused:
            client.answer()
        assert refused.value.code == code, name
        assert client.answer()[0].flags == Flag.KEEPALIVE


def test_every_cut_of_a_frame_and_every_chunking_means_the_same(client, topic):
    sent = client.ingest_frame(topic, b"one", b"two").to_bytes() + keepalive_frame().to_bytes()
    for size in range(1, len(sent)):
        client.socket.sendall(sent[:size])
        client.socket.sendall(sent[size:])
        assert client.answer()[0].flags == Flag.ACK
        assert client.answer()[0].flags == Flag.KEEPALIVE
    assert client.fetch(topic, 2 * (len(sent) - 1))[0].record_count == 0


def test_a_frame_has_a_number_of_records_that_is_limited(tmp_path):
    with (
        running_broker(tmp_path, native_server=NativeConfig(frame_records_max=10)) as broker,
        NativeClient(broker.native) as client,
    ):
        number = client.create("orders")["id"]
        client.ingest(number, *[b""] * 10)
        with pytest.raises(Refused, match="a frame must have at most 10 records") as refused:
            client.ingest(number, *[b""] * 11)
        assert refused.value.code == NativeErrorCode.TOO_LARGE
        assert client.fetch(number, 0)[0].record_count == 10


DEADLINES = {
    "no frame": ("handshake_ms_max", b""),
    "a part of a header": ("handshake_ms_max", b"LANC"),
    "a part of a frame": (
        "request_ms_max",
        keepalive_frame().to_bytes() + ingest_frame(1, bytes(99), record_count=1).to_bytes()[:80],
    ),
    "silence": ("idle_ms_max", keepalive_frame().to_bytes()),
}


@pytest.mark.parametrize("name", DEADLINES)
def test_a_client_that_takes_too_long_is_disconnected(tmp_path, name):
    setting, sent = DEADLINES[name]
    with (
        running_broker(tmp_path, native_server=NativeConfig(**{setting: 100})) as broker,
        NativeClient(broker.native) as client,
    ):
        client.socket.sendall(sent)
        received = b""
        while chunk := client.socket.recv(1000):
            received += chunk
        assert received in {b"", keepalive_frame().to_bytes()}


def test_connections_beyond_the_limit_are_closed(tmp_path):
    with (
        running_broker(tmp_path, native_server=NativeConfig(connections_max=2)) as broker,
        NativeClient(broker.native) as first,
        NativeClient(broker.native) as second,
    ):
        for client in (first, second):
            client.send(keepalive_frame())
            client.answer()
        with NativeClient(broker.native) as third:
            assert third.is_closed()
        name = 'millstream_native_accepted_connections_total{outcome="refused"}'
        assert metric(broker, name) == 1


def send_forever(connection, data):
    while True:
        connection.sendall(data)


def test_a_client_that_reads_nothing_is_held_back_and_then_disconnected(tmp_path):
    settings = NativeConfig(output_ms_max=300, output_bytes_max=64 * KIB)
    with running_broker(tmp_path, native_server=settings) as broker:
        with NativeClient(broker.native) as client:
            number = client.create("orders")["id"]
            client.ingest(number, bytes(900_000))
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(60)
        deaf.connect(tuple(broker.native))
        fetch = control_frame(
            ops.NativeOperation.FETCH, ops.fetch_body(ops.Fetch(number, 0, 2**20))
        )
        with pytest.raises(ConnectionError):
            send_forever(deaf, fetch.to_bytes() * 100)
        deaf.close()
        assert metric(broker, "millstream_native_response_memory_bytes") < 4 * MIB
        fetched = 'millstream_native_requests_total{operation="Fetch"}'
        assert metric(broker, fetched) < 20


class SlowSyncs(CallFaults):
    """A disk whose syncs end when the test says so."""

    def __init__(self):
        self.may_end = threading.Event()
        self.may_end.set()

    def strike(self, name, path):
        if name == "sync":
            assert self.may_end.wait(60)


def test_records_are_acknowledged_once_they_are_on_the_disk(tmp_path):
    disk = SlowSyncs()
    with (
        running_broker(
            tmp_path,
            filesystem=FaultyFilesystem(OsFilesystem(), disk),
            native_server=NativeConfig(),
        ) as broker,
        NativeClient(broker.native) as client,
    ):
        number = client.create("orders")["id"]
        client.ingest(number, b"first")
        received = metric(broker, "millstream_native_received_bytes_total")
        disk.may_end.clear()
        try:
            client.send(client.ingest_frame(number, b"second"))
            while metric(broker, "millstream_native_received_bytes_total") == received:
                pass
            metric(broker, "millstream_native_connections")  # An answer would be sent by now.
            client.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.socket.recv(1)
        finally:
            disk.may_end.set()
        client.socket.settimeout(60)
        assert client.answer()[0].flags == Flag.ACK


def test_records_that_the_disk_does_not_take_in_time_are_answered_with_backpressure(tmp_path):
    disk = SlowSyncs()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(
            running_broker(
                tmp_path,
                filesystem=FaultyFilesystem(OsFilesystem(), disk),
                log=LogConfig(unflushed_bytes_max=1),
                native_server=NativeConfig(append_ms_max=50),
            )
        )
        clients = [stack.enter_context(NativeClient(broker.native)) for _ in range(5)]
        number = clients[0].create("orders")["id"]
        clients[0].ingest(number, b"first")
        acknowledged = {b"first"}
        disk.may_end.clear()
        try:
            for index, client in enumerate(clients):
                client.send(client.ingest_frame(number, b"%d" % index))
            while not metric(broker, "millstream_native_backpressure_total"):
                pass
        finally:
            disk.may_end.set()
        for index, client in enumerate(clients):
            with contextlib.suppress(Backpressure):
                assert client.answer()[0].flags == Flag.ACK
                acknowledged.add(b"%d" % index)
        refused = 6 - len(acknowledged)
        assert metric(broker, "millstream_native_backpressure_total") == refused > 0
        _, data = clients[0].fetch(number, 0)
        assert sorted(
            record.value for record in read_records(data, record_count=1, count_max=9)
        ) == (sorted(acknowledged))


THROTTLED = "millstream_native_throttled_requests_total"


def test_a_client_that_exceeds_its_quota_is_answered_and_then_read_from_later(tmp_path):
    with (
        running_broker(
            tmp_path,
            broker=BrokerConfig(limit_producer_bytes_per_second=1000),
            native_server=NativeConfig(),
        ) as broker,
        NativeClient(broker.native) as client,
    ):
        number, count = client.create("orders")["id"], 0
        while not metric(broker, THROTTLED):
            client.ingest(number, bytes(900))
            count += 1
        assert count * 900 > 1000
        assert metric(broker, "millstream_native_throttle_seconds_total") > 0
        client.ingest(number, b"the next one waits")


def test_changes_of_topics_beyond_the_quota_are_refused_with_a_time_to_wait(tmp_path):
    with (
        running_broker(
            tmp_path,
            broker=BrokerConfig(limit_mutations_per_second=1),
            native_server=NativeConfig(),
        ) as broker,
        NativeClient(broker.native) as client,
        NativeClient(broker.native) as other,
    ):
        count = 0
        while not metric(broker, THROTTLED):
            count += 1
            client.create(f"topic-{count}")
        with pytest.raises(Refused) as refused:
            other.create("one-more")
        assert refused.value.code == NativeErrorCode.RATE_LIMITED
        assert refused.value.details["retry_after_ms"] > 0
